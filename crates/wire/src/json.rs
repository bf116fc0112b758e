//! JSON as bytes: a validating scanner that hands out slices of what it read.
//!
//! It decides whether bytes are one JSON text by RFC 8259 (UTF-8, no byte order mark, nothing
//! after the value), refuses nesting beyond a limit, and notes members whose name occurs twice in
//! one object, at any depth and after decoding escapes. It builds no tree and changes no byte.
//! Values that are valid and plain, nearly all, are passed by `json/skip.rs`; this one knows every
//! rule and says what is wrong.
//! Walking bytes which are known to be valid is done by `json/walk.rs`; what the members mean is
//! decided in `call.rs` and `answer.rs`.

use std::borrow::Cow;
use std::collections::HashSet;

use foldhash::fast::RandomState;

pub mod cursor;
pub mod skeleton;
mod skip;
pub mod split;
pub mod text;
#[cfg(target_arch = "x86_64")]
mod vector;
pub mod walk;

#[cfg(test)]
mod tests;

use skip::{Marks, NAMES_MAX, Skim, past_space};
use text::Text;

/// Nesting that no setting can raise: the scanner recurses once per level, and this many levels
/// fit a thread's smallest usual stack (2 MiB) several times over.
pub const DEPTH_CEILING: usize = 512;

/// What is wrong with a text, and at which byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{flaw} at byte {at}")]
pub struct Fault {
    /// Offset of the byte, counted from the start of the scanned bytes.
    pub at: usize,
    /// The kind of fault.
    pub flaw: Flaw,
}

/// The kinds of fault that end a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// There is no value at all, only whitespace.
    #[error("empty text where a json value is needed")]
    Empty,
    /// The text starts with the UTF-8 byte order mark, which RFC 8259 section 8.1 forbids.
    #[error("byte order mark, which json text must not have,")]
    ByteOrderMark,
    /// A byte that cannot stand here.
    #[error("unexpected byte 0x{0:02x}")]
    Unexpected(u8),
    /// The text ends inside a value.
    #[error("text ends too early")]
    End,
    /// Something other than whitespace follows the value.
    #[error("unexpected byte 0x{0:02x} after the json value")]
    Trailing(u8),
    /// A string holds bytes that are not UTF-8.
    #[error("invalid utf-8 in a string")]
    Utf8,
    /// A string holds a control character that must be escaped.
    #[error("unescaped control character 0x{0:02x} in a string")]
    Control(u8),
    /// An escape sequence that JSON does not have.
    #[error("invalid escape sequence in a string")]
    Escape,
    /// A number not of the form that JSON allows.
    #[error("invalid number")]
    Number,
    /// Arrays and objects are nested deeper than the limit.
    #[error("nesting deeper than {0} levels")]
    TooDeep(usize),
}

/// A cursor over bytes that validates what it passes.
///
/// Reading goes forward only: [`Scan::peek`] tells what comes, [`Scan::value`], [`Scan::members`]
/// and [`Scan::elements`] pass one value, [`Scan::finish`] checks that nothing follows. A repeated
/// member name does not end the scan: ask [`Scan::take_repeated`] after a value.
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    skim: Skim<'a>,
    /// Whether the value around was left by the quick pass: within it nothing is tried twice, or
    /// the work would grow with the nesting.
    careful: bool,
}

/// What is known of the names in one open object.
struct Seen<'a> {
    marks: Marks,
    escapes: bool,
    many: Option<HashSet<Cow<'a, [u8]>, RandomState>>,
}

impl<'a> Scan<'a> {
    /// A cursor at the start of `bytes` that allows `depth_max` nested arrays and objects, at
    /// most [`DEPTH_CEILING`].
    pub fn new(bytes: &'a [u8], depth_max: usize) -> Scan<'a> {
        Scan::shallow(bytes, depth_max, DEPTH_CEILING)
    }

    /// The same, searching for repeated names only down to `names_depth_max` levels: for documents
    /// of which nothing deeper is decided on, since that search is half of the cost of a scan.
    pub fn shallow(bytes: &'a [u8], depth_max: usize, names_depth_max: usize) -> Scan<'a> {
        let skim = Skim::new(bytes, depth_max.min(DEPTH_CEILING), names_depth_max);
        Scan { bytes, at: 0, depth: 0, skim, careful: false }
    }

    /// The offset of the next byte to be read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Where a slice that this cursor has returned begins.
    pub(crate) fn offset_of(&self, slice: &[u8]) -> usize {
        slice.as_ptr().addr().saturating_sub(self.bytes.as_ptr().addr())
    }

    /// The offset of the first repeated member name since the last call, if there was one.
    pub fn take_repeated(&mut self) -> Option<usize> {
        self.skim.repeated.take()
    }

    /// The first byte of the next value, whitespace skipped.
    ///
    /// # Errors
    /// [`Flaw::Empty`] or [`Flaw::ByteOrderMark`] at the start, [`Flaw::End`] later.
    pub fn peek(&mut self) -> Result<u8, Fault> {
        if self.at == 0 && self.bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(Fault { at: 0, flaw: Flaw::ByteOrderMark });
        }
        let fresh = self.at == 0;
        match self.next_byte() {
            Some(byte) => Ok(byte),
            None if fresh => Err(self.fault(Flaw::Empty)),
            None => Err(self.fault(Flaw::End)),
        }
    }

    /// Passes one whole document and returns its value without surrounding whitespace.
    ///
    /// # Errors
    /// The first fault met; repeated names are no fault here.
    pub fn document(&mut self) -> Result<&'a [u8], Fault> {
        let value = self.value()?;
        self.finish()?;
        Ok(value)
    }

    /// Passes one value, whitespace before it skipped, and returns its exact bytes.
    ///
    /// # Errors
    /// The first fault met.
    pub fn value(&mut self) -> Result<&'a [u8], Fault> {
        // The cursor itself stays, because an empty text is told by where it stands.
        let start = past_space(self.bytes, self.at);
        if !self.careful {
            if let Some(end) = self.skim.end_of_value(start, self.depth) {
                self.at = end;
                return Ok(&self.bytes[start..end]);
            }
            self.careful = true;
            self.value_carefully()?;
            self.careful = false;
        } else {
            self.value_carefully()?;
        }
        Ok(&self.bytes[start..self.at])
    }

    fn value_carefully(&mut self) -> Result<(), Fault> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'{' => self.members(|_, _| {}),
            b'[' => self.elements(|scan| scan.value().map(|_| true)),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            b'-' | b'0'..=b'9' => self.number(),
            other => Err(self.fault(Flaw::Unexpected(other))),
        }
    }

    /// Passes an object, calling `visit` with each member's name and the exact bytes of its
    /// value.
    ///
    /// # Errors
    /// The first fault met, also when the next value is not an object.
    pub fn members(&mut self, mut visit: impl FnMut(Text<'a>, &'a [u8])) -> Result<(), Fault> {
        self.open(b'{')?;
        let marks = Marks { base: self.skim.names.len(), bits: 0 };
        let mut seen = Seen { marks, escapes: false, many: None };
        let searched = self.depth <= self.skim.names_depth_max;
        if self.next_byte() == Some(b'}') {
            return self.close();
        }
        loop {
            if self.next_byte() != Some(b'"') {
                return Err(self.unexpected());
            }
            let plain = !seen.escapes && seen.many.is_none();
            let quick = if searched && plain && !self.careful {
                self.skim.try_member(self.at, self.depth, &mut seen.marks)
            } else {
                None
            };
            let (name, value) = match quick {
                Some(member) => {
                    self.at = member.value.end;
                    let name = Text { raw: &self.bytes[member.name], escaped: false };
                    (name, &self.bytes[member.value])
                }
                None => self.member(&mut seen)?,
            };
            visit(name, value);
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.unexpected()),
            }
        }
        self.skim.names.truncate(seen.marks.base);
        self.close()
    }

    /// Passes a member from its name's opening quote.
    fn member(&mut self, seen: &mut Seen<'a>) -> Result<(Text<'a>, &'a [u8]), Fault> {
        let name_at = self.at;
        let name = self.string()?;
        let searched = self.depth <= self.skim.names_depth_max;
        if searched && self.repeats(seen, name) && self.skim.repeated.is_none() {
            self.skim.repeated = Some(name_at);
        }
        self.expect_byte(b':')?;
        Ok((name, self.value()?))
    }

    /// Passes an array, calling `each` with the cursor before every element; `each` passes
    /// exactly one value, or returns false to leave the cursor where it is and end the walk.
    ///
    /// # Errors
    /// The first fault met, also when the next value is not an array.
    pub fn elements(
        &mut self,
        mut each: impl FnMut(&mut Scan<'a>) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        self.open(b'[')?;
        if self.next_byte() == Some(b']') {
            return self.close();
        }
        loop {
            if !each(self)? {
                return Ok(());
            }
            match self.next_byte() {
                Some(b',') => self.at += 1,
                Some(b']') => return self.close(),
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Checks that only whitespace is left.
    ///
    /// # Errors
    /// [`Flaw::Trailing`] with the offset of the first other byte.
    pub fn finish(&mut self) -> Result<(), Fault> {
        match self.next_byte() {
            None => Ok(()),
            Some(byte) => Err(self.fault(Flaw::Trailing(byte))),
        }
    }

    fn fault(&self, flaw: Flaw) -> Fault {
        Fault { at: self.at, flaw }
    }

    fn unexpected(&self) -> Fault {
        match self.bytes.get(self.at) {
            Some(byte) => self.fault(Flaw::Unexpected(*byte)),
            None => self.fault(Flaw::End),
        }
    }

    #[inline]
    fn next_byte(&mut self) -> Option<u8> {
        self.at = past_space(self.bytes, self.at);
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn expect_byte(&mut self, wanted: u8) -> Result<(), Fault> {
        if self.next_byte() != Some(wanted) {
            return Err(self.unexpected());
        }
        self.at += 1;
        Ok(())
    }

    fn open(&mut self, bracket: u8) -> Result<(), Fault> {
        if self.next_byte() != Some(bracket) {
            return Err(self.unexpected());
        }
        if self.depth >= self.skim.depth_max {
            return Err(self.fault(Flaw::TooDeep(self.skim.depth_max)));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.depth -= 1;
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), Fault> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(word) {
            self.at += word.len();
            return Ok(());
        }
        let same = rest.iter().zip(word).take_while(|(a, b)| a == b).count();
        self.at += same;
        Err(self.unexpected())
    }

    fn number(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.bytes[self.at] == b'-' {
            self.at += 1;
        }
        let whole = self.digits();
        let leading_zero = whole > 1 && self.bytes[self.at - whole] == b'0';
        let mut fine = whole > 0 && !leading_zero;
        if fine && self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            fine = self.digits() > 0;
        }
        if fine && matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.bytes.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            fine = self.digits() > 0;
        }
        if fine { Ok(()) } else { Err(Fault { at: start, flaw: Flaw::Number }) }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        self.at - start
    }

    #[inline]
    fn string(&mut self) -> Result<Text<'a>, Fault> {
        let start = self.at + 1;
        let end = self.skim.next_odd(start);
        if self.bytes.get(end) == Some(&b'"') {
            self.at = end + 1;
            return Ok(Text { raw: &self.bytes[start..end], escaped: false });
        }
        self.string_slow(start, end)
    }

    /// The rest of a string from its first byte that is not plain ASCII.
    fn string_slow(&mut self, start: usize, from: usize) -> Result<Text<'a>, Fault> {
        let mut at = from;
        let mut escaped = false;
        loop {
            let flaw = match self.bytes.get(at) {
                None => Flaw::End,
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(Text { raw: &self.bytes[start..at], escaped });
                }
                Some(b'\\') => match text::escape_len(&self.bytes[at..]) {
                    Some(len) => {
                        escaped = true;
                        at = text::plain_end(self.bytes, at + len);
                        continue;
                    }
                    None => Flaw::Escape,
                },
                Some(byte) if *byte < 0x20 => Flaw::Control(*byte),
                Some(_) => {
                    let rest = &self.bytes[at..];
                    let run = rest.iter().position(|b| *b < 0x80).unwrap_or(rest.len());
                    match std::str::from_utf8(&rest[..run]) {
                        Ok(_) => {
                            at = text::plain_end(self.bytes, at + run);
                            continue;
                        }
                        Err(error) => {
                            at += error.valid_up_to();
                            Flaw::Utf8
                        }
                    }
                }
            };
            return Err(Fault { at, flaw });
        }
    }

    /// Whether the open object had a member of this name before; remembers the name.
    fn repeats(&mut self, seen: &mut Seen<'a>, name: Text<'a>) -> bool {
        if let Some(many) = &mut seen.many {
            return !many.insert(name.decode());
        }
        let mark = if name.escaped { u64::MAX } else { 1 << text::mark(name.raw) };
        let maybe = seen.marks.bits & mark != 0;
        seen.marks.bits |= mark;
        seen.escapes |= name.escaped;
        let known = &self.skim.names[seen.marks.base..];
        let found = maybe
            && if seen.escapes {
                known.iter().any(|k| Text::of(k).decode() == name.decode())
            } else {
                known.contains(&name.raw)
            };
        if known.len() == NAMES_MAX {
            let mut many: HashSet<Cow<'a, [u8]>, RandomState> =
                known.iter().map(|k| Text::of(k).decode()).collect();
            many.insert(name.decode());
            seen.many = Some(many);
        }
        self.skim.names.push(name.raw);
        found
    }
}

/// Checks that `bytes` are one JSON text without repeated member names and returns its value
/// without surrounding whitespace; the second part is the offset of a repeated name.
///
/// # Errors
/// The first fault met.
pub fn check(bytes: &[u8], depth_max: usize) -> Result<(&[u8], Option<usize>), Fault> {
    let mut scan = Scan::new(bytes, depth_max);
    let value = scan.document()?;
    Ok((value, scan.take_repeated()))
}
