//! The planned load: iterations, rates, and each method's share of all calls, as far as the plan
//! alone determines them.

use std::time::Duration;

use super::{Model, Plan, Scenario, Step};

#[cfg(test)]
mod tests;

/// A number of iterations or requests, as far as the plan determines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Planned {
    /// Exactly this many.
    Exactly(f64),
    /// At most this many.
    AtMost(f64),
    /// Unknown, because it depends on the target's speed.
    Unknown,
}

impl Planned {
    /// Returns the number or its bound.
    pub fn bound(self) -> Option<f64> {
        match self {
            Planned::Exactly(number) | Planned::AtMost(number) => Some(number),
            Planned::Unknown => None,
        }
    }

    fn scaled(self, factor: f64) -> Planned {
        match self {
            Planned::Exactly(number) => Planned::Exactly(number * factor),
            Planned::AtMost(number) => Planned::AtMost(number * factor),
            Planned::Unknown => Planned::Unknown,
        }
    }

    fn plus(self, other: Planned) -> Planned {
        match (self, other) {
            (Planned::Exactly(a), Planned::Exactly(b)) => Planned::Exactly(a + b),
            (a, b) => match (a.bound(), b.bound()) {
                (Some(a), Some(b)) => Planned::AtMost(a + b),
                _ => Planned::Unknown,
            },
        }
    }
}

impl Plan {
    /// Returns the iterations of the whole plan.
    pub fn iterations(&self) -> Planned {
        let each = self.scenarios.iter().map(Scenario::iterations);
        each.fold(Planned::Exactly(0.0), Planned::plus)
    }

    /// Returns the HTTP requests of the whole plan.
    pub fn requests(&self) -> Planned {
        let each = self.scenarios.iter().map(|scenario| {
            scenario.iterations().scaled(self.mixes[scenario.mix].steps.len() as f64)
        });
        each.fold(Planned::Exactly(0.0), Planned::plus)
    }

    /// Returns the highest planned rate of requests per second over all scenarios, or `None` if one
    /// of them is closed.
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
        // Levels are linear within a stage. So the highest rate is just before or just after the
        // end of a stage.
        let rates =
            instants.flat_map(|instant| [total_rate(instant, false), total_rate(instant, true)]);
        rates.reduce(f64::max)
    }

    /// Returns each method's share of all calls, by index. Returns `None` if the mixes of the
    /// scenarios differ and a number of iterations is not exactly known.
    pub fn shares(&self) -> Option<Vec<f64>> {
        self.shares_of(|_| true)
    }

    /// Returns each method's share of the calls of the selected scenarios.
    pub fn shares_of(&self, is_selected: impl Fn(&Scenario) -> bool) -> Option<Vec<f64>> {
        let scenarios: Vec<_> =
            self.scenarios.iter().filter(|scenario| is_selected(scenario)).collect();
        let (first, rest) = scenarios.split_first()?;
        let mut shares = vec![0.0; self.methods.len()];
        let load = |scenario: &Scenario| {
            (scenario.mix, scenario.batch.map(|batch| (batch.probability, batch.size)))
        };
        if rest.iter().all(|scenario| load(scenario) == load(first)) {
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

    /// Returns the mean number of calls of each method in one iteration of a scenario, by index.
    pub fn calls_per_iteration(&self, scenario: &Scenario) -> Vec<f64> {
        let mut calls = vec![0.0; self.methods.len()];
        self.add_calls(scenario, 1.0, &mut calls);
        calls
    }

    /// Adds the mean number of calls of each method in a number of iterations.
    fn add_calls(&self, scenario: &Scenario, iterations: f64, sums: &mut [f64]) {
        // Recorded bodies are sent unchanged. Only other requests are sent as batches.
        let calls_per_request =
            scenario.batch.map_or(1.0, |batch| 1.0 + batch.probability * (batch.size as f64 - 1.0));
        for step in &self.mixes[scenario.mix].steps {
            match step {
                Step::Choose(calls) => {
                    let sum: f64 = calls.iter().map(|call| call.weight).sum();
                    let chosen = iterations * calls_per_request;
                    for call in calls {
                        sums[call.template.method] += chosen * call.weight / sum;
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
                let immediate = self.level_max();
                Planned::AtMost(bounded(area / self.pause.as_secs_f64() + immediate))
            }
            (Model::Closed, true, Some(maximum)) => Planned::AtMost(maximum),
            (Model::Closed, true, None) => Planned::Unknown,
        }
    }

    /// Returns the planned level (iterations per second, or workers) just before an instant of the
    /// run, or just after it if `after` is true. Returns 0 outside of the scenario's stages.
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
