//! The state of a WebSocket on which a worker sends its calls, one at a time.

use super::{Decoder, Handshake, NORMAL_CLOSURE};
use crate::engine::body::Body;
use crate::engine::compose::Request;

/// The state of a WebSocket that carries calls.
#[derive(Debug)]
pub(crate) struct CallSocket {
    /// The opening handshake; `None` once the WebSocket is open.
    pub(crate) handshake: Option<Handshake>,
    /// When the handshake started, in nanoseconds since the start of the run.
    pub(crate) started: u64,
    pub(crate) decoder: Decoder,
    /// The received part of the current message.
    pub(crate) body: Body,
    /// The last request whose response has arrived. A server may send a response twice.
    pub(crate) answered: Option<Request>,
    /// Payload of the last ping, if its pong was not sent yet. Earlier pings need no pong (RFC
    /// 6455, section 5.5.3), so a flood of pings takes no memory.
    pub(crate) pong: Option<Vec<u8>>,
    /// Code of the close frame that the client will send.
    pub(crate) close_code: u16,
}

impl CallSocket {
    /// Creates the state of a WebSocket whose handshake started `now`.
    pub(crate) fn new(handshake: Handshake, now: u64) -> CallSocket {
        CallSocket {
            handshake: Some(handshake),
            started: now,
            decoder: Decoder::default(),
            body: Body::default(),
            answered: None,
            pong: None,
            close_code: NORMAL_CLOSURE,
        }
    }
}
