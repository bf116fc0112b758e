//! Estimates the cost of a search before its start, by running it against ideal targets.

use lab_model::results::capacity::{Kind, ProbeOutcome};

use super::{Health, Probe, Settings, Step, next};

/// Least and largest cost over targets of all capacities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Probes of the shortest and the longest search, baselines included.
    pub probes: (usize, usize),
    /// Costs of the cheapest and the dearest search, in the unit of the cost function.
    pub cost: (f64, f64),
}

/// Number of capacities that are tried per doubling of the rate.
const PER_DOUBLING: f64 = 8.0;

/// Estimates the number of probes of a search and their total cost, for capacities from half the
/// first rate to twice the largest. `cost(kind, rate, drains)` is the cost of one probe with the
/// pause before it. A target that is noisy or slow to recover costs more.
pub fn estimate(settings: &Settings, cost: impl Fn(Kind, f64, u32) -> f64) -> Estimate {
    let mut probes = (usize::MAX, 0);
    let mut costs = (f64::INFINITY, 0.0_f64);
    let span = (4.0 * settings.rate_max / settings.rate_start).log2().max(1.0);
    let steps = (span * PER_DOUBLING).ceil() as i32;
    for step in 0..=steps {
        let capacity = settings.rate_start / 2.0 * f64::exp2(f64::from(step) / PER_DOUBLING);
        let (count, total_cost) = search_ideal_target(settings, capacity, &cost);
        probes = (probes.0.min(count), probes.1.max(count));
        costs = (costs.0.min(total_cost), costs.1.max(total_cost));
    }
    Estimate { probes, cost: costs }
}

/// Runs a search against a target that passes up to its capacity and fails above. Returns the
/// number of probes and their total cost.
fn search_ideal_target(
    settings: &Settings,
    capacity: f64,
    cost: &impl Fn(Kind, f64, u32) -> f64,
) -> (usize, f64) {
    let mut history: Vec<Probe> = Vec::new();
    let mut sum = 0.0;
    while let Step::Probe { kind, rate, drains } = next(settings, &history) {
        sum += cost(kind, rate, drains);
        let outcome = if rate <= capacity { ProbeOutcome::Pass } else { ProbeOutcome::Fail };
        let health = Health { p50_ms: 1.0, failed_share: 0.0 };
        history.push(Probe { kind, rate, outcome, margin: None, health, drains });
    }
    (history.len(), sum)
}
