//! Goal: each condition of a pass decides alone. Method: made-up probes that differ in one
//! property.

use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::results::capacity::ProbeOutcome;
use lab_model::results::run::{Row, Second};
use lab_model::results::{Outcome, Quantiles, ThresholdOutcome, Verdict};

use super::{Limit, ProbeRun, judge};

static PASS: Verdict = Verdict { outcome: Outcome::Pass, reasons: Vec::new() };

fn row(method: &str, calls: u64, failed_share: f64, mean_ms: f64) -> Row {
    let times = Quantiles { count: calls, mean_ms, p50_ms: mean_ms, ..Quantiles::default() };
    Row {
        method: method.to_owned(),
        calls,
        share: 0.5,
        rate: 0.0,
        goodput: 0.0,
        failed_share,
        limited_share: 0.0,
        null_share: Some(0.0),
        wrong_type_share: Some(0.0),
        classes: Vec::new(),
        latency: times,
        latency_least: None,
        service: times,
        codes: Vec::new(),
    }
}

/// Returns twelve seconds. In each of them, 1,000 iterations are scheduled and `started` of them
/// start. `backlog` returns the number of iterations in flight or waiting at the end of a second.
fn seconds(backlog: impl Fn(u64) -> u64, started: u64) -> Vec<Second> {
    let second = |at: u64| Second {
        at: at as f64,
        scheduled: 1000,
        started,
        workers_busy: backlog(at).min(50),
        waiting: backlog(at).saturating_sub(50),
        ..Second::default()
    };
    (1..=12).map(second).collect()
}

fn probe<'a>(verdict: &'a Verdict, seconds: &'a [Second], methods: &'a [Row]) -> ProbeRun<'a> {
    ProbeRun {
        rate: 1000.0,
        warmup: 2.0,
        end: 12.0,
        delivered_min: 0.99,
        verdict,
        needs_enough_calls: true,
        thresholds: &[],
        outcomes: &[],
        method_names: &[],
        seconds,
        methods,
        baseline: &[],
    }
}

fn threshold(method: Option<usize>, metric: Metric, limit: f64) -> Threshold {
    Threshold {
        selector: Selector { metric, method, stages: None },
        aggregation: Aggregation::Percentile(99.0),
        operator: Operator::Less,
        limit,
        window: None,
        sustained: Duration::ZERO,
        abort: false,
        abort_delay: Duration::ZERO,
        no_data_fails: true,
        text: String::new(),
    }
}

fn outcome(text: &str, kept: bool, observed: f64, broken_at: Option<f64>) -> ThresholdOutcome {
    ThresholdOutcome {
        text: text.to_owned(),
        kept,
        observed: Some(observed),
        broken_at,
        ..ThresholdOutcome::default()
    }
}

#[test]
fn a_calm_probe_passes() {
    let calm = seconds(|at| 40 + at % 3, 1000);
    let judgement = judge(probe(&PASS, &calm, &[]));
    assert_eq!(judgement.outcome, ProbeOutcome::Pass);
    assert!(judgement.reasons.is_empty() && judgement.binding.is_none());
    assert_eq!((judgement.delivered_share, judgement.backlog_growth), (1.0, 0.0));
    assert_eq!(judgement.margin, Some(1.0));
}

/// A run ends some milliseconds after its last whole second. That remainder does not count as a
/// second.
#[test]
fn an_incomplete_last_second_does_not_lower_the_rate() {
    let mut calm = seconds(|_| 40, 1000);
    let piece = Second { at: 12.02, scheduled: 20, workers_busy: 3, ..Second::default() };
    calm.push(piece);
    let judgement = judge(probe(&PASS, &calm, &[]));
    assert_eq!((judgement.rate_ended, judgement.iterations_in_flight), (1000.0, 40.0));
}

/// At 2 % above the capacity every threshold is kept, but 20 iterations per second never end.
#[test]
fn a_growing_backlog_fails_although_all_thresholds_are_met() {
    let growing = seconds(|at| 10 + 20 * at, 1000);
    let judgement = judge(probe(&PASS, &growing, &[row("eth_call", 9, 0.0, 1.0)]));
    assert_eq!(judgement.outcome, ProbeOutcome::Fail);
    assert!((judgement.backlog_growth - 20.0).abs() < 0.01);
    let binding = judgement.binding.unwrap();
    assert_eq!(binding.limit, Limit::BacklogGrowth);
    assert_eq!(binding.method.as_deref(), Some("eth_call"));
    assert!(judgement.margin.unwrap() < 0.0);
}

/// The generator stood still for 2 s of 10 s. That may be why iterations are missing.
#[test]
fn missing_iterations_of_a_stopped_generator_decide_nothing() {
    let mut stopped = seconds(|_| 40, 950);
    assert_eq!(judge(probe(&PASS, &stopped, &[])).outcome, ProbeOutcome::Fail);
    stopped[5..7].iter_mut().for_each(|second| second.generator_gap_ms = 1_000.0);
    let judgement = judge(probe(&PASS, &stopped, &[]));
    assert_eq!(judgement.outcome, ProbeOutcome::Invalid);
    let reason = judgement.reasons[0].to_string();
    assert_eq!(
        reason,
        "the generator itself stood still for 20 % of the time, which may be the cause"
    );
}

/// Growth is allowed up to the share of iterations that may be missing. Growth during the warm-up
/// does not count.
#[test]
fn growth_that_does_not_matter_passes() {
    let slow = seconds(|at| 10 + 5 * at, 1000);
    assert_eq!(judge(probe(&PASS, &slow, &[])).outcome, ProbeOutcome::Pass);
    let start = seconds(|at| 1000 * at.min(2), 1000);
    assert_eq!(judge(probe(&PASS, &start, &[])).outcome, ProbeOutcome::Pass);
    let few = ProbeRun { seconds: &slow[..3], ..probe(&PASS, &slow, &[]) };
    assert_eq!(judge(few).backlog_growth, 0.0);
}

#[test]
fn a_probe_fails_if_too_few_iterations_start() {
    let short = seconds(|_| 50, 950);
    let judgement = judge(probe(&PASS, &short, &[]));
    assert_eq!(judgement.outcome, ProbeOutcome::Fail);
    assert_eq!(judgement.binding.unwrap().observed, Some(0.95));
}

/// Under overload both methods wait equally long. The baseline shows which method takes the most
/// time.
#[test]
fn the_method_that_takes_the_most_time_is_named() {
    let short = seconds(|_| 50, 900);
    let rows = [row("eth_blockNumber", 9000, 0.0, 200.0), row("eth_getLogs", 1000, 0.0, 210.0)];
    let calm = [row("eth_blockNumber", 90, 0.0, 0.1), row("eth_getLogs", 10, 0.0, 30.0)];
    let judgement = judge(ProbeRun { baseline: &calm, ..probe(&PASS, &short, &rows) });
    assert_eq!(judgement.binding.unwrap().method.as_deref(), Some("eth_getLogs"));
}

#[test]
fn the_threshold_that_broke_first_binds() {
    let calm = seconds(|_| 40, 1000);
    let verdict = Verdict { outcome: Outcome::Fail, reasons: vec!["x".to_owned()] };
    let thresholds = [
        threshold(None, Metric::Latency, 300.0),
        threshold(Some(1), Metric::Latency, 100.0),
        threshold(None, Metric::Failed, 0.01),
    ];
    let outcomes = [
        outcome("latency p(99)<300", false, 900.0, Some(8.0)),
        outcome("latency{method:b} p(99)<100", false, 110.0, Some(5.0)),
        outcome("failed p(99)<0.01", true, 0.0, None),
    ];
    let names: [Box<str>; 2] = ["a".into(), "b".into()];
    let judgement = judge(ProbeRun {
        thresholds: &thresholds,
        outcomes: &outcomes,
        method_names: &names,
        ..probe(&verdict, &calm, &[])
    });
    let binding = judgement.binding.unwrap();
    assert_eq!(binding.limit, Limit::Threshold("latency{method:b} p(99)<100".to_owned()));
    assert_eq!((binding.method.as_deref(), binding.allowed), (Some("b"), Some(100.0)));
    assert_eq!(judgement.margin, Some(-1.0), "farther out than its whole limit");
}

#[test]
fn a_method_that_fails_altogether_is_named() {
    let calm = seconds(|_| 40, 1000);
    let verdict = Verdict { outcome: Outcome::Fail, reasons: vec!["x".to_owned()] };
    let rows = [row("eth_call", 9000, 0.0, 1.0), row("eth_getLogs", 90, 1.0, 1.0)];
    let judgement = judge(probe(&verdict, &calm, &rows));
    let binding = judgement.binding.unwrap();
    assert_eq!(binding.method.as_deref(), Some("eth_getLogs"));
    assert_eq!(binding.limit, Limit::MethodFails);
    let thresholds = [threshold(None, Metric::Failed, 0.01)];
    let broken = [outcome("failed rate<0.01", false, 0.02, None)];
    let all =
        ProbeRun { thresholds: &thresholds, outcomes: &broken, ..probe(&verdict, &calm, &rows) };
    assert_eq!(judge(all).binding.unwrap().method.as_deref(), Some("eth_getLogs"));
}

#[test]
fn a_probe_that_the_generator_limits_neither_passes_nor_fails() {
    let short = seconds(|_| 50, 700);
    for (run_outcome, outcome) in [
        (Outcome::ClientLimited, ProbeOutcome::ClientLimited),
        (Outcome::Invalid, ProbeOutcome::Invalid),
    ] {
        let verdict = Verdict { outcome: run_outcome, reasons: vec!["x".to_owned()] };
        let judgement = judge(probe(&verdict, &short, &[]));
        assert_eq!((judgement.outcome, judgement.margin, judgement.binding), (outcome, None, None));
    }
}

/// At two calls per second, a probe of ten seconds has less than one call beyond its p99.
#[test]
fn a_percentile_of_few_calls_makes_a_probe_invalid() {
    let calm = seconds(|_| 50, 1000);
    let thresholds = [threshold(None, Metric::Latency, 10.0)];
    let probe_outcome = |calls, kept, needs_enough_calls| {
        let outcome_of = |kept| outcome("it", kept, 9.0, None);
        let (kept, rows) = ([outcome_of(kept)], [row("eth_call", calls, 0.0, 5.0)]);
        let fail = Verdict { outcome: Outcome::Fail, reasons: vec!["it was broken".to_owned()] };
        let verdict = if kept[0].kept { &PASS } else { &fail };
        let probe_run = ProbeRun {
            thresholds: &thresholds,
            outcomes: &kept,
            needs_enough_calls,
            ..probe(verdict, &calm, &rows)
        };
        judge(probe_run).outcome
    };
    assert_eq!(probe_outcome(20, true, true), ProbeOutcome::Invalid);
    assert_eq!(probe_outcome(20, false, true), ProbeOutcome::Invalid);
    assert_eq!(probe_outcome(20, true, false), ProbeOutcome::Pass, "a baseline has no tail");
    assert_eq!(
        (probe_outcome(1_000, true, true), probe_outcome(1_000, false, true)),
        (ProbeOutcome::Pass, ProbeOutcome::Fail)
    );
}
