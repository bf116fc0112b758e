//! Checks results for contradictions before they are printed. A contradiction is a bug of this
//! program, not of the target.

use lab_engine::aggregate;
use lab_model::record::Class;
use lab_model::results::capacity::{CapacityResult, Kind, ProbeOutcome};
use lab_model::results::compare::CompareResult;
use lab_model::results::run::RunResult;
use lab_model::results::{Basis, Cause, ComparisonVerdict, Outcome};

use crate::wording::difference;

#[cfg(test)]
mod tests;

/// Tolerance of the goodput, as a share of the calls. A call near the edge of a second may be
/// counted in the next second.
const GOODPUT_TOLERANCE: f64 = 0.02;
/// Smallest tolerance of the goodput as a number of calls.
const GOODPUT_TOLERANCE_MIN: f64 = 3.0;
/// Smallest number of calls at which a p99 needs no warning. With fewer calls, fewer than ten are
/// slower than the p99.
const P99_CALLS_MIN: u64 = 1_000;

/// Returns the contradictions in a run's result.
pub fn check_run(result: &RunResult) -> Vec<String> {
    let mut faults = Vec::new();
    check_goodput(result, &mut faults);
    check_verdict(result, &mut faults);
    check_percentiles(result, &mut faults);
    check_bottleneck(result, &mut faults);
    faults
}

/// Checks the goodput (successful calls per second) against the time series. The goodput must not
/// imply more successful calls than the series has.
fn check_goodput(result: &RunResult, faults: &mut Vec<String>) {
    let measured_seconds = result.duration - result.plan.warmup;
    let seconds_per_point = aggregate::point_seconds(&result.series);
    // A point of the series ends at `at`. The last point may end after the load, but it began
    // during the load and is counted.
    let points = result.series.iter().filter(|second| {
        second.at > result.plan.warmup && second.at - seconds_per_point < result.duration
    });
    let succeeded =
        points.map(|second| second.count(|class| class == Class::Ok)).sum::<u64>() as f64;
    let reported = result.overall.goodput * measured_seconds;
    let tolerance = (succeeded * GOODPUT_TOLERANCE).max(GOODPUT_TOLERANCE_MIN);
    if measured_seconds > 0.0 && reported > succeeded + tolerance {
        faults.push(format!(
            "a goodput of {:.1}/s for {measured_seconds:.1} s is {reported:.0} calls, but only \
             {succeeded:.0} succeeded during the load",
            result.overall.goodput
        ));
    }
}

/// Checks that the verdict agrees with the thresholds, and that a bad verdict has a reason.
fn check_verdict(result: &RunResult, faults: &mut Vec<String>) {
    let verdict = &result.verdict;
    let broken = result.thresholds.iter().find(|threshold| !threshold.kept);
    match (verdict.outcome, broken) {
        (Outcome::Pass | Outcome::Measured, Some(broken)) => {
            faults.push(format!("the run passes, but {} is broken", broken.text));
        }
        (Outcome::Pass, None) if result.thresholds.is_empty() => {
            faults.push("the run passes without thresholds".to_owned());
        }
        (Outcome::Measured, None) if !result.thresholds.is_empty() => {
            faults.push("the run has thresholds, but no verdict about them".to_owned());
        }
        (Outcome::Fail | Outcome::Invalid | Outcome::ClientLimited, _)
            if verdict.reasons.is_empty() =>
        {
            faults.push("the verdict has no reason".to_owned());
        }
        _ => {}
    }
}

/// Checks that a warning exists for each p99 that is based on too few calls.
fn check_percentiles(result: &RunResult, faults: &mut Vec<String>) {
    for row in result.methods.iter().filter(|row| (1..P99_CALLS_MIN).contains(&row.calls)) {
        if !result.few_calls.contains(&row.method) {
            faults.push(format!(
                "the p99 of {} rests on {} calls, but there is no warning about it",
                row.method, row.calls
            ));
        }
    }
}

/// Checks that a bottleneck has evidence.
fn check_bottleneck(result: &RunResult, faults: &mut Vec<String>) {
    let Some(finding) = &result.bottleneck else { return };
    if finding.cause != Cause::Unknown && finding.evidence.is_empty() {
        faults.push(format!("a bottleneck without evidence: {}", finding.sentence));
    }
}

/// Returns the contradictions in the result of a capacity search. A *soak* is a long probe at the
/// highest rate that passed.
pub fn check_capacity(result: &CapacityResult) -> Vec<String> {
    let answer = &result.answer;
    let mut faults = Vec::new();
    let soaks = || result.probes.iter().filter(|probe| probe.kind == Kind::Soak);
    // The share of 1e-9 allows for rounding of the rate.
    let has_held = |rate: f64| {
        soaks()
            .any(|probe| probe.outcome == ProbeOutcome::Pass && probe.rate >= rate * (1.0 - 1e-9))
    };
    if answer.soak_held == Some(true) && !answer.highest_pass.is_some_and(has_held) {
        faults.push(format!(
            "{:?} is reported as held, but no soak at that rate or above held",
            answer.highest_pass
        ));
    }
    if let (Some(pass), Some(fail)) = (answer.highest_pass, answer.lowest_fail)
        && pass >= fail
    {
        faults.push(format!(
            "the highest rate that passed, {pass}/s, is not below the lowest that failed, {fail}/s"
        ));
    }
    faults
}

/// Returns the contradictions in the result of a comparison.
pub fn check_comparison(result: &CompareResult) -> Vec<String> {
    let mut faults = Vec::new();
    for difference in &result.differences {
        let excludes_zero = difference.interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        if difference.verdict == ComparisonVerdict::Same && excludes_zero {
            faults.push(format!(
                "{} is reported as the same, but the interval excludes zero",
                difference::sentence(difference)
            ));
        }
        if difference.verdict.is_different()
            && !excludes_zero
            && difference.basis != Basis::FarApart
        {
            faults.push(format!(
                "{} is reported as different, but the interval contains zero",
                difference::sentence(difference)
            ));
        }
    }
    faults
}
