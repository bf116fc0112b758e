//! Writes the texts of test cases for CI servers.

use lab_model::metrics::Unit;
use lab_model::results::ThresholdOutcome;
use lab_model::results::compare::Difference;
use lab_model::results::equal::DifferenceRow;

use super::difference as difference_text;
use super::number::{clock, plural, with_unit};

/// Reason for the error of a run that was stopped early.
pub(crate) const PARTIAL: &str = "the run ended before its plan";
/// Reason for the error of an interrupted study.
pub(crate) const PARTIAL_STUDY: &str = "the study was interrupted";
/// Reason for the error of a study of load runs with too few rounds.
pub(crate) const NO_ROUNDS: &str = "fewer than two rounds could be compared";
/// Reason for the error of a sync study without a result for a variant.
pub(crate) const NOT_COMPARED: &str =
    "the variants could not be compared: one of them did not reach the height to compare";

/// Returns the observed value of a threshold, with its note.
pub(crate) fn describe_threshold(outcome: &ThresholdOutcome) -> String {
    let observed = match (outcome.observed, outcome.unit) {
        (Some(value), unit) => {
            format!("observed {}", with_unit(value, unit.unwrap_or(Unit::Count)))
        }
        (None, _) => "no data".to_owned(),
    };
    let broken_at = outcome.broken_at.map(|at| format!(", first broken at {}", clock(at)));
    let note = outcome.note.as_ref().map(|note| format!("; {note}"));
    format!("{observed}{}{}", broken_at.unwrap_or_default(), note.unwrap_or_default())
}

/// Returns the difference of a metric between two variants, with its verdict.
pub(crate) fn describe_difference(difference: &Difference) -> String {
    let verdict = difference.verdict.as_str();
    format!("{verdict}: {}", difference_text::sentence(difference))
}

/// Returns an example of a difference between two responses.
pub(crate) fn describe_response(row: &DifferenceRow) -> String {
    let example = &row.example;
    format!(
        "{} differ\npointer: {}\nA: {}\nB: {}\nrequest: {}",
        plural(row.calls, "call"),
        example.pointer,
        example.a,
        example.b,
        example.request
    )
}

/// Returns the reason for the error of a method if some of its calls were not compared.
pub(crate) fn describe_unanswered(calls: u64) -> String {
    format!("{} could not be compared", plural(calls, "call"))
}
