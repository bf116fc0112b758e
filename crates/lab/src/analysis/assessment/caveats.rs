//! Caveats: what the results do not support, and why.

use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::compare::{CompareResult, Difference, Weight};
use lab_model::results::run::RunResult;
use lab_model::results::{
    Cause, ComparisonVerdict, Confidence, Finding as BottleneckFinding, Outcome,
};

use super::findings::rests_on_several_runs;
use super::{Caveat, Evidence, PlanRuns, Source, is_valid};
use crate::analysis::validity::CALLS_MIN;

/// Returns all caveats: about single systems first, then about comparisons.
pub(super) fn find(evidence: &Evidence) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    for system in 0..evidence.systems.len() {
        add_caveats_of_system(evidence, system, &mut caveats);
    }
    caveats.extend(evidence.unlike_plans.iter().cloned().map(Caveat::UnlikePlans));
    for (index, comparison) in evidence.comparisons.iter().enumerate() {
        add_caveats_of_comparison(index, &comparison.result, &mut caveats);
    }
    for (index, capacities) in evidence.capacities.iter().enumerate() {
        let verdict = capacities.difference.as_ref().map(|difference| difference.verdict);
        if verdict.is_none_or(|verdict| verdict == ComparisonVerdict::CannotTell) {
            caveats.push(Caveat::CapacitiesCannotTell { capacities: index });
        }
        if capacities.difference.as_ref().is_some_and(differs_by_single_runs) {
            caveats.push(Caveat::OneSearchEach { capacities: index });
        }
    }
    let with_several_facts = evidence.unlike_systems.iter().filter(|unlike| unlike.facts.len() > 1);
    caveats.extend(with_several_facts.cloned().map(Caveat::UnlikeSystems));
    caveats
}

/// Adds the caveats about the runs and searches of one system.
fn add_caveats_of_system(evidence: &Evidence, system: usize, caveats: &mut Vec<Caveat>) {
    let is_of_system = |source: Source| source.system() == Some(system);
    let runs: Vec<(Source, &RunResult)> =
        evidence.runs().filter(|(source, _)| is_of_system(*source)).collect();
    let searches: Vec<(Source, &CapacityResult)> =
        evidence.searches().filter(|(source, _)| is_of_system(*source)).collect();
    let runs_with = |is_selected: &dyn Fn(&RunResult) -> bool| -> Vec<Source> {
        runs.iter().filter(|(_, run)| is_selected(run)).map(|(source, _)| *source).collect()
    };
    let searches_with = |is_selected: &dyn Fn(&CapacityResult) -> bool| -> Vec<Source> {
        let selected = searches.iter().filter(|(_, search)| is_selected(search));
        selected.map(|(source, _)| *source).collect()
    };
    let mut add = |caveat: fn(Vec<Source>) -> Caveat, sources: Vec<Source>| {
        caveats.extend((!sources.is_empty()).then(|| caveat(sources)));
    };
    add(Caveat::Invalid, runs_with(&|run| run.verdict.outcome == Outcome::Invalid));
    let limited_runs = runs_with(&|run| run.verdict.outcome == Outcome::ClientLimited);
    let limited_searches = searches_with(&|search| search.answer.end == EndReason::ClientLimited);
    add(Caveat::ClientLimited, [limited_runs, limited_searches].concat());
    let partial_searches = searches_with(&|search| search.partial);
    add(Caveat::Partial, [runs_with(&|run| run.partial), partial_searches].concat());
    let is_measured = |run: &RunResult| run.verdict.outcome == Outcome::Measured;
    add(Caveat::NoThresholds, runs_with(&is_measured));
    let is_closed = |run: &RunResult| {
        is_valid(run.verdict.outcome) && run.stages.iter().any(|stage| stage.model == "closed")
    };
    add(Caveat::ClosedLoad, runs_with(&is_closed));
    caveats.extend(single_run_caveats(evidence, system));
    // Collect the runs that have too few calls for percentiles, and the methods of these calls.
    let (mut sources, mut methods) = (Vec::new(), Vec::new());
    for (source, run) in runs.iter().filter(|(_, run)| is_valid(run.verdict.outcome)) {
        let few_calls = || run.methods.iter().filter(|row| (1..CALLS_MIN).contains(&row.calls));
        sources.extend(few_calls().next().map(|_| *source));
        for row in few_calls() {
            if !methods.contains(&row.method) {
                methods.push(row.method.clone());
            }
        }
        let bottleneck = run.bottleneck.as_ref();
        caveats.extend(bottleneck.and_then(|bottleneck| cause_caveat(*source, bottleneck)));
    }
    if !sources.is_empty() {
        caveats.push(Caveat::FewCalls { sources, methods });
    }
    if searches.is_empty() && !runs.is_empty() {
        caveats.push(Caveat::NoCapacity { system });
    }
    for (source, search) in &searches {
        add_caveats_of_search(*source, search, caveats);
    }
    let is_shared = runs.iter().any(|(_, run)| run.fingerprint.target_local)
        || searches.iter().any(|(_, search)| search.fingerprint.target_local);
    caveats.extend(is_shared.then_some(Caveat::SharedMachine { system }));
    if !is_shared && evidence.systems.len() > 1 {
        caveats.push(Caveat::MachineUnknown { system });
    }
}

/// Returns true if the values differ, but the difference does not rest on several runs of each
/// variant.
fn differs_by_single_runs(difference: &Difference) -> bool {
    difference.verdict.is_different() && !rests_on_several_runs(difference)
}

/// Returns a caveat for each plan under which a system has only one valid run.
fn single_run_caveats(evidence: &Evidence, system: usize) -> Vec<Caveat> {
    let has_one = |plan: &&PlanRuns| {
        plan.systems.iter().any(|(index, runs)| *index == system && runs.len() == 1)
    };
    let single = evidence.plans.iter().filter(has_one);
    single.map(|plan| Caveat::SingleRun { system, plan: plan.name.clone() }).collect()
}

/// Returns a caveat if the bottleneck is unknown or uncertain.
fn cause_caveat(source: Source, bottleneck: &BottleneckFinding) -> Option<Caveat> {
    match (bottleneck.cause, bottleneck.confidence) {
        (Cause::Unknown, _) => Some(Caveat::CauseUnknown(source)),
        (Cause::Generator, _) => None,
        (cause, Confidence::Low) => Some(Caveat::CauseUncertain { source, cause }),
        _ => None,
    }
}

/// Adds the caveats about a capacity search.
fn add_caveats_of_search(source: Source, search: &CapacityResult, caveats: &mut Vec<Caveat>) {
    let answer = &search.answer;
    let is_found = matches!(answer.end, EndReason::Converged | EndReason::NothingPassed);
    if !is_found || answer.at_least {
        caveats.push(match answer.highest_pass {
            Some(_) => Caveat::LowerBound(source),
            None => Caveat::CapacityUnknown(source),
        });
    }
    if answer.highest_pass.is_some() && answer.soak_held.is_none() {
        caveats.push(Caveat::NoSoak(source));
    }
    caveats.extend((!answer.monotone).then_some(Caveat::NotMonotone(source)));
    let bottleneck = search.bottleneck.as_ref();
    caveats.extend(bottleneck.and_then(|bottleneck| cause_caveat(source, bottleneck)));
}

/// Adds the caveats about a comparison of runs.
fn add_caveats_of_comparison(index: usize, result: &CompareResult, caveats: &mut Vec<Caveat>) {
    let is_refused = result.mismatches.iter().any(|mismatch| mismatch.weight == Weight::Refuse);
    if is_refused && result.differences.is_empty() {
        caveats.push(Caveat::Refused { comparison: index });
    }
    for variant in result.variants.iter().skip(1) {
        let of_variant =
            || result.differences.iter().filter(|difference| difference.variant == variant.name);
        if of_variant().any(differs_by_single_runs) {
            let variant = variant.name.clone();
            caveats.push(Caveat::OneRunEach { comparison: index, variant });
        }
        let undecided = of_variant()
            .filter(|difference| difference.verdict == ComparisonVerdict::CannotTell)
            .count();
        if undecided > 0 {
            caveats.push(Caveat::CannotTell {
                comparison: index,
                variant: variant.name.clone(),
                figures: undecided,
                total: of_variant().count(),
            });
        }
    }
}
