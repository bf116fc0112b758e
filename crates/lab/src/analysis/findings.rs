//! Findings about the target that no threshold covers: failing methods, methods that only return
//! null, stalls, and drift of the latency. A subscription has a finding if its connections end, or
//! if its notifications are missing or repeated.
//!
//! A target stalls if it responds to hardly any call for a second. A closed load has workers that
//! wait for each response; an open load starts calls at a planned rate. Advice about the plan is in
//! `plan/lint.rs`; doubts about the generator are in `validity.rs`.

use lab_engine::aggregate;
use lab_model::metrics::host::host;
use lab_model::plan::{Model, Plan};
use lab_model::record::{Class, Totals};
use lab_model::results::run::{HostSample, Row, Second, StageRow};
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
    /// Results of a method have another JSON type than the method's results, or are null although
    /// those never are.
    WrongType { method: String, share: f64, results: u64 },
    /// All successful calls of a method returned null.
    AllNull { method: String, nulls: u64 },
    /// Some successful calls of a method returned null.
    SomeNull { method: String, share: f64, nulls: u64 },
    /// The target stalled under a closed load.
    Stalled(Stalls),
    /// The latency medians of a method rose or fell under a steady load. The numbers are means of
    /// per-second medians, in the first and last third of the run.
    Drift { method: String, first_ms: f64, last_ms: f64 },
    /// Calls waited for a free worker of the generator longer than for their responses. The times are
    /// medians over all calls. The timeout counts from the send.
    WaitedForWorker { latency_ms: f64, service_ms: f64, timeout_ms: f64 },
    /// Other clients used the target during the run, on this many connections on average.
    OtherClients { connections: f64 },
    /// The server sent responses to calls a second time.
    DuplicateResponses { responses: u64, requests: u64 },
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
    /// Totals over all methods, without the warm-up.
    pub overall: &'a Row,
    /// Totals by method, without the warm-up.
    pub methods: &'a [Row],
    /// Totals by stage.
    pub stages: &'a [StageRow],
    /// Complete seconds, without the warm-up.
    pub seconds: &'a [&'a Second],
    /// The subscriptions.
    pub subscriptions: &'a [SubscriptionRow],
    /// Samples of the hosts over the run.
    pub host: &'a [HostSample],
}

/// Returns all findings, most important first. `stalls` is the result of [`find_stalls`].
pub fn find(input: FindingsInput<'_>, stalls: Option<&Stalls>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = input.methods.iter().filter_map(find_failing).collect();
    findings.extend(input.methods.iter().filter_map(|row| find_wrong_type(input, row)));
    findings.extend(input.methods.iter().filter_map(|row| find_nulls(input, row)));
    findings.extend(stalls.cloned().map(Finding::Stalled));
    findings.extend(find_wait_for_worker(input));
    findings.extend(find_other_clients(input.plan, input.host));
    let traffic = &input.measured.traffic;
    findings.extend((traffic.duplicates > 0).then_some(Finding::DuplicateResponses {
        responses: traffic.duplicates,
        requests: traffic.requests,
    }));
    let is_steady = input.stages.windows(2).all(|pair| pair[0].level_to == pair[1].level_from)
        && input.stages.iter().all(|stage| stage.level_from == stage.level_to);
    if is_steady && !has_backlog(input) {
        findings.extend(input.methods.iter().filter_map(|row| find_drift(input, &row.method)));
    }
    findings.extend(input.subscriptions.iter().flat_map(find_in_subscription));
    findings
}

/// The load has a backlog if less than this share of the scheduled iterations ended before the end of
/// the load. The latency then grows with the backlog.
const ENDED_SHARE_MIN: f64 = 0.95;

/// Returns true if iterations waited for a worker, or if many did not end in time. The latency then
/// rises although the target responds as fast as before.
fn has_backlog(input: FindingsInput<'_>) -> bool {
    let iterations = aggregate::sum_iterations(input.measured);
    let ended_in_time = iterations.ended.saturating_sub(iterations.ended_after_end);
    input.seconds.iter().any(|second| second.waiting > 0)
        || (ended_in_time as f64) < ENDED_SHARE_MIN * iterations.scheduled as f64
}

/// Other clients are reported if they use at least this many connections on average. A client that
/// calls once in a while, such as a monitor, uses none most of the time.
const OTHER_CONNECTIONS_MIN: f64 = 1.0;

/// Returns a finding if other clients used a target on this host during the measured time.
pub fn find_other_clients(plan: &Plan, host: &[HostSample]) -> Option<Finding> {
    let (warmup, end) = (plan.warmup.as_secs_f64(), plan.duration().as_secs_f64());
    // A connection counts for a second after its last use.
    let is_measured = |sample: &&HostSample| sample.at > warmup + 1.0 && sample.at <= end;
    let name = host!("target.connections_other").name;
    let values = host.iter().filter(is_measured).flat_map(|sample| &sample.values);
    let counts: Vec<f64> =
        values.filter(|(metric, _)| metric == name).map(|(_, value)| *value).collect();
    let connections = mean(&counts)?;
    (connections >= OTHER_CONNECTIONS_MIN).then_some(Finding::OtherClients { connections })
}

/// Returns a finding if iterations waited in the generator, and calls waited there longer than for
/// their responses.
fn find_wait_for_worker(input: FindingsInput<'_>) -> Option<Finding> {
    // Waits because the generator itself was stopped do not count.
    let latency = input.overall.latency_least.unwrap_or(input.overall.latency);
    let (latency_ms, service_ms) = (latency.p50_ms, input.overall.service.p50_ms);
    let has_queue = input.seconds.iter().any(|second| second.waiting > 0);
    (has_queue && latency_ms > 2.0 * service_ms).then_some(Finding::WaitedForWorker {
        latency_ms,
        service_ms,
        timeout_ms: input.plan.target.timeout.as_secs_f64() * 1e3,
    })
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

/// Returns the number of a row's method among the counts of each method of the plan.
fn count_of(input: FindingsInput<'_>, counts: &[u64], row: &Row) -> Option<u64> {
    let index = input.plan.methods.iter().position(|name| **name == *row.method)?;
    counts.get(index).copied()
}

/// Returns a finding if results of the method have a wrong type. One such result is enough: it is
/// no matter of chance. If all results are null, [`find_nulls`] has the finding.
fn find_wrong_type(input: FindingsInput<'_>, row: &Row) -> Option<Finding> {
    let results = count_of(input, &input.measured.wrong_types, row)?;
    if matches!(find_nulls(input, row), Some(Finding::AllNull { .. })) {
        return None;
    }
    let share = results as f64 / row.calls.max(1) as f64;
    (results > 0).then(|| Finding::WrongType { method: row.method.clone(), share, results })
}

/// Returns a finding if all results of the method were null, or a notable share of them. Results
/// that must not be null have another finding.
fn find_nulls(input: FindingsInput<'_>, row: &Row) -> Option<Finding> {
    let nulls = count_of(input, &input.measured.nulls, row)?;
    let ok = row.classes.iter().find(|class| class.class == Class::Ok)?;
    let share = nulls as f64 / ok.calls as f64;
    let method = row.method.clone();
    match () {
        () if nulls < CALLS_MIN => None,
        () if nulls == ok.calls => Some(Finding::AllNull { method, nulls }),
        () if count_of(input, &input.measured.wrong_types, row)? > 0 => None,
        () if share >= FAILING_SHARE => Some(Finding::SomeNull { method, share, nulls }),
        () => None,
    }
}

/// Returns the stalls of the target. Neither calls that the generator itself delayed nor gaps of the generator of the same length
/// show a stall. `None` if the target did not stall, if a scenario is open or
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
    // A call that waited for the end of a stall may end in the next second. Delays that the generator
    // itself caused do not count.
    let longest_ms = |index: usize| {
        let both_seconds = seconds.iter().skip(index).take(2).flat_map(|second| &second.methods);
        both_seconds.map(|method| method.max_least_ms.unwrap_or(method.max_ms)).fold(0.0, f64::max)
    };
    let is_stalled = |(index, second): &(usize, &&Second)| {
        let generator_ran = (1.0 - second.generator_gap_ms / 1e3).max(0.0);
        // After a gap the workers send at once, which may make the target slow for as long.
        let around = seconds.iter().skip(index.saturating_sub(1)).take(3);
        let gap_ms = around.map(|second| second.generator_gap_ms).fold(0.0, f64::max);
        requests(second) < STALLED_SHARE * median_requests * generator_ran
            && longest_ms(*index) >= stall_ms
            && longest_ms(*index) > gap_ms
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
