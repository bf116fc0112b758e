//! Formats a difference between two variants: its values, its change and its interval.

use lab_model::results::compare::{CompareResult, Difference, Metric};
use lab_model::results::{Basis, ComparisonVerdict};

use super::number::{join_first, plural, short};

/// Maximum number of differences that a sentence names.
pub(crate) const NAMED_MAX: usize = 4;

/// Summarizes in one sentence how a variant differs from the first one.
pub(crate) fn describe_variant(result: &CompareResult, first: &str, other: &str) -> String {
    let rows = || result.differences.iter().filter(|difference| difference.variant == other);
    let with_verdict =
        |verdict: ComparisonVerdict| rows().filter(move |difference| difference.verdict == verdict);
    let count = |verdict| with_verdict(verdict).count();
    let mut parts = Vec::new();
    for verdict in [ComparisonVerdict::Worse, ComparisonVerdict::Better] {
        if count(verdict) > 0 {
            parts.push(format!("{} in {}", verdict.as_str(), name_largest(with_verdict(verdict))));
        }
    }
    let undecided = count(ComparisonVerdict::CannotTell);
    if parts.is_empty() {
        let large_undecided = with_verdict(ComparisonVerdict::CannotTell).filter(|difference| {
            difference.basis != Basis::MixDiffers && is_beyond_floor(difference)
        });
        let large_undecided: Vec<&Difference> = large_undecided.collect();
        parts.push(match large_undecided.as_slice() {
            [] => "no significant difference".to_owned(),
            rows => format!(
                "cannot tell: {}, but {}",
                name_largest(rows.iter().copied()),
                describe_lack(rows[0])
            ),
        });
    }
    let negligible = match count(ComparisonVerdict::Negligible) {
        0 => String::new(),
        count => format!(", {count} differ negligibly"),
    };
    let single_runs = rows()
        .any(|row| matches!(row.basis, Basis::WithinRun | Basis::Calls))
        .then_some(" (one run each: the spread between runs is unknown, so the floors are wider)");
    format!(
        "{other} compared with {first}: {}; of {} figures {} are the same{negligible} and {undecided} \
         cannot be told{}",
        parts.join("; "),
        rows().count(),
        count(ComparisonVerdict::Same),
        single_runs.unwrap_or_default()
    )
}

/// Returns true if the change is beyond the floor, which is the smallest change that matters.
pub(crate) fn is_beyond_floor(difference: &Difference) -> bool {
    let Difference { change, floor, .. } = *difference;
    let lower_floor = if is_share(difference) { -floor } else { -floor / (1.0 + floor) };
    change > floor || change < lower_floor
}

/// Returns why a change that is beyond the floor has no verdict.
fn describe_lack(difference: &Difference) -> String {
    let Difference { a_count, b_count, .. } = *difference;
    match difference.basis {
        Basis::PairedRuns => format!(
            "{} of runs cannot tell that from noise or a drift; make more pairs, in the order A B B A",
            plural(a_count as u64, "pair")
        ),
        Basis::Runs | Basis::FewRuns => {
            format!("{a_count} and {b_count} runs cannot tell that from noise; make more runs")
        }
        Basis::WithinRun | Basis::Calls | Basis::FarApart | Basis::ValuesOnly => {
            "a single run cannot tell that from noise; make more runs of each variant".to_owned()
        }
        Basis::MixDiffers => "the mix of methods differs".to_owned(),
    }
}

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
    let (low, high) = difference.interval?;
    let is_wide =
        !is_share(difference) && (high + 1.0 > WIDE_FACTOR || low + 1.0 < 1.0 / WIDE_FACTOR);
    Some(match is_wide || is_large_factor(difference) {
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

/// An interval that reaches beyond this factor, up or down, is written in factors.
const WIDE_FACTOR: f64 = 100.0;

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
