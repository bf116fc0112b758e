//! Goal: every recommendation has a finding, and no list repeats an entry. Method: the tests create
//! findings and caveats directly, without results. The tests of `crate::assessment` begin with
//! results.

use lab_model::results::Cause;

use super::*;

fn finding(kind: FindingKind) -> Finding {
    Finding { kind, sources: vec![Source::Run { system: 0, run: 0 }] }
}

fn failing(overall: f64) -> FindingKind {
    FindingKind::MethodFails {
        method: "eth_call".to_owned(),
        calls: 100,
        failed_share: 1.0,
        class: Class::Timeout,
        overall,
        extent: Extent::Run,
    }
}

#[test]
fn without_findings_nothing_is_recommended() {
    assert_eq!(advice::recommendations(&[]), []);
    assert_eq!(advice::risks(&[], &[]), []);
    assert_eq!(advice::steps(&[], &[]), []);
    let unsupported = [
        FindingKind::Capacity { pass: 1.0, fail: 2.0, soaked: false },
        FindingKind::CapacityAtLeast { pass: 1.0 },
        FindingKind::Differs {
            baseline: "a".to_owned(),
            variant: "b".to_owned(),
            better: 3,
            worse: 0,
            by_runs: false,
        },
        FindingKind::CapacityDiffers { baseline: 0, variant: 1, better: true, by_runs: false },
    ];
    assert_eq!(advice::recommendations(&unsupported.map(finding)), []);
}

#[test]
fn a_mixed_comparison_supports_no_choice() {
    let differs = |better, worse| FindingKind::Differs {
        baseline: "a".to_owned(),
        variant: "b".to_owned(),
        better,
        worse,
        by_runs: true,
    };
    let choice = |better, worse| advice::recommendations(&[finding(differs(better, worse))]);
    assert_eq!(choice(2, 1), []);
    assert_eq!(choice(2, 0)[0].statement, Advice::Prefer { variant: "b".to_owned() });
    assert_eq!(choice(0, 2)[0].statement, Advice::Prefer { variant: "a".to_owned() });
}

#[test]
fn only_a_hidden_failure_needs_a_threshold_of_its_own() {
    let hidden = advice::recommendations(&[finding(failing(0.009))]);
    let visible = advice::recommendations(&[finding(failing(0.2))]);
    assert_eq!((hidden.len(), visible.len()), (2, 1));
}

#[test]
fn every_recommendation_names_a_finding_and_none_is_repeated() {
    let bottleneck = FindingKind::Bottleneck {
        cause: Cause::Disk,
        confidence: Confidence::High,
        sentence: String::new(),
    };
    let findings = [failing(0.2), bottleneck.clone(), bottleneck].map(finding);
    let given = advice::recommendations(&findings);
    assert_eq!(
        given.iter().map(|given| given.basis).collect::<Vec<_>>(),
        [Basis::Finding(0), Basis::Finding(1)]
    );
    let source = Source::Run { system: 0, run: 0 };
    let caveats = [Caveat::CauseUnknown(source), Caveat::CauseUnknown(source)];
    let steps = advice::steps(&caveats, &given);
    assert_eq!(
        steps.iter().map(|step| (step.statement, step.basis)).collect::<Vec<_>>(),
        [(Step::VerifyChange, Basis::Finding(0)), (Step::ObserveHost, Basis::Caveat(0))]
    );
}
