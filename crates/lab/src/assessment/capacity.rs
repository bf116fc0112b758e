//! Compares the capacities of systems.
//!
//! Each search contributes one value: its highest passing rate. A search knows the capacity only
//! between its highest passing and lowest failing rate. A difference below that gap (the
//! resolution) does not count.

use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::compare::{Difference, Metric};

use crate::analysis::assessment::{CapacityComparison, System};
use crate::analysis::comparability::plan_differences;
use crate::analysis::compare::{Design, Values, classify_all, compare};
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
    let Some((a, b)) = a.searches.first().zip(b.searches.first()) else { return false };
    is_same_search(&a.result, &b.result)
}

fn is_same_search(a: &CapacityResult, b: &CapacityResult) -> bool {
    let facts = |search: &CapacityResult| {
        variant::plan_facts(&search.plan, &search.target, &search.fingerprint)
    };
    a.thresholds == b.thresholds && plan_differences(&facts(a), &facts(b)).is_empty()
}

fn compare_pair(a: &System, b: &System, random: &mut dyn FnMut() -> u64) -> Option<Difference> {
    let first = &a.searches.first()?.result;
    let found = |system: &System| -> Option<Vec<(f64, f64, u64)>> {
        let alike = system.searches.iter().map(|search| &search.result);
        alike.filter(|search| is_same_search(first, search)).map(bounds).collect()
    };
    let (found_a, found_b) = (found(a)?, found(b)?);
    let resolution = found_a.iter().chain(&found_b).map(|(pass, fail, _)| fail / pass - 1.0);
    let design = Design { spread: Some(resolution.fold(0.0, f64::max)), ..Design::default() };
    let values = |found: &[(f64, f64, u64)]| Values {
        runs: found.iter().map(|(pass, ..)| *pass).collect(),
        seconds: Vec::new(),
        calls: Some(found.iter().map(|(.., calls)| calls).sum()),
    };
    let compared = compare(Metric::Goodput, &values(&found_a), &values(&found_b), design, random)?;
    let (verdict, p) = classify_all(std::slice::from_ref(&compared)).into_iter().next()?;
    Some(Difference {
        variant: b.name.clone(),
        method: ALL.to_owned(),
        metric: compared.metric,
        a: compared.a,
        b: compared.b,
        a_count: compared.a_count,
        b_count: compared.b_count,
        change: compared.change,
        interval: compared.interval.map(|interval| (interval.low, interval.high)),
        p,
        floor: compared.floor,
        basis: compared.basis,
        verdict,
    })
}

/// Returns the highest passing and the lowest failing rate, and the calls of all probes. None if
/// the capacity is only a lower bound or unknown.
fn bounds(search: &CapacityResult) -> Option<(f64, f64, u64)> {
    let answer = &search.answer;
    let pass = answer.highest_pass.filter(|pass| *pass > 0.0)?;
    let fail = answer.lowest_fail?;
    let calls = search.probes.iter().map(|probe| probe.latency.count).sum();
    (answer.end == EndReason::Converged && !answer.at_least).then_some((pass, fail, calls))
}
