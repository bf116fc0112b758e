//! Goal: thresholds break and recover at the right second. Method: seconds with planted breaches,
//! in virtual time.

use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{
    Plan, Subscription, SubscriptionFigure, SubscriptionKind, SubscriptionThreshold,
};
use lab_model::record::{Class, Iterations};
use lab_model::results::ThresholdOutcome;
use lab_model::results::subscription::SubscriptionRow;
use lab_model::samples;

use super::subscriptions::subscription_results;
use super::{Judge, Remark};

fn threshold(
    metric: Metric,
    aggregation: Aggregation,
    operator: Operator,
    limit: f64,
) -> Threshold {
    Threshold {
        selector: Selector { metric, method: None, stages: None },
        aggregation,
        operator,
        limit,
        window: None,
        sustained: Duration::ZERO,
        abort: false,
        abort_delay: Duration::ZERO,
        no_data_fails: true,
        text: "as written".to_owned(),
    }
}

fn p95(limit: f64) -> Threshold {
    threshold(Metric::Latency, Aggregation::Percentile(95.0), Operator::Less, limit)
}

fn failed(limit: f64) -> Threshold {
    threshold(Metric::Failed, Aggregation::Rate, Operator::Less, limit)
}

/// Calls by stage, method and class: their number, and their latency in milliseconds.
type Calls = Vec<(u16, u16, Class, u64, u64)>;

fn plan(seconds: u64, thresholds: Vec<Threshold>) -> Plan {
    let mut plan = samples::open(100.0, seconds, &["eth_call", "eth_getLogs"]);
    plan.thresholds = thresholds;
    plan
}

/// Adds seconds until `calls` returns `None` or a threshold aborts the run. Returns the second of
/// the abort, if there is one.
fn feed(plan: &Plan, calls: impl Fn(u64) -> Option<Calls>) -> (Judge, Option<u64>) {
    let mut judge = Judge::new(plan);
    for at in 0.. {
        let Some(calls) = calls(at) else { break };
        let started = calls.iter().map(|call| call.3).sum();
        let iterations =
            Iterations { scheduled: started, started, ended: started, ..Iterations::default() };
        let part = samples::counted(plan, &calls, iterations);
        let (from, to) = (Duration::from_secs(at), Duration::from_secs(at + 1));
        if judge.add_second(from, to, &part) {
            return (judge, Some(at + 1));
        }
    }
    judge.end(Duration::from_secs(100));
    (judge, None)
}

fn outcome(threshold: Threshold, calls: impl Fn(u64) -> Option<Calls>) -> ThresholdOutcome {
    let plan = plan(30, vec![threshold]);
    crate::wording::verdict::threshold_outcome(&feed(&plan, calls).0.threshold_results()[0])
}

fn ok(ms: u64) -> Calls {
    vec![(0, 0, Class::Ok, 100, ms)]
}

#[test]
fn a_whole_run_is_judged_by_its_final_value() {
    // The target is slow at first, and then fast for so long that the p95 is low.
    let result = outcome(p95(300.0), |at| (at < 30).then(|| ok(if at < 1 { 500 } else { 10 })));
    assert!(result.kept, "{result:?}");
    assert_eq!((result.broken_at, result.note), (None, None));
    // The target is slow from second 20 on. The threshold breaks once more than 5 % of the calls
    // were slow.
    let result = outcome(p95(300.0), |at| (at < 30).then(|| ok(if at < 20 { 10 } else { 500 })));
    assert!(!result.kept);
    assert_eq!(result.broken_at, Some(21.0), "one slow second in 21 is just below 5 %");
    assert!(result.observed.unwrap() > 490.0);
}

#[test]
fn a_window_shows_a_breach_that_the_whole_run_hides() {
    let slow_at_10 = |at| (at < 30).then(|| ok(if at == 10 { 500 } else { 10 }));
    assert!(outcome(p95(300.0), slow_at_10).kept);
    let windowed = Threshold { window: Some(Duration::from_secs(5)), ..p95(300.0) };
    let result = outcome(windowed, slow_at_10);
    assert!(!result.kept);
    assert_eq!(result.broken_at, Some(10.0));
    assert_eq!(result.note.as_deref(), Some("worst of 26 windows of 5 s"));
}

#[test]
fn a_breach_shorter_than_sustained_does_not_count() {
    let sustained = Threshold { sustained: Duration::from_secs(5), ..p95(300.0) };
    let slow = |seconds: u64| {
        move |at| (at < 30).then(|| ok(if (10..10 + seconds).contains(&at) { 500 } else { 10 }))
    };
    assert!(outcome(sustained.clone(), slow(4)).kept);
    let result = outcome(sustained.clone(), slow(5));
    assert!(!result.kept);
    assert_eq!(result.broken_at, Some(10.0), "since when, not when it had lasted long enough");
    let result = outcome(sustained, slow(12));
    assert_eq!(
        result.note.as_deref(),
        Some("broken for 12 s without a break, judged in windows of 1 s")
    );
}

#[test]
fn seconds_without_data_do_not_end_a_breach() {
    let sustained = Threshold { sustained: Duration::from_secs(6), ..failed(0.01) };
    let result = outcome(sustained, |at| match at {
        10 | 15 => Some(vec![(0, 0, Class::Timeout, 20, 1_000)]),
        11..=14 => Some(Vec::new()),
        0..=29 => Some(ok(10)),
        _ => None,
    });
    assert!(!result.kept, "{result:?}");
    assert_eq!(result.broken_at, Some(10.0));
}

#[test]
fn a_method_and_a_stage_are_judged_alone() {
    let mut plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    samples::stage(&mut plan, 0, 10, 100.0, 100.0);
    let on = |method, stages| Threshold {
        selector: Selector { metric: Metric::Failed, method, stages },
        ..failed(0.01)
    };
    plan.thresholds =
        vec![on(None, None), on(Some(1), None), on(Some(0), None), on(None, Some(vec![0]))];
    let (judge, _) = feed(&plan, |at| {
        let stage = u16::from(at >= 10);
        let logs = if stage == 1 { Class::Timeout } else { Class::Ok };
        (at < 20).then(|| vec![(stage, 0, Class::Ok, 1_000, 5), (stage, 1, logs, 10, 50)])
    });
    let kept: Vec<_> = judge
        .threshold_results()
        .iter()
        .map(|threshold_result| threshold_result.outcome.kept)
        .collect();
    assert_eq!(kept, [true, false, true, true], "half of getLogs fails, 0.5 % of all calls");
}

#[test]
fn no_data_fails_unless_the_plan_allows_it() {
    let on_logs = |no_data_fails| Threshold {
        selector: Selector { metric: Metric::Latency, method: Some(1), stages: None },
        no_data_fails,
        ..p95(300.0)
    };
    let result = outcome(on_logs(true), |at| (at < 30).then(|| ok(10)));
    assert_eq!((result.kept, result.observed), (false, None));
    assert_eq!(result.note.as_deref(), Some("no data, which counts as broken"));
    assert!(outcome(on_logs(false), |at| (at < 30).then(|| ok(10))).kept);
}

#[test]
fn a_run_ends_at_a_breach_but_not_before_the_delay() {
    let aborting =
        |delay| Threshold { abort: true, abort_delay: Duration::from_secs(delay), ..failed(0.5) };
    let failing = |at| (at < 30).then(|| vec![(0, 0, Class::Http5xx, 10, 1)]);
    assert_eq!(feed(&plan(30, vec![aborting(0)]), failing).1, Some(1));
    assert_eq!(feed(&plan(30, vec![aborting(12)]), failing).1, Some(12));
    assert_eq!(feed(&plan(30, vec![failed(0.5)]), failing).1, None);
}

#[test]
fn a_breach_lasts_no_longer_than_its_stage() {
    let mut plan = samples::open(100.0, 10, &["eth_call"]);
    samples::stage(&mut plan, 0, 30, 100.0, 100.0);
    let sustained = Threshold {
        selector: Selector { metric: Metric::Failed, method: None, stages: Some(vec![0]) },
        sustained: Duration::from_secs(5),
        abort: true,
        ..failed(0.01)
    };
    plan.thresholds = vec![sustained];
    let broken_from = |from| {
        let (judge, ended) = feed(&plan, |at| {
            let class = if at >= from { Class::Http5xx } else { Class::Ok };
            (at < 40).then(|| vec![(u16::from(at >= 10), 0, class, 100, 5)])
        });
        (judge.threshold_results()[0].outcome.kept, ended)
    };
    assert_eq!(broken_from(8), (true, None), "two seconds of it");
    assert_eq!(broken_from(5), (false, Some(10)));
    // A breach also lasts no longer than the load, because only late calls end after the load.
    let sustained = Threshold { sustained: Duration::from_secs(5), ..failed(0.01) };
    let result = outcome(sustained, |at| match at {
        0..=27 => Some(ok(10)),
        28..=29 => Some(vec![(0, 0, Class::Http5xx, 100, 5)]),
        30..=40 => Some(Vec::new()),
        _ => None,
    });
    assert!(result.kept, "{result:?}");
}

#[test]
fn the_threshold_that_ended_the_run_stays_broken() {
    let aborting = Threshold { abort: true, ..failed(0.01) };
    let plan = plan(30, vec![aborting]);
    let mut judge = Judge::new(&plan);
    let mut second = |at: u64, failed: u64| {
        let calls = [(0, 0, Class::Ok, 1_000 - failed, 5), (0, 0, Class::Http5xx, failed, 5)];
        let part = samples::counted(&plan, &calls, Iterations::default());
        judge.add_second(Duration::from_secs(at), Duration::from_secs(at + 1), &part)
    };
    assert!(!second(0, 9));
    assert!(second(1, 11), "20 of 2000");
    // Calls in flight at the abort end within the limit.
    assert!(second(2, 0));
    judge.end(Duration::from_secs(3));
    let threshold_result = &judge.threshold_results()[0];
    assert!(
        !threshold_result.outcome.kept && threshold_result.is_server_fault,
        "{threshold_result:?}"
    );
    assert_eq!(threshold_result.outcome.broken_at, Some(1.0));
    assert_eq!(threshold_result.remark, Some(super::Remark::Recovered));
}

#[test]
fn a_broken_window_shows_if_the_server_is_the_cause() {
    let is_server_fault = |broken: Class, last: Class| {
        let windowed = Threshold { window: Some(Duration::from_secs(5)), ..failed(0.01) };
        let plan = plan(30, vec![windowed]);
        let (judge, _) = feed(&plan, |at| {
            let some = |class, count| vec![(0, 0, Class::Ok, 1_000, 5), (0, 0, class, count, 5)];
            match at {
                10..=14 => Some(some(broken, 300)),
                29 => Some(some(last, 1)),
                0..=29 => Some(ok(5)),
                _ => None,
            }
        });
        let threshold_result = judge.threshold_results().remove(0);
        assert!(!threshold_result.outcome.kept);
        threshold_result.is_server_fault
    };
    assert!(!is_server_fault(Class::Timeout, Class::RpcError));
    assert!(is_server_fault(Class::Http5xx, Class::Timeout));
}

#[test]
fn rates_are_divided_by_the_time_under_load() {
    let goodput = threshold(Metric::Goodput, Aggregation::Rate, Operator::Greater, 99.0);
    let windowed = Threshold { window: Some(Duration::from_secs(5)), ..goodput.clone() };
    // The load lasts 30 s. In the next 15 s a single call ends.
    let calls = |at| match at {
        0..=29 => Some(ok(10)),
        30..=44 => Some(if at == 44 { vec![(0, 0, Class::Timeout, 1, 15_000)] } else { vec![] }),
        _ => None,
    };
    let result = outcome(goodput, calls);
    assert_eq!(result.observed, Some(100.0), "{result:?}");
    assert!(outcome(windowed, calls).kept);
}

#[test]
fn counts_shares_and_iterations_are_correct() {
    use Aggregation as A;
    use Metric as M;
    let checks = [
        (M::Calls, A::Count, 300.0),
        (M::Calls, A::Rate, 10.0),
        (M::Goodput, A::Count, 150.0),
        (M::Failed, A::Rate, 0.4),
        (M::Limited, A::Rate, 0.1),
        (M::Iterations, A::Count, 300.0),
        (M::Dropped, A::Count, 0.0),
        (M::Delivered, A::Rate, 1.0),
    ];
    for (metric, aggregation, expected) in checks {
        let result = outcome(threshold(metric, aggregation, Operator::Equal, expected), |at| {
            let failed = (0, 1, Class::RpcError, 4, 5);
            (at < 30).then(|| vec![(0, 0, Class::Ok, 5, 5), failed, (0, 0, Class::Limited, 1, 5)])
        });
        assert!(result.kept, "{metric:?} {aggregation:?}: {result:?}");
    }
}

#[test]
fn a_window_longer_than_the_run_covers_the_existing_data() {
    let windowed = Threshold { window: Some(Duration::from_secs(60)), ..p95(300.0) };
    let result = outcome(windowed.clone(), |at| (at < 10).then(|| ok(500)));
    assert!(!result.kept && result.observed.is_some(), "{result:?}");
    assert!(outcome(windowed, |at| (at < 10).then(|| ok(50))).kept);
}

#[test]
fn long_windows_move_in_longer_steps_and_keep_few_of_them() {
    let windowed = Threshold { window: Some(Duration::from_secs(600)), ..p95(300.0) };
    let plan = plan(1_800, vec![windowed]);
    let (judge, _) = feed(&plan, |at| (at < 1_800).then(|| ok(if at < 1_700 { 10 } else { 500 })));
    assert!(judge.collectors[0].steps.len() <= 60, "{}", judge.collectors[0].steps.len());
    assert!(!judge.threshold_results()[0].outcome.kept, "100 s of 600 s are more than 5 %");
}

#[test]
fn failures_reported_by_the_server_are_marked() {
    let is_server_fault = |class| {
        let plan = plan(30, vec![failed(0.01)]);
        let (judge, _) = feed(&plan, |at| (at < 30).then(|| vec![(0, 0, class, 10, 5)]));
        judge.threshold_results()[0].is_server_fault
    };
    assert!(is_server_fault(Class::Http5xx));
    assert!(is_server_fault(Class::RpcError));
    assert!(!is_server_fault(Class::Timeout), "silence could be ours");
    assert!(!is_server_fault(Class::Ok));
}

#[test]
fn thresholds_of_subscriptions_are_kept_broken_or_without_data() {
    let max = |figure, max| SubscriptionThreshold { figure, max, text: format!("{figure:?}") };
    let mut plan = samples::open(1.0, 1, &["eth_blockNumber"]);
    plan.subscriptions = vec![Subscription {
        name: "heads".to_owned(),
        target: plan.target.clone(),
        kind: SubscriptionKind::Heads,
        connections: 2,
        addresses: Vec::new(),
        thresholds: vec![
            max(SubscriptionFigure::Ended, 1.0),
            max(SubscriptionFigure::Missing, 2.0),
            max(SubscriptionFigure::Duplicates, 4.0),
            max(SubscriptionFigure::DelayP99, 250.0),
        ],
    }];
    let mut row = SubscriptionRow {
        name: "heads".to_owned(),
        ended: vec![("connection lost".to_owned(), 1)],
        notifications: 100,
        missing: Some(2),
        duplicates: 4,
        ..SubscriptionRow::default()
    };
    (row.delay.count, row.delay.p99_ms) = (96, 250.0);
    let results = |row: &SubscriptionRow| {
        let results = subscription_results(&plan, std::slice::from_ref(row));
        let kept: Vec<bool> = results.iter().map(|result| result.outcome.kept).collect();
        (kept, results)
    };
    let (kept, kept_results) = results(&row);
    assert_eq!(kept, [true; 4]);
    assert_eq!(kept_results[3].outcome.text, "DelayP99");
    row.ended.push(("connect failed".to_owned(), 1));
    (row.missing, row.duplicates, row.delay.p99_ms) = (Some(3), 5, 251.0);
    let (kept, broken) = results(&row);
    assert_eq!(kept, [false; 4]);
    assert_eq!(broken.iter().map(|result| result.excess).collect::<Vec<_>>(), [Some(1.0); 4]);
    // Without any notification, a threshold about notifications is not kept.
    let silent = SubscriptionRow { missing: Some(0), ..SubscriptionRow::default() };
    let (kept, silent) = results(&silent);
    assert_eq!(kept, [true, false, false, false]);
    assert_eq!(silent[1].remark, Some(Remark::NoData { fails: true }));
}
