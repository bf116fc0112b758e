//! A decoder of frames that stores no payload of messages, and an encoder.

use aws_lc_rs::rand;
use wire::websocket::{Header, HeaderReader, Key, Opcode, ProtocolError, Role, write_frame};

/// Number of bytes per draw of masking keys.
const KEY_BYTES: usize = 1024;

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

/// An incremental decoder of the server's frames. Its size does not depend on the frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    headers: HeaderReader,
    /// The frame whose payload is being read, with the number of its unread bytes.
    frame: Option<(Header, u64)>,
    /// True if a message has begun and not ended.
    in_message: bool,
    /// Payload of the current control frame.
    control: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        let headers = HeaderReader::new(Role::Client, false);
        Decoder { headers, frame: None, in_message: false, control: Vec::new() }
    }
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
        let (header, unread_bytes) = match self.frame {
            Some(frame) => frame,
            None => {
                let (header_bytes, header) = self.headers.read(bytes)?;
                used += header_bytes;
                let Some(header) = header else { return Ok((used, None)) };
                let continues_message = header.opcode == Opcode::Continuation;
                if !header.opcode.is_control() && continues_message != self.in_message {
                    return Err(ProtocolError::Fragment);
                }
                self.control.clear();
                (header, header.payload_bytes)
            }
        };
        let rest = &bytes[used..];
        let length = usize::try_from(unread_bytes).map_or(rest.len(), |left| left.min(rest.len()));
        let unread_bytes = unread_bytes - length as u64;
        let is_complete = unread_bytes == 0;
        self.frame = (!is_complete).then_some((header, unread_bytes));
        if length == 0 && !is_complete {
            return Ok((used, None));
        }
        used += length;
        let payload = &rest[..length];
        if !header.opcode.is_control() {
            let is_last = header.is_last && is_complete;
            self.in_message = !is_last;
            return Ok((used, Some(Event::Piece { bytes: payload, is_last })));
        }
        self.control.extend_from_slice(payload);
        if !is_complete {
            return Ok((used, None));
        }
        let event = match header.opcode {
            Opcode::Ping => Event::Ping(&self.control),
            Opcode::Close => Event::Close(close_code(&self.control)?),
            _ => Event::Pong,
        };
        Ok((used, Some(event)))
    }
}

/// Returns the code of a close frame, which may be absent.
fn close_code(payload: &[u8]) -> Result<Option<u16>, ProtocolError> {
    match payload {
        [] => Ok(None),
        [_] => Err(ProtocolError::Close),
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
        write_frame(out, opcode, payload, Some(self.draw_key()));
    }

    fn draw_key(&mut self) -> Key {
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
