//! Compares the capacities of systems.
//!
//! Each search contributes one value: its highest passing rate. The capacity is between this rate
//! and the lowest failing rate. A difference of two systems counts only if it is larger than this
//! gap.

use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::compare::{Difference, Metric};

use crate::analysis::assessment::{CapacityComparison, System};
use crate::analysis::comparability::plan_differences;
use crate::analysis::compare::{Design, Values, compare, judge_all};
use crate::variant;
use crate::variant::ALL;

/// Compares each system with the first earlier system whose search has the same plan and
/// thresholds.
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

/// Compares the capacities of two systems; none if a capacity is only a lower bound or unknown.
fn compare_pair(a: &System, b: &System, random: &mut dyn FnMut() -> u64) -> Option<Difference> {
    let first = &a.searches.first()?.result;
    let capacities = |system: &System| -> Option<Vec<Capacity>> {
        let searches = system.searches.iter().map(|search| &search.result);
        searches.filter(|search| is_same_search(first, search)).map(Capacity::of).collect()
    };
    let (of_a, of_b) = (capacities(a)?, capacities(b)?);
    let gaps = of_a.iter().chain(&of_b).map(|found| found.lowest_fail / found.highest_pass - 1.0);
    let design = Design { spread: Some(gaps.fold(0.0, f64::max)), ..Design::default() };
    let values = |capacities: &[Capacity]| Values {
        runs: capacities.iter().map(|found| found.highest_pass).collect(),
        seconds: Vec::new(),
        calls: Some(capacities.iter().map(|found| found.calls).sum()),
    };
    let compared = compare(Metric::Goodput, &values(&of_a), &values(&of_b), design, random)?;
    let difference = judge_all(vec![compared]).pop()?;
    Some(Difference { variant: b.name.clone(), method: ALL.to_owned(), ..difference })
}

/// The capacity that a search found. Rates are iterations per second.
struct Capacity {
    highest_pass: f64,
    lowest_fail: f64,
    /// Calls of all probes.
    calls: u64,
}

impl Capacity {
    /// Returns the capacity of a search; none if it is only a lower bound or unknown.
    fn of(search: &CapacityResult) -> Option<Capacity> {
        let answer = &search.answer;
        let highest_pass = answer.highest_pass.filter(|rate| *rate > 0.0)?;
        let lowest_fail = answer.lowest_fail?;
        let calls = search.probes.iter().map(|probe| probe.latency.count).sum();
        let is_found = answer.end == EndReason::Converged && !answer.at_least;
        is_found.then_some(Capacity { highest_pass, lowest_fail, calls })
    }
}
