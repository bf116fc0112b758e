//! Compares the capacities of systems.
//!
//! Each search contributes one value: its highest passing rate. The capacity is somewhere between
//! this rate and the search's lowest failing rate; the *gap* of the search is the distance between
//! the two rates. A difference between two systems counts only if it is larger than the largest gap
//! of their searches.

use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::compare::{Difference, Metric};

use crate::analysis::assessment::{CapacityComparison, System};
use crate::analysis::comparability::plan_differences;
use crate::analysis::compare::{Design, Values, compare, judge_all};
use crate::variant;
use crate::variant::TOTAL;

/// Compares each system with one of the systems before it: the first one whose first search has the
/// same plan and thresholds.
pub(super) fn compare_capacities(
    systems: &[System],
    random: &mut dyn FnMut() -> u64,
) -> Vec<CapacityComparison> {
    let mut comparisons = Vec::new();
    for b in 1..systems.len() {
        let Some(a) = (0..b).find(|a| is_alike(&systems[*a], &systems[b])) else { continue };
        let difference = compare_pair(&systems[a], &systems[b], random);
        comparisons.push(CapacityComparison { a, b, difference });
    }
    comparisons
}

/// Returns true if the first searches of two systems have the same plan and thresholds.
fn is_alike(a: &System, b: &System) -> bool {
    let first_searches = a.searches.first().zip(b.searches.first());
    first_searches.is_some_and(|(a, b)| is_same_search(&a.result, &b.result))
}

/// Returns true if two searches have the same plan and thresholds.
fn is_same_search(a: &CapacityResult, b: &CapacityResult) -> bool {
    let facts = |search: &CapacityResult| {
        variant::plan_facts(&search.plan, &search.target, &search.fingerprint)
    };
    a.thresholds == b.thresholds && plan_differences(&facts(a), &facts(b)).is_empty()
}

/// Compares the capacities of two systems. Uses the searches of both systems that have the same
/// plan and thresholds as the first search of `a`. `None` if a capacity is only a lower bound or
/// unknown, or if the values cannot be compared.
fn compare_pair(a: &System, b: &System, random: &mut dyn FnMut() -> u64) -> Option<Difference> {
    let first_search = &a.searches.first()?.result;
    let capacities_of = |system: &System| -> Option<Vec<Capacity>> {
        let searches = system.searches.iter().map(|search| &search.result);
        searches.filter(|search| is_same_search(first_search, search)).map(Capacity::of).collect()
    };
    let (capacities_a, capacities_b) = (capacities_of(a)?, capacities_of(b)?);
    let relative_gap = |capacity: &Capacity| capacity.lowest_fail / capacity.highest_pass - 1.0;
    let gaps = capacities_a.iter().chain(&capacities_b).map(relative_gap);
    let design = Design { spread: Some(gaps.fold(0.0, f64::max)), ..Design::default() };
    let values = |capacities: &[Capacity]| Values {
        runs: capacities.iter().map(|capacity| capacity.highest_pass).collect(),
        calls: Some(capacities.iter().map(|capacity| capacity.calls).sum()),
        ..Values::default()
    };
    let (values_a, values_b) = (values(&capacities_a), values(&capacities_b));
    let compared = compare(Metric::Goodput, &values_a, &values_b, design, random)?;
    let difference = judge_all(vec![compared]).pop()?;
    Some(Difference { variant: b.name.clone(), method: TOTAL.to_owned(), ..difference })
}

/// The capacity that a search found. Rates are iterations per second.
struct Capacity {
    /// Highest rate that passed.
    highest_pass: f64,
    /// Lowest rate that failed.
    lowest_fail: f64,
    /// Number of calls of all probes of the search.
    calls: u64,
}

impl Capacity {
    /// Returns the capacity of a search. `None` if it is only a lower bound or unknown.
    fn of(search: &CapacityResult) -> Option<Capacity> {
        let answer = &search.answer;
        let highest_pass = answer.highest_pass.filter(|rate| *rate > 0.0)?;
        let lowest_fail = answer.lowest_fail?;
        let calls = search.probes.iter().map(|probe| probe.latency.count).sum();
        let is_found = answer.end == EndReason::Converged && !answer.at_least;
        is_found.then_some(Capacity { highest_pass, lowest_fail, calls })
    }
}
