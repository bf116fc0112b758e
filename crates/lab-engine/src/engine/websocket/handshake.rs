//! The opening handshake of a WebSocket: builds the request, and parses the response (RFC 6455,
//! section 4.1).

use std::mem::MaybeUninit;
use std::time::Duration;

use aws_lc_rs::{digest, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lab_model::plan::Target;

use crate::engine::EngineFault;
use crate::engine::compose::{AGENT, header_fields};
use crate::engine::reader::parse_retry_after;

/// Constant that the server hashes together with the client's key, to prove that it supports
/// WebSockets (RFC 6455, section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum number of bytes of the response's status line and header fields.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 128;
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
    /// The request. The value of Sec-WebSocket-Key, the last field, is missing.
    head: String,
}

impl Opener {
    /// Prepares the constant part of the request.
    ///
    /// # Errors
    /// Fails if a header of the target cannot be sent.
    pub(crate) fn new(target: &Target) -> Result<Opener, EngineFault> {
        let fields = header_fields(target, &[("User-Agent", AGENT)], &RESERVED)?;
        let path = target.url.target();
        let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n";
        Ok(Opener { head: format!("GET {path} HTTP/1.1\r\n{fields}{upgrade}Sec-WebSocket-Key: ") })
    }

    /// Builds the request for a new connection. Also returns the state of the handshake.
    pub(crate) fn open(&self) -> (Vec<u8>, Handshake) {
        let mut nonce = [0; 16];
        // If no random bytes are available, the nonce is 0 and the request is still valid.
        let _ignored = rand::fill(&mut nonce);
        let key = STANDARD.encode(nonce);
        let digest =
            digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
        let handshake = Handshake { accept: STANDARD.encode(digest), received: Vec::new() };
        (format!("{}{key}\r\n\r\n", self.head).into_bytes(), handshake)
    }
}

/// A handshake with an incomplete response.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// The expected value of Sec-WebSocket-Accept.
    accept: String,
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
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            &self.received,
            &mut fields,
        );
        let head_bytes = match parsed {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if self.received.len() <= HEAD_BYTES_MAX => {
                return HandshakeState::Incomplete;
            }
            _ => return HandshakeState::Invalid,
        };
        let field = |name: &str| {
            let mut fields = response.headers.iter();
            fields.find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
        };
        match response.code {
            Some(101) if field("sec-websocket-accept") == Some(self.accept.as_bytes()) => {
                HandshakeState::Open { frames: self.received[head_bytes..].to_vec() }
            }
            Some(101) | None => HandshakeState::Invalid,
            Some(status) => HandshakeState::Refused {
                status,
                retry_after: field("retry-after").and_then(parse_retry_after),
            },
        }
    }
}
