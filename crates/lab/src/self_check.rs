//! Checks results for internal consistency before they are printed. A violation is a bug of this
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

/// Maximum share of calls that are counted in a different second than the one in which they ended.
const ROUNDING_SHARE: f64 = 0.02;
/// Number of calls in a different second that is always allowed.
const ROUNDING_MIN: f64 = 3.0;
/// Smallest number of calls for ten calls beyond a p99.
const P99_CALLS: u64 = 1_000;

/// Returns the contradictions in a run's result.
pub fn run(result: &RunResult) -> Vec<String> {
    let mut faults = Vec::new();
    goodput(result, &mut faults);
    verdict(result, &mut faults);
    percentiles(result, &mut faults);
    bottleneck(result, &mut faults);
    faults
}

/// Checks that the goodput does not exceed the results in the seconds of the load.
fn goodput(result: &RunResult, faults: &mut Vec<String>) {
    let span = result.duration - result.plan.warmup;
    let seconds_per_point = aggregate::point_seconds(&result.series);
    // A point that begins before the end of the load may hold results from before the end.
    let inside = result.series.iter().filter(|second| {
        second.at > result.plan.warmup && second.at - seconds_per_point < result.duration
    });
    let results = inside.flat_map(|second| &second.methods).flat_map(|method| &method.classes);
    let ended: u64 = results.filter(|(class, _)| *class == Class::Ok).map(|(_, count)| count).sum();
    let reported = result.overall.goodput * span;
    let ended = ended as f64;
    if span > 0.0 && reported > ended + (ended * ROUNDING_SHARE).max(ROUNDING_MIN) {
        faults.push(format!(
            "{:.1} results per second for {span:.1} s are {reported:.0}, but only {ended:.0} results \
             arrived during the load",
            result.overall.goodput
        ));
    }
}

fn verdict(result: &RunResult, faults: &mut Vec<String>) {
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

/// Checks that every percentile with fewer than ten calls beyond it has a warning.
fn percentiles(result: &RunResult, faults: &mut Vec<String>) {
    for row in result.methods.iter().filter(|row| (1..P99_CALLS).contains(&row.calls)) {
        let is_about_p99 = |warning: &&String| {
            warning.contains("p99") && warning.contains(&format!("{} (", row.method))
        };
        if !result.warnings.iter().any(|warning| is_about_p99(&warning)) {
            faults.push(format!(
                "the p99 of {} rests on {} calls, but there is no warning about it",
                row.method, row.calls
            ));
        }
    }
}

/// Checks that a bottleneck has evidence.
fn bottleneck(result: &RunResult, faults: &mut Vec<String>) {
    let Some(finding) = &result.bottleneck else { return };
    if finding.cause != Cause::Unknown && finding.evidence.is_empty() {
        faults.push(format!("a bottleneck without evidence: {}", finding.sentence));
    }
}

/// Returns the contradictions in the result of a capacity search.
pub fn capacity(result: &CapacityResult) -> Vec<String> {
    let answer = &result.answer;
    let mut faults = Vec::new();
    let soaks = || result.probes.iter().filter(|probe| probe.kind == Kind::Soak);
    let held = |rate: f64| {
        soaks()
            .any(|probe| probe.outcome == ProbeOutcome::Pass && probe.rate >= rate * (1.0 - 1e-9))
    };
    let says_held = answer.soak_held == Some(true) || answer.sentence.contains(", held for");
    if says_held && !answer.highest_pass.is_some_and(held) {
        faults.push(format!(
            "{:?} is reported as held, but no soak at that rate or above held",
            answer.highest_pass
        ));
    }
    if let (Some(pass), Some(fail)) = (answer.highest_pass, answer.lowest_fail)
        && pass >= fail
    {
        faults.push(format!("{pass}/s pass, and {fail}/s below it fail"));
    }
    faults
}

/// Returns the contradictions in the result of a comparison.
pub fn comparison(result: &CompareResult) -> Vec<String> {
    let mut faults = Vec::new();
    for difference in &result.differences {
        let excluded = difference.interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        let differs =
            matches!(difference.verdict, ComparisonVerdict::Better | ComparisonVerdict::Worse);
        if difference.verdict == ComparisonVerdict::Same && excluded {
            faults.push(format!(
                "{} is reported as the same, but the interval excludes zero",
                difference::sentence(difference)
            ));
        }
        if differs && !excluded && difference.basis != Basis::FarApart {
            faults.push(format!(
                "{} is reported as different, but the interval contains zero",
                difference::sentence(difference)
            ));
        }
    }
    faults
}
