//! JSON strings: finds their special bytes, and decodes and writes escapes.

use std::borrow::Cow;

use smallvec::SmallVec;

/// Maximum bytes of a string for which a plain loop finds a backslash faster than `memchr`.
const SHORT_BYTES_MAX: usize = 15;

/// The bytes between the quotes of a valid JSON string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonString<'a> {
    /// The bytes as received, with escapes.
    pub raw: &'a [u8],
    /// True if `raw` has an escape sequence.
    pub escaped: bool,
}

impl<'a> JsonString<'a> {
    /// Creates the string with these raw bytes.
    pub fn new(raw: &'a [u8]) -> JsonString<'a> {
        let escaped = if raw.len() <= SHORT_BYTES_MAX {
            raw.contains(&b'\\')
        } else {
            memchr::memchr(b'\\', raw).is_some()
        };
        JsonString { raw, escaped }
    }

    /// Returns the string of a raw JSON value with quotes. Returns `None` for values of other
    /// types.
    pub fn from_value(raw: &'a [u8]) -> Option<JsonString<'a>> {
        match raw {
            [b'"', content @ .., b'"'] => Some(JsonString::new(content)),
            _ => None,
        }
    }

    /// Returns the string with decoded escapes. The grammar allows half of a surrogate pair. This
    /// half becomes three bytes that are not UTF-8, so different strings never decode to the same
    /// bytes.
    #[inline]
    pub fn decode(self) -> Cow<'a, [u8]> {
        if self.escaped { Cow::Owned(unescape(self.raw)) } else { Cow::Borrowed(self.raw) }
    }

    /// Returns the string as Unicode, or `None` if it contains half of a surrogate pair.
    #[inline]
    pub fn to_str(self) -> Option<Cow<'a, str>> {
        match self.decode() {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }
}

/// A word of eight bytes in which the lowest bit of each byte is set.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// A word of eight bytes in which the highest bit of each byte is set.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns the offset of the first special byte at or after `offset`, or the length of `bytes`. A
/// special byte is a quote, a backslash, a control character or not ASCII.
#[inline]
pub(crate) fn find_special(bytes: &[u8], offset: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    let offset = match super::simd::find_special(bytes, offset) {
        Ok(end) => return end,
        Err(remaining_offset) => remaining_offset,
    };
    find_special_in_words(bytes, offset)
}

/// Implements [`find_special`] with eight bytes at a time. A special byte sets the highest bit of
/// its byte in `hits`. A subtraction that borrows may also set this bit in later bytes, but never
/// in earlier bytes. The first hit is therefore exact (Hacker's Delight, 2nd ed., section 6-1;
/// serde_json does the same).
#[inline]
fn find_special_in_words(bytes: &[u8], mut offset: usize) -> usize {
    while let Some(chunk) = bytes.get(offset..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = (word ^ (LOW_BITS * b'"' as u64)).wrapping_sub(LOW_BITS);
        let backslash = (word ^ (LOW_BITS * b'\\' as u64)).wrapping_sub(LOW_BITS);
        let control = word.wrapping_sub(LOW_BITS * 0x20);
        let hits = (quote | backslash | control | word) & HIGH_BITS;
        if hits != 0 {
            return offset + (hits.trailing_zeros() / 8) as usize;
        }
        offset += 8;
    }
    while let Some(byte) = bytes.get(offset) {
        if matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..) {
            break;
        }
        offset += 1;
    }
    offset
}

/// Returns the length of the escape sequence at the start of `bytes`, or `None` if JSON has no such
/// escape.
pub(crate) fn escape_len(bytes: &[u8]) -> Option<usize> {
    match bytes.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => bytes.get(2..6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        _ => None,
    }
}

/// Returns a hash of six bits. The names of one object seldom have equal hashes.
#[inline]
pub(crate) fn hash_name(name: &[u8]) -> u32 {
    let folded = if let (Some(first_bytes), Some(last_bytes)) =
        (name.first_chunk::<8>(), name.last_chunk::<8>())
    {
        u64::from_le_bytes(*first_bytes) ^ u64::from_le_bytes(*last_bytes).rotate_left(29)
    } else if let (Some(first_bytes), Some(last_bytes)) =
        (name.first_chunk::<4>(), name.last_chunk::<4>())
    {
        u64::from(u32::from_le_bytes(*first_bytes)) << 32
            | u64::from(u32::from_le_bytes(*last_bytes))
    } else {
        name.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    // The multiplier is 2^64 divided by the golden ratio (Knuth, TAOCP 3, section 6.4).
    ((folded ^ name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u32
}

/// Decodes the escapes of a string.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut offset = 0;
    while let Some(length) = memchr::memchr(b'\\', &raw[offset..]) {
        out.extend_from_slice(&raw[offset..offset + length]);
        offset += length;
        let Some(escape) = raw.get(offset + 1) else { break };
        offset += 2;
        match escape {
            b'b' => out.push(0x08),
            b'f' => out.push(0x0c),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => {
                let unit = utf16_unit_at(raw, offset);
                offset = (offset + 4).min(raw.len());
                let is_high_surrogate = (0xd800..0xdc00).contains(&unit);
                let low_surrogate = if is_high_surrogate && raw[offset..].starts_with(b"\\u") {
                    let next_unit = utf16_unit_at(raw, offset + 2);
                    (0xdc00..0xe000).contains(&next_unit).then_some(next_unit)
                } else {
                    None
                };
                match low_surrogate {
                    Some(low) => {
                        offset = (offset + 6).min(raw.len());
                        push_scalar(&mut out, 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
                    }
                    None => push_scalar(&mut out, unit),
                }
            }
            other => out.push(*other),
        }
    }
    out.extend_from_slice(&raw[offset.min(raw.len())..]);
    out
}

/// Returns the UTF-16 unit of the four hexadecimal digits at `offset`. A missing or invalid digit
/// counts as zero.
fn utf16_unit_at(raw: &[u8], offset: usize) -> u32 {
    (offset..offset + 4).fold(0, |sum, index| {
        let digit = raw.get(index).and_then(|byte| (*byte as char).to_digit(16)).unwrap_or(0);
        sum << 4 | digit
    })
}

/// Appends a character in UTF-8, given its code point. A lone surrogate becomes three bytes.
fn push_scalar(out: &mut Vec<u8>, scalar: u32) {
    match char::from_u32(scalar) {
        Some(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        // Only a lone surrogate is not a character. Its three bytes never occur in valid UTF-8, so
        // no other string decodes to these bytes.
        None => out.extend_from_slice(&[
            0xe0 | (scalar >> 12) as u8,
            0x80 | (scalar >> 6 & 0x3f) as u8,
            0x80 | (scalar & 0x3f) as u8,
        ]),
    }
}

/// Appends a member to the raw object at the end of `out`. The object still lacks its closing
/// bracket. `name` is the raw name without quotes.
pub fn write_member(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name);
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value);
}

/// Appends `text` as a JSON string with quotes. Only the characters that RFC 8259 section 7
/// requires are escaped.
pub fn write(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let (mut copied_to, mut offset) = (0, find_special(bytes, 0));
    while let Some(byte) = bytes.get(offset) {
        if let Some(escape) = escape_of(*byte) {
            out.extend_from_slice(&bytes[copied_to..offset]);
            out.extend_from_slice(&escape);
            copied_to = offset + 1;
        }
        offset = find_special(bytes, offset + 1);
    }
    out.extend_from_slice(&bytes[copied_to..]);
    out.push(b'"');
}

/// Returns the number of bytes that [`write()`] appends.
pub fn written_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut length, mut offset) = (bytes.len() + 2, find_special(bytes, 0));
    while let Some(byte) = bytes.get(offset) {
        length += escape_of(*byte).map_or(0, |escape| escape.len() - 1);
        offset = find_special(bytes, offset + 1);
    }
    length
}

/// Returns the escape sequence of a byte, or `None` if a string may contain the byte unescaped.
fn escape_of(byte: u8) -> Option<SmallVec<[u8; 6]>> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let letter = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0..0x20 => {
            let [high, low] = [byte >> 4, byte & 0xf].map(|digit| DIGITS[usize::from(digit)]);
            return Some(SmallVec::from_slice(&[b'\\', b'u', b'0', b'0', high, low]));
        }
        _ => return None,
    };
    Some(SmallVec::from_slice(&[b'\\', letter]))
}
