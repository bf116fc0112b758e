//! Start times of iterations and numbers of active workers, in closed form.
//!
//! Nothing is accumulated from event to event, so the ten-millionth send is as exact as the first.
//! Times are nanoseconds since the start of the run. `crates/lab-engine/src/engine.rs` sends at
//! these times.

use std::time::Duration;

use lab_model::plan::{Scenario, Stage};

#[cfg(test)]
mod tests;

/// Rounding tolerance of areas under the rate curve, in iterations. It is far above the error of
/// 64-bit floats up to 10^9 iterations.
const AREA_TOLERANCE: f64 = 1e-6;

/// A scheduled iteration of an open scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The scheduled time of the iteration, in nanoseconds.
    pub at: u64,
    /// Index over all stages of the plan.
    pub stage: u16,
    /// Number in the scenario over all threads, from 1.
    pub number: u64,
}

/// A stage with its times and the area under the rate curve.
#[derive(Clone, Copy, Debug)]
struct Leg {
    stage: u16,
    begin: u64,
    end: u64,
    seconds: f64,
    from: f64,
    to: f64,
    area_before: f64,
    area_after: f64,
}

fn legs(scenario: &Scenario) -> Vec<Leg> {
    let (mut begin, mut area) = (nanos(scenario.start), 0.0);
    let place = |stage: &Stage| {
        let seconds = stage.duration.as_secs_f64();
        let leg = Leg {
            stage: u16::try_from(stage.index).unwrap_or(u16::MAX),
            begin,
            end: begin + nanos(stage.duration),
            seconds,
            from: stage.from,
            to: stage.to,
            area_before: area,
            area_after: area + (stage.from + stage.to) / 2.0 * seconds,
        };
        (begin, area) = (leg.end, leg.area_after);
        leg
    };
    scenario.stages.iter().map(place).collect()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

impl Leg {
    /// Returns the seconds from the begin of the leg until the area under it reaches `area`.
    ///
    /// This is the root of r t + a t² / 2 = k, in the form that neither cancels nor divides by a
    /// slope of zero. k6's `ramping_arrival_rate.go` computes the same time.
    fn reaches(&self, area: f64) -> f64 {
        if self.seconds == 0.0 {
            return 0.0;
        }
        let slope = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * slope * area).max(0.0).sqrt();
        let under = self.from + root;
        if under > 0.0 { (2.0 * area / under).min(self.seconds) } else { 0.0 }
    }
}

/// The iterations of an open scenario that one thread starts: every n-th of n threads.
#[derive(Clone, Debug)]
pub struct Arrivals {
    legs: Vec<Leg>,
    leg: usize,
    number: u64,
    number_max: u64,
    threads: u64,
    /// The area at which the first iteration is scheduled.
    first: f64,
}

impl Arrivals {
    /// Returns the iterations of `scenario` for thread `thread` of `threads`.
    ///
    /// Iteration n is scheduled when the area under the rate curve reaches n. A fraction at the end
    /// of a stage carries over to the next (k6: ramping-arrival-rate). A scenario with one constant
    /// stage begins with an iteration instead of ending with one (k6: constant-arrival-rate).
    pub fn new(scenario: &Scenario, thread: usize, threads: usize) -> Arrivals {
        let constant = matches!(scenario.stages.as_slice(), [one] if one.from == one.to);
        Arrivals {
            legs: legs(scenario),
            leg: 0,
            number: thread as u64 + 1,
            number_max: scenario.iterations_max.unwrap_or(u64::MAX),
            threads: threads as u64,
            first: if constant { 0.0 } else { 1.0 },
        }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let number = self.number;
        if number > self.number_max {
            return None;
        }
        let area = (number - 1) as f64 + self.first;
        // The end of a stage belongs to the stage, unless the scenario begins with an iteration.
        let reach = if self.first == 0.0 { -AREA_TOLERANCE } else { AREA_TOLERANCE };
        while area > self.legs.get(self.leg)?.area_after + reach {
            self.leg += 1;
        }
        let leg = &self.legs[self.leg];
        let after = leg.reaches((area - leg.area_before).max(0.0));
        self.number += self.threads;
        Some(Arrival { at: leg.begin + (after * 1e9).round() as u64, stage: leg.stage, number })
    }
}

/// A change in the number of active workers of a closed scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When the number changes.
    pub at: u64,
    /// Number of active workers from then on, over all threads.
    pub workers: usize,
}

/// The changes of a closed scenario in order of time. The last one is to 0 workers, at its end.
///
/// The number changes when the level reaches a whole number (k6: ramping-vus).
#[derive(Clone, Debug)]
pub struct Changes {
    legs: Vec<Leg>,
    leg: usize,
    entered: bool,
    workers: usize,
    ended: bool,
}

impl Changes {
    /// Returns the changes of `scenario`.
    pub fn new(scenario: &Scenario) -> Changes {
        Changes { legs: legs(scenario), leg: 0, entered: false, workers: 0, ended: false }
    }

    /// Returns the next change within the current leg.
    fn within(&mut self) -> Option<Change> {
        let leg = self.legs[self.leg];
        let base = leg.from.max(0.0).floor() as usize;
        if !self.entered {
            self.entered = true;
            if base != self.workers && leg.end > leg.begin {
                self.workers = base;
                return Some(Change { at: leg.begin, workers: base });
            }
        }
        let next = if leg.to > leg.from {
            self.workers.checked_add(1).filter(|&next| next as f64 <= leg.to)?
        } else if leg.to < leg.from {
            self.workers.checked_sub(1).filter(|&next| next as f64 >= leg.to)?
        } else {
            return None;
        };
        let share = (next as f64 - leg.from) / (leg.to - leg.from);
        let after = (share.clamp(0.0, 1.0) * (leg.end - leg.begin) as f64).round() as u64;
        self.workers = next;
        Some(Change { at: leg.begin + after, workers: next })
    }
}

impl Iterator for Changes {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        while self.leg < self.legs.len() {
            if self.legs[self.leg].end > self.legs[self.leg].begin
                && let Some(change) = self.within()
            {
                return Some(change);
            }
            self.leg += 1;
            self.entered = false;
        }
        if self.ended {
            return None;
        }
        self.ended = true;
        Some(Change { at: self.legs.last()?.end, workers: 0 })
    }
}

/// Finds the stage of a time, for times that do not decrease.
#[derive(Clone, Debug)]
pub struct StageClock {
    legs: Vec<Leg>,
    leg: usize,
}

impl StageClock {
    /// Starts with the first stage of `scenario`.
    pub fn new(scenario: &Scenario) -> StageClock {
        StageClock { legs: legs(scenario), leg: 0 }
    }

    /// Returns the index, over all stages of the plan, of the stage at this time. After the end it
    /// is the last one.
    pub fn at(&mut self, at: u64) -> u16 {
        while self.leg + 1 < self.legs.len() && self.legs[self.leg].end <= at {
            self.leg += 1;
        }
        self.legs.get(self.leg).map_or(0, |leg| leg.stage)
    }
}

/// Returns one of `parts` nearly equal parts of `whole`. They add up to it and differ by at most 1.
pub fn share(whole: usize, part: usize, parts: usize) -> usize {
    whole / parts + usize::from(part < whole % parts)
}
