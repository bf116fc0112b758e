//! Judges a run. The verdict is pass, fail, measured, invalid, or client-limited: the load
//! generator was the limit, not the target.
//!
//! The generator's engine threads send the calls. An iteration is one pass through the steps of a
//! scenario. An open load starts iterations at planned times. In a closed load, each worker waits
//! for a response before its next call.
//!
//! The first rule that applies decides:
//! 1. Nothing was measured: invalid.
//! 2. The target failed, and the generator cannot be the cause: fail.
//! 3. The generator was the limit, or the plan has too few workers for its rate: client-limited.
//!    Broken thresholds are reported, but do not decide.
//! 4. A threshold is broken, and late sends of the generator, or a time in which it was stopped, may
//!    be the cause: invalid.
//! 5. Only thresholds about throughput are broken, and the plan's own pauses limited the
//!    throughput: client-limited.
//! 6. The user stopped the run: invalid, because a threshold might have broken later.
//! 7. The plan's own pauses limited the rate: client-limited, even if all thresholds were kept.
//!    Such a load slows down with the target, so it shows little about the target.
//! 8. The plan has no thresholds, and the generator's own delays may be a notable share of the median
//!    or of the 95th percentile, or its threads waited for a core for most of the time: invalid.
//! 9. The plan has no thresholds: measured. Higher percentiles that may be the generator's are marked.
//! 10. Otherwise: pass. Late sends only add to latencies, so they cannot hide a broken limit.
//!
//! The delay of a call is the time by which the generator sent the call too late. The generator can
//! cause a failure only in these cases:
//! - The share of HTTP 429 responses, or of late iterations, is too large. It exceeds its limit by
//!   at most the share of the calls that were sent late.
//! - A call times out, and the longest delay is at least the timeout.
//! - A latency exceeds its limit by at most the longest delay, and would keep the limit without the
//!   delays.
//! - The throughput is too low under a closed load.
//!
//! The generator never causes an error response or a wrong result. The delay has no upper bound in
//! two cases: the plan has too few workers, or the engine threads were overloaded. They are
//! overloaded if they lack CPU time or free ports, or if responses are large. An unbounded delay
//! may explain every failure except error responses, wrong results and HTTP 429 responses.

use lab_model::metrics::{Metric, Samples, Unit};
use lab_model::plan::threshold::{Aggregation, Operator};
use lab_model::plan::{Model, Plan};
use lab_model::record::Class;
use lab_model::results::Outcome;
use lab_model::results::run::{Compared, Difference, Row};

use crate::analysis::failure_period::FailurePeriod;
use crate::analysis::findings::Stalls;
use crate::analysis::thresholds::ThresholdResult;
use crate::analysis::validity;
use crate::analysis::validity::{Delay, Doubt, Doubts};

mod own_delay;

#[cfg(test)]
mod tests;

/// The input of a verdict.
#[derive(Clone, Copy, Debug)]
pub struct VerdictInput<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Outcomes of the thresholds about calls and iterations, in the order of the plan.
    pub threshold_results: &'a [ThresholdResult],
    /// Outcomes of the thresholds of subscriptions.
    pub subscription_results: &'a [ThresholdResult],
    /// Doubts about the numbers.
    pub doubts: &'a Doubts,
    /// Totals over all methods, without the warm-up.
    pub overall: &'a Row,
    /// Totals by method, without the warm-up.
    pub methods: &'a [Row],
    /// Methods with a period in which most of their calls failed.
    pub failure_periods: &'a [(String, FailurePeriod)],
    /// Comparison of sampled responses with those of the reference, a second server whose responses
    /// count as right. `None` if the plan has no reference.
    pub compared: Option<&'a Compared>,
    /// Seconds in which the target stalled under a closed load; `None` if there were none.
    pub stalls: Option<&'a Stalls>,
    /// Why and when the run ended early. `None` if it ran to the end of its plan.
    pub early_end: Option<EarlyEnd>,
}

/// A verdict with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct RunVerdict {
    /// The verdict.
    pub outcome: Outcome,
    /// Reasons of the verdict, most important first.
    pub reasons: Vec<Reason>,
    /// Findings about the target.
    pub findings: Vec<Reason>,
    /// Warnings about the run.
    pub warnings: Vec<Reason>,
}

/// A reason for a verdict. Shares are between 0 and 1; times without a unit are in seconds. The
/// class of failed calls is their most frequent outcome, such as a timeout. In `StoppedByUser` and
/// `Aborted`, `at` is the time of the end and `of` is the planned duration.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each field is a number of the sentence in wording/verdict.rs")]
pub enum Reason {
    /// The numbers are in doubt.
    Doubt(Doubt),
    /// Number of thresholds that were kept under a load that slows down with the target.
    KeptWithPausesOnly(usize),
    /// The user stopped the run.
    StoppedByUser { at: f64, of: f64, nothing_broken: bool },
    /// A broken threshold aborted the run.
    Aborted { at: f64, of: f64 },
    /// A threshold was broken.
    Broken(ThresholdResult),
    /// All calls of a method returned an error from the start.
    NeverAnswered { method: String },
    /// Most calls of a method failed for a time. `failed_share` is the share of failed calls among
    /// all calls of the run, over all methods.
    FailurePeriod { method: String, period: FailurePeriod, failed_share: f64 },
    /// All calls of a method failed.
    AllFailed { method: String, calls: u64, class: Class },
    /// Many calls of a method failed.
    ManyFailed { method: String, share: f64, class: Class },
    /// A threshold was kept only because the workers of a closed load send nothing during stalls.
    KeptByStalls { threshold: String, stalls: Stalls },
    /// The responses to `wrong` of `calls` compared calls of a method differ from the reference's
    /// responses. `first` is the first difference.
    Wrong { method: String, calls: u64, wrong: u64, reference: String, first: Option<Difference> },
    /// This share of the calls was rejected with status 429, and no threshold over all methods
    /// judges it.
    UnjudgedRejections(f64),
    /// No response could be compared. `unanswered` calls had no response from the reference, and
    /// the reference was too slow for `skipped` calls.
    NotCompared { reference: String, unanswered: u64, skipped: u64 },
}

impl Reason {
    /// Returns the methods whose percentiles are uncertain, if the reason is that doubt.
    pub(crate) fn methods_with_few_calls(&self) -> Vec<String> {
        match self {
            Reason::Doubt(Doubt::FewCalls(methods)) => {
                methods.iter().map(|(method, _)| method.clone()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if the reason is a broken threshold about the method `name`, or failed calls of
    /// this method.
    fn is_about(&self, name: &str) -> bool {
        match self {
            Reason::Broken(threshold_result) => {
                threshold_result.outcome.method.as_deref() == Some(name)
            }
            Reason::NeverAnswered { method }
            | Reason::FailurePeriod { method, .. }
            | Reason::AllFailed { method, .. } => method == name,
            _ => false,
        }
    }
}

/// Why a run ended before the end of its plan. The number is the time of the end, in seconds since
/// the start of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EarlyEnd {
    /// The user stopped the run.
    StoppedByUser(f64),
    /// A threshold with `abort` was broken.
    Aborted(f64),
}

/// Returns the verdict with its reasons, findings and warnings.
pub fn judge_run(input: VerdictInput<'_>) -> RunVerdict {
    let doubts = input.doubts;
    let Failures { list: mut failures, findings } = Failures::collect(input);
    failures.sort_by_key(|failure| !failure.is_certain(input));
    let (limit_reasons, mut warnings) = split_limits(input, &failures);
    warnings.extend(validity::find_few_calls(input.methods).map(Reason::Doubt));
    warnings.extend(find_unjudged_rejections(input));
    let late_reasons = to_reasons(doubts.late.as_ref().map(|delay| &delay.doubt));
    let moved = own_delay::find_moved(input);
    let distorted_reasons = to_reasons(&own_delay::find_distortions(input, &moved));
    let pause_reasons = to_reasons(&doubts.pauses);
    let failure_reasons: Vec<Reason> =
        failures.iter().map(|failure| failure.reason_for(input)).collect();

    let target_failed = failures.iter().any(|failure| failure.is_certain(input));
    let may_cause_a_failure =
        |delay: &Delay| failures.iter().any(|failure| failure.may_be_caused_by(delay, input));
    let possible_causes: Vec<&Doubt> = [&doubts.late, &doubts.stopped]
        .into_iter()
        .flatten()
        .filter(|delay| may_cause_a_failure(delay))
        .map(|delay| &delay.doubt)
        .collect();
    let threshold_count = input.plan.threshold_count();
    // The branches are the rules of the header, in the same order.
    let (outcome, mut reasons) = if let Some(empty) = &doubts.empty {
        (Outcome::Invalid, vec![Reason::Doubt(empty.clone())])
    } else if target_failed {
        (Outcome::Fail, [&failure_reasons[..], &limit_reasons, &late_reasons].concat())
    } else if !limit_reasons.is_empty() {
        (Outcome::ClientLimited, [&limit_reasons[..], &late_reasons, &failure_reasons].concat())
    } else if !possible_causes.is_empty() {
        let causes = to_reasons(possible_causes);
        (Outcome::Invalid, [&causes[..], &failure_reasons].concat())
    } else if !failures.is_empty() {
        // The rules above apply if the target or the generator may be the cause. So only the pauses
        // can be the cause of these failures.
        (Outcome::ClientLimited, [&pause_reasons[..], &failure_reasons].concat())
    } else if matches!(input.early_end, Some(EarlyEnd::StoppedByUser(_))) {
        (Outcome::Invalid, Vec::new())
    } else if !pause_reasons.is_empty() {
        let kept = (threshold_count > 0).then_some(Reason::KeptWithPausesOnly(threshold_count));
        (Outcome::ClientLimited, pause_reasons.iter().cloned().chain(kept).collect())
    } else if threshold_count == 0 && !distorted_reasons.is_empty() {
        (Outcome::Invalid, distorted_reasons)
    } else if threshold_count == 0 {
        (Outcome::Measured, Vec::new())
    } else {
        (Outcome::Pass, Vec::new())
    };
    if outcome != Outcome::ClientLimited {
        warnings.extend(pause_reasons);
    }
    if matches!(outcome, Outcome::Pass | Outcome::Measured) {
        warnings.extend(late_reasons);
    }
    warnings.extend(to_reasons(&doubts.subscriptions));
    warnings.extend(
        own_delay::warn_of_moved(input, moved)
            .into_iter()
            .filter(|warning| !reasons.contains(warning)),
    );
    add_early_end(input, outcome, &mut reasons);
    RunVerdict { outcome, reasons, findings, warnings }
}

/// Returns the doubts as reasons of a verdict.
fn to_reasons<'a>(doubts: impl IntoIterator<Item = &'a Doubt>) -> Vec<Reason> {
    doubts.into_iter().cloned().map(Reason::Doubt).collect()
}

/// Splits the doubts about the generator. Returns the reasons of the verdict, then the warnings. An
/// unpaced closed load has no pauses, so every delay of the generator lowers its rate.
///
/// - Too few workers are always a reason.
/// - Overloaded engine threads are a reason if the run has an unpaced closed load, a failure, a
///   late send or too few workers. Otherwise they are a warning.
/// - Engine threads that waited for a core are a reason if the run has an unpaced closed load, or
///   if their waits may have caused a failure. Otherwise they are a warning.
/// - Engine threads that were stopped for longer than the plan allows for such waits are a reason if
///   the run has a closed load, because its rate is lower by about that share.
fn split_limits(input: VerdictInput<'_>, failures: &[Failure]) -> (Vec<Reason>, Vec<Reason>) {
    let doubts = input.doubts;
    let has_unpaced_load = input
        .plan
        .scenarios
        .iter()
        .any(|scenario| scenario.model == Model::Closed && scenario.pause.is_zero());
    let overload_decides = has_unpaced_load
        || !failures.is_empty()
        || doubts.late.is_some()
        || !doubts.workers.is_empty();
    let (mut limit_reasons, mut warnings) = (Vec::new(), Vec::new());
    let destination = if overload_decides { &mut limit_reasons } else { &mut warnings };
    destination.extend(to_reasons(&doubts.overloaded));
    if let Some(starved) = &doubts.starved {
        let wait_decides = has_unpaced_load
            || failures.iter().any(|failure| failure.may_be_caused_by(starved, input));
        let destination = if wait_decides { &mut limit_reasons } else { &mut warnings };
        destination.push(Reason::Doubt(starved.doubt.clone()));
    }
    let has_closed_load =
        input.plan.scenarios.iter().any(|scenario| scenario.model == Model::Closed);
    let waited_share_max = input.plan.validity.waited_share_max;
    let stopped = doubts.stopped.iter().map(|delay| &delay.doubt);
    let lowered_rate = stopped.filter(|doubt| {
        let is_long = matches!(doubt, Doubt::Stopped { share, .. } if *share > waited_share_max);
        has_closed_load && is_long
    });
    limit_reasons.extend(to_reasons(lowered_rate));
    limit_reasons.extend(to_reasons(&doubts.workers));
    (limit_reasons, warnings)
}

/// Adds a reason if the run ended before the end of its plan.
fn add_early_end(input: VerdictInput<'_>, outcome: Outcome, reasons: &mut Vec<Reason>) {
    let planned = input.plan.duration().as_secs_f64();
    match input.early_end {
        Some(EarlyEnd::StoppedByUser(at)) => {
            let nothing_broken = outcome == Outcome::Invalid && reasons.is_empty();
            reasons.push(Reason::StoppedByUser { at, of: planned, nothing_broken });
        }
        Some(EarlyEnd::Aborted(at)) => reasons.push(Reason::Aborted { at, of: planned }),
        None => {}
    }
}

/// The kind of a failure. It decides if the generator can have caused the failure. An excess is the
/// difference between the value and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FailureKind {
    /// The server's own error responses or wrong results.
    Server,
    /// Too large a share of HTTP 429 responses.
    RateLimited { excess_share: f64 },
    /// Calls without a response.
    NoResponse,
    /// Too long a time.
    Time { excess_ms: f64 },
    /// Too long a latency, even without the delays that the generator itself caused.
    LeastLatency,
    /// Too large a share of late iterations. If 99 % must start in time and 95 % did, the excess is
    /// 0.04.
    LateIterations { excess_share: f64 },
    /// Too little throughput.
    Throughput,
}

/// A failure. The target caused it, or perhaps the generator.
#[derive(Debug)]
struct Failure {
    kind: FailureKind,
    reason: Reason,
}

impl Failure {
    /// Returns true if neither the generator nor the plan's pauses can have caused the failure.
    fn is_certain(&self, input: VerdictInput<'_>) -> bool {
        let doubts = input.doubts;
        // Responses of the server show these failures, so an unbounded delay does not explain them.
        let is_shown_by_server =
            matches!(self.kind, FailureKind::Server | FailureKind::RateLimited { .. });
        let has_unbounded_delay = !doubts.overloaded.is_empty() || !doubts.workers.is_empty();
        let may_be_unbounded_delay = has_unbounded_delay && !is_shown_by_server;
        let mut bounded_delays =
            [&doubts.starved, &doubts.late, &doubts.stopped].into_iter().flatten();
        let may_be_bounded_delay = bounded_delays.any(|delay| self.may_be_caused_by(delay, input));
        let may_be_pauses = self.kind == FailureKind::Throughput && !doubts.pauses.is_empty();
        !(may_be_unbounded_delay || may_be_bounded_delay || may_be_pauses)
    }

    /// Returns the reason for the verdict. If the generator may have caused the failure, the reason
    /// does not name the target as the cause.
    fn reason_for(&self, input: VerdictInput<'_>) -> Reason {
        match &self.reason {
            Reason::Doubt(Doubt::Behind { scenario, delivery, .. }) if !self.is_certain(input) => {
                let (scenario, delivery) = (scenario.clone(), *delivery);
                Reason::Doubt(Doubt::Undelivered { scenario, delivery })
            }
            reason => reason.clone(),
        }
    }

    /// Returns true if a delay of the generator can have caused the failure.
    fn may_be_caused_by(&self, delay: &Delay, input: VerdictInput<'_>) -> bool {
        let plan = input.plan;
        match self.kind {
            FailureKind::Server | FailureKind::LeastLatency => false,
            FailureKind::RateLimited { excess_share }
            | FailureKind::LateIterations { excess_share } => excess_share <= delay.share,
            FailureKind::NoResponse => plan.target.timeout.as_secs_f64() * 1e3 <= delay.longest_ms,
            FailureKind::Time { excess_ms } => excess_ms <= delay.longest_ms,
            FailureKind::Throughput => {
                plan.scenarios.iter().any(|scenario| scenario.model == Model::Closed)
            }
        }
    }
}

/// All failures and findings of a run.
#[derive(Debug, Default)]
struct Failures {
    /// The failures. They may change the verdict.
    list: Vec<Failure>,
    /// Findings about the target. They never change the verdict.
    findings: Vec<Reason>,
}

impl Failures {
    /// Collects the failures and findings of a run.
    fn collect(input: VerdictInput<'_>) -> Failures {
        let mut failures = Failures::default();
        failures.add_thresholds(input);
        failures.add_subscriptions(input);
        failures.add_failure_periods(input);
        failures.add_failed_methods(input);
        failures.add_partly_failing_methods(input);
        failures.add_wrong_responses(input);
        failures.add_stalls(input);
        for (doubt, excess_share) in &input.doubts.undelivered {
            let kind = FailureKind::LateIterations { excess_share: *excess_share };
            failures.push(kind, Reason::Doubt(doubt.clone()));
        }
        failures
    }

    /// Adds a failure.
    fn push(&mut self, kind: FailureKind, reason: Reason) {
        self.list.push(Failure { kind, reason });
    }

    /// Adds broken thresholds.
    fn add_thresholds(&mut self, input: VerdictInput<'_>) {
        for (threshold, threshold_result) in
            input.plan.thresholds.iter().zip(input.threshold_results)
        {
            if !threshold_result.outcome.kept {
                let metric = threshold.selector.metric;
                let reason = Reason::Broken(threshold_result.clone());
                self.push(kind_of_threshold(input.plan, metric, threshold_result), reason);
            }
        }
    }

    /// Adds broken thresholds of subscriptions.
    fn add_subscriptions(&mut self, input: VerdictInput<'_>) {
        for result in input.subscription_results.iter().filter(|result| !result.outcome.kept) {
            let kind = match (result.outcome.unit, result.excess) {
                _ if result.is_server_fault => FailureKind::Server,
                (Some(Unit::Milliseconds), Some(excess_ms)) => FailureKind::Time { excess_ms },
                _ => FailureKind::NoResponse,
            };
            self.push(kind, Reason::Broken(result.clone()));
        }
    }

    /// Adds methods that mostly failed for a time, even if no threshold covers them. A period that
    /// ended is only a finding, unless most calls since its start failed.
    fn add_failure_periods(&mut self, input: VerdictInput<'_>) {
        let failed_share = input.overall.failed_share;
        for (method, period) in input.failure_periods {
            let never_answered = period.class == Class::RpcError
                && period.succeeded_before == 0
                && period.until.is_none();
            if never_answered && has_own_threshold(input.plan, method) {
                continue;
            }
            if never_answered && !all_calls_failed(input) {
                self.push(FailureKind::Server, Reason::NeverAnswered { method: method.clone() });
                continue;
            }
            let reason = Reason::FailurePeriod {
                method: method.clone(),
                period: period.clone(),
                failed_share,
            };
            let row = input.methods.iter().find(|row| row.method == *method);
            let most_failed_since_start = row.is_some_and(|row| {
                period.failed * 2 > row.calls.saturating_sub(period.succeeded_before)
            });
            if period.until.is_some() && !most_failed_since_start {
                self.findings.push(reason);
            } else if failed_share < 0.5 {
                // Most calls of the run succeeded, so the generator is not the cause.
                self.push(FailureKind::Server, reason);
            } else {
                self.push(kind_of_class(period.class), reason);
            }
        }
    }

    /// Adds methods whose calls all failed and that have no failure period. They are failures only
    /// if every call of the run failed; otherwise they are findings.
    fn add_failed_methods(&mut self, input: VerdictInput<'_>) {
        for row in input.methods {
            let has_period = input.failure_periods.iter().any(|(method, _)| *method == row.method);
            if row.failed_share >= 1.0 && !has_period {
                let (method, calls, class) = (row.method.clone(), row.calls, worst_class(row));
                let reason = Reason::AllFailed { method, calls, class };
                match all_calls_failed(input) {
                    true => self.push(kind_of_class(class), reason),
                    false => self.findings.push(reason),
                }
            }
        }
    }

    /// Adds methods with a large share of failed calls over the whole run.
    fn add_partly_failing_methods(&mut self, input: VerdictInput<'_>) {
        // A broken threshold about times or throughput does not report that calls failed. So the
        // failed calls of its method are reported in addition.
        let is_about_failed_calls = |failure: &Failure| {
            use FailureKind::{LeastLatency, Throughput, Time};
            !matches!(failure.kind, Time { .. } | LeastLatency | Throughput)
        };
        let is_reported = |method: &str| {
            self.list
                .iter()
                .any(|failure| is_about_failed_calls(failure) && failure.reason.is_about(method))
        };
        let mut failures = Vec::new();
        for row in input.methods {
            let failed_calls = row.failed_share * row.calls as f64;
            let fails_often = row.failed_share >= FAILING_SHARE && failed_calls >= FAILED_CALLS_MIN;
            if fails_often
                && !has_own_threshold(input.plan, &row.method)
                && !is_reported(&row.method)
            {
                let class = worst_class(row);
                let (method, share) = (row.method.clone(), row.failed_share);
                let reason = Reason::ManyFailed { method, share, class };
                failures.push(Failure { kind: kind_of_class(class), reason });
            }
        }
        self.list.extend(failures);
    }

    /// Adds latency thresholds that were kept only because workers send nothing during stalls.
    ///
    /// The requests that are missing during the stalls would have been slow. If at least 1 % of all
    /// requests are missing, the true p99 is as long as a stall. The longest call during the stalls
    /// shows how long a stall is.
    fn add_stalls(&mut self, input: VerdictInput<'_>) {
        let Some(stalls) = input.stalls else { return };
        for (threshold, threshold_result) in
            input.plan.thresholds.iter().zip(input.threshold_results)
        {
            let Aggregation::Percentile(percent) = threshold.aggregation else { continue };
            let is_upper_limit =
                matches!(threshold.operator, Operator::Less | Operator::LessOrEqual);
            let is_latency = threshold.selector.metric == Metric::Latency;
            let excess_ms = stalls.longest_ms - threshold.limit;
            let hides_breach = stalls.missing_share >= 1.0 - percent / 100.0 && excess_ms > 0.0;
            if threshold_result.outcome.kept && is_upper_limit && is_latency && hides_breach {
                let (text, stalls) = (threshold.text.clone(), stalls.clone());
                let reason = Reason::KeptByStalls { threshold: text, stalls };
                self.push(FailureKind::Time { excess_ms }, reason);
            }
        }
    }

    /// Adds methods with responses that differ from those of the reference.
    fn add_wrong_responses(&mut self, input: VerdictInput<'_>) {
        let Some(compared) = input.compared else { return };
        for (method, calls, wrong) in &compared.methods {
            if *wrong > 0 {
                let first_example =
                    compared.examples.iter().find(|example| example.method == *method);
                let reason = Reason::Wrong {
                    method: method.clone(),
                    calls: *calls,
                    wrong: *wrong,
                    reference: compared.reference.clone(),
                    first: first_example.cloned(),
                };
                self.push(FailureKind::Server, reason);
            }
        }
        if compared.compared == 0 {
            self.findings.push(Reason::NotCompared {
                reference: compared.reference.clone(),
                unanswered: compared.unanswered,
                skipped: compared.skipped,
            });
        }
    }
}

/// The run fails if at least this share of a method's calls failed. A threshold about the failures
/// of the method replaces this rule.
const FAILING_SHARE: f64 = 0.25;
/// Smallest number of failed calls for `FAILING_SHARE` to apply.
const FAILED_CALLS_MIN: f64 = 10.0;

/// Largest share of rejected calls without a warning. It is the default threshold of a capacity
/// search.
const UNJUDGED_REJECTIONS_MAX: f64 = 0.01;

/// Warns of many calls with status 429. Such a call is no failure, so only a threshold about them
/// can fail the run. A threshold about one method does not judge the others.
fn find_unjudged_rejections(input: VerdictInput<'_>) -> Option<Reason> {
    let share = input.overall.limited_share;
    let is_judged = input.plan.thresholds.iter().any(|threshold| {
        let selector = &threshold.selector;
        selector.method.is_none() && matches!(selector.metric, Metric::Limited | Metric::Goodput)
    });
    (share > UNJUDGED_REJECTIONS_MAX && !is_judged).then_some(Reason::UnjudgedRejections(share))
}

/// Returns true if every call of the run failed.
fn all_calls_failed(input: VerdictInput<'_>) -> bool {
    input.overall.calls > 0 && input.overall.failed_share >= 1.0
}

/// Returns true if the plan has a threshold about the failures of a method.
fn has_own_threshold(plan: &Plan, method: &str) -> bool {
    plan.thresholds.iter().any(|threshold| {
        let selected_method = threshold.selector.method.and_then(|index| plan.methods.get(index));
        threshold.selector.metric == Metric::Failed
            && selected_method.is_some_and(|selected_method| **selected_method == *method)
    })
}

/// Returns the kind of a failure whose failed calls mostly have this class.
fn kind_of_class(class: Class) -> FailureKind {
    if class.failed_by_server() { FailureKind::Server } else { FailureKind::NoResponse }
}

/// Returns the kind of a broken threshold about `metric`. An unknown excess counts as 0, so that
/// any delay of the generator may explain the failure.
fn kind_of_threshold(
    plan: &Plan,
    metric: Metric,
    threshold_result: &ThresholdResult,
) -> FailureKind {
    if threshold_result.is_server_fault {
        return FailureKind::Server;
    }
    if threshold_result.breaks_without_delays {
        return FailureKind::LeastLatency;
    }
    let excess = threshold_result.excess.unwrap_or(0.0);
    match metric.samples() {
        Samples::CallShare(is_counted) if is_counted(Class::Limited) => {
            FailureKind::RateLimited { excess_share: excess }
        }
        Samples::CallShare(_) => FailureKind::NoResponse,
        Samples::ResultShare(_) => FailureKind::Server,
        Samples::CallTimes(..) | Samples::TransactionTimes(_) => {
            FailureKind::Time { excess_ms: excess }
        }
        Samples::IterationTimes(_) => {
            // Each call of an iteration can be late. So one call need only explain its part of the
            // excess.
            let steps = plan.mixes.iter().map(|mix| mix.steps.len()).max().unwrap_or(1);
            FailureKind::Time { excess_ms: excess / steps.max(1) as f64 }
        }
        Samples::IterationShare(_) => FailureKind::LateIterations { excess_share: excess },
        Samples::CallCount(_) | Samples::IterationCount(_) | Samples::TransactionCount(_) => {
            FailureKind::Throughput
        }
    }
}

/// Returns the most frequent class of failed calls, or `Class::Ok` if no call failed.
pub(crate) fn worst_class(row: &Row) -> Class {
    let failed = row.classes.iter().filter(|class| class.class.is_failure());
    failed.max_by_key(|class| class.calls).map_or(Class::Ok, |class| class.class)
}
