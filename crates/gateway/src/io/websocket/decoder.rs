//! An incremental decoder of WebSocket messages.
//!
//! A [`Decoder`] accepts the bytes of each read. It returns control frames, and complete messages
//! that are joined from their fragments. A message that arrives as a single unmasked frame within
//! one read is not copied. For a message over the limit, only the first bytes are stored.
//! `wire::websocket` reads and writes the headers of frames.

use bytes::{Bytes, BytesMut};
use wire::websocket::{Header, HeaderReader, Opcode, ProtocolError, Role, apply_mask};

#[cfg(test)]
mod tests;

/// Bytes of a frame over the message limit that are skipped. A longer frame closes the connection.
const SKIPPED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Of a message over the limit, only the first bytes are stored, up to this number. They contain
/// the call's id.
const OVERSIZED_PREFIX_BYTES: usize = 64;
/// Maximum bytes that the decoder allocates for a payload once it has read the frame's header.
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
        is_text: bool,
    },
    /// A message over the limit; holds its first bytes.
    TooLarge(Bytes),
    /// A ping with its payload, which the pong must repeat.
    Ping(Payload<'a>),
    Pong,
    /// The peer closes the connection; holds the close code, if any. No event follows.
    Close(Option<u16>),
}

impl Event<'_> {
    /// Copies borrowed bytes, so that the event outlives the read buffer.
    pub(crate) fn into_owned(self) -> Event<'static> {
        match self {
            Event::Message(payload) => Event::Message(Payload::Owned(payload.into_bytes())),
            Event::Ping(payload) => Event::Ping(Payload::Owned(payload.into_bytes())),
            Event::Compressed { payload, is_text } => Event::Compressed { payload, is_text },
            Event::TooLarge(prefix) => Event::TooLarge(prefix),
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
    /// The side of the connection that decodes.
    role: Role,
    message_bytes_max: usize,
    headers: HeaderReader,
    /// The frame whose payload is being read; `None` while a header is expected.
    frame: Option<Frame>,
    /// The message whose fragments are being read; `None` between messages.
    message: Option<Message>,
    /// The payload of the current control frame.
    control_payload: Vec<u8>,
    /// True if the peer has sent a close frame.
    closed: bool,
}

/// A frame that is being read.
#[derive(Debug)]
struct Frame {
    header: Header,
    /// Number of payload bytes that were read.
    bytes_read: u64,
}

impl Frame {
    /// Returns the number of payload bytes that were not read yet.
    fn remaining_bytes(&self) -> u64 {
        self.header.payload_bytes - self.bytes_read
    }
}

/// A text or binary message that is being read.
#[derive(Debug)]
struct Message {
    /// True if the message is text.
    is_text: bool,
    compressed: bool,
    body: BytesMut,
    /// True if the message is over the limit, so that only its first bytes are stored.
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
            control_payload: Vec::new(),
            closed: false,
        }
    }

    /// Decodes one event from the start of `bytes`. Returns the number of bytes used, and the
    /// event. The event is `None` if more bytes are needed. The caller must pass the unused bytes
    /// again.
    ///
    /// # Errors
    /// The protocol violation; the decoder cannot be used further.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), ProtocolError> {
        let mut used_bytes = 0;
        loop {
            if self.closed {
                return Ok((bytes.len(), None));
            }
            if self.frame.is_none() {
                let (header_bytes, header) = self.headers.read(&bytes[used_bytes..])?;
                used_bytes += header_bytes;
                let Some(header) = header else { return Ok((used_bytes, None)) };
                let unused = &bytes[used_bytes..];
                // In the usual case the frame is a complete message, which is returned without a
                // copy.
                if self.is_complete_message(&header, unused) {
                    let length = header.payload_bytes as usize;
                    let payload = Payload::Borrowed(&unused[..length]);
                    return Ok((used_bytes + length, Some(Event::Message(payload))));
                }
                self.begin_frame(header)?;
            }
            let Some(frame) = &mut self.frame else { continue };
            let (header, offset) = (frame.header, frame.bytes_read as usize);
            let unused = &bytes[used_bytes..];
            let length = usize::try_from(frame.remaining_bytes())
                .map_or(unused.len(), |remaining| remaining.min(unused.len()));
            frame.bytes_read += length as u64;
            let is_complete = frame.remaining_bytes() == 0;
            used_bytes += length;
            self.append_payload(&header, &unused[..length], offset);
            if !is_complete {
                return Ok((used_bytes, None));
            }
            self.frame = None;
            if header.opcode.is_control() {
                return Ok((used_bytes, Some(self.end_control(header.opcode)?)));
            }
            if header.is_last {
                return Ok((used_bytes, Some(self.end_message()?)));
            }
        }
    }

    /// Returns the number of bytes of memory that the fragmented message occupies.
    pub(crate) fn bytes_held(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.body.capacity())
    }

    /// Returns the buffer of the current message and the number of missing payload bytes of the
    /// current frame. The caller may read these bytes from the socket directly into the buffer,
    /// without a copy. The caller must then call [`Decoder::record_direct_read`]. Returns `None` if
    /// no payload bytes are missing, if the frame is masked or a control frame, or if the message
    /// is over the limit.
    pub(crate) fn direct_read_buffer(&mut self) -> Option<(&mut BytesMut, usize)> {
        let frame = self.frame.as_ref()?;
        let missing = usize::try_from(frame.remaining_bytes()).ok()?;
        if frame.header.opcode.is_control() || frame.header.key.is_some() || missing == 0 {
            return None;
        }
        let message = self.message.as_mut().filter(|message| !message.too_large)?;
        Some((&mut message.body, missing))
    }

    /// Records that this number of bytes was appended to [`Decoder::direct_read_buffer`].
    pub(crate) fn record_direct_read(&mut self, bytes: usize) {
        if let Some(frame) = &mut self.frame {
            frame.bytes_read += frame.remaining_bytes().min(bytes as u64);
        }
    }

    /// Returns true if a frame is a complete message that needs no further work. Such a frame is
    /// unmasked, uncompressed and within the limit, and its whole payload is at the start of
    /// `bytes`.
    fn is_complete_message(&self, header: &Header, bytes: &[u8]) -> bool {
        header.is_last
            && !header.compressed
            && header.key.is_none()
            && matches!(header.opcode, Opcode::Text | Opcode::Binary)
            && self.message.is_none()
            && header.payload_bytes <= bytes.len() as u64
            && header.payload_bytes <= self.message_bytes_max as u64
    }

    /// Begins a frame; a first fragment also begins a message. Refuses a further fragment without a
    /// message, a new message between the fragments of another message, and a frame whose payload
    /// is too long to be skipped.
    fn begin_frame(&mut self, header: Header) -> Result<(), ProtocolError> {
        let frame_bytes_max = (self.message_bytes_max as u64).saturating_add(SKIPPED_BYTES_MAX);
        if header.payload_bytes > frame_bytes_max {
            return Err(ProtocolError::TooLong);
        }
        match (header.opcode, &self.message) {
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => self.control_payload.clear(),
            (Opcode::Continuation, None) | (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(ProtocolError::Fragment);
            }
            (Opcode::Continuation, Some(_)) => {}
            (Opcode::Text | Opcode::Binary, None) => {
                let is_text = header.opcode == Opcode::Text;
                let (compressed, body) = (header.compressed, BytesMut::new());
                self.message = Some(Message { is_text, compressed, body, too_large: false });
            }
        }
        if let (Some(message), false) = (&mut self.message, header.opcode.is_control()) {
            let message_bytes = (message.body.len() as u64).saturating_add(header.payload_bytes);
            if message.too_large || message_bytes > self.message_bytes_max as u64 {
                message.too_large = true;
                message.body.truncate(OVERSIZED_PREFIX_BYTES);
            } else {
                // The allocation is limited, because the payload may never arrive. The buffer of a
                // larger message grows to the message's size in a few steps.
                message.body.reserve((header.payload_bytes as usize).min(PREALLOCATED_BYTES_MAX));
            }
        }
        self.frame = Some(Frame { header, bytes_read: 0 });
        Ok(())
    }

    /// Appends bytes of a frame's payload. `offset` is the position of the first of them in the
    /// payload.
    fn append_payload(&mut self, header: &Header, bytes: &[u8], offset: usize) {
        if header.opcode.is_control() {
            let start = self.control_payload.len();
            self.control_payload.extend_from_slice(bytes);
            if let Some(key) = header.key {
                apply_mask(&mut self.control_payload[start..], key, offset);
            }
            return;
        }
        let Some(message) = &mut self.message else { return };
        let stored_bytes = if message.too_large {
            bytes.len().min(OVERSIZED_PREFIX_BYTES.saturating_sub(message.body.len()))
        } else {
            bytes.len()
        };
        let start = message.body.len();
        message.body.extend_from_slice(&bytes[..stored_bytes]);
        if let Some(key) = header.key {
            apply_mask(&mut message.body[start..], key, offset);
        }
    }

    /// Returns the event of a message whose last fragment is complete.
    fn end_message(&mut self) -> Result<Event<'static>, ProtocolError> {
        let Some(Message { is_text, compressed, body, too_large }) = self.message.take() else {
            return Err(ProtocolError::Fragment);
        };
        if too_large {
            return Ok(Event::TooLarge(body.freeze()));
        }
        if compressed {
            return Ok(Event::Compressed { payload: body.freeze(), is_text });
        }
        // Messages of upstreams are not checked here, because the JSON parser requires UTF-8
        // anyway.
        if is_text && self.role == Role::Server && std::str::from_utf8(&body).is_err() {
            return Err(ProtocolError::Utf8);
        }
        Ok(Event::Message(Payload::Owned(body.freeze())))
    }

    /// Returns the event of a complete control frame.
    fn end_control(&mut self, opcode: Opcode) -> Result<Event<'_>, ProtocolError> {
        match opcode {
            Opcode::Ping => Ok(Event::Ping(Payload::Borrowed(&self.control_payload))),
            Opcode::Close => {
                self.closed = true;
                parse_close_code(&self.control_payload).map(Event::Close)
            }
            _ => Ok(Event::Pong),
        }
    }
}

/// Parses the code in the payload of a close frame (RFC 6455, section 7.4). Returns `None` if the
/// payload is empty.
fn parse_close_code(payload: &[u8]) -> Result<Option<u16>, ProtocolError> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err(ProtocolError::Close) };
    };
    let code = u16::from_be_bytes(*code);
    // Peers must not send the codes 1004 to 1006 and 1015. The codes 1012 to 1014 were registered
    // after RFC 6455.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(ProtocolError::Close);
    }
    std::str::from_utf8(reason).map_err(|_| ProtocolError::Utf8)?;
    Ok(Some(code))
}
