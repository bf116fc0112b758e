//! Reads the `[thresholds]` table. In `"latency{method:eth_call}" = "p(99)<300"`, the key is a
//! selector, which selects samples, and the value is an expression. `threshold/parse.rs` has the
//! grammar of selectors and expressions, and `validate/thresholds.rs` checks the names in
//! selectors.
//!
//! An item is a parsed value with its position in the plan's file, and its tree is the value
//! itself. A member is a key of a table with its item.

use serde_json::json;
use settings::value::{AnyString, Bool, Duration as Period, Json, Once};
use settings::{Item, Location, Member, Reader, Scalar, Table, TableDoc, Tree, ValueType};

use super::values::{SECOND, WEEK};

/// k6's names of a threshold's keys, each with its name in plans.
const K6_KEYS: [(&str, &str); 4] = [
    ("abort_on_fail", "abort"),
    ("abortOnFail", "abort"),
    ("delay_abort_eval", "abort_delay"),
    ("delayAbortEval", "abort_delay"),
];

// `choice!` declares an enum with the name of each variant in the plan.
settings::choice! {
    /// Outcome of a threshold for which the run has no data.
    pub(super) enum NoData {
        /// The threshold is broken.
        "fail" => Fail,
        /// The threshold is met.
        "pass" => Pass,
    }
}

// `table!` declares the keys as `key: Type = default;`. It also declares `WrittenThreshold`, which
// has only the values of the keys.
settings::table! {
    /// Conditions that a run must meet to pass, in k6's grammar. A key is a selector of samples.
    /// Its value is an expression, a table with these keys, or a list of expressions and tables.
    /// The metrics are listed below.
    pub(super) struct ThresholdTable => pub(super) WrittenThreshold {
        /// The expression, such as `"p(99)<700"`.
        threshold: AnyString = required;
        /// True if a breach ends the run (k6: `abortOnFail`).
        abort: Bool = "false";
        /// A breach before this time does not end the run (k6: `delayAbortEval`).
        abort_delay: Period<0, WEEK> = "0s";
        /// Length of a sliding window. The threshold is judged at each position of the window.
        window: Period<SECOND, WEEK> = described "the whole run";
        /// A breach counts only if it lasts at least this long.
        sustained: Period<0, WEEK> = "0s";
        /// Outcome of the threshold if the run has no data for it. k6 passes such a threshold.
        no_data: NoData = "fail";
    }
}

/// All thresholds of a plan.
pub(super) struct Thresholds;

/// The thresholds with the same selector.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SelectorThresholds {
    /// The selector as written.
    pub(super) selector: String,
    /// Position of the selector.
    pub(super) location: Location,
    /// The thresholds, each with the position of its expression.
    pub(super) list: Vec<(WrittenThreshold, Location)>,
}

impl ValueType for Thresholds {
    type Value = Vec<SelectorThresholds>;
    const EMPTY: &'static str = "{}";

    fn noun() -> String {
        "a table of thresholds".to_owned()
    }

    fn allowed() -> String {
        "an expression such as \"p(99)<300\", a table with it, or a list of these".to_owned()
    }

    fn schema() -> Json {
        let threshold = json!({ "anyOf": [{ "type": "string" }, table_schema()] });
        let list = json!({ "type": "array", "minItems": 1, "items": threshold });
        let value = json!({ "anyOf": [{ "type": "string" }, table_schema(), list] });
        json!({ "type": "object", "additionalProperties": value })
    }

    fn placeholder() -> Vec<SelectorThresholds> {
        Vec::new()
    }

    fn mask(text: &str) -> Option<String> {
        <AnyString as Scalar>::mask(text)
    }

    fn table() -> Option<TableDoc> {
        Some(ThresholdTable::doc().with_heading(|key| format!("[{key}]")))
    }

    fn read(
        item: &Item,
        location: &Location,
        reader: &mut Reader<'_, '_>,
    ) -> Option<Vec<SelectorThresholds>> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Thresholds>(item, location);
        };
        let read_selector = |member: &Member| {
            let location = location.of_member(member);
            let list = match &member.item.tree {
                Tree::List(list) => list.as_slice(),
                _ => std::slice::from_ref(&member.item),
            };
            if list.is_empty() {
                let value_location = location.with_span(&member.item.span);
                reader.report().error_without_value(
                    &value_location,
                    "holds no threshold",
                    Thresholds::allowed(),
                );
            }
            let list =
                list.iter().filter_map(|item| read_threshold(item, &location, reader)).collect();
            SelectorThresholds { selector: member.key.clone(), location, list }
        };
        Some(members.iter().map(read_selector).collect())
    }
}

/// Returns the schema of a threshold that is written as a table. The schema also accepts k6's
/// names.
fn table_schema() -> Json {
    let mut schema = <Once<ThresholdTable>>::schema();
    for (k6_key, key) in K6_KEYS {
        schema["properties"][k6_key] = schema["properties"][key].clone();
    }
    schema
}

/// Reads a threshold: an expression, or a table with an expression. Also returns the position of
/// the expression.
fn read_threshold(
    item: &Item,
    location: &Location,
    reader: &mut Reader<'_, '_>,
) -> Option<(WrittenThreshold, Location)> {
    let location = location.with_span(&item.span);
    match &item.tree {
        Tree::String(_) => {
            let threshold = <AnyString as ValueType>::read(item, &location, reader)?;
            Some((
                WrittenThreshold { threshold, ..ThresholdTable::defaults(&location.path).values() },
                location,
            ))
        }
        Tree::Table(members) => {
            let problems = reader.report().count();
            let location = Location { table: Some(item.span.clone()), ..location };
            let members = rename_k6_keys(members, &location, reader);
            let table: ThresholdTable = reader.read_table(&members, location);
            if table.abort_delay.is_set() && !*table.abort {
                let message = "has no effect, because a breach does not end the run";
                reader.report().error(&table.abort_delay, message, "together with abort = true");
            }
            let is_clean = reader.report().count() == problems;
            is_clean.then(|| (table.values(), table.threshold.location))
        }
        _ => {
            reader.report().error_without_value(
                &location,
                "neither a text nor a table",
                Thresholds::allowed(),
            );
            None
        }
    }
}

/// Returns the members of a threshold, with k6's names replaced by the names in plans. Reports a
/// key that is set under both names.
fn rename_k6_keys(
    members: &[Member],
    location: &Location,
    reader: &mut Reader<'_, '_>,
) -> Vec<Member> {
    let mut renamed: Vec<Member> = Vec::with_capacity(members.len());
    for member in members {
        let k6_name = K6_KEYS.iter().find(|(k6_key, _)| *k6_key == member.key);
        let key = k6_name.map_or(member.key.as_str(), |(_, key)| *key);
        if renamed.iter().any(|other| other.key == key) {
            let location = location.of_member(member);
            let message = format!("means the same as {key}, which is set too");
            reader.report().error_without_value(&location, message, "one of them");
        }
        renamed.push(Member { key: key.to_owned(), ..member.clone() });
    }
    renamed
}
