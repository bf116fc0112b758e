//! Samples of the last two minutes, one per second, for the charts of the status page.
//!
//! Only the admin task takes and reads the samples. Prometheus holds a longer history from
//! `/metrics`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::call::cache_status::CacheStatus;
use crate::metrics::counters::MethodCounters;
use crate::metrics::thread::Counters;

#[cfg(test)]
mod tests;

/// Seconds between two samples.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of samples: the ends of 120 intervals.
pub(crate) const SAMPLES_MAX: usize = 121;

/// Values to draw: one per interval, oldest first; `None` where nothing was measured.
pub(crate) type Series = Vec<Option<f64>>;

/// Samples of the last two minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    generation: u64,
}

#[derive(Debug)]
struct Sample {
    at: Duration,
    calls: u64,
    /// Number of calls that needed no separate upstream call: cache hits and coalesced calls.
    spared: u64,
    upstreams: Vec<UpstreamSample>,
}

#[derive(Debug, Clone, Copy)]
struct UpstreamSample {
    attempts: u64,
    sum_micros: u64,
}

impl History {
    /// Takes a sample of the counters at `now`. If `generation` differs from the last sample's, the
    /// series of all upstreams restart. The new configuration may list the upstreams in another
    /// order.
    pub(crate) fn sample(&mut self, now: Duration, generation: u64, counters: &Counters) {
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.samples.iter_mut().for_each(|sample| sample.upstreams.clear());
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        let upstreams = counters.upstreams.iter();
        let upstreams = upstreams.map(|(_, own)| UpstreamSample {
            attempts: own.latency.count(),
            sum_micros: own.latency.sum_micros.get(),
        });
        self.samples.push_back(Sample {
            at: now,
            calls: counters.all_methods().map(MethodCounters::calls).sum(),
            spared: counters.answered(CacheStatus::Hit) + counters.answered(CacheStatus::Coalesced),
            upstreams: upstreams.collect(),
        });
    }

    /// Returns the calls answered per second.
    pub(crate) fn calls_per_second(&self) -> Series {
        self.series(|before, after| {
            rate(before.at, after.at, after.calls.saturating_sub(before.calls))
        })
    }

    /// Returns how many calls per second needed no separate upstream call.
    pub(crate) fn spared_per_second(&self) -> Series {
        self.series(|before, after| {
            rate(before.at, after.at, after.spared.saturating_sub(before.spared))
        })
    }

    /// Returns the mean duration of attempts at an upstream per interval, in milliseconds. An
    /// attempt counts in the interval in which it ends.
    pub(crate) fn upstream_latency_ms(&self, upstream: usize) -> Series {
        self.series(|before, after| {
            let (before, after) = (before.upstreams.get(upstream)?, after.upstreams.get(upstream)?);
            let attempts = after.attempts.saturating_sub(before.attempts);
            let micros = after.sum_micros.saturating_sub(before.sum_micros);
            (attempts > 0).then(|| micros as f64 / attempts as f64 / 1000.0)
        })
    }

    fn series(&self, value: impl Fn(&Sample, &Sample) -> Option<f64>) -> Series {
        self.samples
            .iter()
            .zip(self.samples.iter().skip(1))
            .map(|(before, after)| value(before, after))
            .collect()
    }
}

fn rate(before: Duration, after: Duration, more: u64) -> Option<f64> {
    let seconds = after.saturating_sub(before).as_secs_f64();
    (seconds > 0.0).then(|| more as f64 / seconds)
}
