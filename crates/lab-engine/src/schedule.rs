//! Computes the start times of the iterations of an open scenario, and the number of active workers
//! of a closed scenario over time. A worker (k6: VU) runs one iteration at a time.
//!
//! The start time of iteration n is computed from n alone, not from the previous time. So no
//! rounding error accumulates, and the ten-millionth time is as exact as the first. The rate curve
//! of an open scenario is its rate in iterations per second over time. The area under the curve up
//! to a time is the number of iterations until then. Times of type `u64` are nanoseconds since the
//! start of the run. `crates/lab-engine/src/engine/thread/pace.rs` starts iterations at these
//! times.

use std::time::Duration;

use lab_model::plan::{Scenario, Stage};

#[cfg(test)]
mod tests;

/// Rounding tolerance of areas under the rate curve, in iterations. Up to 10^9 iterations, rounding
/// errors of `f64` are much smaller.
const AREA_TOLERANCE: f64 = 1e-6;

/// A scheduled iteration of an open scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The scheduled time of the iteration, in nanoseconds since the start of the run.
    pub at: u64,
    /// Index of the stage among all stages of the plan.
    pub stage: u16,
    /// Number of the iteration in its scenario, counted from 1 over all threads.
    pub number: u64,
}

/// A stage with its times and areas under the rate curve.
#[derive(Clone, Copy, Debug)]
struct TimedStage {
    /// Index of the stage among all stages of the plan.
    stage: u16,
    start: u64,
    end: u64,
    /// Length of the stage in seconds.
    seconds: f64,
    /// Level at the start of the stage: iterations per second in an open scenario, number of
    /// workers in a closed one.
    from: f64,
    /// Level at the end of the stage. Within the stage the level changes linearly.
    to: f64,
    /// Area under the rate curve before the stage, in iterations.
    area_before: f64,
    /// Area under the rate curve up to the end of the stage, in iterations.
    area_after: f64,
}

/// Computes the times and areas of a scenario's stages, which follow one another.
fn compute_timed_stages(scenario: &Scenario) -> Vec<TimedStage> {
    let (mut start, mut area) = (nanos(scenario.start), 0.0);
    let add_times = |stage: &Stage| {
        let seconds = stage.duration.as_secs_f64();
        let timed = TimedStage {
            stage: u16::try_from(stage.index).unwrap_or(u16::MAX),
            start,
            end: start + nanos(stage.duration),
            seconds,
            from: stage.from,
            to: stage.to,
            area_before: area,
            area_after: area + (stage.from + stage.to) / 2.0 * seconds,
        };
        (start, area) = (timed.end, timed.area_after);
        timed
    };
    scenario.stages.iter().map(add_times).collect()
}

/// Returns the nanoseconds of `time`. If they do not fit into a `u64`, returns half of its maximum,
/// so that the sum of two times does not overflow.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

impl TimedStage {
    /// Returns the seconds from the start of the stage until the area under its rate curve reaches
    /// `area`.
    ///
    /// Solves `from * t + slope * t² / 2 = area` for t. The solution `2 * area / (from + root)`
    /// also works for a slope of zero, and does not subtract nearly equal numbers. k6's
    /// `ramping_arrival_rate.go` computes the same time.
    fn seconds_until(&self, area: f64) -> f64 {
        if self.seconds == 0.0 {
            return 0.0;
        }
        let slope = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * slope * area).max(0.0).sqrt();
        let denominator = self.from + root;
        if denominator > 0.0 { (2.0 * area / denominator).min(self.seconds) } else { 0.0 }
    }
}

/// An iterator over the iterations that one thread starts in an open scenario. With n threads, each
/// thread starts every n-th iteration.
#[derive(Clone, Debug)]
pub struct Arrivals {
    timed_stages: Vec<TimedStage>,
    /// Index of the current stage in `timed_stages`.
    current: usize,
    /// Number of the next iteration.
    number: u64,
    /// Number of the last iteration; `u64::MAX` without a limit.
    number_max: u64,
    /// Number of threads that start iterations of the scenario.
    threads: u64,
    /// The area at which iteration 1 is scheduled: 0 or 1.
    first_area: f64,
}

impl Arrivals {
    /// Creates the iterator of the thread with index `thread` of `threads`.
    ///
    /// Iteration n is scheduled when the area under the rate curve reaches n. A fraction of an
    /// iteration at the end of a stage carries over to the next stage (k6: ramping-arrival-rate). A
    /// scenario with a single stage of constant rate starts iteration 1 at once. So its iteration n
    /// is scheduled at area n - 1 (k6: constant-arrival-rate).
    pub fn new(scenario: &Scenario, thread: usize, threads: usize) -> Arrivals {
        let is_constant = matches!(scenario.stages.as_slice(), [stage] if stage.from == stage.to);
        Arrivals {
            timed_stages: compute_timed_stages(scenario),
            current: 0,
            number: thread as u64 + 1,
            number_max: scenario.iterations_max.unwrap_or(u64::MAX),
            threads: threads as u64,
            first_area: if is_constant { 0.0 } else { 1.0 },
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
        let area = (number - 1) as f64 + self.first_area;
        // An iteration exactly at the end of a stage belongs to that stage. In a scenario of
        // constant rate, an iteration exactly at the end would be one too many.
        let tolerance = if self.first_area == 0.0 { -AREA_TOLERANCE } else { AREA_TOLERANCE };
        while area > self.timed_stages.get(self.current)?.area_after + tolerance {
            self.current += 1;
        }
        let stage = &self.timed_stages[self.current];
        let seconds = stage.seconds_until((area - stage.area_before).max(0.0));
        self.number += self.threads;
        let at = stage.start + (seconds * 1e9).round() as u64;
        Some(Arrival { at, stage: stage.stage, number })
    }
}

/// A change in the number of active workers of a closed scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change, in nanoseconds since the start of the run.
    pub at: u64,
    /// Number of active workers after the change, over all threads.
    pub workers: usize,
}

/// An iterator over the changes of a closed scenario, in order of time. The last change sets the
/// number of workers to 0 at the end of the scenario.
///
/// Within a stage the level, which is the planned number of workers, changes linearly. The number
/// of active workers changes when the level reaches a whole number (k6: ramping-vus).
#[derive(Clone, Debug)]
pub struct Changes {
    timed_stages: Vec<TimedStage>,
    /// Index of the current stage in `timed_stages`.
    current: usize,
    /// True once the change at the start of the current stage was handled.
    entered: bool,
    /// Number of active workers after the last change.
    workers: usize,
    /// True once the change at the end of the scenario was returned.
    ended: bool,
}

impl Changes {
    /// Creates the iterator over the changes of `scenario`.
    pub fn new(scenario: &Scenario) -> Changes {
        Changes {
            timed_stages: compute_timed_stages(scenario),
            current: 0,
            entered: false,
            workers: 0,
            ended: false,
        }
    }

    /// Returns the next change within the current stage, or `None` if the stage has no further
    /// change.
    fn next_in_stage(&mut self) -> Option<Change> {
        let stage = self.timed_stages[self.current];
        let start_workers = stage.from.max(0.0).floor() as usize;
        if !self.entered {
            self.entered = true;
            if start_workers != self.workers && stage.end > stage.start {
                self.workers = start_workers;
                return Some(Change { at: stage.start, workers: start_workers });
            }
        }
        let workers = if stage.to > stage.from {
            self.workers.checked_add(1).filter(|&workers| workers as f64 <= stage.to)?
        } else if stage.to < stage.from {
            self.workers.checked_sub(1).filter(|&workers| workers as f64 >= stage.to)?
        } else {
            return None;
        };
        let fraction = (workers as f64 - stage.from) / (stage.to - stage.from);
        let duration_ns = (stage.end - stage.start) as f64;
        let elapsed_ns = (fraction.clamp(0.0, 1.0) * duration_ns).round() as u64;
        self.workers = workers;
        Some(Change { at: stage.start + elapsed_ns, workers })
    }
}

impl Iterator for Changes {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        while self.current < self.timed_stages.len() {
            let stage = self.timed_stages[self.current];
            if stage.end > stage.start
                && let Some(change) = self.next_in_stage()
            {
                return Some(change);
            }
            self.current += 1;
            self.entered = false;
        }
        if self.ended {
            return None;
        }
        self.ended = true;
        Some(Change { at: self.timed_stages.last()?.end, workers: 0 })
    }
}

/// Finds the stage at a time. Times must not decrease from call to call.
#[derive(Clone, Debug)]
pub struct StageClock {
    timed_stages: Vec<TimedStage>,
    /// Index of the current stage in `timed_stages`.
    current: usize,
}

impl StageClock {
    /// Starts with the first stage of `scenario`.
    pub fn new(scenario: &Scenario) -> StageClock {
        StageClock { timed_stages: compute_timed_stages(scenario), current: 0 }
    }

    /// Returns the index of the stage at this time, among all stages of the plan. After the end of
    /// the scenario, returns the index of the scenario's last stage.
    pub fn stage_at(&mut self, time: u64) -> u16 {
        while self.current + 1 < self.timed_stages.len()
            && self.timed_stages[self.current].end <= time
        {
            self.current += 1;
        }
        self.timed_stages.get(self.current).map_or(0, |stage| stage.stage)
    }
}

/// Divides `total` into `parts` nearly equal parts, and returns the part with this index. The parts
/// add up to `total` and differ by at most 1.
pub fn share(total: usize, index: usize, parts: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}
