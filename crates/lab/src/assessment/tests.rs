//! Goal: the assessment concludes what the results support, and nothing else. Method: made-up
//! results with one planted fact each, which are grouped, compared and assessed.

use lab_model::record::Class;
use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::run::RunResult;
use lab_model::results::{Cause, Confidence, Finding as BottleneckFinding, Outcome};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::analysis::assessment::{
    Advice, Basis, Caveat, Conclusion, Derived, Extent, FindingKind, Risk, Step,
};
use crate::report::{capacity_example, example};

/// Deviations of equal runs from their mean.
const NOISE: [f64; 4] = [1.00, 1.04, 0.97, 1.02];

/// A run on the machine `host`, with all latencies multiplied by `factor`. Its thresholds still
/// pass.
pub(crate) fn run_on(host: &str, factor: f64) -> RunResult {
    let mut result = example::passing().result;
    result.fingerprint.host = host.to_owned();
    result.fingerprint.target_local = true;
    for row in result.methods.iter_mut().chain([&mut result.overall]) {
        let latency = &mut row.latency;
        for value in [&mut latency.p50_ms, &mut latency.p95_ms, &mut latency.p99_ms] {
            *value *= factor;
        }
    }
    result
}

/// Four runs on a machine.
pub(crate) fn runs_on(host: &str, factor: f64) -> Vec<RunResult> {
    NOISE.iter().map(|noise| run_on(host, factor * noise)).collect()
}

/// A run in which all calls of one method time out, while less than 1 % of all calls fail.
pub(crate) fn with_failing_method(host: &str) -> RunResult {
    let mut result = run_on(host, 1.0);
    let row = result.methods.iter_mut().find(|row| row.method == "eth_getLogs").unwrap();
    row.failed_share = 1.0;
    row.classes.iter_mut().for_each(|class| class.class = Class::Timeout);
    result.overall.failed_share = 0.009;
    result.verdict.outcome = Outcome::Fail;
    result
}

/// Returns the result with a first bottleneck.
pub(crate) fn with_bottleneck(
    mut result: RunResult,
    cause: Cause,
    confidence: Confidence,
) -> RunResult {
    result.bottleneck = Some(BottleneckFinding {
        cause,
        confidence,
        sentence: "the CPU of the target's host is used up".to_owned(),
        evidence: vec!["the cores were 99 % busy".to_owned()],
        at: Some(4.0),
    });
    result
}

/// A capacity search on a machine, multiplied by a factor.
pub(crate) fn search_on(host: &str, factor: f64) -> CapacityResult {
    let mut result = capacity_example::found();
    result.fingerprint.host = host.to_owned();
    result.fingerprint.target_local = true;
    let answer = &mut result.answer;
    for rate in [&mut answer.highest_pass, &mut answer.lowest_fail] {
        *rate = rate.map(|rate| rate * factor);
    }
    result
}

/// Assesses runs and searches. Their labels are `result-0`, `result-1` and so on.
pub(crate) fn assessed(runs: Vec<RunResult>, searches: Vec<CapacityResult>) -> Assessed {
    let runs = runs.into_iter().map(SystemResult::Run);
    let all = runs.chain(searches.into_iter().map(SystemResult::Search)).enumerate();
    let input = |(index, result)| Input { system: None, label: format!("result-{index}"), result };
    let results = Results { inputs: all.map(input).collect(), ..Results::default() };
    let mut random = StdRng::seed_from_u64(7);
    assess_results(results, &mut || random.random())
}

fn kinds(assessed: &Assessed) -> Vec<&FindingKind> {
    assessed.assessment.findings.iter().map(|finding| &finding.kind).collect()
}

fn has_differences(assessed: &Assessed) -> bool {
    kinds(assessed).iter().any(|kind| matches!(kind, FindingKind::Differs { .. }))
}

fn has_choice(assessed: &Assessed) -> bool {
    let given = &assessed.assessment.recommendations;
    given.iter().any(|given| matches!(given.statement, Advice::Prefer { .. }))
}

/// The failed threshold has no data and so no observed value. The reason of the failure is a
/// stall, which no threshold covers.
#[test]
fn a_failed_run_has_a_finding_whatever_the_reason() {
    let reason = "a threshold without a stall would be broken";
    let mut failed = run_on("bench-1", 1.0);
    failed.verdict.outcome = Outcome::Fail;
    failed.verdict.reasons = vec![reason.to_owned()];
    failed.thresholds[0].kept = false;
    failed.thresholds[0].observed = None;
    let assessed = assessed(vec![failed], Vec::new());
    let found = kinds(&assessed);
    assert!(found.contains(&&FindingKind::RunFails { reason: reason.to_owned() }), "{found:?}");
    let text = crate::report::Report::assessment(&assessed).text(crate::report::Colour::Plain);
    assert!(text.contains("FAILURES FOUND") && text.contains(reason), "{text}");
}

#[test]
fn a_method_whose_calls_all_fail_is_found_despite_a_low_total_error_rate() {
    let assessed = assessed(vec![with_failing_method("bench-1")], Vec::new());
    let assessment = &assessed.assessment;
    let FindingKind::MethodFails { method, extent, overall, .. } = &assessment.findings[0].kind
    else {
        panic!("{:?}", assessment.findings)
    };
    assert_eq!((method.as_str(), extent), ("eth_getLogs", &Extent::Run));
    assert!(*overall < 0.01);
    let method = || "eth_getLogs".to_owned();
    for advice in
        [Advice::RepairMethod { method: method() }, Advice::WatchMethod { method: method() }]
    {
        let given = assessment.recommendations.iter().find(|given| given.statement == advice);
        assert_eq!(given.map(|given| given.basis), Some(Basis::Finding(0)), "{advice:?}");
    }
    let risk =
        Derived { statement: Risk::HiddenFailure { method: method() }, basis: Basis::Finding(0) };
    assert!(assessment.risks.contains(&risk));
    let kept = |conclusion: &Conclusion| matches!(conclusion, Conclusion::Kept { .. });
    assert!(!assessment.conclusions.iter().any(kept), "kept limits do not make it a success");
    assert_eq!(assessment.steps[0].statement, Step::VerifyChange);
}

#[test]
fn a_run_without_failures_has_no_finding_and_no_recommendation() {
    let assessed = assessed(vec![run_on("bench-1", 1.0)], Vec::new());
    let assessment = &assessed.assessment;
    assert_eq!(assessment.findings, []);
    assert_eq!(assessment.recommendations, []);
    assert!(matches!(assessment.conclusions[..], [Conclusion::Kept { runs: 1, .. }]));
    let single = |caveat: &Caveat| matches!(caveat, Caveat::SingleRun { system: 0, .. });
    assert!(assessment.caveats.iter().any(single), "{:?}", assessment.caveats);
    assert!(assessment.caveats.contains(&Caveat::NoCapacity { system: 0 }));
    assert!(assessment.caveats.contains(&Caveat::SharedMachine { system: 0 }));
    assert!(assessment.risks.iter().any(|risk| risk.statement == Risk::NotRepeated));
}

#[test]
fn a_bottleneck_is_relieved_only_if_its_evidence_suffices() {
    let advice = |cause, confidence| {
        let result = with_bottleneck(run_on("bench-1", 1.0), cause, confidence);
        let assessed = assessed(vec![result], Vec::new());
        let given = &assessed.assessment.recommendations;
        (given.iter().map(|given| given.statement.clone()).collect::<Vec<_>>(), assessed)
    };
    let (given, found) = advice(Cause::Cpu, Confidence::Medium);
    assert_eq!(given, [Advice::Relieve(Cause::Cpu)]);
    assert!(matches!(kinds(&found)[..], [FindingKind::Bottleneck { cause: Cause::Cpu, .. }]));

    let (given, found) = advice(Cause::Cpu, Confidence::Low);
    assert_eq!(given, []);
    let uncertain = |caveat: &Caveat| matches!(caveat, Caveat::CauseUncertain { .. });
    assert!(found.assessment.caveats.iter().any(uncertain));

    let (given, found) = advice(Cause::Unknown, Confidence::High);
    assert_eq!(given, []);
    let unknown = |caveat: &Caveat| matches!(caveat, Caveat::CauseUnknown(_));
    assert!(found.assessment.caveats.iter().any(unknown));
    assert_eq!(advice(Cause::Generator, Confidence::High).0, []);
}

#[test]
fn a_difference_within_the_interval_is_no_difference() {
    let runs = [runs_on("bench-1", 1.0), runs_on("bench-2", 1.01)].concat();
    let equal_systems = assessed(runs, Vec::new());
    assert_eq!(equal_systems.evidence.comparisons.len(), 1);
    assert!(!equal_systems.evidence.comparisons[0].result.differences.is_empty());
    assert!(
        !has_differences(&equal_systems) && !has_choice(&equal_systems),
        "{:?}",
        kinds(&equal_systems)
    );

    // With a planted difference of the same kind, the variants differ.
    let runs = [runs_on("bench-1", 1.0), runs_on("bench-2", 0.5)].concat();
    let different_systems = assessed(runs, Vec::new());
    let differs = kinds(&different_systems)
        .into_iter()
        .find(|kind| matches!(kind, FindingKind::Differs { .. }));
    let Some(FindingKind::Differs { variant, better, worse: 0, by_runs: true, .. }) = differs
    else {
        panic!("{:?}", kinds(&different_systems))
    };
    assert!(variant == "bench-2" && *better > 10, "{variant} {better}");
    let choice = Advice::Prefer { variant: "bench-2".to_owned() };
    assert!(
        different_systems.assessment.recommendations.iter().any(|given| given.statement == choice)
    );
}

#[test]
fn single_runs_support_no_choice_even_if_they_differ_much() {
    let assessed_systems =
        assessed(vec![run_on("bench-1", 1.0), run_on("bench-2", 20.0)], Vec::new());
    assert!(!has_choice(&assessed_systems));
    let concluded = |conclusion: &Conclusion| match conclusion {
        Conclusion::Finding(index) => {
            let kind = &assessed_systems.assessment.findings[*index].kind;
            matches!(kind, FindingKind::Differs { .. })
        }
        _ => false,
    };
    assert!(!assessed_systems.assessment.conclusions.iter().any(concluded));
    let single = |caveat: &&Caveat| matches!(caveat, Caveat::SingleRun { .. });
    assert_eq!(assessed_systems.assessment.caveats.iter().filter(single).count(), 2);
    let repeat = |step: &Derived<Step>| step.statement == Step::RepeatAlternating;
    assert!(assessed_systems.assessment.steps.iter().any(repeat));
}

#[test]
fn runs_of_different_plans_are_not_compared() {
    let mut other = runs_on("bench-2", 0.5);
    for run in &mut other {
        run.plan.hash = "other".to_owned();
        run.stages[0].level_to *= 2.0;
    }
    let assessed = assessed([runs_on("bench-1", 1.0), other].concat(), Vec::new());
    assert_eq!(assessed.evidence.comparisons.len(), 0);
    assert!(!has_differences(&assessed) && !has_choice(&assessed));
    let unlike = assessed.assessment.caveats.iter().find_map(|caveat| match caveat {
        Caveat::UnlikePlans(unlike) => Some(unlike),
        _ => None,
    });
    let unlike = unlike.unwrap();
    assert_eq!((unlike.a, unlike.b), (0, 1));
    let names: Vec<String> = unlike.facts.iter().map(ToString::to_string).collect();
    assert!(names.contains(&"schedule".to_owned()), "{names:?}");
    assert!(assessed.assessment.steps.iter().any(|step| step.statement == Step::OnePlan));
}

#[test]
fn other_targets_seeds_and_thresholds_are_the_same_plan() {
    let mut other = runs_on("bench-2", 0.5);
    for run in &mut other {
        run.plan.hash = "other".to_owned();
        run.plan.seed += 1;
        run.target.url = "http://other".to_owned();
    }
    let assessed = assessed([runs_on("bench-1", 1.0), other].concat(), Vec::new());
    assert_eq!(assessed.evidence.comparisons.len(), 1);
}

#[test]
fn equal_plans_that_have_the_names_of_their_targets_get_a_common_name() {
    let runs = ["bench-1", "bench-2"].map(|host| {
        let mut runs = runs_on(host, 1.0);
        runs.iter_mut().for_each(|run| run.plan.name = format!("{host}:8545"));
        runs
    });
    let assessed = assessed(runs.concat(), Vec::new());
    assert_eq!(assessed.evidence.comparisons[0].label, "plans with equal settings");
    assert_eq!(assessed.evidence.plans.len(), 1);
}

#[test]
fn invalid_runs_give_a_caveat_and_nothing_else() {
    for outcome in [Outcome::Invalid, Outcome::ClientLimited] {
        let mut run = with_bottleneck(with_failing_method("bench-1"), Cause::Cpu, Confidence::High);
        run.verdict.outcome = outcome;
        run.verdict.reasons = vec!["the generator's threads were busy".to_owned()];
        let assessed = assessed([vec![run], runs_on("bench-2", 1.0)].concat(), Vec::new());
        let assessment = &assessed.assessment;
        assert_eq!(assessment.findings, []);
        assert_eq!(assessment.recommendations, []);
        assert_eq!(assessed.evidence.comparisons.len(), 0, "bench-1 has no valid run");
        let caveat = |caveat: &Caveat| match caveat {
            Caveat::Invalid(_) => outcome == Outcome::Invalid,
            Caveat::ClientLimited(_) => outcome == Outcome::ClientLimited,
            _ => false,
        };
        assert!(assessment.caveats.iter().any(caveat), "{outcome:?}");
    }
}

#[test]
fn a_machine_that_differs_in_several_properties_explains_nothing() {
    let mut other = runs_on("bench-2", 0.5);
    for run in &mut other {
        run.fingerprint.cpu = "another CPU".to_owned();
        run.target.client = Some("another client".to_owned());
    }
    let with_both = assessed([runs_on("bench-1", 1.0), other.clone()].concat(), Vec::new());
    let unlike = |caveat: &Caveat| matches!(caveat, Caveat::UnlikeSystems(_));
    assert!(with_both.assessment.caveats.iter().any(unlike));
    let client = runs_on("bench-1", 1.0)[0].target.client.clone();
    other.iter_mut().for_each(|run| run.target.client.clone_from(&client));
    let with_one = assessed([runs_on("bench-1", 1.0), other].concat(), Vec::new());
    assert!(!with_one.assessment.caveats.iter().any(unlike));
}

#[test]
fn a_confirmed_capacity_is_a_limit_for_the_load() {
    let confirmed = assessed(Vec::new(), vec![search_on("bench-1", 1.0)]);
    let given = &confirmed.assessment.recommendations;
    let keep = given.iter().find(|given| given.statement == Advice::KeepBelow { rate: 1200.0 });
    let Basis::Finding(finding) = keep.unwrap().basis else { panic!("{given:?}") };
    let finding = &confirmed.assessment.findings[finding];
    assert!(matches!(finding.kind, FindingKind::Capacity { soaked: true, .. }));
    assert!(given.iter().any(|given| given.statement == Advice::LimitAdmission { rate: 1200.0 }));

    let mut short = search_on("bench-1", 1.0);
    short.answer.soak_held = None;
    let short = assessed(Vec::new(), vec![short]);
    let keep = |advice: &Advice| matches!(advice, Advice::KeepBelow { .. });
    assert!(!short.assessment.recommendations.iter().any(|given| keep(&given.statement)));
    let no_soak = |caveat: &Caveat| matches!(caveat, Caveat::NoSoak(_));
    assert!(short.assessment.caveats.iter().any(no_soak));

    let mut limited = search_on("bench-1", 1.0);
    limited.answer.end = EndReason::ClientLimited;
    limited.answer.at_least = true;
    let limited = assessed(Vec::new(), vec![limited]);
    let is_capacity = |kind: &&&FindingKind| matches!(kind, FindingKind::Capacity { .. });
    assert_eq!(kinds(&limited).iter().filter(is_capacity).count(), 0);
    let bound = |caveat: &Caveat| matches!(caveat, Caveat::LowerBound(_));
    assert!(limited.assessment.caveats.iter().any(bound));
}

#[test]
fn capacities_of_single_searches_cannot_be_told_apart() {
    let one_each = assessed(Vec::new(), vec![search_on("bench-1", 1.0), search_on("bench-2", 1.3)]);
    let open = |caveat: &Caveat| matches!(caveat, Caveat::CapacitiesCannotTell { .. });
    assert!(one_each.assessment.caveats.iter().any(open));
    let differs = |kind: &&&FindingKind| matches!(kind, FindingKind::CapacityDiffers { .. });
    assert_eq!(kinds(&one_each).iter().filter(differs).count(), 0);

    let searches = |host: &str, factor: f64| -> Vec<CapacityResult> {
        NOISE.iter().map(|noise| search_on(host, factor * noise)).collect()
    };
    let several = [searches("bench-1", 1.0), searches("bench-2", 2.0)].concat();
    let several = assessed(Vec::new(), several);
    let found = kinds(&several);
    let found = found.iter().find(differs).unwrap();
    assert!(matches!(found, FindingKind::CapacityDiffers { better: true, .. }), "{found:?}");
}

#[test]
fn searches_with_other_thresholds_are_not_compared() {
    let mut other = search_on("bench-2", 2.0);
    other.thresholds.push("failed rate<0.5".to_owned());
    let assessed = assessed(Vec::new(), vec![search_on("bench-1", 1.0), other]);
    assert_eq!(assessed.evidence.capacities.len(), 0);
}

#[test]
fn results_are_grouped_by_target_and_machine_or_by_name() {
    let names = |assessed: &Assessed| -> Vec<String> {
        assessed.evidence.systems.iter().map(|system| system.name.clone()).collect()
    };
    let mut other_port = run_on("bench-1", 1.0);
    other_port.target.url = "http://127.0.0.1:8546".to_owned();
    let mut remote = run_on("bench-1", 1.0);
    remote.fingerprint.target_local = false;
    remote.target.url = "https://node.example/v2/***".to_owned();
    let runs = vec![run_on("bench-1", 1.0), other_port, run_on("bench-1", 1.0), remote];
    let grouped = assessed(runs, Vec::new());
    assert_eq!(
        names(&grouped),
        ["node.example.net on bench-1", "127.0.0.1:8546 on bench-1", "node.example"]
    );
    assert_eq!(grouped.evidence.systems[0].runs.len(), 2);

    let input = |system: &str, result| Input {
        system: Some(system.to_owned()),
        label: "result".to_owned(),
        result: SystemResult::Run(result),
    };
    let inputs = vec![input("old", run_on("a", 1.0)), input("new", run_on("a", 1.0))];
    let results = Results { inputs, ..Results::default() };
    let mut random = StdRng::seed_from_u64(7);
    let named = assess_results(results, &mut || random.random());
    assert_eq!(names(&named), ["old", "new"]);
}

#[test]
fn results_are_read_and_faults_name_the_file_and_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let read_path = |path: &std::path::Path| read(&[(None, vec![path.to_owned()])]);
    let run = serde_json::to_string(&run_on("bench-1", 1.0)).unwrap();
    let search = serde_json::to_string(&search_on("bench-1", 1.0)).unwrap();
    write("all/a/result.json", &run);
    write("all/b/result.json", &run);
    write("all/capacity/capacity.json", &search);
    let results = read_path(&folder.path().join("all")).unwrap();
    let labels: Vec<&str> = results.inputs.iter().map(|input| input.label.as_str()).collect();
    assert_eq!(labels, ["a", "b", "capacity"]);

    let fault = |path: &std::path::Path| read_path(path).unwrap_err().to_string();
    let broken = write("broken.json", &run[..60]);
    let message = fault(&broken);
    assert!(
        message.contains("broken.json is not JSON: EOF")
            && message.contains("result.json of weir load"),
        "{message}"
    );
    let other = write("other.json", "{\"schema\": \"weir.equal/1\"}");
    let message = fault(&other);
    assert!(
        message.contains("\"weir.equal/1\"") && message.contains("\"weir.run/1\""),
        "{message}"
    );
    let shape = write("shape.json", "{\"schema\": \"weir.run/1\"}");
    let message = fault(&shape);
    assert!(message.contains("is not a valid weir.run/1: missing field"), "{message}");
    let foreign = write("foreign.json", "{\"metrics\": {}}");
    assert!(fault(&foreign).contains("has no \"schema\""), "{}", fault(&foreign));
    let missing = folder.path().join("missing.json");
    assert!(fault(&missing).starts_with("cannot read "), "{}", fault(&missing));
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(fault(&empty).contains("empty contains no result: "), "{}", fault(&empty));
}
