//! How messages follow each other on a trunk: frames of a WebSocket, or JSON values on a local
//! socket.

use bytes::{Bytes, BytesMut};
use wire::call::{call_bytes, write_call};
use wire::json::splitter::{Split, Splitter};

use crate::io::websocket::frame::{Decoder, Event, Op, Payload, Role};
use crate::io::websocket::keys::Keys;
use crate::io::websocket::{frame, mask};

/// So much of a message that is too long is kept, to tell whose it was.
const HEAD_KEPT_BYTES: usize = 64;

/// Takes apart what comes.
#[derive(Debug)]
pub(super) enum Framing {
    WebSocket(Decoder),
    Values(Values),
}

/// What came cannot be read, and nothing behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    Frame(frame::Fault),
    NoValue,
}

impl Framing {
    /// What frames look like at the start of a WebSocket.
    pub(super) fn websocket(message_bytes_max: usize) -> Framing {
        Framing::WebSocket(Decoder::new(Role::Client, message_bytes_max))
    }

    /// What values look like at the start of a local socket.
    pub(super) fn values(message_bytes_max: usize) -> Framing {
        Framing::Values(Values {
            splitter: Splitter::default(),
            message_bytes_max,
            body: BytesMut::new(),
            too_large: false,
        })
    }

    /// As [`Decoder::next`].
    pub(super) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), Unreadable> {
        match self {
            Framing::WebSocket(decoder) => decoder.next(bytes).map_err(Unreadable::Frame),
            Framing::Values(values) => values.next(bytes),
        }
    }

    /// As [`Decoder::gap`]; the length of a value is not known beforehand.
    pub(super) fn gap(&mut self) -> Option<(&mut BytesMut, usize)> {
        match self {
            Framing::WebSocket(decoder) => decoder.gap(),
            Framing::Values(_) => None,
        }
    }

    /// As [`Decoder::filled`].
    pub(super) fn filled(&mut self, bytes: usize) {
        if let Framing::WebSocket(decoder) = self {
            decoder.filled(bytes);
        }
    }
}

/// JSON values, one after the other.
#[derive(Debug)]
pub(super) struct Values {
    splitter: Splitter,
    message_bytes_max: usize,
    /// The value that has begun in an earlier read.
    body: BytesMut,
    too_large: bool,
}

impl Values {
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Option<Event<'a>>), Unreadable> {
        let (used, ends) = match self.splitter.next(bytes).map_err(|_| Unreadable::NoValue)? {
            Split::Whitespace => return Ok((bytes.len(), None)),
            Split::Incomplete => (bytes.len(), false),
            Split::End(end) => (end, true),
        };
        let whole = ends && self.body.is_empty() && used <= self.message_bytes_max;
        if whole && !self.too_large {
            let value = bytes[..used].trim_ascii_start();
            return Ok((used, Some(Event::Message(Payload::Read(value)))));
        }
        let piece =
            if self.body.is_empty() { bytes[..used].trim_ascii_start() } else { &bytes[..used] };
        self.too_large |= self.body.len() + piece.len() > self.message_bytes_max;
        let room = if self.too_large {
            self.body.truncate(HEAD_KEPT_BYTES);
            HEAD_KEPT_BYTES - self.body.len()
        } else {
            piece.len()
        };
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
        if !ends {
            return Ok((used, None));
        }
        let body = std::mem::take(&mut self.body).freeze();
        let event = if std::mem::take(&mut self.too_large) {
            Event::TooLarge(body)
        } else {
            Event::Message(Payload::Whole(body))
        };
        Ok((used, Some(event)))
    }
}

/// How messages are written.
#[derive(Debug)]
pub(super) enum Writing {
    WebSocket(Keys),
    Values,
}

impl Writing {
    /// Appends a call; whether that was possible.
    pub(super) fn call(
        &self,
        out: &mut Vec<u8>,
        id: &[u8],
        name: &str,
        params: Option<&[u8]>,
    ) -> bool {
        match self {
            Writing::WebSocket(keys) => {
                let Some(key) = keys.next() else { return false };
                let length = call_bytes(id, name, params);
                out.reserve(length + 14);
                frame::write_header(out, Op::Text, length, Some(key));
                let from = out.len();
                write_call(out, id, name, params);
                mask::apply(&mut out[from..], key, 0);
            }
            Writing::Values => {
                write_call(out, id, name, params);
                out.push(b'\n');
            }
        }
        true
    }

    /// Appends a control frame, where there is such a thing.
    pub(super) fn control(&self, out: &mut Vec<u8>, op: Op, payload: &[u8]) {
        if let Writing::WebSocket(keys) = self
            && let Some(key) = keys.next()
        {
            frame::write(out, op, payload, Some(key));
        }
    }

    /// Whether the other side answers to pings.
    pub(super) fn has_pings(&self) -> bool {
        matches!(self, Writing::WebSocket(_))
    }
}

/// Whose message this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The answer to the call with this id.
    Call(u64),
    /// An answer without an id: an error from before the upstream had read the call's.
    Nobody,
    /// Not an answer: the upstream says something by itself.
    Notice,
    /// What the upstream says is none of ours.
    Stray,
}

/// What upstreams begin an answer with, nearly all of them.
const OPEN: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// Tells whose a message is, by its id wherever that stands. Whether the message is an answer at
/// all is seen when it is read.
pub(super) fn whose(message: &[u8]) -> Whose {
    if let Some(rest) = message.strip_prefix(OPEN) {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if rest.get(digits) == Some(&b',')
            && let Some(id) = number(&rest[..digits])
        {
            return Whose::Call(id);
        }
    }
    let [id, method] = wire::json::walk::fields_of(message, ["id", "method"]);
    match (id, method) {
        (_, Some(_)) => Whose::Notice,
        (None | Some(b"null"), None) => Whose::Nobody,
        (Some(id), None) => number(id).map_or(Whose::Stray, Whose::Call),
    }
}

/// Whose an answer is of which only the beginning is there.
pub(super) fn whose_head(head: &Bytes) -> Whose {
    let rest = head.strip_prefix(OPEN).unwrap_or_default();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == rest.len() {
        return Whose::Nobody;
    }
    number(&rest[..digits]).map_or(Whose::Nobody, Whose::Call)
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Goal: values are framed whatever the cuts, long ones are passed over, and the owner of a
    //! message is found wherever its id stands.

    use super::*;

    fn read(stream: &[u8], step: usize) -> Vec<(bool, Vec<u8>)> {
        let mut framing = Framing::values(40);
        let mut seen = Vec::new();
        for piece in stream.chunks(step) {
            let mut at = 0;
            loop {
                let (used, event) = framing.next(&piece[at..]).unwrap();
                at += used;
                seen.push(match event {
                    None => break,
                    Some(Event::Message(payload)) => (true, payload.to_vec()),
                    Some(Event::TooLarge(head)) => (false, head.to_vec()),
                    Some(_) => panic!("values have no control frames"),
                });
            }
            assert_eq!(at, piece.len());
        }
        seen
    }

    #[test]
    fn values_are_framed_whatever_the_cuts() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(100));
        let stream = format!("{{\"id\":1}}\n{{\"id\":2}}\n{long}\n  {{\"id\":3}}\n");
        for step in 1..=stream.len() {
            let seen = read(stream.as_bytes(), step);
            let (_, long_head) = &seen[2];
            assert!(long.as_bytes().starts_with(long_head) && !long_head.is_empty());
            let kinds: Vec<bool> = seen.iter().map(|(whole, _)| *whole).collect();
            assert_eq!(kinds, [true, true, false, true], "in pieces of {step}");
            assert_eq!((&*seen[1].1, &*seen[3].1), (&b"{\"id\":2}"[..], &b"{\"id\":3}"[..]));
        }
        assert!(Framing::values(40).next(b"x").is_err());
    }

    #[test]
    fn finds_the_owner() {
        let check = |message: &str, expected: Whose| {
            assert_eq!(whose(message.as_bytes()), expected, "{message}");
        };
        check(r#"{"jsonrpc":"2.0","id":7,"result":1}"#, Whose::Call(7));
        check(
            r#"{"result":{"id":3},"id":281474976710655,"jsonrpc":"2.0"}"#,
            Whose::Call((1 << 48) - 1),
        );
        check(r#"{"jsonrpc":"2.0","id":7 ,"result":1}"#, Whose::Call(7));
        check(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}"#, Whose::Nobody);
        check(r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{}}"#, Whose::Notice);
        check(r#"{"jsonrpc":"2.0","id":"7","result":1}"#, Whose::Stray);
        check(r#"{"jsonrpc":"2.0","id":-7,"result":1}"#, Whose::Stray);
        check(r#"{"jsonrpc":"2.0","id":99999999999999999999,"result":1}"#, Whose::Stray);
        check(r#"[{"id":7}]"#, Whose::Nobody);
        check("", Whose::Nobody);
        let head = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"result":"0x"#);
        assert_eq!(whose_head(&head), Whose::Call(7));
        assert_eq!(whose_head(&head.slice(..23)), Whose::Nobody, "more digits may follow");
    }
}
