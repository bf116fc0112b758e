//! WebSocket frames: an incremental decoder, and an encoder.
//!
//! A [`Decoder`] accepts the bytes of each read and returns complete messages, joined from their
//! fragments, and the control frames between them. A message in a single unmasked frame within one
//! read is not copied. A message over the limit is skipped without buffering it.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::mask;
use super::mask::Key;

#[cfg(test)]
mod tests;

/// Maximum payload of a control frame (RFC 6455, section 5.5).
pub(crate) const CONTROL_BYTES_MAX: usize = 125;
/// Maximum bytes of a header: two bytes, a length of eight, a key of four.
const HEADER_BYTES_MAX: usize = 14;
/// Number of bytes at the start of an oversized message that are stored. They identify the call of
/// the message.
const OVERSIZED_HEAD_BYTES: usize = 64;
/// The header bit of a compressed message's first frame (RSV1).
const COMPRESSED: u8 = 0x40;
/// Maximum bytes that the decoder preallocates when it reads a frame header.
const PREALLOCATED_BYTES_MAX: usize = 1 << 20;

/// The gateway's side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The gateway opened the connection; incoming frames are not masked.
    Client,
    /// The gateway accepted the connection; incoming frames are masked, and text must be UTF-8.
    Server,
}

/// Frame types (opcodes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Op {
    fn from_code(code: u8) -> Option<Op> {
        Some(match code {
            0x0 => Op::Continuation,
            0x1 => Op::Text,
            0x2 => Op::Binary,
            0x8 => Op::Close,
            0x9 => Op::Ping,
            0xa => Op::Pong,
            _ => return None,
        })
    }

    fn code(self) -> u8 {
        match self {
            Op::Continuation => 0x0,
            Op::Text => 0x1,
            Op::Binary => 0x2,
            Op::Close => 0x8,
            Op::Ping => 0x9,
            Op::Pong => 0xa,
        }
    }

    fn is_control(self) -> bool {
        matches!(self, Op::Close | Op::Ping | Op::Pong)
    }
}

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
    Ping(&'a [u8]),
    Pong,
    /// The peer closes the connection, with an optional code. No event follows.
    Close(Option<u16>),
}

/// The bytes of a message.
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

/// A protocol violation by the peer. The connection must be failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A reserved bit is set without a negotiated extension.
    Reserved,
    /// The opcode is unknown.
    Opcode,
    /// A frame is masked by a server, or not masked by a client.
    Masking,
    /// A length is too large or not in its shortest form.
    Length,
    /// A control frame is too long or fragmented.
    Control,
    /// A continuation has no message, or a message begins inside another.
    Fragment,
    /// A close frame has an invalid code.
    Close,
    /// A text message is not UTF-8.
    Utf8,
    /// A compressed message cannot be decompressed.
    Compression,
}

impl Fault {
    /// Returns the close code to send (RFC 6455, section 7.4.1).
    pub(crate) fn code(self) -> u16 {
        match self {
            Fault::Utf8 | Fault::Compression => 1007,
            _ => 1002,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Reserved => "reserved bit is set",
            Fault::Opcode => "unknown opcode",
            Fault::Masking => "invalid frame masking",
            Fault::Length => "invalid frame length",
            Fault::Control => "control frame is too long or fragmented",
            Fault::Fragment => "unexpected fragment",
            Fault::Close => "invalid close code",
            Fault::Utf8 => "text is not UTF-8",
            Fault::Compression => "message cannot be decompressed",
        })
    }
}

/// An incremental frame decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    role: Role,
    message_bytes_max: usize,
    /// True if messages may be compressed.
    compression: bool,
    /// The start of an incomplete header.
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    /// The frame whose payload is being read.
    frame: Option<Frame>,
    /// The message whose fragments are being read.
    message: Option<Message>,
    control: Vec<u8>,
    closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    /// True if the frame ends its message.
    is_last: bool,
    op: Op,
    compressed: bool,
    /// Number of payload bytes that are not read yet.
    remaining: u64,
    /// Number of payload bytes that were read.
    offset: usize,
    key: Option<Key>,
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
    /// Creates a decoder for a new connection, with a limit per message.
    pub(crate) fn new(role: Role, message_bytes_max: usize) -> Decoder {
        Decoder {
            role,
            message_bytes_max,
            compression: false,
            header: [0; HEADER_BYTES_MAX],
            header_bytes: 0,
            frame: None,
            message: None,
            control: Vec::new(),
            closed: false,
        }
    }

    /// Creates a decoder that accepts compressed messages.
    pub(crate) fn with_compression(role: Role, message_bytes_max: usize) -> Decoder {
        Decoder { compression: true, ..Decoder::new(role, message_bytes_max) }
    }

    /// Decodes one event from the start of `bytes`. Returns the number of bytes used, and the
    /// event. The event is `None` if more bytes are needed. Call it again with the rest.
    /// # Errors
    /// The protocol violation; the decoder cannot be used further.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut used = 0;
        loop {
            if self.closed {
                return Ok((bytes.len(), None));
            }
            if self.frame.is_none() {
                let (header_bytes, frame) = self.read_header(&bytes[used..])?;
                used += header_bytes;
                let Some(frame) = frame else { return Ok((used, None)) };
                let rest = &bytes[used..];
                // Nearly all messages take this path.
                if self.is_complete_message(&frame, rest) {
                    let length = frame.remaining as usize;
                    return Ok((
                        used + length,
                        Some(Event::Message(Payload::Borrowed(&rest[..length]))),
                    ));
                }
                self.begin_frame(frame)?;
            }
            let Some(frame) = &mut self.frame else { continue };
            let rest = &bytes[used..];
            let length = usize::try_from(frame.remaining)
                .map_or(rest.len(), |remaining| remaining.min(rest.len()));
            let (op, key, offset) = (frame.op, frame.key, frame.offset);
            frame.remaining -= length as u64;
            frame.offset += length;
            let (remaining, is_last) = (frame.remaining, frame.is_last);
            used += length;
            self.append_payload(op, &rest[..length], key, offset);
            if remaining > 0 {
                return Ok((used, None));
            }
            self.frame = None;
            if op.is_control() {
                return Ok((used, Some(self.end_control(op)?)));
            }
            if is_last {
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
        if frame.op.is_control() || frame.key.is_some() || frame.remaining == 0 {
            return None;
        }
        let missing = usize::try_from(frame.remaining).ok()?;
        let message = self.message.as_mut().filter(|message| !message.too_large)?;
        Some((&mut message.body, missing))
    }

    /// Reports that `bytes` were appended to the buffer of [`Decoder::gap`].
    pub(crate) fn record_filled(&mut self, bytes: usize) {
        if let Some(frame) = &mut self.frame {
            frame.remaining = frame.remaining.saturating_sub(bytes as u64);
            frame.offset += bytes;
        }
    }

    /// Returns true if a frame is a complete, uncompressed message whose payload is in `rest`.
    fn is_complete_message(&self, frame: &Frame, rest: &[u8]) -> bool {
        frame.is_last
            && !frame.compressed
            && frame.key.is_none()
            && matches!(frame.op, Op::Text | Op::Binary)
            && self.message.is_none()
            && frame.remaining <= rest.len() as u64
            && frame.remaining <= self.message_bytes_max as u64
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Fault> {
        let compression = self.compression;
        if self.header_bytes == 0
            && let Some((used, frame)) = parse_header(bytes, self.role, compression)?
        {
            return Ok((used, Some(frame)));
        }
        for (used, byte) in bytes.iter().enumerate() {
            self.header[self.header_bytes] = *byte;
            self.header_bytes += 1;
            let received = &self.header[..self.header_bytes];
            if let Some((_, frame)) = parse_header(received, self.role, compression)? {
                self.header_bytes = 0;
                return Ok((used + 1, Some(frame)));
            }
        }
        Ok((bytes.len(), None))
    }

    fn begin_frame(&mut self, frame: Frame) -> Result<(), Fault> {
        match (frame.op, &self.message) {
            (Op::Close | Op::Ping | Op::Pong, _) => self.control.clear(),
            (Op::Continuation, None) | (Op::Text | Op::Binary, Some(_)) => {
                return Err(Fault::Fragment);
            }
            (Op::Continuation, Some(_)) => {}
            (Op::Text | Op::Binary, None) => {
                let text = frame.op == Op::Text;
                let (compressed, body) = (frame.compressed, BytesMut::new());
                self.message = Some(Message { text, compressed, body, too_large: false });
            }
        }
        if let (Some(message), false) = (&mut self.message, frame.op.is_control()) {
            let message_bytes = (message.body.len() as u64).saturating_add(frame.remaining);
            if message.too_large || message_bytes > self.message_bytes_max as u64 {
                message.too_large = true;
                message.body.truncate(OVERSIZED_HEAD_BYTES);
            } else {
                // A response of some megabytes grows to its size in a few steps.
                message.body.reserve((frame.remaining as usize).min(PREALLOCATED_BYTES_MAX));
            }
        }
        self.frame = Some(frame);
        Ok(())
    }

    fn append_payload(&mut self, op: Op, bytes: &[u8], key: Option<Key>, offset: usize) {
        if op.is_control() {
            let from = self.control.len();
            self.control.extend_from_slice(bytes);
            if let Some(key) = key {
                mask::apply(&mut self.control[from..], key, offset);
            }
            return;
        }
        let Some(message) = &mut self.message else { return };
        let stored_bytes = if message.too_large {
            bytes.len().min(OVERSIZED_HEAD_BYTES.saturating_sub(message.body.len()))
        } else {
            bytes.len()
        };
        let from = message.body.len();
        message.body.extend_from_slice(&bytes[..stored_bytes]);
        if let Some(key) = key {
            mask::apply(&mut message.body[from..], key, offset);
        }
    }

    fn end_message(&mut self) -> Result<Event<'static>, Fault> {
        let Some(Message { text, compressed, body, too_large }) = self.message.take() else {
            return Err(Fault::Fragment);
        };
        if too_large {
            return Ok(Event::TooLarge(body.freeze()));
        }
        if compressed {
            return Ok(Event::Compressed { payload: body.freeze(), text });
        }
        // Upstream messages are parsed as JSON later, which requires UTF-8.
        if text && self.role == Role::Server && std::str::from_utf8(&body).is_err() {
            return Err(Fault::Utf8);
        }
        Ok(Event::Message(Payload::Owned(body.freeze())))
    }

    fn end_control(&mut self, op: Op) -> Result<Event<'_>, Fault> {
        match op {
            Op::Ping => Ok(Event::Ping(&self.control)),
            Op::Close => {
                self.closed = true;
                close_code(&self.control).map(Event::Close)
            }
            _ => Ok(Event::Pong),
        }
    }
}

/// Parses a header. Returns its length and the frame, or `None` while it is incomplete.
fn parse_header(
    bytes: &[u8],
    role: Role,
    compression: bool,
) -> Result<Option<(usize, Frame)>, Fault> {
    let [first, second, rest @ ..] = bytes else {
        // A fault in the first byte is reported without waiting for the second.
        return bytes
            .first()
            .map_or(Ok(None), |first| parse_first_byte(*first, compression).map(|_| None));
    };
    let (is_last, compressed, op) = parse_first_byte(*first, compression)?;
    let masked = second & 0x80 != 0;
    if masked != (role == Role::Server) {
        return Err(Fault::Masking);
    }
    let length_field = second & 0x7f;
    if op.is_control() && (!is_last || usize::from(length_field) > CONTROL_BYTES_MAX) {
        return Err(Fault::Control);
    }
    let (length, length_bytes) = match length_field {
        126 => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 8),
            None => return Ok(None),
        },
        length => (u64::from(length), 0),
    };
    let length_bytes_min = match length {
        0..=125 => 0,
        126..=0xffff => 2,
        _ => 8,
    };
    if length_bytes != length_bytes_min || length > i64::MAX as u64 {
        return Err(Fault::Length);
    }
    let (key, key_bytes) = if masked {
        match rest[length_bytes..].first_chunk() {
            Some(key) => (Some(*key), 4),
            None => return Ok(None),
        }
    } else {
        (None, 0)
    };
    let frame = Frame { is_last, op, compressed, remaining: length, offset: 0, key };
    Ok(Some((2 + length_bytes + key_bytes, frame)))
}

/// Parses the first byte: whether the frame ends its message, whether it starts a compressed
/// message, and the opcode.
fn parse_first_byte(first: u8, compression: bool) -> Result<(bool, bool, Op), Fault> {
    let op = Op::from_code(first & 0x0f);
    // Only the first frame of a message has the compression bit (RFC 7692, section 6.1).
    let may_be_compressed = compression && matches!(op, Some(Op::Text | Op::Binary));
    let compressed = first & COMPRESSED != 0;
    if first & 0x30 != 0 || (compressed && !may_be_compressed) {
        return Err(Fault::Reserved);
    }
    Ok((first & 0x80 != 0, compressed, op.ok_or(Fault::Opcode)?))
}

/// Returns the code in the payload of a close frame, if there is one (RFC 6455, section 7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, Fault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err(Fault::Close) };
    };
    let code = u16::from_be_bytes(*code);
    // Codes 1004 to 1006 and 1015 are never sent; 1012 to 1014 were registered later.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Fault::Close);
    }
    std::str::from_utf8(reason).map_err(|_| Fault::Utf8)?;
    Ok(Some(code))
}

/// Appends the header of an unfragmented frame. The caller appends the payload, masked with `key`
/// if there is one.
pub(crate) fn write_header(out: &mut Vec<u8>, op: Op, payload_bytes: usize, key: Option<Key>) {
    let masked = if key.is_some() { 0x80 } else { 0 };
    out.push(0x80 | op.code());
    match payload_bytes {
        0..=125 => out.push(masked | payload_bytes as u8),
        126..=0xffff => {
            out.push(masked | 126);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(masked | 127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    if let Some(key) = key {
        out.extend_from_slice(&key);
    }
}

/// Appends the header of an unmasked, compressed text frame.
pub(crate) fn write_compressed_header(out: &mut Vec<u8>, payload_bytes: usize) {
    let start = out.len();
    write_header(out, Op::Text, payload_bytes, None);
    out[start] |= COMPRESSED;
}

/// Appends an unfragmented frame.
pub(crate) fn write(out: &mut Vec<u8>, op: Op, payload: &[u8], key: Option<Key>) {
    write_header(out, op, payload.len(), key);
    let from = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        mask::apply(&mut out[from..], key, 0);
    }
}
