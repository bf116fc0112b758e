//! What a run shows beside its objectives: methods that fail, empty results, stalls, drift.
//!
//! A finding is about the target. Advice about the plan is in `plan/lint.rs`, doubts about the
//! generator in `validity.rs`.

use lab_model::plan::{Model, Plan};
use lab_model::record::{Class, Totals};
use lab_model::results::run::{Row, Second, StageRow};

use crate::analysis::statistics::{mean, median, ranks};

#[cfg(test)]
mod tests;

/// Share of a method's calls that fail from which it is named.
const FAILING_SHARE: f64 = 0.01;
/// Fewer failed calls, or fewer empty results, than this may be chance.
const CALLS_MIN: u64 = 10;
/// Points of the series from which stalls and drift are looked for.
const SECONDS_MIN: usize = 5;
/// A stalled second has less than this share of the results of a usual one.
const STALLED_SHARE: f64 = 0.75;
/// A stalled second holds a call that took this long, and so many times the usual median.
const STALL_MS: f64 = 100.0;
const STALL_TIMES: f64 = 10.0;
/// Seconds with fewer results than this are too few to see a stall by.
const RESULTS_MIN: f64 = 20.0;
/// From this factor and this difference on, a median that rises or falls is named.
const DRIFT_TIMES: f64 = 2.0;
const DRIFT_MS: f64 = 1.0;
/// Chance of a trend like this in a steady series.
const DRIFT_P: f64 = 0.05;

/// Something about the target that no objective names.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/verdict.rs")]
pub enum Finding {
    /// Calls of a method fail.
    Failing { method: String, share: f64, failed: u64, calls: u64, class: Class },
    /// All results of a method are null.
    Empty { method: String, nulls: u64 },
    /// The target stalled under a closed load.
    Stalled(Stalls),
    /// The median of a method changed under a steady load.
    Drift { method: String, first_ms: f64, last_ms: f64 },
}

/// Seconds of a closed load in which the target answered hardly anybody. While it stalls, each worker
/// has at most one call in flight, so that percentiles of calls hardly show it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stalls {
    /// Ends of these seconds, since the start of the run.
    pub at: Vec<f64>,
    /// Share of the usual results that is missing over the run.
    pub missing: f64,
    /// The longest call in them, in milliseconds.
    pub longest_ms: f64,
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Everything counted, warm-up left out.
    pub judged: &'a Totals,
    /// By method, warm-up left out.
    pub methods: &'a [Row],
    /// By stage.
    pub stages: &'a [StageRow],
    /// Whole seconds, warm-up left out.
    pub seconds: &'a [&'a Second],
}

/// All findings, most important first.
pub fn find(seen: Seen<'_>, stalls: Option<&Stalls>) -> Vec<Finding> {
    let mut found: Vec<Finding> = seen.methods.iter().filter_map(failing).collect();
    found.extend(seen.methods.iter().filter_map(|row| empty(seen, row)));
    found.extend(stalls.cloned().map(Finding::Stalled));
    let steady = seen.stages.windows(2).all(|pair| pair[0].level_to == pair[1].level_from)
        && seen.stages.iter().all(|stage| stage.level_from == stage.level_to);
    if steady {
        found.extend(seen.methods.iter().filter_map(|row| drift(seen, &row.method)));
    }
    found
}

fn failing(row: &Row) -> Option<Finding> {
    let failed = row.classes.iter().filter(|class| class.class.failed());
    let count: u64 = failed.clone().map(|class| class.calls).sum();
    let class = failed.max_by_key(|class| class.calls)?.class;
    (count >= CALLS_MIN && row.failed_share >= FAILING_SHARE).then(|| Finding::Failing {
        method: row.method.clone(),
        share: row.failed_share,
        failed: count,
        calls: row.calls,
        class,
    })
}

/// A method of which every result was null.
fn empty(seen: Seen<'_>, row: &Row) -> Option<Finding> {
    let index = seen.plan.methods.iter().position(|name| **name == *row.method)?;
    let nulls = *seen.judged.nulls.get(index)?;
    let ok = row.classes.iter().find(|class| class.class == Class::Ok)?;
    let method = || row.method.clone();
    (nulls >= CALLS_MIN && nulls == ok.calls).then(|| Finding::Empty { method: method(), nulls })
}

/// Stalls of a load that has only closed scenarios without pauses.
pub fn stalls(plan: &Plan, seconds: &[&Second]) -> Option<Stalls> {
    let unpaced =
        |one: &lab_model::plan::Scenario| one.model == Model::Closed && one.pause.is_zero();
    if seconds.len() < SECONDS_MIN || !plan.scenarios.iter().all(unpaced) {
        return None;
    }
    let calls = |second: &Second| second.requests as f64;
    let counts: Vec<f64> = seconds.iter().map(|second| calls(second)).collect();
    let medians: Vec<f64> =
        seconds.iter().flat_map(|second| &second.methods).map(|one| one.p50_ms).collect();
    let usual = median(&counts)?;
    let slow = (STALL_TIMES * median(&medians)?).max(STALL_MS);
    // A call that waited for the end of a stall may end in the next second.
    let longest = |place: usize| {
        let near = seconds.iter().skip(place).take(2).flat_map(|second| &second.methods);
        near.map(|one| one.max_ms).fold(0.0, f64::max)
    };
    let few = |(_, second): &(usize, &&Second)| calls(second) < STALLED_SHARE * usual;
    let stalled =
        seconds.iter().enumerate().filter(few).filter(|(place, _)| longest(*place) >= slow);
    let stalled: Vec<(usize, &&Second)> = stalled.collect();
    let missing: f64 = stalled.iter().map(|(_, second)| 1.0 - calls(second) / usual).sum();
    (usual >= RESULTS_MIN && !stalled.is_empty()).then(|| Stalls {
        at: stalled.iter().map(|(_, second)| second.at).collect(),
        missing: missing / seconds.len() as f64,
        longest_ms: stalled.iter().map(|(place, _)| longest(*place)).fold(0.0, f64::max),
    })
}

/// A median that rises or falls in the course of a steady load.
fn drift(seen: Seen<'_>, method: &str) -> Option<Finding> {
    let all = seen.seconds.iter().flat_map(|second| &second.methods);
    let medians: Vec<f64> = all.filter(|one| one.method == method).map(|one| one.p50_ms).collect();
    let part = medians.len() / 3;
    if medians.len() < SECONDS_MIN || part == 0 {
        return None;
    }
    let (first, last) = (mean(&medians[..part])?, mean(&medians[medians.len() - part..])?);
    let (low, high) = (first.min(last), first.max(last));
    let trend = ranks::trend(&medians).is_some_and(|test| test.p < DRIFT_P);
    (trend && high >= DRIFT_TIMES * low && high - low >= DRIFT_MS).then(|| Finding::Drift {
        method: method.to_owned(),
        first_ms: first,
        last_ms: last,
    })
}
