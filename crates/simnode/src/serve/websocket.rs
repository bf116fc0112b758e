//! A WebSocket in front of a node, as geth has it: one message is one call or one batch.
//!
//! It takes whole, masked frames of up to [`BODY_BYTES_MAX`] and fragments of them, answers pings, and
//! closes what is against the protocol. The node's settings say whether it answers in fragments and
//! whether it answers pings at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf};
use tokio::sync::mpsc;

use super::BODY_BYTES_MAX;
use super::body::ServedBody;
use super::many::{ANSWERS_MAX, End, Said, Serving, write};
use crate::node::Node;

/// RFC 6455, 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// What accepts the request for a WebSocket, if it is one.
pub(super) fn accept(headers: &HeaderMap) -> Option<String> {
    headers.get(UPGRADE).filter(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))?;
    let key = headers.get(KEY)?.to_str().ok()?;
    Some(STANDARD.encode(Sha1::digest(format!("{key}{GUID}"))))
}

/// The answer that opens it.
pub(super) fn accepted(accept: &str) -> Response<ServedBody> {
    let mut response = Response::new(ServedBody::whole(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(value) = HeaderValue::from_str(accept) {
        headers.insert(ACCEPT, value);
    }
    response
}

/// Serves one connection until it ends.
pub(super) async fn serve<S>(node: Arc<Node>, stream: S, reset: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, written) = tokio::io::split(stream);
    let (answers, inbox) = mpsc::channel(ANSWERS_MAX);
    let fragment_bytes = node.settings().fragment_bytes;
    let framed = move |message: &[u8]| frames(message, fragment_bytes);
    let serving = Serving::new(Arc::clone(&node), answers.clone());
    tokio::select! {
        end = write(written, inbox, framed) => {
            if end == End::Reset {
                reset.store(true, Ordering::Release);
            }
        }
        () = take(&node, read, serving, answers) => {}
    }
}

/// Reads messages until the client leaves or breaks the protocol.
async fn take<S>(
    node: &Node,
    mut stream: ReadHalf<S>,
    mut serving: Serving,
    answers: mpsc::Sender<Said>,
) where
    S: AsyncRead + Unpin,
{
    let (mut buffer, mut message) = (Vec::with_capacity(16 << 10), Vec::new());
    loop {
        loop {
            let (first, payload, used) = match frame(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(Refused) => return,
            };
            match first & 0x0f {
                0x0..=0x2 => {
                    message.extend_from_slice(payload);
                    if message.len() > BODY_BYTES_MAX {
                        return;
                    }
                    if first & 0x80 != 0 {
                        serving.begin(std::mem::take(&mut message).into()).await;
                    }
                }
                0x8 => return,
                0x9 if !node.settings().mute_to_pings => {
                    let _ = answers.send(Said::Frame(whole_frame(0x8a, payload))).await;
                }
                _ => {}
            }
            buffer.drain(..used);
        }
        match stream.read_buf(&mut buffer).await {
            Ok(bytes) if bytes > 0 => {}
            _ => return,
        }
    }
}

/// The client breaks the protocol, or asks for too much.
struct Refused;

/// A frame: its first byte, its unmasked payload and its whole length.
type Frame<'a> = (u8, &'a [u8], usize);

/// The first frame, once it is there.
fn frame(bytes: &mut [u8]) -> Result<Option<Frame<'_>>, Refused> {
    let [first, second, rest @ ..] = &*bytes else { return Ok(None) };
    let first = *first;
    if second & 0x80 == 0 || first & 0x70 != 0 {
        return Err(Refused);
    }
    let (length, head) = match second & 0x7f {
        126 => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 4),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 10),
            None => return Ok(None),
        },
        short => (u64::from(short), 2),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= BODY_BYTES_MAX);
    let whole = head + 4 + length.ok_or(Refused)?;
    if bytes.len() < whole {
        return Ok(None);
    }
    let (key, payload) = bytes[head..whole].split_at_mut(4);
    for (byte, key) in payload.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
    Ok(Some((first, payload, whole)))
}

/// A message in one frame, or in fragments of so many bytes.
fn frames(message: &[u8], fragment_bytes: Option<u32>) -> Vec<u8> {
    let Some(bytes) = fragment_bytes else { return whole_frame(0x81, message) };
    let pieces: Vec<&[u8]> = message.chunks(bytes.max(1) as usize).collect();
    let last = pieces.len().saturating_sub(1);
    let piece = |(at, piece): (usize, &&[u8])| {
        let op = if at == 0 { 0x1 } else { 0x0 };
        whole_frame(if at == last { 0x80 | op } else { op }, piece)
    };
    pieces.iter().enumerate().flat_map(piece).collect()
}

fn whole_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        length @ 0..=125 => out.push(length as u8),
        length @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}
