//! The data of the screen, updated once a second. Its size depends on the plan, not on the length
//! of a run.

use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::record::{self, Class, Iterations, Times, Totals, times};
use lab_model::results::run::{HostSample, Second};
use lab_model::results::{TargetFacts, ThresholdOutcome};

use crate::run::Progress;

#[cfg(test)]
mod tests;

/// Maximum number of points of the chart. In a longer run a point covers several seconds.
const POINTS_MAX: usize = 600;

/// The data of the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) plan: Arc<Plan>,
    pub(super) target: TargetFacts,
    pub(super) at: Duration,
    pub(super) of: Duration,
    pub(super) second: Second,
    pub(super) rates: RateSeries,
    /// The totals, then each called method.
    pub(super) rows: Vec<Row>,
    /// Failed and limited calls by class, most frequent first.
    pub(super) classes: Vec<(Class, u64)>,
    /// Codes of JSON-RPC errors, most frequent first.
    pub(super) codes: Vec<(i64, u64)>,
    pub(super) iterations: Iterations,
    /// p99 of the scheduling delay over the run, in milliseconds.
    pub(super) lateness_p99_ms: f64,
    /// The last sample of each host.
    pub(super) hosts: Vec<HostSample>,
    pub(super) thresholds: Vec<ThresholdOutcome>,
    pub(super) over: Span,
    /// True if colours are used.
    pub(super) colour: bool,
    scratch: Times,
}

/// The period that the table's times cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    LastSecond,
    WholeRun,
}

/// Latency percentiles of one second or of the run, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) method: String,
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) limited: u64,
    /// Calls that ended in the last second.
    pub(super) calls_last: u64,
    /// Percentiles of the last second; none if there was no call.
    pub(super) last: Option<Percentiles>,
    pub(super) whole: Percentiles,
}

/// Planned and started iterations per second over the run so far.
#[derive(Clone, Debug)]
pub(super) struct RateSeries {
    seconds_per_point: u64,
    /// The incomplete point: sums of planned and started iterations, and the number of seconds.
    rest: (u64, u64, u64),
    /// Planned and started iterations per second.
    pub(super) points: Vec<(f64, f64)>,
}

impl State {
    /// Starts without data.
    pub(super) fn new(plan: Arc<Plan>, colour: bool) -> State {
        State {
            of: plan.duration(),
            plan,
            target: TargetFacts::default(),
            at: Duration::ZERO,
            second: Second::default(),
            rates: RateSeries::new(),
            rows: Vec::new(),
            classes: Vec::new(),
            codes: Vec::new(),
            iterations: Iterations::default(),
            lateness_p99_ms: 0.0,
            hosts: Vec::new(),
            thresholds: Vec::new(),
            over: Span::LastSecond,
            colour,
            scratch: times(),
        }
    }

    /// Adds a second.
    pub(super) fn update(&mut self, progress: &Progress<'_>) {
        self.target.clone_from(progress.target);
        self.at = progress.at;
        self.of = progress.of;
        self.second = progress.second.clone();
        self.rates.push(progress.second.due, progress.second.begun);
        self.rows = self.rows_of(progress);
        self.classes = Class::ALL
            .into_iter()
            .filter(|class| *class != Class::Ok)
            .map(|class| (class, progress.totals.count(|slot| slot.class == class)))
            .filter(|(_, count)| *count > 0)
            .collect();
        self.classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.codes = codes(progress.totals);
        self.iterations = Iterations::default();
        for stage in &progress.totals.iterations {
            self.iterations.add(*stage);
        }
        self.lateness_p99_ms = ms(progress.totals.lateness.value_at_quantile(0.99));
        for sample in progress.host {
            match self.hosts.iter_mut().find(|known| known.host == sample.host) {
                Some(known) => known.clone_from(sample),
                None => self.hosts.push(sample.clone()),
            }
        }
        self.thresholds = progress.thresholds.to_vec();
    }

    /// Returns the running stages with their remaining times.
    pub(super) fn stages(&self) -> Vec<(&Scenario, &Stage, Duration)> {
        let running = |scenario| Some((scenario, stage_at(scenario, self.at)?));
        let found = self.plan.scenarios.iter().filter_map(running);
        found.map(|(scenario, (stage, left))| (scenario, stage, left)).collect()
    }

    /// Returns true if a scenario is open. Only then can the run fall behind its plan.
    pub(super) fn is_open(&self) -> bool {
        self.plan.scenarios.iter().any(|scenario| matches!(scenario.model, Model::Open { .. }))
    }

    fn rows_of(&mut self, progress: &Progress<'_>) -> Vec<Row> {
        let mut rows = vec![];
        for (index, method) in self.plan.methods.iter().enumerate() {
            let wanted = |slot: lab_model::record::Slot| usize::from(slot.method) == index;
            let cells = progress.totals.cells.iter().filter(|(slot, _)| wanted(**slot));
            let (mut failed, mut limited) = (0, 0);
            self.scratch.reset();
            for (slot, cell) in cells {
                failed += if slot.class.failed() { cell.latency.len() } else { 0 };
                limited += if slot.class == Class::Limited { cell.latency.len() } else { 0 };
                record::add(&mut self.scratch, &cell.latency);
            }
            if self.scratch.is_empty() {
                continue;
            }
            let last = progress.second.methods.iter().find(|known| *known.method == **method);
            rows.push(Row {
                method: method.to_string(),
                calls: self.scratch.len(),
                failed,
                limited,
                calls_last: last.map_or(0, |last| last.classes.iter().map(|(_, n)| n).sum()),
                last: last.map(|last| Percentiles {
                    p50: last.p50_ms,
                    p95: last.p95_ms,
                    p99: last.p99_ms,
                    max: last.max_ms,
                }),
                whole: Percentiles::of(&self.scratch),
            });
        }
        if rows.len() > 1 {
            let whole = Percentiles::of(&progress.totals.latency(|_| true));
            rows.insert(0, Row::all(&rows, whole));
        }
        rows
    }
}

impl Row {
    /// Returns the totals. The percentiles of a second cannot be computed from the percentiles of
    /// its methods. Only the maximum is known.
    fn all(rows: &[Row], whole: Percentiles) -> Row {
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum();
        Row {
            method: "all".to_owned(),
            calls: sum(|row| row.calls),
            failed: sum(|row| row.failed),
            limited: sum(|row| row.limited),
            calls_last: sum(|row| row.calls_last),
            last: rows
                .iter()
                .filter_map(|row| row.last)
                .map(|last| last.max)
                .reduce(f64::max)
                .map(|max| Percentiles { max, ..Percentiles::NONE }),
            whole,
        }
    }
}

impl Percentiles {
    /// The percentiles of no calls.
    pub(super) const NONE: Percentiles =
        Percentiles { p50: f64::NAN, p95: f64::NAN, p99: f64::NAN, max: f64::NAN };

    fn of(times: &Times) -> Percentiles {
        let at = |quantile| ms(times.value_at_quantile(quantile));
        Percentiles { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: ms(times.max()) }
    }
}

impl RateSeries {
    fn new() -> RateSeries {
        RateSeries { seconds_per_point: 1, rest: (0, 0, 0), points: Vec::new() }
    }

    fn push(&mut self, planned: u64, started: u64) {
        let (rest_planned, rest_started, seconds) = self.rest;
        self.rest = (rest_planned + planned, rest_started + started, seconds + 1);
        if self.rest.2 < self.seconds_per_point {
            return;
        }
        let (planned, started, seconds) = std::mem::take(&mut self.rest);
        let per_second = |count: u64| count as f64 / seconds as f64;
        self.points.push((per_second(planned), per_second(started)));
        if self.points.len() == POINTS_MAX {
            let middle = |pair: &[(f64, f64)]| {
                let [left, right] = [pair[0], pair[1]];
                (f64::midpoint(left.0, right.0), f64::midpoint(left.1, right.1))
            };
            self.points = self.points.chunks_exact(2).map(middle).collect();
            self.seconds_per_point *= 2;
        }
    }

    /// Returns the number of seconds that the points cover.
    pub(super) fn seconds(&self) -> u64 {
        self.points.len() as u64 * self.seconds_per_point
    }
}

/// Returns the stage of a scenario at a time, with its remaining time.
pub(super) fn stage_at(scenario: &Scenario, at: Duration) -> Option<(&Stage, Duration)> {
    let mut end = scenario.start;
    if at < end {
        return None;
    }
    scenario.stages.iter().find_map(|stage| {
        end += stage.duration;
        (at < end).then(|| (stage, end - at))
    })
}

fn codes(totals: &Totals) -> Vec<(i64, u64)> {
    let mut by_code = std::collections::BTreeMap::<i64, u64>::new();
    for ((_, code), count) in &totals.codes {
        *by_code.entry(*code).or_default() += count;
    }
    let mut codes: Vec<_> = by_code.into_iter().collect();
    codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    codes
}

fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}
