//! The WebSocket of a node, as geth has it: one message is one call or one batch.
//!
//! The server reads masked frames of up to [`BODY_BYTES_MAX`] and fragmented messages, responds to
//! pings, and closes the connection on a protocol violation. Settings of the node can fragment its
//! messages and disable its pongs.

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
use super::outgoing::{ConnectionEnd, Outgoing, REPLIES_MAX, write_outgoing};
use crate::node::Node;

/// The bit of a frame's first byte that marks the last frame of a message (RFC 6455, section 5.2).
const FINAL_FRAME: u8 = 0x80;
/// The bits of a frame's first byte that are its opcode.
const OPCODE_MASK: u8 = 0x0f;
const OPCODE_CONTINUATION: u8 = 0x0;
const OPCODE_TEXT: u8 = 0x1;
const OPCODE_BINARY: u8 = 0x2;
const OPCODE_CLOSE: u8 = 0x8;
const OPCODE_PING: u8 = 0x9;
const OPCODE_PONG: u8 = 0xa;

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// Returns the `Sec-WebSocket-Accept` value for a request, or `None` if the request is no valid
/// handshake.
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

/// Serves one connection until it ends. Sets `reset` if a fault must end the connection with a TCP
/// reset.
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
        end = write_outgoing(write_half, inbox, encode) => {
            if end == ConnectionEnd::Reset {
                reset.store(true, Ordering::Release);
            }
        }
        () = read_messages(&node, read_half, dispatcher, replies) => {}
    }
}

/// Reads messages until the client closes the connection or violates the protocol.
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
            match first_byte & OPCODE_MASK {
                OPCODE_CONTINUATION | OPCODE_TEXT | OPCODE_BINARY => {
                    message.extend_from_slice(payload);
                    if message.len() > BODY_BYTES_MAX {
                        return;
                    }
                    if first_byte & FINAL_FRAME != 0 {
                        dispatcher.start(std::mem::take(&mut message).into()).await;
                    }
                }
                OPCODE_CLOSE => return,
                OPCODE_PING if !node.settings().mute_to_pings => {
                    let pong = frame::write(FINAL_FRAME | OPCODE_PONG, payload);
                    let _ = replies.send(Outgoing::Frame(pong)).await;
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

/// Encodes a message as one frame, or as fragments of `fragment_bytes` if it is set.
fn encode_frames(message: &[u8], fragment_bytes: Option<u32>) -> Vec<u8> {
    let Some(fragment_bytes) = fragment_bytes else {
        return frame::write(FINAL_FRAME | OPCODE_TEXT, message);
    };
    let fragments: Vec<&[u8]> = message.chunks(fragment_bytes.max(1) as usize).collect();
    let last_index = fragments.len().saturating_sub(1);
    let encode = |(index, fragment): (usize, &&[u8])| {
        let opcode = if index == 0 { OPCODE_TEXT } else { OPCODE_CONTINUATION };
        let final_bit = if index == last_index { FINAL_FRAME } else { 0 };
        frame::write(final_bit | opcode, fragment)
    };
    fragments.iter().enumerate().flat_map(encode).collect()
}
