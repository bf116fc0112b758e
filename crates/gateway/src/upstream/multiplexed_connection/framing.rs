//! Splits the input of a multiplexed connection into messages, encodes its output, and finds the
//! recipient of a message. A message is a WebSocket message, or a JSON value on a local socket.

use bytes::{Bytes, BytesMut};
use wire::call::{call_bytes, write_call};
use wire::json::splitter::{Split, Splitter};
use wire::websocket::keys::Keys;
use wire::websocket::{Opcode, ProtocolError, Role, apply_mask, write_frame, write_header};

use crate::io::websocket::decoder::{Decoder, Event, Payload};

/// Of a message over the size limit, only the first bytes are stored, up to this number. They are
/// enough to read the id.
const PREFIX_BYTES: usize = 64;

/// Length of the longest header of a masked WebSocket frame (RFC 6455, 5.2).
const FRAME_HEADER_BYTES_MAX: usize = 14;

/// Splits the received bytes into messages.
#[derive(Debug)]
pub(super) enum Framing {
    WebSocket(Decoder),
    /// JSON values on a local socket.
    Values(Values),
}

/// Why the received bytes cannot be split. The following bytes cannot be split either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FramingError {
    /// A WebSocket frame is malformed.
    Frame(ProtocolError),
    /// The bytes are not a JSON value.
    NoValue,
}

impl Framing {
    /// Returns the framing of a new WebSocket.
    pub(super) fn websocket(message_bytes_max: usize) -> Framing {
        let compression = false;
        Framing::WebSocket(Decoder::new(Role::Client, message_bytes_max, compression))
    }

    /// Returns the framing of a new local socket.
    pub(super) fn values(message_bytes_max: usize) -> Framing {
        Framing::Values(Values {
            splitter: Splitter::default(),
            message_bytes_max,
            body: BytesMut::new(),
            too_large: false,
        })
    }

    /// Behaves as [`Decoder::next`].
    pub(super) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), FramingError> {
        match self {
            Framing::WebSocket(decoder) => decoder.next(bytes).map_err(FramingError::Frame),
            Framing::Values(values) => values.next(bytes),
        }
    }

    /// Behaves as [`Decoder::direct_read_buffer`]. Returns `None` on a local socket, because the
    /// length of a JSON value is not known in advance.
    pub(super) fn direct_read_buffer(&mut self) -> Option<(&mut BytesMut, usize)> {
        match self {
            Framing::WebSocket(decoder) => decoder.direct_read_buffer(),
            Framing::Values(_) => None,
        }
    }

    /// Behaves as [`Decoder::record_direct_read`].
    pub(super) fn record_direct_read(&mut self, bytes: usize) {
        if let Framing::WebSocket(decoder) = self {
            decoder.record_direct_read(bytes);
        }
    }
}

/// Splits a stream of JSON values.
#[derive(Debug)]
pub(super) struct Values {
    /// Finds the end of each value.
    splitter: Splitter,
    message_bytes_max: usize,
    /// The first bytes of a value that was incomplete after earlier reads.
    body: BytesMut,
    /// True if the incomplete value exceeds the limit, so that only its first bytes are stored.
    too_large: bool,
}

impl Values {
    /// Behaves as [`Decoder::next`].
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Option<Event<'a>>), FramingError> {
        let (used_bytes, has_end) =
            match self.splitter.next(bytes).map_err(|_| FramingError::NoValue)? {
                Split::Whitespace => return Ok((bytes.len(), None)),
                Split::Incomplete => (bytes.len(), false),
                Split::End(end) => (end, true),
            };
        let is_whole = has_end && self.body.is_empty() && used_bytes <= self.message_bytes_max;
        if is_whole && !self.too_large {
            let value = bytes[..used_bytes].trim_ascii_start();
            return Ok((used_bytes, Some(Event::Message(Payload::Borrowed(value)))));
        }
        let piece = if self.body.is_empty() {
            bytes[..used_bytes].trim_ascii_start()
        } else {
            &bytes[..used_bytes]
        };
        self.too_large |= self.body.len() + piece.len() > self.message_bytes_max;
        let capacity = if self.too_large {
            self.body.truncate(PREFIX_BYTES);
            PREFIX_BYTES - self.body.len()
        } else {
            piece.len()
        };
        self.body.extend_from_slice(&piece[..piece.len().min(capacity)]);
        if !has_end {
            return Ok((used_bytes, None));
        }
        let body = std::mem::take(&mut self.body).freeze();
        let event = if std::mem::take(&mut self.too_large) {
            Event::TooLarge(body)
        } else {
            Event::Message(Payload::Owned(body))
        };
        Ok((used_bytes, Some(event)))
    }
}

/// Encodes messages.
#[derive(Debug)]
pub(super) enum Encoder {
    /// Encodes masked WebSocket frames; holds the masking keys.
    WebSocket(Keys),
    /// Encodes JSON values for a local socket.
    Values,
}

impl Encoder {
    /// Appends a call. Returns false if the system has no randomness for the mask.
    pub(super) fn call(
        &self,
        out: &mut Vec<u8>,
        id: &[u8],
        name: &str,
        params: Option<&[u8]>,
    ) -> bool {
        match self {
            Encoder::WebSocket(keys) => {
                let Some(key) = keys.next() else { return false };
                let length = call_bytes(id, name, params);
                out.reserve(FRAME_HEADER_BYTES_MAX + length);
                write_header(out, Opcode::Text, length, Some(key));
                let payload_start = out.len();
                write_call(out, id, name, params);
                apply_mask(&mut out[payload_start..], key, 0);
            }
            Encoder::Values => {
                write_call(out, id, name, params);
                out.push(b'\n');
            }
        }
        true
    }

    /// Appends a control frame to a WebSocket; does nothing on a local socket.
    pub(super) fn control(&self, out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
        if let Encoder::WebSocket(keys) = self
            && let Some(key) = keys.next()
        {
            write_frame(out, opcode, payload, Some(key));
        }
    }

    /// Returns true if the transport has pings, as a WebSocket does.
    pub(super) fn has_pings(&self) -> bool {
        matches!(self, Encoder::WebSocket(_))
    }
}

/// The recipient of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The call with this id.
    Call(u64),
    /// The message is a response without an id: the upstream could not read the call, or only the
    /// start of a long response was stored.
    Unaddressed,
    /// The message is a notification of a subscription.
    Notification,
    /// The id is not an id of this gateway.
    Unknown,
}

/// First bytes of a response from nearly every upstream.
const COMMON_START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// Finds the recipient of a message by its id, which may be at any position in the message. Does
/// not check that the message is a valid response.
pub(super) fn find_recipient(message: &[u8]) -> Recipient {
    if let Some(after_start) = message.strip_prefix(COMMON_START) {
        let digits = after_start.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if after_start.get(digits) == Some(&b',')
            && let Some(id) = parse_id(&after_start[..digits])
        {
            return Recipient::Call(id);
        }
    }
    let [id, method] = wire::json::walk::fields_of(message, ["id", "method"]);
    match (id, method) {
        (_, Some(_)) => Recipient::Notification,
        (None | Some(b"null"), None) if reports_unread_call(message) => Recipient::Unaddressed,
        (None, None) => Recipient::Unknown,
        (Some(id), None) => parse_id(id).map_or(Recipient::Unknown, Recipient::Call),
    }
}

/// Returns true if an error without an id says that the upstream could not read a call: a parse
/// error or an invalid request (JSON-RPC 2.0, section 5). Any other error without an id is a notice
/// of the upstream and belongs to no call.
fn reports_unread_call(message: &[u8]) -> bool {
    let [error] = wire::json::walk::fields_of(message, ["error"]);
    let Some(error) = error else { return false };
    let [code] = wire::json::walk::fields_of(error, ["code"]);
    matches!(code, Some(b"-32700" | b"-32600"))
}

/// Finds the recipient of a response over the size limit. Only its first bytes, `prefix`, are
/// stored. The result is `Unaddressed` if `prefix` does not start with `COMMON_START` and a
/// complete id.
pub(super) fn find_recipient_in_prefix(prefix: &Bytes) -> Recipient {
    let after_start = prefix.strip_prefix(COMMON_START).unwrap_or_default();
    let digits = after_start.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == after_start.len() {
        return Recipient::Unaddressed;
    }
    parse_id(&after_start[..digits]).map_or(Recipient::Unaddressed, Recipient::Call)
}

fn parse_id(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Goal: values are split correctly at any read boundary, and long values are skipped. The
    //! recipient of a message is found at any position of its id.

    use super::*;

    const MESSAGE_BYTES_MAX: usize = 40;

    /// Splits `stream`, which arrives in pieces of `piece_bytes` bytes. Returns the messages. The
    /// flag of a message is false if only its first bytes were stored.
    fn read(stream: &[u8], piece_bytes: usize) -> Vec<(bool, Vec<u8>)> {
        let mut framing = Framing::values(MESSAGE_BYTES_MAX);
        let mut messages = Vec::new();
        for piece in stream.chunks(piece_bytes) {
            let mut consumed = 0;
            loop {
                let (used_bytes, event) = framing.next(&piece[consumed..]).unwrap();
                consumed += used_bytes;
                messages.push(match event {
                    None => break,
                    Some(Event::Message(payload)) => (true, payload.to_vec()),
                    Some(Event::TooLarge(prefix)) => (false, prefix.to_vec()),
                    Some(_) => panic!("values have no control frames"),
                });
            }
            assert_eq!(consumed, piece.len());
        }
        messages
    }

    #[test]
    fn values_are_framed_at_every_split() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(100));
        let stream = format!("{{\"id\":1}}\n{{\"id\":2}}\n{long}\n  {{\"id\":3}}\n");
        for step in 1..=stream.len() {
            let messages = read(stream.as_bytes(), step);
            let (_, long_prefix) = &messages[2];
            assert!(long.as_bytes().starts_with(long_prefix) && !long_prefix.is_empty());
            let kinds: Vec<bool> = messages.iter().map(|(whole, _)| *whole).collect();
            assert_eq!(kinds, [true, true, false, true], "in pieces of {step}");
            assert_eq!(
                (&*messages[1].1, &*messages[3].1),
                (&b"{\"id\":2}"[..], &b"{\"id\":3}"[..])
            );
        }
        assert!(Framing::values(MESSAGE_BYTES_MAX).next(b"x").is_err());
    }

    #[test]
    fn finds_the_recipient() {
        let check = |message: &str, expected: Recipient| {
            assert_eq!(find_recipient(message.as_bytes()), expected, "{message}");
        };
        check(r#"{"jsonrpc":"2.0","id":7,"result":1}"#, Recipient::Call(7));
        check(
            r#"{"result":{"id":3},"id":281474976710655,"jsonrpc":"2.0"}"#,
            Recipient::Call((1 << 48) - 1),
        );
        check(r#"{"jsonrpc":"2.0","id":7 ,"result":1}"#, Recipient::Call(7));
        check(
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}"#,
            Recipient::Unaddressed,
        );
        check(r#"{"error":{"code":-32600,"message":""}}"#, Recipient::Unaddressed);
        let notice = r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"free tier"}}"#;
        check(notice, Recipient::Unknown);
        check(&notice.replace("\"error\"", "\"id\":null,\"error\""), Recipient::Unknown);
        check(r#"{"jsonrpc":"2.0","id":null,"result":1}"#, Recipient::Unknown);
        check(
            r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#,
            Recipient::Notification,
        );
        check(r#"{"jsonrpc":"2.0","id":"7","result":1}"#, Recipient::Unknown);
        check(r#"{"jsonrpc":"2.0","id":-7,"result":1}"#, Recipient::Unknown);
        check(r#"{"jsonrpc":"2.0","id":99999999999999999999,"result":1}"#, Recipient::Unknown);
        check(r#"[{"id":7}]"#, Recipient::Unknown);
        check("", Recipient::Unknown);
        let prefix = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"result":"0x"#);
        assert_eq!(find_recipient_in_prefix(&prefix), Recipient::Call(7));
        assert_eq!(
            find_recipient_in_prefix(&prefix.slice(..23)),
            Recipient::Unaddressed,
            "more digits may follow"
        );
    }
}
