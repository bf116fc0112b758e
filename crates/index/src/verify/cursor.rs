//! Reading JSON in one pass, with a cursor that never goes back.
//!
//! `wire::json::walk` skips a value to find its end and looks into it afterwards, so that each
//! level of nesting is one more pass over the bytes; receipts have four levels. Like there, the
//! bytes have been validated before: on others the cursor ends early or yields nonsense, which is
//! refused by whoever reads the values, but it never panics and always ends.

use wire::json::text::Text;

use super::fault::{Fault, FaultKind};
use super::fields::{Fields, Layout};

const ENDS: &str = "JSON that does not end here";

/// A place within raw JSON.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    raw: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(raw: &'a [u8]) -> Self {
        Self { raw, at: 0 }
    }

    /// Steps into the object that stands here.
    pub(super) fn open_object(&mut self) -> Result<(), Fault> {
        self.open(b'{', "an object")
    }

    fn open(&mut self, bracket: u8, allowed: &'static str) -> Result<(), Fault> {
        if self.peek() == Some(bracket) {
            self.at += 1;
            return Ok(());
        }
        let value = self.value()?;
        if value == b"null" {
            Err(Fault::missing(allowed))
        } else {
            Err(Fault::form(value, allowed))
        }
    }

    /// Reads each element of the array that stands here, which `read` must step over; it is told
    /// the element's index, which is put before the field of its fault.
    #[inline]
    pub(super) fn elements(
        &mut self,
        mut read: impl FnMut(usize, &mut Self) -> Result<(), Fault>,
    ) -> Result<usize, Fault> {
        self.open(b'[', "an array")?;
        let mut count = 0;
        while self.more()? {
            read(count, self).map_err(|fault| fault.at(count))?;
            count += 1;
        }
        Ok(count)
    }

    /// Whether another element or member follows, whose start is the new place; otherwise the new
    /// place is after the closing bracket.
    #[inline]
    fn more(&mut self) -> Result<bool, Fault> {
        match self.peek() {
            Some(b']' | b'}') => {
                self.at += 1;
                Ok(false)
            }
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(_) => Ok(true),
            None => Err(self.broken(self.at)),
        }
    }

    /// The value that stands here, raw; never empty.
    #[inline]
    pub(super) fn value(&mut self) -> Result<&'a [u8], Fault> {
        let first = self.peek();
        let start = self.at;
        let end = match first {
            Some(b'"') => string_end(self.raw, start + 1).map(|(end, _)| end + 1),
            Some(b'{' | b'[') => nested_end(self.raw, start),
            Some(_) => literal_end(self.raw, start),
            None => None,
        };
        let Some(end) = end else { return Err(self.broken(start)) };
        self.at = end;
        Ok(&self.raw[start..end])
    }

    /// The next member whose name the layout knows, with the new place at its value, which the
    /// caller must read and may keep in `fields`; none at the end of the object. Other members are
    /// stepped over.
    ///
    /// # Errors
    ///
    /// A known name that stands twice, also if one of the two is written with escapes; and a name
    /// that is a known one but for upper and lower case. Readers differ about which of two such
    /// members counts (Go's `encoding/json` ignores case and takes the last), so that a check of
    /// one of them would say nothing about the other.
    #[inline]
    pub(super) fn member<const N: usize>(
        &mut self,
        fields: &mut Fields<'a, N>,
        layout: &mut Layout<N>,
    ) -> Result<Option<usize>, Fault> {
        while self.more()? {
            let (name, escaped) = self.name()?;
            let place = if escaped {
                layout.find(&Text { raw: name, escaped }.decode())?
            } else {
                layout.place(fields.turn(), name)?
            };
            let Some(place) = place else {
                self.value()?;
                continue;
            };
            if !fields.mark(place) {
                return Err(Fault::from(FaultKind::Duplicate).of(layout.name(place)));
            }
            return Ok(Some(place));
        }
        Ok(None)
    }

    /// The members of the object that stands here.
    #[inline]
    pub(super) fn object<const N: usize>(
        &mut self,
        layout: &mut Layout<N>,
    ) -> Result<Fields<'a, N>, Fault> {
        let mut fields = layout.fields();
        self.open_object()?;
        while let Some(place) = self.member(&mut fields, layout)? {
            fields.keep(place, self.value()?);
        }
        Ok(fields)
    }

    #[inline]
    fn name(&mut self) -> Result<(&'a [u8], bool), Fault> {
        let quote = self.peek();
        let start = self.at + 1;
        let end = if quote == Some(b'"') { string_end(self.raw, start) } else { None };
        let Some((end, escaped)) = end else { return Err(self.broken(self.at)) };
        self.at = end + 1;
        if self.peek() != Some(b':') {
            return Err(self.broken(self.at));
        }
        self.at += 1;
        Ok((&self.raw[start..end], escaped))
    }

    /// The next byte that is no white space, if any; it stays.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.raw.get(self.at)?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    #[cold]
    fn broken(&self, at: usize) -> Fault {
        Fault::form(self.raw.get(at..).unwrap_or_default(), ENDS)
    }
}

/// The place of the closing quote of a string whose content starts at `at`, and whether the string
/// has escapes.
#[inline]
fn string_end(raw: &[u8], at: usize) -> Option<(usize, bool)> {
    let end = quote_or_backslash(raw, at)?;
    if raw[end] == b'"' { Some((end, false)) } else { escaped_end(raw, end).map(|end| (end, true)) }
}

#[cold]
fn escaped_end(raw: &[u8], mut at: usize) -> Option<usize> {
    while raw[at] == b'\\' {
        at = quote_or_backslash(raw, at + 2)?;
    }
    Some(at)
}

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// Names and hashes end within this many words, which takes less time than a call of `memchr`.
const WORDS: usize = 10;

/// The place of the first quote or backslash at or after `at`. Eight bytes at a time: subtracting
/// from a word borrows only past the first hit, so the lowest flagged byte is exact (Hacker's
/// Delight, 2nd ed., section 6-1).
#[inline]
fn quote_or_backslash(raw: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..WORDS {
        let Some(word) = raw.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
        let x = u64::from_le_bytes(*word);
        let quote = x ^ (LOW * b'"' as u64);
        let backslash = x ^ (LOW * b'\\' as u64);
        let hits =
            (quote.wrapping_sub(LOW) & !quote | backslash.wrapping_sub(LOW) & !backslash) & HIGH;
        if hits != 0 {
            return Some(at + (hits.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    memchr::memchr2(b'"', b'\\', raw.get(at..)?).map(|offset| at + offset)
}

fn nested_end(raw: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        match raw.get(at)? {
            b'"' => at = string_end(raw, at + 1)?.0,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

fn literal_end(raw: &[u8], at: usize) -> Option<usize> {
    let rest = &raw[at..];
    let len = rest
        .iter()
        .position(|b| matches!(b, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t'))
        .unwrap_or(rest.len());
    (len > 0).then_some(at + len)
}
