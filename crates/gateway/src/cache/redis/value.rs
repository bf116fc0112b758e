//! The encoding of a response in Redis.
//!
//! Stored bytes can come from another program, from another version or from a damaged disk. The
//! decoder never panics, and its memory is limited. It rejects all bytes that the encoder cannot
//! have written. `policy/shareable.rs` decides whether a decoded response is still valid.
//!
//! ```text
//! magic 2 | version 1 | flags 1 | tag 1 | number 8 | hash 32 | written 8 | material length 4 |
//! body length 4 | material | body, optionally compressed with zstd | crc 4 of all bytes before
//! ```
//! The numbers are widths in bytes. Integers are little endian. Tag, number and hash encode the
//! [`ShareableTag`]: its variant and its block. The material ([`Value::material`]) identifies the
//! call. The body length is the length of the uncompressed body. The CRC detects only accidental
//! damage. Anyone who can write to this Redis can forge responses, so Redis must be as trusted as
//! the upstreams.

use std::borrow::Cow;

use crate::policy::shareable::ShareableTag;

#[cfg(test)]
mod tests;

/// The first bytes of every value.
const MAGIC: [u8; 2] = *b"wv";
/// The version of the encoding, and of the rules that decide which responses are stored. The
/// decoder rejects other versions. Gateways that wrote version 1 did not check logs against their
/// blocks' headers.
const VERSION: u8 = 2;
/// Bytes of the fields before the material.
const HEADER_BYTES: usize = 61;
/// Bytes of the checksum at the end.
const CRC_BYTES: usize = 4;
/// Flag of a body that is an error object.
const FLAG_ERROR: u8 = 1;
/// Flag of a compressed body.
const FLAG_COMPRESSED: u8 = 2;
/// Compression level: zstd's default. Responses shrink to a third or less, at some hundred MB/s.
const COMPRESSION_LEVEL: i32 = 3;

/// A response, with the fields that another gateway needs to validate it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value<'a> {
    /// The bytes whose digest is part of the Redis key. A lookup compares all of them, because two
    /// calls may have the same digest.
    pub(super) material: &'a [u8],
    /// The raw result or error object.
    pub(super) body: Cow<'a, [u8]>,
    /// True if `body` is an error object.
    pub(super) is_error: bool,
    /// The condition under which the response is valid.
    pub(super) validity: ShareableTag,
    /// When the value was written, in Unix milliseconds of the writer's clock.
    pub(super) written_ms: u64,
}

/// Why stored bytes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueFault {
    /// The bytes are too short, damaged, or of another format or version.
    Malformed,
    /// The response exceeds the size limit.
    TooLarge,
}

impl Value<'_> {
    /// Encodes the value. Bodies of at least `compress_bytes_min` bytes are compressed if that
    /// makes them smaller.
    pub(super) fn encode(&self, compress_bytes_min: usize) -> Vec<u8> {
        let compressed = (self.body.len() >= compress_bytes_min)
            .then(|| zstd::bulk::compress(&self.body, COMPRESSION_LEVEL).ok())
            .flatten()
            .filter(|compressed| compressed.len() < self.body.len());
        let body: &[u8] = compressed.as_deref().unwrap_or(&self.body);
        let (tag, number, hash) = match self.validity {
            ShareableTag::Free => (0, 0, [0; 32]),
            ShareableTag::Final { number, hash: None } => (1, number, [0; 32]),
            ShareableTag::Final { number, hash: Some(hash) } => (2, number, hash),
            ShareableTag::Block { number, hash } => (3, number, hash),
            ShareableTag::Head { number, hash } => (4, number, hash),
        };
        let error_flag = if self.is_error { FLAG_ERROR } else { 0 };
        let compressed_flag = if compressed.is_some() { FLAG_COMPRESSED } else { 0 };
        let mut bytes =
            Vec::with_capacity(HEADER_BYTES + self.material.len() + body.len() + CRC_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, error_flag | compressed_flag, tag]);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&hash);
        bytes.extend_from_slice(&self.written_ms.to_le_bytes());
        bytes.extend_from_slice(&(self.material.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.material);
        bytes.extend_from_slice(body);
        let crc = crc(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Decodes a stored value with a body of at most `body_bytes_max` bytes.
///
/// # Errors
/// [`ValueFault`] if the bytes are not what [`Value::encode`] writes.
pub(super) fn decode(bytes: &[u8], body_bytes_max: usize) -> Result<Value<'_>, ValueFault> {
    let content_bytes = bytes.len().checked_sub(CRC_BYTES).ok_or(ValueFault::Malformed)?;
    let (content, stored_crc) = bytes.split_at(content_bytes);
    let (header, remaining) =
        content.split_at_checked(HEADER_BYTES).ok_or(ValueFault::Malformed)?;
    let (version, flags, tag) = (header[2], header[3], header[4]);
    let has_unknown_flags = flags & !(FLAG_ERROR | FLAG_COMPRESSED) != 0;
    if header[..2] != MAGIC || version != VERSION || has_unknown_flags {
        return Err(ValueFault::Malformed);
    }
    let number = u64::from_le_bytes(to_array(&header[5..13]));
    let hash: [u8; 32] = to_array(&header[13..45]);
    let written_ms = u64::from_le_bytes(to_array(&header[45..53]));
    let material_bytes = u32::from_le_bytes(to_array(&header[53..57])) as usize;
    let body_bytes = u32::from_le_bytes(to_array(&header[57..61])) as usize;
    if body_bytes > body_bytes_max {
        return Err(ValueFault::TooLarge);
    }
    let (material, body) =
        remaining.split_at_checked(material_bytes).ok_or(ValueFault::Malformed)?;
    if crc(content) != u32::from_le_bytes(to_array(stored_crc)) {
        return Err(ValueFault::Malformed);
    }
    let validity = match tag {
        0 => ShareableTag::Free,
        1 => ShareableTag::Final { number, hash: None },
        2 => ShareableTag::Final { number, hash: Some(hash) },
        3 => ShareableTag::Block { number, hash },
        4 => ShareableTag::Head { number, hash },
        _ => return Err(ValueFault::Malformed),
    };
    let body = if flags & FLAG_COMPRESSED == 0 {
        Cow::Borrowed(body)
    } else {
        // The second argument limits the decompressed size, even if the compressed data states a
        // larger one.
        Cow::Owned(zstd::bulk::decompress(body, body_bytes).map_err(|_| ValueFault::Malformed)?)
    };
    if body.len() != body_bytes || body.is_empty() {
        return Err(ValueFault::Malformed);
    }
    Ok(Value { material, body, is_error: flags & FLAG_ERROR != 0, validity, written_ms })
}

fn to_array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller passes N bytes")
}

/// Returns the CRC-32 of bytes.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
