//! Reads results, groups them by system, compares the systems, and assesses what the results
//! support: `weir report RESULT…`.
//!
//! A *system* is one target URL that was loaded from one machine. If the user gives a result the
//! name of its system, that name decides instead. Runs of the same plan are compared as in
//! `weir compare`; runs of different plans are not compared. `analysis/assessment.rs` draws the
//! conclusions.

mod capacity;
mod read;
mod systems;

#[cfg(test)]
pub(crate) mod tests;

use lab_model::results::load_study::LoadStudyResult;

pub use read::{Input, ReadFault, Results, SystemResult, read};

use crate::analysis::assessment::{
    Assessment, Evidence, Labelled, PlanRuns, System, UnlikeSystems, assess, is_valid,
};
use crate::analysis::comparability::{plan_differences, system_differences};
use crate::compare::{Options, compare};
use crate::variant;
use crate::variant::{Run, Variant};

/// All results with their comparisons and their assessment.
#[derive(Clone, Debug)]
pub struct Assessed {
    /// The results of the systems, and all comparisons.
    pub evidence: Evidence,
    /// Studies of load runs.
    pub studies: Vec<Labelled<LoadStudyResult>>,
    /// Findings, conclusions and recommendations.
    pub assessment: Assessment,
}

/// Groups results by system, compares the systems, and assesses the results.
pub fn assess_results(results: Results, random: &mut dyn FnMut() -> u64) -> Assessed {
    let systems = systems::group_by_system(results.inputs);
    let plans = group_by_plan(&systems);
    let mut evidence = Evidence { systems, plans, ..Evidence::default() };
    compare_systems(&mut evidence, random);
    let study_comparisons = results.studies.iter().flat_map(|study| {
        study.result.plans.iter().map(move |plan| Labelled {
            label: [study.result.name.as_str(), plan.plan.as_str()].join(", "),
            result: plan.comparison.clone(),
        })
    });
    evidence.comparisons.extend(study_comparisons.chain(results.comparisons));
    evidence.capacities = capacity::compare_capacities(&evidence.systems, random);
    let assessment = assess(&evidence);
    Assessed { evidence, studies: results.studies, assessment }
}

/// Compares the valid runs of all systems, plan by plan. Adds the comparisons and the differences
/// between systems and plans to the evidence.
fn compare_systems(evidence: &mut Evidence, random: &mut dyn FnMut() -> u64) {
    let Evidence { systems, plans, comparisons, unlike_plans, unlike_systems, .. } = evidence;
    for plan in plans.iter().filter(|plan| plan.systems.len() > 1) {
        let variant = |(system, runs): &(usize, Vec<usize>)| {
            let System { name, runs: all_runs, .. } = &systems[*system];
            let run = |run: &usize| -> Run {
                variant::run_of_result(&all_runs[*run].label, &all_runs[*run].result)
            };
            Variant { runs: runs.iter().map(run).collect(), ..Variant::named(name) }
        };
        let variants: Vec<Variant> = plan.systems.iter().map(variant).collect();
        let first_system = plan.systems[0].0;
        for ((system, _), variant) in plan.systems.iter().zip(&variants).skip(1) {
            let facts = system_differences(&variants[0].runs[0].facts, &variant.runs[0].facts);
            let unlike = UnlikeSystems { a: first_system, b: *system, facts };
            if !unlike_systems.contains(&unlike) {
                unlike_systems.push(unlike);
            }
        }
        let result = compare(variants, &Options::default(), random);
        comparisons.push(Labelled { label: plan.name.clone(), result });
    }
    for a in 0..systems.len() {
        for b in a + 1..systems.len() {
            unlike_plans.extend(compare_plans(plans, a, b));
        }
    }
}

/// Name of a group of plans with equal settings and different names.
const EQUAL_PLANS: &str = "plans with equal settings";

/// Groups the valid runs of all systems by plan.
fn group_by_plan(systems: &[System]) -> Vec<PlanRuns> {
    let mut plans: Vec<PlanRuns> = Vec::new();
    for (system_index, system) in systems.iter().enumerate() {
        for (run_index, labelled) in system.runs.iter().enumerate() {
            if !is_valid(labelled.result.verdict.outcome) {
                continue;
            }
            let facts = variant::run_of_result(&labelled.label, &labelled.result).facts;
            let is_same = |plan: &PlanRuns| plan_differences(&plan.facts, &facts).is_empty();
            let index = plans.iter().position(is_same).unwrap_or(plans.len());
            if index == plans.len() {
                let name = labelled.result.plan.name.clone();
                plans.push(PlanRuns { name, systems: Vec::new(), facts });
            }
            let plan = &mut plans[index];
            // Without a plan file, a plan is named after its target. Equal plans for two targets
            // then have different names.
            if plan.name != labelled.result.plan.name {
                EQUAL_PLANS.clone_into(&mut plan.name);
            }
            match plan.systems.iter_mut().find(|(index, _)| *index == system_index) {
                Some((_, runs)) => runs.push(run_index),
                None => plan.systems.push((system_index, vec![run_index])),
            }
        }
    }
    plans
}

/// Returns the differences between the plans of two systems. `None` if the systems have a plan in
/// common, or if one of them has no valid run.
fn compare_plans(plans: &[PlanRuns], a: usize, b: usize) -> Option<UnlikeSystems> {
    let has_runs_of =
        |plan: &PlanRuns, system: usize| plan.systems.iter().any(|(index, _)| *index == system);
    if plans.iter().any(|plan| has_runs_of(plan, a) && has_runs_of(plan, b)) {
        return None;
    }
    let plan_a = plans.iter().find(|plan| has_runs_of(plan, a))?;
    let plan_b = plans.iter().find(|plan| has_runs_of(plan, b))?;
    Some(UnlikeSystems { a, b, facts: plan_differences(&plan_a.facts, &plan_b.facts) })
}
