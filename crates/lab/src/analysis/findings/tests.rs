//! Goal: planted stalls, drift and empty results are found, and a steady run has no finding.
//! Method: made-up seconds and totals.

use std::time::Duration;

use lab_engine::aggregate;
use lab_model::plan::Plan;
use lab_model::record::{Class, Iterations, Totals};
use lab_model::results::run::Second;
use lab_model::samples;

use super::{FindingsInput, find, find_stalls};
use crate::wording::verdict::sentences;

/// Returns a second with a number of calls, their median and the longest call, in milliseconds.
fn second(at: u64, calls: u64, p50_ms: f64, max_ms: f64) -> Second {
    let mut second = samples::second(at, calls, "eth_call", &[(Class::Ok, calls)]);
    second.requests = calls;
    (second.methods[0].p50_ms, second.methods[0].max_ms) = (p50_ms, max_ms);
    second
}

fn findings_of(plan: &Plan, totals: &Totals, seconds: &[Second]) -> Vec<String> {
    let seconds: Vec<&Second> = seconds.iter().collect();
    let (overall, methods) = aggregate::compute_method_rows(plan, totals, 10.0);
    let stages = aggregate::compute_stage_rows(plan, totals, Duration::from_secs(10));
    let input = FindingsInput {
        plan,
        measured: totals,
        overall: &overall,
        methods: &methods,
        stages: &stages,
        seconds: &seconds,
        subscriptions: &[],
        host: &[],
    };
    sentences(&find(input, find_stalls(plan, &seconds).as_ref()))
}

fn calls(plan: &Plan, class: Class, count: u64) -> Totals {
    let rest = (0, 0, Class::Ok, 1_000 - count, 5);
    samples::counted(plan, &[rest, (0, 0, class, count, 5)], Iterations::default())
}

#[test]
fn a_steady_run_has_no_finding() {
    let plan = samples::closed(10, 0, 10, &["eth_call"]);
    let steady: Vec<Second> = (1..=10).map(|at| second(at, 1_000, 5.0, 150.0)).collect();
    assert!(findings_of(&plan, &calls(&plan, Class::Ok, 0), &steady).is_empty());
}

#[test]
fn a_stall_of_a_closed_load_is_named_with_its_seconds_and_missing_results() {
    let plan = samples::closed(10, 0, 10, &["eth_call"]);
    let mut seconds: Vec<Second> = (1..=10).map(|at| second(at, 1_000, 5.0, 8.0)).collect();
    // The calls that waited for the end of the stall end in the next second.
    seconds[4] = second(5, 500, 5.0, 8.0);
    seconds[5] = second(6, 1_000, 5.0, 502.0);
    seconds[9] = second(10, 500, 5.0, 501.0);
    let findings = findings_of(&plan, &calls(&plan, Class::Ok, 0), &seconds);
    let [findings] = findings.as_slice() else { panic!("{findings:?}") };
    let expected = "10.0 % fewer results than at the run's median rate, with gaps at 5 s, 10 s, \
                    where calls took up to 502";
    assert!(findings.contains(expected), "{findings}");
    let paced = samples::closed(10, 50, 10, &["eth_call"]);
    assert!(findings_of(&paced, &calls(&plan, Class::Ok, 0), &seconds).is_empty());
}

/// The generator stood still from 4.5 s to 5.5 s. The numbers of the seconds are those of a stall.
#[test]
fn a_gap_of_the_generator_is_no_stall_of_the_target() {
    let plan = samples::closed(10, 0, 10, &["eth_call"]);
    let mut seconds: Vec<Second> = (1..=10).map(|at| second(at, 1_000, 5.0, 8.0)).collect();
    seconds[4] = Second { generator_gap_ms: 500.0, ..second(5, 500, 5.0, 8.0) };
    seconds[5] = Second { generator_gap_ms: 500.0, ..second(6, 500, 5.0, 1_002.0) };
    seconds[5].methods[0].max_least_ms = Some(8.0);
    assert!(findings_of(&plan, &calls(&plan, Class::Ok, 0), &seconds).is_empty());
    // A stall of the target elsewhere in the run is still found.
    seconds[9] = second(10, 500, 5.0, 501.0);
    let findings = findings_of(&plan, &calls(&plan, Class::Ok, 0), &seconds);
    assert!(findings[0].contains("with gaps at 10 s"), "{findings:?}");
}

/// The latency of an overloaded run grows with its backlog. The target is as fast as before.
#[test]
fn a_backlog_is_no_drift() {
    let plan = samples::open(100.0, 10, &["eth_call"]);
    let mut growing: Vec<Second> =
        (1..=10).map(|at| second(at, 100, 5.0 * at as f64, 60.0)).collect();
    let totals = calls(&plan, Class::Ok, 0);
    assert_eq!(findings_of(&plan, &totals, &growing).len(), 1);
    growing[8].waiting = 30;
    assert!(findings_of(&plan, &totals, &growing).is_empty(), "iterations waited for a worker");
    growing[8].waiting = 0;
    let unfinished =
        Iterations { scheduled: 1_000, started: 1_000, ended: 900, ..Iterations::default() };
    let totals = samples::counted(&plan, &[(0, 0, Class::Ok, 900, 5)], unfinished);
    assert!(findings_of(&plan, &totals, &growing).is_empty(), "calls waited in the target");
}

#[test]
fn fewer_results_without_a_long_call_are_no_stall() {
    let plan = samples::closed(10, 0, 10, &["eth_call"]);
    let mut seconds: Vec<Second> = (1..=10).map(|at| second(at, 1_000, 5.0, 8.0)).collect();
    seconds[4] = second(5, 500, 10.0, 16.0);
    assert!(findings_of(&plan, &calls(&plan, Class::Ok, 0), &seconds).is_empty());
}

#[test]
fn a_median_that_grows_under_a_steady_load_is_drift() {
    let mut plan = samples::open(100.0, 10, &["eth_call"]);
    let growing: Vec<Second> = (1..=10).map(|at| second(at, 100, 5.0 * at as f64, 60.0)).collect();
    let totals = calls(&plan, Class::Ok, 0);
    let findings = findings_of(&plan, &totals, &growing);
    assert!(
        findings[0].starts_with("the median of eth_call rose from 10.0 to 45.0 ms"),
        "{findings:?}"
    );
    plan.scenarios[0].stages[0].to = 200.0;
    assert!(findings_of(&plan, &totals, &growing).is_empty(), "the load grew too");
}

#[test]
fn empty_results_and_failures_are_named() {
    let plan = samples::open(100.0, 10, &["eth_call"]);
    let mut totals = calls(&plan, Class::Ok, 0);
    totals.nulls = vec![1_000];
    let findings = findings_of(&plan, &totals, &[]);
    assert!(findings[0].starts_with("every result of eth_call was null (1000)"), "{findings:?}");
    totals.nulls = vec![10];
    let findings = findings_of(&plan, &totals, &[]);
    assert!(
        findings[0].starts_with("1.0 % of the results of eth_call were null (10)"),
        "{findings:?}"
    );
    totals.nulls = vec![9];
    assert!(findings_of(&plan, &totals, &[]).is_empty());
    (totals.nulls, totals.wrong_types) = (vec![40], vec![41]);
    let findings = findings_of(&plan, &totals, &[]);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(
        finding.starts_with("4.1 % of the results of eth_call have another JSON type"),
        "{finding}"
    );
    (totals.nulls, totals.wrong_types) = (vec![1_000], vec![1_000]);
    let findings = findings_of(&plan, &totals, &[]);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(finding.starts_with("every result of eth_call was null (1000)"), "{finding}");
    (totals.nulls, totals.wrong_types) = (vec![0], vec![0]);
    let findings = findings_of(&plan, &calls(&plan, Class::Timeout, 20), &[]);
    assert_eq!(findings, ["2.0 % of the calls of eth_call failed (20 of 1000, mostly timeout)"]);
    assert!(findings_of(&plan, &calls(&plan, Class::Timeout, 9), &[]).is_empty());
}
