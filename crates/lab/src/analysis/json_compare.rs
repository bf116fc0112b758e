//! Compares two JSON-RPC responses and returns the first difference that a plan does not allow.
//! `json_compare/all.rs` walks through the values. It can also return all differences.
//!
//! The order of members and white space are ignored. Numbers are compared exactly by value,
//! whatever their size and notation. Only the codes of errors are compared, because each client
//! words its own messages. JSON pointers (RFC 6901) are relative to the result; `*` matches any
//! index or name.

use std::collections::{BTreeMap, BTreeSet};

use lab_model::results::equal::DifferenceClass;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use wire::response::{Outcome, parse_response};

use all::{ClassifiedDifference, Walk};

pub mod all;

#[cfg(test)]
mod tests;

/// Maximum nesting of arrays and objects that are parsed. Deeper values are compared as text, which
/// limits the recursion.
const DEPTH_MAX: usize = 100;

/// Differences that a plan allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllowedDifferences {
    /// Patterns of pointers whose values are not compared. `*` matches any index or name.
    pub ignore: Vec<String>,
    /// Largest allowed difference of two JSON numbers or hexadecimal quantities, as a share of the
    /// larger number. 0 allows no difference.
    pub tolerance: f64,
    /// Patterns of pointers to arrays whose order does not matter.
    pub sets: Vec<String>,
}

/// The value of one response at the pointer of a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// The value as JSON text.
    Json(String),
    /// The object has the member several times, with these values.
    Repeated(Vec<String>),
    /// The response has no value there.
    Nothing,
    /// The response has an unordered array there. None of its elements equals the other side's
    /// element.
    NoMatch,
    /// The response has an array of this length; the other side's array has another length.
    Elements(usize),
}

impl Side {
    /// Returns the side of a member with these values. A member that is missing has none, and a
    /// repeated one has several.
    fn of(values: &[&RawValue]) -> Side {
        match values {
            [] => Side::Nothing,
            [value] => Side::Json(value.get().to_owned()),
            _ => Side::Repeated(values.iter().map(|value| value.get().to_owned()).collect()),
        }
    }
}

/// Compares two bodies that hold one JSON-RPC response each. Returns the first difference, if any.
/// Its pointer is relative to the result.
pub fn difference(
    left: &[u8],
    right: &[u8],
    allowed: &AllowedDifferences,
) -> Option<ClassifiedDifference> {
    let parse = |body| parse_response(body, wire::json::DEPTH_CEILING).map(|answer| answer.outcome);
    let mut walk =
        Walk { allowed, reports_form: false, differences_max: 1, differences: Vec::new() };
    match (parse(left), parse(right)) {
        (Ok(Outcome::Result(left)), Ok(Outcome::Result(right))) => {
            walk.compare_values(text(left), text(right), "", 0);
        }
        (Ok(Outcome::Error { code, .. }), Ok(Outcome::Error { code: right, .. })) => {
            if code != right {
                walk.push(DifferenceClass::ErrorCode, "", &code.to_string(), &right.to_string());
            }
        }
        (Ok(_), Ok(_)) => {
            walk.push(DifferenceClass::ErrorAgainstResult, "", &lossy(left), &lossy(right));
        }
        // Both bodies are invalid for the same reason.
        (left_outcome, right_outcome) if left_outcome == right_outcome => {}
        _ => walk.push(DifferenceClass::NotJsonRpc, "", &lossy(left), &lossy(right)),
    }
    walk.differences.pop()
}

/// Returns a result of `parse_response` as text. `parse_response` has checked that it is UTF-8.
fn text(raw: &[u8]) -> &str {
    std::str::from_utf8(raw).unwrap_or_default()
}

/// Returns a body as text for a report. Invalid UTF-8 is replaced.
fn lossy(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).into_owned()
}

/// Returns a character that stands for the type of a JSON value: its first character, or `0` for
/// any number. Returns a space for an empty text.
fn kind(value: &str) -> char {
    match value.as_bytes().first() {
        Some(b'-' | b'0'..=b'9') => '0',
        Some(byte) => char::from(*byte),
        None => ' ',
    }
}

/// Returns the content of a JSON string, or the raw text if it is invalid.
fn parse_string(raw: &str) -> String {
    serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned())
}

/// The members of an object by name. A name that occurs several times has several values, because
/// clients differ in the one that they use. Values that repeat an earlier one are left out.
struct Members<'a>(BTreeMap<String, Vec<&'a RawValue>>);
/// The pointer of a member, and its values in two objects.
type MemberPair<'a> = (String, Vec<&'a RawValue>, Vec<&'a RawValue>);

impl<'a> Members<'a> {
    /// Parses an object. `None` if the text is not an object.
    fn parse(raw: &'a str) -> Option<Members<'a>> {
        let mut deserializer = serde_json::Deserializer::from_str(raw);
        deserializer.deserialize_map(MembersVisitor).ok()
    }
}

/// Collects the members of an object.
struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: BTreeMap<String, Vec<&RawValue>> = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
            let values = members.entry(name).or_default();
            let is_repetition = |other: &&RawValue| {
                canonical(other.get(), DEPTH_MAX) == canonical(value.get(), DEPTH_MAX)
            };
            if !values.iter().any(is_repetition) {
                values.push(value);
            }
        }
        Ok(Members(members))
    }
}

/// Returns the members of two objects in the order of their names. `None` if a text is not an
/// object.
fn member_pairs<'a>(left: &'a str, right: &'a str, pointer: &str) -> Option<Vec<MemberPair<'a>>> {
    let (Members(left), Members(right)) = (Members::parse(left)?, Members::parse(right)?);
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let pair = |name: &String| {
        let member_pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
        let values = |members: &BTreeMap<String, Vec<&'a RawValue>>| {
            members.get(name).cloned().unwrap_or_default()
        };
        (member_pointer, values(&left), values(&right))
    };
    Some(names.into_iter().map(pair).collect())
}

/// Returns the canonical text of a value: sorted members, no white space, numbers by value. `depth`
/// is the number of arrays and objects around the value.
fn canonical(raw: &str, depth: usize) -> String {
    let raw = raw.trim();
    match kind(raw) {
        '{' if depth < DEPTH_MAX => match Members::parse(raw) {
            Some(Members(members)) => {
                let members = members
                    .iter()
                    .flat_map(|(name, values)| values.iter().map(move |value| (name, value.get())));
                let parts: Vec<_> = members
                    .map(|(name, value)| format!("{name:?}:{}", canonical(value, depth + 1)))
                    .collect();
                format!("{{{}}}", parts.join(","))
            }
            None => raw.to_owned(),
        },
        '[' if depth < DEPTH_MAX => match serde_json::from_str::<Vec<&RawValue>>(raw) {
            Ok(values) => {
                let parts: Vec<_> =
                    values.iter().map(|value| canonical(value.get(), depth + 1)).collect();
                format!("[{}]", parts.join(","))
            }
            Err(_) => raw.to_owned(),
        },
        '"' => format!("{:?}", parse_string(raw)),
        '0' => parse_exact(raw).map_or_else(|| raw.to_owned(), |number| format!("{number:?}")),
        _ => raw.to_owned(),
    }
}

/// The decimal number `digits` × 10^`exponent`, of any size. Equal numbers have equal fields.
#[derive(Debug, PartialEq, Eq)]
struct ExactNumber {
    /// True if the number is below 0.
    negative: bool,
    /// Digits without leading and trailing zeros; empty for 0.
    digits: String,
    /// Power of ten of the last digit.
    exponent: i64,
}

/// Parses a JSON number. `None` if its exponent is too large.
fn parse_exact(raw: &str) -> Option<ExactNumber> {
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
        return Some(ExactNumber { negative: false, digits, exponent: 0 });
    }
    let exponent = power.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(zeros)?;
    Some(ExactNumber { negative, digits, exponent })
}

/// Returns true if two JSON numbers are equal, or differ by at most the tolerance.
fn are_equal_numbers(left: &str, right: &str, tolerance: f64) -> bool {
    let is_exactly_equal = match (parse_exact(left), parse_exact(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    };
    let is_close = || match (left.parse(), right.parse()) {
        (Ok(left), Ok(right)) => is_within(left, right, tolerance),
        _ => false,
    };
    is_exactly_equal || is_close()
}

/// Returns true if two texts are hexadecimal quantities of at most 32 digits that differ by at most
/// the tolerance. False for a tolerance of 0.
fn are_close_quantities(left: &str, right: &str, tolerance: f64) -> bool {
    let parse = |text: &str| {
        let digits = text.strip_prefix("0x").filter(|digits| (1..=32).contains(&digits.len()))?;
        Some(u128::from_str_radix(digits, 16).ok()? as f64)
    };
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) if tolerance > 0.0 => is_within(left, right, tolerance),
        _ => false,
    }
}

/// Returns true if two numbers differ by at most the tolerance; false for a tolerance of 0.
fn is_within(left: f64, right: f64, tolerance: f64) -> bool {
    tolerance > 0.0 && (left - right).abs() <= tolerance * left.abs().max(right.abs())
}

/// Returns true if a pattern matches a JSON pointer. `*` matches any one segment.
pub(super) fn matches_segments(pattern: &str, pointer: &str) -> bool {
    let (patterns, segments) = (pattern.split('/'), pointer.split('/'));
    patterns.clone().count() == segments.clone().count()
        && patterns.zip(segments).all(|(pattern, segment)| pattern == "*" || pattern == segment)
}
