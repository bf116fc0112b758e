//! Hedging: decides when a second upstream gets a call to which the first has not responded yet.
//!
//! Callers must not count a hedge twice. The client's call counts once in limits, the retry budget
//! and metrics of calls. Only the attempt whose response is used counts for latency and health. The
//! other attempt is cancelled. A cancelled attempt is neither a success nor a failure of its
//! upstream; an attempt that failed before counts as a failure. A hedge is not an attempt in the
//! sense of `retry`. If both fail, one retry decision is made, about the first.

use std::time::Duration;

use wire::method::Repeat;

use crate::policy::stall;

#[cfg(test)]
mod tests;

/// Number of classes of methods by weight. Each class has its own latencies. The classes are the
/// powers of two from 1 to 128; heavier methods belong to the last class.
pub const CLASSES: usize = 8;

/// Minimum number of responses for a quantile. With only twenty, p95 would depend on a single
/// response.
pub const SAMPLES_MIN: u32 = 60;

/// Half-life of the counted responses.
pub const HALF_LIFE: Duration = Duration::from_secs(30);

/// Maximum number of saved hedges. It allows hedges at a sudden stall without doubling the load.
pub const SAVED_MAX: f64 = 10.0;

/// Buckets per octave of the histogram, so values are exact to an eighth of an octave.
const BUCKETS_PER_OCTAVE: usize = 8;

/// Lowest octave: 2^6 = 64 µs. A faster response counts as 64 µs.
const OCTAVE_MIN: u32 = 6;

/// Number of octaves. The highest ends at 2^26 µs = 67 s, above every attempt's deadline.
const OCTAVES: usize = 20;

/// Buckets of one histogram.
const BUCKETS: usize = BUCKETS_PER_OCTAVE * OCTAVES;

/// Responses after which the quantile is computed again.
const SAMPLES_PER_UPDATE: u32 = 64;

/// The quantile that separates a stalled upstream from a slow one.
const STALL_QUANTILE: f64 = 0.99;

/// Hedging settings; see `config::group::Hedge`.
#[derive(Debug, Clone, Copy)]
pub struct HedgeSettings {
    /// Quantile of the class's latency after which the second upstream gets the call.
    pub quantile: f64,
    /// Shortest delay.
    pub delay_min: Duration,
    /// Maximum number of hedges, as a share of calls.
    pub share_max: f64,
}

/// Latencies by class, and the hedge budget, of one group on one thread.
#[derive(Debug)]
pub struct Hedge {
    /// `None` if calls are not hedged.
    settings: Option<HedgeSettings>,
    classes: Vec<Latency>,
    /// Number of hedges that the budget allows now.
    saved_hedges: f64,
}

impl Hedge {
    /// Creates the state of a group. Without latencies there are no hedges at first.
    pub fn new(settings: Option<HedgeSettings>) -> Self {
        Self { settings, classes: vec![Latency::default(); CLASSES], saved_hedges: 0.0 }
    }

    /// Records a new call. Returns the delay after which a second upstream may get it, or `None` if
    /// this call is not hedged. After the delay, the caller asks [`Hedge::try_charge`] for
    /// permission.
    pub fn record_call(
        &mut self,
        repeat: Repeat,
        weight: u32,
        other_upstream: bool,
    ) -> Option<Duration> {
        let settings = self.settings?;
        self.saved_hedges = (self.saved_hedges + settings.share_max).min(SAVED_MAX);
        if repeat == Repeat::Never || !other_upstream {
            return None;
        }
        let quantiles = self.classes[class_of(weight)].quantiles(settings.quantile)?;
        Some(quantiles.hedge.max(settings.delay_min))
    }

    /// Returns how long a call of this weight waits before it suspects an upstream that responds to
    /// no call.
    pub fn patience(&mut self, weight: u32) -> Duration {
        let quantile = self.settings.map_or(STALL_QUANTILE, |settings| settings.quantile);
        let mut p99 =
            |class: usize| self.classes[class].quantiles(quantile).map(|values| values.stall);
        let call_class = class_of(weight);
        if let Some(latency) = p99(call_class) {
            return stall::compute_patience(latency);
        }
        // The weight, and with it the expected latency, doubles from one class to the next.
        let estimate = (1..=call_class).find_map(|octaves| {
            p99(call_class - octaves).map(|lighter| lighter.saturating_mul(1 << octaves))
        });
        stall::estimate_patience(estimate)
    }

    /// Returns true, and charges the budget, if the second attempt is allowed.
    pub fn try_charge(&mut self) -> bool {
        let allowed = self.saved_hedges >= 1.0;
        if allowed {
            self.saved_hedges -= 1.0;
        }
        allowed
    }

    /// Records the [`cap_latency`] of a call of this weight.
    pub fn observe(&mut self, now: Duration, weight: u32, latency: Duration) {
        self.classes[class_of(weight)].observe(now, latency);
    }
}

/// Returns how long a call would have taken if its last attempt, which took `attempt`, had started
/// after `delay`. A call may wait far longer at stalled upstreams, until the budget allows another
/// attempt. This wait says nothing about the usual latency of such calls. If it counted, the next
/// stall would be detected later.
pub fn cap_latency(total: Duration, attempt: Duration, delay: Duration) -> Duration {
    total.min(delay + attempt)
}

fn class_of(weight: u32) -> usize {
    (weight.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// A decaying histogram: all counts are halved once per half-life.
#[derive(Debug, Clone)]
struct Latency {
    counts: [u32; BUCKETS],
    total: u32,
    /// Time of the last halving.
    halved_at: Duration,
    cached: Option<Quantiles>,
    /// Number of responses since `cached` was computed.
    since_cached: u32,
}

/// Two quantiles of a latency.
#[derive(Debug, Clone, Copy)]
struct Quantiles {
    /// The quantile after which a call is hedged.
    hedge: Duration,
    /// [`STALL_QUANTILE`].
    stall: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            halved_at: Duration::ZERO,
            cached: None,
            since_cached: 0,
        }
    }
}

impl Latency {
    fn observe(&mut self, now: Duration, latency: Duration) {
        while self.total > 0 && now.saturating_sub(self.halved_at) >= HALF_LIFE {
            self.halve();
            self.halved_at += HALF_LIFE;
        }
        if self.total == 0 {
            self.halved_at = now;
        }
        // The total is bounded, so that sums cannot overflow at any rate of responses.
        if self.total >= u32::MAX / 2 {
            self.halve();
        }
        self.counts[bucket_of(latency)] += 1;
        self.total += 1;
        self.since_cached += 1;
    }

    fn halve(&mut self) {
        for count in &mut self.counts {
            *count /= 2;
        }
        self.total = self.counts.iter().sum();
        self.cached = None;
    }

    /// Returns `quantile` and [`STALL_QUANTILE`] as the upper bounds of their buckets. `None` if
    /// there are too few samples.
    fn quantiles(&mut self, quantile: f64) -> Option<Quantiles> {
        if self.total < SAMPLES_MIN {
            return None;
        }
        if self.cached.is_none() || self.since_cached >= SAMPLES_PER_UPDATE {
            self.cached = Some(Quantiles {
                hedge: self.upper_bound_of(quantile),
                stall: self.upper_bound_of(STALL_QUANTILE),
            });
            self.since_cached = 0;
        }
        self.cached
    }

    fn upper_bound_of(&self, quantile: f64) -> Duration {
        let rank = (f64::from(self.total) * quantile).ceil() as u32;
        let mut counted = 0;
        let bucket = self.counts.iter().position(|&count| {
            counted += count;
            counted >= rank
        });
        upper_bound(bucket.unwrap_or(BUCKETS - 1))
    }
}

fn bucket_of(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let micros = micros.max(1 << OCTAVE_MIN);
    let octave = micros.ilog2();
    let sub_bucket =
        (micros >> (octave - BUCKETS_PER_OCTAVE.ilog2())) as usize % BUCKETS_PER_OCTAVE;
    ((octave - OCTAVE_MIN) as usize * BUCKETS_PER_OCTAVE + sub_bucket).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let octave = OCTAVE_MIN + (bucket / BUCKETS_PER_OCTAVE) as u32;
    let width = 1_u64 << (octave - BUCKETS_PER_OCTAVE.ilog2());
    Duration::from_micros((1 << octave) + width * (bucket % BUCKETS_PER_OCTAVE + 1) as u64)
}
