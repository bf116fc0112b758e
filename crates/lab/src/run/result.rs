//! Builds the result of a run from its recorded data. `analysis` judges the data, and `wording`
//! writes the sentences.

use std::time::Duration;

use aws_lc_rs::digest;
use lab_engine::aggregate;
use lab_engine::recorder::RunCounts;
use lab_model::plan::{HttpVersion, Plan, Reuse};
use lab_model::results::run::{Compared, HostFacts, HostSample, RunResult, SCHEMA, Second};
use lab_model::results::subscription::SubscriptionRow;
use lab_model::results::transactions::TransactionsRow;
use lab_model::results::{Fingerprint, PlanFacts, TargetFacts, Verdict};

use super::Finished;
use crate::analysis::failure_period::FailurePeriod;
use crate::analysis::thresholds::ThresholdResult;
use crate::analysis::thresholds::subscriptions::subscription_results;
use crate::analysis::verdict::{EarlyEnd, Reason, VerdictInput};
use crate::analysis::{bottleneck, calendar, failure_period, findings, validity, verdict};
use crate::wording;
use crate::wording::verdict::{first_response, sentences};

/// All data of a run after the load.
pub(super) struct RunData<'a> {
    pub(super) plan: &'a Plan,
    /// Start in seconds since 1970.
    pub(super) started: f64,
    pub(super) target: TargetFacts,
    pub(super) fingerprint: Fingerprint,
    pub(super) recorded: RunCounts,
    pub(super) threshold_results: Vec<ThresholdResult>,
    /// Reason and time of an early end; `None` if the run was not ended early.
    pub(super) early_end: Option<EarlyEnd>,
    /// Time from the start to the end of the load, without the grace period for calls in flight.
    pub(super) end: Duration,
    /// Samples of the hosts over the run.
    pub(super) host: Vec<HostSample>,
    /// Facts about the hosts, and totals over the run.
    pub(super) watched: HostFacts,
    /// Comparison with the reference node; `None` if the plan names no reference.
    pub(super) compared: Option<Compared>,
    /// Counts of each subscription of the plan.
    pub(super) subscriptions: Vec<SubscriptionRow>,
    /// `None` if the plan sends no transactions.
    pub(super) transactions: Option<TransactionsRow>,
    /// For each HTTP status of failed or rejected requests: what the first response said.
    pub(super) error_texts: Vec<(u16, String)>,
    /// Warnings from before the load.
    pub(super) warnings: Vec<String>,
}

impl RunData<'_> {
    /// Analyses the data and builds the result.
    pub(super) fn into_finished(self) -> Finished {
        let RunCounts { total: totals, measured: measured_totals, series } = self.recorded;
        let plan = self.plan;
        let warmup = plan.warmup.as_secs_f64();
        let measured_time = (self.end.as_secs_f64() - warmup).max(0.0);
        let (overall, methods) =
            aggregate::compute_method_rows(plan, &measured_totals, measured_time);
        let measured_points = points_after_warmup(&series, warmup);
        let doubts = validity::find_doubts(validity::ValidityInput {
            plan,
            all: &totals,
            measured: &measured_totals,
            seconds: measured_points,
            subscriptions: &self.subscriptions,
            end: self.end,
        });
        let failure_periods = find_failure_periods(plan, &series);
        let stages = aggregate::compute_stage_rows(plan, &totals, self.end);
        let whole_seconds = aggregate::whole_seconds(&series, &stages, warmup);
        let stalls = findings::find_stalls(plan, &whole_seconds);
        let subscription_results = subscription_results(plan, &self.subscriptions);
        let judgement = verdict::judge_run(VerdictInput {
            plan,
            threshold_results: &self.threshold_results,
            subscription_results: &subscription_results,
            doubts: &doubts,
            overall: &overall,
            methods: &methods,
            failure_periods: &failure_periods,
            compared: self.compared.as_ref(),
            stalls: stalls.as_ref(),
            early_end: self.early_end,
        });
        let input = findings::FindingsInput {
            plan,
            measured: &measured_totals,
            overall: &overall,
            methods: &methods,
            stages: &stages,
            seconds: &whole_seconds,
            subscriptions: &self.subscriptions,
            host: &self.host,
        };
        let findings = findings::find(input, stalls.as_ref());
        let mut transactions = self.transactions;
        if let Some(inclusion) = transactions.as_mut().and_then(|row| row.inclusion.as_mut()) {
            inclusion.time = aggregate::compute_quantiles(&measured_totals.inclusion_time);
        }
        let transaction_findings = transactions.as_ref().map(wording::transactions::findings);
        let mut watched = self.watched;
        watched.set_cpu_per_request(totals.traffic.requests);
        let mut result = RunResult {
            schema: SCHEMA.to_owned(),
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            started: calendar::rfc3339(self.started),
            started_unix: self.started,
            duration: self.end.as_secs_f64(),
            partial: self.early_end.is_some(),
            plan: plan_facts(plan),
            target: self.target,
            fingerprint: self.fingerprint,
            verdict: Verdict { outcome: judgement.outcome, reasons: sentences(&judgement.reasons) },
            thresholds: self
                .threshold_results
                .iter()
                .chain(&subscription_results)
                .map(wording::verdict::threshold_outcome)
                .collect(),
            findings: [
                sentences(&judgement.findings),
                sentences(&findings),
                self.error_texts.iter().map(first_response).collect(),
                transaction_findings.unwrap_or_default(),
            ]
            .concat(),
            warnings: [
                sentences(&judgement.warnings),
                self.warnings,
                // The plan's warnings are last, so that `weir load` can omit them.
                sentences(&plan.warnings),
            ]
            .concat(),
            few_calls: judgement.warnings.iter().flat_map(Reason::methods_with_few_calls).collect(),
            overall,
            methods,
            stages,
            generator: aggregate::summarize_generator(plan, &measured_totals, measured_points),
            wire: aggregate::summarize_wire(&measured_totals),
            series,
            host: self.host,
            watched,
            bottleneck: None,
            compared: self.compared,
            subscriptions: self.subscriptions,
            transactions,
        };
        // Dropped and waiting iterations count as a failure only if the target fell behind the
        // planned load. `undelivered` is empty if the target kept up.
        let behind_series: &[Second] =
            if doubts.undelivered.is_empty() { &[] } else { &result.series };
        let first_failure_at =
            find_first_failure(&self.threshold_results, &failure_periods, behind_series);
        let bottleneck = bottleneck::find(&result, plan.validity, first_failure_at);
        result.bottleneck = bottleneck.map(|found| wording::bottleneck::finding(&found));
        Finished { result, totals: measured_totals }
    }
}

/// Returns the points of the time series that begin after the warm-up.
fn points_after_warmup(series: &[Second], warmup: f64) -> &[Second] {
    let first_after = series.partition_point(|second| second.at <= warmup);
    // A point stores only its end, `at`. It starts where the previous point ends. In a long run a
    // point covers several seconds. A point within which the warm-up ends is omitted too.
    let start = first_after.checked_sub(1).map_or(0.0, |previous| series[previous].at);
    let ends_within_point = first_after < series.len() && start < warmup;
    &series[first_after + usize::from(ends_within_point)..]
}

/// Returns each method that failed for some time, with the period of its failures.
fn find_failure_periods(plan: &Plan, series: &[Second]) -> Vec<(String, FailurePeriod)> {
    let timeout = plan.target.timeout.as_secs_f64();
    let period_of =
        |method: &str| Some((method.to_owned(), failure_period::find(series, method, timeout)?));
    plan.methods.iter().filter_map(|method| period_of(method)).collect()
}

/// Returns the earliest time, in seconds, at which a threshold was broken, a method began to fail,
/// or an iteration was dropped or had to wait. `behind_series` is the time series if the target
/// fell behind the planned load, otherwise it is empty.
fn find_first_failure(
    threshold_results: &[ThresholdResult],
    failure_periods: &[(String, FailurePeriod)],
    behind_series: &[Second],
) -> Option<f64> {
    let broken_thresholds = threshold_results.iter().filter(|result| !result.outcome.kept);
    let broken_at = broken_thresholds.filter_map(|result| result.outcome.broken_at);
    // If a method never succeeded, the load is not the cause of its failures.
    let failing = failure_periods.iter().filter(|(_, period)| period.succeeded_before > 0);
    let failing_from = failing.map(|(_, period)| period.from);
    let first_late = behind_series.iter().find(|second| second.dropped > 0 || second.waiting > 0);
    let late_at = first_late.map(|second| second.at);
    broken_at.chain(failing_from).chain(late_at).min_by(f64::total_cmp)
}

/// Returns the facts about the plan for the result.
fn plan_facts(plan: &Plan) -> PlanFacts {
    let hash = digest::digest(&digest::SHA256, plan.text.as_bytes());
    PlanFacts {
        name: plan.name.clone(),
        text: plan.text.clone(),
        hash: hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect(),
        seed: plan.seed,
        warmup: plan.warmup.as_secs_f64(),
        threads: plan.threads,
        http: match plan.connections.http {
            _ if plan.target.is_websocket() => "websocket",
            HttpVersion::Http1 => "1.1",
            HttpVersion::Http2 => "2",
        }
        .to_owned(),
        connections: match plan.connections.reuse {
            Reuse::Always => "reuse".to_owned(),
            Reuse::Never => "close".to_owned(),
            Reuse::Requests(count) => count.to_string(),
        },
        insecure: plan.connections.tls.insecure,
    }
}

#[cfg(test)]
mod tests {
    //! Points that contain a part of the warm-up are not measured.

    use super::*;

    #[test]
    fn points_after_the_warmup_contain_none_of_it() {
        let series: Vec<Second> =
            [10.0, 20.0, 30.0].into_iter().map(|at| Second { at, ..Second::default() }).collect();
        for (warmup, first_end) in [(0.0, 10.0), (5.0, 20.0), (10.0, 20.0), (15.0, 30.0)] {
            assert_eq!(points_after_warmup(&series, warmup)[0].at, first_end, "{warmup}");
        }
        assert!(points_after_warmup(&series, 25.0).is_empty());
    }
}
