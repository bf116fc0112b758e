//! A decoder and an encoder of WebSocket frames. The decoder returns the payload of messages in
//! pieces, without storing it.

use wire::websocket::keys::Keys;
use wire::websocket::{Header, HeaderReader, Opcode, ProtocolError, Role, write_frame};

/// A decoded event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// The next bytes of a message.
    Piece {
        /// The bytes.
        bytes: &'a [u8],
        /// True if the message ends with these bytes.
        is_last: bool,
    },
    /// A ping with its payload.
    Ping(&'a [u8]),
    /// A pong.
    Pong,
    /// A close frame with its code. `None` if the frame has no code.
    Close(Option<u16>),
}

/// An incremental decoder of the server's frames. Its size does not depend on the frames.
#[derive(Debug)]
pub(crate) struct Decoder {
    headers: HeaderReader,
    /// The header of the current frame, and the number of its unread payload bytes. `None` between
    /// frames.
    frame: Option<(Header, u64)>,
    /// True if a message has begun and not ended yet.
    in_message: bool,
    /// Payload of the current control frame.
    control: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        let compression = false;
        let headers = HeaderReader::new(Role::Client, compression);
        Decoder { headers, frame: None, in_message: false, control: Vec::new() }
    }
}

impl Decoder {
    /// Decodes one event from the start of `bytes`. Returns the number of bytes used and the event.
    /// The event is `None` if the used bytes completed no event.
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
        let available = &bytes[used..];
        let length = usize::try_from(unread_bytes)
            .map_or(available.len(), |unread| unread.min(available.len()));
        let unread_bytes = unread_bytes - length as u64;
        let is_complete = unread_bytes == 0;
        self.frame = (!is_complete).then_some((header, unread_bytes));
        if length == 0 && !is_complete {
            return Ok((used, None));
        }
        used += length;
        let payload = &available[..length];
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

/// Returns the code of a close frame, or `None` if the frame has no code.
fn close_code(payload: &[u8]) -> Result<Option<u16>, ProtocolError> {
    match payload {
        [] => Ok(None),
        [_] => Err(ProtocolError::Close),
        [high, low, ..] => Ok(Some(u16::from_be_bytes([*high, *low]))),
    }
}

/// Encodes frames with unpredictable masking keys (RFC 6455, section 5.3).
#[derive(Debug, Default)]
pub(crate) struct Masking(Keys);

impl Masking {
    /// Appends a frame with a complete payload to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, opcode: Opcode, payload: &[u8]) {
        // If no random bytes are available, the key is 0 and the frame is still valid.
        write_frame(out, opcode, payload, Some(self.0.next().unwrap_or_default()));
    }
}
