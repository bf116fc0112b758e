//! The planned load: iterations, rates, and each method's share of all calls, as far as the plan
//! alone determines them.

use std::time::Duration;

use super::{Model, Plan, Scenario, Step};

#[cfg(test)]
mod tests;

/// A number that the plan determines, bounds, or leaves to the target's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known {
    /// Exactly this many.
    Exactly(f64),
    /// At most this many.
    AtMost(f64),
    /// As many as the target's speed allows.
    Not,
}

impl Known {
    /// Returns the number or its bound.
    pub fn bound(self) -> Option<f64> {
        match self {
            Known::Exactly(number) | Known::AtMost(number) => Some(number),
            Known::Not => None,
        }
    }

    fn scaled(self, factor: f64) -> Known {
        match self {
            Known::Exactly(number) => Known::Exactly(number * factor),
            Known::AtMost(number) => Known::AtMost(number * factor),
            Known::Not => Known::Not,
        }
    }

    fn plus(self, other: Known) -> Known {
        match (self, other) {
            (Known::Exactly(a), Known::Exactly(b)) => Known::Exactly(a + b),
            (a, b) => match (a.bound(), b.bound()) {
                (Some(a), Some(b)) => Known::AtMost(a + b),
                _ => Known::Not,
            },
        }
    }
}

impl Plan {
    /// Returns the iterations of the whole plan.
    pub fn iterations(&self) -> Known {
        let each = self.scenarios.iter().map(Scenario::iterations);
        each.fold(Known::Exactly(0.0), Known::plus)
    }

    /// Returns the HTTP requests of the whole plan.
    pub fn requests(&self) -> Known {
        let each = self.scenarios.iter().map(|scenario| {
            scenario.iterations().scaled(self.mixes[scenario.mix].steps.len() as f64)
        });
        each.fold(Known::Exactly(0.0), Known::plus)
    }

    /// Returns the highest planned rate of requests per second over all scenarios, or `None` if one
    /// of them is closed.
    pub fn peak(&self) -> Option<f64> {
        if self.scenarios.iter().any(|scenario| scenario.model == Model::Closed) {
            return None;
        }
        let instants = self.spans().flat_map(|(_, _, span)| [span.from, span.to]);
        let total = |at: Duration, after: bool| {
            let rate = |scenario: &Scenario| {
                let steps = self.mixes[scenario.mix].steps.len() as f64;
                scenario.level(at, after) * steps
            };
            self.scenarios.iter().map(rate).sum::<f64>()
        };
        // Levels are linear within a stage. So the highest rate is just before or just after the
        // end of a stage.
        instants.flat_map(|at| [total(at, false), total(at, true)]).reduce(f64::max)
    }

    /// Returns each method's share of all calls, by index. Returns `None` if the mixes of the
    /// scenarios differ and a number of iterations is not exactly known.
    pub fn shares(&self) -> Option<Vec<f64>> {
        self.shares_of(|_| true)
    }

    /// Returns the shares for the calls of some scenarios.
    pub fn shares_of(&self, wanted: impl Fn(&Scenario) -> bool) -> Option<Vec<f64>> {
        let scenarios: Vec<_> = self.scenarios.iter().filter(|scenario| wanted(scenario)).collect();
        let (first, rest) = scenarios.split_first()?;
        let mut shares = vec![0.0; self.methods.len()];
        if rest.iter().all(|scenario| scenario.mix == first.mix) {
            self.add_shares(first.mix, 1.0, &mut shares);
        } else {
            for scenario in &scenarios {
                let Known::Exactly(iterations) = scenario.iterations() else { return None };
                self.add_shares(scenario.mix, iterations, &mut shares);
            }
        }
        let all: f64 = shares.iter().sum();
        if all > 0.0 {
            shares.iter_mut().for_each(|share| *share /= all);
        }
        Some(shares)
    }

    fn add_shares(&self, mix: usize, iterations: f64, shares: &mut [f64]) {
        for step in &self.mixes[mix].steps {
            match step {
                Step::Choose(calls) => {
                    let sum: f64 = calls.iter().map(|call| call.weight).sum();
                    for call in calls {
                        shares[call.template.method] += iterations * call.weight / sum;
                    }
                }
                Step::Replay(bodies) => {
                    let calls: usize = bodies.iter().map(|body| body.calls).sum();
                    for body in bodies {
                        shares[body.method] += iterations * body.calls as f64 / calls.max(1) as f64;
                    }
                }
            }
        }
    }
}

impl Scenario {
    /// Returns the number of iterations that it starts.
    pub fn iterations(&self) -> Known {
        let area: f64 = self
            .stages
            .iter()
            .map(|stage| stage.duration.as_secs_f64() * (stage.from + stage.to) / 2.0)
            .sum();
        let most = self.iterations_max.map(|most| most as f64);
        let bounded = |number: f64| most.map_or(number, |most| number.min(most));
        match (self.model, self.pause.is_zero(), most) {
            (Model::Open { .. }, _, _) => Known::Exactly(bounded(area)),
            // Each worker starts one iteration immediately, and then at most one per pause.
            (Model::Closed, false, _) => {
                let first = self.stages.iter().map(|stage| stage.from.max(stage.to));
                let first = first.fold(0.0, f64::max);
                Known::AtMost(bounded(area / self.pause.as_secs_f64() + first))
            }
            (Model::Closed, true, Some(most)) => Known::AtMost(most),
            (Model::Closed, true, None) => Known::Not,
        }
    }

    /// Returns the planned level at an instant of the run, just before or just after it.
    pub fn level(&self, at: Duration, after: bool) -> f64 {
        let mut begin = self.start;
        for stage in &self.stages {
            let end = begin + stage.duration;
            let within = if after { begin <= at && at < end } else { begin < at && at <= end };
            if within {
                return stage.level(at - begin);
            }
            begin = end;
        }
        0.0
    }

    /// Returns the highest level of all stages.
    pub fn level_max(&self) -> f64 {
        self.stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
    }
}
