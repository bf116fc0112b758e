//! Measurements of throughput and latency, and their comparison. A *flow* is the calls of one
//! client to methods of similar weight (`shares.rs`).

use std::time::Duration;

use crate::policy::overload::limiter::{
    MEASUREMENT_TIME_MAX, PROOF_LATENCY_MAX, ResponseSample, SAMPLES_MIN,
};

/// Exponent of the limit in the score. A higher limit scores better if the relative rise of the
/// throughput exceeds this fraction of the relative rise of the limit.
const ELASTICITY: f64 = 0.15;

/// Minimum number of responses in a batch. A batch also has at least one response per permit.
const BATCH_MIN: u32 = 8;

/// Number of batches in a measurement with a given number of responses.
const BATCHES: u32 = 8;

/// Relative error assumed for fewer than two batches.
const ERROR_UNKNOWN: f64 = 0.2;

/// Calls of a flow are slower at the higher of two limits if `ln(latency ratio)` exceeds this share
/// of `ln(limit ratio)`.
const SLOWDOWN_MIN: f64 = 0.3;

/// Number of buckets for the latencies of flows. Several flows share a bucket.
const FLOW_BUCKETS: usize = 32;

/// Measurements at one limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measurement {
    /// Number of calls in flight.
    pub limit: u32,
    /// Responses per second.
    pub rate: f64,
    /// Relative standard error of `rate`.
    pub error: f64,
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
pub(super) struct OngoingMeasurement {
    /// Time when the limit was set, or when a new measurement at the same limit began.
    pub limit_set_at: Duration,
    /// Number of responses since `limit_set_at`.
    pub responses: u32,
    /// Number of responses to skip before the start, because the former limit may have affected
    /// their calls. A new limit sets it to the number of calls that the limit allows.
    pub responses_to_skip: u32,
    /// Start of the measurement; `None` while responses are skipped.
    pub start: Option<Duration>,
    last_response: Duration,
    /// Number of responses since the start.
    pub samples: u32,
    /// Number of responses since the start that arrived while calls waited.
    pub samples_with_queue: u32,
    pub batches: Batches,
    latencies: Latencies,
}

/// Consecutive responses in batches of equal size. The variance of the batches' durations gives the
/// error of the throughput. Welford's method (1962) computes the variance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Batches {
    /// Number of responses per batch.
    size: u32,
    /// Start of the present batch.
    start: Duration,
    /// Number of complete batches.
    pub count: u32,
    /// Mean duration of a batch in seconds.
    mean_secs: f64,
    /// Sum of the squared deviations from the mean, in square seconds.
    squared_deviations: f64,
}

impl Measurement {
    /// Drops the latencies, so that only the throughput is compared.
    pub(super) fn without_latencies(self) -> Measurement {
        Measurement { latencies: Latencies::default(), ..self }
    }

    /// Returns true if calls take so long that a proof would take too long. Only measured latencies
    /// count: few responses may also arrive because the upstreams have just become slower.
    pub(super) fn is_slow(&self) -> bool {
        let count: u32 = self.latencies.iter().map(|flow| flow.count).sum();
        let sum_secs: f64 = self.latencies.iter().map(|flow| flow.sum_secs).sum();
        sum_secs > PROOF_LATENCY_MAX.as_secs_f64() * f64::from(count)
    }

    /// Returns the logarithm of `rate / limit^ELASTICITY`, which the search maximises.
    pub(super) fn score(&self) -> f64 {
        self.rate.ln() - ELASTICITY * f64::from(self.limit).ln()
    }
}

impl OngoingMeasurement {
    /// Creates a measurement at a limit that was set at this time.
    pub(super) fn new(limit_set_at: Duration, responses_to_skip: u32) -> OngoingMeasurement {
        OngoingMeasurement { limit_set_at, responses_to_skip, ..OngoingMeasurement::default() }
    }

    /// Adds a response to the measurement. Before the start, only counts it as skipped.
    pub(super) fn record(&mut self, now: Duration, sample: ResponseSample, limit: u32) {
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
        self.add(now, sample);
    }

    /// Starts the measurement unless it has started. It is to have at least this number of
    /// responses.
    pub(super) fn begin(&mut self, now: Duration, samples: u32) {
        if self.start.is_none() {
            self.start = Some(now);
            self.last_response = now;
            let size = samples.div_ceil(BATCHES);
            self.batches = Batches { size, start: now, ..Batches::default() };
        }
    }

    /// Adds a response after the start. Returns true if [`BATCHES`] batches are complete.
    pub(super) fn add(&mut self, now: Duration, sample: ResponseSample) -> bool {
        self.last_response = now;
        self.samples += 1;
        self.samples_with_queue += u32::from(sample.queue > 0);
        self.latencies[sample.flow.index() % FLOW_BUCKETS].add(sample.latency);
        if self.samples.is_multiple_of(self.batches.size) {
            self.batches.add(now);
        }
        self.batches.count >= BATCHES
    }

    /// Returns the measurement so far. `limit` is the number of calls in flight.
    pub(super) fn measure(&self, limit: u32) -> Measurement {
        Measurement {
            limit,
            rate: self.rate(),
            error: self.batches.relative_error(),
            latencies: self.latencies,
        }
    }

    /// Returns the responses per second since the start.
    pub(super) fn rate(&self) -> f64 {
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
pub(super) fn is_slower(lower: &Measurement, higher: &Measurement, log_step: f64) -> bool {
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
    pub(super) fn relative_error(&self) -> f64 {
        if self.count < 2 {
            return ERROR_UNKNOWN;
        }
        let count = f64::from(self.count);
        let variance = self.squared_deviations / (count - 1.0);
        (variance / count).sqrt() / self.mean_secs.max(1e-9)
    }
}
