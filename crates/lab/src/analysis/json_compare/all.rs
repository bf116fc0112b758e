//! Finds all differences between two JSON-RPC responses, each with its class.
//!
//! Pointers are relative to the response: `/result/…` or `/error/…`. The order of members, white
//! space and escapes of strings are ignored.

use lab_model::results::equal::DifferenceClass;
use serde_json::value::RawValue;
use wire::response::{Outcome, parse_response};

use super::{DEPTH_MAX, Side, canonical, exact, kind, lossy, member_pairs, string, text};

#[cfg(test)]
mod tests;

/// Number of differences of two responses at which the search ends.
pub const DIFFERENCES_MAX: usize = 1_000;
/// Hexadecimal digits of a word of the EVM.
const WORD_DIGITS: usize = 64;

/// A difference with its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassifiedDifference {
    /// The class.
    pub class: DifferenceClass,
    /// Set if the class is [`DifferenceClass::Spelling`].
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
    /// Leading zeros of a hexadecimal quantity. One side has an odd number of digits, so it cannot
    /// be bytes.
    Padding,
    /// A hexadecimal quantity, and the same number as a word of 32 bytes.
    Word,
    /// Notation of a JSON number: `1` and `1.0`.
    Number,
}

/// What a server sent for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<'a> {
    /// A body.
    Body(&'a [u8]),
    /// No body, for this reason.
    Nothing(&'a str),
}

/// Returns the differences between two responses to the same call. The search ends at
/// [`DIFFERENCES_MAX`]. `id` is the raw id of the call.
pub fn differences(
    left: Observed<'_>,
    right: Observed<'_>,
    id: &[u8],
) -> Vec<ClassifiedDifference> {
    use DifferenceClass::{ErrorAgainstResult, NoResponse, NotJsonRpc};
    let mut found = Vec::new();
    let (left_body, right_body) = match (left, right) {
        (Observed::Body(left), Observed::Body(right)) => (left, right),
        (Observed::Nothing(_), Observed::Nothing(_)) => return found,
        (left, right) => {
            found.push(whole(NoResponse, shown(left), shown(right)));
            return found;
        }
    };
    if left_body == right_body {
        return found;
    }
    let parse = |body| {
        let response = parse_response(body, wire::json::DEPTH_CEILING).ok();
        response.filter(|response| response.id == id).map(|response| response.outcome)
    };
    match (parse(left_body), parse(right_body)) {
        (Some(Outcome::Result(left)), Some(Outcome::Result(right))) => {
            walk(text(left), text(right), "/result", 0, &mut found);
        }
        (Some(left @ Outcome::Error { .. }), Some(right @ Outcome::Error { .. })) => {
            errors(&left, &right, &mut found);
        }
        (Some(left), Some(right)) => {
            found.push(whole(ErrorAgainstResult, outcome_text(&left), outcome_text(&right)));
        }
        _ => found.push(whole(NotJsonRpc, lossy(left_body), lossy(right_body))),
    }
    found
}

fn shown(observed: Observed<'_>) -> String {
    match observed {
        Observed::Body(body) => lossy(body),
        Observed::Nothing(reason) => reason.to_owned(),
    }
}

fn whole(class: DifferenceClass, left: String, right: String) -> ClassifiedDifference {
    let (left, right) = (Side::Json(left), Side::Json(right));
    ClassifiedDifference { class, spelling: None, pointer: String::new(), left, right }
}

fn outcome_text(outcome: &Outcome<'_>) -> String {
    match outcome {
        Outcome::Result(raw) => format!("{{\"result\":{}}}", lossy(raw)),
        Outcome::Error { raw, .. } => format!("{{\"error\":{}}}", lossy(raw)),
    }
}

fn errors(left: &Outcome<'_>, right: &Outcome<'_>, found: &mut Vec<ClassifiedDifference>) {
    let (
        Outcome::Error { code, message, data, .. },
        Outcome::Error { code: right_code, message: right_message, data: right_data, .. },
    ) = (left, right)
    else {
        return;
    };
    if code != right_code {
        let (left, right) = (code.to_string(), right_code.to_string());
        push(found, DifferenceClass::ErrorCode, "/error/code", &left, &right);
    }
    if message != right_message {
        let quoted = |message: &str| serde_json::Value::from(message).to_string();
        let (left, right) = (quoted(message), quoted(right_message));
        push(found, DifferenceClass::ErrorMessage, "/error/message", &left, &right);
    }
    let canonical_data = |data: &Option<&[u8]>| data.map(|data| canonical(text(data), 0));
    if canonical_data(data) != canonical_data(right_data) {
        let side =
            |data: &Option<&[u8]>| data.map_or(Side::Nothing, |data| Side::Json(lossy(data)));
        let (class, pointer) = (DifferenceClass::ErrorData, "/error/data".to_owned());
        let (left, right) = (side(data), side(right_data));
        found.push(ClassifiedDifference { class, spelling: None, pointer, left, right });
    }
}

fn push(
    found: &mut Vec<ClassifiedDifference>,
    class: DifferenceClass,
    pointer: &str,
    left: &str,
    right: &str,
) {
    let (left, right) = (Side::Json(left.to_owned()), Side::Json(right.to_owned()));
    let pointer = pointer.to_owned();
    found.push(ClassifiedDifference { class, spelling: None, pointer, left, right });
}

fn walk(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    found: &mut Vec<ClassifiedDifference>,
) {
    let (left, right) = (left.trim(), right.trim());
    if left == right || found.len() >= DIFFERENCES_MAX {
        return;
    }
    match (kind(left), kind(right)) {
        ('{', '{') if depth < DEPTH_MAX => objects(left, right, pointer, depth, found),
        ('[', '[') if depth < DEPTH_MAX => arrays(left, right, pointer, depth, found),
        ('"', '"') => {
            let (left_text, right_text) = (string(left), string(right));
            if left_text == right_text {
                return;
            }
            let spelling = hex_spelling(&left_text, &right_text);
            scalar(spelling, pointer, left, right, found);
        }
        ('0', '0') => {
            let same = matches!((exact(left), exact(right)), (Some(a), Some(b)) if a == b);
            scalar(same.then_some(Spelling::Number), pointer, left, right, found);
        }
        ('t' | 'f', 't' | 'f') => push(found, DifferenceClass::Value, pointer, left, right),
        ('n', _) | (_, 'n') => push(found, DifferenceClass::Null, pointer, left, right),
        (a, b) if a == b => push(found, DifferenceClass::Value, pointer, left, right),
        _ => push(found, DifferenceClass::Type, pointer, left, right),
    }
}

fn scalar(
    spelling: Option<Spelling>,
    pointer: &str,
    left: &str,
    right: &str,
    found: &mut Vec<ClassifiedDifference>,
) {
    let class = match spelling {
        Some(_) => DifferenceClass::Spelling,
        None => DifferenceClass::Value,
    };
    push(found, class, pointer, left, right);
    if let Some(last) = found.last_mut() {
        last.spelling = spelling;
    }
}

fn objects(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    found: &mut Vec<ClassifiedDifference>,
) {
    let Some(members) = member_pairs(left, right, pointer) else {
        push(found, DifferenceClass::Value, pointer, left, right);
        return;
    };
    for (pointer, left, right) in members {
        if found.len() >= DIFFERENCES_MAX {
            return;
        }
        if let (Some(left), Some(right)) = (left, right) {
            walk(left.get(), right.get(), &pointer, depth + 1, found);
            continue;
        }
        let (class, left, right) =
            (DifferenceClass::MissingMember, Side::of(left), Side::of(right));
        found.push(ClassifiedDifference { class, spelling: None, pointer, left, right });
    }
}

fn arrays(
    left: &str,
    right: &str,
    pointer: &str,
    depth: usize,
    found: &mut Vec<ClassifiedDifference>,
) {
    let parse = |raw| serde_json::from_str::<Vec<&RawValue>>(raw).ok();
    let (Some(left_elements), Some(right_elements)) = (parse(left), parse(right)) else {
        push(found, DifferenceClass::Value, pointer, left, right);
        return;
    };
    if left_elements.len() != right_elements.len() {
        found.push(ClassifiedDifference {
            class: DifferenceClass::Length,
            spelling: None,
            pointer: pointer.to_owned(),
            left: Side::Elements(left_elements.len()),
            right: Side::Elements(right_elements.len()),
        });
        return;
    }
    if is_reordered(&left_elements, &right_elements, depth) {
        push(found, DifferenceClass::Order, pointer, left, right);
        return;
    }
    for (index, (left, right)) in left_elements.iter().zip(&right_elements).enumerate() {
        walk(left.get(), right.get(), &format!("{pointer}/{index}"), depth + 1, found);
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
/// Bytes of different length are different values. Leading zeros are therefore ignored only if one
/// side must be a quantity, or if one side is a word of the EVM.
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
    if left.trim_start_matches('0') != right.trim_start_matches('0') {
        return None;
    }
    let is_quantity = |digits: &str| digits.len() % 2 == 1;
    if is_quantity(&left) || is_quantity(&right) {
        return Some(Spelling::Padding);
    }
    let has_word = left.len() == WORD_DIGITS || right.len() == WORD_DIGITS;
    (has_word && !left.is_empty() && !right.is_empty()).then_some(Spelling::Word)
}
