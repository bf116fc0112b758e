//! The fast path of the scanner: finds the end of a valid and simple value.
//!
//! Most bytes belong to values that no caller reads. The fast path skips these values at the cost
//! of a few instructions per member. The fast path gives up on an invalid value. It also gives up
//! on some objects whose names it checks: if a name has special bytes, or if there are more than
//! [`NAMES_MAX`] names. `scanner.rs` then scans the value again, and returns the error if there is
//! one. The fast path accepts only values that the scanner accepts, and finds the same repeated
//! names. Tests compare both.
//!
//! A byte of a string is special if it is a quote, a backslash, a control character or not ASCII.

use std::ops::Range;

use smallvec::SmallVec;

use super::string;
use super::syntax_error::{SyntaxError, SyntaxErrorKind};

/// Maximum number of names per object on the fast path. The scanner uses a hash set for larger
/// objects. Blocks, receipts and transactions have up to 30 names.
pub(super) const NAMES_MAX: usize = 32;

/// Number of bytes that are examined at once. A 64-bit word has one bit for each of these bytes: 1
/// if the byte is special.
const BLOCK_BYTES: usize = 64;

/// A Bloom filter over the names of one open object. An object is open between its two brackets.
pub(super) struct NameFilter {
    /// The index of the object's first name in [`FastScanner::names`].
    pub(super) start: usize,
    /// Each name sets one bit, and two names can share a bit. A name whose bit is 0 is new.
    pub(super) bits: u64,
}

/// The positions of a member's name, without quotes, and of the member's value.
pub(super) struct Member {
    pub(super) name: Range<usize>,
    pub(super) value: Range<usize>,
}

/// The fast scanner of one text.
///
/// The `end_of_` functions return the offset after a value, or `None` if they give up. Their
/// parameter `depth` is the number of open arrays and objects around the value.
pub(super) struct FastScanner<'a> {
    /// The text.
    pub(super) bytes: &'a [u8],
    /// Maximum number of nested arrays and objects.
    pub(super) depth_max: usize,
    /// The depth up to which names of objects are checked for repetitions.
    pub(super) names_depth_max: usize,
    /// The names of all open objects, the innermost object last.
    pub(super) names: SmallVec<[&'a [u8]; NAMES_MAX]>,
    /// The offset of the first name that repeats an earlier name of its object; `None` if no name
    /// does.
    pub(super) repeated_offset: Option<usize>,
    /// The offset of the current block: the [`BLOCK_BYTES`] bytes that were examined last.
    block_offset: usize,
    /// One bit per special byte of the current block.
    special_bits: u64,
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
            repeated_offset: None,
            // A block that contains no offset of the text, so that the first search examines a
            // block of the text.
            block_offset: usize::MAX - BLOCK_BYTES,
            special_bits: 0,
        }
    }

    /// Returns the end of the value that starts at `offset`. If the value is invalid or not simple,
    /// returns `None` and leaves the names and the repeated name as they were.
    #[inline]
    pub(super) fn end_of_value(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(offset) == Some(&b'"') {
            return self.end_of_string(offset + 1);
        }
        let (name_count, repeated_offset) = (self.names.len(), self.repeated_offset);
        let end = self.end_of_non_string(offset, depth);
        if end.is_none() {
            self.names.truncate(name_count);
            self.repeated_offset = repeated_offset;
        }
        end
    }

    /// Returns the offset of the first special byte at or after `offset`. If there is none, the
    /// returned offset is at or beyond the end of the input.
    #[inline(always)]
    pub(super) fn next_special(&mut self, offset: usize) -> usize {
        // If `offset` is before the block, the subtraction wraps to a large number.
        let bit_index = offset.wrapping_sub(self.block_offset);
        if bit_index < BLOCK_BYTES {
            let remaining_bits = self.special_bits >> bit_index;
            if remaining_bits != 0 {
                return offset + remaining_bits.trailing_zeros() as usize;
            }
        }
        self.next_special_beyond(offset)
    }

    /// Continues [`FastScanner::next_special`] beyond the current block. The function is separate,
    /// because the common path within a block then needs few registers.
    #[inline(never)]
    fn next_special_beyond(&mut self, mut offset: usize) -> usize {
        if offset.wrapping_sub(self.block_offset) < BLOCK_BYTES {
            offset = self.block_offset + BLOCK_BYTES;
        }
        (self.block_offset, self.special_bits) = find_special_block(self.bytes, offset);
        self.block_offset + self.special_bits.trailing_zeros() as usize
    }

    /// Returns the end of a value within an array or object. If the function gives up, its caller
    /// gives up too, and [`FastScanner::end_of_value`] restores the state.
    #[inline(always)]
    fn end_of_inner_value(&mut self, offset: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(offset)? == &b'"' {
            self.end_of_string(offset + 1)
        } else {
            self.end_of_non_string(offset, depth)
        }
    }

    /// Returns the end of a value other than a string.
    fn end_of_non_string(&mut self, offset: usize, depth: usize) -> Option<usize> {
        match self.bytes.get(offset)? {
            b'{' if depth < self.names_depth_max => self.end_of_checked_object(offset + 1, depth),
            b'{' => self.end_of_object(offset + 1, depth),
            b'[' => self.end_of_array(offset + 1, depth),
            b't' => end_of_literal(self.bytes, offset, b"true"),
            b'f' => end_of_literal(self.bytes, offset, b"false"),
            b'n' => end_of_literal(self.bytes, offset, b"null"),
            _ => end_of_number(self.bytes, offset),
        }
    }

    /// Returns the end of an object without checking its names for repetitions. `offset` is the
    /// offset after the opening bracket.
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
            let value_start = skip_whitespace(bytes, offset + 1);
            offset = skip_whitespace(bytes, self.end_of_inner_value(value_start, depth + 1)?);
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b'}' => return Some(offset + 1),
                _ => return None,
            }
        }
    }

    /// Skips members whose name and value are strings without special bytes, as long as another
    /// member follows without whitespace. `name_quote` and the result are offsets of the quote
    /// before a name.
    #[inline(always)]
    pub(super) fn skip_string_members(&mut self, mut name_quote: usize) -> usize {
        let bytes = self.bytes;
        let three_bytes_at =
            |offset: usize| bytes.get(offset..).and_then(|rest| rest.first_chunk::<3>());
        loop {
            let name_end = self.next_special(name_quote + 1);
            if three_bytes_at(name_end) != Some(b"\":\"") {
                return name_quote;
            }
            let value_end = self.next_special(name_end + 3);
            if three_bytes_at(value_end) != Some(b"\",\"") {
                return name_quote;
            }
            name_quote = value_end + 2;
        }
    }

    /// Returns the end of an object, and checks its names for repetitions. `offset` is the offset
    /// after the opening bracket.
    fn end_of_checked_object(&mut self, offset: usize, depth: usize) -> Option<usize> {
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
            let member = self.read_member(offset, depth + 1, &mut filter)?;
            offset = skip_whitespace(bytes, member.value.end);
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b'}' => break,
                _ => return None,
            }
        }
        self.names.truncate(filter.start);
        Some(offset + 1)
    }

    /// Returns the end of an array. `offset` is the offset after the opening bracket.
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
            offset = skip_whitespace(bytes, self.end_of_inner_value(offset, depth + 1)?);
            match *bytes.get(offset)? {
                b',' => offset = skip_whitespace(bytes, offset + 1),
                b']' => return Some(offset + 1),
                _ => return None,
            }
        }
    }

    /// Reads a member, and checks its name for a repetition. `offset` is the offset of the opening
    /// quote of the name. `depth` counts the open arrays and objects, including the member's
    /// object.
    #[inline(always)]
    fn read_member(
        &mut self,
        offset: usize,
        depth: usize,
        filter: &mut NameFilter,
    ) -> Option<Member> {
        let bytes = self.bytes;
        let name = offset + 1..self.next_special(offset + 1);
        if *bytes.get(name.end)? != b'"' {
            return None;
        }
        if !self.insert_name(&bytes[name.clone()], offset, filter) {
            return None;
        }
        let colon = skip_whitespace(bytes, name.end + 1);
        if *bytes.get(colon)? != b':' {
            return None;
        }
        let start = skip_whitespace(bytes, colon + 1);
        let value = start..self.end_of_inner_value(start, depth)?;
        Some(Member { name, value })
    }

    /// Reads a member as [`FastScanner::read_member`] does. If the function returns `None`, the
    /// names and the repeated name are unchanged, and the scanner can read the member instead.
    pub(super) fn try_read_member(
        &mut self,
        offset: usize,
        depth: usize,
        filter: &mut NameFilter,
    ) -> Option<Member> {
        let (name_count, repeated_offset) = (self.names.len(), self.repeated_offset);
        let member = self.read_member(offset, depth, filter);
        if member.is_none() {
            self.names.truncate(name_count);
            self.repeated_offset = repeated_offset;
        }
        member
    }

    /// Adds a name to the names of the open object, and records a repetition. Returns false if
    /// there are too many names.
    #[inline]
    fn insert_name(&mut self, name: &'a [u8], offset: usize, filter: &mut NameFilter) -> bool {
        let bit = 1 << string::hash_name(name);
        if filter.bits & bit != 0 {
            self.record_if_repeated(name, offset, filter);
        }
        filter.bits |= bit;
        if self.names.len() - filter.start == NAMES_MAX {
            return false;
        }
        self.names.push(name);
        true
    }

    /// Records the offset of a name if the object already has the name and no repeated name is
    /// recorded yet. Call it only if the name's bit in the filter is set.
    #[inline(never)]
    fn record_if_repeated(&mut self, name: &'a [u8], offset: usize, filter: &NameFilter) {
        if self.names[filter.start..].contains(&name) && self.repeated_offset.is_none() {
            self.repeated_offset = Some(offset);
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
use super::simd::find_special_block;
#[cfg(not(target_arch = "x86_64"))]
use portable::find_special_block;

/// Searches for special bytes on processors other than x86-64.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::BLOCK_BYTES;

    /// Returns the same as `simd::find_special_block`.
    pub(super) fn find_special_block(bytes: &[u8], mut offset: usize) -> (usize, u64) {
        loop {
            let rest = bytes.get(offset..).unwrap_or_default();
            let bits = special_bits(&rest[..rest.len().min(BLOCK_BYTES)]);
            if bits != 0 {
                return (offset, bits);
            }
            offset += BLOCK_BYTES;
        }
    }

    /// Returns a word with one bit per special byte of a block. If the block is shorter than 64
    /// bytes, the bits beyond its end are set too.
    fn special_bits(block: &[u8]) -> u64 {
        let special_bit = |byte: u8| u64::from(matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..));
        let bits_beyond = u64::MAX.checked_shl(block.len() as u32).unwrap_or(0);
        let bits = block.iter().enumerate().map(|(index, byte)| special_bit(*byte) << index);
        bits.fold(bits_beyond, |word, bit| word | bit)
    }
}

/// Reads the rest of a string. `offset` is the offset of its first special byte. Returns the offset
/// after the closing quote, and true if the string has escapes.
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
                let non_ascii_bytes =
                    rest.iter().position(|byte| *byte < 0x80).unwrap_or(rest.len());
                match std::str::from_utf8(&rest[..non_ascii_bytes]) {
                    Ok(_) => {
                        offset = string::find_special(bytes, offset + non_ascii_bytes);
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
    let end_of_digits = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
    };
    let start = offset + usize::from(bytes.get(offset) == Some(&b'-'));
    let mut end = end_of_digits(start);
    if end == start || (bytes[start] == b'0' && end > start + 1) {
        return None;
    }
    if bytes.get(end) == Some(&b'.') {
        let fraction_end = end_of_digits(end + 1);
        if fraction_end == end + 1 {
            return None;
        }
        end = fraction_end;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign_bytes = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent_start = end + 1 + sign_bytes;
        let exponent_end = end_of_digits(exponent_start);
        if exponent_end == exponent_start {
            return None;
        }
        end = exponent_end;
    }
    Some(end)
}

/// Returns the offset of the first byte at or after `offset` that is not whitespace.
#[inline(always)]
pub(super) fn skip_whitespace(bytes: &[u8], offset: usize) -> usize {
    match bytes.get(offset) {
        // Nodes seldom write whitespace, so the byte is usually above the space.
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
