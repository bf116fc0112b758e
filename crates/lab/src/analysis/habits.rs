//! Known habits of clients. A habit is a way in which a client (geth, Besu, …) responds differently
//! from other clients although both are correct.
//!
//! The habits are data (`crates/lab/habits.toml`), with a source for each.

use std::sync::OnceLock;

use lab_model::results::equal::DifferenceClass;
use serde::Deserialize;

use super::json_compare::all::{ClassifiedDifference, Spelling};
use super::json_compare::{Side, matches_segments};

#[cfg(test)]
mod tests;

/// A known habit. It explains a difference if all its conditions hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Habit {
    /// The name in reports.
    pub name: String,
    /// What clients do, as a sentence.
    pub note: String,
    /// Where this is documented.
    pub source: String,
    /// Class of the difference.
    pub class: DifferenceClass,
    /// Methods; a name may end in `*`. Empty for all methods.
    #[serde(default)]
    methods: Vec<String>,
    /// Pointers relative to the response. `*` is any segment; a leading `**` is any number of
    /// segments. Empty for all pointers.
    #[serde(default)]
    pointers: Vec<String>,
    /// Patterns of pointers that the habit does not explain.
    #[serde(default)]
    except: Vec<String>,
    /// Methods whose whole results the habit does not explain.
    #[serde(default)]
    except_methods: Vec<String>,
    /// Names of clients in lower case. At least one of the two servers must run one of these
    /// clients. Empty for all clients.
    #[serde(default)]
    clients: Vec<String>,
    /// How the spellings of the value differ, for example in letter case. Empty for all spellings.
    #[serde(default)]
    spellings: Vec<Spelling>,
    /// For missing members: JSON texts of the value that is present. Empty for all values.
    #[serde(default)]
    present: Vec<String>,
    /// For error codes: ranges that both codes must be in. Empty for all codes.
    #[serde(default)]
    codes: Vec<(i64, i64)>,
    /// For values: maximum difference of two quantities, as a share of the larger quantity.
    tolerance: Option<f64>,
    /// True if the value depends on the node's newest block. Such a difference is always allowed,
    /// even between nodes of the same version.
    #[serde(default)]
    pub depends_on_head: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HabitsFile {
    habit: Vec<Habit>,
}

/// Returns all known habits.
pub fn all() -> &'static [Habit] {
    static HABITS: OnceLock<Vec<Habit>> = OnceLock::new();
    HABITS.get_or_init(|| {
        let file: HabitsFile = toml::from_str(include_str!("../../habits.toml"))
            .expect("a test reads the habits, which are compiled in");
        file.habit
    })
}

/// Returns the habit that explains a difference in the responses of a method. `client_versions` are
/// the versions that both servers report, in any letter case.
pub fn find_habit(
    difference: &ClassifiedDifference,
    method: &str,
    client_versions: [Option<&str>; 2],
) -> Option<&'static Habit> {
    all().iter().find(|habit| habit.explains(difference, method, client_versions))
}

impl Habit {
    /// Returns true if all conditions of the habit hold for a difference.
    fn explains(
        &self,
        difference: &ClassifiedDifference,
        method: &str,
        client_versions: [Option<&str>; 2],
    ) -> bool {
        let is_client = |name: &String| {
            let mut versions = client_versions.iter().flatten();
            versions.any(|version| version.to_ascii_lowercase().contains(name))
        };
        let is_pointer = |pattern: &String| matches_pointer(pattern, &difference.pointer);
        self.class == difference.class
            && is_empty_or_any(&self.methods, |pattern| matches_method(pattern, method))
            && is_empty_or_any(&self.pointers, is_pointer)
            && !self.except.iter().any(is_pointer)
            && !(difference.pointer == "/result"
                && self.except_methods.iter().any(|pattern| matches_method(pattern, method)))
            && is_empty_or_any(&self.clients, is_client)
            && is_empty_or_any(&self.spellings, |spelling| difference.spelling == Some(*spelling))
            && is_empty_or_any(&self.present, |text| is_present(difference, text))
            && (self.codes.is_empty() || self.has_codes(difference))
            && self.tolerance.is_none_or(|tolerance| is_within(difference, tolerance))
    }

    /// Returns true if both error codes are in the ranges of the habit.
    fn has_codes(&self, difference: &ClassifiedDifference) -> bool {
        [&difference.left, &difference.right].into_iter().all(|side| {
            let Side::Json(text) = side else { return false };
            let code = text.parse::<i64>();
            code.is_ok_and(|code| {
                self.codes.iter().any(|(low, high)| (*low..=*high).contains(&code))
            })
        })
    }
}

/// Returns true if the list is empty or one of its items matches.
fn is_empty_or_any<T>(items: &[T], matches: impl FnMut(&T) -> bool) -> bool {
    items.is_empty() || items.iter().any(matches)
}

/// Returns true if a pattern matches the name of a method. A trailing `*` matches any rest.
fn matches_method(pattern: &str, method: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => method.starts_with(prefix),
        None => pattern == method,
    }
}

/// Returns true if a pattern matches a pointer. `*` matches one segment, and a leading `**` any
/// number of segments.
pub fn matches_pointer(pattern: &str, pointer: &str) -> bool {
    match pattern.strip_prefix("**") {
        None => matches_segments(pattern, pointer),
        Some(suffix) => {
            let mut starts = pointer.match_indices('/').map(|(index, _)| index);
            starts.any(|start| matches_segments(suffix, &pointer[start..]))
                || matches_segments(suffix, "")
        }
    }
}

/// Returns true if one side is missing and the other side is this JSON text.
fn is_present(difference: &ClassifiedDifference, text: &str) -> bool {
    match (&difference.left, &difference.right) {
        (Side::Json(value), Side::Nothing) | (Side::Nothing, Side::Json(value)) => value == text,
        _ => false,
    }
}

/// Returns true if both sides are hexadecimal quantities that differ by at most this share.
fn is_within(difference: &ClassifiedDifference, tolerance: f64) -> bool {
    let quantity = |side: &Side| {
        let Side::Json(text) = side else { return None };
        let digits = text.strip_prefix("\"0x")?.strip_suffix('"')?;
        Some(u64::from_str_radix(digits, 16).ok()? as f64)
    };
    match (quantity(&difference.left), quantity(&difference.right)) {
        (Some(left), Some(right)) => (left - right).abs() <= tolerance * left.max(right),
        _ => false,
    }
}
