//! The state of a WebSocket that carries calls, one at a time.

use super::{Decoder, Handshake, NORMAL_CLOSURE};
use crate::engine::body::Body;

/// The state of a WebSocket that carries calls.
#[derive(Debug)]
pub(crate) struct CallSocket {
    /// The opening handshake; `None` once the WebSocket is open.
    pub(crate) handshake: Option<Handshake>,
    /// When the handshake started.
    pub(crate) started: u64,
    pub(crate) decoder: Decoder,
    /// The message that is being received.
    pub(crate) body: Body,
    /// Payload of the last ping that has no pong yet. Earlier pings need none (RFC 6455, section
    /// 5.5.3), so a flood of pings takes no memory.
    pub(crate) pong: Option<Vec<u8>>,
    /// Code of the client's close frame.
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
            pong: None,
            close_code: NORMAL_CLOSURE,
        }
    }
}
