//! The WebSocket of a node, as geth has it: one message is one call or one batch.
//!
//! It reads masked frames of up to [`BODY_BYTES_MAX`] and fragmented messages, responds to pings,
//! and closes the connection on a protocol violation. Two settings fragment its messages and
//! disable its pongs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadHalf};
use tokio::sync::mpsc;

use super::BODY_BYTES_MAX;
use super::body::ResponseBody;
use super::dispatch::CallDispatcher;
use super::frame;
use super::outgoing::{ConnectionEnd, Outgoing, REPLIES_MAX, write};
use crate::node::Node;

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// Returns the `Sec-WebSocket-Accept` value for a request, if it requests a WebSocket.
pub(super) fn accept(headers: &HeaderMap) -> Option<String> {
    headers.get(UPGRADE).filter(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))?;
    Some(frame::accept(headers.get(KEY)?.to_str().ok()?))
}

/// Returns the response that opens the WebSocket.
pub(super) fn upgrade_response(accept: &str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(Bytes::new()));
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
    let (read_half, write_half) = tokio::io::split(stream);
    let (replies, inbox) = mpsc::channel(REPLIES_MAX);
    let fragment_bytes = node.settings().fragment_bytes;
    let encode = move |message: &[u8]| encode_frames(message, fragment_bytes);
    let dispatcher = CallDispatcher::new(Arc::clone(&node), replies.clone());
    tokio::select! {
        end = write(write_half, inbox, encode) => {
            if end == ConnectionEnd::Reset {
                reset.store(true, Ordering::Release);
            }
        }
        () = read_messages(&node, read_half, dispatcher, replies) => {}
    }
}

/// Reads messages until the client leaves or violates the protocol.
async fn read_messages<S>(
    node: &Node,
    mut stream: ReadHalf<S>,
    mut dispatcher: CallDispatcher,
    replies: mpsc::Sender<Outgoing>,
) where
    S: AsyncRead + Unpin,
{
    let (mut buffer, mut message) = (Vec::with_capacity(16 << 10), Vec::new());
    loop {
        loop {
            let frame = match frame::read(&mut buffer, BODY_BYTES_MAX) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(frame::ProtocolError) => return,
            };
            let (first_byte, payload, frame_bytes) = frame;
            match first_byte & 0x0f {
                0x0..=0x2 => {
                    message.extend_from_slice(payload);
                    if message.len() > BODY_BYTES_MAX {
                        return;
                    }
                    if first_byte & 0x80 != 0 {
                        dispatcher.start(std::mem::take(&mut message).into()).await;
                    }
                }
                0x8 => return,
                0x9 if !node.settings().mute_to_pings => {
                    let _ = replies.send(Outgoing::Frame(frame::write(0x8a, payload))).await;
                }
                _ => {}
            }
            buffer.drain(..frame_bytes);
        }
        match stream.read_buf(&mut buffer).await {
            Ok(bytes) if bytes > 0 => {}
            _ => return,
        }
    }
}

/// Encodes a message as one frame, or as fragments of `fragment_bytes`.
fn encode_frames(message: &[u8], fragment_bytes: Option<u32>) -> Vec<u8> {
    let Some(bytes) = fragment_bytes else { return frame::write(0x81, message) };
    let fragments: Vec<&[u8]> = message.chunks(bytes.max(1) as usize).collect();
    let last = fragments.len().saturating_sub(1);
    let encode = |(index, fragment): (usize, &&[u8])| {
        let opcode = if index == 0 { 0x1 } else { 0x0 };
        frame::write(if index == last { 0x80 | opcode } else { opcode }, fragment)
    };
    fragments.iter().enumerate().flat_map(encode).collect()
}
