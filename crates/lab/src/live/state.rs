//! The data of the full screen, updated once a second. Its size depends on the plan, not on the
//! length of a run.

use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::record::{self, Class, Iterations, Times, Totals, empty_times};
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
    /// Time since the start of the run.
    pub(super) elapsed: Duration,
    /// Duration of the plan.
    pub(super) duration: Duration,
    /// The last second.
    pub(super) second: Second,
    pub(super) rates: RateSeries,
    /// Rows of the table: one per called method. If there are several methods, the first row has
    /// their totals.
    pub(super) rows: Vec<MethodRow>,
    /// Classes of calls without success with their counts, most frequent first.
    pub(super) classes: Vec<(Class, u64)>,
    /// Codes of JSON-RPC errors with their counts, most frequent first.
    pub(super) codes: Vec<(i64, u64)>,
    /// Iterations of the run so far.
    pub(super) iterations: Iterations,
    /// p99 of the scheduling delay over the run, in milliseconds.
    pub(super) scheduling_delay_p99_ms: f64,
    /// The last sample of each host, such as the generator's and the target's.
    pub(super) hosts: Vec<HostSample>,
    pub(super) thresholds: Vec<ThresholdOutcome>,
    /// The period of the table's latencies on a narrow screen. A wide screen shows both periods.
    pub(super) table_period: TimePeriod,
    /// True if colours are used.
    pub(super) colour: bool,
    /// A histogram that [`State::build_rows`] reuses, so that no histogram is allocated per second.
    scratch: Times,
}

/// The period that latencies in the table cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimePeriod {
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

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MethodRow {
    pub(super) method: String,
    /// Number of calls since the start of the run.
    pub(super) calls: u64,
    /// Number of failed calls.
    pub(super) failed: u64,
    /// Number of calls with HTTP status 429, which are not failures.
    pub(super) limited: u64,
    /// Number of calls that ended in the last second.
    pub(super) calls_last: u64,
    /// Percentiles of the last second; `None` if no call ended in it.
    pub(super) last_second: Option<Percentiles>,
    /// Percentiles since the start of the run.
    pub(super) whole_run: Percentiles,
}

/// Planned and started iterations per second over the run so far, in points of equal length.
#[derive(Clone, Debug)]
pub(super) struct RateSeries {
    /// Length of a point. It doubles each time the number of points reaches [`POINTS_MAX`].
    seconds_per_point: u64,
    /// Sums over the seconds since the last point.
    incomplete: IncompletePoint,
    pub(super) points: Vec<Rates>,
}

/// Iterations per second over the seconds of one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) planned: f64,
    pub(super) started: f64,
}

/// Sums over the seconds that belong to the next point.
#[derive(Clone, Debug, Default)]
struct IncompletePoint {
    planned: u64,
    started: u64,
    seconds: u64,
}

impl State {
    /// Creates the state of a run that has not started.
    pub(super) fn new(plan: Arc<Plan>, colour: bool) -> State {
        State {
            duration: plan.duration(),
            plan,
            target: TargetFacts::default(),
            elapsed: Duration::ZERO,
            second: Second::default(),
            rates: RateSeries::new(),
            rows: Vec::new(),
            classes: Vec::new(),
            codes: Vec::new(),
            iterations: Iterations::default(),
            scheduling_delay_p99_ms: 0.0,
            hosts: Vec::new(),
            thresholds: Vec::new(),
            table_period: TimePeriod::LastSecond,
            colour,
            scratch: empty_times(),
        }
    }

    /// Updates the state at the end of a second.
    pub(super) fn update(&mut self, progress: &Progress<'_>) {
        self.target.clone_from(progress.target);
        self.elapsed = progress.elapsed;
        self.duration = progress.duration;
        self.second = progress.second.clone();
        self.rates.push(progress.second.scheduled, progress.second.started);
        self.rows = self.build_rows(progress);
        self.classes = Class::ALL
            .into_iter()
            .filter(|class| *class != Class::Ok)
            .map(|class| (class, progress.totals.count(|slot| slot.class == class)))
            .filter(|(_, count)| *count > 0)
            .collect();
        self.classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.codes = count_codes(progress.totals);
        self.iterations = Iterations::default();
        for stage in &progress.totals.iterations {
            self.iterations.add(*stage);
        }
        self.scheduling_delay_p99_ms =
            to_ms(progress.totals.scheduling_delay.value_at_quantile(0.99));
        for sample in progress.host {
            match self.hosts.iter_mut().find(|last| last.host == sample.host) {
                Some(last) => last.clone_from(sample),
                None => self.hosts.push(sample.clone()),
            }
        }
        self.thresholds = progress.thresholds.to_vec();
    }

    /// Returns the running stages with their remaining times.
    pub(super) fn stages(&self) -> Vec<(&Scenario, &Stage, Duration)> {
        let running_stage = |scenario| {
            let (stage, remaining) = stage_at(scenario, self.elapsed)?;
            Some((scenario, stage, remaining))
        };
        self.plan.scenarios.iter().filter_map(running_stage).collect()
    }

    /// Returns true if a scenario has the open model. Only such a scenario can fall behind its
    /// plan.
    pub(super) fn is_open(&self) -> bool {
        self.plan.scenarios.iter().any(|scenario| scenario.model == Model::Open)
    }

    /// Returns the rows of the table. The totals have one cell for each combination of stage,
    /// method and class of result. A cell has the histograms of its calls.
    fn build_rows(&mut self, progress: &Progress<'_>) -> Vec<MethodRow> {
        let mut rows = vec![];
        for (index, method) in self.plan.methods.iter().enumerate() {
            let is_method = |slot: lab_model::record::Slot| usize::from(slot.method) == index;
            let cells = progress.totals.cells.iter().filter(|(slot, _)| is_method(**slot));
            let (mut failed, mut limited) = (0, 0);
            self.scratch.reset();
            for (slot, cell) in cells {
                failed += if slot.class.is_failure() { cell.latency.len() } else { 0 };
                limited += if slot.class == Class::Limited { cell.latency.len() } else { 0 };
                record::add_times(&mut self.scratch, &cell.latency);
            }
            if self.scratch.is_empty() {
                continue;
            }
            let method_second =
                progress.second.methods.iter().find(|second| *second.method == **method);
            rows.push(MethodRow {
                method: method.to_string(),
                calls: self.scratch.len(),
                failed,
                limited,
                calls_last: method_second.map_or(0, |method_second| method_second.count(|_| true)),
                last_second: method_second.map(|method_second| Percentiles {
                    p50: method_second.p50_ms,
                    p95: method_second.p95_ms,
                    p99: method_second.p99_ms,
                    max: method_second.max_ms,
                }),
                whole_run: Percentiles::of(&self.scratch),
            });
        }
        if rows.len() > 1 {
            let whole_run = Percentiles::of(&progress.totals.latency(|_| true));
            rows.insert(0, MethodRow::totals(&rows, whole_run));
        }
        rows
    }
}

impl MethodRow {
    /// Returns the totals of the methods. The percentiles of the last second are unknown, because
    /// they cannot be computed from percentiles of single methods. Only the maximum of the last
    /// second is known.
    fn totals(rows: &[MethodRow], whole_run: Percentiles) -> MethodRow {
        let sum = |count_of: fn(&MethodRow) -> u64| rows.iter().map(count_of).sum();
        MethodRow {
            method: "all".to_owned(),
            calls: sum(|row| row.calls),
            failed: sum(|row| row.failed),
            limited: sum(|row| row.limited),
            calls_last: sum(|row| row.calls_last),
            last_second: rows
                .iter()
                .filter_map(|row| row.last_second)
                .map(|last| last.max)
                .reduce(f64::max)
                .map(|max| Percentiles { max, ..Percentiles::NONE }),
            whole_run,
        }
    }
}

impl Percentiles {
    /// The percentiles of an empty set of calls.
    pub(super) const NONE: Percentiles =
        Percentiles { p50: f64::NAN, p95: f64::NAN, p99: f64::NAN, max: f64::NAN };

    fn of(times: &Times) -> Percentiles {
        let quantile_ms = |quantile| to_ms(times.value_at_quantile(quantile));
        Percentiles {
            p50: quantile_ms(0.5),
            p95: quantile_ms(0.95),
            p99: quantile_ms(0.99),
            max: to_ms(times.max()),
        }
    }
}

impl RateSeries {
    fn new() -> RateSeries {
        RateSeries {
            seconds_per_point: 1,
            incomplete: IncompletePoint::default(),
            points: Vec::new(),
        }
    }

    /// Adds a second. Merges pairs of points when there are too many.
    fn push(&mut self, planned: u64, started: u64) {
        self.incomplete.planned += planned;
        self.incomplete.started += started;
        self.incomplete.seconds += 1;
        if self.incomplete.seconds < self.seconds_per_point {
            return;
        }
        let IncompletePoint { planned, started, seconds } = std::mem::take(&mut self.incomplete);
        let per_second = |count: u64| count as f64 / seconds as f64;
        self.points.push(Rates { planned: per_second(planned), started: per_second(started) });
        if self.points.len() == POINTS_MAX {
            let mean = |pair: &[Rates]| Rates {
                planned: f64::midpoint(pair[0].planned, pair[1].planned),
                started: f64::midpoint(pair[0].started, pair[1].started),
            };
            self.points = self.points.chunks_exact(2).map(mean).collect();
            self.seconds_per_point *= 2;
        }
    }

    /// Returns the number of seconds that the points cover.
    pub(super) fn seconds(&self) -> u64 {
        self.points.len() as u64 * self.seconds_per_point
    }
}

/// Returns the stage of a scenario at a time since the start of the run, with the remaining time of
/// the stage. `None` before the first stage and after the last.
pub(super) fn stage_at(scenario: &Scenario, at: Duration) -> Option<(&Stage, Duration)> {
    let mut stage_end = scenario.start;
    if at < stage_end {
        return None;
    }
    scenario.stages.iter().find_map(|stage| {
        stage_end += stage.duration;
        (at < stage_end).then(|| (stage, stage_end - at))
    })
}

/// Counts the codes of JSON-RPC errors over all methods, most frequent first.
fn count_codes(totals: &Totals) -> Vec<(i64, u64)> {
    let mut by_code = std::collections::BTreeMap::<i64, u64>::new();
    for ((_, code), count) in &totals.codes {
        *by_code.entry(*code).or_default() += count;
    }
    let mut codes: Vec<_> = by_code.into_iter().collect();
    codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    codes
}

fn to_ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}
