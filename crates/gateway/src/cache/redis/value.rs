//! An answer as it lies in Redis: written here, read here, and nothing believed that is read.
//!
//! Every byte may come from somebody else, an older version or a broken disk: reading never
//! panics, never allocates more than it may, and refuses what is not exactly as it was written.
//! Whether a value that can be read still holds is for `policy/portable.rs`.
//!
//! ```text
//! magic 2 | version 1 | flags 1 | bond 1 | number 8 | hash 32 | written 8 | key length 4 |
//! body length 4 | key | answer, perhaps packed with zstd | crc 4 over all before
//! ```
//! Numbers are little endian; the body length is that of the answer as it was before packing. The
//! crc finds accidents. Who can write to this Redis can answer in an upstream's place: it is as
//! trusted as the upstreams are.

use std::borrow::Cow;

use crate::policy::portable::ShareableTag;

#[cfg(test)]
mod tests;

const MAGIC: [u8; 2] = *b"wv";
/// Raised with each change of the form, or of what may be stored; other versions are not read.
/// Version 1 held logs that nobody had compared with their blocks' headers.
const VERSION: u8 = 2;
const HEAD_BYTES: usize = 61;
const CRC_BYTES: usize = 4;
const FLAG_ERROR: u8 = 1;
const FLAG_PACKED: u8 = 2;
/// zstd's own default: answers shrink to a third or less at some hundred MB/s.
const PACK_LEVEL: i32 = 3;

/// An answer with what is needed to judge it elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value<'a> {
    /// The whole key material: compared on a hit, since the name in Redis is only a digest.
    pub(super) material: &'a [u8],
    /// The raw result or error object.
    pub(super) body: Cow<'a, [u8]>,
    /// Whether it is an error object.
    pub(super) is_error: bool,
    /// What it is bound to.
    pub(super) bond: ShareableTag,
    /// When it was written, milliseconds of Unix time on the writer's clock.
    pub(super) written_ms: u64,
}

/// Why bytes are not a value that we wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Too short, of another form or version, or damaged.
    Malformed,
    /// The answer is larger than is allowed.
    TooLarge,
}

impl Value<'_> {
    /// The bytes to store; bodies from `pack_bytes_min` on are packed where that makes them
    /// smaller.
    pub(super) fn encode(&self, pack_bytes_min: usize) -> Vec<u8> {
        let packed = (self.body.len() >= pack_bytes_min)
            .then(|| zstd::bulk::compress(&self.body, PACK_LEVEL).ok())
            .flatten()
            .filter(|packed| packed.len() < self.body.len());
        let body: &[u8] = packed.as_deref().unwrap_or(&self.body);
        let (tag, number, hash) = match self.bond {
            ShareableTag::Free => (0, 0, [0; 32]),
            ShareableTag::Final { number, hash: None } => (1, number, [0; 32]),
            ShareableTag::Final { number, hash: Some(hash) } => (2, number, hash),
            ShareableTag::Block { number, hash } => (3, number, hash),
            ShareableTag::Head { number, hash } => (4, number, hash),
        };
        let error = if self.is_error { FLAG_ERROR } else { 0 };
        let pack = if packed.is_some() { FLAG_PACKED } else { 0 };
        let mut bytes =
            Vec::with_capacity(HEAD_BYTES + self.material.len() + body.len() + CRC_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, error | pack, tag]);
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

/// Reads a stored value whose answer has at most `body_bytes_max` bytes.
///
/// # Errors
/// [`Refused`], when this is not a value as [`Value::encode`] writes it.
pub(super) fn decode(bytes: &[u8], body_bytes_max: usize) -> Result<Value<'_>, Refused> {
    let checked = bytes.len().checked_sub(CRC_BYTES).ok_or(Refused::Malformed)?;
    let (content, sum) = bytes.split_at(checked);
    let (head, rest) = content.split_at_checked(HEAD_BYTES).ok_or(Refused::Malformed)?;
    if head[..2] != MAGIC || head[2] != VERSION || head[3] & !(FLAG_ERROR | FLAG_PACKED) != 0 {
        return Err(Refused::Malformed);
    }
    let number = u64::from_le_bytes(array(&head[5..13]));
    let hash: [u8; 32] = array(&head[13..45]);
    let written_ms = u64::from_le_bytes(array(&head[45..53]));
    let material_bytes = u32::from_le_bytes(array(&head[53..57])) as usize;
    let body_bytes = u32::from_le_bytes(array(&head[57..61])) as usize;
    if body_bytes > body_bytes_max {
        return Err(Refused::TooLarge);
    }
    let (material, body) = rest.split_at_checked(material_bytes).ok_or(Refused::Malformed)?;
    if crc(content) != u32::from_le_bytes(array(sum)) {
        return Err(Refused::Malformed);
    }
    let bond = match head[4] {
        0 => ShareableTag::Free,
        1 => ShareableTag::Final { number, hash: None },
        2 => ShareableTag::Final { number, hash: Some(hash) },
        3 => ShareableTag::Block { number, hash },
        4 => ShareableTag::Head { number, hash },
        _ => return Err(Refused::Malformed),
    };
    let body = if head[3] & FLAG_PACKED == 0 {
        Cow::Borrowed(body)
    } else {
        // The capacity bounds what is unpacked, whatever the packed bytes say of themselves.
        Cow::Owned(zstd::bulk::decompress(body, body_bytes).map_err(|_| Refused::Malformed)?)
    };
    if body.len() != body_bytes || body.is_empty() {
        return Err(Refused::Malformed);
    }
    Ok(Value { material, body, is_error: head[3] & FLAG_ERROR != 0, bond, written_ms })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller cut this many bytes")
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
