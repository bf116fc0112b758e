//! The WebSocket opening handshake: the client's request and the server's response (RFC 6455,
//! section 4).

use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::retry_after::parse_retry_after;

/// The suffix that the server appends to the key before it hashes both (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum header lines of a response.
const HEADERS_MAX: usize = 128;
/// Maximum bytes of a response head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The upgrade request of one connection.
#[derive(Debug)]
pub struct UpgradeRequest {
    /// Random bytes in Base64. The server's response must match them.
    key: String,
}

/// Reason why a connection was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The server responded with another HTTP status than 101.
    Status {
        /// The HTTP status.
        status: u16,
        /// The pause that the header `Retry-After` asks for; `None` if it is absent or invalid.
        retry_after: Option<Duration>,
    },
    /// The response is not a valid WebSocket handshake.
    Malformed,
}

impl UpgradeRequest {
    /// Creates a request with a random key.
    pub fn random() -> UpgradeRequest {
        let mut key = [0; 16];
        // The key is no secret. If the system has no randomness it is 0, which is valid too.
        let _ignored = rand::fill(&mut key);
        UpgradeRequest { key: STANDARD.encode(key) }
    }

    /// Appends the WebSocket headers and the empty line to `head`, which holds the request line and
    /// the other headers.
    pub fn write(&self, head: &mut Vec<u8>) {
        head.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: websocket\r\n");
        head.extend_from_slice(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ");
        head.extend_from_slice(self.key.as_bytes());
        head.extend_from_slice(b"\r\n\r\n");
    }

    /// Checks whether a response opens the connection. If so, returns the length of its head
    /// (status line and headers), after which frames follow. Returns `None` while the head is
    /// incomplete.
    ///
    /// # Errors
    /// A [`Refusal`] if the response does not open the connection.
    pub fn check_response(&self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut slots);
        let head_bytes = match response.parse(bytes) {
            Ok(httparse::Status::Complete(head_bytes)) => head_bytes,
            Ok(httparse::Status::Partial) if bytes.len() <= HEAD_BYTES_MAX => return Ok(None),
            Ok(httparse::Status::Partial) | Err(_) => return Err(Refusal::Malformed),
        };
        let headers_named = |name: &'static str| {
            let headers = response.headers.iter();
            headers.filter(move |header| header.name.eq_ignore_ascii_case(name))
        };
        let single_value = |name| {
            let mut headers = headers_named(name);
            let first_value = headers.next().map(|header| header.value.trim_ascii());
            // A repeated header is ambiguous, so it is ignored.
            first_value.filter(|_| headers.next().is_none())
        };
        let status = response.code.unwrap_or(0);
        if status != 101 {
            let retry_after = single_value("retry-after").and_then(parse_retry_after);
            return Err(Refusal::Status { status, retry_after });
        }
        let has_token = |name, token: &str| {
            let mut items =
                headers_named(name).flat_map(|header| header.value.split(|byte| *byte == b','));
            items.any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        };
        let has_header = |name| headers_named(name).next().is_some();
        let expected_accept = compute_accept(self.key.as_bytes());
        let opens_connection = has_token("upgrade", "websocket")
            && has_token("connection", "upgrade")
            && single_value("sec-websocket-accept") == Some(expected_accept.as_bytes())
            // The request offers no extension and no subprotocol.
            && !has_header("sec-websocket-extensions")
            && !has_header("sec-websocket-protocol");
        if opens_connection { Ok(Some(head_bytes)) } else { Err(Refusal::Malformed) }
    }
}

/// Computes the server's response to a key, for `Sec-WebSocket-Accept`.
pub fn compute_accept(key: &[u8]) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    STANDARD.encode(hash)
}

#[cfg(test)]
mod tests {
    //! Goal: only a response that matches the request opens a connection.

    use super::*;

    fn response(request: &UpgradeRequest, lines: &str) -> String {
        let lines = lines.replace("ACCEPT", &compute_accept(request.key.as_bytes()));
        format!("HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n\r\n")
    }

    const RIGHT: &str =
        "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: ACCEPT";

    #[test]
    fn accepts_the_key_of_the_rfc() {
        // RFC 6455, 1.3.
        assert_eq!(compute_accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn only_a_matching_response_opens() {
        let request = UpgradeRequest::random();
        let right = response(&request, RIGHT);
        assert_eq!(request.check_response(right.as_bytes()), Ok(Some(right.len())));
        let more = format!("{right}\u{1}");
        assert_eq!(request.check_response(more.as_bytes()), Ok(Some(right.len())));
        for cut in 0..right.len() {
            assert_eq!(request.check_response(&right.as_bytes()[..cut]), Ok(None), "{cut} bytes");
        }
        let wrong = [
            RIGHT.replace("WebSocket\r\n", "h2c\r\n"),
            RIGHT.replace("keep-alive, Upgrade", "close"),
            RIGHT.replace("ACCEPT", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
            RIGHT.replace("Sec-WebSocket-Accept: ACCEPT", "Server: x"),
            format!("{RIGHT}\r\nSec-WebSocket-Accept: ACCEPT"),
            format!("{RIGHT}\r\nSec-WebSocket-Extensions: permessage-deflate"),
            format!("{RIGHT}\r\nSec-WebSocket-Protocol: chat"),
        ];
        for lines in wrong {
            let answered = request.check_response(response(&request, &lines).as_bytes());
            assert_eq!(answered, Err(Refusal::Malformed), "{lines}");
        }
    }

    #[test]
    fn a_refusal_reports_its_status() {
        let request = UpgradeRequest::random();
        let response = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\n\r\n";
        let retry_after = Some(Duration::from_secs(7));
        let refusal = Refusal::Status { status: 429, retry_after };
        assert_eq!(request.check_response(response), Err(refusal));
        assert_eq!(request.check_response(b"SSH-2.0-x\r\n"), Err(Refusal::Malformed));
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        let head = [b"HTTP/1.1 101 ok\r\nX: ", &endless[..]].concat();
        assert_eq!(request.check_response(&head), Err(Refusal::Malformed));
    }

    #[test]
    fn keys_differ() {
        assert_ne!(UpgradeRequest::random().key, UpgradeRequest::random().key);
        let mut head = Vec::new();
        UpgradeRequest::random().write(&mut head);
        assert!(head.ends_with(b"==\r\n\r\n"));
    }
}
