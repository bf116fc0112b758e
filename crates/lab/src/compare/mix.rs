//! Finds changes in the mix of methods between two variants. The totals over all methods then
//! differ even if no method does: a total with more slow calls is slower. The rate of a method
//! follows its share.

use std::collections::BTreeMap;

use crate::variant::{TOTAL, Variant};
use crate::wording::number::{join_first, percent};

/// A change of a share counts if it is at least this large. All shares add up to 1.
const CHANGE_MIN: f64 = 0.03;
/// A smaller change counts if the share changes by at least this factor: a few slow calls determine
/// high percentiles.
const FACTOR_MIN: f64 = 1.25;
/// A change counts only if it exceeds this many standard deviations of independently drawn calls.
const DEVIATIONS_MIN: f64 = 4.0;
/// A method with fewer calls in one variant may be missing in the other by chance.
const CALLS_MIN: u64 = 20;
/// Maximum number of methods that a sentence names.
const NAMED_MAX: usize = 4;

/// A method whose share of all calls differs between two variants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MixChange {
    method: String,
    /// The shares in both variants. `None` if the numbers of calls are unknown.
    shares: Option<(f64, f64)>,
    /// Presence of the method in both variants.
    is_called: (bool, bool),
}

/// Returns the methods whose shares differ by more than chance, and those that only one variant
/// calls.
pub(super) fn find_changes(first: &Variant, other: &Variant) -> Vec<MixChange> {
    let (a, b) = (count_calls(first), count_calls(other));
    let sum = |calls: &BTreeMap<&str, Option<u64>>| -> Option<u64> {
        calls.values().copied().sum::<Option<u64>>().filter(|sum| *sum > 0)
    };
    let totals = sum(&a).zip(sum(&b));
    let mut methods: Vec<&str> = a.keys().chain(b.keys()).copied().collect();
    methods.sort_unstable();
    methods.dedup();
    let mut changes = Vec::new();
    for method in methods {
        let is_called = (a.contains_key(method), b.contains_key(method));
        let calls = |calls: &BTreeMap<&str, Option<u64>>| calls.get(method).copied().flatten();
        let (calls_a, calls_b) = (calls(&a).unwrap_or(0), calls(&b).unwrap_or(0));
        let shares = totals
            .map(|(sum_a, sum_b)| (calls_a as f64 / sum_a as f64, calls_b as f64 / sum_b as f64));
        let is_changed = match (shares, totals) {
            _ if is_called.0 != is_called.1 => {
                totals.is_none() || calls_a.max(calls_b) >= CALLS_MIN
            }
            (Some(shares), Some(totals)) => differ(shares, totals),
            _ => false,
        };
        if is_changed {
            changes.push(MixChange { method: method.to_owned(), shares, is_called });
        }
    }
    changes
}

/// Returns true if two shares differ by more than chance, and by enough to matter.
fn differ((a, b): (f64, f64), (sum_a, sum_b): (u64, u64)) -> bool {
    let (sum_a, sum_b) = (sum_a as f64, sum_b as f64);
    let pooled = (a * sum_a + b * sum_b) / (sum_a + sum_b);
    let deviation = (pooled * (1.0 - pooled) * (1.0 / sum_a + 1.0 / sum_b)).sqrt();
    let change = (a - b).abs();
    let matters = change >= CHANGE_MIN || a.max(b) >= FACTOR_MIN * a.min(b);
    matters && change > DEVIATIONS_MIN * deviation
}

/// Returns the number of calls of each method over all runs. `None` if a run does not have it.
fn count_calls(variant: &Variant) -> BTreeMap<&str, Option<u64>> {
    let mut counts: BTreeMap<&str, Option<u64>> = BTreeMap::new();
    for run in &variant.runs {
        let methods = run.values.keys().map(|(method, _)| method.as_str());
        let mut methods: Vec<&str> = methods.filter(|method| *method != TOTAL).collect();
        methods.dedup();
        for method in methods {
            let count = counts.entry(method).or_insert(Some(0));
            *count = count.zip(run.calls.get(method)).map(|(sum, calls)| sum + calls);
        }
    }
    counts
}

/// Describes changes at the end of a sentence. Empty if there are none.
pub(super) fn describe(changes: &[MixChange], first: &str, other: &str) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let shares = changes.iter().filter(|change| change.is_called == (true, true));
    let shares: Vec<String> = shares
        .filter_map(|MixChange { method, shares, .. }| {
            let (a, b) = (*shares)?;
            Some(format!("{method} {} and {} of the calls", percent(a), percent(b)))
        })
        .collect();
    let only = |is_called: (bool, bool)| -> Vec<String> {
        let missing = changes.iter().filter(|change| change.is_called == is_called);
        missing.map(|change| change.method.clone()).collect()
    };
    let mut parts = Vec::new();
    if !shares.is_empty() {
        parts.push(join_first(&shares, NAMED_MAX, ", "));
    }
    for (name, methods) in [(first, only((true, false))), (other, only((false, true)))] {
        if !methods.is_empty() {
            parts.push(format!("only {name} calls {}", join_first(&methods, NAMED_MAX, ", ")));
        }
    }
    format!(
        "; the mix of methods differs ({}), so totals and rates cannot be told: compare the latencies \
         of single methods",
        parts.join("; ")
    )
}
