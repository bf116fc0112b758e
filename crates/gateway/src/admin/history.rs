//! The history of the last two minutes, with one sample per second, for the charts of the status
//! page.
//!
//! Only the admin task uses the history. For a longer history, Prometheus can scrape `/metrics`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::call::CacheStatus;
use crate::metrics::counters::MethodCounters;
use crate::metrics::thread::Counters;

#[cfg(test)]
mod tests;

/// Interval between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of samples: 121 samples enclose 120 intervals of a second.
pub(crate) const SAMPLES_MAX: usize = 121;

/// Values to draw: one per interval, oldest first. `None` marks an interval without a measurement.
pub(crate) type Series = Vec<Option<f64>>;

/// Samples of the last two minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    /// Generation of the configuration at the last sample.
    generation: u64,
}

/// Counts at one instant.
#[derive(Debug)]
struct Sample {
    /// When the sample was taken, as time since the start of the process.
    taken_at: Duration,
    /// Number of calls since the start.
    calls: u64,
    /// Number of calls that needed no upstream call of their own: cache hits and coalesced calls.
    spared: u64,
    /// Counts by index of the upstream; empty if a later reload has replaced the upstreams.
    upstreams: Vec<UpstreamSample>,
}

/// Counts of one upstream at one instant.
#[derive(Debug, Clone, Copy)]
struct UpstreamSample {
    /// Number of attempts that ended.
    attempts: u64,
    /// Sum of the durations of the attempts, in microseconds.
    sum_micros: u64,
}

impl History {
    /// Takes a sample of the counters at `now`. `generation` is the number of the configuration. If
    /// the number has changed, the series of all upstreams start again, because the new
    /// configuration may list the upstreams in another order.
    pub(crate) fn take_sample(&mut self, now: Duration, generation: u64, counters: &Counters) {
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.samples.iter_mut().for_each(|sample| sample.upstreams.clear());
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        let upstreams = counters.upstreams.iter();
        let upstreams = upstreams.map(|(_, upstream)| UpstreamSample {
            attempts: upstream.latency.count(),
            sum_micros: upstream.latency.sum_micros.get(),
        });
        self.samples.push_back(Sample {
            taken_at: now,
            calls: counters.all_methods().map(MethodCounters::calls).sum(),
            spared: counters.count_calls_with(CacheStatus::Hit)
                + counters.count_calls_with(CacheStatus::Coalesced),
            upstreams: upstreams.collect(),
        });
    }

    /// Returns the number of responses to calls per second.
    pub(crate) fn calls_per_second(&self) -> Series {
        self.per_second(|sample| sample.calls)
    }

    /// Returns the number of calls per second that needed no upstream call of their own.
    pub(crate) fn spared_per_second(&self) -> Series {
        self.per_second(|sample| sample.spared)
    }

    /// Returns the growth per second of a count, for each pair of consecutive samples.
    fn per_second(&self, count: impl Fn(&Sample) -> u64) -> Series {
        self.series(|previous, next| {
            let seconds = next.taken_at.saturating_sub(previous.taken_at).as_secs_f64();
            let growth = count(next).saturating_sub(count(previous));
            (seconds > 0.0).then(|| growth as f64 / seconds)
        })
    }

    /// Returns the mean duration of attempts at an upstream per interval, in milliseconds. An
    /// attempt counts in the interval in which it ends.
    pub(crate) fn upstream_latency_ms(&self, upstream: usize) -> Series {
        self.series(|previous, next| {
            let (previous, next) =
                (previous.upstreams.get(upstream)?, next.upstreams.get(upstream)?);
            let attempts = next.attempts.saturating_sub(previous.attempts);
            let micros = next.sum_micros.saturating_sub(previous.sum_micros);
            (attempts > 0).then(|| micros as f64 / attempts as f64 / 1000.0)
        })
    }

    /// Returns `value` of each pair of consecutive samples.
    fn series(&self, value: impl Fn(&Sample, &Sample) -> Option<f64>) -> Series {
        self.samples
            .iter()
            .zip(self.samples.iter().skip(1))
            .map(|(previous, next)| value(previous, next))
            .collect()
    }
}
