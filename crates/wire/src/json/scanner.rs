//! A validating scanner for one JSON text (RFC 8259). The text is UTF-8, without a byte order mark,
//! and nothing follows the value.
//!
//! The scanner rejects nesting beyond a limit. It reports member names that occur twice in one
//! object, at any depth and after decoding escapes. It returns slices of the text and builds no
//! tree.
//!
//! `fast_scanner.rs` skips valid and simple values, which are nearly all values. If the fast
//! scanner gives up on a value, this scanner checks every rule and returns the error.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::fast::RandomState;

use super::fast_scanner::{
    FastScanner, NAMES_MAX, NameFilter, end_of_number, end_of_special_string, skip_whitespace,
};
use super::string::{self, JsonString};
use super::syntax_error::{SyntaxError, SyntaxErrorKind};

#[cfg(test)]
mod tests;

/// The upper bound of all nesting limits, in levels. The scanner recurses once per level. This
/// number of levels needs a fraction of 2 MiB, the smallest common stack of a thread.
pub const DEPTH_CEILING: usize = 512;

/// A scanner at a position in a text. All bytes before the position are valid.
///
/// [`Scanner::peek`] returns the first byte of the next value. [`Scanner::value`],
/// [`Scanner::members`] and [`Scanner::elements`] read one value. [`Scanner::finish`] checks that
/// nothing follows. A repeated member name does not end the scan; [`Scanner::take_repeated`]
/// returns its offset.
pub struct Scanner<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// The number of open arrays and objects.
    depth: usize,
    /// The fast scanner of the same text. It also holds the limits and the names of open objects.
    fast_scanner: FastScanner<'a>,
    /// True within a value on which the fast scanner gave up. The fast scanner is not tried on the
    /// parts of that value. Otherwise each level of nesting could cost one more failed pass.
    pub(super) is_slow: bool,
}

/// The member names of one open object.
struct OpenObjectNames<'a> {
    /// Recognizes most new names without comparing them with the earlier names.
    filter: NameFilter,
    /// True if a name has an escape. Names are then compared in decoded form.
    has_escapes: bool,
    /// All decoded names; `None` while there are at most [`NAMES_MAX`] names.
    set: Option<HashSet<Cow<'a, [u8]>, RandomState>>,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner at the start of `bytes`. It allows `depth_max` nested arrays and objects,
    /// at most [`DEPTH_CEILING`].
    pub fn new(bytes: &'a [u8], depth_max: usize) -> Scanner<'a> {
        Scanner::with_names_depth(bytes, depth_max, DEPTH_CEILING)
    }

    /// Creates a scanner that reports repeated names only in the outer `names_depth_max` levels.
    /// Checking names is half the cost of a scan, and callers make no decision by the names of
    /// inner levels.
    pub fn with_names_depth(
        bytes: &'a [u8],
        depth_max: usize,
        names_depth_max: usize,
    ) -> Scanner<'a> {
        let fast_scanner = FastScanner::new(bytes, depth_max.min(DEPTH_CEILING), names_depth_max);
        Scanner { bytes, offset: 0, depth: 0, fast_scanner, is_slow: false }
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the offset of a slice that this scanner returned.
    pub(crate) fn offset_of(&self, slice: &[u8]) -> usize {
        slice.as_ptr().addr().saturating_sub(self.bytes.as_ptr().addr())
    }

    /// Returns the offset of the first repeated member name since the last call.
    pub fn take_repeated(&mut self) -> Option<usize> {
        self.fast_scanner.repeated_offset.take()
    }

    /// Skips whitespace and returns the first byte of the next value.
    ///
    /// # Errors
    /// [`SyntaxErrorKind::Empty`] or [`SyntaxErrorKind::ByteOrderMark`] at the start,
    /// [`SyntaxErrorKind::End`] later.
    pub fn peek(&mut self) -> Result<u8, SyntaxError> {
        if self.offset == 0 && self.bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(SyntaxError { offset: 0, kind: SyntaxErrorKind::ByteOrderMark });
        }
        let is_start = self.offset == 0;
        match self.next_byte() {
            Some(byte) => Ok(byte),
            None if is_start => Err(self.error(SyntaxErrorKind::Empty)),
            None => Err(self.error(SyntaxErrorKind::End)),
        }
    }

    /// Reads the whole text and returns its value without surrounding whitespace.
    ///
    /// # Errors
    /// The first syntax error. Repeated names are not errors.
    pub fn document(&mut self) -> Result<&'a [u8], SyntaxError> {
        let value = self.value()?;
        self.finish()?;
        Ok(value)
    }

    /// Skips whitespace, reads one value and returns its bytes.
    ///
    /// # Errors
    /// The first syntax error.
    pub fn value(&mut self) -> Result<&'a [u8], SyntaxError> {
        // `self.offset` must not move yet, because `peek` needs it to recognize an empty text.
        let start = skip_whitespace(self.bytes, self.offset);
        if !self.is_slow {
            if let Some(end) = self.fast_scanner.end_of_value(start, self.depth) {
                self.offset = end;
                return Ok(&self.bytes[start..end]);
            }
            self.is_slow = true;
            self.read_value_slowly()?;
            self.is_slow = false;
        } else {
            self.read_value_slowly()?;
        }
        Ok(&self.bytes[start..self.offset])
    }

    /// Reads a value without the fast scanner.
    fn read_value_slowly(&mut self) -> Result<(), SyntaxError> {
        match self.peek()? {
            b'"' => self.read_string().map(|_| ()),
            b'{' => self.members(|_, _| {}),
            b'[' => self.elements(|scanner| scanner.value().map(|_| true)),
            b't' => self.read_literal(b"true"),
            b'f' => self.read_literal(b"false"),
            b'n' => self.read_literal(b"null"),
            b'-' | b'0'..=b'9' => self.read_number(),
            other => Err(self.error(SyntaxErrorKind::Unexpected(other))),
        }
    }

    /// Reads an object and calls `visit` with the name and the value of each member.
    ///
    /// # Errors
    /// The first syntax error. A value other than an object is a syntax error too.
    pub fn members(
        &mut self,
        mut visit: impl FnMut(JsonString<'a>, &'a [u8]),
    ) -> Result<(), SyntaxError> {
        self.open(b'{')?;
        let filter = NameFilter { start: self.fast_scanner.names.len(), bits: 0 };
        let mut names = OpenObjectNames { filter, has_escapes: false, set: None };
        let checks_names = self.depth <= self.fast_scanner.names_depth_max;
        if self.next_byte() == Some(b'}') {
            return self.close();
        }
        loop {
            if self.next_byte() != Some(b'"') {
                return Err(self.unexpected());
            }
            // The fast scanner compares raw names, and only a small number of them.
            let is_simple = !names.has_escapes && names.set.is_none();
            let member = if checks_names && is_simple && !self.is_slow {
                self.fast_scanner.try_read_member(self.offset, self.depth, &mut names.filter)
            } else {
                None
            };
            let (name, value) = match member {
                Some(member) => {
                    self.offset = member.value.end;
                    let name = JsonString { raw: &self.bytes[member.name], escaped: false };
                    (name, &self.bytes[member.value])
                }
                None => self.read_member(&mut names)?,
            };
            visit(name, value);
            match self.next_byte() {
                Some(b',') => self.offset += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected()),
            }
        }
        self.fast_scanner.names.truncate(names.filter.start);
        self.close()
    }

    /// Reads a member without the fast scanner. The next byte is the opening quote of its name.
    fn read_member(
        &mut self,
        names: &mut OpenObjectNames<'a>,
    ) -> Result<(JsonString<'a>, &'a [u8]), SyntaxError> {
        let name_offset = self.offset;
        let name = self.read_string()?;
        let checks_names = self.depth <= self.fast_scanner.names_depth_max;
        if checks_names
            && self.insert_name(names, name)
            && self.fast_scanner.repeated_offset.is_none()
        {
            self.fast_scanner.repeated_offset = Some(name_offset);
        }
        if self.next_byte() != Some(b':') {
            return Err(self.unexpected());
        }
        self.offset += 1;
        Ok((name, self.value()?))
    }

    /// Reads an array and calls `read_element` before every element. `read_element` reads exactly
    /// one value and returns true, or returns false to end the scan.
    ///
    /// # Errors
    /// The first syntax error. A value other than an array is a syntax error too.
    pub fn elements(
        &mut self,
        mut read_element: impl FnMut(&mut Scanner<'a>) -> Result<bool, SyntaxError>,
    ) -> Result<(), SyntaxError> {
        self.open(b'[')?;
        if self.next_byte() == Some(b']') {
            return self.close();
        }
        loop {
            if !read_element(self)? {
                return Ok(());
            }
            match self.next_byte() {
                Some(b',') => self.offset += 1,
                Some(b']') => return self.close(),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Checks that only whitespace follows.
    ///
    /// # Errors
    /// [`SyntaxErrorKind::Trailing`] with the offset of the first other byte.
    pub fn finish(&mut self) -> Result<(), SyntaxError> {
        match self.next_byte() {
            None => Ok(()),
            Some(byte) => Err(self.error(SyntaxErrorKind::Trailing(byte))),
        }
    }

    /// Returns an error at the current offset.
    fn error(&self, kind: SyntaxErrorKind) -> SyntaxError {
        SyntaxError { offset: self.offset, kind }
    }

    /// Returns the error for the next byte, which the grammar does not allow.
    fn unexpected(&self) -> SyntaxError {
        match self.bytes.get(self.offset) {
            Some(byte) => self.error(SyntaxErrorKind::Unexpected(*byte)),
            None => self.error(SyntaxErrorKind::End),
        }
    }

    /// Skips whitespace and returns the next byte. The position stays before that byte.
    #[inline]
    fn next_byte(&mut self) -> Option<u8> {
        self.offset = skip_whitespace(self.bytes, self.offset);
        self.bytes.get(self.offset).copied()
    }

    /// Enters an array or object. The next byte must be its opening bracket.
    fn open(&mut self, bracket: u8) -> Result<(), SyntaxError> {
        if self.next_byte() != Some(bracket) {
            return Err(self.unexpected());
        }
        if self.depth >= self.fast_scanner.depth_max {
            return Err(self.error(SyntaxErrorKind::TooDeep(self.fast_scanner.depth_max)));
        }
        self.depth += 1;
        self.offset += 1;
        Ok(())
    }

    /// Leaves an array or object. The next byte is its closing bracket.
    fn close(&mut self) -> Result<(), SyntaxError> {
        self.depth -= 1;
        self.offset += 1;
        Ok(())
    }

    fn read_literal(&mut self, word: &'static [u8]) -> Result<(), SyntaxError> {
        let remaining = &self.bytes[self.offset..];
        if remaining.starts_with(word) {
            self.offset += word.len();
            return Ok(());
        }
        let matching_bytes =
            remaining.iter().zip(word).take_while(|(byte, expected)| byte == expected).count();
        self.offset += matching_bytes;
        Err(self.unexpected())
    }

    fn read_number(&mut self) -> Result<(), SyntaxError> {
        let error = self.error(SyntaxErrorKind::Number);
        self.offset = end_of_number(self.bytes, self.offset).ok_or(error)?;
        Ok(())
    }

    /// Reads a string without whitespace before it. The next byte is its opening quote.
    #[inline]
    fn read_string(&mut self) -> Result<JsonString<'a>, SyntaxError> {
        let start = self.offset + 1;
        let special_offset = self.fast_scanner.next_special(start);
        let (end, escaped) = match self.bytes.get(special_offset) {
            Some(b'"') => (special_offset + 1, false),
            _ => end_of_special_string(self.bytes, special_offset)?,
        };
        self.offset = end;
        Ok(JsonString { raw: &self.bytes[start..end - 1], escaped })
    }

    /// Adds a name to the names of the open object. Returns true if the object already has the
    /// name.
    fn insert_name(&mut self, names: &mut OpenObjectNames<'a>, name: JsonString<'a>) -> bool {
        if let Some(set) = &mut names.set {
            return !set.insert(name.decode());
        }
        // A name with escapes may equal a name without escapes that has another bit. So a name with
        // escapes sets all bits, and is compared with all other names.
        let bit = if name.escaped { u64::MAX } else { 1 << string::hash_name(name.raw) };
        let may_repeat = names.filter.bits & bit != 0;
        names.filter.bits |= bit;
        names.has_escapes |= name.escaped;
        let known_names = &self.fast_scanner.names[names.filter.start..];
        let is_repeated = may_repeat
            && if names.has_escapes {
                known_names.iter().any(|known| JsonString::new(known).decode() == name.decode())
            } else {
                known_names.contains(&name.raw)
            };
        if known_names.len() == NAMES_MAX {
            let mut set: HashSet<Cow<'a, [u8]>, RandomState> =
                known_names.iter().map(|known| JsonString::new(known).decode()).collect();
            set.insert(name.decode());
            names.set = Some(set);
        }
        self.fast_scanner.names.push(name.raw);
        is_repeated
    }
}

/// Validates a JSON text. Returns the value without surrounding whitespace, and the offset of the
/// first repeated member name.
///
/// # Errors
/// The first syntax error.
pub fn validate(bytes: &[u8], depth_max: usize) -> Result<(&[u8], Option<usize>), SyntaxError> {
    let mut scanner = Scanner::new(bytes, depth_max);
    let value = scanner.document()?;
    Ok((value, scanner.take_repeated()))
}
