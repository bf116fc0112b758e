//! Compares two JSON-RPC responses and returns the first difference that a plan does not allow.
//!
//! The order of members and white space are ignored. Numbers are compared exactly by value,
//! whatever their size and notation. Only the codes of errors are compared, because each client
//! words its own messages. JSON pointers (RFC 6901) are relative to the result; `*` matches any
//! index or name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use wire::response::{Outcome, parse_response};

pub mod all;

#[cfg(test)]
mod tests;

/// Maximum nesting of arrays and objects that are parsed. Deeper ones are compared as text.
const DEPTH_MAX: usize = 100;
/// Maximum number of elements of unordered arrays that are matched pairwise, because that takes
/// quadratic time. Longer arrays are compared by canonical text, without allowed differences.
const MATCHED_MAX: usize = 256;

/// Differences that a plan allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllowedDifferences {
    /// Pointers of ignored values.
    pub ignore: Vec<String>,
    /// Two JSON numbers or hexadecimal quantities are equal if they differ by at most this share.
    pub tolerance: f64,
    /// Pointers of unordered arrays.
    pub sets: Vec<String>,
}

/// The first value that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonDifference {
    /// JSON pointer relative to the result; empty for the whole result.
    pub pointer: String,
    /// The first response's value.
    pub left: Side,
    /// The second response's value.
    pub right: Side,
}

/// One of two values that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The value as JSON text.
    Json(String),
    /// The value is missing.
    Nothing,
    /// No element of an unordered array equals the element of the other array.
    NothingLike,
    /// The length of an array; the other array has a different length.
    Elements(usize),
}

impl Side {
    /// Returns the side of a value that may be missing.
    fn of(value: Option<&RawValue>) -> Side {
        value.map_or(Side::Nothing, |value| Side::Json(value.get().to_owned()))
    }
}

/// Compares two bodies that hold one JSON-RPC response each. Returns the first difference, if any.
pub fn difference(
    left: &[u8],
    right: &[u8],
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let parse = |body| parse_response(body, wire::json::DEPTH_CEILING).map(|answer| answer.outcome);
    match (parse(left), parse(right)) {
        (Ok(Outcome::Result(left)), Ok(Outcome::Result(right))) => {
            values(text(left), text(right), "", 0, allowed)
        }
        (Ok(Outcome::Error { code, .. }), Ok(Outcome::Error { code: right, .. })) => {
            (code != right).then(|| json_difference("", &code.to_string(), &right.to_string()))
        }
        (left_outcome, right_outcome) => {
            let same = left_outcome == right_outcome;
            (!same).then(|| json_difference("", &lossy(left), &lossy(right)))
        }
    }
}

/// `parse_response` has validated the text as UTF-8.
fn text(raw: &[u8]) -> &str {
    std::str::from_utf8(raw).unwrap_or_default()
}

fn lossy(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).into_owned()
}

fn json_difference(pointer: &str, left: &str, right: &str) -> JsonDifference {
    sides(pointer, Side::Json(left.to_owned()), Side::Json(right.to_owned()))
}

fn sides(pointer: &str, left: Side, right: Side) -> JsonDifference {
    JsonDifference { pointer: pointer.to_owned(), left, right }
}

fn values(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let (left, right) = (left.trim(), right.trim());
    if left == right || matches(&allowed.ignore, pointer) {
        return None;
    }
    let kinds = (kind(left), kind(right));
    match kinds {
        ('{', '{') if depth < DEPTH_MAX => objects(left, right, pointer, depth, allowed),
        ('[', '[') if depth < DEPTH_MAX => arrays(left, right, pointer, depth, allowed),
        ('"', '"') => {
            let (a, b) = (string(left), string(right));
            let same = a == b || quantities(&a, &b, allowed.tolerance);
            (!same).then(|| json_difference(pointer, left, right))
        }
        ('0', '0') => (!numbers(left, right, allowed.tolerance))
            .then(|| json_difference(pointer, left, right)),
        _ => Some(json_difference(pointer, left, right)),
    }
}

/// Returns the first character of a value, or `0` for any number.
fn kind(value: &str) -> char {
    match value.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => '0',
        Some(byte) => char::from(*byte),
        None => ' ',
    }
}

fn string(raw: &str) -> String {
    serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
}

type Members<'a> = BTreeMap<String, &'a RawValue>;
/// The pointer of a member, and its values in two objects.
type MemberPair<'a> = (String, Option<&'a RawValue>, Option<&'a RawValue>);

/// Returns the members of two objects in the order of their names; `None` if a text is no object.
fn member_pairs<'a>(left: &'a str, right: &'a str, pointer: &str) -> Option<Vec<MemberPair<'a>>> {
    let parse = |raw| serde_json::from_str::<Members<'a>>(raw).ok();
    let (left, right) = (parse(left)?, parse(right)?);
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let pair = |name: &String| {
        let member = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
        (member, left.get(name).copied(), right.get(name).copied())
    };
    Some(names.into_iter().map(pair).collect())
}

fn objects(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let Some(members) = member_pairs(left, right, pointer) else {
        return Some(json_difference(pointer, left, right));
    };
    members.into_iter().find_map(|(member, a, b)| match (a, b) {
        (Some(a), Some(b)) => values(a.get(), b.get(), &member, depth + 1, allowed),
        (a, b) => {
            let is_ignored = matches(&allowed.ignore, &member);
            (!is_ignored).then(|| sides(&member, Side::of(a), Side::of(b)))
        }
    })
}

fn arrays(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let parse = |raw| serde_json::from_str::<Vec<&RawValue>>(raw).ok();
    let (Some(a), Some(b)) = (parse(left), parse(right)) else {
        return Some(json_difference(pointer, left, right));
    };
    if a.len() != b.len() {
        return Some(sides(pointer, Side::Elements(a.len()), Side::Elements(b.len())));
    }
    if matches(&allowed.sets, pointer) {
        return set(&a, &b, pointer, depth, allowed);
    }
    a.iter().zip(&b).enumerate().find_map(|(index, (a, b))| {
        values(a.get(), b.get(), &format!("{pointer}/{index}"), depth + 1, allowed)
    })
}

/// Compares unordered arrays. Each element of one array needs an equal element in the other.
fn set(
    a: &[&RawValue],
    b: &[&RawValue],
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let element_pointer = |index: usize| format!("{pointer}/{index}");
    if a.len() > MATCHED_MAX {
        let sorted = |values: &[&RawValue]| {
            let mut texts: Vec<String> = values.iter().map(|v| canonical(v.get(), depth)).collect();
            texts.sort_unstable();
            texts
        };
        let (a, b) = (sorted(a), sorted(b));
        let mismatch = a.iter().zip(&b).position(|(a, b)| a != b)?;
        return Some(json_difference(pointer, &a[mismatch], &b[mismatch]));
    }
    let mut unmatched: Vec<&RawValue> = b.to_vec();
    for (index, value) in a.iter().enumerate() {
        let is_like = |right: &&RawValue| {
            values(value.get(), right.get(), &element_pointer(index), depth + 1, allowed).is_none()
        };
        match unmatched.iter().position(is_like) {
            Some(matched) => _ = unmatched.swap_remove(matched),
            None => {
                let value = Side::Json(value.get().to_owned());
                return Some(sides(&element_pointer(index), value, Side::NothingLike));
            }
        }
    }
    None
}

/// Returns the canonical text of a value: sorted members, no white space, numbers by value.
fn canonical(raw: &str, depth: usize) -> String {
    let raw = raw.trim();
    match kind(raw) {
        '{' if depth < DEPTH_MAX => match serde_json::from_str::<Members<'_>>(raw) {
            Ok(members) => {
                let parts: Vec<_> = members
                    .iter()
                    .map(|(name, value)| format!("{name:?}:{}", canonical(value.get(), depth + 1)))
                    .collect();
                format!("{{{}}}", parts.join(","))
            }
            Err(_) => raw.to_owned(),
        },
        '[' if depth < DEPTH_MAX => match serde_json::from_str::<Vec<&RawValue>>(raw) {
            Ok(values) => {
                let parts: Vec<_> =
                    values.iter().map(|value| canonical(value.get(), depth + 1)).collect();
                format!("[{}]", parts.join(","))
            }
            Err(_) => raw.to_owned(),
        },
        '"' => format!("{:?}", string(raw)),
        '0' => exact(raw).map_or_else(|| raw.to_owned(), |number| format!("{number:?}")),
        _ => raw.to_owned(),
    }
}

/// A decimal number: sign, digits without leading and trailing zeros, and the power of ten of the
/// last digit.
#[derive(Debug, PartialEq, Eq)]
struct Exact {
    negative: bool,
    digits: String,
    exponent: i64,
}

fn exact(raw: &str) -> Option<Exact> {
    let (negative, unsigned) = match raw.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, raw),
    };
    let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = format!("{integer}{fraction}");
    let trimmed = all_digits.trim_end_matches('0');
    let zeros = i64::try_from(all_digits.len() - trimmed.len()).ok()?;
    let digits = trimmed.trim_start_matches('0').to_owned();
    if digits.is_empty() {
        return Some(Exact { negative: false, digits, exponent: 0 });
    }
    let exponent = power.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(zeros)?;
    Some(Exact { negative, digits, exponent })
}

fn numbers(left: &str, right: &str, tolerance: f64) -> bool {
    let same = match (exact(left), exact(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    };
    let within_tolerance = || match (left.parse(), right.parse()) {
        (Ok(left), Ok(right)) => within(left, right, tolerance),
        _ => false,
    };
    same || within_tolerance()
}

/// Returns true if two texts are hexadecimal quantities within the tolerance.
fn quantities(left: &str, right: &str, tolerance: f64) -> bool {
    let parse = |text: &str| {
        let digits = text.strip_prefix("0x").filter(|digits| (1..=32).contains(&digits.len()))?;
        Some(u128::from_str_radix(digits, 16).ok()? as f64)
    };
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) if tolerance > 0.0 => within(left, right, tolerance),
        _ => false,
    }
}

fn within(left: f64, right: f64, tolerance: f64) -> bool {
    tolerance > 0.0 && (left - right).abs() <= tolerance * left.abs().max(right.abs())
}

/// Returns true if one of the patterns matches the pointer.
fn matches(patterns: &[String], pointer: &str) -> bool {
    patterns.iter().any(|pattern| {
        let (mut segments, mut patterns_left) = (pointer.split('/'), pattern.split('/'));
        loop {
            match (segments.next(), patterns_left.next()) {
                (None, None) => return true,
                (Some(segment), Some(pattern)) if pattern == "*" || segment == pattern => {}
                _ => return false,
            }
        }
    })
}
