//! Findings of runs, capacity searches and comparisons, and the conclusions that they allow. A soak
//! is a long run that checks if a capacity lasts.

use lab_model::metrics::Unit;
use lab_model::results::capacity::{Boundary, CapacityResult, EndReason};
use lab_model::results::compare::{CompareResult, Difference};
use lab_model::results::run::{Row, RunResult, StageRow};
use lab_model::results::{
    Basis, Cause, ComparisonVerdict, Confidence, Finding as BottleneckFinding, Outcome,
};

use super::{Conclusion, Evidence, Extent, Finding, FindingKind, Source, is_valid};
use crate::analysis::verdict::worst_class;

/// A method is reported if at least this share of its calls failed.
const FAILED_SHARE_MIN: f64 = 0.01;
/// Smallest number of failed calls that is reported. Fewer failures may be chance.
const FAILED_CALLS_MIN: f64 = 10.0;
/// Smallest share of HTTP 429 responses that is reported.
const LIMITED_SHARE_MIN: f64 = 0.01;
/// A finding is reported if less than this share of the scheduled iterations started in time.
const DELIVERED_MIN: f64 = 0.99;

/// Returns all findings, the most severe first. Equal findings of several results of one system
/// become one finding.
pub(super) fn find(evidence: &Evidence) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut add = |kind: FindingKind, source: Source| {
        let is_same = |finding: &&mut Finding| {
            let system = finding.sources.first().and_then(|source| source.system());
            system.is_some() && system == source.system() && is_same_kind(&finding.kind, &kind)
        };
        match findings.iter_mut().find(is_same) {
            Some(finding) => finding.sources.push(source),
            None => findings.push(Finding { kind, sources: vec![source] }),
        }
    };
    for (source, run) in evidence.runs() {
        findings_of_run(run).into_iter().for_each(|kind| add(kind, source));
    }
    for (source, search) in evidence.searches() {
        findings_of_search(search).into_iter().for_each(|kind| add(kind, source));
    }
    for (index, comparison) in evidence.comparisons.iter().enumerate() {
        for kind in findings_of_comparison(&comparison.result) {
            add(kind, Source::Comparison(index));
        }
    }
    for (index, capacities) in evidence.capacities.iter().enumerate() {
        let Some(difference) = &capacities.difference else { continue };
        if difference.verdict.is_different() {
            let kind = FindingKind::CapacityDiffers {
                baseline: capacities.a,
                variant: capacities.b,
                better: difference.verdict == ComparisonVerdict::Better,
                by_runs: rests_on_several_runs(difference),
            };
            add(kind, Source::Capacities(index));
        }
    }
    findings.sort_by_key(|finding| severity(&finding.kind));
    findings
}

/// Returns true if two findings state the same fact, perhaps with different numbers.
fn is_same_kind(a: &FindingKind, b: &FindingKind) -> bool {
    use FindingKind::*;
    match (a, b) {
        (MethodFails { method: a, .. }, MethodFails { method: b, .. })
        | (WrongResponses { method: a, .. }, WrongResponses { method: b, .. })
        | (ThresholdBroken { threshold: a, .. }, ThresholdBroken { threshold: b, .. }) => a == b,
        (RunFails { reason: a }, RunFails { reason: b }) => a == b,
        (Bottleneck { cause: a, .. }, Bottleneck { cause: b, .. }) => a == b,
        (NotDelivered { .. }, NotDelivered { .. })
        | (RateLimited { .. }, RateLimited { .. })
        | (NotRecovered, NotRecovered) => true,
        _ => false,
    }
}

/// Returns the rank of a finding by severity; 0 is the most severe.
fn severity(kind: &FindingKind) -> u8 {
    use FindingKind::*;
    match kind {
        MethodFails { .. } | WrongResponses { .. } => 0,
        ThresholdBroken { .. }
        | RunFails { .. }
        | NothingPassed { .. }
        | NotDelivered { .. }
        | RateLimited { .. } => 1,
        Capacity { .. } | CapacityAtLeast { .. } => 2,
        LimitBroken { .. } | Cliff { .. } | SoakBroke { .. } | NotRecovered => 3,
        Bottleneck { .. } => 4,
        Differs { .. } | CapacityDiffers { .. } => 5,
    }
}

/// Returns the findings of a valid run.
fn findings_of_run(result: &RunResult) -> Vec<FindingKind> {
    if !is_valid(result.verdict.outcome) {
        return Vec::new();
    }
    let failing = result.methods.iter().filter_map(|row| find_failing_method(result, row));
    let mut kinds: Vec<FindingKind> = failing.collect();
    for (method, compared, wrong) in result.compared.iter().flat_map(|compared| &compared.methods) {
        if *wrong > 0 {
            let (method, compared, wrong) = (method.clone(), *compared, *wrong);
            kinds.push(FindingKind::WrongResponses { method, compared, wrong });
        }
    }
    for threshold in result.thresholds.iter().filter(|threshold| !threshold.kept) {
        let Some(observed) = threshold.observed else { continue };
        let (text, unit) = (threshold.text.clone(), threshold.unit.unwrap_or(Unit::Count));
        kinds.push(FindingKind::ThresholdBroken { threshold: text, observed, unit });
    }
    let share = result.generator.delivered_share;
    let is_open = result.stages.iter().any(|stage| stage.model == "open");
    if is_open && share < DELIVERED_MIN {
        kinds.push(FindingKind::NotDelivered { share });
    }
    if result.overall.limited_share >= LIMITED_SHARE_MIN {
        kinds.push(FindingKind::RateLimited { share: result.overall.limited_share });
    }
    let has_failure = kinds.iter().any(FindingKind::is_failure);
    if result.verdict.outcome == Outcome::Fail && !has_failure {
        let reason = result.verdict.reasons.first().cloned().unwrap_or_default();
        kinds.push(FindingKind::RunFails { reason });
    }
    kinds.extend(result.bottleneck.as_ref().and_then(bottleneck_finding));
    kinds
}

/// Returns a finding if a notable share of a method's calls failed.
fn find_failing_method(result: &RunResult, row: &Row) -> Option<FindingKind> {
    if row.failed_share < FAILED_SHARE_MIN || failed_calls(row) < FAILED_CALLS_MIN {
        return None;
    }
    let extent = match row.failed_share >= 1.0 {
        true => Extent::Run,
        false => result
            .stages
            .iter()
            .find(|stage| fails_in(stage, &row.method))
            .map_or(Extent::Part, stage_extent),
    };
    Some(FindingKind::MethodFails {
        method: row.method.clone(),
        calls: row.calls,
        failed_share: row.failed_share,
        class: worst_class(row),
        overall: result.overall.failed_share,
        extent,
    })
}

/// Returns the number of failed calls of a row.
fn failed_calls(row: &Row) -> f64 {
    row.failed_share * row.calls as f64
}

/// Returns true if all calls of the method failed in the stage.
fn fails_in(stage: &StageRow, method: &str) -> bool {
    let row = stage.methods.iter().find(|row| row.method == method);
    row.is_some_and(|row| row.failed_share >= 1.0 && failed_calls(row) >= FAILED_CALLS_MIN)
}

/// Describes a stage in which all calls failed.
fn stage_extent(stage: &StageRow) -> Extent {
    Extent::Stage {
        name: [stage.scenario.as_str(), stage.stage.as_str()].join("/"),
        level_from: stage.level_from,
        level_to: stage.level_to,
        closed: stage.model == "closed",
    }
}

/// Returns a finding if the bottleneck is in the target and has at most one doubt.
fn bottleneck_finding(bottleneck: &BottleneckFinding) -> Option<FindingKind> {
    let is_of_target = !matches!(bottleneck.cause, Cause::Generator | Cause::Unknown);
    (is_of_target && bottleneck.confidence > Confidence::Low).then(|| FindingKind::Bottleneck {
        cause: bottleneck.cause,
        confidence: bottleneck.confidence,
        sentence: bottleneck.sentence.clone(),
    })
}

/// Returns the findings of a capacity search.
fn findings_of_search(result: &CapacityResult) -> Vec<FindingKind> {
    let answer = &result.answer;
    let mut kinds = Vec::new();
    match (answer.end, answer.highest_pass, answer.lowest_fail) {
        (EndReason::Converged, Some(pass), Some(fail)) if !answer.at_least => {
            let soaked = answer.soak_held == Some(true);
            kinds.push(FindingKind::Capacity { pass, fail, soaked });
            if answer.boundary == Boundary::Cliff {
                kinds.push(FindingKind::Cliff { pass, fail });
            }
        }
        (EndReason::RateMax, Some(pass), _) => kinds.push(FindingKind::CapacityAtLeast { pass }),
        (EndReason::NothingPassed, _, Some(fail)) => {
            kinds.push(FindingKind::NothingPassed { fail })
        }
        _ => {}
    }
    if let Some(broken) = &result.binding
        && matches!(answer.end, EndReason::Converged | EndReason::NothingPassed)
    {
        kinds.push(FindingKind::LimitBroken {
            threshold: broken.threshold.clone(),
            method: broken.method.clone(),
            rate: broken.rate,
        });
    }
    if let (Some(false), Some(pass)) = (answer.soak_held, answer.highest_pass) {
        kinds.push(FindingKind::SoakBroke { pass });
    }
    kinds.extend(answer.degraded.as_ref().map(|_| FindingKind::NotRecovered));
    kinds.extend(result.bottleneck.as_ref().and_then(bottleneck_finding));
    kinds
}

/// Returns a finding for each variant that differs from the first one.
fn findings_of_comparison(result: &CompareResult) -> Vec<FindingKind> {
    let Some((first, others)) = result.variants.split_first() else { return Vec::new() };
    let of_variant = |variant: &str| -> Option<FindingKind> {
        let different: Vec<&Difference> = result
            .differences
            .iter()
            .filter(|difference| difference.variant == variant && difference.verdict.is_different())
            .collect();
        let is_worse = |difference: &&&Difference| difference.verdict == ComparisonVerdict::Worse;
        let worse = different.iter().filter(is_worse).count();
        (!different.is_empty()).then(|| FindingKind::Differs {
            baseline: first.name.clone(),
            variant: variant.to_owned(),
            better: different.len() - worse,
            worse,
            by_runs: different.iter().all(|difference| rests_on_several_runs(difference)),
        })
    };
    others.iter().filter_map(|variant| of_variant(&variant.name)).collect()
}

/// Returns true if several runs of each variant were compared, so the spread between runs is known.
pub(super) fn rests_on_several_runs(difference: &Difference) -> bool {
    matches!(difference.basis, Basis::Runs | Basis::FewRuns | Basis::PairedRuns)
}

/// Returns what may be concluded: kept thresholds, measured values, findings and equal figures.
pub(super) fn conclusions(evidence: &Evidence, findings: &[Finding]) -> Vec<Conclusion> {
    let if_supported = |(index, finding): (usize, &Finding)| {
        (!finding.kind.rests_on_single_runs()).then_some(Conclusion::Finding(index))
    };
    let mut conclusions: Vec<Conclusion> =
        findings.iter().enumerate().filter_map(if_supported).collect();
    for plan in &evidence.plans {
        for (system, runs) in &plan.systems {
            let runs = runs.iter().map(|run| &evidence.systems[*system].runs[*run].result);
            conclusions.extend(conclude_from_runs(*system, &plan.name, runs));
        }
    }
    for (index, comparison) in evidence.comparisons.iter().enumerate() {
        for variant in comparison.result.variants.iter().skip(1) {
            conclusions.extend(conclude_equality(index, &comparison.result, &variant.name));
        }
    }
    conclusions
}

/// Returns conclusions about the runs of a system that did not fail: one conclusion for all runs
/// with the same number of thresholds.
fn conclude_from_runs<'a>(
    system: usize,
    plan: &str,
    runs: impl Iterator<Item = &'a RunResult>,
) -> Vec<Conclusion> {
    // Number of thresholds, and number of runs with that number of thresholds.
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for run in runs.filter(|run| run.verdict.outcome != Outcome::Fail) {
        let thresholds = run.thresholds.len();
        match counts.iter_mut().find(|(other, _)| *other == thresholds) {
            Some((_, runs)) => *runs += 1,
            None => counts.push((thresholds, 1)),
        }
    }
    let conclusion = |(thresholds, runs)| match thresholds {
        0 => Conclusion::Measured { system, plan: plan.to_owned(), runs },
        _ => Conclusion::Kept { system, plan: plan.to_owned(), runs, thresholds },
    };
    counts.into_iter().map(conclusion).collect()
}

/// Returns a conclusion if no figure of a variant differs and some figures are known to be equal.
fn conclude_equality(
    comparison: usize,
    result: &CompareResult,
    variant: &str,
) -> Option<Conclusion> {
    let of_variant =
        || result.differences.iter().filter(|difference| difference.variant == variant);
    let is_equal = |difference: &&Difference| {
        matches!(difference.verdict, ComparisonVerdict::Same | ComparisonVerdict::Negligible)
    };
    let (same, total) = (of_variant().filter(is_equal).count(), of_variant().count());
    let variant = variant.to_owned();
    (same > 0 && !of_variant().any(|difference| difference.verdict.is_different()))
        .then_some(Conclusion::Same { comparison, variant, same, total })
}
