//! WebSocket frame headers and masking (RFC 6455, section 5), for both sides of a connection.
//!
//! A frame is a header and a payload. A message is one data frame, or several data frames, which
//! are its fragments. Control frames may stand between fragments. A client masks its payloads with
//! a key of four bytes. This module does not join fragments; its callers do.
//!
//! [`handshake`] opens a connection, and [`keys`] generates masking keys.

#[cfg(feature = "client")]
pub mod handshake;
#[cfg(feature = "client")]
pub mod keys;
#[cfg(test)]
mod tests;

/// Maximum payload of a control frame (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: u8 = 125;
/// Maximum bytes of a header: two bytes, a length of eight, a key of four.
const HEADER_BYTES_MAX: usize = 14;
// The bits of a header's first two bytes (RFC 6455, section 5.2).

/// The bit of the first byte that marks the last frame of a message (FIN).
const LAST: u8 = 0x80;
/// The bit of the first byte that marks the first frame of a compressed message (RSV1; RFC 7692,
/// section 6).
const COMPRESSED: u8 = 0x40;
/// The bits of the first byte that no supported extension uses (RSV2, RSV3).
const RESERVED: u8 = 0x30;
/// The bits of the first byte that hold the opcode.
const OPCODE: u8 = 0x0f;
/// The bit of the second byte that marks a masked payload.
const MASKED: u8 = 0x80;
/// The bits of the second byte that hold the payload's length. A length above 125 is replaced by
/// one of the two codes below.
const LENGTH: u8 = 0x7f;
/// This code means that the next two bytes hold the length.
const LENGTH_IN_2_BYTES: u8 = 126;
/// This code means that the next eight bytes hold the length.
const LENGTH_IN_8_BYTES: u8 = 127;

/// The side of a connection that reads frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that opened the connection. Incoming frames are not masked.
    Client,
    /// The side that accepted the connection. Incoming frames are masked.
    Server,
}

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation = 0x0,
    /// A message of text, or its first fragment.
    Text = 0x1,
    /// A message of bytes, or its first fragment.
    Binary = 0x2,
    /// The sender closes the connection.
    Close = 0x8,
    /// The receiver must send a pong with the same payload.
    Ping = 0x9,
    /// The response to a ping.
    Pong = 0xa,
}

impl Opcode {
    fn from_code(code: u8) -> Option<Opcode> {
        Some(match code {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xa => Opcode::Pong,
            _ => return None,
        })
    }

    /// Returns true for control frames, which are not part of a message.
    pub fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// A protocol violation by the peer. The connection must be failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A reserved bit is set without a negotiated extension.
    #[error("reserved bit is set")]
    Reserved,
    /// The opcode is unknown.
    #[error("unknown opcode")]
    Opcode,
    /// A frame is masked by a server, or not masked by a client.
    #[error("invalid frame masking")]
    Masking,
    /// A length is too large or not in its shortest form.
    #[error("invalid frame length")]
    Length,
    /// A control frame is too long or fragmented.
    #[error("control frame is too long or fragmented")]
    Control,
    /// A continuation frame continues no message, or a message begins inside another message.
    #[error("unexpected fragment")]
    Fragment,
    /// A close frame has an invalid code.
    #[error("invalid close code")]
    Close,
    /// A frame is so much longer than a message may be that it is not skipped.
    #[error("frame is too long")]
    TooLong,
    /// A text message is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// A compressed message cannot be decompressed.
    #[error("message cannot be decompressed")]
    Compression,
}

impl ProtocolError {
    /// Returns the close code to send (RFC 6455, section 7.4.1).
    pub fn close_code(self) -> u16 {
        match self {
            ProtocolError::TooLong => 1009,
            ProtocolError::Utf8 | ProtocolError::Compression => 1007,
            _ => 1002,
        }
    }
}

/// A masking key.
pub type MaskingKey = [u8; 4];

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// True if the frame ends its message.
    pub is_last: bool,
    /// True if the frame starts a compressed message.
    pub compressed: bool,
    /// The type of the frame.
    pub opcode: Opcode,
    /// Number of payload bytes, which follow the header.
    pub payload_bytes: u64,
    /// The key that masks the payload; `None` if the payload is not masked.
    pub key: Option<MaskingKey>,
}

/// Reads headers from bytes that arrive in chunks of any size.
#[derive(Debug)]
pub struct HeaderReader {
    role: Role,
    /// True if messages may be compressed.
    compression: bool,
    /// The bytes of an incomplete header, in the first `partial_bytes` elements.
    partial_header: [u8; HEADER_BYTES_MAX],
    /// Number of bytes of the incomplete header; 0 between two headers.
    partial_bytes: usize,
}

impl HeaderReader {
    /// Creates a reader for a new connection. `compression` is true if messages may be compressed.
    pub fn new(role: Role, compression: bool) -> HeaderReader {
        HeaderReader { role, compression, partial_header: [0; HEADER_BYTES_MAX], partial_bytes: 0 }
    }

    /// Reads the next bytes of a header. Returns the number of bytes used, and the header. The
    /// header is `None` while it is incomplete.
    ///
    /// # Errors
    /// The protocol violation; the reader cannot be used further.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(usize, Option<Header>), ProtocolError> {
        if self.partial_bytes == 0
            && let Some((header_bytes, header)) = self.parse(bytes)?
        {
            return Ok((header_bytes, Some(header)));
        }
        for (index, byte) in bytes.iter().enumerate() {
            self.partial_header[self.partial_bytes] = *byte;
            self.partial_bytes += 1;
            if let Some((_, header)) = self.parse(&self.partial_header[..self.partial_bytes])? {
                self.partial_bytes = 0;
                return Ok((index + 1, Some(header)));
            }
        }
        Ok((bytes.len(), None))
    }

    /// Parses a header. Returns its length and the header, or `None` while it is incomplete.
    fn parse(&self, bytes: &[u8]) -> Result<Option<(usize, Header)>, ProtocolError> {
        let Some((first_byte, rest)) = bytes.split_first() else { return Ok(None) };
        let opcode = Opcode::from_code(first_byte & OPCODE);
        // Only the first frame of a message has the compression bit (RFC 7692, section 6.1).
        let starts_message = matches!(opcode, Some(Opcode::Text | Opcode::Binary));
        let compressed = first_byte & COMPRESSED != 0;
        let may_be_compressed = self.compression && starts_message;
        if first_byte & RESERVED != 0 || (compressed && !may_be_compressed) {
            return Err(ProtocolError::Reserved);
        }
        let (is_last, opcode) = (first_byte & LAST != 0, opcode.ok_or(ProtocolError::Opcode)?);
        let Some((second_byte, rest)) = rest.split_first() else { return Ok(None) };
        let is_masked = second_byte & MASKED != 0;
        if is_masked != (self.role == Role::Server) {
            return Err(ProtocolError::Masking);
        }
        let length_field = second_byte & LENGTH;
        if opcode.is_control() && (!is_last || length_field > CONTROL_BYTES_MAX) {
            return Err(ProtocolError::Control);
        }
        let (payload_bytes, length_bytes) = match length_field {
            LENGTH_IN_2_BYTES => match rest.first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
                None => return Ok(None),
            },
            LENGTH_IN_8_BYTES => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 8),
                None => return Ok(None),
            },
            length => (u64::from(length), 0),
        };
        // A length must be in its shortest form.
        let length_bytes_min = match payload_bytes {
            0..=125 => 0,
            126..=0xffff => 2,
            _ => 8,
        };
        if length_bytes != length_bytes_min || payload_bytes > i64::MAX as u64 {
            return Err(ProtocolError::Length);
        }
        let key: Option<MaskingKey> = if is_masked {
            let Some(key) = rest[length_bytes..].first_chunk() else { return Ok(None) };
            Some(*key)
        } else {
            None
        };
        let header_bytes = 2 + length_bytes + key.map_or(0, |key| key.len());
        let header = Header { is_last, compressed, opcode, payload_bytes, key };
        Ok(Some((header_bytes, header)))
    }
}

/// Appends the header of an unfragmented frame. The caller appends the payload, masked with `key`
/// if there is one.
pub fn write_header(
    out: &mut Vec<u8>,
    opcode: Opcode,
    payload_bytes: usize,
    key: Option<MaskingKey>,
) {
    let mask_bit = if key.is_some() { MASKED } else { 0 };
    out.push(LAST | opcode as u8);
    match payload_bytes {
        0..=125 => out.push(mask_bit | payload_bytes as u8),
        126..=0xffff => {
            out.push(mask_bit | LENGTH_IN_2_BYTES);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(mask_bit | LENGTH_IN_8_BYTES);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    if let Some(key) = key {
        out.extend_from_slice(&key);
    }
}

/// Appends the header of an unmasked, compressed text frame.
pub fn write_compressed_header(out: &mut Vec<u8>, payload_bytes: usize) {
    let start = out.len();
    write_header(out, Opcode::Text, payload_bytes, None);
    out[start] |= COMPRESSED;
}

/// Appends an unfragmented frame.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], key: Option<MaskingKey>) {
    write_header(out, opcode, payload.len(), key);
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        apply_mask(&mut out[start..], key, 0);
    }
}

/// Masks `bytes`, or unmasks them if they are masked. The bytes start at `offset` in their payload.
pub fn apply_mask(bytes: &mut [u8], key: MaskingKey, offset: usize) {
    let mut rotated_key = key;
    rotated_key.rotate_left(offset % key.len());
    // The key twice, to mask eight bytes at once.
    let word = u64::from(u32::from_ne_bytes(rotated_key));
    let word = word << 32 | word;
    let mut words = bytes.chunks_exact_mut(8);
    for chunk in &mut words {
        let masked = u64::from_ne_bytes(chunk.try_into().expect("chunks are 8 bytes long")) ^ word;
        chunk.copy_from_slice(&masked.to_ne_bytes());
    }
    for (byte, key_byte) in words.into_remainder().iter_mut().zip(rotated_key.iter().cycle()) {
        *byte ^= key_byte;
    }
}
