//! Finds all differences between two JSON-RPC responses and classifies each of them.
//!
//! The function [`differences`] returns pointers relative to the response: `/result/…` or
//! `/error/…`. White space, the escapes in strings and the order of object members are ignored.

use lab_model::results::equal::DifferenceClass;
use serde_json::value::RawValue;
use wire::response::{Outcome, parse_response};

use super::{
    AllowedDifferences, DEPTH_MAX, Side, are_close_quantities, are_equal_numbers, canonical, kind,
    lossy, matches_segments, member_pairs, parse_string, text,
};

#[cfg(test)]
mod tests;

/// Number of differences at which the search ends.
pub const DIFFERENCES_MAX: usize = 1_000;
/// Unordered arrays of at most this length are matched pairwise, which takes quadratic time. Longer
/// arrays are compared by their sorted canonical texts. Allowed differences inside their elements
/// then count as differences.
const MATCHED_MAX: usize = 256;
/// Number of hexadecimal digits of an EVM word (32 bytes).
const WORD_DIGITS: usize = 64;

/// A difference with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassifiedDifference {
    /// The class.
    pub class: DifferenceClass,
    /// How the spellings differ; `None` unless the class is [`DifferenceClass::Spelling`].
    pub spelling: Option<Spelling>,
    /// JSON pointer relative to the response.
    pub pointer: String,
    /// The first response's value.
    pub left: Side,
    /// The second response's value.
    pub right: Side,
}

/// How two spellings of one value differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spelling {
    /// Upper and lower case of hexadecimal digits.
    LetterCase,
    /// Leading zeros of a hexadecimal quantity. One side has an odd number of digits, so the value
    /// is not a byte string.
    Padding,
    /// A hexadecimal quantity, and the same number as a word of 32 bytes.
    Word,
    /// Notation of a JSON number: `1` and `1.0`.
    Number,
}

/// The body that a server sent for a call, or the reason why it sent none.
pub type Sent = Result<Vec<u8>, String>;

/// Returns the differences between two responses to the same call. The search ends at
/// [`DIFFERENCES_MAX`]. `id` is the raw id of the call. A response with another id is not a valid
/// JSON-RPC response.
pub fn differences(left: &Sent, right: &Sent, id: &[u8]) -> Vec<ClassifiedDifference> {
    use DifferenceClass::{ErrorAgainstResult, NoResponse, NotJsonRpc};
    let allowed = AllowedDifferences::default();
    let mut walk = Walk {
        allowed: &allowed,
        reports_form: true,
        differences_max: DIFFERENCES_MAX,
        differences: Vec::new(),
    };
    let parse = |body| {
        let response = parse_response(body, wire::json::DEPTH_CEILING).ok();
        response.filter(|response| response.id == id).map(|response| response.outcome)
    };
    match (left, right) {
        (Err(_), Err(_)) => {}
        (Ok(left), Ok(right)) if left == right => {}
        (Ok(left), Ok(right)) => match (parse(left), parse(right)) {
            (Some(Outcome::Result(left)), Some(Outcome::Result(right))) => {
                walk.compare_values(text(left), text(right), "/result", 0);
            }
            (Some(left @ Outcome::Error { .. }), Some(right @ Outcome::Error { .. })) => {
                walk.compare_errors(&left, &right);
            }
            (Some(left), Some(right)) => {
                walk.push(ErrorAgainstResult, "", &format_outcome(&left), &format_outcome(&right));
            }
            _ => walk.push(NotJsonRpc, "", &lossy(left), &lossy(right)),
        },
        (left, right) => {
            let as_text = |sent: &Sent| sent.as_ref().map_or_else(Clone::clone, |body| lossy(body));
            walk.push(NoResponse, "", &as_text(left), &as_text(right));
        }
    }
    walk.differences
}

/// Formats the result or the error of a response as JSON.
fn format_outcome(outcome: &Outcome<'_>) -> String {
    match outcome {
        Outcome::Result(raw) => format!("{{\"result\":{}}}", lossy(raw)),
        Outcome::Error { raw, .. } => format!("{{\"error\":{}}}", lossy(raw)),
    }
}

/// Walks through two values and collects their differences.
pub(super) struct Walk<'a> {
    /// Differences that are not reported.
    pub(super) allowed: &'a AllowedDifferences,
    /// If true, equal numbers in different notations are a difference, and a reordered array is one
    /// difference. If false, notation is ignored and arrays are compared element by element.
    pub(super) reports_form: bool,
    /// Number of differences at which the walk ends.
    pub(super) differences_max: usize,
    /// The differences so far.
    pub(super) differences: Vec<ClassifiedDifference>,
}

impl Walk<'_> {
    /// Compares two values at a pointer. `depth` is the number of arrays and objects around them.
    pub(super) fn compare_values(&mut self, left: &str, right: &str, pointer: &str, depth: usize) {
        let (left, right) = (left.trim(), right.trim());
        if left == right
            || self.differences.len() >= self.differences_max
            || self.is_ignored(pointer)
        {
            return;
        }
        // `kind` returns the first character of a JSON value, or `0` for any number.
        match (kind(left), kind(right)) {
            ('{', '{') if depth < DEPTH_MAX => self.compare_objects(left, right, pointer, depth),
            ('[', '[') if depth < DEPTH_MAX => self.compare_arrays(left, right, pointer, depth),
            ('"', '"') => {
                let (left_text, right_text) = (parse_string(left), parse_string(right));
                let tolerance = self.allowed.tolerance;
                if left_text != right_text
                    && !are_close_quantities(&left_text, &right_text, tolerance)
                {
                    self.push_scalar(hex_spelling(&left_text, &right_text), pointer, left, right);
                }
            }
            ('0', '0') => {
                let are_equal = are_equal_numbers(left, right, self.allowed.tolerance);
                if !are_equal || self.reports_form {
                    self.push_scalar(are_equal.then_some(Spelling::Number), pointer, left, right);
                }
            }
            ('t' | 'f', 't' | 'f') => self.push(DifferenceClass::Value, pointer, left, right),
            ('n', _) | (_, 'n') => self.push(DifferenceClass::Null, pointer, left, right),
            // Other values of one kind, and arrays and objects beyond `DEPTH_MAX`.
            (a, b) if a == b => self.push(DifferenceClass::Value, pointer, left, right),
            _ => self.push(DifferenceClass::Type, pointer, left, right),
        }
    }

    /// Returns true if the plan allows any difference at this pointer.
    fn is_ignored(&self, pointer: &str) -> bool {
        self.allowed.ignore.iter().any(|pattern| matches_segments(pattern, pointer))
    }

    /// Adds a difference of two strings or numbers. `spelling` is `None` if their values differ.
    fn push_scalar(&mut self, spelling: Option<Spelling>, pointer: &str, left: &str, right: &str) {
        let class = match spelling {
            Some(_) => DifferenceClass::Spelling,
            None => DifferenceClass::Value,
        };
        self.push(class, pointer, left, right);
        if let Some(last) = self.differences.last_mut() {
            last.spelling = spelling;
        }
    }

    /// Compares the members of two objects.
    fn compare_objects(&mut self, left: &str, right: &str, pointer: &str, depth: usize) {
        let Some(members) = member_pairs(left, right, pointer) else {
            return self.push(DifferenceClass::Value, pointer, left, right);
        };
        for (pointer, left, right) in members {
            if self.differences.len() >= self.differences_max {
                return;
            }
            match (&left[..], &right[..]) {
                ([left], [right]) => {
                    self.compare_values(left.get(), right.get(), &pointer, depth + 1);
                }
                _ if self.is_ignored(&pointer) => {}
                ([], _) | (_, []) => {
                    let (left, right) = (Side::of(&left), Side::of(&right));
                    self.add(DifferenceClass::MissingMember, &pointer, left, right);
                }
                // At least one side has the member more than once, with different values.
                _ => {
                    let texts = |values: &[&RawValue]| -> Vec<String> {
                        values.iter().map(|value| canonical(value.get(), depth + 1)).collect()
                    };
                    if texts(&left) != texts(&right) {
                        let (left, right) = (Side::of(&left), Side::of(&right));
                        self.add(DifferenceClass::Value, &pointer, left, right);
                    }
                }
            }
        }
    }

    /// Compares the elements of two arrays. Arrays of different lengths are one difference.
    fn compare_arrays(&mut self, left: &str, right: &str, pointer: &str, depth: usize) {
        let parse = |raw| serde_json::from_str::<Vec<&RawValue>>(raw).ok();
        // `a` and `b` are the elements of the left and the right array.
        let (Some(a), Some(b)) = (parse(left), parse(right)) else {
            return self.push(DifferenceClass::Value, pointer, left, right);
        };
        if a.len() != b.len() {
            let (left, right) = (Side::Elements(a.len()), Side::Elements(b.len()));
            return self.add(DifferenceClass::Length, pointer, left, right);
        }
        if self.allowed.sets.iter().any(|pattern| matches_segments(pattern, pointer)) {
            return self.compare_sets(&a, &b, pointer, depth);
        }
        if self.reports_form && is_reordered(&a, &b, depth) {
            return self.push(DifferenceClass::Order, pointer, left, right);
        }
        for (index, (left, right)) in a.iter().zip(&b).enumerate() {
            if self.differences.len() >= self.differences_max {
                return;
            }
            self.compare_values(left.get(), right.get(), &format!("{pointer}/{index}"), depth + 1);
        }
    }

    /// Compares unordered arrays of equal length: each element of `a` needs an equal element in
    /// `b`. Only the first element without a match is reported.
    fn compare_sets(&mut self, a: &[&RawValue], b: &[&RawValue], pointer: &str, depth: usize) {
        if a.len() > MATCHED_MAX {
            let sorted_texts = |values: &[&RawValue]| {
                let texts = values.iter().map(|value| canonical(value.get(), depth));
                let mut texts: Vec<String> = texts.collect();
                texts.sort_unstable();
                texts
            };
            let (a, b) = (sorted_texts(a), sorted_texts(b));
            if let Some((left, right)) = a.iter().zip(&b).find(|(left, right)| left != right) {
                self.push(DifferenceClass::Value, pointer, left, right);
            }
            return;
        }
        let mut unmatched: Vec<&RawValue> = b.to_vec();
        for (index, value) in a.iter().enumerate() {
            let pointer = format!("{pointer}/{index}");
            let is_equal = |right: &&RawValue| {
                let mut walk = Walk { differences_max: 1, differences: Vec::new(), ..*self };
                walk.compare_values(value.get(), right.get(), &pointer, depth + 1);
                walk.differences.is_empty()
            };
            match unmatched.iter().position(is_equal) {
                Some(matched) => _ = unmatched.swap_remove(matched),
                None => {
                    let value = Side::of(&[value]);
                    return self.add(DifferenceClass::Value, &pointer, value, Side::NoMatch);
                }
            }
        }
    }

    /// Compares code, message and data of two errors.
    fn compare_errors(&mut self, left: &Outcome<'_>, right: &Outcome<'_>) {
        let (
            Outcome::Error { code, message, data, .. },
            Outcome::Error { code: right_code, message: right_message, data: right_data, .. },
        ) = (left, right)
        else {
            return;
        };
        if code != right_code {
            let (left, right) = (code.to_string(), right_code.to_string());
            self.push(DifferenceClass::ErrorCode, "/error/code", &left, &right);
        }
        if message != right_message {
            let quoted = |message: &str| serde_json::Value::from(message).to_string();
            let (left, right) = (quoted(message), quoted(right_message));
            self.push(DifferenceClass::ErrorMessage, "/error/message", &left, &right);
        }
        let canonical_data = |data: &Option<&[u8]>| data.map(|data| canonical(text(data), 0));
        if canonical_data(data) != canonical_data(right_data) {
            let side =
                |data: &Option<&[u8]>| data.map_or(Side::Nothing, |data| Side::Json(lossy(data)));
            self.add(DifferenceClass::ErrorData, "/error/data", side(data), side(right_data));
        }
    }

    /// Adds a difference between two values that both sides have.
    pub(super) fn push(&mut self, class: DifferenceClass, pointer: &str, left: &str, right: &str) {
        let (left, right) = (Side::Json(left.to_owned()), Side::Json(right.to_owned()));
        self.add(class, pointer, left, right);
    }

    /// Adds a difference whose sides need not be JSON: a side may be missing or have only a length.
    fn add(&mut self, class: DifferenceClass, pointer: &str, left: Side, right: Side) {
        let pointer = pointer.to_owned();
        self.differences.push(ClassifiedDifference { class, spelling: None, pointer, left, right });
    }
}

/// Returns true if both arrays have the same elements in different order.
fn is_reordered(left: &[&RawValue], right: &[&RawValue], depth: usize) -> bool {
    let texts = |elements: &[&RawValue]| -> Vec<String> {
        elements.iter().map(|element| canonical(element.get(), depth + 1)).collect()
    };
    let (mut left, mut right) = (texts(left), texts(right));
    if left == right {
        return false;
    }
    left.sort_unstable();
    right.sort_unstable();
    left == right
}

/// Returns how two hexadecimal texts of one value differ, or `None` if they have different values.
///
/// Byte strings of different lengths are different values, so leading zeros matter in general.
/// Leading zeros are ignored in two cases: if one side has an odd number of digits and is therefore
/// a quantity, or if one side has the length of an EVM word.
fn hex_spelling(left: &str, right: &str) -> Option<Spelling> {
    let digits = |text: &str| {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| digits.to_ascii_lowercase())
    };
    let (left, right) = (digits(left)?, digits(right)?);
    if left == right {
        return Some(Spelling::LetterCase);
    }
    // No bytes at all are no quantity, and differ from any number of zeros.
    if left.is_empty() != right.is_empty() {
        return None;
    }
    if left.trim_start_matches('0') != right.trim_start_matches('0') {
        return None;
    }
    let is_quantity = |digits: &str| digits.len() % 2 == 1;
    if is_quantity(&left) || is_quantity(&right) {
        return Some(Spelling::Padding);
    }
    let has_word = left.len() == WORD_DIGITS || right.len() == WORD_DIGITS;
    has_word.then_some(Spelling::Word)
}
