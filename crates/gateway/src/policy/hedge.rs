//! Hedging: decides when a second upstream gets a call to which the first has not responded yet.
//! This second attempt is a *hedge*. A budget bounds the share of calls that are hedged. The
//! *weight* of a method is its approximate cost, relative to a cheap read.
//!
//! Callers must not count a hedged call twice. The client's call counts once in limits, in the
//! retry budget and in the metrics of calls. Only the attempt whose response is used counts for
//! latency and health. The other attempt is cancelled. A cancelled attempt counts neither as a
//! success nor as a failure of its upstream. An attempt that failed before the other one ended
//! counts as a failure. `retry` does not count a hedge as an attempt. If both attempts fail,
//! `retry` decides about the attempt that failed last.

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

/// Interval at which the counts of the histogram are halved.
pub const HALF_LIFE: Duration = Duration::from_secs(30);

/// Maximum number of saved hedges. Each call adds a fraction of a hedge to the budget. Saved hedges
/// help when an upstream stalls suddenly, and the maximum prevents a doubled load.
pub const SAVED_MAX: f64 = 10.0;

/// Number of buckets per octave of the histogram. An octave spans a factor of two. So the bounds of
/// a bucket differ by at most an eighth.
const BUCKETS_PER_OCTAVE: usize = 8;

/// Lowest octave: 2^6 = 64 µs. A faster response counts as 64 µs.
const OCTAVE_MIN: u32 = 6;

/// Number of octaves. The highest one ends at 2^26 µs = 67 s, above every attempt's deadline.
const OCTAVES: usize = 20;

/// Number of buckets of a histogram.
const BUCKETS: usize = BUCKETS_PER_OCTAVE * OCTAVES;

/// Number of responses after which the quantiles are computed again.
const SAMPLES_PER_UPDATE: u32 = 64;

/// The quantile that separates a stalled upstream from a slow one.
const STALL_QUANTILE: f64 = 0.99;

/// Hedging settings; see `config::group::Hedge`.
#[derive(Debug, Clone, Copy)]
pub struct HedgeSettings {
    /// Quantile of the latency, from 0 to 1. The second upstream gets the call once the call has
    /// taken longer than this quantile of its class.
    pub quantile: f64,
    /// Shortest time after which the second upstream gets the call.
    pub delay_min: Duration,
    /// Maximum number of hedges, as a share of calls from 0 to 1.
    pub share_max: f64,
}

/// The latencies and the hedge budget of one group on one thread.
#[derive(Debug)]
pub struct Hedge {
    /// `None` if calls are not hedged.
    settings: Option<HedgeSettings>,
    /// Latencies by class of method weights.
    histograms: Vec<LatencyHistogram>,
    /// Number of hedges that the budget allows now.
    saved_hedges: f64,
}

impl Hedge {
    /// Creates the state of a group. Without latencies there are no hedges at first.
    pub fn new(settings: Option<HedgeSettings>) -> Self {
        Self { settings, histograms: vec![LatencyHistogram::default(); CLASSES], saved_hedges: 0.0 }
    }

    /// Records a new call. `other_upstream` is true if a second usable upstream exists. Returns the
    /// delay after which the second upstream may get the call. After the delay, the caller must get
    /// permission from [`Hedge::try_charge`]. Returns `None` if the call is not hedged: hedging is
    /// off, there is no second upstream, the call must not be sent twice ([`Repeat::Never`]), or
    /// too few latencies of its class are known.
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
        self.delay(weight)
    }

    /// Returns the delay after which the second upstream may get a call of this weight; `None` if
    /// hedging is off or too few latencies of its class are known.
    pub fn delay(&mut self, weight: u32) -> Option<Duration> {
        let settings = self.settings?;
        let quantiles =
            self.histograms[class_index(weight)].compute_quantiles(settings.quantile)?;
        Some(quantiles.hedge.max(settings.delay_min))
    }

    /// Returns the patience of a call of this weight: how long it waits before it suspects an
    /// upstream that responds to no call (`stall.rs`).
    pub fn patience(&mut self, weight: u32) -> Duration {
        // Both quantiles are cached together, so the quantile for hedges must be passed here too.
        let quantile = self.settings.map_or(STALL_QUANTILE, |settings| settings.quantile);
        let mut p99 = |class: usize| {
            self.histograms[class].compute_quantiles(quantile).map(|values| values.stall)
        };
        let call_class = class_index(weight);
        if let Some(latency) = p99(call_class) {
            return stall::compute_patience(latency);
        }
        // The weight doubles from one class to the next, and the latency is expected to double too.
        // So the latency of a lighter class gives an estimate.
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

    /// Records the latency of a call of this weight. The latency must come from [`cap_latency`].
    pub fn observe(&mut self, now: Duration, weight: u32, latency: Duration) {
        self.histograms[class_index(weight)].observe(now, latency);
    }
}

/// Returns the latency of a call without its wait at stalled upstreams. The result is at most the
/// usual delay before a hedge (`delay`, zero if unknown) plus the duration of the last attempt
/// (`attempt`).
///
/// Until the budget allows another attempt, a call may wait at stalled upstreams for far longer
/// than usual. If this wait counted as latency, the next stall would be detected later.
pub fn cap_latency(total: Duration, attempt: Duration, delay: Duration) -> Duration {
    total.min(delay + attempt)
}

/// Returns the class of calls of this weight.
fn class_index(weight: u32) -> usize {
    (weight.max(1).ilog2() as usize).min(CLASSES - 1)
}

/// A decaying histogram: all counts are halved once per half-life.
#[derive(Debug, Clone)]
struct LatencyHistogram {
    /// Number of responses by bucket.
    counts: [u32; BUCKETS],
    /// Sum of `counts`.
    total: u32,
    /// Time of the last halving.
    halved_at: Duration,
    /// The last computed quantiles.
    cached: Option<Quantiles>,
    /// Number of responses since `cached` was computed.
    samples_since_cached: u32,
}

/// Two quantiles of a latency.
#[derive(Debug, Clone, Copy)]
struct Quantiles {
    /// The latency at [`HedgeSettings::quantile`].
    hedge: Duration,
    /// The latency at [`STALL_QUANTILE`].
    stall: Duration,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            total: 0,
            halved_at: Duration::ZERO,
            cached: None,
            samples_since_cached: 0,
        }
    }
}

impl LatencyHistogram {
    fn observe(&mut self, now: Duration, latency: Duration) {
        while self.total > 0 && now.saturating_sub(self.halved_at) >= HALF_LIFE {
            self.halve();
            self.halved_at += HALF_LIFE;
        }
        if self.total == 0 {
            self.halved_at = now;
        }
        // Halving bounds the total, so sums cannot overflow.
        if self.total >= u32::MAX / 2 {
            self.halve();
        }
        self.counts[bucket_index(latency)] += 1;
        self.total += 1;
        self.samples_since_cached += 1;
    }

    fn halve(&mut self) {
        for count in &mut self.counts {
            *count /= 2;
        }
        self.total = self.counts.iter().sum();
        self.cached = None;
    }

    /// Returns the latencies at `quantile` and at [`STALL_QUANTILE`], as the upper bounds of their
    /// buckets. `None` if there are too few samples.
    fn compute_quantiles(&mut self, quantile: f64) -> Option<Quantiles> {
        if self.total < SAMPLES_MIN {
            return None;
        }
        if self.cached.is_none() || self.samples_since_cached >= SAMPLES_PER_UPDATE {
            self.cached = Some(Quantiles {
                hedge: self.find_quantile(quantile),
                stall: self.find_quantile(STALL_QUANTILE),
            });
            self.samples_since_cached = 0;
        }
        self.cached
    }

    /// Returns the upper bound of the bucket with this quantile.
    fn find_quantile(&self, quantile: f64) -> Duration {
        let rank = (f64::from(self.total) * quantile).ceil() as u32;
        let mut counted = 0;
        let bucket = self.counts.iter().position(|&count| {
            counted += count;
            counted >= rank
        });
        upper_bound(bucket.unwrap_or(BUCKETS - 1))
    }
}

/// Returns the bucket of a latency: the octave of its microseconds, and the part of the octave.
fn bucket_index(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let micros = micros.max(1 << OCTAVE_MIN);
    let octave = micros.ilog2();
    // The three bits below the highest bit are the part of the octave.
    let sub_bucket =
        (micros >> (octave - BUCKETS_PER_OCTAVE.ilog2())) as usize % BUCKETS_PER_OCTAVE;
    ((octave - OCTAVE_MIN) as usize * BUCKETS_PER_OCTAVE + sub_bucket).min(BUCKETS - 1)
}

/// Returns the latency at which a bucket ends.
fn upper_bound(bucket: usize) -> Duration {
    let octave = OCTAVE_MIN + (bucket / BUCKETS_PER_OCTAVE) as u32;
    let width = 1_u64 << (octave - BUCKETS_PER_OCTAVE.ilog2());
    Duration::from_micros((1 << octave) + width * (bucket % BUCKETS_PER_OCTAVE + 1) as u64)
}
