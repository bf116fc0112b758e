//! A fast path of the scanner: finds the end of a valid and simple value.
//!
//! Most bytes belong to values that no caller reads. The fast path skips them at a few instructions
//! per member. The fast path gives up on invalid values, on names with escapes and on very many
//! names. `scanner.rs` then scans the value again and names the error. The fast path never accepts
//! a value that the scanner rejects, and finds the same repeated names; tests compare both.
//!
//! A byte of a string is special if it is a quote, a backslash, a control character or not ASCII.

use std::ops::Range;

use smallvec::SmallVec;

use super::string;
use super::syntax_error::{SyntaxError, SyntaxErrorKind};

/// Maximum number of names per object on the fast path. The scanner uses a hash set for larger
/// objects. Blocks, receipts and transactions have up to 30 names.
pub(super) const NAMES_MAX: usize = 32;

/// Number of bytes examined at once. One bit of a 64-bit word marks each special byte.
const BLOCK_BYTES: usize = 64;

/// A Bloom filter over the names of one open object.
pub(super) struct NameFilter {
    /// The position of the object's first name among the names of all open objects.
    pub(super) start: usize,
    /// Each name sets one bit, and two names can share a bit. A name whose bit is 0 is new.
    pub(super) bits: u64,
}

/// The positions of a member's name, without quotes, and of the member's value.
pub(super) struct Member {
    pub(super) name: Range<usize>,
    pub(super) value: Range<usize>,
}

/// The text, the limits, and the names of the open objects.
pub(super) struct FastScanner<'a> {
    pub(super) bytes: &'a [u8],
    /// The highest number of nested arrays and objects.
    pub(super) depth_max: usize,
    /// The depth up to which objects are searched for repeated names.
    pub(super) names_depth_max: usize,
    /// The names of all open objects, the innermost object last.
    pub(super) names: SmallVec<[&'a [u8]; NAMES_MAX]>,
    /// The offset of the first name that occurs twice in its object.
    pub(super) repeated: Option<usize>,
    /// The offset of the block whose special bytes are known.
    block: usize,
    /// One bit per special byte of the block.
    special: u64,
}

impl<'a> FastScanner<'a> {
    pub(super) fn new(
        bytes: &'a [u8],
        depth_max: usize,
        names_depth_max: usize,
    ) -> FastScanner<'a> {
        FastScanner {
            bytes,
            depth_max,
            names_depth_max,
            names: SmallVec::new(),
            repeated: None,
            // No offset is within this block.
            block: usize::MAX - BLOCK_BYTES,
            special: 0,
        }
    }

    /// Returns the end of the value that starts at `offset`, within `depth` open arrays and
    /// objects. If the value is invalid or not simple, returns `None` and removes the names that it
    /// has added. No whitespace is skipped.
    #[inline]
    pub(super) fn end_of_value(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(offset) == Some(&b'"') {
            return self.end_of_string(offset + 1);
        }
        let (name_count, repeated) = (self.names.len(), self.repeated);
        let end = self.end_of_other(offset, depth);
        if end.is_none() {
            self.names.truncate(name_count);
            self.repeated = repeated;
        }
        end
    }

    /// Returns the offset of the first special byte at or after `offset`. Without a special byte,
    /// the offset is at or beyond the end of the input.
    #[inline(always)]
    pub(super) fn next_special(&mut self, offset: usize) -> usize {
        // If `offset` is before the block, the subtraction wraps to a large number.
        let bit_index = offset.wrapping_sub(self.block);
        if bit_index < BLOCK_BYTES {
            let hits = self.special >> bit_index;
            if hits != 0 {
                return offset + hits.trailing_zeros() as usize;
            }
        }
        self.next_special_beyond(offset)
    }

    /// Continues [`FastScanner::next_special`] beyond the current block. It is a separate function,
    /// so the path within a block needs few registers.
    #[inline(never)]
    fn next_special_beyond(&mut self, mut offset: usize) -> usize {
        if offset.wrapping_sub(self.block) < BLOCK_BYTES {
            offset = self.block + BLOCK_BYTES;
        }
        (self.block, self.special) = special_block(self.bytes, offset);
        self.block + self.special.trailing_zeros() as usize
    }

    #[inline(always)]
    fn value(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(offset)? == &b'"' {
            self.end_of_string(offset + 1)
        } else {
            self.end_of_other(offset, depth)
        }
    }

    /// Returns the end of a value other than a string.
    fn end_of_other(&mut self, offset: usize, depth: usize) -> Option<usize> {
        match self.bytes.get(offset)? {
            b'{' if depth < self.names_depth_max => self.end_of_searched_object(offset + 1, depth),
            b'{' => self.end_of_object(offset + 1, depth),
            b'[' => self.end_of_array(offset + 1, depth),
            b't' => end_of_literal(self.bytes, offset, b"true"),
            b'f' => end_of_literal(self.bytes, offset, b"false"),
            b'n' => end_of_literal(self.bytes, offset, b"null"),
            _ => end_of_number(self.bytes, offset),
        }
    }

    /// Returns the end of an object. `offset` is the offset after its opening bracket.
    fn end_of_object(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut offset = skip_whitespace(bytes, offset);
        if *bytes.get(offset)? == b'}' {
            return Some(offset + 1);
        }
        loop {
            if *bytes.get(offset)? != b'"' {
                return None;
            }
            offset = self.skip_string_members(offset);
            offset = skip_whitespace(bytes, self.end_of_string(offset + 1)?);
            if *bytes.get(offset)? != b':' {
                return None;
            }
            offset =
                skip_whitespace(bytes, self.value(skip_whitespace(bytes, offset + 1), depth + 1)?);
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b'}' => return Some(offset + 1),
                _ => return None,
            }
        }
    }

    /// Skips members with a plain string as value, as long as another member follows. Plain strings
    /// have no special bytes. The argument and the result are offsets of the quote before a name.
    #[inline(always)]
    pub(super) fn skip_string_members(&mut self, mut opening: usize) -> usize {
        let bytes = self.bytes;
        let next_three =
            |offset: usize| bytes.get(offset..).and_then(|rest| rest.first_chunk::<3>());
        loop {
            let name_end = self.next_special(opening + 1);
            if next_three(name_end) != Some(b"\":\"") {
                return opening;
            }
            let value_end = self.next_special(name_end + 3);
            if next_three(value_end) != Some(b"\",\"") {
                return opening;
            }
            opening = value_end + 2;
        }
    }

    /// Returns the end of an object, and searches the object for repeated names. `offset` is the
    /// offset after its opening bracket.
    fn end_of_searched_object(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut filter = NameFilter { start: self.names.len(), bits: 0 };
        let mut offset = skip_whitespace(bytes, offset);
        if *bytes.get(offset)? == b'}' {
            return Some(offset + 1);
        }
        loop {
            if *bytes.get(offset)? != b'"' {
                return None;
            }
            offset = skip_whitespace(
                bytes,
                self.searched_member(offset, depth + 1, &mut filter)?.value.end,
            );
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b'}' => break,
                _ => return None,
            }
        }
        self.names.truncate(filter.start);
        Some(offset + 1)
    }

    fn end_of_array(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut offset = skip_whitespace(bytes, offset);
        if *bytes.get(offset)? == b']' {
            return Some(offset + 1);
        }
        loop {
            offset = skip_whitespace(bytes, self.value(offset, depth + 1)?);
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b']' => return Some(offset + 1),
                _ => return None,
            }
        }
    }

    /// Reads a member of an object that is searched for repeated names. The member starts with the
    /// opening quote of its name. `depth` counts the open arrays and objects, including this
    /// object.
    #[inline(always)]
    fn searched_member(
        &mut self,
        offset: usize,
        depth: usize,
        filter: &mut NameFilter,
    ) -> Option<Member> {
        let bytes = self.bytes;
        let name = offset + 1..self.next_special(offset + 1);
        if *bytes.get(name.end)? != b'"' || !self.insert_name(&bytes[name.clone()], offset, filter)
        {
            return None;
        }
        let colon = skip_whitespace(bytes, name.end + 1);
        if *bytes.get(colon)? != b':' {
            return None;
        }
        let start = skip_whitespace(bytes, colon + 1);
        let value = start..self.value(start, depth)?;
        Some(Member { name, value })
    }

    /// Reads a member as [`FastScanner::searched_member`] does. If it returns `None`, the state is
    /// unchanged, and the caller can read the member.
    pub(super) fn try_member(
        &mut self,
        offset: usize,
        depth: usize,
        filter: &mut NameFilter,
    ) -> Option<Member> {
        let (name_count, repeated) = (self.names.len(), self.repeated);
        let member = self.searched_member(offset, depth, filter);
        if member.is_none() {
            self.names.truncate(name_count);
            self.repeated = repeated;
        }
        member
    }

    /// Adds a name to the names of the open object, and records a repetition. Returns false if
    /// there are too many names.
    #[inline]
    fn insert_name(&mut self, name: &'a [u8], offset: usize, filter: &mut NameFilter) -> bool {
        let bit = 1 << string::hash_name(name);
        if filter.bits & bit != 0 {
            self.check_repeated(name, offset, filter);
        }
        filter.bits |= bit;
        if self.names.len() - filter.start == NAMES_MAX {
            return false;
        }
        self.names.push(name);
        true
    }

    /// Records the offset of a name if the object already has the name. The caller has found the
    /// name's bit set.
    #[inline(never)]
    fn check_repeated(&mut self, name: &'a [u8], offset: usize, filter: &NameFilter) {
        if self.names[filter.start..].contains(&name) && self.repeated.is_none() {
            self.repeated = Some(offset);
        }
    }

    /// Returns the end of a string. `offset` is the offset after its opening quote.
    #[inline(always)]
    fn end_of_string(&mut self, offset: usize) -> Option<usize> {
        let end = self.next_special(offset);
        if self.bytes.get(end)? == &b'"' {
            Some(end + 1)
        } else {
            end_of_special_string(self.bytes, end).ok().map(|(end, _)| end)
        }
    }
}

#[cfg(target_arch = "x86_64")]
use super::simd::special_block;
#[cfg(not(target_arch = "x86_64"))]
use portable::special_block;

/// Searches for special bytes on processors other than x86-64.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::BLOCK_BYTES;

    pub(super) fn special_block(bytes: &[u8], mut offset: usize) -> (usize, u64) {
        loop {
            let rest = bytes.get(offset..).unwrap_or_default();
            let special = special_bits(&rest[..rest.len().min(BLOCK_BYTES)]);
            if special != 0 {
                return (offset, special);
            }
            offset += BLOCK_BYTES;
        }
    }

    /// Returns a word with one bit per special byte. The bits beyond the end of the input are set
    /// too.
    fn special_bits(block: &[u8]) -> u64 {
        let special_bit = |byte: u8| u64::from(matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..));
        let bits_beyond = u64::MAX.checked_shl(block.len() as u32).unwrap_or(0);
        let bits = block.iter().enumerate().map(|(index, byte)| special_bit(*byte) << index);
        bits.fold(bits_beyond, |word, bit| word | bit)
    }
}

/// Reads the rest of a string from `offset`, its first special byte. Returns the offset after the
/// closing quote, and true if the string has escapes.
///
/// # Errors
/// If the string is invalid.
#[cold]
pub(super) fn end_of_special_string(
    bytes: &[u8],
    mut offset: usize,
) -> Result<(usize, bool), SyntaxError> {
    let mut escaped = false;
    loop {
        let rest = bytes.get(offset..).unwrap_or_default();
        let kind = match rest.first() {
            None => SyntaxErrorKind::End,
            Some(b'"') => return Ok((offset + 1, escaped)),
            Some(b'\\') => match string::escape_len(rest) {
                Some(length) => {
                    escaped = true;
                    offset = string::find_special(bytes, offset + length);
                    continue;
                }
                None => SyntaxErrorKind::Escape,
            },
            Some(byte) if *byte < 0x20 => SyntaxErrorKind::Control(*byte),
            Some(_) => {
                let run = rest.iter().position(|byte| *byte < 0x80).unwrap_or(rest.len());
                match std::str::from_utf8(&rest[..run]) {
                    Ok(_) => {
                        offset = string::find_special(bytes, offset + run);
                        continue;
                    }
                    Err(error) => {
                        offset += error.valid_up_to();
                        SyntaxErrorKind::Utf8
                    }
                }
            }
        };
        return Err(SyntaxError { offset, kind });
    }
}

fn end_of_literal(bytes: &[u8], offset: usize, text: &[u8]) -> Option<usize> {
    bytes[offset..].starts_with(text).then_some(offset + text.len())
}

/// Returns the end of a number (RFC 8259, section 6). A number has no leading zeros, and has digits
/// before the point, after the point and after the `e`.
pub(super) fn end_of_number(bytes: &[u8], offset: usize) -> Option<usize> {
    let digits = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
    };
    let start = offset + usize::from(bytes.get(offset) == Some(&b'-'));
    let mut end = digits(start);
    if end == start || (bytes[start] == b'0' && end > start + 1) {
        return None;
    }
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if fraction == end + 1 {
            return None;
        }
        end = fraction;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent == end + 1 + sign {
            return None;
        }
        end = exponent;
    }
    Some(end)
}

/// Returns the offset of the first byte at or after `offset` that is not whitespace.
#[inline(always)]
pub(super) fn skip_whitespace(bytes: &[u8], offset: usize) -> usize {
    match bytes.get(offset) {
        // In nearly all cases this comparison suffices.
        Some(byte) if *byte > b' ' => offset,
        _ => skip_long_whitespace(bytes, offset),
    }
}

#[inline(never)]
fn skip_long_whitespace(bytes: &[u8], mut offset: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(offset) {
        offset += 1;
    }
    offset
}

#[cfg(test)]
pub(super) mod tests;
