//! Adds up the counts of all engine threads: for each second of the run, and for the whole run.
//! Each thread hands over its counts once per second, as an [`Interval`].
//!
//! A second is open until all threads have passed its end, or until too many seconds are open. Then
//! it is closed. The series is the list of points, one per second, that the result publishes. A
//! class is the way in which a call ended, such as `ok` or `timeout`. A slot is a combination of
//! stage, method and class, and a cell has the latencies of the calls of one slot.
//!
//! The recorder reads no clock, because each interval contains its start and its end. The
//! recorder's memory does not grow with the length of a run: histograms have a fixed size, and the
//! series merges neighbouring points when it has more than [`SERIES_MAX`].

use std::collections::VecDeque;
use std::time::Duration;

use lab_model::plan::Plan;
use lab_model::record::{self, Class, Interval, Times, Totals, empty_times};
use lab_model::results::run::{MethodSecond, Second};

use crate::aggregate;

#[cfg(test)]
mod tests;

/// Maximum number of points of the series: two hours with one point per second, four hours with one
/// point per two seconds, and so on.
pub const SERIES_MAX: usize = 7_200;
/// Minimum thread time of a second, in seconds. The thread time is the sum of the lengths of all
/// threads' intervals in the second. The busy share of a second is the share of its thread time in
/// which the threads were not idle. Below the minimum, the busy share is 0: the last second of a
/// run can be as short as a microsecond, which is too short for a share.
const BUSY_SECONDS_MIN: f64 = 0.1;
/// A thread has completed a second if its last interval ends after the second, or at most this long
/// before the end of the second.
const HAND_OVER_SLACK: Duration = Duration::from_millis(50);
/// Maximum number of seconds that stay open and wait for slow threads. An interval that arrives
/// after its second was closed counts in the oldest open second.
const OPEN_SECONDS_MAX: usize = 4;

/// Merges a run's intervals.
#[derive(Debug)]
pub struct Recorder {
    /// Names of the plan's methods.
    methods: Vec<Box<str>>,
    /// Number of stages of the plan.
    stages: usize,
    warmup: Duration,
    /// For each thread: the end of its last interval.
    thread_ends: Vec<Duration>,
    /// Open seconds without gaps, oldest first.
    open: VecDeque<OpenSecond>,
    /// Index of the oldest second that was not closed yet, counted from 0. The first entry of
    /// `open` is this second.
    oldest_second: u64,
    /// Empty totals for reuse, one or two megabytes each. They are allocated at the start, so that
    /// memory hardly grows if threads are slow.
    spare: VecDeque<Totals>,
    /// Totals of all closed seconds.
    total: Totals,
    /// The totals at the end of the warm-up. `None` during the warm-up, and without a warm-up.
    at_warmup_end: Option<Totals>,
    series: Series,
    /// Inclusion times of the transactions that were included since the last closed second. An
    /// inclusion time is the time from a transaction's scheduled send until it was found in a
    /// block.
    inclusion_times: Times,
    /// Number of transactions that were included since the last closed second.
    included: u64,
}

/// A closed second.
#[derive(Debug)]
pub struct ClosedSecond {
    /// Start of the second, since the start of the run.
    pub from: Duration,
    /// End of the second, since the start of the run.
    pub to: Duration,
    /// The published form of the second.
    pub second: Second,
    /// The counts of the second.
    pub counts: Totals,
    /// True if the second began after the warm-up.
    pub is_measured: bool,
}

/// The counts of a whole run.
#[derive(Debug)]
pub struct RunCounts {
    /// Totals, warm-up included.
    pub total: Totals,
    /// Totals without the warm-up.
    pub measured: Totals,
    /// One point per second, or per several seconds in long runs.
    pub series: Vec<Second>,
}

/// A second that is not complete yet.
#[derive(Debug)]
struct OpenSecond {
    counts: Totals,
    /// Latest end of an interval in this second, since the start of the run.
    to: Duration,
    /// Sum of the lengths of all intervals in this second.
    thread_time: Duration,
    /// Number of calls in flight at the end, over all threads.
    in_flight: u64,
    /// Number of workers that run an iteration at the end, over all threads.
    workers_busy: u64,
    /// Number of queued iterations at the end, over all threads.
    waiting: u64,
    /// Longest part of a thread's gap that is within the second.
    gap: Duration,
}

impl Recorder {
    /// Creates an empty recorder.
    pub fn new(plan: &Plan) -> Recorder {
        let stages = plan.stages().count();
        Recorder {
            methods: plan.methods.clone(),
            stages,
            warmup: plan.warmup,
            thread_ends: vec![Duration::ZERO; plan.threads.max(1)],
            open: VecDeque::new(),
            oldest_second: 0,
            spare: (0..OPEN_SECONDS_MAX).map(|_| Totals::new(stages)).collect(),
            total: Totals::new(stages),
            at_warmup_end: None,
            series: Series::default(),
            inclusion_times: empty_times(),
            included: 0,
        }
    }

    /// Adds a thread's interval to the second that contains the middle of the interval. The end of
    /// the interval can be in the next second, because a thread hands over its interval slightly
    /// late.
    pub fn add(&mut self, interval: &Interval) {
        let second = ((interval.from + interval.to) / 2).as_secs();
        let index =
            usize::try_from(second.saturating_sub(self.oldest_second)).unwrap_or(usize::MAX);
        // The limit bounds the memory if the caller does not close seconds.
        let index = index.min(OPEN_SECONDS_MAX * 2);
        self.open_up_to(index);
        if let Some((from, to)) = interval.longest_gap {
            self.add_gap(from, to);
        }
        let open = &mut self.open[index];
        open.counts.merge(interval);
        open.to = open.to.max(interval.to);
        open.thread_time += interval.to.saturating_sub(interval.from);
        open.in_flight += interval.in_flight;
        open.workers_busy += interval.workers_busy;
        open.waiting += interval.waiting;
        if let Some(thread_end) = self.thread_ends.get_mut(interval.thread) {
            *thread_end = interval.to.max(*thread_end);
        }
    }

    /// Opens all seconds up to the one with this index in `open`.
    fn open_up_to(&mut self, index: usize) {
        while self.open.len() <= index {
            let counts = self.spare.pop_front().unwrap_or_else(|| Totals::new(self.stages));
            self.open.push_back(OpenSecond::new(counts));
        }
    }

    /// Adds a thread's gap to all open seconds that it touches. A thread hands over its interval
    /// after the gap, so the gap can be longer than a second.
    fn add_gap(&mut self, from: Duration, to: Duration) {
        for (second, open) in (self.oldest_second..).zip(&mut self.open) {
            let start = Duration::from_secs(second);
            let end = start + Duration::from_secs(1);
            open.gap = open.gap.max(to.min(end).saturating_sub(from.max(start)));
        }
    }

    /// Closes the oldest second if all threads have passed its end, or if too many seconds are
    /// open. Returns `None` if neither condition holds, or if no second is open. The caller gives
    /// the counts back with [`Recorder::reuse`].
    pub fn close(&mut self) -> Option<ClosedSecond> {
        let end = Duration::from_secs(self.oldest_second + 1);
        let is_complete =
            self.thread_ends.iter().all(|thread_end| *thread_end + HAND_OVER_SLACK >= end);
        if is_complete || self.open.len() > OPEN_SECONDS_MAX { self.close_oldest() } else { None }
    }

    /// Closes the oldest second, complete or not. Returns `None` if no second is open. After the
    /// last interval, the caller calls this function until it returns `None`.
    pub fn close_oldest(&mut self) -> Option<ClosedSecond> {
        let mut open = self.open.pop_front()?;
        self.move_inclusions_to(&mut open.counts);
        let from = Duration::from_secs(self.oldest_second);
        let is_last = self.open.is_empty();
        let end = Duration::from_secs(self.oldest_second + 1);
        // Only the last second can be shorter. It counts as whole if less than [`HAND_OVER_SLACK`]
        // is missing.
        let counted_to = if is_last && open.to > from { open.to.min(end) } else { end };
        let to = if end.saturating_sub(counted_to) < HAND_OVER_SLACK { end } else { counted_to };
        self.oldest_second += 1;
        let is_measured = from >= self.warmup;
        if is_measured && self.at_warmup_end.is_none() && !self.warmup.is_zero() {
            self.at_warmup_end = Some(self.total.clone());
        }
        self.total.add(&open.counts);
        let second = self.summarize(&open, to);
        self.series.push(second.clone());
        Some(ClosedSecond { from, to, second, counts: open.counts, is_measured })
    }

    /// Counts transactions that were found in a block, and records their inclusion times in
    /// nanoseconds. The transactions count in the oldest open second.
    pub fn add_inclusions(&mut self, times_ns: impl Iterator<Item = u64>) {
        for time_ns in times_ns {
            self.inclusion_times.saturating_record(time_ns);
            self.included += 1;
        }
    }

    /// Counts transactions that were found in a block after the last second, and the `pending`
    /// transactions, which were found in no block. Returns the added counts. All seconds must have
    /// been closed.
    pub fn add_late_inclusions(&mut self, times_ns: &[u64], pending: u64) -> Totals {
        self.add_inclusions(times_ns.iter().copied());
        let mut late = Totals::new(self.stages);
        self.move_inclusions_to(&mut late);
        late.transactions.pending = pending;
        self.total.add(&late);
        late
    }

    /// Moves the inclusions since the last closed second to `counts`.
    fn move_inclusions_to(&mut self, counts: &mut Totals) {
        record::add_times(&mut counts.inclusion_time, &self.inclusion_times);
        counts.transactions.included += std::mem::take(&mut self.included);
        if !self.inclusion_times.is_empty() {
            self.inclusion_times.reset();
        }
    }

    /// Takes the counts of a closed second back for reuse.
    pub fn reuse(&mut self, mut counts: Totals) {
        if self.spare.len() < OPEN_SECONDS_MAX {
            counts.reset();
            self.spare.push_back(counts);
        }
    }

    /// Returns the totals of all closed seconds.
    pub fn total(&self) -> &Totals {
        &self.total
    }

    /// Returns the counts of the run. All seconds must have been closed.
    pub fn finish(self) -> RunCounts {
        let measured = match (&self.at_warmup_end, self.warmup.is_zero()) {
            (Some(warmup_totals), _) => self.total.clone().since(warmup_totals),
            (None, true) => self.total.clone(),
            // The run ended within the warm-up.
            (None, false) => Totals::new(self.stages),
        };
        RunCounts { total: self.total, measured, series: self.series.points }
    }

    /// Returns the published form of a second that ends at `to`.
    fn summarize(&self, open: &OpenSecond, to: Duration) -> Second {
        let counts = &open.counts;
        let iterations = aggregate::sum_iterations(counts);
        let thread_seconds = open.thread_time.as_secs_f64();
        let idle_seconds = counts.idle.as_secs_f64();
        Second {
            at: to.as_secs_f64(),
            scheduled: iterations.scheduled,
            started: iterations.started,
            dropped: iterations.dropped,
            requests: counts.traffic.requests,
            scheduling_delay_p99_ms: aggregate::percentile_ms(&counts.scheduling_delay, 99.0)
                .unwrap_or_default(),
            generator_busy: if thread_seconds >= BUSY_SECONDS_MIN {
                (1.0 - idle_seconds / thread_seconds).clamp(0.0, 1.0)
            } else {
                0.0
            },
            generator_gap_ms: open.gap.as_secs_f64() * 1e3,
            in_flight: open.in_flight,
            workers_busy: open.workers_busy,
            waiting: open.waiting,
            methods: (0..self.methods.len())
                .filter_map(|method| self.summarize_method(counts, method))
                .collect(),
        }
    }

    /// Returns a method's values in one second, or `None` if the method was not called.
    fn summarize_method(&self, counts: &Totals, method: usize) -> Option<MethodSecond> {
        let mut latency = empty_times();
        let mut classes: Vec<(Class, u64)> = Vec::new();
        let mut calls_by_stage = vec![0_u64; self.stages];
        for (slot, cell) in &counts.cells {
            let calls = cell.latency.len();
            if usize::from(slot.method) != method || calls == 0 {
                continue;
            }
            record::add_times(&mut latency, &cell.latency);
            add_calls(&mut classes, slot.class, calls);
            if let Some(stage_calls) = calls_by_stage.get_mut(usize::from(slot.stage)) {
                *stage_calls += calls;
            }
        }
        if latency.is_empty() {
            return None;
        }
        let main_stage = calls_by_stage.iter().enumerate().max_by_key(|(_, calls)| **calls);
        let percentile_ms =
            |percentile: f64| aggregate::percentile_ms(&latency, percentile).unwrap_or_default();
        Some(MethodSecond {
            method: self.methods[method].to_string(),
            stage: main_stage.map_or(0, |(stage, _)| stage),
            classes,
            p50_ms: percentile_ms(50.0),
            p95_ms: percentile_ms(95.0),
            p99_ms: percentile_ms(99.0),
            max_ms: latency.max() as f64 / 1e6,
            max_least_ms: counts
                .least_latency(|slot| usize::from(slot.method) == method)
                .map(|least| least.max() as f64 / 1e6),
        })
    }
}

impl OpenSecond {
    fn new(counts: Totals) -> OpenSecond {
        OpenSecond {
            counts,
            to: Duration::ZERO,
            thread_time: Duration::ZERO,
            in_flight: 0,
            workers_busy: 0,
            waiting: 0,
            gap: Duration::ZERO,
        }
    }
}

/// Adds calls to the sum of their class.
fn add_calls(classes: &mut Vec<(Class, u64)>, class: Class, calls: u64) {
    match classes.iter_mut().find(|(listed, _)| *listed == class) {
        Some((_, sum)) => *sum += calls,
        None => classes.push((class, calls)),
    }
}

/// A series of points over time. When it is full, it merges each pair of neighbours.
#[derive(Debug)]
struct Series {
    points: Vec<Second>,
    /// Number of seconds in the last point.
    last_point_seconds: usize,
    /// Number of seconds in a full point.
    full_point_seconds: usize,
}

impl Default for Series {
    fn default() -> Series {
        Series { points: Vec::new(), last_point_seconds: 1, full_point_seconds: 1 }
    }
}

impl Series {
    /// Appends a second, or merges it into the last point if that point is not full.
    fn push(&mut self, second: Second) {
        if self.last_point_seconds < self.full_point_seconds
            && let Some(last) = self.points.last_mut()
        {
            merge(last, second);
            self.last_point_seconds += 1;
            return;
        }
        if self.points.len() == SERIES_MAX {
            self.halve();
        }
        self.points.push(second);
        self.last_point_seconds = 1;
    }

    /// Merges each pair of neighbours. The number of points must be even.
    fn halve(&mut self) {
        let mut halved = Vec::with_capacity(SERIES_MAX);
        let mut points = std::mem::take(&mut self.points).into_iter();
        while let Some(mut first) = points.next() {
            points.next().into_iter().for_each(|second| merge(&mut first, second));
            halved.push(first);
        }
        self.points = halved;
        self.full_point_seconds *= 2;
    }
}

/// Merges the next second into a point. The merged point has:
///
/// - the sums of the counts,
/// - the maximum of each percentile and gap, so that no peak is lost,
/// - the averages of the medians, weighted by calls,
/// - the average of the generator's busy share, weighted by requests,
/// - the calls in flight, busy workers and waiting iterations of the later second.
fn merge(point: &mut Second, next: Second) {
    let (point_requests, next_requests) = (point.requests as f64, next.requests as f64);
    let requests = point_requests + next_requests;
    // Without requests, both have the same weight.
    let next_weight = if requests > 0.0 { next_requests / requests } else { 0.5 };
    point.at = next.at;
    point.scheduled += next.scheduled;
    point.started += next.started;
    point.dropped += next.dropped;
    point.requests += next.requests;
    point.scheduling_delay_p99_ms = point.scheduling_delay_p99_ms.max(next.scheduling_delay_p99_ms);
    point.generator_busy += (next.generator_busy - point.generator_busy) * next_weight;
    point.generator_gap_ms = point.generator_gap_ms.max(next.generator_gap_ms);
    point.in_flight = next.in_flight;
    point.workers_busy = next.workers_busy;
    point.waiting = next.waiting;
    for row in next.methods {
        match point.methods.iter_mut().find(|listed| listed.method == row.method) {
            Some(listed) => merge_method(listed, row),
            None => point.methods.push(row),
        }
    }
}

/// Merges a method's values of the next second into the method's values of a point.
fn merge_method(point: &mut MethodSecond, next: MethodSecond) {
    let calls =
        |row: &MethodSecond| row.classes.iter().map(|(_, calls)| *calls).sum::<u64>() as f64;
    let (point_calls, next_calls) = (calls(point), calls(&next));
    let next_weight = next_calls / (point_calls + next_calls).max(1.0);
    point.p50_ms += (next.p50_ms - point.p50_ms) * next_weight;
    point.p95_ms = point.p95_ms.max(next.p95_ms);
    point.p99_ms = point.p99_ms.max(next.p99_ms);
    let least_ms = |row: &MethodSecond| row.max_least_ms.unwrap_or(row.max_ms);
    let has_least = point.max_least_ms.is_some() || next.max_least_ms.is_some();
    point.max_least_ms = has_least.then(|| least_ms(point).max(least_ms(&next)));
    point.max_ms = point.max_ms.max(next.max_ms);
    if next_calls > point_calls {
        point.stage = next.stage;
    }
    for (class, calls) in next.classes {
        add_calls(&mut point.classes, class, calls);
    }
}
