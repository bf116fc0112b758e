//! The opening handshake of a WebSocket to a target. `wire::websocket::handshake` has the part that
//! every client needs.

use std::time::Duration;

use lab_model::plan::Target;
use wire::websocket::handshake::{Refusal, UpgradeRequest};

use crate::engine::EngineFault;
use crate::engine::compose::{AGENT, header_fields};

/// Header fields that the engine sets itself.
const RESERVED: [&str; 7] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-extensions",
];

/// Builds the requests that open WebSockets of one target.
pub(crate) struct Opener {
    /// The request line and the header fields of the target.
    head: String,
}

impl Opener {
    /// Prepares the constant part of the request.
    ///
    /// # Errors
    /// Fails if a header of the target cannot be sent.
    pub(crate) fn new(target: &Target) -> Result<Opener, EngineFault> {
        let fields = header_fields(target, &[("User-Agent", AGENT)], &RESERVED)?;
        Ok(Opener { head: format!("GET {} HTTP/1.1\r\n{fields}", target.url.target()) })
    }

    /// Builds the request for a new connection. Also returns the state of the handshake.
    pub(crate) fn open(&self) -> (Vec<u8>, Handshake) {
        let request = UpgradeRequest::random();
        let mut bytes = self.head.clone().into_bytes();
        request.write(&mut bytes);
        (bytes, Handshake { request, received: Vec::new() })
    }
}

/// A handshake with an incomplete response.
#[derive(Debug)]
pub(crate) struct Handshake {
    request: UpgradeRequest,
    /// Bytes of the response so far.
    received: Vec<u8>,
}

/// The result of [`Handshake::feed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeState {
    /// The response is incomplete.
    Incomplete,
    /// The WebSocket is open.
    Open {
        /// Bytes that followed the response: the first bytes of frames.
        frames: Vec<u8>,
    },
    /// The server responded with a status other than 101.
    Refused {
        status: u16,
        /// Value of Retry-After; `None` if it is absent or invalid.
        retry_after: Option<Duration>,
    },
    /// The response is not a valid response to the handshake.
    Invalid,
}

impl Handshake {
    /// Parses the next bytes of the response.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> HandshakeState {
        self.received.extend_from_slice(bytes);
        match self.request.check_response(&self.received) {
            Ok(None) => HandshakeState::Incomplete,
            Ok(Some(head_bytes)) => {
                HandshakeState::Open { frames: self.received.split_off(head_bytes) }
            }
            Err(Refusal::Status { status, retry_after }) => {
                HandshakeState::Refused { status, retry_after }
            }
            Err(Refusal::Malformed) => HandshakeState::Invalid,
        }
    }
}
