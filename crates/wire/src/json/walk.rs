//! Iterators over the members and elements of validated JSON.
//!
//! The iterators are faster than the scanner because they validate nothing. On invalid JSON they
//! end early or return wrong slices, but they never panic and always end. A span is the byte range
//! of a value within the raw JSON.

use std::ops::Range;

use super::string::{self, JsonString};

/// Iterates over the spans of the elements of a raw array. Other values have no elements.
pub fn spans(raw: &[u8]) -> Spans<'_> {
    Spans { raw, offset: offset_after_opening(raw, b'[') }
}

/// Iterates over the raw elements of a raw array. Other values have no elements.
pub fn elements(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    spans(raw).map(|span| &raw[span])
}

/// Iterates over the members of a raw object: the name, and the span of the value. Other values
/// have no members.
pub fn member_spans(raw: &[u8]) -> MemberSpans<'_> {
    MemberSpans { raw, offset: offset_after_opening(raw, b'{') }
}

/// Iterates over the members of a raw object: the name, and the raw value. Other values have no
/// members.
pub fn members(raw: &[u8]) -> impl Iterator<Item = (JsonString<'_>, &[u8])> {
    member_spans(raw).map(|(name, span)| (name, &raw[span]))
}

/// Returns the raw value of the member with this name.
pub fn member<'a>(raw: &'a [u8], member: &str) -> Option<&'a [u8]> {
    members(raw).find(|(name, _)| *name.decode() == *member.as_bytes()).map(|(_, value)| value)
}

/// Returns the rest of a raw object, starting at the value of this member, or `None` if there is no
/// such member. The function does not search for the end of the value. This saves a pass for
/// callers that iterate over the value.
pub fn from_member<'a>(raw: &'a [u8], member: &str) -> Option<&'a [u8]> {
    let mut members = member_spans(raw);
    loop {
        let (name, start) = members.read_name()?;
        if *name.decode() == *member.as_bytes() {
            return raw.get(start..);
        }
        members.skip_value(start)?;
    }
}

/// Returns the raw values of the members with these names, in the order of `names`. A missing
/// member is `None`. The search stops when all members are found.
pub fn fields_of<'a, const N: usize>(raw: &'a [u8], names: [&str; N]) -> [Option<&'a [u8]>; N] {
    let mut values = [None; N];
    let mut missing_count = N;
    for (name, value) in members(raw) {
        let name = name.decode();
        let Some(index) = names.iter().position(|wanted| *name == *wanted.as_bytes()) else {
            continue;
        };
        if values[index].replace(value).is_none() {
            missing_count -= 1;
            if missing_count == 0 {
                break;
            }
        }
    }
    values
}

/// Returns the first and the last element of a raw array. Returns `None` for an empty array and for
/// other values.
pub fn first_and_last(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut elements = elements(raw);
    let first = elements.next()?;
    Some((first, elements.last().unwrap_or(first)))
}

/// The iterator that [`spans`] returns.
#[derive(Debug, Clone)]
pub struct Spans<'a> {
    raw: &'a [u8],
    /// The offset at which the next element may start; `None` at the end.
    offset: Option<usize>,
}

impl Iterator for Spans<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = skip_space(self.raw, self.offset.take()?);
        let end = skip_value(self.raw, start)?;
        self.offset = offset_after_comma(self.raw, end);
        Some(start..end)
    }
}

/// The iterator that [`member_spans`] returns.
#[derive(Debug, Clone)]
pub struct MemberSpans<'a> {
    raw: &'a [u8],
    /// The offset at which the next member may start; `None` at the end.
    offset: Option<usize>,
}

impl<'a> MemberSpans<'a> {
    /// Returns the next name and the offset of the member's value. The next call must be
    /// [`MemberSpans::skip_value`].
    #[inline]
    fn read_name(&mut self) -> Option<(JsonString<'a>, usize)> {
        let name_start = skip_space(self.raw, self.offset.take()?);
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
    fn skip_value(&mut self, start: usize) -> Option<usize> {
        let end = skip_value(self.raw, start)?;
        self.offset = offset_after_comma(self.raw, end);
        Some(end)
    }
}

impl<'a> Iterator for MemberSpans<'a> {
    type Item = (JsonString<'a>, Range<usize>);

    fn next(&mut self) -> Option<(JsonString<'a>, Range<usize>)> {
        let (name, start) = self.read_name()?;
        let end = self.skip_value(start)?;
        Some((name, start..end))
    }
}

/// Returns the offset after the opening bracket, or `None` if the raw value does not start with
/// this bracket.
fn offset_after_opening(raw: &[u8], bracket: u8) -> Option<usize> {
    let offset = skip_space(raw, 0);
    (raw.get(offset) == Some(&bracket)).then_some(offset + 1)
}

/// Returns the offset after the comma at `offset`, or `None` if no comma follows.
fn offset_after_comma(raw: &[u8], offset: usize) -> Option<usize> {
    let offset = skip_space(raw, offset);
    (raw.get(offset) == Some(&b',')).then_some(offset + 1)
}

fn skip_space(raw: &[u8], mut offset: usize) -> usize {
    while matches!(raw.get(offset), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        offset += 1;
    }
    offset
}

/// Returns the offset after the value at `offset`, or `None` if there is no value.
fn skip_value(raw: &[u8], offset: usize) -> Option<usize> {
    match raw.get(offset)? {
        b'"' => skip_string(raw, offset).map(|(end, _)| end),
        b'{' | b'[' => skip_nested(raw, offset),
        _ => skip_literal(raw, offset),
    }
}

/// Returns the offset after the number or literal at `offset`, or `None` if there is neither.
#[inline]
pub(super) fn skip_literal(raw: &[u8], offset: usize) -> Option<usize> {
    let remaining = &raw[offset..];
    let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
    let length = remaining.iter().position(is_end).unwrap_or(remaining.len());
    (length > 0).then_some(offset + length)
}

/// Returns the offset after the array or object at `offset`, or `None` if it does not end.
fn skip_nested(raw: &[u8], mut offset: usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        match raw.get(offset)? {
            b'"' => {
                offset = skip_string(raw, offset)?.0;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(offset + 1);
                }
            }
            _ => {}
        }
        offset += 1;
    }
}

/// Returns the offset after the closing quote of a string, and true if the string has escapes.
/// `offset` is the offset of the opening quote. Returns `None` if the string does not end.
#[inline]
pub fn skip_string(raw: &[u8], offset: usize) -> Option<(usize, bool)> {
    let mut offset = offset + 1;
    let mut escaped = false;
    loop {
        offset = string::find_special(raw, offset);
        match raw.get(offset)? {
            b'"' => return Some((offset + 1, escaped)),
            b'\\' => {
                escaped = true;
                offset += 2;
            }
            _ => offset += 1,
        }
    }
}
