//! A cursor over validated JSON. It reads every byte once, regardless of the nesting.
//!
//! `walk.rs` finds the end of a value before a caller reads the value, so each level of nesting
//! costs one more pass. A cursor enters a value without finding its end. On invalid JSON it fails
//! or returns wrong slices, but it never panics and always ends.

use std::ops::Range;

use super::string::JsonString;
use super::walk::{skip_literal, skip_string};

/// Receives the strings and whitespace that a cursor reads. The default methods do nothing.
pub trait Visitor {
    /// Called with the content of each string of a value, names included. Names that
    /// [`Cursor::next_name`] returns are not visited.
    #[inline]
    fn string(&mut self, raw: &[u8], content: Range<usize>) {
        let _ = (raw, content);
    }

    /// Called with whitespace outside strings.
    #[inline]
    fn whitespace(&mut self, raw: &[u8], span: Range<usize>) {
        let _ = (raw, span);
    }
}

impl Visitor for () {}

/// A position in raw JSON. `V` is the type of the visitor; `()` ignores all strings and whitespace.
#[derive(Debug, Clone)]
pub struct Cursor<'a, V = ()> {
    raw: &'a [u8],
    offset: usize,
    visitor: V,
}

/// The JSON does not have the structure that the caller expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed json at byte {offset}")]
pub struct Malformed {
    /// The offset of the unexpected byte or value.
    pub offset: usize,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the start of a value.
    pub fn new(raw: &'a [u8]) -> Cursor<'a> {
        Cursor::with_visitor(raw, ())
    }
}

impl<'a, V: Visitor> Cursor<'a, V> {
    /// Creates a cursor at the start of a value. It calls this visitor.
    pub fn with_visitor(raw: &'a [u8], visitor: V) -> Cursor<'a, V> {
        Cursor { raw, offset: 0, visitor }
    }

    /// Returns the visitor.
    pub fn visitor(&mut self) -> &mut V {
        &mut self.visitor
    }

    /// Returns all bytes, including the bytes before the cursor.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the bytes from the cursor to the end.
    pub fn rest(&self) -> &'a [u8] {
        self.raw.get(self.offset..).unwrap_or_default()
    }

    /// Skips whitespace and returns the next byte. The cursor stays before it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        let byte = *self.raw.get(self.offset)?;
        if byte > b' ' { Some(byte) } else { self.skip_whitespace() }
    }

    #[cold]
    fn skip_whitespace(&mut self) -> Option<u8> {
        let start = self.offset;
        while matches!(self.raw.get(self.offset), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.offset += 1;
        }
        self.visitor.whitespace(self.raw, start..self.offset);
        self.raw.get(self.offset).copied()
    }

    /// Skips this opening bracket and returns true. If another byte is next, returns false and does
    /// not move.
    #[inline]
    pub fn open(&mut self, bracket: u8) -> bool {
        let is_open = self.peek() == Some(bracket);
        self.offset += usize::from(is_open);
        is_open
    }

    /// Stops before the next element or member and returns true. Returns false after the closing
    /// bracket.
    ///
    /// # Errors
    /// If the JSON ends before the bracket.
    #[inline]
    pub fn next_element(&mut self) -> Result<bool, Malformed> {
        match self.peek() {
            Some(b']' | b'}') => {
                self.offset += 1;
                Ok(false)
            }
            Some(b',') => {
                self.offset += 1;
                self.peek().map(|_| true).ok_or(self.malformed())
            }
            Some(_) => Ok(true),
            None => Err(self.malformed()),
        }
    }

    /// Reads the name of the next member and stops before the member's value. Returns `None` after
    /// the closing bracket.
    ///
    /// # Errors
    /// If neither a member nor a bracket follows.
    #[inline]
    pub fn next_name(&mut self) -> Result<Option<JsonString<'a>>, Malformed> {
        if !self.next_element()? {
            return Ok(None);
        }
        let start = self.offset;
        if self.raw[start] != b'"' {
            return Err(self.malformed());
        }
        let (end, escaped) = skip_string(self.raw, start).ok_or(self.malformed())?;
        self.offset = end;
        if !self.open(b':') {
            return Err(self.malformed());
        }
        Ok(Some(JsonString { raw: &self.raw[start + 1..end - 1], escaped }))
    }

    /// Reads the next value and returns its bytes, which are never empty.
    ///
    /// # Errors
    /// If the JSON ends before the value does.
    #[inline]
    pub fn value(&mut self) -> Result<&'a [u8], Malformed> {
        let first_byte = self.peek();
        let start = self.offset;
        let end = match first_byte {
            Some(b'"') => self.skip_string_value(),
            Some(b'{' | b'[') => self.skip_nested_value(),
            Some(_) => skip_literal(self.raw, start),
            None => None,
        };
        self.offset = end.ok_or(Malformed { offset: start })?;
        Ok(&self.raw[start..self.offset])
    }

    /// Skips a string and returns its end. Returns `None` if the string does not end.
    #[inline]
    fn skip_string_value(&mut self) -> Option<usize> {
        let start = self.offset + 1;
        let (end, _) = skip_string(self.raw, self.offset)?;
        self.offset = end;
        self.visitor.string(self.raw, start..end - 1);
        Some(end)
    }

    /// Skips an array or object and returns its end. Returns `None` if the JSON ends within it.
    fn skip_nested_value(&mut self) -> Option<usize> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.skip_string_value()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.offset += 1;
            if depth == 0 {
                return Some(self.offset);
            }
        }
    }

    /// Returns an error at the cursor.
    fn malformed(&self) -> Malformed {
        Malformed { offset: self.offset }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a cursor reads the same values as `walk`, visits all strings of a value, and ends on
    //! any bytes. Method: texts written by hand, and mutated texts.

    use super::*;
    use crate::json::walk;

    /// Collects the visited strings and whitespace.
    #[derive(Default)]
    struct Visited {
        strings: Vec<Vec<u8>>,
        whitespace: usize,
    }

    impl Visitor for &mut Visited {
        fn string(&mut self, raw: &[u8], content: Range<usize>) {
            self.strings.push(raw[content].to_vec());
        }

        fn whitespace(&mut self, _raw: &[u8], span: Range<usize>) {
            self.whitespace += span.len();
        }
    }

    /// Reads the members of an object with a cursor.
    fn read_members(raw: &[u8]) -> Result<Vec<(JsonString<'_>, &[u8])>, Malformed> {
        let mut cursor = Cursor::new(raw);
        let mut members = Vec::new();
        if cursor.open(b'{') {
            while let Some(name) = cursor.next_name()? {
                members.push((name, cursor.value()?));
            }
        }
        Ok(members)
    }

    #[test]
    fn reads_what_walk_reads() {
        for text in [
            "{}",
            r#" { "a" : 1 , "b\n":[1,{"c":"]"}] ,"d":"\"}" } "#,
            r#"{"a":null,"a":[[]],"":{}}"#,
        ] {
            let expected: Vec<_> = walk::members(text.as_bytes()).collect();
            assert_eq!(read_members(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn visits_strings_and_whitespace() {
        let mut visited = Visited::default();
        let text = r#"{"n": ["a", {"m":"b\"c"}, 1 ], "x":"d"}"#;
        assert_eq!(
            Cursor::with_visitor(text.as_bytes(), &mut visited).value(),
            Ok(text.as_bytes())
        );
        let strings: Vec<_> =
            visited.strings.iter().map(|text| text.escape_ascii().to_string()).collect();
        assert_eq!(strings, ["n", "a", "m", r#"b\\\"c"#, "x", "d"]);
        assert_eq!(visited.whitespace, text.bytes().filter(|byte| *byte == b' ').count());
    }

    #[test]
    fn ends_on_any_bytes() {
        let seeds = crate::fuzz::seeds();
        let read_all = |bytes: &[u8]| {
            let _ = (read_members(bytes), Cursor::new(bytes).value());
        };
        let random_seed = 7;
        crate::fuzz::mutate_all(&seeds, read_all, random_seed, &mut |tried| tried < 20_000);
        for text in ["{\"a\":", "{\"a\"", "{\"a\":1,", "{1:2}", "{\"a\":1", "", "[", "\""] {
            let result = read_members(text.as_bytes());
            assert!(result.is_err() || result.unwrap().is_empty(), "{text}");
        }
    }
}
