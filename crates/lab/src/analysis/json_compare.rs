//! Compares two JSON-RPC responses and returns the first difference that a plan does not allow.
//!
//! The order of members and white space are ignored. Numbers are compared exactly by value,
//! whatever their size and notation. Only the codes of errors are compared, because each client
//! words its own messages. JSON pointers (RFC 6901) are relative to the result; `*` matches any
//! index or name.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use wire::response::{Outcome, parse_response};

#[cfg(test)]
mod tests;

/// Maximum nesting of arrays and objects that are parsed. Deeper ones are compared as text.
const DEPTH_MAX: usize = 100;
/// Maximum number of elements of unordered arrays that are matched pairwise with a tolerance,
/// because that takes quadratic time. Longer arrays are compared by canonical text.
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
    pub one: Side,
    /// The second response's value.
    pub other: Side,
}

/// One of two values that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The value as JSON text.
    Json(String),
    /// The value is missing.
    Nothing,
    /// A set has no element that equals the other set's element.
    NothingLike,
    /// The length of an array; the other array has a different length.
    Elements(usize),
}

/// Compares two bodies that hold one JSON-RPC response each. Returns the first difference, if any.
pub fn difference(
    one: &[u8],
    other: &[u8],
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let read = |body| parse_response(body, wire::json::DEPTH_CEILING).map(|answer| answer.outcome);
    match (read(one), read(other)) {
        (Ok(Outcome::Result(one)), Ok(Outcome::Result(other))) => {
            values(text(one), text(other), "", 0, allowed)
        }
        (Ok(Outcome::Error { code, .. }), Ok(Outcome::Error { code: other, .. })) => {
            (code != other).then(|| differs("", &code.to_string(), &other.to_string()))
        }
        (one_read, other_read) => {
            let same = one_read == other_read;
            (!same).then(|| differs("", &lossy(one), &lossy(other)))
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

fn differs(pointer: &str, one: &str, other: &str) -> JsonDifference {
    sides(pointer, Side::Json(one.to_owned()), Side::Json(other.to_owned()))
}

fn sides(pointer: &str, one: Side, other: Side) -> JsonDifference {
    JsonDifference { pointer: pointer.to_owned(), one, other }
}

fn values(
    one: &str,
    other: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let (one, other) = (one.trim(), other.trim());
    if one == other || matches(&allowed.ignore, pointer) {
        return None;
    }
    let kinds = (kind(one), kind(other));
    match kinds {
        ('{', '{') if depth < DEPTH_MAX => objects(one, other, pointer, depth, allowed),
        ('[', '[') if depth < DEPTH_MAX => arrays(one, other, pointer, depth, allowed),
        ('"', '"') => {
            let (a, b) = (string(one), string(other));
            let same = a == b || quantities(&a, &b, allowed.tolerance);
            (!same).then(|| differs(pointer, one, other))
        }
        ('0', '0') => {
            (!numbers(one, other, allowed.tolerance)).then(|| differs(pointer, one, other))
        }
        _ => Some(differs(pointer, one, other)),
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

fn objects(
    one: &str,
    other: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let read = |raw| serde_json::from_str::<Members<'_>>(raw).ok();
    let (Some(a), Some(b)) = (read(one), read(other)) else {
        return Some(differs(pointer, one, other));
    };
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    for name in names {
        let member = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
        let side = |value: Option<&&RawValue>| {
            value.map_or(Side::Nothing, |value| Side::Json(value.get().to_owned()))
        };
        match (a.get(name), b.get(name)) {
            (Some(a), Some(b)) => {
                let found = values(a.get(), b.get(), &member, depth + 1, allowed);
                if found.is_some() {
                    return found;
                }
            }
            (a, b) if !matches(&allowed.ignore, &member) => {
                return Some(sides(&member, side(a), side(b)));
            }
            _ => {}
        }
    }
    None
}

fn arrays(
    one: &str,
    other: &str,
    pointer: &str,
    depth: usize,
    allowed: &AllowedDifferences,
) -> Option<JsonDifference> {
    let read = |raw| serde_json::from_str::<Vec<&RawValue>>(raw).ok();
    let (Some(a), Some(b)) = (read(one), read(other)) else {
        return Some(differs(pointer, one, other));
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
    let place = |index: usize| format!("{pointer}/{index}");
    if a.len() > MATCHED_MAX {
        let sorted = |values: &[&RawValue]| {
            let mut texts: Vec<String> = values.iter().map(|v| canonical(v.get(), depth)).collect();
            texts.sort_unstable();
            texts
        };
        let (a, b) = (sorted(a), sorted(b));
        let first = a.iter().zip(&b).position(|(a, b)| a != b)?;
        return Some(differs(pointer, &a[first], &b[first]));
    }
    let mut free: Vec<&RawValue> = b.to_vec();
    for (index, value) in a.iter().enumerate() {
        let like = |other: &&RawValue| {
            values(value.get(), other.get(), &place(index), depth + 1, allowed).is_none()
        };
        match free.iter().position(like) {
            Some(found) => _ = free.swap_remove(found),
            None => {
                let value = Side::Json(value.get().to_owned());
                return Some(sides(&place(index), value, Side::NothingLike));
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
    let (negative, rest) = match raw.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, raw),
    };
    let (mantissa, power) = match rest.split_once(['e', 'E']) {
        Some((mantissa, power)) => (mantissa, power.parse::<i64>().ok()?),
        None => (rest, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{part}");
    let trimmed = all.trim_end_matches('0');
    let zeros = i64::try_from(all.len() - trimmed.len()).ok()?;
    let digits = trimmed.trim_start_matches('0').to_owned();
    if digits.is_empty() {
        return Some(Exact { negative: false, digits, exponent: 0 });
    }
    let exponent = power.checked_sub(i64::try_from(part.len()).ok()?)?.checked_add(zeros)?;
    Some(Exact { negative, digits, exponent })
}

fn numbers(one: &str, other: &str, tolerance: f64) -> bool {
    let same = match (exact(one), exact(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    };
    let near = || match (one.parse(), other.parse()) {
        (Ok(one), Ok(other)) => within(one, other, tolerance),
        _ => false,
    };
    same || near()
}

/// Returns true if two texts are hexadecimal quantities within the tolerance.
fn quantities(one: &str, other: &str, tolerance: f64) -> bool {
    let read = |text: &str| {
        let digits = text.strip_prefix("0x").filter(|digits| (1..=32).contains(&digits.len()))?;
        Some(u128::from_str_radix(digits, 16).ok()? as f64)
    };
    match (read(one), read(other)) {
        (Some(one), Some(other)) if tolerance > 0.0 => within(one, other, tolerance),
        _ => false,
    }
}

fn within(one: f64, other: f64, tolerance: f64) -> bool {
    tolerance > 0.0 && (one - other).abs() <= tolerance * one.abs().max(other.abs())
}

/// Returns true if one of the patterns matches the pointer.
fn matches(patterns: &[String], pointer: &str) -> bool {
    patterns.iter().any(|pattern| {
        let (mut parts, mut wanted) = (pointer.split('/'), pattern.split('/'));
        loop {
            match (parts.next(), wanted.next()) {
                (None, None) => return true,
                (Some(part), Some(pattern)) if pattern == "*" || part == pattern => {}
                _ => return false,
            }
        }
    })
}
