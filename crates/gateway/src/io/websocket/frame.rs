//! Frames of a WebSocket: taken apart as their bytes come, and written.
//!
//! A [`Decoder`] is fed whatever a read brought and gives messages, joined from their fragments,
//! and control frames between them. A message that came in one unmasked frame within one read is
//! not copied. One that is longer than allowed is passed over, not kept, so that it costs its
//! sender an answer and others nothing.

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::mask;
use super::mask::Key;

#[cfg(test)]
mod tests;

/// Longest payload of a control frame (RFC 6455, 5.5).
pub(crate) const CONTROL_BYTES_MAX: usize = 125;
/// Longest header: two bytes, a length of eight, a key of four.
const HEADER_BYTES_MAX: usize = 14;
/// So much of a message that is too long is kept, to tell whose it was.
const HEAD_KEPT_BYTES: usize = 64;
/// The bit of a frame that begins a packed message.
const PACKED: u8 = 0x40;
/// Room made for a message before its bytes are there; a header alone must not take much memory.
const ROOM_BYTES_MAX: usize = 1 << 20;

/// Which end of the connection we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// We opened it: what comes is not masked.
    Client,
    /// We accepted it: what comes is masked, and text is checked to be UTF-8.
    Server,
}

/// Kinds of frames.
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
    fn of(code: u8) -> Option<Op> {
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

/// Something whole that came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A message, whether text or binary.
    Message(Payload<'a>),
    /// A message that is packed, where that was agreed on.
    Packed {
        payload: Bytes,
        /// Whether it is text when it is unpacked.
        text: bool,
    },
    /// A message that was longer than allowed; its first bytes.
    TooLarge(Bytes),
    Ping(&'a [u8]),
    Pong,
    /// The other side ends the connection, and says why. Nothing comes after it.
    Close(Option<u16>),
}

/// The bytes of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// Where they were read.
    Read(&'a [u8]),
    /// Gathered.
    Whole(Bytes),
}

impl Payload<'_> {
    /// The bytes, copied where they stand in somebody else's buffer.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Payload::Read(bytes) => Bytes::copy_from_slice(bytes),
            Payload::Whole(bytes) => bytes,
        }
    }
}

impl std::ops::Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Payload::Read(bytes) => bytes,
            Payload::Whole(bytes) => bytes,
        }
    }
}

/// What the other side did against the protocol. The connection must be failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A reserved bit is set of which nothing was agreed on.
    Reserved,
    /// A kind of frame that does not exist.
    Opcode,
    /// Masked where it must not be, or not where it must.
    Masking,
    /// A length that is not written in the shortest way, or is none.
    Length,
    /// A control frame that is too long or in fragments.
    Control,
    /// A continuation of nothing, or a new message within another.
    Fragment,
    /// A reason for closing that is none.
    Close,
    /// Text that is not UTF-8.
    Utf8,
    /// A packed message that cannot be unpacked.
    Packing,
}

impl Fault {
    /// What to close the connection with (RFC 6455, 7.4.1).
    pub(crate) fn code(self) -> u16 {
        match self {
            Fault::Utf8 | Fault::Packing => 1007,
            _ => 1002,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Reserved => "reserved bit in a frame",
            Fault::Opcode => "unknown kind of frame",
            Fault::Masking => "masking on the wrong side",
            Fault::Length => "bad length of a frame",
            Fault::Control => "control frame too long or in fragments",
            Fault::Fragment => "fragment out of place",
            Fault::Close => "bad reason for closing",
            Fault::Utf8 => "text is not utf-8",
            Fault::Packing => "message does not unpack",
        })
    }
}

/// Takes frames apart as their bytes come.
#[derive(Debug)]
pub(crate) struct Decoder {
    role: Role,
    message_bytes_max: usize,
    /// Whether messages may be packed.
    packing: bool,
    /// The start of a header that is not whole yet.
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
    last: bool,
    op: Op,
    packed: bool,
    /// Bytes of its payload that are still to come.
    left: u64,
    /// Bytes of it that were read.
    seen: usize,
    key: Option<Key>,
}

#[derive(Debug)]
struct Message {
    text: bool,
    packed: bool,
    body: BytesMut,
    /// It has become longer than allowed; only its head is kept.
    too_large: bool,
}

impl Decoder {
    /// A decoder at the start of a connection; a message may have so many bytes.
    pub(crate) fn new(role: Role, message_bytes_max: usize) -> Decoder {
        Decoder {
            role,
            message_bytes_max,
            packing: false,
            header: [0; HEADER_BYTES_MAX],
            header_bytes: 0,
            frame: None,
            message: None,
            control: Vec::new(),
            closed: false,
        }
    }

    /// The same where the other side may send packed messages.
    pub(crate) fn unpacking(role: Role, message_bytes_max: usize) -> Decoder {
        Decoder { packing: true, ..Decoder::new(role, message_bytes_max) }
    }

    /// Takes from the start of `bytes` what makes one event: how many bytes were taken, and the
    /// event, which is none when all were taken and more are needed. To be called again with the
    /// rest.
    ///
    /// # Errors
    /// What was done against the protocol; nothing more can be read then.
    pub(crate) fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut at = 0;
        loop {
            if self.closed {
                return Ok((bytes.len(), None));
            }
            if self.frame.is_none() {
                let (used, frame) = self.read_header(&bytes[at..])?;
                at += used;
                let Some(frame) = frame else { return Ok((at, None)) };
                let rest = &bytes[at..];
                // Nearly all messages come so.
                if self.is_whole(&frame, rest) {
                    let length = frame.left as usize;
                    return Ok((at + length, Some(Event::Message(Payload::Read(&rest[..length])))));
                }
                self.begin(frame)?;
            }
            let Some(frame) = &mut self.frame else { continue };
            let rest = &bytes[at..];
            let taken = usize::try_from(frame.left).map_or(rest.len(), |left| left.min(rest.len()));
            let (op, key, seen) = (frame.op, frame.key, frame.seen);
            frame.left -= taken as u64;
            frame.seen += taken;
            let (left, last) = (frame.left, frame.last);
            at += taken;
            self.gather(op, &rest[..taken], key, seen);
            if left > 0 {
                return Ok((at, None));
            }
            self.frame = None;
            if op.is_control() {
                return Ok((at, Some(self.end_control(op)?)));
            }
            if last {
                return Ok((at, Some(self.end_message()?)));
            }
        }
    }

    /// Bytes of memory that the message takes whose fragments are being read.
    pub(crate) fn bytes_held(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.body.capacity())
    }

    /// Where the rest of a long frame can be read to without a copy: its message, and how many
    /// bytes are missing. What was read is told with [`Decoder::filled`].
    pub(crate) fn gap(&mut self) -> Option<(&mut BytesMut, usize)> {
        let frame = self.frame.as_ref()?;
        if frame.op.is_control() || frame.key.is_some() || frame.left == 0 {
            return None;
        }
        let left = usize::try_from(frame.left).ok()?;
        let message = self.message.as_mut().filter(|message| !message.too_large)?;
        Some((&mut message.body, left))
    }

    /// So many bytes were appended to what [`Decoder::gap`] gave.
    pub(crate) fn filled(&mut self, bytes: usize) {
        if let Some(frame) = &mut self.frame {
            frame.left = frame.left.saturating_sub(bytes as u64);
            frame.seen += bytes;
        }
    }

    /// Whether a frame is a whole message whose payload is all there and may be given as it is.
    fn is_whole(&self, frame: &Frame, rest: &[u8]) -> bool {
        frame.last
            && !frame.packed
            && frame.key.is_none()
            && matches!(frame.op, Op::Text | Op::Binary)
            && self.message.is_none()
            && frame.left <= rest.len() as u64
            && frame.left <= self.message_bytes_max as u64
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), Fault> {
        let packing = self.packing;
        if self.header_bytes == 0
            && let Some((used, frame)) = header(bytes, self.role, packing)?
        {
            return Ok((used, Some(frame)));
        }
        for (used, byte) in bytes.iter().enumerate() {
            self.header[self.header_bytes] = *byte;
            self.header_bytes += 1;
            let known = &self.header[..self.header_bytes];
            if let Some((_, frame)) = header(known, self.role, packing)? {
                self.header_bytes = 0;
                return Ok((used + 1, Some(frame)));
            }
        }
        Ok((bytes.len(), None))
    }

    fn begin(&mut self, frame: Frame) -> Result<(), Fault> {
        match (frame.op, &self.message) {
            (Op::Close | Op::Ping | Op::Pong, _) => self.control.clear(),
            (Op::Continuation, None) | (Op::Text | Op::Binary, Some(_)) => {
                return Err(Fault::Fragment);
            }
            (Op::Continuation, Some(_)) => {}
            (Op::Text | Op::Binary, None) => {
                let text = frame.op == Op::Text;
                let (packed, body) = (frame.packed, BytesMut::new());
                self.message = Some(Message { text, packed, body, too_large: false });
            }
        }
        if let (Some(message), false) = (&mut self.message, frame.op.is_control()) {
            let whole = (message.body.len() as u64).saturating_add(frame.left);
            if message.too_large || whole > self.message_bytes_max as u64 {
                message.too_large = true;
                message.body.truncate(HEAD_KEPT_BYTES);
            } else {
                // An answer of some megabytes grows into its room in a few steps.
                message.body.reserve((frame.left as usize).min(ROOM_BYTES_MAX));
            }
        }
        self.frame = Some(frame);
        Ok(())
    }

    fn gather(&mut self, op: Op, bytes: &[u8], key: Option<Key>, seen: usize) {
        if op.is_control() {
            let from = self.control.len();
            self.control.extend_from_slice(bytes);
            if let Some(key) = key {
                mask::apply(&mut self.control[from..], key, seen);
            }
            return;
        }
        let Some(message) = &mut self.message else { return };
        let kept = if message.too_large {
            bytes.len().min(HEAD_KEPT_BYTES.saturating_sub(message.body.len()))
        } else {
            bytes.len()
        };
        let from = message.body.len();
        message.body.extend_from_slice(&bytes[..kept]);
        if let Some(key) = key {
            mask::apply(&mut message.body[from..], key, seen);
        }
    }

    fn end_message(&mut self) -> Result<Event<'static>, Fault> {
        let Some(Message { text, packed, body, too_large }) = self.message.take() else {
            return Err(Fault::Fragment);
        };
        if too_large {
            return Ok(Event::TooLarge(body.freeze()));
        }
        if packed {
            return Ok(Event::Packed { payload: body.freeze(), text });
        }
        // What upstreams send is read as JSON anyway, which is UTF-8 or refused.
        if text && self.role == Role::Server && std::str::from_utf8(&body).is_err() {
            return Err(Fault::Utf8);
        }
        Ok(Event::Message(Payload::Whole(body.freeze())))
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

/// Reads a header: its length and the frame, or none while it is not whole.
fn header(bytes: &[u8], role: Role, packing: bool) -> Result<Option<(usize, Frame)>, Fault> {
    let [first, second, rest @ ..] = bytes else {
        // What is wrong with the first byte is told at once.
        return bytes.first().map_or(Ok(None), |first| kind(*first, packing).map(|_| None));
    };
    let (last, packed, op) = kind(*first, packing)?;
    let masked = second & 0x80 != 0;
    if masked != (role == Role::Server) {
        return Err(Fault::Masking);
    }
    let short = second & 0x7f;
    if op.is_control() && (!last || usize::from(short) > CONTROL_BYTES_MAX) {
        return Err(Fault::Control);
    }
    let (length, length_bytes) = match short {
        126 => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
            None => return Ok(None),
        },
        127 => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 8),
            None => return Ok(None),
        },
        short => (u64::from(short), 0),
    };
    let shortest = match length {
        0..=125 => 0,
        126..=0xffff => 2,
        _ => 8,
    };
    if length_bytes != shortest || length > i64::MAX as u64 {
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
    let frame = Frame { last, op, packed, left: length, seen: 0, key };
    Ok(Some((2 + length_bytes + key_bytes, frame)))
}

/// Whether a frame is the last of its message, whether it begins a packed one, and its kind.
fn kind(first: u8, packing: bool) -> Result<(bool, bool, Op), Fault> {
    let op = Op::of(first & 0x0f);
    // Of a message only the first frame says that it is packed (RFC 7692, 6.1).
    let may_be = packing && matches!(op, Some(Op::Text | Op::Binary));
    let packed = first & PACKED != 0;
    if first & 0x30 != 0 || (packed && !may_be) {
        return Err(Fault::Reserved);
    }
    Ok((first & 0x80 != 0, packed, op.ok_or(Fault::Opcode)?))
}

/// The code in the payload of a close frame, if there is one (RFC 6455, 7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, Fault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() { Ok(None) } else { Err(Fault::Close) };
    };
    let code = u16::from_be_bytes(*code);
    // 1004 to 1006 and 1015 are never sent; 1012 to 1014 were registered later.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Fault::Close);
    }
    std::str::from_utf8(reason).map_err(|_| Fault::Utf8)?;
    Ok(Some(code))
}

/// Appends the header of an unfragmented frame. The payload, masked with the key if there is one,
/// follows it.
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

/// Appends the header of an unmasked frame of packed text.
pub(crate) fn write_packed_header(out: &mut Vec<u8>, payload_bytes: usize) {
    let at = out.len();
    write_header(out, Op::Text, payload_bytes, None);
    out[at] |= PACKED;
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
