//! A cursor over JSON that has been validated before: every byte is passed once, however deep it
//! is nested.
//!
//! `json/walk.rs` finds the end of a value first and looks into the value afterwards, so each
//! level of nesting is one more pass. A cursor steps into values instead. On bytes that are not
//! valid JSON it fails or yields nonsense slices, but it never panics and always ends.

use std::ops::Range;

use super::text::Text;
use super::walk::{skip_literal, skip_string};

/// Sees what a cursor passes. The methods do nothing unless they are implemented.
pub trait Visitor {
    /// The content of a string that is a value or stands in one, as a name or as a value. Names
    /// that [`Cursor::next_name`] returns are not visited.
    #[inline]
    fn string(&mut self, raw: &[u8], content: Range<usize>) {
        let _ = (raw, content);
    }

    /// Whitespace outside strings.
    #[inline]
    fn whitespace(&mut self, raw: &[u8], span: Range<usize>) {
        let _ = (raw, span);
    }
}

impl Visitor for () {}

/// A position in raw JSON.
#[derive(Debug, Clone)]
pub struct Cursor<'a, V = ()> {
    raw: &'a [u8],
    at: usize,
    visitor: V,
}

/// The JSON has another structure than the cursor was asked to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed json at byte {at}")]
pub struct Malformed {
    /// Offset of the value or the byte that does not fit.
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of a value.
    pub fn new(raw: &'a [u8]) -> Cursor<'a> {
        Cursor::with_visitor(raw, ())
    }
}

impl<'a, V: Visitor> Cursor<'a, V> {
    /// A cursor at the start of a value, which reports to this visitor.
    pub fn with_visitor(raw: &'a [u8], visitor: V) -> Cursor<'a, V> {
        Cursor { raw, at: 0, visitor }
    }

    /// The visitor.
    pub fn visitor(&mut self) -> &mut V {
        &mut self.visitor
    }

    /// All bytes that the cursor was made for.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The bytes from the next one on.
    pub fn rest(&self) -> &'a [u8] {
        self.raw.get(self.at..).unwrap_or_default()
    }

    /// The next byte that is not whitespace; the cursor stops before it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        let byte = *self.raw.get(self.at)?;
        if byte > b' ' { Some(byte) } else { self.past_whitespace() }
    }

    #[cold]
    fn past_whitespace(&mut self) -> Option<u8> {
        let start = self.at;
        while matches!(self.raw.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        self.visitor.whitespace(self.raw, start..self.at);
        self.raw.get(self.at).copied()
    }

    /// Steps behind this opening bracket. Returns false and stays if another byte is next.
    #[inline]
    pub fn open(&mut self, bracket: u8) -> bool {
        let opens = self.peek() == Some(bracket);
        self.at += usize::from(opens);
        opens
    }

    /// Returns true if another element or member follows, and stops before it. Returns false
    /// behind the closing bracket.
    ///
    /// # Errors
    /// If the JSON ends before the bracket.
    #[inline]
    pub fn next_element(&mut self) -> Result<bool, Malformed> {
        match self.peek() {
            Some(b']' | b'}') => {
                self.at += 1;
                Ok(false)
            }
            Some(b',') => {
                self.at += 1;
                self.peek().map(|_| true).ok_or(self.malformed())
            }
            Some(_) => Ok(true),
            None => Err(self.malformed()),
        }
    }

    /// The name of the next member; the cursor stops before its value. `None` behind the closing
    /// bracket of the object.
    ///
    /// # Errors
    /// If no member and no bracket follows.
    #[inline]
    pub fn next_name(&mut self) -> Result<Option<Text<'a>>, Malformed> {
        if !self.next_element()? {
            return Ok(None);
        }
        let start = self.at;
        let name = (self.raw[start] == b'"').then(|| skip_string(self.raw, start)).flatten();
        let (end, escaped) = name.ok_or(self.malformed())?;
        self.at = end;
        if !self.open(b':') {
            return Err(self.malformed());
        }
        Ok(Some(Text { raw: &self.raw[start + 1..end - 1], escaped }))
    }

    /// Passes the next value and returns its exact bytes, which are never empty.
    ///
    /// # Errors
    /// If the JSON ends before the value does.
    #[inline]
    pub fn value(&mut self) -> Result<&'a [u8], Malformed> {
        let first = self.peek();
        let start = self.at;
        let end = match first {
            Some(b'"') => self.string(),
            Some(b'{' | b'[') => self.nested(),
            Some(_) => skip_literal(self.raw, start),
            None => None,
        };
        self.at = end.ok_or(Malformed { at: start })?;
        Ok(&self.raw[start..self.at])
    }

    #[inline]
    fn string(&mut self) -> Option<usize> {
        let start = self.at + 1;
        let (end, _) = skip_string(self.raw, self.at)?;
        self.at = end;
        self.visitor.string(self.raw, start..end - 1);
        Some(end)
    }

    fn nested(&mut self) -> Option<usize> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(self.at);
            }
        }
    }

    fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a cursor passes what `walk` passes, visits all strings of a value, and ends on any
    //! bytes. Method: texts by hand, and mutated ones.

    use super::*;
    use crate::json::walk;

    /// Collects what it sees.
    #[derive(Default)]
    struct Seen {
        strings: Vec<Vec<u8>>,
        whitespace: usize,
    }

    impl Visitor for &mut Seen {
        fn string(&mut self, raw: &[u8], content: Range<usize>) {
            self.strings.push(raw[content].to_vec());
        }

        fn whitespace(&mut self, _raw: &[u8], span: Range<usize>) {
            self.whitespace += span.len();
        }
    }

    /// The members of an object, by a cursor.
    fn members(raw: &[u8]) -> Result<Vec<(Text<'_>, &[u8])>, Malformed> {
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
    fn passes_what_walk_passes() {
        for text in [
            "{}",
            r#" { "a" : 1 , "b\n":[1,{"c":"]"}] ,"d":"\"}" } "#,
            r#"{"a":null,"a":[[]],"":{}}"#,
        ] {
            let expected: Vec<_> = walk::members(text.as_bytes()).collect();
            assert_eq!(members(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn visits_strings_and_whitespace() {
        let mut seen = Seen::default();
        let text = r#"{"n": ["a", {"m":"b\"c"}, 1 ], "x":"d"}"#;
        assert_eq!(Cursor::with_visitor(text.as_bytes(), &mut seen).value(), Ok(text.as_bytes()));
        let strings: Vec<_> =
            seen.strings.iter().map(|text| text.escape_ascii().to_string()).collect();
        assert_eq!(strings, ["n", "a", "m", r#"b\\\"c"#, "x", "d"]);
        assert_eq!(seen.whitespace, text.bytes().filter(|byte| *byte == b' ').count());
    }

    #[test]
    fn ends_on_any_bytes() {
        let seeds = crate::fuzz::seeds();
        let passed = |bytes: &[u8]| {
            let _ = (members(bytes), Cursor::new(bytes).value());
        };
        crate::fuzz::mutate_all(&seeds, passed, 7, &mut |tried| tried < 20_000);
        for text in ["{\"a\":", "{\"a\"", "{\"a\":1,", "{1:2}", "{\"a\":1", "", "[", "\""] {
            let read = members(text.as_bytes());
            assert!(read.is_err() || read.unwrap().is_empty(), "{text}");
        }
    }
}
