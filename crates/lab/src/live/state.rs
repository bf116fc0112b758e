//! What the screen shows, brought up to date once a second. It keeps what drawing needs and no
//! histogram: its size depends on the plan, not on how long a run lasts.

use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::record::{self, Class, Iterations, Times, Totals, times};
use lab_model::results::run::{HostSample, Second};
use lab_model::results::{TargetFacts, ThresholdOutcome};

use crate::run::Progress;

#[cfg(test)]
mod tests;

/// Points of the course that are kept; a longer run has more seconds to a point.
const POINTS_MAX: usize = 600;

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct State {
    pub(super) plan: Arc<Plan>,
    pub(super) target: TargetFacts,
    pub(super) at: Duration,
    pub(super) of: Duration,
    pub(super) second: Second,
    pub(super) course: Course,
    /// All calls, then each method that was called.
    pub(super) rows: Vec<Row>,
    /// Failed and limited calls by class, as many as there are.
    pub(super) classes: Vec<(Class, u64)>,
    /// Codes of JSON-RPC errors, most frequent first.
    pub(super) codes: Vec<(i64, u64)>,
    pub(super) iterations: Iterations,
    /// 99th percentile of lateness over the run, in milliseconds.
    pub(super) lateness_p99_ms: f64,
    /// The last sample of each host.
    pub(super) hosts: Vec<HostSample>,
    pub(super) thresholds: Vec<ThresholdOutcome>,
    pub(super) over: Span,
    /// Whether colours are used.
    pub(super) colour: bool,
    scratch: Times,
}

/// Over what the table's times are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    LastSecond,
    WholeRun,
}

/// Times of one second or of the run, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
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
    /// None if there was no call in the last second.
    pub(super) last: Option<Spread>,
    pub(super) whole: Spread,
}

/// Planned and begun iterations per second over the whole run so far.
#[derive(Clone, Debug)]
pub(super) struct Course {
    seconds_per_point: u64,
    /// Sums of what is not yet a point, and of how many seconds.
    rest: (u64, u64, u64),
    /// Planned and begun, per second.
    pub(super) points: Vec<(f64, f64)>,
}

impl State {
    /// Nothing seen yet.
    pub(super) fn new(plan: Arc<Plan>, colour: bool) -> State {
        State {
            of: plan.duration(),
            plan,
            target: TargetFacts::default(),
            at: Duration::ZERO,
            second: Second::default(),
            course: Course::new(),
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

    /// Takes what is known at the end of a second.
    pub(super) fn take(&mut self, seen: &Progress<'_>) {
        self.target.clone_from(seen.target);
        self.at = seen.at;
        self.of = seen.of;
        self.second = seen.second.clone();
        self.course.push(seen.second.due, seen.second.begun);
        self.rows = self.rows_of(seen);
        self.classes = Class::ALL
            .into_iter()
            .filter(|class| *class != Class::Ok)
            .map(|class| (class, seen.totals.count(|slot| slot.class == class)))
            .filter(|(_, count)| *count > 0)
            .collect();
        self.classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.codes = codes(seen.totals);
        self.iterations = Iterations::default();
        for stage in &seen.totals.iterations {
            self.iterations.add(*stage);
        }
        self.lateness_p99_ms = ms(seen.totals.lateness.value_at_quantile(0.99));
        for sample in seen.host {
            match self.hosts.iter_mut().find(|known| known.host == sample.host) {
                Some(known) => known.clone_from(sample),
                None => self.hosts.push(sample.clone()),
            }
        }
        self.thresholds = seen.thresholds.to_vec();
    }

    /// The stages that are under way, with the time that each has left.
    pub(super) fn stages(&self) -> Vec<(&Scenario, &Stage, Duration)> {
        let running = |scenario| Some((scenario, under_way(scenario, self.at)?));
        let found = self.plan.scenarios.iter().filter_map(running);
        found.map(|(scenario, (stage, left))| (scenario, stage, left)).collect()
    }

    /// Whether any iterations come by the clock, so that there is a plan to fall behind.
    pub(super) fn is_open(&self) -> bool {
        self.plan.scenarios.iter().any(|scenario| matches!(scenario.model, Model::Open { .. }))
    }

    fn rows_of(&mut self, seen: &Progress<'_>) -> Vec<Row> {
        let mut rows = vec![];
        for (index, method) in self.plan.methods.iter().enumerate() {
            let wanted = |slot: lab_model::record::Slot| usize::from(slot.method) == index;
            let cells = seen.totals.cells.iter().filter(|(slot, _)| wanted(**slot));
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
            let last = seen.second.methods.iter().find(|known| *known.method == **method);
            rows.push(Row {
                method: method.to_string(),
                calls: self.scratch.len(),
                failed,
                limited,
                calls_last: last.map_or(0, |last| last.classes.iter().map(|(_, n)| n).sum()),
                last: last.map(|last| Spread {
                    p50: last.p50_ms,
                    p95: last.p95_ms,
                    p99: last.p99_ms,
                    max: last.max_ms,
                }),
                whole: Spread::of(&self.scratch),
            });
        }
        if rows.len() > 1 {
            let whole = Spread::of(&seen.totals.latency(|_| true));
            rows.insert(0, Row::all(&rows, whole));
        }
        rows
    }
}

impl Row {
    /// All methods together. Quantiles of a second cannot be had from those of its methods, so that
    /// only its largest time is known.
    fn all(rows: &[Row], whole: Spread) -> Row {
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
                .map(|spread| spread.max)
                .reduce(f64::max)
                .map(|max| Spread { max, ..Spread::NONE }),
            whole,
        }
    }
}

impl Spread {
    /// No call.
    pub(super) const NONE: Spread =
        Spread { p50: f64::NAN, p95: f64::NAN, p99: f64::NAN, max: f64::NAN };

    fn of(times: &Times) -> Spread {
        let at = |quantile| ms(times.value_at_quantile(quantile));
        Spread { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: ms(times.max()) }
    }
}

impl Course {
    fn new() -> Course {
        Course { seconds_per_point: 1, rest: (0, 0, 0), points: Vec::new() }
    }

    fn push(&mut self, due: u64, begun: u64) {
        let (rest_due, rest_begun, seconds) = self.rest;
        self.rest = (rest_due + due, rest_begun + begun, seconds + 1);
        if self.rest.2 < self.seconds_per_point {
            return;
        }
        let (due, begun, seconds) = std::mem::take(&mut self.rest);
        let per_second = |count: u64| count as f64 / seconds as f64;
        self.points.push((per_second(due), per_second(begun)));
        if self.points.len() == POINTS_MAX {
            let middle = |pair: &[(f64, f64)]| {
                let [left, right] = [pair[0], pair[1]];
                (f64::midpoint(left.0, right.0), f64::midpoint(left.1, right.1))
            };
            self.points = self.points.chunks_exact(2).map(middle).collect();
            self.seconds_per_point *= 2;
        }
    }

    /// Seconds that the points stand for.
    pub(super) fn seconds(&self) -> u64 {
        self.points.len() as u64 * self.seconds_per_point
    }
}

/// The stage of a scenario in which `at` lies, and how long it still lasts.
pub(super) fn under_way(scenario: &Scenario, at: Duration) -> Option<(&Stage, Duration)> {
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
