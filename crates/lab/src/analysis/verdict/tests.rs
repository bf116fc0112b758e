//! Goal: the rules of a verdict apply in their order. Method: made-up runs, each with some planted
//! doubts and failures.

use lab_engine::aggregate;
use lab_model::metrics::{Metric, Selector};
use lab_model::plan::Plan;
use lab_model::plan::threshold::{Aggregation, Operator, Threshold, unit};
use lab_model::record::{Class, Iterations};
use lab_model::results::run::{Compared, Difference, Row};
use lab_model::results::{Outcome, Quantiles, ThresholdOutcome};
use lab_model::samples;

use super::{EarlyEnd, Reason, RunVerdict, VerdictInput, judge_run};
use crate::analysis::failure_period::FailurePeriod;
use crate::analysis::findings::Stalls;
use crate::analysis::thresholds::ThresholdResult;
use crate::analysis::validity::{Delay, Delivered, Doubt, Doubts};

/// A made-up run. Tests plant outcomes of thresholds, doubts and failures in it.
struct Case {
    plan: Plan,
    threshold_results: Vec<ThresholdResult>,
    doubts: Doubts,
    overall: Row,
    methods: Vec<Row>,
    failure_periods: Vec<(String, FailurePeriod)>,
    compared: Option<Compared>,
    stalls: Option<Stalls>,
    early_end: Option<EarlyEnd>,
}

impl Case {
    /// Creates a run with 10,000 successful calls of eth_call, and with calls of eth_getLogs by
    /// class.
    fn new(plan: Plan, logs: &[(Class, u64)]) -> Case {
        let mut calls = vec![(0, 0, Class::Ok, 10_000, 5)];
        calls.extend(logs.iter().map(|&(class, count)| (0, 1, class, count, 50)));
        let totals = samples::counted(&plan, &calls, Iterations::default());
        let (overall, methods) = aggregate::compute_method_rows(&plan, &totals, 10.0);
        Case {
            plan,
            threshold_results: Vec::new(),
            doubts: Doubts::default(),
            overall,
            methods,
            failure_periods: Vec::new(),
            compared: None,
            stalls: None,
            early_end: None,
        }
    }

    fn open() -> Case {
        Case::new(samples::open(100.0, 10, &["eth_call", "eth_getLogs"]), &[])
    }

    fn closed(pause_ms: u64) -> Case {
        Case::new(samples::closed(100, pause_ms, 10, &["eth_call", "eth_getLogs"]), &[])
    }

    /// Adds a threshold about a metric that was kept.
    fn kept(self, metric: Metric) -> Case {
        self.threshold(metric, true, false)
    }

    /// Adds a threshold about a metric that was broken. The generator may be the cause.
    fn broken(self, metric: Metric) -> Case {
        self.threshold(metric, false, false)
    }

    /// Adds a threshold about a metric that error responses of the server broke.
    fn broken_by_server(self, metric: Metric) -> Case {
        self.threshold(metric, false, true)
    }

    fn threshold(mut self, metric: Metric, kept: bool, is_server_fault: bool) -> Case {
        self.plan.thresholds.push(Threshold {
            selector: Selector { metric, method: None, stages: None },
            aggregation: Aggregation::Rate,
            operator: Operator::Less,
            limit: 1.0,
            window: None,
            sustained: std::time::Duration::ZERO,
            abort: false,
            abort_delay: std::time::Duration::ZERO,
            no_data_fails: true,
            text: "as written".to_owned(),
        });
        let broken_at = (!kept).then_some(4.0);
        let outcome = ThresholdOutcome {
            text: "as written".to_owned(),
            kept,
            observed: Some(2.0),
            unit: Some(unit(metric, Aggregation::Rate)),
            broken_at,
            ..ThresholdOutcome::default()
        };
        let excess = (!kept).then_some(1.0);
        let result = ThresholdResult {
            outcome,
            remark: None,
            is_server_fault,
            breaks_without_delays: false,
            excess,
        };
        self.threshold_results.push(result);
        self
    }

    /// Sets how far the value of the last threshold is outside of its limit.
    fn excess(mut self, excess: f64) -> Case {
        self.threshold_results.last_mut().unwrap().excess = Some(excess);
        self
    }

    fn doubt(mut self, set: impl Fn(&mut Doubts)) -> Case {
        set(&mut self.doubts);
        self
    }

    fn period(mut self, period: FailurePeriod) -> Case {
        self.failure_periods.push(("eth_getLogs".to_owned(), period));
        self
    }

    fn verdict(&self) -> (Outcome, Vec<String>, Vec<String>) {
        let RunVerdict { outcome, reasons, findings, warnings } = judge_run(VerdictInput {
            plan: &self.plan,
            threshold_results: &self.threshold_results,
            subscription_results: &[],
            doubts: &self.doubts,
            overall: &self.overall,
            methods: &self.methods,
            failure_periods: &self.failure_periods,
            compared: self.compared.as_ref(),
            stalls: self.stalls.as_ref(),
            early_end: self.early_end,
        });
        let words = |reasons: &[Reason]| reasons.iter().map(in_words).collect::<Vec<_>>();
        (outcome, words(&reasons), words(&[findings, warnings].concat()))
    }
}

/// Returns a short name for the doubts that tests plant, and the sentence of every other reason.
fn in_words(reason: &Reason) -> String {
    let name = match reason {
        Reason::Doubt(Doubt::NoPorts(_)) => "busy",
        Reason::Doubt(Doubt::Delayed { .. }) => "late",
        Reason::Doubt(Doubt::Starved { .. }) => "starved",
        Reason::Doubt(Doubt::Stopped { .. }) => "stopped",
        Reason::Doubt(Doubt::Moved { .. }) => "moved",
        Reason::Doubt(Doubt::LimitedByPauses { .. }) => "paced",
        Reason::Doubt(Doubt::NoCalls) => "empty",
        other => return other.to_string(),
    };
    name.to_owned()
}

fn busy(doubts: &mut Doubts) {
    doubts.overloaded.push(Doubt::NoPorts(7));
}

fn late(doubts: &mut Doubts) {
    let (p99_ms, longest_ms, median_ms) = (2.0, 5.0, 5.0);
    let allowed = samples::open(100.0, 10, &["eth_call"]).validity;
    let doubt = Doubt::Delayed { p99_ms, longest_ms, allowed, median_ms };
    doubts.late = Some(Delay { doubt, longest_ms, share: 0.02 });
}

fn starved(doubts: &mut Doubts) {
    let doubt = Doubt::Starved { threads: 1, waited: 0.05, share: 0.02, is_closed: false };
    doubts.starved = Some(Delay { doubt, longest_ms: 50.0, share: 0.02 });
}

fn stopped(doubts: &mut Doubts) {
    let doubt = Doubt::Stopped { longest_ms: 2_000.0, total: 2.0, share: 0.2 };
    doubts.stopped = Some(Delay { doubt, longest_ms: 2_000.0, share: 0.2 });
}

fn paced(doubts: &mut Doubts) {
    doubts.pauses.push(Doubt::LimitedByPauses {
        scenario: "load".to_owned(),
        allowed: 1_000.0,
        workers: 100.0,
        pause_ms: 100.0,
        reached: 980.0,
    });
}

fn hang() -> FailurePeriod {
    FailurePeriod {
        from: 4.0,
        until: None,
        calls: 60,
        failed: 60,
        succeeded_before: 40,
        class: Class::Timeout,
        rate: 140.0,
    }
}

#[test]
fn a_generator_that_was_stopped_is_never_the_targets_fault() {
    // Without thresholds, a closed load lost a fifth of its rate. An open load is sent in full.
    assert_eq!(Case::closed(0).doubt(stopped).verdict().0, Outcome::ClientLimited);
    let (outcome, _, warnings) = Case::open().doubt(stopped).verdict();
    assert_eq!((outcome, warnings), (Outcome::Measured, vec!["stopped".to_owned()]));
    // The latency is above its limit, and would not be without the stop.
    let broken = |excess| Case::open().broken(Metric::Latency).excess(excess).doubt(stopped);
    let (outcome, reasons, _) = broken(1_900.0).verdict();
    assert_eq!((outcome, reasons[0].as_str()), (Outcome::Invalid, "stopped"));
    assert_eq!(broken(2_100.0).verdict().0, Outcome::Fail, "longer than the stop");
    let mut certain = broken(1_900.0);
    certain.threshold_results[0].breaks_without_delays = true;
    assert_eq!(certain.verdict().0, Outcome::Fail, "broken without the stop too");
    // A tenth of the iterations were not started in time.
    let undelivered = Case::open().doubt(stopped).doubt(|doubts| {
        let delivery = Delivered { share: 0.89, started: 890, scheduled: 1_000 };
        let scenario = "load".to_owned();
        let behind = Doubt::Behind { scenario, delivery, workers: 5, mean_ms: 9.0, best_ms: 1.0 };
        doubts.undelivered.push((behind, 0.1));
    });
    let (outcome, reasons, _) = undelivered.verdict();
    assert_eq!(outcome, Outcome::Invalid);
    assert!(reasons[1].contains("whether the target would have kept up is unknown"), "{reasons:?}");
}

/// The median and the p95 describe most calls. Higher percentiles are marked.
#[test]
fn latencies_that_are_mostly_the_generators_are_not_valid() {
    let with_least = |p95_ms, p99_ms| {
        let mut case = Case::open();
        let latency = case.overall.latency;
        case.overall.latency_least = Some(Quantiles {
            p95_ms: p95_ms * latency.p95_ms,
            p99_ms: p99_ms * latency.p99_ms,
            ..latency
        });
        case
    };
    assert_eq!(with_least(0.95, 0.95).verdict(), (Outcome::Measured, Vec::new(), Vec::new()));
    let (outcome, _, warnings) = with_least(0.95, 0.5).verdict();
    assert_eq!((outcome, warnings), (Outcome::Measured, vec!["moved".to_owned()]));
    let (outcome, reasons, _) = with_least(0.5, 0.5).verdict();
    assert_eq!((outcome, reasons), (Outcome::Invalid, vec!["moved".to_owned()]));
    assert_eq!(with_least(0.5, 0.5).kept(Metric::Latency).verdict().0, Outcome::Pass);
    let starved = Case::open().doubt(|doubts| {
        let doubt = Doubt::Starved { threads: 1, waited: 8.9, share: 0.89, is_closed: false };
        doubts.starved = Some(Delay { doubt, longest_ms: 5.0, share: 0.0 });
    });
    assert_eq!(starved.verdict().0, Outcome::Invalid, "no core for most of the time");
}

#[test]
fn rejections_that_no_threshold_judges_are_warned_of() {
    let case = || {
        let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
        Case::new(plan, &[(Class::Limited, 10_000)])
    };
    let (outcome, _, warnings) = case().kept(Metric::Failed).verdict();
    assert_eq!(outcome, Outcome::Pass);
    let expected = "50.0 % of the calls were rejected with status 429, which is no failure, and no \
                    threshold over all methods judges that: add the threshold limited rate<0.01";
    assert_eq!(warnings, [expected]);
    let (_, _, warnings) = case().kept(Metric::Limited).verdict();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_run_without_failures_passes_if_it_has_thresholds_and_else_is_measured() {
    assert_eq!(Case::open().verdict(), (Outcome::Measured, Vec::new(), Vec::new()));
    let kept = Case::open().kept(Metric::Latency).verdict();
    assert_eq!((kept.0, kept.1), (Outcome::Pass, Vec::new()));
}

#[test]
fn a_broken_threshold_fails_and_is_reported_with_its_value_and_time() {
    let (outcome, reasons, _) = Case::open().broken(Metric::Latency).verdict();
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(reasons, ["as written was broken: 2.0 ms, first at 4.0 s"]);
}

#[test]
fn a_method_that_fails_completely_fails_the_run_despite_kept_thresholds() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let case = Case::new(plan, &[(Class::Ok, 40), (Class::Timeout, 60)]);
    let (outcome, reasons, _) = case.kept(Metric::Failed).period(hang()).verdict();
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(
        reasons,
        [
            "every call of eth_getLogs scheduled since 4.0 s failed (60, mostly timeout); 40 succeeded \
          before; when the failures began, the run started 140.0 iterations/s; over the whole run \
          0.59 % of the calls failed"
        ]
    );
}

#[test]
fn a_method_that_rejects_every_call_fails_the_run() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let refused =
        FailurePeriod { succeeded_before: 0, class: Class::RpcError, from: 0.0, ..hang() };
    let case = Case::new(plan, &[(Class::RpcError, 60)]).period(refused);
    let (outcome, reasons, _) = case.verdict();
    assert_eq!(outcome, Outcome::Fail);
    assert!(reasons[0].starts_with("every call of eth_getLogs returned a JSON-RPC error"));
}

#[test]
fn many_failures_of_one_method_fail_the_run_unless_a_threshold_allows_them() {
    let with = |failed, tolerated: bool| {
        let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
        let logs = [(Class::Ok, 100 - failed), (Class::RpcError, failed)];
        let mut case = Case::new(plan, &logs).kept(Metric::Failed);
        case.plan.thresholds[0].selector.method = tolerated.then_some(1);
        case.verdict()
    };
    let (outcome, reasons, _) = with(28, false);
    assert_eq!(outcome, Outcome::Fail);
    assert!(reasons[0].starts_with("28.0 % of the calls of eth_getLogs failed, mostly rpc_error"));
    assert_eq!(with(28, true).0, Outcome::Pass);
    assert_eq!(with(10, false).0, Outcome::Pass);
}

/// A stall of 500 ms in every five seconds takes 10 % of the time, but only 0.1 % of the calls.
#[test]
fn a_stall_that_hides_calls_breaks_the_threshold() {
    let with = |limit: f64, missing_share: f64| {
        let mut case = Case::closed(0).kept(Metric::Latency);
        case.plan.thresholds[0].aggregation = Aggregation::Percentile(99.0);
        case.plan.thresholds[0].limit = limit;
        case.stalls = Some(Stalls { at: vec![5.0, 10.0], missing_share, longest_ms: 502.0 });
        case.verdict()
    };
    let (outcome, reasons, _) = with(100.0, 0.1);
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(
        reasons,
        ["as written was kept only because workers wait while the target stalls: 10.0 % fewer \
             results than at the run's median rate, with gaps at 5 s, 10 s, where calls took up to \
             502 ms"]
    );
    assert_eq!(with(600.0, 0.1).0, Outcome::Pass);
    assert_eq!(with(100.0, 0.005).0, Outcome::Pass, "less than the percentile leaves out");
}

#[test]
fn a_short_outage_is_a_finding_and_a_long_one_fails_the_run() {
    let outage = |failed, ok| {
        let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
        let period = FailurePeriod { until: Some(6.0), failed, calls: failed, ..hang() };
        Case::new(plan, &[(Class::Ok, ok), (Class::Timeout, failed)]).period(period).verdict()
    };
    assert_eq!(outage(20, 1_000).0, Outcome::Measured);
    assert!(outage(20, 1_000).2[0].contains("scheduled from 4.0 s to 6.0 s failed"));
    assert_eq!(outage(1_000, 60).0, Outcome::Fail);
}

#[test]
fn a_run_in_which_everything_failed_fails() {
    let mut case = Case::open();
    let totals =
        samples::counted(&case.plan, &[(0, 0, Class::RpcError, 5, 1)], Iterations::default());
    (case.overall, case.methods) = aggregate::compute_method_rows(&case.plan, &totals, 1.0);
    let (outcome, reasons, _) = case.verdict();
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(reasons, ["all 5 calls of eth_call failed (rpc_error)"]);
}

#[test]
fn a_busy_generator_is_blamed_unless_the_server_reported_the_failure() {
    let silent = Case::open().broken(Metric::Failed).doubt(busy).verdict();
    assert_eq!(silent.0, Outcome::ClientLimited);
    assert_eq!(silent.1[0], "busy");
    assert!(silent.1[1].starts_with("as written was broken"), "told, but after the doubt");
    let verdict = Case::open().broken_by_server(Metric::Failed).doubt(busy).verdict();
    assert_eq!(verdict.0, Outcome::Fail);
    assert_eq!(verdict.1[1], "busy");
}

#[test]
fn a_busy_generator_does_not_explain_a_single_hanging_method() {
    let hanging = |answered: u64| {
        let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
        let mut case = Case::new(plan, &[(Class::Ok, 40), (Class::Timeout, 60)]).doubt(busy);
        let calls = [(0, 0, Class::Ok, answered, 5), (0, 1, Class::Timeout, 60, 5)];
        let totals = samples::counted(&case.plan, &calls, Iterations::default());
        (case.overall, _) = aggregate::compute_method_rows(&case.plan, &totals, 10.0);
        case.period(hang()).verdict().0
    };
    assert_eq!(hanging(1_000), Outcome::Fail);
    assert_eq!(hanging(10), Outcome::ClientLimited, "everything hung, which could be ours");
}

#[test]
fn a_busy_generator_limits_a_closed_load_but_not_a_delivered_rate() {
    assert_eq!(Case::closed(0).doubt(busy).verdict().0, Outcome::ClientLimited);
    let (outcome, _, warnings) = Case::open().doubt(busy).verdict();
    assert_eq!((outcome, warnings), (Outcome::Measured, vec!["busy".to_owned()]));
}

/// Late sends add to latencies, by at most their own delay.
#[test]
fn late_sends_make_a_run_invalid_only_if_they_explain_the_breach() {
    let broken = |metric, excess| {
        let case = Case::open().broken(metric).excess(excess);
        let (outcome, reasons, _) = case.doubt(late).verdict();
        assert!(reasons.contains(&"late".to_owned()), "{reasons:?}");
        outcome
    };
    assert_eq!(broken(Metric::Latency, 4.0), Outcome::Invalid);
    assert_eq!(broken(Metric::Latency, 5_000.0), Outcome::Fail);
    assert_eq!(broken(Metric::Limited, 0.982), Outcome::Fail, "99 % of the calls answered 429");
    assert_eq!(broken(Metric::Limited, 0.01), Outcome::Invalid, "as many as were sent late");
    assert_eq!(broken(Metric::Failed, 0.5), Outcome::Fail, "timeouts of 15 s");
    assert_eq!(broken(Metric::Delivered, 0.3), Outcome::Fail);
    assert_eq!(broken(Metric::Delivered, 0.015), Outcome::Invalid);

    let kept = Case::open().kept(Metric::Latency).doubt(late).verdict();
    assert_eq!((kept.0, kept.2), (Outcome::Pass, vec!["late".to_owned()]));
    assert_eq!(Case::open().doubt(late).verdict().0, Outcome::Measured);
    assert_eq!(Case::open().doubt(late).doubt(busy).verdict().0, Outcome::ClientLimited);
}

#[test]
fn a_late_send_explains_a_breach_of_unknown_excess() {
    let mut case = Case::open().broken(Metric::Latency).doubt(late);
    case.threshold_results[0].excess = None;
    assert_eq!(case.verdict().0, Outcome::Invalid);
}

/// The generator waited 50 ms for a core that the target used. This does not explain latencies that
/// are seconds above their limit.
#[test]
fn a_wait_for_a_core_explains_only_a_delay_of_its_own_length() {
    let broken = |metric, excess| {
        let case = Case::open().broken(metric).excess(excess);
        case.doubt(starved).doubt(late).verdict().0
    };
    assert_eq!(broken(Metric::Latency, 3_800.0), Outcome::Fail);
    assert_eq!(broken(Metric::Latency, 40.0), Outcome::ClientLimited);
    assert_eq!(broken(Metric::Limited, 0.98), Outcome::Fail);
    let (outcome, _, warnings) = Case::open().doubt(starved).verdict();
    assert_eq!((outcome, warnings), (Outcome::Measured, vec!["starved".to_owned()]));
    assert_eq!(Case::closed(0).doubt(starved).verdict().0, Outcome::ClientLimited);
}

#[test]
fn http_429_responses_fail_the_run_even_if_the_generator_was_busy() {
    let limited = Case::open().broken(Metric::Limited).doubt(busy).verdict();
    assert_eq!(limited.0, Outcome::Fail);
}

#[test]
fn a_run_that_measured_nothing_is_always_invalid() {
    let case = Case::open().broken_by_server(Metric::Failed).doubt(busy);
    let (outcome, reasons, _) = case.doubt(|doubts| doubts.empty = Some(Doubt::NoCalls)).verdict();
    assert_eq!((outcome, reasons[0].as_str()), (Outcome::Invalid, "empty"));
}

#[test]
fn a_target_that_fell_behind_fails_unless_the_plan_has_too_few_workers() {
    let (scenario, workers) = (|| "load".to_owned(), 5);
    let delivery = Delivered { share: 0.79, started: 79, scheduled: 100 };
    let behind = || {
        let (mean_ms, best_ms) = (100.0, 1.0);
        let doubt = Doubt::Behind { scenario: scenario(), delivery, workers, mean_ms, best_ms };
        Case::open().doubt(|doubts| doubts.undelivered.push((doubt.clone(), 0.2)))
    };
    assert_eq!(behind().verdict().0, Outcome::Fail);
    assert_eq!(behind().doubt(late).verdict().0, Outcome::Fail, "2 % of the sends were late");
    let (allowed, best_ms, peak) = (5.0, 1.0, 10.0);
    let few = Doubt::FewWorkers { scenario: scenario(), delivery, workers, allowed, best_ms, peak };
    let few = Case::open().doubt(|doubts| doubts.workers.push(few.clone()));
    assert_eq!(few.verdict().0, Outcome::ClientLimited);
}

/// A failing method is reported even if a method whose name begins with its name fails too.
#[test]
fn a_failing_method_is_named_although_one_with_a_longer_name_fails_too() {
    let plan = samples::open(100.0, 10, &["eth_callMany", "eth_call"]);
    let mut case = Case::new(plan, &[(Class::Ok, 72), (Class::Timeout, 28)]);
    case.failure_periods.push(("eth_callMany".to_owned(), hang()));
    let (_, reasons, _) = case.verdict();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons.iter().any(|reason| reason.starts_with("28.0 % of the calls of eth_call failed"))
    );
}

/// A broken threshold about a method does not hide another method whose name it contains.
#[test]
fn a_failing_method_is_named_although_one_with_a_longer_name_broke_a_threshold() {
    let plan = samples::open(100.0, 10, &["eth_callMany", "eth_call"]);
    let case = Case::new(plan, &[(Class::Ok, 72), (Class::Timeout, 28)]);
    let mut case = case.broken(Metric::Failed);
    let outcome = &mut case.threshold_results[0].outcome;
    outcome.text = "failed{method:eth_callMany} rate<0.01".to_owned();
    outcome.method = Some("eth_callMany".to_owned());
    let (_, reasons, _) = case.verdict();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(
        reasons.iter().any(|reason| reason.starts_with("28.0 % of the calls of eth_call failed"))
    );
}

/// A method that is slow and fails has two reasons. The failure of the server stands, even if the
/// delay of the generator explains the latency.
#[test]
fn a_failing_method_is_named_although_its_latency_threshold_is_broken_too() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let case = Case::new(plan, &[(Class::Ok, 72), (Class::RpcError, 28)]);
    let mut case = case.broken(Metric::Latency).excess(0.001).doubt(late);
    case.threshold_results[0].outcome.method = Some("eth_getLogs".to_owned());
    let (outcome, reasons, _) = case.verdict();
    let failed = |reason: &String| reason.starts_with("28.0 % of the calls of eth_getLogs failed");
    assert!(reasons.iter().any(failed), "{reasons:?}");
    assert_eq!(outcome, Outcome::Fail);
}

#[test]
fn pauses_that_limit_the_rate_make_a_run_client_limited() {
    assert_eq!(Case::closed(100).doubt(paced).verdict().0, Outcome::ClientLimited);
    let latency = Case::closed(100).kept(Metric::Latency).doubt(paced).verdict();
    assert_eq!(latency.0, Outcome::ClientLimited);
    let kept = "the threshold was kept, but the plan's own pauses limited the load; set a rate to \
                test whether the target can sustain it";
    assert_eq!(latency.1, ["paced", kept]);
    let rate = Case::closed(100).broken(Metric::Goodput).doubt(paced).verdict();
    assert_eq!(rate.0, Outcome::ClientLimited);
    let slow = Case::closed(100).broken(Metric::Latency).doubt(paced).verdict();
    assert_eq!(slow.0, Outcome::Fail);
}

#[test]
fn a_run_that_ended_early_can_fail_but_not_pass() {
    let ended = |mut case: Case, early| {
        case.early_end = Some(early);
        case.verdict()
    };
    let (outcome, reasons, _) = ended(Case::open(), EarlyEnd::StoppedByUser(3.0));
    assert_eq!(outcome, Outcome::Invalid);
    assert_eq!(
        reasons,
        ["the run was stopped by the user at 3.0 s of 10.0 s; no threshold was broken until then"]
    );
    let broken = Case::open().broken(Metric::Latency);
    assert_eq!(ended(broken, EarlyEnd::StoppedByUser(3.0)).0, Outcome::Fail);
    let broken = Case::open().broken(Metric::Latency);
    let (outcome, reasons, _) = ended(broken, EarlyEnd::Aborted(3.0));
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(reasons[1], "the broken threshold aborted the run at 3.0 s of 10.0 s");
}

#[test]
fn wrong_responses_fail_the_run_and_are_shown() {
    let mut case = Case::open().doubt(busy);
    case.compared = Some(Compared {
        reference: "http://127.0.0.1:2/".to_owned(),
        compared: 50,
        wrong: 2,
        methods: vec![("eth_call".to_owned(), 50, 2)],
        examples: vec![Difference {
            method: "eth_call".to_owned(),
            pointer: "/result".to_owned(),
            target: "\"0x1\"".to_owned(),
            reference: "\"0x2\"".to_owned(),
            ..Difference::default()
        }],
        ..Compared::default()
    });
    let (outcome, reasons, _) = case.verdict();
    assert_eq!(outcome, Outcome::Fail);
    assert_eq!(
        reasons[0],
        "2 of 50 compared responses of eth_call differ from those of http://127.0.0.1:2/, first at \
         \"/result\": \"0x1\" instead of \"0x2\""
    );
}
