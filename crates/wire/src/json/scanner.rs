//! A validating scanner for one JSON text (RFC 8259). The text is UTF-8, without a byte order mark,
//! and nothing follows the value.
//!
//! The scanner rejects nesting beyond a limit. It reports member names that occur twice in one
//! object, at any depth and after decoding escapes. It returns slices of the text and builds no
//! tree.
//!
//! `fast_scanner.rs` skips valid and simple values, and nearly all values are. This scanner checks
//! every rule and reports the error.

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

/// The upper bound of all nesting limits, in levels. The scanner recurses once per level. The
/// levels need a fraction of 2 MiB, the smallest common stack of a thread.
pub const DEPTH_CEILING: usize = 512;

/// A scanner at a position in a text. All bytes before the position are valid.
///
/// [`Scanner::peek`] returns the first byte of the next value. [`Scanner::value`],
/// [`Scanner::members`] and [`Scanner::elements`] read one value, and [`Scanner::finish`] checks
/// that nothing follows. A repeated member name does not end the scan; [`Scanner::take_repeated`]
/// returns it.
pub struct Scanner<'a> {
    bytes: &'a [u8],
    offset: usize,
    depth: usize,
    fast: FastScanner<'a>,
    /// True within a value that the fast scanner could not skip. The parts of the value do not use
    /// the fast scanner, because the cost would grow with the nesting.
    pub(super) is_slow: bool,
}

/// The member names of one open object.
struct Names<'a> {
    filter: NameFilter,
    /// True if a name has an escape. Names are then compared in decoded form.
    has_escapes: bool,
    /// All decoded names, if there are more than [`NAMES_MAX`].
    set: Option<HashSet<Cow<'a, [u8]>, RandomState>>,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner at the start of `bytes`. It allows `depth_max` nested arrays and objects,
    /// at most [`DEPTH_CEILING`].
    pub fn new(bytes: &'a [u8], depth_max: usize) -> Scanner<'a> {
        Scanner::with_names_depth(bytes, depth_max, DEPTH_CEILING)
    }

    /// Creates a scanner that reports repeated names only in the outer `names_depth_max` levels.
    /// The search for repeated names is half the cost of a scan. No decision depends on the names
    /// of inner levels.
    pub fn with_names_depth(
        bytes: &'a [u8],
        depth_max: usize,
        names_depth_max: usize,
    ) -> Scanner<'a> {
        let fast = FastScanner::new(bytes, depth_max.min(DEPTH_CEILING), names_depth_max);
        Scanner { bytes, offset: 0, depth: 0, fast, is_slow: false }
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
        self.fast.repeated.take()
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
        // `self.offset` is unchanged, because `peek` uses it to recognize an empty text.
        let start = skip_whitespace(self.bytes, self.offset);
        if !self.is_slow {
            if let Some(end) = self.fast.end_of_value(start, self.depth) {
                self.offset = end;
                return Ok(&self.bytes[start..end]);
            }
            self.is_slow = true;
            self.value_slow()?;
            self.is_slow = false;
        } else {
            self.value_slow()?;
        }
        Ok(&self.bytes[start..self.offset])
    }

    fn value_slow(&mut self) -> Result<(), SyntaxError> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'{' => self.members(|_, _| {}),
            b'[' => self.elements(|scanner| scanner.value().map(|_| true)),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'-' | b'0'..=b'9' => self.number(),
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
        let filter = NameFilter { start: self.fast.names.len(), bits: 0 };
        let mut names = Names { filter, has_escapes: false, set: None };
        let is_searched = self.depth <= self.fast.names_depth_max;
        if self.next_byte() == Some(b'}') {
            return self.close();
        }
        loop {
            if self.next_byte() != Some(b'"') {
                return Err(self.unexpected());
            }
            let is_simple = !names.has_escapes && names.set.is_none();
            let member = if is_searched && is_simple && !self.is_slow {
                self.fast.try_member(self.offset, self.depth, &mut names.filter)
            } else {
                None
            };
            let (name, value) = match member {
                Some(member) => {
                    self.offset = member.value.end;
                    let name = JsonString { raw: &self.bytes[member.name], escaped: false };
                    (name, &self.bytes[member.value])
                }
                None => self.member(&mut names)?,
            };
            visit(name, value);
            match self.next_byte() {
                Some(b',') => self.offset += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected()),
            }
        }
        self.fast.names.truncate(names.filter.start);
        self.close()
    }

    /// Reads a member from the opening quote of its name.
    fn member(&mut self, names: &mut Names<'a>) -> Result<(JsonString<'a>, &'a [u8]), SyntaxError> {
        let name_offset = self.offset;
        let name = self.string()?;
        let is_searched = self.depth <= self.fast.names_depth_max;
        if is_searched && self.insert_name(names, name) && self.fast.repeated.is_none() {
            self.fast.repeated = Some(name_offset);
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

    fn error(&self, kind: SyntaxErrorKind) -> SyntaxError {
        SyntaxError { offset: self.offset, kind }
    }

    fn unexpected(&self) -> SyntaxError {
        match self.bytes.get(self.offset) {
            Some(byte) => self.error(SyntaxErrorKind::Unexpected(*byte)),
            None => self.error(SyntaxErrorKind::End),
        }
    }

    #[inline]
    fn next_byte(&mut self) -> Option<u8> {
        self.offset = skip_whitespace(self.bytes, self.offset);
        self.bytes.get(self.offset).copied()
    }

    fn open(&mut self, bracket: u8) -> Result<(), SyntaxError> {
        if self.next_byte() != Some(bracket) {
            return Err(self.unexpected());
        }
        if self.depth >= self.fast.depth_max {
            return Err(self.error(SyntaxErrorKind::TooDeep(self.fast.depth_max)));
        }
        self.depth += 1;
        self.offset += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), SyntaxError> {
        self.depth -= 1;
        self.offset += 1;
        Ok(())
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), SyntaxError> {
        let rest = &self.bytes[self.offset..];
        if rest.starts_with(word) {
            self.offset += word.len();
            return Ok(());
        }
        let matching = rest.iter().zip(word).take_while(|(a, b)| a == b).count();
        self.offset += matching;
        Err(self.unexpected())
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let invalid = self.error(SyntaxErrorKind::Number);
        self.offset = end_of_number(self.bytes, self.offset).ok_or(invalid)?;
        Ok(())
    }

    #[inline]
    fn string(&mut self) -> Result<JsonString<'a>, SyntaxError> {
        let start = self.offset + 1;
        let special = self.fast.next_special(start);
        let (end, escaped) = match self.bytes.get(special) {
            Some(b'"') => (special + 1, false),
            _ => end_of_special_string(self.bytes, special)?,
        };
        self.offset = end;
        Ok(JsonString { raw: &self.bytes[start..end - 1], escaped })
    }

    /// Adds a name to the names of the open object. Returns true if the object already has the
    /// name.
    fn insert_name(&mut self, names: &mut Names<'a>, name: JsonString<'a>) -> bool {
        if let Some(set) = &mut names.set {
            return !set.insert(name.decode());
        }
        let bit = if name.escaped { u64::MAX } else { 1 << string::hash_name(name.raw) };
        let may_repeat = names.filter.bits & bit != 0;
        names.filter.bits |= bit;
        names.has_escapes |= name.escaped;
        let known_names = &self.fast.names[names.filter.start..];
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
        self.fast.names.push(name.raw);
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
