//! Frames: a decoder that stores no payload of messages, and an encoder.

use aws_lc_rs::rand;

/// Maximum payload of a control frame (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: usize = 125;
/// Maximum bytes of an unmasked header: two bytes and a length of eight.
const HEADER_BYTES_MAX: usize = 10;
/// Number of bytes per draw of masking keys.
const KEY_BYTES: usize = 1024;

/// A violation of the protocol by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError;

/// The type of a frame that the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    /// A text message.
    Text = 0x1,
    /// The end of the connection.
    Close = 0x8,
    /// A reply to a ping.
    Pong = 0xa,
}

/// A decoded event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// The next bytes of a message.
    Piece {
        /// The bytes.
        bytes: &'a [u8],
        /// True if the message ends with them.
        is_last: bool,
    },
    /// A ping with its payload.
    Ping(&'a [u8]),
    /// A pong.
    Pong,
    /// The server closes the connection, with an optional code.
    Close(Option<u16>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A part of a message; true if it is the last one.
    Data(bool),
    Ping,
    Pong,
    Close,
}

/// An incremental decoder of the server's frames. Its size does not depend on the frames.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// The start of an incomplete header.
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    /// The frame whose payload is being read, with the number of its unread bytes.
    frame: Option<(Kind, u64)>,
    /// True if a message has begun and not ended.
    in_message: bool,
    /// Payload of the current control frame.
    control: Vec<u8>,
}

impl Decoder {
    /// Decodes one event from the start of `bytes`. Returns the number of bytes used, and the
    /// event, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// Fails if the server violates the protocol. The decoder cannot be used any further.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), ProtocolError> {
        let mut used = 0;
        let (kind, remaining) = loop {
            if let Some(frame) = self.frame {
                break frame;
            }
            let Some(&byte) = bytes.get(used) else { return Ok((used, None)) };
            self.header[self.header_bytes] = byte;
            self.header_bytes += 1;
            used += 1;
            self.frame = self.parse_header()?;
        };
        let rest = &bytes[used..];
        let length = usize::try_from(remaining).map_or(rest.len(), |left| left.min(rest.len()));
        if length == 0 && remaining > 0 {
            return Ok((used, None));
        }
        used += length;
        let remaining = remaining - length as u64;
        self.frame = (remaining > 0).then_some((kind, remaining));
        let payload = &rest[..length];
        if let Kind::Data(is_final) = kind {
            let is_last = is_final && remaining == 0;
            self.in_message = !is_last;
            return Ok((used, Some(Event::Piece { bytes: payload, is_last })));
        }
        self.control.extend_from_slice(payload);
        if remaining > 0 {
            return Ok((used, None));
        }
        let event = match kind {
            Kind::Ping => Event::Ping(&self.control),
            Kind::Close => Event::Close(close_code(&self.control)?),
            Kind::Pong | Kind::Data(_) => Event::Pong,
        };
        Ok((used, Some(event)))
    }

    /// Parses the header, if it is complete, and starts its frame.
    fn parse_header(&mut self) -> Result<Option<(Kind, u64)>, ProtocolError> {
        let header = &self.header[..self.header_bytes];
        let [first, second, extended @ ..] = header else { return Ok(None) };
        // The client offers no extension, and a server does not mask.
        if first & 0x70 != 0 || second & 0x80 != 0 {
            return Err(ProtocolError);
        }
        let length = match (second & 0x7f, extended.len()) {
            (126, 2) => extended.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
            (127, 8) => extended.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
            (126 | 127, _) => return Ok(None),
            (short, _) => u64::from(short),
        };
        let is_final = first & 0x80 != 0;
        let kind = match first & 0x0f {
            0x0 if self.in_message => Kind::Data(is_final),
            0x1 | 0x2 if !self.in_message => Kind::Data(is_final),
            0x8 => Kind::Close,
            0x9 => Kind::Ping,
            0xa => Kind::Pong,
            _ => return Err(ProtocolError),
        };
        let is_control = !matches!(kind, Kind::Data(_));
        if is_control && (!is_final || length > CONTROL_BYTES_MAX as u64) || length >> 63 != 0 {
            return Err(ProtocolError);
        }
        self.header_bytes = 0;
        self.control.clear();
        Ok(Some((kind, length)))
    }
}

/// Returns the code of a close frame, which may be absent.
fn close_code(payload: &[u8]) -> Result<Option<u16>, ProtocolError> {
    match payload {
        [] => Ok(None),
        [_] => Err(ProtocolError),
        [high, low, ..] => Ok(Some(u16::from_be_bytes([*high, *low]))),
    }
}

/// Encodes frames with unpredictable masking keys (RFC 6455, section 5.3), drawn in bulk.
#[derive(Debug, Default)]
pub(crate) struct Masking {
    keys: Vec<u8>,
}

impl Masking {
    /// Appends a frame with a complete payload to `out`.
    pub(crate) fn encode(&mut self, out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
        out.push(0x80 | opcode as u8);
        match payload.len() {
            length @ 0..=125 => out.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                out.push(0x80 | 126);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                out.push(0x80 | 127);
                out.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        let key = self.key();
        out.extend_from_slice(&key);
        out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    }

    fn key(&mut self) -> [u8; 4] {
        if self.keys.len() < 4 {
            self.keys = vec![0; KEY_BYTES];
            // Without randomness the keys are 0, and the frames are still valid.
            let _ignored = rand::fill(&mut self.keys);
        }
        let key = self.keys.last_chunk().copied().unwrap_or_default();
        self.keys.truncate(self.keys.len() - 4);
        key
    }
}
