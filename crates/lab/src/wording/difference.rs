//! Formats a difference between two variants: its values, its change and its interval.

use lab_model::results::compare::{Difference, Metric};

use super::number::{join_first, short};

/// Maximum number of differences that a sentence names.
pub(crate) const NAMED_MAX: usize = 4;

/// Writes a difference for a sentence: `eth_call latency p99 (+12.3 %, 8.1 to 16.9 %)`.
pub(crate) fn sentence(difference: &Difference) -> String {
    // The metric's name ends in a comma and its unit.
    let name = difference.metric.as_str().split(',').next().unwrap_or_default();
    let interval =
        interval(difference).map(|interval_text| format!(", {interval_text}")).unwrap_or_default();
    format!("{} {name} ({}{interval})", difference.method, change(difference))
}

/// Names the differences with the largest changes, and counts the others.
pub(crate) fn name_largest<'a>(differences: impl Iterator<Item = &'a Difference>) -> String {
    let mut sorted: Vec<&Difference> = differences.collect();
    sorted.sort_by(|x, y| y.change.abs().total_cmp(&x.change.abs()));
    let sentences: Vec<String> = sorted.into_iter().map(sentence).collect();
    join_first(&sentences, NAMED_MAX, ", ")
}

/// Returns true if the values are shares. The change is then in percentage points.
pub(crate) fn is_share(difference: &Difference) -> bool {
    difference.metric == Metric::FailedShare
}

/// Formats a value of the difference's metric, without a unit. A share is in per cent.
pub(crate) fn value(difference: &Difference, value: f64) -> String {
    short(if is_share(difference) { value * 100.0 } else { value })
}

/// Formats the change: `+12.3 %`, `−0.4 points`, or `×12.0`.
pub(crate) fn change(difference: &Difference) -> String {
    match is_large_factor(difference) {
        true => format_factor(difference.change),
        false => format!("{:+.1} {}", difference.change * 100.0, unit(difference)),
    }
}

/// Formats the interval of the change, or returns `None` if it is unknown.
pub(crate) fn interval(difference: &Difference) -> Option<String> {
    difference.interval.map(|(low, high)| match is_large_factor(difference) {
        true => format!("{} to {}", format_factor(low), format_factor(high)),
        false => format!("{:+.1} to {:+.1} {}", low * 100.0, high * 100.0, unit(difference)),
    })
}

/// Returns the unit of a change: percentage points for shares, otherwise per cent.
fn unit(difference: &Difference) -> &'static str {
    if is_share(difference) { "points" } else { "%" }
}

/// A change by more than this factor, up or down, is written as a factor. A percentage does not
/// show large decreases well, because it ends at −100 %.
const FACTOR_MIN: f64 = 3.0;

/// Returns true if the change is written as a factor.
fn is_large_factor(difference: &Difference) -> bool {
    !is_share(difference) && !(1.0 / FACTOR_MIN..=FACTOR_MIN).contains(&(difference.change + 1.0))
}

/// Formats a relative change as a factor: `×12.0`, or `÷12.0` for a twelfth.
fn format_factor(change: f64) -> String {
    let factor = (change + 1.0).max(1e-9);
    if factor >= 1.0 {
        format!("×{}", short(factor))
    } else {
        format!("÷{}", short(1.0 / factor))
    }
}
