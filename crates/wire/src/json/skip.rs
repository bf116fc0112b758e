//! Passing a valid JSON value quickly: the same grammar as `json.rs`, without slices, names or
//! faults.
//!
//! Large answers are mostly values that nobody looks into. Here they cost a few instructions per
//! member; whatever is not valid is left to the cursor of `json.rs`, which goes over it again and
//! says what is wrong. So this never accepts what the cursor refuses, which a test holds.

use super::text;

/// Where the value that starts at `at` ends; none if it is not valid, or nested more than `depth`
/// levels deep. No white space is skipped before it.
pub(super) fn end_of_value(bytes: &[u8], at: usize, depth: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' => end_of_string(bytes, at + 1),
        b'{' => end_of_object(bytes, at + 1, depth.checked_sub(1)?),
        b'[' => end_of_array(bytes, at + 1, depth.checked_sub(1)?),
        b't' => literal(bytes, at, b"true"),
        b'f' => literal(bytes, at, b"false"),
        b'n' => literal(bytes, at, b"null"),
        _ => end_of_number(bytes, at),
    }
}

fn end_of_object(bytes: &[u8], at: usize, depth: usize) -> Option<usize> {
    let mut at = past_space(bytes, at);
    if bytes.get(at) == Some(&b'}') {
        return Some(at + 1);
    }
    loop {
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        at = past_space(bytes, end_of_string(bytes, at + 1)?);
        if bytes.get(at) != Some(&b':') {
            return None;
        }
        at = past_space(bytes, at + 1);
        at = past_space(bytes, end_of_value(bytes, at, depth)?);
        match bytes.get(at)? {
            b',' => at = past_space(bytes, at + 1),
            b'}' => return Some(at + 1),
            _ => return None,
        }
    }
}

fn end_of_array(bytes: &[u8], at: usize, depth: usize) -> Option<usize> {
    let mut at = past_space(bytes, at);
    if bytes.get(at) == Some(&b']') {
        return Some(at + 1);
    }
    loop {
        at = past_space(bytes, end_of_value(bytes, at, depth)?);
        match bytes.get(at)? {
            b',' => at = past_space(bytes, at + 1),
            b']' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// The end of a string whose opening quote stands before `at`.
#[inline]
fn end_of_string(bytes: &[u8], at: usize) -> Option<usize> {
    let end = text::plain_end(bytes, at);
    if bytes.get(end) == Some(&b'"') { Some(end + 1) } else { end_of_odd_string(bytes, end) }
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

#[inline]
fn past_space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests;
