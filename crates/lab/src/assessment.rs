//! Reads results, groups them by system, compares the systems, and assesses what the results
//! support: `weir report RESULT…`.
//!
//! A system is a target on its machine. Runs of the same plan are compared as `weir compare` does;
//! runs of different plans are not compared. `analysis/assessment.rs` decides what follows.

mod capacity;
mod read;
mod systems;

#[cfg(test)]
pub(crate) mod tests;

use lab_model::results::compare::CompareResult;
use lab_model::results::load_study::LoadStudyResult;

pub use read::{Input, ReadFault, Results, SystemResult, read};

use crate::analysis::assessment::{
    Assessment, CapacityComparison, Comparison, Evidence, Labelled, PlanMismatch, PlanRuns, System,
    SystemDifferences, assess, is_valid,
};
use crate::analysis::comparability::{plan_differences, system_differences};
use crate::compare::{Options, compare};
use crate::variant;
use crate::variant::{Run, Variant};

/// Results with their comparisons and their assessment.
#[derive(Clone, Debug)]
pub struct Assessed {
    /// The systems, in the order of the arguments. The first one is the baseline.
    pub systems: Vec<System>,
    /// The valid runs of the systems by plan.
    pub plans: Vec<PlanRuns>,
    /// Studies of load runs.
    pub studies: Vec<Labelled<LoadStudyResult>>,
    /// Comparisons of runs: of the systems, then those of studies, then given ones.
    pub comparisons: Vec<Comparison>,
    /// Comparisons of capacities.
    pub capacities: Vec<CapacityComparison>,
    /// Pairs of systems that are not compared.
    pub unlike_plans: Vec<PlanMismatch>,
    /// Properties in which compared systems differ.
    pub unlike_systems: Vec<SystemDifferences>,
    /// What the results support.
    pub assessment: Assessment,
}

impl Assessed {
    /// Returns the input of the assessment, which its sentences refer to.
    pub(crate) fn evidence(&self) -> Evidence<'_> {
        Evidence {
            systems: &self.systems,
            plans: &self.plans,
            comparisons: &self.comparisons,
            capacities: &self.capacities,
            unlike_plans: &self.unlike_plans,
            unlike_systems: &self.unlike_systems,
        }
    }
}

/// Groups results by system, compares the systems, and assesses the results.
pub fn assess_results(results: Results, random: &mut dyn FnMut() -> u64) -> Assessed {
    let systems = systems::group(results.inputs);
    let plans = runs_by_plan(&systems);
    let compared = compare_systems(&systems, &plans, random);
    let studies = results.studies;
    let of_studies = studies.iter().flat_map(|study| {
        study.result.plans.iter().map(move |plan| Comparison {
            name: [study.result.name.as_str(), plan.plan.as_str()].join(", "),
            result: plan.comparison.clone(),
        })
    });
    let given = results.comparisons.into_iter();
    let given = given.map(|given| Comparison { name: given.label, result: given.result });
    let comparisons: Vec<Comparison> =
        compared.comparisons.into_iter().chain(of_studies).chain(given).collect();
    let capacities = capacity::compare_capacities(&systems, random);
    let mut assessed = Assessed {
        systems,
        plans,
        studies,
        comparisons,
        capacities,
        unlike_plans: compared.unlike_plans,
        unlike_systems: compared.unlike_systems,
        assessment: Assessment::default(),
    };
    assessed.assessment = assess(assessed.evidence());
    assessed
}

/// Comparisons of the runs of all systems.
#[derive(Default)]
struct Compared {
    comparisons: Vec<Comparison>,
    unlike_plans: Vec<PlanMismatch>,
    unlike_systems: Vec<SystemDifferences>,
}

/// Compares the valid runs of all systems, plan by plan.
fn compare_systems(
    systems: &[System],
    plans: &[PlanRuns],
    random: &mut dyn FnMut() -> u64,
) -> Compared {
    let mut compared = Compared::default();
    for plan in plans.iter().filter(|plan| plan.systems.len() > 1) {
        let variant = |(system, runs): &(usize, Vec<usize>)| {
            let with = &systems[*system];
            let run = |run: &usize| -> Run {
                variant::of_result(&with.runs[*run].label, &with.runs[*run].result)
            };
            Variant {
                name: with.name.clone(),
                runs: runs.iter().map(run).collect(),
                left_out: Vec::new(),
                notes: Vec::new(),
            }
        };
        let variants: Vec<Variant> = plan.systems.iter().map(variant).collect();
        for ((b, _), other) in plan.systems.iter().zip(&variants).skip(1) {
            let properties = system_differences(&variants[0].runs[0].facts, &other.runs[0].facts);
            let unlike = SystemDifferences { a: plan.systems[0].0, b: *b, properties };
            if !compared.unlike_systems.contains(&unlike) {
                compared.unlike_systems.push(unlike);
            }
        }
        let result: CompareResult = compare(variants, &Options::default(), random);
        compared.comparisons.push(Comparison { name: plan.name.clone(), result });
    }
    for a in 0..systems.len() {
        for b in a + 1..systems.len() {
            compared.unlike_plans.extend(plan_mismatch(plans, a, b));
        }
    }
    compared
}

/// Name of plans that have equal settings and different names.
const EQUAL_PLANS: &str = "plans with equal settings";

fn runs_by_plan(systems: &[System]) -> Vec<PlanRuns> {
    let mut plans: Vec<PlanRuns> = Vec::new();
    for (system, with) in systems.iter().enumerate() {
        for (run, labelled) in with.runs.iter().enumerate() {
            if !is_valid(labelled.result.verdict.outcome) {
                continue;
            }
            let facts = variant::of_result(&labelled.label, &labelled.result).facts;
            let is_same = |plan: &PlanRuns| plan_differences(&plan.facts, &facts).is_empty();
            let index = plans.iter().position(is_same).unwrap_or(plans.len());
            if index == plans.len() {
                let name = labelled.result.plan.name.clone();
                plans.push(PlanRuns { name, systems: Vec::new(), facts });
            }
            let plan = &mut plans[index];
            // The plan of a run without a plan file has the name of its target.
            if plan.name != labelled.result.plan.name {
                EQUAL_PLANS.clone_into(&mut plan.name);
            }
            match plan.systems.iter_mut().find(|(index, _)| *index == system) {
                Some((_, runs)) => runs.push(run),
                None => plan.systems.push((system, vec![run])),
            }
        }
    }
    plans
}

/// Returns the differences of the plans of two systems; none if they have a plan in common, or if
/// one of them has no valid run.
fn plan_mismatch(plans: &[PlanRuns], a: usize, b: usize) -> Option<PlanMismatch> {
    let has =
        |plan: &PlanRuns, system: usize| plan.systems.iter().any(|(index, _)| *index == system);
    if plans.iter().any(|plan| has(plan, a) && has(plan, b)) {
        return None;
    }
    let of_a = plans.iter().find(|plan| has(plan, a))?;
    let of_b = plans.iter().find(|plan| has(plan, b))?;
    Some(PlanMismatch { a, b, settings: plan_differences(&of_a.facts, &of_b.facts) })
}
