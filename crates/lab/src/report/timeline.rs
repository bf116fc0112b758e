//! Aggregates the seconds of a run to at most a few hundred points for the charts.
//!
//! If a point covers several seconds, its rates are means and its times are maxima. The charts of a
//! long run therefore still show short spikes of the latency.

use lab_engine::aggregate::{self, share};
use lab_model::record::Class;
use lab_model::results::run::{MethodSecond, RunResult, Second};

/// Maximum number of points across a chart: one for every two pixels.
const POINTS_MAX: usize = 400;

/// A run in steps of equal length, with a point per step. A step covers one or more seconds.
pub(super) struct Timeline {
    /// Length of a step in seconds.
    pub(super) step: usize,
    /// Totals over all methods.
    pub(super) points: Vec<Point>,
    /// One series per called method, in the order of the result's methods.
    pub(super) methods: Vec<MethodSeries>,
}

/// Totals of one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    /// Start and end of the step, in seconds since the start of the run.
    pub(super) time: (f64, f64),
    /// Scheduled iterations per second.
    pub(super) scheduled: f64,
    /// Started iterations per second.
    pub(super) started: f64,
    /// Dropped iterations per second.
    pub(super) dropped: f64,
    /// Successful calls per second.
    pub(super) ok: f64,
    /// Failed calls per second.
    pub(super) failed: f64,
    /// Largest p99 of the scheduling delay in any second of the step, in milliseconds.
    pub(super) scheduling_delay_ms: f64,
    /// Share of time in which the generator's threads were busy, in the busiest second of the step.
    pub(super) busy: f64,
    /// Failed ÷ all calls.
    pub(super) failed_share: f64,
    /// HTTP 429 ÷ all calls.
    pub(super) limited_share: f64,
}

/// One method over time.
pub(super) struct MethodSeries {
    /// Name of the method.
    pub(super) method: String,
    /// A point per step; `None` for a step without calls of the method.
    pub(super) points: Vec<Option<MethodPoint>>,
}

/// One method in one step. Times are the maxima over the seconds of the step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MethodPoint {
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) p99_ms: f64,
    /// Failed ÷ all calls of the step.
    pub(super) failed_share: f64,
    /// HTTP 429 ÷ all calls of the step.
    pub(super) limited_share: f64,
}

impl Point {
    /// Returns the middle of the step's time.
    pub(super) fn middle(&self) -> f64 {
        f64::midpoint(self.time.0, self.time.1)
    }
}

/// Aggregates the seconds of a result.
pub(super) fn build_timeline(result: &RunResult) -> Timeline {
    let points_per_step = result.series.len().div_ceil(POINTS_MAX).max(1);
    // In the series of a long run, a point already covers several seconds.
    let seconds_per_point = aggregate::point_seconds(&result.series);
    let steps: Vec<&[Second]> = result.series.chunks(points_per_step).collect();
    let methods = result.methods.iter().filter(|row| row.calls > 0);
    let methods = methods.map(|row| MethodSeries {
        method: row.method.clone(),
        points: steps.iter().map(|step| method_point(step, &row.method)).collect(),
    });
    Timeline {
        step: points_per_step * seconds_per_point as usize,
        methods: methods.filter(|method| method.points.iter().any(Option::is_some)).collect(),
        points: steps.iter().map(|step| point(step, seconds_per_point)).collect(),
    }
}

/// Aggregates the totals of the seconds of a step.
fn point(step: &[Second], seconds_per_point: f64) -> Point {
    let calls = |is_counted: fn(Class) -> bool| -> u64 {
        step.iter().map(|second| second.count(is_counted)).sum()
    };
    let (total, failed) = (calls(|_| true), calls(Class::is_failure));
    let step_seconds = step.len() as f64 * seconds_per_point;
    let rate =
        |value_of: fn(&Second) -> u64| step.iter().map(value_of).sum::<u64>() as f64 / step_seconds;
    let maximum = |value_of: fn(&Second) -> f64| step.iter().map(value_of).fold(0.0, f64::max);
    let (first_end, last_end) =
        (step.first().map_or(0.0, |s| s.at), step.last().map_or(0.0, |s| s.at));
    Point {
        time: ((first_end - seconds_per_point).max(0.0), last_end),
        scheduled: rate(|second| second.scheduled),
        started: rate(|second| second.started),
        dropped: rate(|second| second.dropped),
        ok: calls(|class| class == Class::Ok) as f64 / step_seconds,
        failed: failed as f64 / step_seconds,
        scheduling_delay_ms: maximum(|second| second.scheduling_delay_p99_ms),
        busy: maximum(|second| second.generator_busy),
        failed_share: share(failed, total),
        limited_share: share(calls(|class| class == Class::Limited), total),
    }
}

/// Aggregates one method in the seconds of a step. Returns `None` if the method was not called in
/// the step.
fn method_point(step: &[Second], method: &str) -> Option<MethodPoint> {
    let seconds = || {
        let all_methods = step.iter().flat_map(|second| &second.methods);
        all_methods.filter(|second| second.method == method)
    };
    let calls = |is_counted: fn(Class) -> bool| -> u64 {
        seconds().map(|second| second.count(is_counted)).sum()
    };
    let maximum = |value_of: fn(&MethodSecond) -> f64| seconds().map(value_of).fold(0.0, f64::max);
    let total = calls(|_| true);
    (total > 0).then(|| MethodPoint {
        p50_ms: maximum(|second| second.p50_ms),
        p95_ms: maximum(|second| second.p95_ms),
        p99_ms: maximum(|second| second.p99_ms),
        failed_share: share(calls(Class::is_failure), total),
        limited_share: share(calls(|class| class == Class::Limited), total),
    })
}
