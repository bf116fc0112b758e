//! Passing a valid JSON value quickly: the same grammar as `json.rs`, without slices or faults.
//!
//! Most of what is read are values that nobody looks into. Here they cost a few instructions per
//! member; whatever is not valid, or not plain (names with escapes, very many names), is left to
//! the cursor of `json.rs`, which goes over it again and says what is wrong. So this never accepts
//! what the cursor refuses, and finds the same repeated names, which tests hold.

use std::ops::Range;

use smallvec::SmallVec;

use super::text;

/// Names of one object that are compared with each other here; objects with more are left to the
/// cursor, which has a hash set for them. Block, receipt and transaction objects have up to 30.
pub(super) const NAMES_MAX: usize = 32;

/// Bytes that are looked at together: one bit each in a word.
const BLOCK_BYTES: usize = 64;

/// What is known of the names in one open object.
pub(super) struct Marks {
    /// Where they begin among the names of all open objects.
    pub(super) base: usize,
    /// One bit per name: a name whose bit is unset is new for certain.
    pub(super) bits: u64,
}

/// Where a member's name lies, between its quotes, and its value.
pub(super) struct Member {
    pub(super) name: Range<usize>,
    pub(super) value: Range<usize>,
}

/// What passing values needs to know and remember.
pub(super) struct Skim<'a> {
    pub(super) bytes: &'a [u8],
    /// Nested arrays and objects that are allowed.
    pub(super) depth_max: usize,
    /// Objects nested deeper than this are not searched for repeated names.
    pub(super) names_depth_max: usize,
    /// Names of the objects that are open now; each object owns a tail of it.
    pub(super) names: SmallVec<[&'a [u8]; NAMES_MAX]>,
    /// The place of the first name that occurred twice in its object.
    pub(super) repeated: Option<usize>,
    /// Where the block begins whose bits are in `odd`.
    block: usize,
    odd: u64,
}

impl<'a> Skim<'a> {
    pub(super) fn new(bytes: &'a [u8], depth_max: usize, names_depth_max: usize) -> Skim<'a> {
        Skim {
            bytes,
            depth_max,
            names_depth_max,
            names: SmallVec::new(),
            repeated: None,
            // No place is less than a block's bytes behind this.
            block: usize::MAX - BLOCK_BYTES,
            odd: 0,
        }
    }

    /// Where the value that starts at `at`, within `depth` open arrays and objects, ends; none,
    /// with nothing remembered of it, if it is not valid or not plain. No white space is skipped
    /// before it.
    #[inline]
    pub(super) fn end_of_value(&mut self, at: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(at) == Some(&b'"') {
            return self.end_of_string(at + 1);
        }
        let (names, repeated) = (self.names.len(), self.repeated);
        let end = self.end_of_other(at, depth);
        if end.is_none() {
            self.names.truncate(names);
            self.repeated = repeated;
        }
        end
    }

    /// The offset of the first byte at or after `at` that is a quote, a backslash, a control
    /// character or not ASCII; not less than the length of all if there is none.
    #[inline(always)]
    pub(super) fn next_odd(&mut self, at: usize) -> usize {
        // Behind the block that is known this is far more than its bytes.
        let past = at.wrapping_sub(self.block);
        if past < BLOCK_BYTES {
            let hits = self.odd >> past;
            if hits != 0 {
                return at + hits.trailing_zeros() as usize;
            }
        }
        self.next_odd_beyond(at)
    }

    /// The same where the block that is known does not tell. A call of its own, so that the way
    /// through a block needs few registers.
    #[inline(never)]
    fn next_odd_beyond(&mut self, mut at: usize) -> usize {
        if at.wrapping_sub(self.block) < BLOCK_BYTES {
            at = self.block + BLOCK_BYTES;
        }
        (self.block, self.odd) = odd_block(self.bytes, at);
        self.block + self.odd.trailing_zeros() as usize
    }

    #[inline(always)]
    fn value(&mut self, at: usize, depth: usize) -> Option<usize> {
        if self.bytes.get(at)? == &b'"' {
            self.end_of_string(at + 1)
        } else {
            self.end_of_other(at, depth)
        }
    }

    /// The end of a value that is no string.
    fn end_of_other(&mut self, at: usize, depth: usize) -> Option<usize> {
        match self.bytes.get(at)? {
            b'{' if depth < self.names_depth_max => self.end_of_searched_object(at + 1, depth),
            b'{' => self.end_of_object(at + 1, depth),
            b'[' => self.end_of_array(at + 1, depth),
            b't' => literal(self.bytes, at, b"true"),
            b'f' => literal(self.bytes, at, b"false"),
            b'n' => literal(self.bytes, at, b"null"),
            _ => end_of_number(self.bytes, at),
        }
    }

    /// The end of an object whose opening bracket stands before `at`.
    fn end_of_object(&mut self, at: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut at = past_space(bytes, at);
        if *bytes.get(at)? == b'}' {
            return Some(at + 1);
        }
        loop {
            if *bytes.get(at)? != b'"' {
                return None;
            }
            at = self.past_plain_members(at);
            at = past_space(bytes, self.end_of_string(at + 1)?);
            if *bytes.get(at)? != b':' {
                return None;
            }
            at = past_space(bytes, self.value(past_space(bytes, at + 1), depth + 1)?);
            match *bytes.get(at)? {
                b',' => at = past_space(bytes, at + 1),
                b'}' => return Some(at + 1),
                _ => return None,
            }
        }
    }

    /// Passes members whose values are strings and in which nothing is odd but the quotes, each with
    /// another one behind it: from the quote that opens a name to the quote that opens a later one.
    #[inline(always)]
    pub(super) fn past_plain_members(&mut self, mut opening: usize) -> usize {
        let bytes = self.bytes;
        let three = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<3>());
        loop {
            let name_end = self.next_odd(opening + 1);
            if three(name_end) != Some(b"\":\"") {
                return opening;
            }
            let value_end = self.next_odd(name_end + 3);
            if three(value_end) != Some(b"\",\"") {
                return opening;
            }
            opening = value_end + 2;
        }
    }

    /// The same for an object that is searched for repeated names.
    fn end_of_searched_object(&mut self, at: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut seen = Marks { base: self.names.len(), bits: 0 };
        let mut at = past_space(bytes, at);
        if *bytes.get(at)? == b'}' {
            return Some(at + 1);
        }
        loop {
            if *bytes.get(at)? != b'"' {
                return None;
            }
            at = past_space(bytes, self.searched_member(at, depth + 1, &mut seen)?.value.end);
            match *bytes.get(at)? {
                b',' => at = past_space(bytes, at + 1),
                b'}' => break,
                _ => return None,
            }
        }
        self.names.truncate(seen.base);
        Some(at + 1)
    }

    fn end_of_array(&mut self, at: usize, depth: usize) -> Option<usize> {
        if depth >= self.depth_max {
            return None;
        }
        let bytes = self.bytes;
        let mut at = past_space(bytes, at);
        if *bytes.get(at)? == b']' {
            return Some(at + 1);
        }
        loop {
            at = past_space(bytes, self.value(at, depth + 1)?);
            match *bytes.get(at)? {
                b',' => at = past_space(bytes, at + 1),
                b']' => return Some(at + 1),
                _ => return None,
            }
        }
    }

    /// Passes a member from the opening quote of its name, in an object that is the last of `depth`
    /// open arrays and objects and is searched for repeated names.
    #[inline(always)]
    fn searched_member(&mut self, at: usize, depth: usize, seen: &mut Marks) -> Option<Member> {
        let bytes = self.bytes;
        let name = at + 1..self.next_odd(at + 1);
        if *bytes.get(name.end)? != b'"' || !self.note(&bytes[name.clone()], at, seen) {
            return None;
        }
        let colon = past_space(bytes, name.end + 1);
        if *bytes.get(colon)? != b':' {
            return None;
        }
        let start = past_space(bytes, colon + 1);
        let value = start..self.value(start, depth)?;
        Some(Member { name, value })
    }

    /// The same for a caller that goes on by itself if there is none: then nothing is remembered.
    pub(super) fn try_member(
        &mut self,
        at: usize,
        depth: usize,
        seen: &mut Marks,
    ) -> Option<Member> {
        let (names, repeated) = (self.names.len(), self.repeated);
        let member = self.searched_member(at, depth, seen);
        if member.is_none() {
            self.names.truncate(names);
            self.repeated = repeated;
        }
        member
    }

    /// Remembers a name, and whether its object had it before; false if there are too many.
    #[inline]
    fn note(&mut self, name: &'a [u8], at: usize, seen: &mut Marks) -> bool {
        let bit = 1 << text::mark(name);
        if seen.bits & bit != 0 {
            self.note_repeated(name, at, seen);
        }
        seen.bits |= bit;
        if self.names.len() - seen.base == NAMES_MAX {
            return false;
        }
        self.names.push(name);
        true
    }

    /// Remembers that a name that may have been seen was.
    #[inline(never)]
    fn note_repeated(&mut self, name: &'a [u8], at: usize, seen: &Marks) {
        if self.names[seen.base..].contains(&name) && self.repeated.is_none() {
            self.repeated = Some(at);
        }
    }

    /// The end of a string whose opening quote stands before `at`.
    #[inline(always)]
    fn end_of_string(&mut self, at: usize) -> Option<usize> {
        let end = self.next_odd(at);
        if self.bytes.get(end)? == &b'"' {
            Some(end + 1)
        } else {
            end_of_odd_string(self.bytes, end)
        }
    }
}

#[cfg(target_arch = "x86_64")]
use super::vector::odd_block;
#[cfg(not(target_arch = "x86_64"))]
use portable::odd_block;

/// What processors other than x86-64 do instead.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::BLOCK_BYTES;

    pub(super) fn odd_block(bytes: &[u8], mut at: usize) -> (usize, u64) {
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let odd = odd_of(&rest[..rest.len().min(BLOCK_BYTES)]);
            if odd != 0 {
                return (at, odd);
            }
            at += BLOCK_BYTES;
        }
    }

    /// A bit for each odd byte, and for each of 64 that is not there.
    fn odd_of(block: &[u8]) -> u64 {
        let odd = |byte: u8| u64::from(matches!(byte, b'"' | b'\\' | 0..0x20 | 0x80..));
        let missing = u64::MAX.checked_shl(block.len() as u32).unwrap_or(0);
        let bits = block.iter().enumerate().map(|(at, byte)| odd(*byte) << at);
        bits.fold(missing, |all, bit| all | bit)
    }
}

/// The rest of a string from its first byte that is not plain ASCII.
#[cold]
fn end_of_odd_string(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += text::escape_len(&bytes[at..])?,
            0..0x20 => return None,
            _ => {
                let rest = &bytes[at..];
                let run = rest.iter().position(|byte| *byte < 0x80).unwrap_or(rest.len());
                std::str::from_utf8(&rest[..run]).ok()?;
                at += run;
            }
        }
        at = text::plain_end(bytes, at);
    }
}

fn literal(bytes: &[u8], at: usize, text: &[u8]) -> Option<usize> {
    bytes[at..].starts_with(text).then_some(at + text.len())
}

/// RFC 8259, section 6: `-`, no leading zeros, a digit on each side of the point, after the `e`.
fn end_of_number(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
    };
    let start = at + usize::from(bytes.get(at) == Some(&b'-'));
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

/// The offset of the first byte at or after `at` that is no white space.
#[inline(always)]
pub(super) fn past_space(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at) {
        // One comparison tells nearly always that there is none.
        Some(byte) if *byte > b' ' => at,
        _ => past_some_space(bytes, at),
    }
}

#[inline(never)]
fn past_some_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
pub(super) mod tests;
