//! Findings about the target that no threshold covers: failing methods, methods that only return
//! null, stalls, and drift of the latency. A subscription has a finding if its connections end, or
//! if its notifications are missing or repeated.
//!
//! A target stalls if it responds to hardly any call for a second. A closed load has workers that
//! wait for each response; an open load starts calls at a planned rate. Advice about the plan is in
//! `plan/lint.rs`; doubts about the generator are in `validity.rs`.

use lab_model::plan::{Model, Plan};
use lab_model::record::{Class, Totals};
use lab_model::results::run::{Row, Second, StageRow};
use lab_model::results::subscription::SubscriptionRow;

use crate::analysis::statistics::{mean, median, ranks};

#[cfg(test)]
mod tests;

/// A method is reported if at least this share of its calls failed.
const FAILING_SHARE: f64 = 0.01;
/// Smallest number of failed calls, or of null results, that is reported. Fewer may be chance.
const CALLS_MIN: u64 = 10;
/// Stalls and drift are searched only in runs of at least this many seconds.
const SECONDS_MIN: usize = 5;
/// A second counts as stalled only if it has less than this share of the median second's requests.
const STALLED_SHARE: f64 = 0.75;
/// A second counts as stalled only if a call that ends in it, or in the next one, took at least
/// this many milliseconds.
const STALL_MS: f64 = 100.0;
/// The call that `STALL_MS` requires must also take at least this multiple of the usual latency.
/// The usual latency is the median of all per-second medians.
const STALL_LATENCY_RATIO_MIN: f64 = 10.0;
/// Stalls are searched only if at least this many requests end in the median second. Otherwise a
/// second with few requests may be chance.
const MEDIAN_REQUESTS_MIN: f64 = 20.0;
/// Drift is reported if the latencies in the first and the last third of the run differ by at least
/// this factor. The latency is the mean of per-second medians.
const DRIFT_RATIO_MIN: f64 = 2.0;
/// Drift is reported only if these two means differ by at least this many milliseconds.
const DRIFT_MS: f64 = 1.0;
/// Drift is reported if the p-value of the trend (Mann-Kendall test) is below this.
const DRIFT_P: f64 = 0.05;

/// A fact about the target that no threshold covers.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/verdict.rs")]
pub enum Finding {
    /// Calls of a method fail.
    Failing { method: String, share: f64, failed: u64, calls: u64, class: Class },
    /// All successful calls of a method returned null.
    AllNull { method: String, nulls: u64 },
    /// The target stalled under a closed load.
    Stalled(Stalls),
    /// The latency medians of a method rose or fell under a steady load. The numbers are means of
    /// per-second medians, in the first and last third of the run.
    Drift { method: String, first_ms: f64, last_ms: f64 },
    /// Connections of a subscription failed or ended. `reason` is the most frequent reason.
    Unsubscribed { name: String, ended: u64, connections: u64, reason: String },
    /// Connections of a subscription did not receive blocks or logs that others received.
    Missing { name: String, missing: u64, connections: u64 },
    /// Connections of a subscription received blocks or logs more than once.
    Duplicates { name: String, duplicates: u64, notifications: u64 },
}

/// Seconds of a closed load in which the target hardly responded. Each worker has at most one call
/// in flight during a stall, so percentiles of calls hardly show the stall (coordinated omission).
#[derive(Clone, Debug, PartialEq)]
pub struct Stalls {
    /// Ends of the stalled seconds, in seconds since the start of the run.
    pub at: Vec<f64>,
    /// Share of the run's expected requests that are missing because of the stalls. Each second is
    /// expected to have the median number of requests.
    pub missing_share: f64,
    /// The longest call in the stalled seconds, in milliseconds.
    pub longest_ms: f64,
}

/// The parts of a run's result that the search for findings reads.
#[derive(Clone, Copy, Debug)]
pub struct FindingsInput<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Totals without the warm-up.
    pub measured: &'a Totals,
    /// Totals by method, without the warm-up.
    pub methods: &'a [Row],
    /// Totals by stage.
    pub stages: &'a [StageRow],
    /// Complete seconds, without the warm-up.
    pub seconds: &'a [&'a Second],
    /// The subscriptions.
    pub subscriptions: &'a [SubscriptionRow],
}

/// Returns all findings, most important first. `stalls` is the result of [`find_stalls`].
pub fn find(input: FindingsInput<'_>, stalls: Option<&Stalls>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = input.methods.iter().filter_map(find_failing).collect();
    findings.extend(input.methods.iter().filter_map(|row| find_all_null(input, row)));
    findings.extend(stalls.cloned().map(Finding::Stalled));
    let is_steady = input.stages.windows(2).all(|pair| pair[0].level_to == pair[1].level_from)
        && input.stages.iter().all(|stage| stage.level_from == stage.level_to);
    if is_steady {
        findings.extend(input.methods.iter().filter_map(|row| find_drift(input, &row.method)));
    }
    findings.extend(input.subscriptions.iter().flat_map(find_in_subscription));
    findings
}

/// Returns the findings about a subscription.
fn find_in_subscription(row: &SubscriptionRow) -> Vec<Finding> {
    let name = || row.name.clone();
    let ended: u64 = row.ended.iter().map(|(_, connections)| connections).sum();
    let most_frequent = row.ended.iter().max_by_key(|(_, connections)| *connections);
    let unsubscribed = most_frequent.map(|(reason, _)| Finding::Unsubscribed {
        name: name(),
        ended,
        connections: row.connections,
        reason: reason.clone(),
    });
    let missing = row.missing.filter(|missing| *missing > 0).map(|missing| Finding::Missing {
        name: name(),
        missing,
        connections: row.connections_missing,
    });
    let duplicates = (row.duplicates > 0).then(|| Finding::Duplicates {
        name: name(),
        duplicates: row.duplicates,
        notifications: row.notifications,
    });
    unsubscribed.into_iter().chain(missing).chain(duplicates).collect()
}

/// Returns a finding if a notable share of the method's calls failed.
fn find_failing(row: &Row) -> Option<Finding> {
    let failures = row.classes.iter().filter(|class| class.class.is_failure());
    let failed: u64 = failures.clone().map(|class| class.calls).sum();
    let class = failures.max_by_key(|class| class.calls)?.class;
    (failed >= CALLS_MIN && row.failed_share >= FAILING_SHARE).then(|| Finding::Failing {
        method: row.method.clone(),
        share: row.failed_share,
        failed,
        calls: row.calls,
        class,
    })
}

/// Returns a finding if all results of the method were null.
fn find_all_null(input: FindingsInput<'_>, row: &Row) -> Option<Finding> {
    let index = input.plan.methods.iter().position(|name| **name == *row.method)?;
    let nulls = *input.measured.nulls.get(index)?;
    let ok = row.classes.iter().find(|class| class.class == Class::Ok)?;
    (nulls >= CALLS_MIN && nulls == ok.calls)
        .then(|| Finding::AllNull { method: row.method.clone(), nulls })
}

/// Returns the stalls of the target. `None` if the target did not stall, if a scenario is open or
/// has pauses, or if the run has too few seconds or requests.
pub fn find_stalls(plan: &Plan, seconds: &[&Second]) -> Option<Stalls> {
    let is_unpaced = |scenario: &lab_model::plan::Scenario| {
        scenario.model == Model::Closed && scenario.pause.is_zero()
    };
    if seconds.len() < SECONDS_MIN || !plan.scenarios.iter().all(is_unpaced) {
        return None;
    }
    let requests = |second: &Second| second.requests as f64;
    let counts: Vec<f64> = seconds.iter().map(|second| requests(second)).collect();
    let medians_ms: Vec<f64> =
        seconds.iter().flat_map(|second| &second.methods).map(|method| method.p50_ms).collect();
    let median_requests = median(&counts)?;
    let stall_ms = (STALL_LATENCY_RATIO_MIN * median(&medians_ms)?).max(STALL_MS);
    // A call that waited for the end of a stall may end in the next second.
    let longest_ms = |index: usize| {
        let both_seconds = seconds.iter().skip(index).take(2).flat_map(|second| &second.methods);
        both_seconds.map(|method| method.max_ms).fold(0.0, f64::max)
    };
    let is_stalled = |(index, second): &(usize, &&Second)| {
        requests(second) < STALLED_SHARE * median_requests && longest_ms(*index) >= stall_ms
    };
    let stalled: Vec<(usize, &&Second)> = seconds.iter().enumerate().filter(is_stalled).collect();
    // Number of requests that are missing in the stalled seconds, divided by the median number of
    // requests per second.
    let missing_seconds: f64 =
        stalled.iter().map(|(_, second)| 1.0 - requests(second) / median_requests).sum();
    (median_requests >= MEDIAN_REQUESTS_MIN && !stalled.is_empty()).then(|| Stalls {
        at: stalled.iter().map(|(_, second)| second.at).collect(),
        missing_share: missing_seconds / seconds.len() as f64,
        longest_ms: stalled.iter().map(|(index, _)| longest_ms(*index)).fold(0.0, f64::max),
    })
}

/// Returns a finding if the method's latency medians rise or fall. The caller checks that the load
/// is steady.
fn find_drift(input: FindingsInput<'_>, method: &str) -> Option<Finding> {
    let methods = input.seconds.iter().flat_map(|second| &second.methods);
    let medians_ms: Vec<f64> =
        methods.filter(|row| row.method == method).map(|row| row.p50_ms).collect();
    let third = medians_ms.len() / 3;
    if medians_ms.len() < SECONDS_MIN || third == 0 {
        return None;
    }
    let first_ms = mean(&medians_ms[..third])?;
    let last_ms = mean(&medians_ms[medians_ms.len() - third..])?;
    let (low_ms, high_ms) = (first_ms.min(last_ms), first_ms.max(last_ms));
    let has_trend = ranks::mann_kendall(&medians_ms).is_some_and(|test| test.p < DRIFT_P);
    let is_large = high_ms >= DRIFT_RATIO_MIN * low_ms && high_ms - low_ms >= DRIFT_MS;
    (has_trend && is_large).then(|| Finding::Drift { method: method.to_owned(), first_ms, last_ms })
}
