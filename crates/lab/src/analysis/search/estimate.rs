//! Estimates the cost of a search before its start. It runs the search against simulated targets
//! that pass every rate up to their capacity and fail every higher rate.

use lab_model::results::capacity::{Kind, ProbeOutcome};

use super::{Health, Probe, Settings, Step, next};

/// Smallest and largest cost of a search, over targets of all capacities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of probes in the shortest and in the longest search, baselines included.
    pub probes: (usize, usize),
    /// Costs of the cheapest and of the most expensive search, in the unit of the cost function.
    pub cost: (f64, f64),
}

/// Number of simulated capacities per doubling of the rate.
const CAPACITIES_PER_DOUBLING: f64 = 8.0;

/// Estimates the number of probes of a search and their total cost. The capacities of the simulated
/// targets range from half the first rate to twice the largest rate.
///
/// `cost(kind, rate, drains)` is the cost of one probe and of the pause before it. The pause is
/// `drains` times as long as the plan's drain time. A target that is noisy or slow to recover costs
/// more than the estimate.
pub fn estimate(settings: &Settings, cost: impl Fn(Kind, f64, u32) -> f64) -> Estimate {
    let mut probes = (usize::MAX, 0);
    let mut costs = (f64::INFINITY, 0.0_f64);
    let total_doublings = (4.0 * settings.rate_max / settings.rate_start).log2().max(1.0);
    let steps = (total_doublings * CAPACITIES_PER_DOUBLING).ceil() as i32;
    for step in 0..=steps {
        let doublings = f64::from(step) / CAPACITIES_PER_DOUBLING;
        let capacity = settings.rate_start / 2.0 * f64::exp2(doublings);
        let (count, total_cost) = search_ideal_target(settings, capacity, &cost);
        probes = (probes.0.min(count), probes.1.max(count));
        costs = (costs.0.min(total_cost), costs.1.max(total_cost));
    }
    Estimate { probes, cost: costs }
}

/// Runs a search against a simulated target with the given capacity. Returns the number of probes
/// and their total cost.
fn search_ideal_target(
    settings: &Settings,
    capacity: f64,
    cost: &impl Fn(Kind, f64, u32) -> f64,
) -> (usize, f64) {
    let mut history: Vec<Probe> = Vec::new();
    let mut total_cost = 0.0;
    while let Step::Probe { kind, rate, drains } = next(settings, &history) {
        total_cost += cost(kind, rate, drains);
        let outcome = if rate <= capacity { ProbeOutcome::Pass } else { ProbeOutcome::Fail };
        let health = Health { p50_ms: 1.0, failed_share: 0.0 };
        history.push(Probe { kind, rate, outcome, margin: None, health, drains });
    }
    (history.len(), total_cost)
}
