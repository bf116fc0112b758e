//! An incremental decoder of WebSocket messages.
//!
//! A [`Decoder`] accepts the bytes of each read and returns complete messages, joined from their
//! fragments, and the control frames between them. A message in a single unmasked frame within one
//! read is not copied. A message over the limit is skipped without buffering it. `wire::websocket`
//! reads and writes the headers of frames.

use bytes::{Bytes, BytesMut};
use wire::websocket::{Header, HeaderReader, Opcode, ProtocolError, Role, apply_mask};

#[cfg(test)]
mod tests;

/// Number of bytes at the start of an oversized message that are stored. They identify the call of
/// the message.
const OVERSIZED_HEAD_BYTES: usize = 64;
/// Maximum bytes that the decoder preallocates when it reads a frame header.
const PREALLOCATED_BYTES_MAX: usize = 1 << 20;

/// A decoded event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A text or binary message.
    Message(Payload<'a>),
    /// A compressed message, if compression was negotiated.
    Compressed {
        payload: Bytes,
        /// True if the decompressed message is text.
        text: bool,
    },
    /// A message over the limit; holds its first bytes.
    TooLarge(Bytes),
    Ping(Payload<'a>),
    Pong,
    /// The peer closes the connection, with an optional code. No event follows.
    Close(Option<u16>),
}

impl Event<'_> {
    /// Returns the event with its own bytes.
    pub(crate) fn into_owned(self) -> Event<'static> {
        match self {
            Event::Message(payload) => Event::Message(Payload::Owned(payload.into_bytes())),
            Event::Ping(payload) => Event::Ping(Payload::Owned(payload.into_bytes())),
            Event::Compressed { payload, text } => Event::Compressed { payload, text },
            Event::TooLarge(head) => Event::TooLarge(head),
            Event::Pong => Event::Pong,
            Event::Close(code) => Event::Close(code),
        }
    }
}

/// The bytes of a message or ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// The bytes are in the read buffer.
    Borrowed(&'a [u8]),
    /// The bytes were joined from fragments or several reads.
    Owned(Bytes),
}

impl Payload<'_> {
    /// Returns the bytes, copied if they are borrowed.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Payload::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Payload::Owned(bytes) => bytes,
        }
    }
}

impl std::ops::Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Owned(bytes) => bytes,
        }
    }
}

/// An incremental decoder of the frames of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    role: Role,
    message_bytes_max: usize,
    headers: HeaderReader,
    /// The frame whose payload is being read.
    frame: Option<Frame>,
    /// The message whose fragments are being read.
    message: Option<Message>,
    /// The payload of the current control frame.
    control: Vec<u8>,
    closed: bool,
}

#[derive(Debug)]
struct Frame {
    header: Header,
    /// Number of payload bytes that were read.
    read_bytes: u64,
}

impl Frame {
    fn remaining_bytes(&self) -> u64 {
        self.header.payload_bytes - self.read_bytes
    }
}

#[derive(Debug)]
struct Message {
    text: bool,
    compressed: bool,
    body: BytesMut,
    /// True if the message is over the limit; only its first bytes are kept.
    too_large: bool,
}

impl Decoder {
    /// Creates a decoder for a new connection, with a limit per message. If `compression` is true,
    /// messages may be compressed.
    pub(crate) fn new(role: Role, message_bytes_max: usize, compression: bool) -> Decoder {
        Decoder {
            role,
            message_bytes_max,
            headers: HeaderReader::new(role, compression),
            frame: None,
            message: None,
            control: Vec::new(),
            closed: false,
        }
    }

    /// Decodes one event from the start of `bytes`. Returns the number of bytes used, and the
    /// event. The event is `None` if more bytes are needed. Call it again with the rest.
    ///
    /// # Errors
    /// The protocol violation; the decoder cannot be used further.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), ProtocolError> {
        let mut used = 0;
        loop {
            if self.closed {
                return Ok((bytes.len(), None));
            }
            if self.frame.is_none() {
                let (header_bytes, header) = self.headers.read(&bytes[used..])?;
                used += header_bytes;
                let Some(header) = header else { return Ok((used, None)) };
                let rest = &bytes[used..];
                // Nearly all messages take this path.
                if self.is_complete_message(&header, rest) {
                    let length = header.payload_bytes as usize;
                    let payload = Payload::Borrowed(&rest[..length]);
                    return Ok((used + length, Some(Event::Message(payload))));
                }
                self.begin_frame(header)?;
            }
            let Some(frame) = &mut self.frame else { continue };
            let (header, offset) = (frame.header, frame.read_bytes as usize);
            let rest = &bytes[used..];
            let length = usize::try_from(frame.remaining_bytes())
                .map_or(rest.len(), |remaining| remaining.min(rest.len()));
            frame.read_bytes += length as u64;
            let is_complete = frame.remaining_bytes() == 0;
            used += length;
            self.append_payload(&header, &rest[..length], offset);
            if !is_complete {
                return Ok((used, None));
            }
            self.frame = None;
            if header.opcode.is_control() {
                return Ok((used, Some(self.end_control(header.opcode)?)));
            }
            if header.is_last {
                return Ok((used, Some(self.end_message()?)));
            }
        }
    }

    /// Returns the number of bytes of memory that the fragmented message occupies.
    pub(crate) fn bytes_held(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.body.capacity())
    }

    /// Returns a buffer and the number of missing bytes, if the rest of a long frame can be read
    /// into the buffer without a copy. The caller reports the bytes read with
    /// [`Decoder::record_filled`].
    pub(crate) fn gap(&mut self) -> Option<(&mut BytesMut, usize)> {
        let frame = self.frame.as_ref()?;
        let missing = usize::try_from(frame.remaining_bytes()).ok()?;
        if frame.header.opcode.is_control() || frame.header.key.is_some() || missing == 0 {
            return None;
        }
        let message = self.message.as_mut().filter(|message| !message.too_large)?;
        Some((&mut message.body, missing))
    }

    /// Reports that `bytes` were appended to the buffer of [`Decoder::gap`].
    pub(crate) fn record_filled(&mut self, bytes: usize) {
        if let Some(frame) = &mut self.frame {
            frame.read_bytes += frame.remaining_bytes().min(bytes as u64);
        }
    }

    /// Returns true if a frame is a complete, uncompressed message whose payload is in `rest`.
    fn is_complete_message(&self, header: &Header, rest: &[u8]) -> bool {
        header.is_last
            && !header.compressed
            && header.key.is_none()
            && matches!(header.opcode, Opcode::Text | Opcode::Binary)
            && self.message.is_none()
            && header.payload_bytes <= rest.len() as u64
            && header.payload_bytes <= self.message_bytes_max as u64
    }

    fn begin_frame(&mut self, header: Header) -> Result<(), ProtocolError> {
        match (header.opcode, &self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => self.control.clear(),
            (Opcode::Continuation, None) | (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(ProtocolError::Fragment);
            }
            (Opcode::Continuation, Some(_)) => {}
            (Opcode::Text | Opcode::Binary, None) => {
                let text = header.opcode == Opcode::Text;
                let (compressed, body) = (header.compressed, BytesMut::new());
                self.message = Some(Message { text, compressed, body, too_large: false });
            }
        }
        if let (Some(message), false) = (&mut self.message, header.opcode.is_control()) {
            let message_bytes = (message.body.len() as u64).saturating_add(header.payload_bytes);
            if message.too_large || message_bytes > self.message_bytes_max as u64 {
                message.too_large = true;
                message.body.truncate(OVERSIZED_HEAD_BYTES);
            } else {
                // A response of some megabytes grows to its size in a few steps.
                message.body.reserve((header.payload_bytes as usize).min(PREALLOCATED_BYTES_MAX));
            }
        }
        self.frame = Some(Frame { header, read_bytes: 0 });
        Ok(())
    }

    /// Appends the payload bytes of a frame that start at `offset` in the payload.
    fn append_payload(&mut self, header: &Header, bytes: &[u8], offset: usize) {
        if header.opcode.is_control() {
            let start = self.control.len();
            self.control.extend_from_slice(bytes);
            if let Some(key) = header.key {
                apply_mask(&mut self.control[start..], key, offset);
            }
            return;
        }
        let Some(message) = &mut self.message else { return };
        let stored_bytes = if message.too_large {
            bytes.len().min(OVERSIZED_HEAD_BYTES.saturating_sub(message.body.len()))
        } else {
            bytes.len()
        };
        let start = message.body.len();
        message.body.extend_from_slice(&bytes[..stored_bytes]);
        if let Some(key) = header.key {
            apply_mask(&mut message.body[start..], key, offset);
        }
    }

    fn end_message(&mut self) -> Result<Event<'static>, ProtocolError> {
        let Some(Message { text, compressed, body, too_large }) = self.message.take() else {
            return Err(ProtocolError::Fragment);
        };
        if too_large {
            return Ok(Event::TooLarge(body.freeze()));
        }
        if compressed {
            return Ok(Event::Compressed { payload: body.freeze(), text });
        }
        // Upstream messages are parsed as JSON later, which requires UTF-8.
        if text && self.role == Role::Server && std::str::from_utf8(&body).is_err() {
            return Err(ProtocolError::Utf8);
        }
        Ok(Event::Message(Payload::Owned(body.freeze())))
    }

    fn end_control(&mut self, opcode: Opcode) -> Result<Event<'_>, ProtocolError> {
        match opcode {
            Opcode::Ping => Ok(Event::Ping(Payload::Borrowed(&self.control))),
            Opcode::Close => {
                self.closed = true;
                close_code(&self.control).map(Event::Close)
            }
            _ => Ok(Event::Pong),
        }
    }
}

/// Returns the code in the payload of a close frame, if there is one (RFC 6455, section 7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, ProtocolError> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err(ProtocolError::Close) };
    };
    let code = u16::from_be_bytes(*code);
    // Codes 1004 to 1006 and 1015 are never sent; 1012 to 1014 were registered later.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(ProtocolError::Close);
    }
    std::str::from_utf8(reason).map_err(|_| ProtocolError::Utf8)?;
    Ok(Some(code))
}
