//! Computes the planned load from a plan alone: iterations, rates, and each method's share of all
//! calls. Some of these numbers depend on the target's speed, and are unknown before a run.
//!
//! In an open scenario, iterations start by the clock. In a closed scenario, an iteration starts
//! when a worker is free. An iteration sends one request for each step of its mix.

use std::time::Duration;

use super::{Model, Plan, Scenario, Step};

#[cfg(test)]
mod tests;

/// A planned number of iterations or requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planned {
    /// The run has exactly this number.
    Exactly(f64),
    /// The run has at most this number.
    AtMost(f64),
    /// The number depends on the target's speed.
    Unknown,
}

impl Planned {
    /// Returns the exact number or the upper bound, or `None` if the number is unknown.
    pub fn bound(self) -> Option<f64> {
        match self {
            Planned::Exactly(number) | Planned::AtMost(number) => Some(number),
            Planned::Unknown => None,
        }
    }

    /// Returns the number times `factor`.
    fn scaled(self, factor: f64) -> Planned {
        match self {
            Planned::Exactly(number) => Planned::Exactly(number * factor),
            Planned::AtMost(number) => Planned::AtMost(number * factor),
            Planned::Unknown => Planned::Unknown,
        }
    }

    /// Returns the sum, which is exact only if both numbers are exact.
    fn plus(self, other: Planned) -> Planned {
        match (self, other) {
            (Planned::Exactly(first), Planned::Exactly(second)) => Planned::Exactly(first + second),
            (first, second) => match (first.bound(), second.bound()) {
                (Some(first), Some(second)) => Planned::AtMost(first + second),
                _ => Planned::Unknown,
            },
        }
    }
}

impl Plan {
    /// Returns the number of iterations of the whole plan.
    pub fn iterations(&self) -> Planned {
        let by_scenario = self.scenarios.iter().map(Scenario::iterations);
        by_scenario.fold(Planned::Exactly(0.0), Planned::plus)
    }

    /// Returns the number of requests of the whole plan.
    pub fn requests(&self) -> Planned {
        let by_scenario = self.scenarios.iter().map(|scenario| {
            scenario.iterations().scaled(self.mixes[scenario.mix].steps.len() as f64)
        });
        by_scenario.fold(Planned::Exactly(0.0), Planned::plus)
    }

    /// Returns the highest planned rate of all scenarios together, in requests per second. Returns
    /// `None` if a scenario is closed, because its rate depends on the target's speed. Also returns
    /// `None` if the plan has no scenario.
    pub fn peak(&self) -> Option<f64> {
        if self.scenarios.iter().any(|scenario| scenario.model == Model::Closed) {
            return None;
        }
        let instants = self.spans().flat_map(|(_, _, span)| [span.from, span.to]);
        let total_rate = |instant: Duration, after: bool| {
            let rate = |scenario: &Scenario| {
                let steps = self.mixes[scenario.mix].steps.len() as f64;
                scenario.level(instant, after) * steps
            };
            self.scenarios.iter().map(rate).sum::<f64>()
        };
        // Levels are linear within a stage, but can jump between stages. So the rate is highest
        // just before or just after the start or the end of a stage.
        let rates =
            instants.flat_map(|instant| [total_rate(instant, false), total_rate(instant, true)]);
        rates.reduce(f64::max)
    }

    /// Returns each method's share of all calls, by index of the method. Returns `None` if the
    /// scenarios differ in their mixes or batches, and their numbers of iterations are not known
    /// exactly. Also returns `None` if the plan has no scenario.
    pub fn shares(&self) -> Option<Vec<f64>> {
        self.shares_of(|_| true)
    }

    /// Returns each method's share of the calls of the selected scenarios. Returns `None` if no
    /// scenario is selected, or for the same reason as [`Plan::shares`].
    pub fn shares_of(&self, is_selected: impl Fn(&Scenario) -> bool) -> Option<Vec<f64>> {
        let scenarios: Vec<_> =
            self.scenarios.iter().filter(|scenario| is_selected(scenario)).collect();
        let (first, others) = scenarios.split_first()?;
        let mut shares = vec![0.0; self.methods.len()];
        let mix_and_batch = |scenario: &Scenario| {
            (scenario.mix, scenario.batch.map(|batch| (batch.probability, batch.size)))
        };
        if others.iter().all(|scenario| mix_and_batch(scenario) == mix_and_batch(first)) {
            self.add_calls(first, 1.0, &mut shares);
        } else {
            for scenario in &scenarios {
                let Planned::Exactly(iterations) = scenario.iterations() else { return None };
                self.add_calls(scenario, iterations, &mut shares);
            }
        }
        let sum: f64 = shares.iter().sum();
        if sum > 0.0 {
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        Some(shares)
    }

    /// Returns the mean number of calls of each method in one iteration of a scenario, by index of
    /// the method.
    pub fn calls_per_iteration(&self, scenario: &Scenario) -> Vec<f64> {
        let mut calls = vec![0.0; self.methods.len()];
        self.add_calls(scenario, 1.0, &mut calls);
        calls
    }

    /// Adds to `sums` the mean number of calls of each method in `iterations` iterations.
    fn add_calls(&self, scenario: &Scenario, iterations: f64, sums: &mut [f64]) {
        // Only calls that are chosen by weight are sent as batches. Recorded bodies stay unchanged.
        let calls_per_request =
            scenario.batch.map_or(1.0, |batch| 1.0 + batch.probability * (batch.size as f64 - 1.0));
        for step in &self.mixes[scenario.mix].steps {
            match step {
                Step::Choose(calls) => {
                    let weight_sum: f64 = calls.iter().map(|call| call.weight).sum();
                    let call_count = iterations * calls_per_request;
                    for call in calls {
                        sums[call.template.method] += call_count * call.weight / weight_sum;
                    }
                }
                Step::Transactions(transactions) => {
                    sums[transactions.method] += iterations;
                }
                Step::Replay(bodies) => {
                    let repeats = iterations / bodies.len().max(1) as f64;
                    for body in bodies {
                        sums[body.method] += repeats * body.calls as f64;
                    }
                }
            }
        }
    }
}

impl Scenario {
    /// Returns the number of iterations that the scenario starts.
    pub fn iterations(&self) -> Planned {
        // The area under the curve of the level over time. This is the number of iterations in the
        // open model, and the number of worker-seconds in the closed model.
        let area: f64 = self
            .stages
            .iter()
            .map(|stage| stage.duration.as_secs_f64() * (stage.from + stage.to) / 2.0)
            .sum();
        let maximum = self.iterations_limit().map(|maximum| maximum as f64);
        let bounded = |number: f64| maximum.map_or(number, |maximum| number.min(maximum));
        match (self.model, self.pause.is_zero(), maximum) {
            (Model::Open, _, _) => Planned::Exactly(bounded(area)),
            // Each worker starts one iteration immediately, and then at most one per pause.
            (Model::Closed, false, _) => {
                let first_iterations = self.level_max();
                Planned::AtMost(bounded(area / self.pause.as_secs_f64() + first_iterations))
            }
            (Model::Closed, true, Some(maximum)) => Planned::AtMost(maximum),
            (Model::Closed, true, None) => Planned::Unknown,
        }
    }

    /// Returns the planned level (iterations per second, or workers) at an instant of the run. If
    /// the level jumps at the instant, `after` selects the level just after it instead of the level
    /// just before it. Returns 0 outside of the scenario's stages.
    pub fn level(&self, instant: Duration, after: bool) -> f64 {
        let mut start = self.start;
        for stage in &self.stages {
            let end = start + stage.duration;
            let is_within = match after {
                true => start <= instant && instant < end,
                false => start < instant && instant <= end,
            };
            if is_within {
                return stage.level(instant - start);
            }
            start = end;
        }
        0.0
    }

    /// Returns the highest level of all stages.
    pub fn level_max(&self) -> f64 {
        self.stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
    }
}
