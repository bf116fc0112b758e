//! Goal: each contradiction is found. Method: a consistent result has no fault, and the same result
//! with a planted contradiction has one.

use lab_model::results::capacity::{Kind, ProbeOutcome};
use lab_model::results::compare::{CompareResult, Difference, Metric, SCHEMA};
use lab_model::results::run::RunResult;
use lab_model::results::{Basis, Cause, ComparisonVerdict, Confidence, Finding, Outcome};

use crate::report::capacity_example;
use crate::report::example::passing;

use super::{check_capacity, check_comparison, check_run};
use crate::analysis::validity;

/// Returns the fault of a result with a planted contradiction.
fn fault_after(plant: impl Fn(&mut RunResult)) -> String {
    let mut result = passing().result;
    let few_calls = result.methods.iter().filter(|row| row.calls < validity::CALLS_MIN);
    result.few_calls = few_calls.map(|row| row.method.clone()).collect();
    assert_eq!(check_run(&result), Vec::<String>::new(), "it is sound before");
    plant(&mut result);
    let faults = check_run(&result);
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults.into_iter().next().unwrap()
}

#[test]
fn goodput_is_at_most_the_number_of_calls_that_ended_in_time() {
    let faults = fault_after(|result| result.overall.goodput *= 1.4);
    assert!(faults.contains("succeeded during the load"), "{faults}");
}

#[test]
fn a_verdict_agrees_with_its_thresholds_and_has_a_reason() {
    let faults = fault_after(|result| result.thresholds[0].kept = false);
    assert!(faults.starts_with("the run passes, but "), "{faults}");
    let faults = fault_after(|result| result.thresholds.clear());
    assert_eq!(faults, "the run passes without thresholds");
    let faults = fault_after(|result| result.verdict.outcome = Outcome::Measured);
    assert_eq!(faults, "the run has thresholds, but no verdict about them");
    let faults = fault_after(|result| result.verdict.outcome = Outcome::Invalid);
    assert_eq!(faults, "the verdict has no reason");
}

#[test]
fn an_uncertain_percentile_needs_a_warning() {
    let faults = fault_after(|result| {
        result.methods.truncate(1);
        result.methods[0].calls = 400;
        result.few_calls.clear();
    });
    assert!(faults.contains("rests on 400 calls, but there is no warning about it"), "{faults}");
}

#[test]
fn a_bottleneck_has_evidence() {
    let finding = |evidence: Vec<String>| Finding {
        cause: Cause::Cpu,
        confidence: Confidence::High,
        sentence: "the CPU".to_owned(),
        evidence,
        at: None,
    };
    let faults = fault_after(|result| {
        result.verdict.outcome = Outcome::Fail;
        result.verdict.reasons.push("broken".to_owned());
        result.bottleneck = Some(finding(Vec::new()));
    });
    assert_eq!(faults, "a bottleneck without evidence: the CPU");
}

#[test]
fn a_held_rate_needs_a_soak() {
    let mut result = capacity_example::found();
    assert_eq!(check_capacity(&result), Vec::<String>::new());
    let pass = result.answer.highest_pass.unwrap();
    result.answer.soak_held = Some(true);
    for probe in result.probes.iter_mut().filter(|probe| probe.kind == Kind::Soak) {
        (probe.rate, probe.outcome) = (pass * 0.95, ProbeOutcome::Pass);
    }
    assert!(check_capacity(&result)[0].contains("is reported as held, but no soak"));
    result.answer.soak_held = None;
    result.answer.sentence.clear();
    result.answer.lowest_fail = Some(pass * 0.9);
    assert_eq!(check_capacity(&result).len(), 1);
}

#[test]
fn a_verdict_of_a_comparison_agrees_with_its_interval() {
    let fault_count = |verdict, interval| {
        let difference = Difference {
            variant: "b".to_owned(),
            method: "eth_call".to_owned(),
            metric: Metric::LatencyP50,
            a: 1.0,
            b: 1.28,
            a_count: 6,
            b_count: 6,
            change: 0.28,
            interval: Some(interval),
            p: Some(0.001),
            floor: 0.5,
            basis: Basis::Runs,
            verdict,
        };
        check_comparison(&CompareResult {
            schema: SCHEMA.to_owned(),
            weir: String::new(),
            variants: Vec::new(),
            mismatches: Vec::new(),
            differences: vec![difference],
            normalised: Vec::new(),
            conclusions: Vec::new(),
            warnings: Vec::new(),
        })
        .len()
    };
    assert_eq!(fault_count(ComparisonVerdict::Same, (0.169, 0.402)), 1);
    assert_eq!(fault_count(ComparisonVerdict::Same, (-0.01, 0.01)), 0);
    assert_eq!(fault_count(ComparisonVerdict::Negligible, (0.169, 0.402)), 0);
    assert_eq!(fault_count(ComparisonVerdict::Worse, (0.169, 0.402)), 0);
    assert_eq!(fault_count(ComparisonVerdict::Worse, (-0.01, 0.402)), 1);
}
