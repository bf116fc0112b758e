//! Finds the concurrency limit of a group: the largest number of calls that may be in flight. The
//! limit is not configured; the limiter finds it by experiment. A *permit* allows one call to be in
//! flight.
//!
//! The limit matters only while calls wait for a permit. The limiter then starts a *trial*: it
//! changes the limit, and compares the throughput (responses per second) with the throughput at the
//! *accepted* limit, which is the result of earlier trials. If upstreams have capacity left,
//! throughput rises with the number of calls in flight, however long each call takes. If upstreams
//! are *saturated*, throughput stays the same and each call takes longer. So a higher latency alone
//! never lowers the limit.
//!
//! If only a few slow calls wait beside many fast ones, the throughput hardly depends on the limit.
//! So the latency of each flow (the calls of one client to methods of similar weight, `shares.rs`)
//! is compared as well. A higher limit is accepted if it makes no flow slower. A lower limit is
//! rejected if it makes no flow faster.
//!
//! The limiter seeks the limit with the highest *score*, `rate / limit^0.15`, where the rate is the
//! throughput. So each further call in flight must raise the throughput enough. This score is the
//! "power" of Kleinrock ("Power and Deterministic Rules of Thumb for Probabilistic Problems in
//! Computer Communications", 1979) with more weight on throughput. The search is a pattern search
//! (Hooke and Jeeves, 1961), as in the thread pool of .NET (Hellerstein and others, "Optimizing
//! Concurrency Levels in the .NET ThreadPool", 2009). A measurement ends once its variance shows
//! that it is exact enough. The variance comes from the durations of batches of responses (the
//! method of batch means).
//!
//! In three situations the limiter changes the limit without a comparison:
//!
//! - Calls wait and no response arrives: upstreams have stalled or become slow. The limit doubles.
//! - Far fewer responses arrive than before at the same limit: long calls hold the permits, or the
//!   upstreams have become slower. The limit doubles.
//! - The queue grows during a trial of a lower limit: the trial ends, and the accepted limit
//!   returns.
//!
//! Algorithms that compare latency with a baseline (Envoy's adaptive concurrency, Netflix'
//! `Gradient2Limit`, TCP Vegas) were rejected. Upstreams may become slower and still have capacity
//! left, but these algorithms treat them as overloaded until the baseline has risen. A comparison
//! of only the latencies at two limits was tried as well. With mixed methods it reached 60 % of the
//! upstreams' throughput in a simulation, because a queue slows short calls disproportionately.
//!
//! All threads share the limiter of a group, because only a change that applies to the whole group
//! shows in the group's throughput.

use std::time::Duration;

use crate::policy::overload::shares::Flow;

#[cfg(test)]
mod tests;

/// Initial limit, which the configured bounds may raise or lower.
pub const LIMIT_START: u32 = 64;

/// Exponent of the limit in the score. A higher limit scores better if the relative rise of the
/// throughput exceeds this fraction of the relative rise of the limit.
const ELASTICITY: f64 = 0.15;

/// Factor between two compared limits at the start of a search.
const STEP_MAX: f64 = 2.0;
/// Factor between two compared limits at the end of a search.
const STEP_MIN: f64 = 1.4;

/// First pause after trials in both directions have failed with the smallest step. Until a trial
/// succeeds, each further pause is twice as long, because each trial costs some throughput.
const PAUSE_MIN: Duration = Duration::from_secs(3);
/// Longest pause after such a pair of failed trials.
const PAUSE_MAX: Duration = Duration::from_secs(12);

/// A waiting call raises the limit only if no response has arrived for at least this time.
const SILENCE_MIN: Duration = Duration::from_millis(50);
/// While the typical latency is unknown, a waiting call raises the limit only if no response has
/// arrived for this time.
const SILENCE_UNKNOWN: Duration = Duration::from_millis(500);

/// Minimum number of batches of responses in a measurement.
const BATCHES_MIN: u32 = 4;
/// Minimum number of responses in a batch. A batch also has at least one response per permit.
const BATCH_MIN: u32 = 8;
/// With the largest step, a measurement ends once the relative error of its throughput is at most
/// this. A smaller step requires a smaller error.
const ERROR_MAX: f64 = 0.05;
/// Relative error assumed for fewer than two batches: four times [`ERROR_MAX`].
const ERROR_UNKNOWN: f64 = 0.2;

/// Number of responses after which a measurement with at least `BATCHES_MIN` batches ends, even if
/// its error is larger.
const SAMPLES_MAX: u32 = 2048;

/// Time after which a measurement with at least `SAMPLES_MIN` responses ends. It matters for
/// upstreams that need seconds for a response.
const MEASUREMENT_TIME_MAX: Duration = Duration::from_secs(1);
/// Minimum number of responses for any conclusion.
const SAMPLES_MIN: u32 = 16;

/// If no call has waited during this time, earlier measurements are dropped.
const EXPIRES_AFTER: Duration = Duration::from_secs(10);

/// A trial ends early if its throughput is below this fraction of the accepted throughput.
const ABORT_BELOW: f64 = 0.75;

/// A trial of a higher limit shows that upstreams have capacity left if `ln(throughput ratio)`
/// exceeds this share of `ln(limit ratio)`. Both ratios divide the value on trial by the accepted
/// value. A smaller rise of the throughput may be noise, so the upstreams still count as
/// overloaded.
const CAPACITY_LEFT_MIN: f64 = 0.5;

/// Calls of a flow are slower at the higher of two limits if `ln(latency ratio)` exceeds this share
/// of `ln(limit ratio)`.
const SLOWDOWN_MIN: f64 = 0.3;

/// A trial of a lower limit ends if it makes the queue grow by more than the number of responses
/// that usually arrive in this time.
const QUEUE_GROWTH_MAX: Duration = Duration::from_millis(50);

/// If throughput falls below this fraction of the accepted throughput, slow calls hold the permits
/// or the upstreams have become slower. In both cases the limit is raised.
const COLLAPSED_BELOW: f64 = 0.2;

/// The queue counts as empty after this many consecutive responses without a waiting call.
const IDLE_AFTER: u32 = 16;

/// Number of buckets for the latencies of flows. Several flows share a bucket.
const FLOW_BUCKETS: usize = 32;

/// Bounds of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Lowest limit; at least 1.
    pub limit_min: u32,
    /// Highest limit.
    pub limit_max: u32,
}

/// The response of an upstream to a call.
#[derive(Debug, Clone, Copy)]
pub struct ResponseSample {
    /// [`Limiter::epoch`] at the time when the call was sent.
    pub epoch: u32,
    /// The flow of the call.
    pub flow: Flow,
    /// Latency at the upstream.
    pub latency: Duration,
    /// Number of calls that wait for permits when the response arrives.
    pub queue: u32,
}

/// The limit of one group. Call [`Limiter::record_wait`] for each call that has to wait. While
/// [`Limiter::limited`] is true or calls wait, also call [`Limiter::record_response`] for each
/// response.
#[derive(Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    /// Number of calls that may be in flight.
    pub limit: u32,
    /// Number of changes of the limit so far. It identifies the limit under which a call was sent.
    pub epoch: u32,
    /// True if calls have waited recently, so that every response must be recorded.
    pub limited: bool,
    /// True if a higher limit would bring no more responses: the upstreams are overloaded.
    pub saturated: bool,
    /// Number of consecutive responses without a waiting call.
    responses_without_queue: u32,
    /// Time of the latest of these events: a response, a change of the limit, the start of a queue.
    last_progress: Duration,
    /// The accepted limit and its measurements. `None` at first and after a raise without a trial,
    /// until the next measurement ends.
    accepted: Option<Measurement>,
    /// Direction of the trial in progress; `None` outside trials. During a trial, `accepted` is
    /// never `None`.
    trial: Option<Direction>,
    /// Direction of the next trial. It reverses when a trial fails.
    next_direction: Direction,
    /// Factor between the accepted limit and the limit on trial; greater than 1.
    step: f64,
    /// Length of the next pause after failed trials in both directions with the smallest step.
    pause: Duration,
    /// Time before which no trial starts.
    next_trial: Duration,
    ongoing: OngoingMeasurement,
}

/// Direction of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The limit on trial is higher than the accepted limit.
    Up,
    /// The limit on trial is lower than the accepted limit.
    Down,
}

/// Measurements at one limit.
#[derive(Debug, Clone, Copy)]
struct Measurement {
    limit: u32,
    /// Responses per second.
    rate: f64,
    /// Relative standard error of `rate`.
    error: f64,
    latencies: Latencies,
}

/// Latencies by bucket of flows.
type Latencies = [LatencySamples; FLOW_BUCKETS];

/// Count, sum and sum of squares of latencies in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct LatencySamples {
    count: u32,
    sum_secs: f64,
    sum_of_squared_secs: f64,
}

/// A measurement in progress.
#[derive(Debug, Clone, Copy, Default)]
struct OngoingMeasurement {
    /// Time when the limit was set, or when a new measurement at the same limit began.
    limit_set_at: Duration,
    /// Number of responses since `limit_set_at`.
    responses: u32,
    /// Number of responses to skip before the start, because the former limit may have affected
    /// their calls. A new limit sets it to the number of calls that the limit allows.
    responses_to_skip: u32,
    /// Start of the measurement; `None` while responses are skipped.
    start: Option<Duration>,
    last_response: Duration,
    /// Number of responses since the start.
    samples: u32,
    /// Number of responses since the start that arrived while calls waited.
    samples_with_queue: u32,
    batches: Batches,
    latencies: Latencies,
    /// Length of the queue at the first response in a trial of a lower limit; `None` before that
    /// response.
    queue_at_start: Option<u32>,
}

/// Consecutive responses in batches of equal size. The variance of the batches' durations gives the
/// error of the throughput. Welford's method (1962) computes the variance.
#[derive(Debug, Clone, Copy, Default)]
struct Batches {
    /// Number of responses per batch.
    size: u32,
    /// Start of the present batch.
    start: Duration,
    /// Number of complete batches.
    count: u32,
    /// Mean duration of a batch in seconds.
    mean_secs: f64,
    /// Sum of the squared deviations from the mean, in square seconds.
    squared_deviations: f64,
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
            responses_without_queue: 0,
            last_progress: Duration::ZERO,
            accepted: None,
            trial: None,
            next_direction: Direction::Up,
            step: STEP_MAX,
            pause: PAUSE_MIN,
            next_trial: Duration::ZERO,
            ongoing: OngoingMeasurement::default(),
        }
    }

    /// Records that a call waits for a permit. `typical_latency` is the typical latency of the
    /// calls that hold permits; `None` if it is unknown.
    pub fn record_wait(&mut self, now: Duration, typical_latency: Option<Duration>) {
        self.begin_measurement(now);
        let usual_silence = typical_latency.map_or(SILENCE_UNKNOWN, |latency| latency * 2);
        let silence_max = usual_silence.max(self.normal_silence());
        let is_silent = now.saturating_sub(self.last_progress) >= silence_max;
        if is_silent || self.has_collapsed(now) {
            self.raise_without_trial(now);
        }
    }

    /// Records a response.
    pub fn record_response(&mut self, now: Duration, sample: ResponseSample) {
        if sample.queue > 0 {
            self.responses_without_queue = 0;
            self.begin_measurement(now);
        } else {
            self.responses_without_queue = self.responses_without_queue.saturating_add(1);
            if self.responses_without_queue >= IDLE_AFTER {
                self.end_queue(now);
            }
        }
        self.last_progress = now;
        if !self.limited {
            return;
        }
        self.ongoing.responses = self.ongoing.responses.saturating_add(1);
        if self.has_queue_grown(sample.queue) {
            self.reject(now, Direction::Down);
        } else if self.has_collapsed(now) {
            self.raise_without_trial(now);
        } else if sample.epoch == self.epoch {
            self.ongoing.record(now, sample, self.limit);
            if self.is_measurement_complete(now) || self.has_trial_failed() {
                self.judge_measurement(now);
            }
        }
    }

    /// Starts a measurement because calls wait. Does nothing if a measurement is in progress.
    fn begin_measurement(&mut self, now: Duration) {
        if self.limited {
            return;
        }
        self.limited = true;
        self.responses_without_queue = 0;
        self.saturated = self.settings.limit_min == self.settings.limit_max;
        self.ongoing.limit_set_at = now;
        if now.saturating_sub(self.last_progress) >= EXPIRES_AFTER {
            self.restart_search();
            self.ongoing = OngoingMeasurement::default();
        }
        self.last_progress = now;
    }

    /// Returns the longest normal time without a response: twice the mean latency, and at least
    /// [`SILENCE_MIN`].
    fn normal_silence(&self) -> Duration {
        // Little's law: latency = calls in flight / throughput.
        let mean_latency_secs =
            self.accepted.map_or(0.0, |accepted| f64::from(self.limit) / accepted.rate.max(1e-3));
        SILENCE_MIN.max(Duration::from_secs_f64(2.0 * mean_latency_secs))
    }

    /// Raises the limit without a trial, because too few responses arrive for a comparison.
    fn raise_without_trial(&mut self, now: Duration) {
        if self.limit < self.settings.limit_max {
            self.saturated = false;
            self.restart_search();
            self.set_limit(now, self.compute_next_limit(Direction::Up));
        }
    }

    /// Returns true if the queue has grown too much since the start of a trial of a lower limit.
    /// The first response in a trial stores the length of the queue.
    fn has_queue_grown(&mut self, queue: u32) -> bool {
        let (Some(Direction::Down), Some(accepted)) = (self.trial, &self.accepted) else {
            return false;
        };
        let queue_at_start = *self.ongoing.queue_at_start.get_or_insert(queue);
        let growth_max = SAMPLES_MIN.max((accepted.rate * QUEUE_GROWTH_MAX.as_secs_f64()) as u32);
        queue > queue_at_start + growth_max.max(queue_at_start / 2)
    }

    /// Returns true if far fewer responses arrive than in the accepted measurement. Returns false
    /// during a trial of a higher limit. Also returns false at the highest limit: the limit cannot
    /// rise, so the limiter measures the lower throughput instead.
    fn has_collapsed(&self, now: Duration) -> bool {
        let (None | Some(Direction::Down), Some(accepted)) = (self.trial, &self.accepted) else {
            return false;
        };
        if self.limit == self.settings.limit_max {
            return false;
        }
        let elapsed = now.saturating_sub(self.ongoing.limit_set_at);
        let expected = accepted.rate * elapsed.as_secs_f64();
        elapsed >= self.normal_silence()
            && f64::from(self.ongoing.responses) < expected * COLLAPSED_BELOW
    }

    /// Ends a measurement, because no call waits. Also ends a trial of a lower limit. A trial of a
    /// higher limit may itself be the reason why no call waits, so it continues when calls wait
    /// again.
    fn end_queue(&mut self, now: Duration) {
        if self.trial == Some(Direction::Down) {
            self.end_trial(now);
        }
        self.ongoing = OngoingMeasurement {
            limit_set_at: now,
            responses_to_skip: self.ongoing.responses_to_skip,
            ..OngoingMeasurement::default()
        };
        self.limited = false;
        self.saturated = false;
    }

    /// Drops the accepted limit and resets the search to its largest step, upwards and without a
    /// pause.
    fn restart_search(&mut self) {
        self.accepted = None;
        self.trial = None;
        self.next_direction = Direction::Up;
        self.step = STEP_MAX;
        self.pause = PAUSE_MIN;
        self.next_trial = Duration::ZERO;
    }

    /// Returns true if the measurement is exact enough or has taken long enough.
    fn is_measurement_complete(&self, now: Duration) -> bool {
        let ongoing = &self.ongoing;
        let Some(start) = ongoing.start else { return false };
        if now.saturating_sub(start) >= MEASUREMENT_TIME_MAX {
            return ongoing.samples >= SAMPLES_MIN;
        }
        let error_max = ERROR_MAX * self.step.ln() / STEP_MAX.ln();
        let is_exact =
            ongoing.batches.relative_error() <= error_max || ongoing.samples >= SAMPLES_MAX;
        ongoing.batches.count >= BATCHES_MIN && is_exact
    }

    /// Returns true if the trial clearly costs throughput.
    fn has_trial_failed(&self) -> bool {
        let (Some(_), Some(accepted)) = (self.trial, &self.accepted) else { return false };
        self.ongoing.samples >= SAMPLES_MIN * 2 && self.ongoing.rate() < accepted.rate * ABORT_BELOW
    }

    /// Ends the measurement. Accepts or rejects the limit on trial, if there is one, and starts the
    /// next trial if one is due.
    fn judge_measurement(&mut self, now: Duration) {
        let ended = std::mem::replace(
            &mut self.ongoing,
            OngoingMeasurement { limit_set_at: now, ..OngoingMeasurement::default() },
        );
        if ended.samples_with_queue * 2 < ended.samples {
            // The load was too low to measure the capacity.
            return;
        }
        let measured = ended.measure(self.limit);
        let (Some(direction), Some(accepted)) = (self.trial, &self.accepted) else {
            self.accepted = Some(measured);
            if now >= self.next_trial {
                self.try_next(now);
            }
            return;
        };
        // Scores are logarithms, so the relative error of a rate is the error of its score.
        let score_gain = measured.score() - accepted.score();
        let error = measured.error.hypot(accepted.error);
        let log_step = (f64::from(measured.limit) / f64::from(accepted.limit)).ln().abs();
        let is_better = match direction {
            // If noise decides between two limits, the lower one wins.
            Direction::Up => score_gain > error || !is_slower(accepted, &measured, log_step),
            Direction::Down => score_gain > 0.0 && is_slower(&measured, accepted, log_step),
        };
        if !is_better {
            self.reject(now, direction);
            return;
        }
        let throughput_gain = (measured.rate / accepted.rate).ln() - error;
        if direction == Direction::Up && throughput_gain > CAPACITY_LEFT_MIN * log_step {
            self.saturated = false;
        }
        self.accepted = Some(measured);
        self.continue_search(now);
    }

    /// Ends a failed trial. After a rejected higher limit, a lower one is tried at once.
    fn reject(&mut self, now: Duration, direction: Direction) {
        self.end_trial(now);
        self.reverse_search(now, direction);
        if direction == Direction::Up {
            self.try_next(now);
        }
    }

    /// Ends a trial and returns to the accepted limit.
    fn end_trial(&mut self, now: Duration) {
        self.trial = None;
        if let Some(Measurement { limit, .. }) = self.accepted {
            self.set_limit(now, limit);
        }
    }

    /// Continues the search in the same direction after the limit on trial was accepted.
    fn continue_search(&mut self, now: Duration) {
        self.trial = None;
        self.pause = PAUSE_MIN;
        // The step grows after a success. `reverse_search` takes the square root of the step after
        // failures, and squaring undoes this.
        let is_step_largest = self.step >= STEP_MAX;
        self.step = (self.step * self.step).min(STEP_MAX);
        // After a smaller step, no trial starts yet: the new limit is measured once more, because a
        // measurement that has won a comparison is likely to be too high by chance.
        if is_step_largest {
            self.try_next(now);
        }
    }

    /// Reverses the search after a trial in this direction has failed. Once both directions have
    /// failed, the step shrinks. If the step is already the smallest, the search pauses instead.
    fn reverse_search(&mut self, now: Duration, failed: Direction) {
        match failed {
            Direction::Up => {
                self.saturated = true;
                self.next_direction = Direction::Down;
            }
            Direction::Down => {
                self.next_direction = Direction::Up;
                if self.step > STEP_MIN {
                    self.step = self.step.sqrt().max(STEP_MIN);
                } else {
                    self.next_trial = now + self.pause;
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Starts a trial of the limit that is one step away in `next_direction`.
    fn try_next(&mut self, now: Duration) {
        let direction = self.next_direction;
        let next = self.compute_next_limit(direction);
        if next == self.limit {
            // The limit is at a bound, which counts as a failed trial.
            self.reverse_search(now, direction);
            return;
        }
        self.trial = Some(direction);
        self.set_limit(now, next);
    }

    /// Returns the limit that is one step away in this direction.
    fn compute_next_limit(&self, direction: Direction) -> u32 {
        let limit = f64::from(self.limit);
        let next_limit = match direction {
            Direction::Up => (limit * self.step).ceil(),
            Direction::Down => (limit / self.step).floor(),
        };
        (next_limit as u32).clamp(self.settings.limit_min, self.settings.limit_max)
    }

    /// Changes the limit and starts a new measurement.
    fn set_limit(&mut self, now: Duration, limit: u32) {
        self.limit = limit;
        self.epoch = self.epoch.wrapping_add(1);
        self.last_progress = now;
        self.ongoing = OngoingMeasurement {
            limit_set_at: now,
            responses_to_skip: limit,
            ..OngoingMeasurement::default()
        };
    }
}

impl Measurement {
    /// Returns the logarithm of `rate / limit^ELASTICITY`, which the search maximises.
    fn score(&self) -> f64 {
        self.rate.ln() - ELASTICITY * f64::from(self.limit).ln()
    }
}

impl OngoingMeasurement {
    /// Adds a response to the measurement. Before the start, only counts it as skipped.
    fn record(&mut self, now: Duration, sample: ResponseSample, limit: u32) {
        self.last_response = now;
        if self.start.is_none() {
            self.responses_to_skip = self.responses_to_skip.saturating_sub(1);
            if self.responses_to_skip == 0
                || now.saturating_sub(self.limit_set_at) >= MEASUREMENT_TIME_MAX
            {
                self.start = Some(now);
                self.batches = Batches { size: BATCH_MIN.max(limit), start: now, ..self.batches };
            }
            return;
        }
        self.samples += 1;
        self.samples_with_queue += u32::from(sample.queue > 0);
        self.latencies[sample.flow.index() % FLOW_BUCKETS].add(sample.latency);
        if self.samples.is_multiple_of(self.batches.size) {
            self.batches.add(now);
        }
    }

    fn measure(&self, limit: u32) -> Measurement {
        Measurement {
            limit,
            rate: self.rate(),
            error: self.batches.relative_error(),
            latencies: self.latencies,
        }
    }

    /// Returns the responses per second since the start.
    fn rate(&self) -> f64 {
        let start = self.start.unwrap_or(self.last_response);
        f64::from(self.samples) / self.last_response.saturating_sub(start).as_secs_f64().max(1e-6)
    }
}

impl LatencySamples {
    fn add(&mut self, latency: Duration) {
        let seconds = latency.as_secs_f64();
        self.count += 1;
        self.sum_secs += seconds;
        self.sum_of_squared_secs += seconds * seconds;
    }

    /// Returns the mean in seconds and its relative standard error.
    fn mean_and_error(&self) -> (f64, f64) {
        let count = f64::from(self.count);
        let mean = (self.sum_secs / count).max(1e-6);
        let variance = (self.sum_of_squared_secs / count - mean * mean).max(0.0);
        (mean, (variance / count).sqrt() / mean)
    }
}

/// Returns true if the calls of any flow take longer at the higher of two limits. Also returns true
/// if no flow has enough samples at both limits; then only the scores decide. `log_step` is the
/// logarithm of the factor between the limits.
fn is_slower(lower: &Measurement, higher: &Measurement, log_step: f64) -> bool {
    let flows = lower.latencies.iter().zip(&higher.latencies);
    let mut comparable = flows
        .filter(|(at_lower, at_higher)| at_lower.count.min(at_higher.count) >= SAMPLES_MIN)
        .peekable();
    comparable.peek().is_none()
        || comparable.any(|(at_lower, at_higher)| {
            let (lower_mean, lower_error) = at_lower.mean_and_error();
            let (higher_mean, higher_error) = at_higher.mean_and_error();
            let growth = (higher_mean / lower_mean).ln() - lower_error.hypot(higher_error);
            growth > SLOWDOWN_MIN * log_step
        })
}

impl Batches {
    /// Ends the present batch.
    fn add(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.start).as_secs_f64();
        self.start = now;
        self.count += 1;
        // Welford's sum adds the deviation from the former mean times the deviation from the new
        // mean.
        let deviation = seconds - self.mean_secs;
        self.mean_secs += deviation / f64::from(self.count);
        self.squared_deviations += deviation * (seconds - self.mean_secs);
    }

    /// Returns the relative standard error of the throughput.
    fn relative_error(&self) -> f64 {
        if self.count < 2 {
            return ERROR_UNKNOWN;
        }
        let count = f64::from(self.count);
        let variance = self.squared_deviations / (count - 1.0);
        (variance / count).sqrt() / self.mean_secs.max(1e-9)
    }
}
