//! Adaptive concurrency limit of a group: the largest number of calls in flight. The limiter finds
//! it by experiment; it is not configured.
//!
//! The limit acts only while calls wait for a permit. The limiter then tries another limit, and
//! compares the throughput (responses per second) at both. If upstreams have capacity left,
//! throughput rises with the number of calls in flight, however long each call takes. If upstreams
//! have none left, throughput stays the same and each call takes longer. So a higher latency alone
//! never lowers the limit, and neither does a mix of fast and slow methods.
//!
//! Throughput says little if only a few slow calls wait beside many fast ones. Then the latency of
//! each flow (`shares.rs`) decides. A higher limit is accepted if it makes no flow slower. A lower
//! limit is rejected if it makes no flow faster.
//!
//! The limiter seeks the limit with the highest `rate / limit^0.15`: each further call in flight
//! must raise throughput enough. This measure is the "power" of Kleinrock ("Power and Deterministic
//! Rules of Thumb for Probabilistic Problems in Computer Communications", 1979) with more weight on
//! throughput. The search is a pattern search (Hooke and Jeeves, 1961), as in the thread pool of
//! .NET (Hellerstein and others, "Optimizing Concurrency Levels in the .NET ThreadPool", 2009). A
//! measurement ends once its variance shows that it is exact enough (batch means).
//!
//! If calls wait and no response arrives, there is nothing to compare, because upstreams have
//! stalled or become slow. The limit then doubles until responses arrive or the queue is empty. The
//! earlier latency of calls determines how long a lack of responses is normal.
//!
//! Two signs need no comparison. If far fewer responses arrive than before at the same limit, long
//! calls hold the permits, or the upstreams have become slower. The limit then doubles as well. If
//! the queue grows during a trial of a lower limit, the trial ends.
//!
//! Algorithms that compare latency with a baseline (Envoy's adaptive concurrency, Netflix'
//! `Gradient2Limit`, TCP Vegas) were rejected. Upstreams may become slower and still have capacity
//! left; these algorithms treat them as overloaded until the baseline has risen. Comparing only the
//! latency at two limits was tried as well. A queue slows short calls disproportionately, so mixed
//! methods got 60 % of the throughput.
//!
//! One limiter serves a group on all threads, because the throughput shows only a change that
//! applies to the whole group.

use std::time::Duration;

use crate::policy::overload::shares::Flow;

#[cfg(test)]
mod tests;

/// Initial limit, within the configured bounds.
pub const LIMIT_START: u32 = 64;

/// Exponent of the limit in the score. A higher limit scores better if the relative rise of the
/// throughput exceeds this fraction of the relative rise of the limit.
const ELASTICITY: f64 = 0.15;

/// Factor between two compared limits. A search starts with the largest factor and ends with the
/// smallest.
const STEP_MAX: f64 = 2.0;
const STEP_MIN: f64 = 1.4;

/// Shortest and longest pause between pairs of trials with the smallest step. The pause doubles
/// while no trial succeeds, because each trial costs some throughput.
const PAUSE_MIN: Duration = Duration::from_secs(3);
const PAUSE_MAX: Duration = Duration::from_secs(12);

/// Time without any response after which waiting calls raise the limit. `SILENCE_MIN` is the
/// minimum, and `SILENCE_UNKNOWN` applies while the usual latency is unknown.
const SILENCE_MIN: Duration = Duration::from_millis(50);
const SILENCE_UNKNOWN: Duration = Duration::from_millis(500);

/// A throughput is measured over at least `BATCHES_MIN` batches of responses. The measurement ends
/// once the relative error is at most `ERROR_MAX`, for the largest step. A batch has at least
/// `BATCH_MIN` responses, and at least one per permit.
const BATCHES_MIN: u32 = 4;
const BATCH_MIN: u32 = 8;
const ERROR_MAX: f64 = 0.05;

/// Number of responses after which a measurement ends, whatever its error.
const SAMPLES_MAX: u32 = 2048;

/// A measurement also ends after `WINDOW_MAX`, for upstreams that take seconds, but only with at
/// least `SAMPLES_FEW` responses.
const WINDOW_MAX: Duration = Duration::from_secs(1);
const SAMPLES_FEW: u32 = 16;

/// Measurements expire when no call has waited for this long.
const EXPIRES_AFTER: Duration = Duration::from_secs(10);

/// A trial ends early if its throughput is below this fraction of the accepted throughput.
const ABORT_BELOW: f64 = 0.75;

/// Upstreams have capacity left if throughput rises by this share of the step of the limit. Less
/// may be noise, and does not end an overload.
const CAPACITY_LEFT: f64 = 0.5;

/// Calls of a flow have become slower if their latency has grown by this share of the step.
const SLOWDOWN_MIN: f64 = 0.3;

/// A trial of a lower limit ends if the queue grows by as many calls as this time has responses,
/// because the trial then makes calls wait.
const GROWTH_MAX: Duration = Duration::from_millis(50);

/// If throughput falls below this fraction of the accepted throughput, slow calls hold the permits
/// or the upstreams have become slower. Both call for a higher limit.
const COLLAPSED_BELOW: f64 = 0.2;

/// The queue has ended after this many consecutive responses without a waiting call.
const IDLE_AFTER: u32 = 16;

/// Buckets of flows in the latency samples.
const BUCKETS: usize = 32;

/// Bounds of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Lowest; at least 1.
    pub limit_min: u32,
    /// Highest.
    pub limit_max: u32,
}

/// The response of an upstream to a call.
#[derive(Debug, Clone, Copy)]
pub struct ResponseSample {
    /// The epoch in which the call was sent.
    pub epoch: u32,
    /// The flow of the call.
    pub flow: Flow,
    /// Latency at the upstream.
    pub took: Duration,
    /// Number of calls that wait for permits.
    pub queue: u32,
}

/// The limit of one group. Order of calls: [`Limiter::record_wait`] for each call that has to wait,
/// and [`Limiter::record_response`] for each response while [`Limiter::is_limited`] or while calls
/// wait.
#[derive(Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    limit: u32,
    epoch: u32,
    limited: bool,
    saturated: bool,
    unqueued_in_row: u32,
    /// Time of the last change of the limit or the last response.
    progress: Duration,
    /// The accepted limit, and its measurements.
    accepted: Option<Measurement>,
    /// True if the current limit is a trial against `accepted`.
    trying: bool,
    direction: Direction,
    step: f64,
    pause: Duration,
    next_trial: Duration,
    window: Window,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Measurements at one limit.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    limit: u32,
    /// Responses per second, and the relative standard error.
    rate: f64,
    error: f64,
    times: Times,
}

/// Latencies by bucket of flows.
type Times = [Samples; BUCKETS];

/// Sum and count of latencies, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    count: u32,
    sum: f64,
    squares: f64,
}

/// A measurement in progress.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Time when the limit was set, and all responses since.
    set: Duration,
    all: u32,
    /// Responses to skip at the start: one for each call that the limit allows.
    skip: u32,
    start: Option<Duration>,
    last: Duration,
    /// Responses since the start, and responses while calls waited.
    samples: u32,
    waited: u32,
    batches: Batches,
    times: Times,
    /// Length of the queue at the first response.
    queue_before: Option<u32>,
}

/// Durations of batches with equal numbers of responses, as their mean and the sum of squared
/// deviations (Welford, 1962).
#[derive(Debug, Clone, Copy, Default)]
struct Batches {
    size: u32,
    start: Duration,
    count: u32,
    mean: f64,
    squares: f64,
}

impl Limiter {
    /// Creates a limiter without measurements.
    pub fn new(settings: LimiterSettings) -> Limiter {
        Limiter {
            settings,
            limit: LIMIT_START.clamp(settings.limit_min, settings.limit_max),
            epoch: 0,
            limited: false,
            saturated: false,
            unqueued_in_row: 0,
            progress: Duration::ZERO,
            accepted: None,
            trying: false,
            direction: Direction::Up,
            step: STEP_MAX,
            pause: PAUSE_MIN,
            next_trial: Duration::ZERO,
            window: Window::default(),
        }
    }

    /// Returns the number of calls that may be in flight.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of changes of the limit so far. It identifies the limit under which a
    /// call was sent.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns true if calls have waited recently, so that every response must be reported.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Returns true if a higher limit would bring no more responses: the upstreams are overloaded.
    pub fn is_saturated(&self) -> bool {
        self.saturated
    }

    /// Records that a call waits for a permit. `usual` is the usual latency of such calls.
    pub fn record_wait(&mut self, now: Duration, usual: Option<Duration>) {
        self.begin(now);
        let silence = usual.map_or(SILENCE_UNKNOWN, |usual| usual * 2);
        let silent = now.saturating_sub(self.progress) >= silence.max(self.patience());
        if silent || self.has_collapsed(now) {
            self.raise_without_trial(now);
        }
    }

    /// Records a response.
    pub fn record_response(&mut self, now: Duration, sample: ResponseSample) {
        if sample.queue > 0 {
            self.unqueued_in_row = 0;
            self.begin(now);
        } else {
            self.unqueued_in_row = self.unqueued_in_row.saturating_add(1);
            if self.unqueued_in_row >= IDLE_AFTER {
                self.end_queue(now);
            }
        }
        self.progress = now;
        if !self.limited {
            return;
        }
        self.window.all = self.window.all.saturating_add(1);
        if self.queue_grows(sample.queue) {
            self.reject(now);
        } else if self.has_collapsed(now) {
            self.raise_without_trial(now);
        } else if sample.epoch == self.epoch {
            self.window.record(now, sample, self.limit);
            if self.is_full(now) || self.is_hopeless() {
                self.judge(now);
            }
        }
    }

    /// Starts a measurement, if none is running, because calls wait.
    fn begin(&mut self, now: Duration) {
        if self.limited {
            return;
        }
        self.limited = true;
        self.unqueued_in_row = 0;
        self.saturated = self.settings.limit_min == self.settings.limit_max;
        self.window = Window { set: now, ..self.window };
        if now.saturating_sub(self.progress) >= EXPIRES_AFTER {
            self.accepted = None;
            self.search_up();
            self.window = Window::default();
        }
        self.progress = now;
    }

    /// Returns how long a lack of responses is normal.
    fn patience(&self) -> Duration {
        let round =
            self.accepted.map_or(0.0, |accepted| f64::from(self.limit) / accepted.rate.max(1e-3));
        SILENCE_MIN.max(Duration::from_secs_f64(2.0 * round))
    }

    /// Raises the limit without a trial, because there is nothing to compare.
    fn raise_without_trial(&mut self, now: Duration) {
        if self.limit < self.settings.limit_max {
            self.accepted = None;
            self.saturated = false;
            self.search_up();
            self.set(now, self.moved(Direction::Up));
        }
    }

    fn is_trying(&self, direction: Direction) -> bool {
        self.trying && self.direction == direction
    }

    /// Returns true if calls wait because a lower limit is on trial.
    fn queue_grows(&mut self, queue: u32) -> bool {
        let Some(accepted) = self.accepted.filter(|_| self.is_trying(Direction::Down)) else {
            return false;
        };
        let before = *self.window.queue_before.get_or_insert(queue);
        let growth = SAMPLES_FEW.max((accepted.rate * GROWTH_MAX.as_secs_f64()) as u32);
        queue > (before + before / 2).max(before + growth)
    }

    /// Returns true if far fewer responses arrive than earlier at the same limit.
    fn has_collapsed(&self, now: Duration) -> bool {
        let Some(accepted) = self.accepted.filter(|_| !self.is_trying(Direction::Up)) else {
            return false;
        };
        let elapsed = now.saturating_sub(self.window.set);
        let expected = accepted.rate * elapsed.as_secs_f64();
        elapsed >= self.patience() && f64::from(self.window.all) < expected * COLLAPSED_BELOW
    }

    /// Ends a measurement, because no call waits. A trial of a lower limit is aborted. A trial of a
    /// higher limit may be the reason why no call waits, so it continues when calls wait again.
    fn end_queue(&mut self, now: Duration) {
        if let Some(accepted) = self.accepted.filter(|_| self.is_trying(Direction::Down)) {
            self.trying = false;
            self.set(now, accepted.limit);
        }
        self.window = Window { set: now, skip: self.window.skip, ..Window::default() };
        self.limited = false;
        self.saturated = false;
    }

    fn search_up(&mut self) {
        self.trying = false;
        (self.direction, self.step, self.pause) = (Direction::Up, STEP_MAX, PAUSE_MIN);
        self.next_trial = Duration::ZERO;
    }

    fn is_full(&self, now: Duration) -> bool {
        let Some(start) = self.window.start else { return false };
        let Window { samples, batches, .. } = &self.window;
        if now.saturating_sub(start) >= WINDOW_MAX {
            return *samples >= SAMPLES_FEW;
        }
        let error_max = ERROR_MAX * self.step.ln() / STEP_MAX.ln();
        let exact = batches.error() <= error_max || *samples >= SAMPLES_MAX;
        batches.count >= BATCHES_MIN && exact
    }

    /// Returns true if the trial clearly costs throughput.
    fn is_hopeless(&self) -> bool {
        let accepted =
            self.accepted.filter(|_| self.trying && self.window.samples >= SAMPLES_FEW * 2);
        accepted.is_some_and(|accepted| self.window.rate() < accepted.rate * ABORT_BELOW)
    }

    fn judge(&mut self, now: Duration) {
        let window = std::mem::replace(&mut self.window, Window { set: now, ..Window::default() });
        if window.waited * 2 < window.samples {
            // The load was too low to measure the capacity.
            return;
        }
        let trial = window.level(self.limit);
        let Some(accepted) = self.accepted.filter(|_| self.trying) else {
            self.accepted = Some(trial);
            if now >= self.next_trial {
                self.try_next(now);
            }
            return;
        };
        let (score, error) = (trial.score() - accepted.score(), trial.error.hypot(accepted.error));
        let step = (f64::from(trial.limit) / f64::from(accepted.limit)).ln();
        let better = match self.direction {
            // If noise decides between two limits, the lower one wins.
            Direction::Up => score > error || !is_slower(&accepted, &trial, step),
            Direction::Down => score > 0.0 && is_slower(&trial, &accepted, -step),
        };
        if !better {
            self.reject(now);
            return;
        }
        self.trying = false;
        let gain = (trial.rate / accepted.rate).ln() - error;
        if step > 0.0 && gain > CAPACITY_LEFT * step {
            self.saturated = false;
        }
        self.accepted = Some(trial);
        self.pause = PAUSE_MIN;
        let large = self.step >= STEP_MAX;
        self.step = (self.step * self.step).min(STEP_MAX);
        // After a smaller step the limit is measured once more, because accepted measurements tend
        // to be lucky.
        if large {
            self.try_next(now);
        }
    }

    /// Rejects the limit on trial.
    fn reject(&mut self, now: Duration) {
        let direction = self.direction;
        self.trying = false;
        let Some(accepted) = self.accepted else { return };
        self.set(now, accepted.limit);
        self.reverse(now);
        if direction == Direction::Up {
            self.try_next(now);
        }
    }

    /// Turns the search around after a failed trial.
    fn reverse(&mut self, now: Duration) {
        if self.direction == Direction::Up {
            self.saturated = true;
            self.direction = Direction::Down;
            return;
        }
        self.direction = Direction::Up;
        if self.step > STEP_MIN {
            self.step = self.step.sqrt().max(STEP_MIN);
        } else {
            self.next_trial = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    fn try_next(&mut self, now: Duration) {
        let next = self.moved(self.direction);
        if next == self.limit {
            // The limit is at a bound.
            self.reverse(now);
            return;
        }
        self.trying = true;
        self.set(now, next);
    }

    /// Returns the limit one step away.
    fn moved(&self, direction: Direction) -> u32 {
        let limit = f64::from(self.limit);
        let moved = match direction {
            Direction::Up => (limit * self.step).ceil(),
            Direction::Down => (limit / self.step).floor(),
        };
        (moved as u32).clamp(self.settings.limit_min, self.settings.limit_max)
    }

    fn set(&mut self, now: Duration, limit: u32) {
        self.limit = limit;
        self.epoch = self.epoch.wrapping_add(1);
        self.progress = now;
        self.window = Window { set: now, skip: limit, ..Window::default() };
    }
}

impl Measurement {
    fn score(&self) -> f64 {
        self.rate.ln() - ELASTICITY * f64::from(self.limit).ln()
    }
}

impl Window {
    fn record(&mut self, now: Duration, sample: ResponseSample, limit: u32) {
        self.last = now;
        if self.start.is_none() {
            self.skip = self.skip.saturating_sub(1);
            if self.skip == 0 || now.saturating_sub(self.set) >= WINDOW_MAX {
                self.start = Some(now);
                self.batches = Batches { size: BATCH_MIN.max(limit), start: now, ..self.batches };
            }
            return;
        }
        self.samples += 1;
        self.waited += u32::from(sample.queue > 0);
        self.times[sample.flow.index() % BUCKETS].add(sample.took);
        if self.samples.is_multiple_of(self.batches.size) {
            self.batches.add(now);
        }
    }

    fn level(&self, limit: u32) -> Measurement {
        Measurement { limit, rate: self.rate(), error: self.batches.error(), times: self.times }
    }

    fn rate(&self) -> f64 {
        let start = self.start.unwrap_or(self.last);
        f64::from(self.samples) / self.last.saturating_sub(start).as_secs_f64().max(1e-6)
    }
}

impl Samples {
    fn add(&mut self, took: Duration) {
        let took = took.as_secs_f64();
        self.count += 1;
        self.sum += took;
        self.squares += took * took;
    }

    /// Returns the mean and its relative standard error.
    fn mean(&self) -> (f64, f64) {
        let count = f64::from(self.count);
        let mean = (self.sum / count).max(1e-6);
        let variance = (self.squares / count - mean * mean).max(0.0);
        (mean, (variance / count).sqrt() / mean)
    }
}

/// Returns true if the calls of any flow take longer at the higher of two limits, or if there are
/// too few samples. `step` is the factor between the limits.
fn is_slower(lower: &Measurement, higher: &Measurement, step: f64) -> bool {
    let mut pairs = lower.times.iter().zip(&higher.times);
    let known = |(one, other): &(&Samples, &Samples)| {
        one.count >= SAMPLES_FEW && other.count >= SAMPLES_FEW
    };
    let slower = |(one, other): (&Samples, &Samples)| {
        let ((before, error_before), (after, error_after)) = (one.mean(), other.mean());
        (after / before).ln() - error_before.hypot(error_after) > SLOWDOWN_MIN * step
    };
    let any_known = pairs.clone().any(|pair| known(&pair));
    !any_known || pairs.any(|pair| known(&pair) && slower(pair))
}

impl Batches {
    fn add(&mut self, now: Duration) {
        let took = now.saturating_sub(self.start).as_secs_f64();
        self.start = now;
        self.count += 1;
        let apart = took - self.mean;
        self.mean += apart / f64::from(self.count);
        self.squares += apart * (took - self.mean);
    }

    /// Returns the relative standard error of the throughput, or a guess for too few batches.
    fn error(&self) -> f64 {
        if self.count < 2 {
            return 0.2;
        }
        let count = f64::from(self.count);
        (self.squares / (count - 1.0) / count).sqrt() / self.mean.max(1e-9)
    }
}
