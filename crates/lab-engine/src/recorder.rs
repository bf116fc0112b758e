//! Puts together what the engine's threads saw: seconds of the whole, and everything since the start.
//!
//! It knows neither clock nor engine; whoever feeds it says how far time is. Its memory does not grow
//! with the length of a run: histograms have a fixed size, and the series is thinned from
//! [`SERIES_MAX`] points on, when neighbours become one.

use std::collections::VecDeque;
use std::time::Duration;

use lab_model::plan::Plan;
use lab_model::record::{self, Class, Interval, Totals, times};
use lab_model::results::run::{MethodSecond, Second};

use crate::aggregate;

#[cfg(test)]
mod tests;

/// Points of the series. Two hours at one point a second; from then on a point is two seconds, from
/// four hours on four, and so on.
pub const SERIES_MAX: usize = 7_200;
/// Threads' time, in seconds, below which a busy share says nothing: the last second of a run can be
/// a microsecond.
const BUSY_TIME_MIN: f64 = 0.1;
/// Seconds that wait for threads that lag; a thread that lags more is counted where it arrives.
const OPEN_MAX: usize = 4;

/// Puts a run's intervals together.
#[derive(Debug)]
pub struct Recorder {
    methods: Vec<Box<str>>,
    stages: usize,
    warmup: Duration,
    /// How far each thread is.
    reached: Vec<Duration>,
    /// Seconds that are not whole yet, oldest first, without gaps.
    open: VecDeque<Open>,
    /// Index of the next second to be closed, from 0.
    next: u64,
    /// Emptied parts for further use, in turn: a megabyte or two each, all there from the start, so
    /// that memory does not grow when threads lag.
    spare: VecDeque<Totals>,
    all: Totals,
    /// Everything as it stood at the end of the warm-up.
    warm: Option<Totals>,
    series: Series,
}

/// A second that is whole.
#[derive(Debug)]
pub struct Closed {
    /// Its start, since the start of the run.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    /// As it is told.
    pub second: Second,
    /// What was counted in it.
    pub part: Totals,
    /// Whether the warm-up is over.
    pub judged: bool,
}

/// What is left at the end.
#[derive(Debug)]
pub struct Recorded {
    /// Everything, warm-up included.
    pub all: Totals,
    /// The same without the warm-up.
    pub judged: Totals,
    /// By second, or by more in long runs.
    pub series: Vec<Second>,
}

#[derive(Debug)]
struct Open {
    part: Totals,
    to: Duration,
    thread_time: Duration,
    in_flight: u64,
    workers_busy: u64,
    waiting: u64,
}

impl Recorder {
    /// Nothing yet.
    pub fn new(plan: &Plan) -> Recorder {
        let stages = plan.stages().count();
        Recorder {
            methods: plan.methods.clone(),
            stages,
            warmup: plan.warmup,
            reached: vec![Duration::ZERO; plan.threads.max(1)],
            open: VecDeque::new(),
            next: 0,
            spare: (0..OPEN_MAX).map(|_| Totals::new(stages)).collect(),
            all: Totals::new(stages),
            warm: None,
            series: Series::default(),
        }
    }

    /// Takes what one thread saw. It belongs to the second in which its middle lies, because a thread
    /// hands over a little after a second's end.
    pub fn take(&mut self, interval: &Interval) {
        let second = ((interval.from + interval.to) / 2).as_secs();
        let place = usize::try_from(second.saturating_sub(self.next)).unwrap_or(usize::MAX);
        let place = place.min(OPEN_MAX * 2);
        while self.open.len() <= place {
            let part = self.spare.pop_front().unwrap_or_else(|| Totals::new(self.stages));
            self.open.push_back(Open::new(part));
        }
        let open = &mut self.open[place];
        open.part.merge(interval);
        open.to = open.to.max(interval.to);
        open.thread_time += interval.to.saturating_sub(interval.from);
        open.in_flight += interval.in_flight;
        open.workers_busy += interval.workers_busy;
        open.waiting += interval.waiting;
        if let Some(reached) = self.reached.get_mut(interval.thread) {
            *reached = interval.to.max(*reached);
        }
    }

    /// The oldest second, if it is whole: all threads are past it, or too many seconds wait. Give its
    /// part back with [`Recorder::give_back`].
    pub fn close(&mut self) -> Option<Closed> {
        let end = Duration::from_secs(self.next + 1);
        // Threads hand over at a second's end or a little after it, never long before.
        let slack = Duration::from_millis(50);
        let whole = self.reached.iter().all(|reached| *reached + slack >= end);
        (whole || self.open.len() > OPEN_MAX).then(|| self.close_oldest()).flatten()
    }

    /// The same when nothing more will come.
    pub fn close_last(&mut self) -> Option<Closed> {
        self.close_oldest()
    }

    fn close_oldest(&mut self) -> Option<Closed> {
        let open = self.open.pop_front()?;
        let from = Duration::from_secs(self.next);
        let last = self.open.is_empty();
        let end = Duration::from_secs(self.next + 1);
        // Only the last second can be shorter.
        let to = if last && open.to > from { open.to.min(end) } else { end };
        let to = if end.saturating_sub(to) < Duration::from_millis(50) { end } else { to };
        self.next += 1;
        let judged = from >= self.warmup;
        if judged && self.warm.is_none() && !self.warmup.is_zero() {
            self.warm = Some(self.all.clone());
        }
        self.all.add(&open.part);
        let second = self.told(&open, to);
        self.series.push(second.clone());
        Some(Closed { from, to, second, part: open.part, judged })
    }

    /// Takes the part of a closed second back for further use.
    pub fn give_back(&mut self, mut part: Totals) {
        if self.spare.len() < OPEN_MAX {
            part.reset();
            self.spare.push_back(part);
        }
    }

    /// Everything since the start of the run.
    pub fn all(&self) -> &Totals {
        &self.all
    }

    /// Ends; every second must have been closed.
    pub fn finish(self) -> Recorded {
        let judged = match (&self.warm, self.warmup.is_zero()) {
            (Some(warm), _) => self.all.clone().since(warm),
            (None, true) => self.all.clone(),
            // The run ended within the warm-up.
            (None, false) => Totals::new(self.stages),
        };
        Recorded { all: self.all, judged, series: self.series.points() }
    }

    fn told(&self, open: &Open, to: Duration) -> Second {
        let part = &open.part;
        let iterations = aggregate::iterations(part);
        let time = open.thread_time.as_secs_f64();
        let idle = part.idle.as_secs_f64();
        Second {
            at: to.as_secs_f64(),
            due: iterations.due,
            begun: iterations.begun,
            dropped: iterations.dropped,
            requests: part.traffic.requests,
            lateness_p99_ms: aggregate::percentile_ms(&part.lateness, 99.0).unwrap_or_default(),
            generator_busy: if time >= BUSY_TIME_MIN {
                (1.0 - idle / time).clamp(0.0, 1.0)
            } else {
                0.0
            },
            in_flight: open.in_flight,
            workers_busy: open.workers_busy,
            waiting: open.waiting,
            methods: (0..self.methods.len()).filter_map(|of| self.method(part, of)).collect(),
        }
    }

    /// One method in one second, if it was called.
    fn method(&self, part: &Totals, method: usize) -> Option<MethodSecond> {
        let mut latency = times();
        let mut classes: Vec<(Class, u64)> = Vec::new();
        let mut stages = vec![0_u64; self.stages];
        for (slot, cell) in &part.cells {
            let calls = cell.latency.len();
            if usize::from(slot.method) != method || calls == 0 {
                continue;
            }
            record::add(&mut latency, &cell.latency);
            count(&mut classes, slot.class, calls);
            if let Some(stage) = stages.get_mut(usize::from(slot.stage)) {
                *stage += calls;
            }
        }
        if latency.is_empty() {
            return None;
        }
        let most = stages.iter().enumerate().max_by_key(|(_, calls)| **calls);
        let percentile = |p: f64| aggregate::percentile_ms(&latency, p).unwrap_or_default();
        Some(MethodSecond {
            method: self.methods[method].to_string(),
            stage: most.map_or(0, |(stage, _)| stage),
            classes,
            p50_ms: percentile(50.0),
            p95_ms: percentile(95.0),
            p99_ms: percentile(99.0),
            max_ms: latency.max() as f64 / 1e6,
        })
    }
}

impl Open {
    fn new(part: Totals) -> Open {
        Open {
            part,
            to: Duration::ZERO,
            thread_time: Duration::ZERO,
            in_flight: 0,
            workers_busy: 0,
            waiting: 0,
        }
    }
}

fn count(classes: &mut Vec<(Class, u64)>, class: Class, calls: u64) {
    match classes.iter_mut().find(|(known, _)| *known == class) {
        Some((_, sum)) => *sum += calls,
        None => classes.push((class, calls)),
    }
}

/// Seconds up to a limit; then neighbours become one.
#[derive(Debug)]
struct Series {
    points: Vec<Second>,
    /// Seconds that the last point holds, and that a whole one holds.
    filled: usize,
    stride: usize,
}

impl Default for Series {
    fn default() -> Series {
        Series { points: Vec::new(), filled: 1, stride: 1 }
    }
}

impl Series {
    fn push(&mut self, second: Second) {
        if self.filled < self.stride
            && let Some(last) = self.points.last_mut()
        {
            join(last, second);
            self.filled += 1;
            return;
        }
        if self.points.len() == SERIES_MAX {
            self.thin();
        }
        self.points.push(second);
        self.filled = 1;
    }

    /// Makes one point of two; their number is even.
    fn thin(&mut self) {
        let mut thinned = Vec::with_capacity(SERIES_MAX);
        let mut points = std::mem::take(&mut self.points).into_iter();
        while let Some(mut first) = points.next() {
            points.next().into_iter().for_each(|second| join(&mut first, second));
            thinned.push(first);
        }
        self.points = thinned;
        self.stride *= 2;
    }

    fn points(self) -> Vec<Second> {
        self.points
    }
}

/// Adds the next second to a point. Counts add up; of percentiles the larger stays, so that no peak is
/// lost, except of the median, which is weighted by calls.
fn join(point: &mut Second, next: Second) {
    let (before, after) = (point.requests as f64, next.requests as f64);
    let weight = if before + after > 0.0 { after / (before + after) } else { 0.5 };
    point.at = next.at;
    point.due += next.due;
    point.begun += next.begun;
    point.dropped += next.dropped;
    point.requests += next.requests;
    point.lateness_p99_ms = point.lateness_p99_ms.max(next.lateness_p99_ms);
    point.generator_busy += (next.generator_busy - point.generator_busy) * weight;
    point.in_flight = next.in_flight;
    point.workers_busy = next.workers_busy;
    point.waiting = next.waiting;
    for row in next.methods {
        match point.methods.iter_mut().find(|known| known.method == row.method) {
            Some(known) => join_method(known, row),
            None => point.methods.push(row),
        }
    }
}

fn join_method(point: &mut MethodSecond, next: MethodSecond) {
    let calls =
        |row: &MethodSecond| row.classes.iter().map(|(_, calls)| *calls).sum::<u64>() as f64;
    let (before, after) = (calls(point), calls(&next));
    point.p50_ms += (next.p50_ms - point.p50_ms) * (after / (before + after).max(1.0));
    point.p95_ms = point.p95_ms.max(next.p95_ms);
    point.p99_ms = point.p99_ms.max(next.p99_ms);
    point.max_ms = point.max_ms.max(next.max_ms);
    if after > before {
        point.stage = next.stage;
    }
    for (class, calls) in next.classes {
        count(&mut point.classes, class, calls);
    }
}
