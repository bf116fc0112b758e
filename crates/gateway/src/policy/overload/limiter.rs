//! Finds the concurrency limit of a group: the largest number of calls that may be in flight. The
//! limit is not configured; the limiter finds it by experiment. A *permit* allows one call to be in
//! flight.
//!
//! The limit matters only while calls wait for a permit. A limit that makes calls wait must have been
//! shown to protect the upstreams: at first it grows with the waiting calls, and calls are shed only
//! after a trial in which a lower limit kept the throughput (`limiter/growth.rs`). So the limit is
//! not for long below the number of calls in flight that Little's law requires: offered rate times
//! latency. There are two exceptions: the highest limit cannot rise, and if calls take longer than
//! [`PROOF_LATENCY_MAX`], a proof would take too long.
//!
//! Once the upstreams are proven *saturated*, the limiter searches the best limit. In a *trial* it
//! changes the limit, and compares the throughput (responses per second) with the throughput at the
//! *accepted* limit, which is the result of earlier trials. If upstreams have capacity left,
//! throughput rises with the number of calls in flight, however long each call takes. If upstreams
//! are saturated, throughput stays the same and each call takes longer. So a higher latency alone
//! never lowers the limit. If no call waits for a second, the proof expires.
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
//! In three situations the search changes the limit without a comparison:
//!
//! - Calls wait and no response arrives: upstreams have stalled or become slow. The limit doubles.
//! - Far fewer responses arrive than before at the same limit: long calls hold the permits, or the
//!   upstreams have become slower. The limit doubles.
//! - In a trial of a lower limit, far fewer responses arrive than before: the trial ends, and the
//!   accepted limit returns.
//!
//! Algorithms that compare latency with a baseline (Envoy's adaptive concurrency, Netflix'
//! `Gradient2Limit`, TCP Vegas) were rejected. Upstreams may become slower and still have capacity
//! left, but these algorithms treat them as overloaded until the baseline has risen. BBR (Cardwell and
//! others, "BBR: Congestion-Based Congestion Control", ACM Queue 2016) also measures by phases whether
//! more data in flight raise the throughput, but it assumes a constant minimum latency. A comparison
//! of only the latencies at two limits was tried as well. With mixed methods it reached 60 % of the
//! upstreams' throughput in a simulation, because a queue slows short calls disproportionately.
//!
//! All threads share the limiter of a group, because only a change that applies to the whole group
//! shows in the group's throughput.

use std::time::Duration;

use crate::policy::overload::limiter::measurement::{Measurement, OngoingMeasurement, is_slower};
use crate::policy::overload::shares::Flow;

mod growth;
mod measurement;
#[cfg(test)]
mod tests;

/// Initial limit, which the configured bounds may raise or lower.
pub const LIMIT_START: u32 = 64;

/// Factor between two compared limits at the start of a search.
const STEP_MAX: f64 = 2.0;
/// Factor between two compared limits at the end of a search.
const STEP_MIN: f64 = 1.4;

/// First pause after trials in both directions have failed with the smallest step. Until a trial
/// succeeds, each further pause is twice as long, because each trial costs some throughput.
const PAUSE_MIN: Duration = Duration::from_secs(3);
/// Longest pause after such a pair of failed trials.
const PAUSE_MAX: Duration = Duration::from_secs(12);

/// Upstreams count as silent only if no response has arrived for at least this time.
const SILENCE_MIN: Duration = Duration::from_millis(50);
/// While the typical latency is unknown, upstreams count as silent only after this time.
const SILENCE_UNKNOWN: Duration = Duration::from_millis(500);

/// Minimum number of batches of responses in a measurement.
const BATCHES_MIN: u32 = 4;
/// With the largest step, a measurement ends once the relative error of its throughput is at most
/// this. A smaller step requires a smaller error.
const ERROR_MAX: f64 = 0.05;
/// Number of responses after which a measurement with at least `BATCHES_MIN` batches ends, even if
/// its error is larger.
const SAMPLES_MAX: u32 = 2048;

/// Time after which a measurement with at least `SAMPLES_MIN` responses ends. It matters for
/// upstreams that need seconds for a response.
const MEASUREMENT_TIME_MAX: Duration = Duration::from_secs(1);
/// Minimum number of responses for any conclusion.
const SAMPLES_MIN: u32 = 16;

/// If no call has waited for this time, the upstreams have capacity left: nothing is known about a
/// limit any more, and the next queue starts a new growth phase.
const PROOF_EXPIRES_AFTER: Duration = Duration::from_secs(1);
/// The calls in flight grow slowly if no call has waited for this time between two raises of the
/// limit.
const SLOW_GROWTH_AFTER: Duration = Duration::from_millis(100);
/// A reference of the growth phase is dropped after this time.
const REFERENCE_EXPIRES_AFTER: Duration = Duration::from_secs(30);

/// If the mean latency exceeds this time, so few responses arrive that a proof would take too long.
const PROOF_LATENCY_MAX: Duration = Duration::from_secs(2);

/// A trial ends early if its throughput is below this fraction of the accepted throughput.
const ABORT_BELOW: f64 = 0.75;

/// A trial of a higher limit shows that upstreams have capacity left if `ln(throughput ratio)`
/// exceeds this share of `ln(limit ratio)`. Both ratios divide the value on trial by the accepted
/// value. A smaller rise of the throughput may be noise, so the upstreams still count as
/// overloaded.
const CAPACITY_LEFT_MIN: f64 = 0.5;

/// If throughput falls below this fraction of the accepted throughput, slow calls hold the permits
/// or the upstreams have become slower. In both cases the limit is raised.
const COLLAPSED_BELOW: f64 = 0.2;

/// A trial of a lower limit ends early if the number of responses since its start is below this
/// fraction of the number that the accepted throughput gives.
const HOPELESS_BELOW: f64 = 0.5;
/// Minimum number of expected responses for that decision, which is also at least the limit. With 32
/// expected and independent responses, fewer than 16 arrive by chance in one of 1,000 cases.
const HOPELESS_SAMPLES_MIN: f64 = 32.0;

/// The queue counts as empty after this many consecutive responses without a waiting call; in the
/// growth phase, after at least as many as the limit.
const IDLE_AFTER: u32 = 16;

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
    phase: Phase,
    /// Number of calls that wait for permits, as far as it is known.
    waiting: u32,
    /// Number of consecutive responses without a waiting call.
    responses_without_queue: u32,
    /// Time of the latest of these events: a response, a change of the limit, the start of a queue.
    last_progress: Duration,
    /// Growth phase: the measurement with which later ones are compared, and its time.
    reference: Option<(Duration, Measurement)>,
    /// Growth phase: true if no call waited for [`SLOW_GROWTH_AFTER`] since the reference.
    grew_slowly: bool,
    /// Proof phase: the limit before the trial.
    limit_before_proof: u32,
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

/// What the limiter does while calls wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing has shown that the upstreams are saturated. The limit rises with each waiting call.
    Growth,
    /// The upstreams are suspected to be saturated. A lower limit is on trial.
    Proof,
    /// A lower limit has not reduced the throughput. The limiter searches the best limit.
    Search,
}

/// Direction of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The limit on trial is higher than the accepted limit.
    Up,
    /// The limit on trial is lower than the accepted limit.
    Down,
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
            phase: Phase::Growth,
            waiting: 0,
            responses_without_queue: 0,
            last_progress: Duration::ZERO,
            reference: None,
            grew_slowly: false,
            limit_before_proof: 0,
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
        self.waiting = self.waiting.saturating_add(1);
        let usual_silence = typical_latency.map_or(SILENCE_UNKNOWN, |latency| latency * 2);
        let silence_max = usual_silence.max(self.normal_silence());
        let is_silent = now.saturating_sub(self.last_progress) >= silence_max;
        match self.phase {
            // Without any response, nothing shows that the upstreams are saturated.
            Phase::Growth if is_silent || typical_latency.is_none() => self.follow_demand(now),
            Phase::Growth => {}
            Phase::Proof if is_silent || self.is_trial_hopeless(now) => self.reject_proof(now),
            Phase::Proof => {}
            Phase::Search if self.is_trial_hopeless(now) => self.reject(now, Direction::Down),
            Phase::Search if is_silent || self.has_collapsed(now) => self.raise_without_trial(now),
            Phase::Search => {}
        }
    }

    /// Records a response.
    pub fn record_response(&mut self, now: Duration, sample: ResponseSample) {
        self.waiting = sample.queue;
        if sample.queue > 0 {
            self.responses_without_queue = 0;
            self.begin_measurement(now);
        } else {
            self.responses_without_queue = self.responses_without_queue.saturating_add(1);
            // In the growth phase, the limit may just have risen. Calls wait again once the calls in
            // flight have risen too, which takes about as many responses as the limit.
            let idle_after = match self.phase {
                Phase::Growth => IDLE_AFTER.max(self.limit),
                Phase::Proof | Phase::Search => IDLE_AFTER,
            };
            if self.responses_without_queue >= idle_after {
                self.end_queue(now);
            }
        }
        self.last_progress = now;
        if !self.limited {
            return;
        }
        self.ongoing.responses = self.ongoing.responses.saturating_add(1);
        match self.phase {
            Phase::Growth => self.measure_growth(now, sample),
            Phase::Proof => self.measure_proof(now, sample),
            Phase::Search => self.measure_search(now, sample),
        }
    }

    /// Returns true if far fewer responses arrive in a trial of a lower limit.
    fn is_trial_hopeless(&self, now: Duration) -> bool {
        let (Some(Direction::Down), Some(accepted)) = (self.trial, &self.accepted) else {
            return false;
        };
        let elapsed = now.saturating_sub(self.ongoing.limit_set_at);
        let expected = accepted.rate * elapsed.as_secs_f64();
        expected >= HOPELESS_SAMPLES_MIN.max(f64::from(self.limit))
            && f64::from(self.ongoing.responses) < expected * HOPELESS_BELOW
    }

    /// Search phase: adds a response to the measurement, and ends the measurement if its result is
    /// clear.
    fn measure_search(&mut self, now: Duration, sample: ResponseSample) {
        if self.is_trial_hopeless(now) {
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
        self.waiting = 0;
        self.saturated = self.settings.limit_min == self.settings.limit_max;
        self.ongoing.limit_set_at = now;
        let pause = now.saturating_sub(self.last_progress);
        if self.phase == Phase::Growth && pause < REFERENCE_EXPIRES_AFTER {
            self.grew_slowly |= pause >= SLOW_GROWTH_AFTER;
        } else if pause >= PROOF_EXPIRES_AFTER.max(self.normal_silence()) {
            self.restart_search();
        }
        self.ongoing = OngoingMeasurement::new(now, self.ongoing.responses_to_skip);
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
            self.phase = Phase::Search;
            self.set_limit(now, self.compute_next_limit(Direction::Up));
        }
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
        if self.phase == Phase::Proof {
            self.reject_proof(now);
        } else if self.trial == Some(Direction::Down) {
            self.end_trial(now);
        }
        self.ongoing = OngoingMeasurement::new(now, self.ongoing.responses_to_skip);
        self.limited = false;
        self.saturated = false;
    }

    /// Drops the accepted limit and resets the search to its largest step, upwards and without a
    /// pause.
    fn restart_search(&mut self) {
        self.phase = Phase::Growth;
        self.reference = None;
        self.grew_slowly = false;
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
        if self.has_measured_long(now) {
            return true;
        }
        let error_max = ERROR_MAX * self.step.ln() / STEP_MAX.ln();
        let is_exact =
            ongoing.batches.relative_error() <= error_max || ongoing.samples >= SAMPLES_MAX;
        ongoing.batches.count >= BATCHES_MIN && is_exact
    }

    /// Returns true if the measurement has taken long enough, even if it is not exact.
    fn has_measured_long(&self, now: Duration) -> bool {
        let start = self.ongoing.start;
        start.is_some_and(|start| now.saturating_sub(start) >= MEASUREMENT_TIME_MAX)
            && self.ongoing.samples >= SAMPLES_MIN
    }

    /// Returns true if the trial clearly costs throughput.
    fn has_trial_failed(&self) -> bool {
        let (Some(_), Some(accepted)) = (self.trial, &self.accepted) else { return false };
        self.ongoing.samples >= SAMPLES_MIN * 2 && self.ongoing.rate() < accepted.rate * ABORT_BELOW
    }

    /// Ends the measurement. Accepts or rejects the limit on trial, if there is one, and starts the
    /// next trial if one is due.
    fn judge_measurement(&mut self, now: Duration) {
        let ended = std::mem::replace(&mut self.ongoing, OngoingMeasurement::new(now, 0));
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
        let tolerance = if measured.is_slow() { error } else { 0.0 };
        let is_better = match direction {
            // If noise decides between two limits, the lower one wins.
            Direction::Up => score_gain > error || !is_slower(accepted, &measured, log_step),
            Direction::Down => score_gain > -tolerance && is_slower(&measured, accepted, log_step),
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
        self.ongoing = OngoingMeasurement::new(now, limit);
    }
}
