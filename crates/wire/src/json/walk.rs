//! Iterators over the members and elements of validated JSON.
//!
//! They are faster than the scanner because they validate nothing. On invalid JSON they end early
//! or return wrong slices, but they never panic and always end.

use std::ops::Range;

use super::string::{self, JsonString};

/// Iterates over the spans of the elements of a raw array. Other values have no elements.
pub fn spans(raw: &[u8]) -> Spans<'_> {
    Spans { raw, at: opening(raw, b'[') }
}

/// Iterates over the raw elements of a raw array. Other values have no elements.
pub fn elements(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    spans(raw).map(|span| &raw[span])
}

/// Iterates over the members of a raw object: the name, and the span of the value. Other values
/// have no members.
pub fn member_spans(raw: &[u8]) -> MemberSpans<'_> {
    MemberSpans { raw, at: opening(raw, b'{') }
}

/// Iterates over the members of a raw object: the name, and the raw value. Other values have no
/// members.
pub fn members(raw: &[u8]) -> impl Iterator<Item = (JsonString<'_>, &[u8])> {
    member_spans(raw).map(|(name, span)| (name, &raw[span]))
}

/// Returns the raw value of the member with this name.
pub fn member<'a>(raw: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    members(raw).find(|(name, _)| *name.decode() == *wanted.as_bytes()).map(|(_, value)| value)
}

/// Returns the rest of a raw object, starting at the value of this member. The end of the value is
/// not searched, which saves a pass for callers that iterate over the value.
pub fn from_member<'a>(raw: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut walk = member_spans(raw);
    loop {
        let (name, start) = walk.name()?;
        if *name.decode() == *wanted.as_bytes() {
            return raw.get(start..);
        }
        walk.value(start)?;
    }
}

/// Returns the raw values of the members with these names, in the order of `names`. A missing
/// member is `None`. The search stops when all members are found.
pub fn fields_of<'a, const N: usize>(raw: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut found = [None; N];
    let mut missing = N;
    if missing == 0 {
        return found;
    }
    for (name, value) in members(raw) {
        let name = name.decode();
        let Some(at) = names.iter().position(|wanted| *name == *wanted.as_bytes()) else {
            continue;
        };
        if found[at].replace(value).is_none() {
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    found
}

/// Returns the first and the last element of a raw array. Returns `None` for an empty array and for
/// other values.
pub fn first_and_last(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut walk = elements(raw);
    let first = walk.next()?;
    Some((first, walk.last().unwrap_or(first)))
}

/// Iterator of [`spans`].
#[derive(Debug, Clone)]
pub struct Spans<'a> {
    raw: &'a [u8],
    /// The offset at which the next element may start; `None` at the end.
    at: Option<usize>,
}

impl Iterator for Spans<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = skip_space(self.raw, self.at.take()?);
        let end = skip_value(self.raw, start)?;
        self.at = after_comma(self.raw, end);
        Some(start..end)
    }
}

/// Iterator of [`member_spans`].
#[derive(Debug, Clone)]
pub struct MemberSpans<'a> {
    raw: &'a [u8],
    at: Option<usize>,
}

impl<'a> MemberSpans<'a> {
    /// Returns the next name and the offset of the member's value.
    #[inline]
    fn name(&mut self) -> Option<(JsonString<'a>, usize)> {
        let name_start = skip_space(self.raw, self.at.take()?);
        if self.raw.get(name_start) != Some(&b'"') {
            return None;
        }
        let (name_end, escaped) = skip_string(self.raw, name_start)?;
        let colon = skip_space(self.raw, name_end);
        let start = skip_space(self.raw, colon + 1);
        Some((JsonString { raw: &self.raw[name_start + 1..name_end - 1], escaped }, start))
    }

    /// Skips the value at this offset and returns its end.
    #[inline]
    fn value(&mut self, start: usize) -> Option<usize> {
        let end = skip_value(self.raw, start)?;
        self.at = after_comma(self.raw, end);
        Some(end)
    }
}

impl<'a> Iterator for MemberSpans<'a> {
    type Item = (JsonString<'a>, Range<usize>);

    fn next(&mut self) -> Option<(JsonString<'a>, Range<usize>)> {
        let (name, start) = self.name()?;
        let end = self.value(start)?;
        Some((name, start..end))
    }
}

fn opening(raw: &[u8], bracket: u8) -> Option<usize> {
    let at = skip_space(raw, 0);
    (raw.get(at) == Some(&bracket)).then_some(at + 1)
}

fn after_comma(raw: &[u8], at: usize) -> Option<usize> {
    let at = skip_space(raw, at);
    (raw.get(at) == Some(&b',')).then_some(at + 1)
}

fn skip_space(raw: &[u8], mut at: usize) -> usize {
    while matches!(raw.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Returns the offset after the value at `at`, or `None` if there is no value.
fn skip_value(raw: &[u8], at: usize) -> Option<usize> {
    match raw.get(at)? {
        b'"' => skip_string(raw, at).map(|(end, _)| end),
        b'{' | b'[' => skip_nested(raw, at),
        _ => skip_literal(raw, at),
    }
}

/// Returns the offset after the number or literal at `at`, or `None` if there is neither.
#[inline]
pub(super) fn skip_literal(raw: &[u8], at: usize) -> Option<usize> {
    let rest = &raw[at..];
    let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
    let len = rest.iter().position(ends).unwrap_or(rest.len());
    (len > 0).then_some(at + len)
}

fn skip_nested(raw: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        match raw.get(at)? {
            b'"' => {
                at = skip_string(raw, at)?.0;
                continue;
            }
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

/// Returns the offset after the closing quote of a string, and true if the string has escapes. `at`
/// is the offset of the opening quote. Returns `None` if the string does not end.
#[inline]
pub fn skip_string(raw: &[u8], at: usize) -> Option<(usize, bool)> {
    let mut at = at + 1;
    let mut escaped = false;
    loop {
        at = string::find_special(raw, at);
        match raw.get(at)? {
            b'"' => return Some((at + 1, escaped)),
            b'\\' => {
                escaped = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
}
