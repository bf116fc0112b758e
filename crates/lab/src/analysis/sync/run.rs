//! Analysis of one run: its sample period, heights by time, times by height, and its cache.

use lab_model::results::study::{Accesses, CacheFull, Tip};

use super::{Sample, SyncRun};
use crate::analysis::statistics::median;

/// A cache is full once its size is at least this share of its maximum.
const FULL_SHARE: f64 = 0.995;
/// Smallest number of samples with a full cache. With fewer, the cache might still have been
/// growing.
const FULL_SAMPLES: usize = 3;

impl SyncRun {
    /// Returns the first sample.
    pub fn first(&self) -> Sample {
        self.samples.first().copied().unwrap_or_default()
    }

    /// Returns the last sample.
    pub fn last(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }

    /// Returns the median seconds between samples; 0 for a single sample.
    pub fn period(&self) -> f64 {
        let steps: Vec<f64> = self.samples.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        median(&steps).unwrap_or(0.0)
    }

    /// Returns the run until it reached the chain tip. After that it only waits for new blocks.
    #[must_use]
    pub fn until(&self, tip: Option<Tip>) -> SyncRun {
        let Some(tip) = tip else { return self.clone() };
        let before_tip = |sample: &Sample| sample.at - self.origin <= tip.elapsed;
        let samples = self.samples.iter().copied().take_while(before_tip).collect();
        SyncRun { samples, ..self.clone() }
    }

    /// Returns the first sample at or above a height.
    pub fn reached(&self, height: u64) -> Option<Sample> {
        let index = self.samples.partition_point(|sample| sample.height < height);
        self.samples.get(index).copied()
    }

    /// Returns the height at an instant, interpolated between samples; none outside of the run.
    pub fn height_at(&self, at: f64) -> Option<f64> {
        let next = self.samples.partition_point(|sample| sample.at < at);
        let next_sample = self.samples.get(next)?;
        if next_sample.at <= at {
            return Some(next_sample.height as f64);
        }
        let previous = self.samples.get(next.checked_sub(1)?)?;
        let share = (at - previous.at) / (next_sample.at - previous.at);
        Some(previous.height as f64 + share * (next_sample.height - previous.height) as f64)
    }

    /// Returns the instant at which the run reached a height, interpolated between samples. None if
    /// it did not reach the height, or reached it before the first sample.
    pub fn instant(&self, height: f64) -> Option<f64> {
        let next = self.samples.partition_point(|sample| (sample.height as f64) < height);
        let next_sample = self.samples.get(next)?;
        let Some(previous) = next.checked_sub(1).and_then(|index| self.samples.get(index)) else {
            return (next_sample.height as f64 <= height).then_some(next_sample.at);
        };
        let share =
            (height - previous.height as f64) / (next_sample.height - previous.height) as f64;
        Some(previous.at + share * (next_sample.at - previous.at))
    }

    /// Returns the sum of all cache accesses; none if the node does not report them.
    pub fn accesses(&self) -> Option<Accesses> {
        let known = self.samples.iter().filter_map(|sample| sample.accesses);
        known.reduce(Accesses::plus)
    }

    /// Returns when the cache was full: the first sample at 99.5 % of its maximum. None if fewer
    /// than three samples are at that level, because the cache was still growing. None if fewer
    /// than half of the later samples are, because the cache is emptied repeatedly.
    pub fn cache_full(&self) -> Option<CacheFull> {
        let ceiling = self.samples.iter().filter_map(|sample| sample.used).max()?;
        let level = ceiling as f64 * FULL_SHARE;
        let full = |sample: &&Sample| sample.used.is_some_and(|used| used as f64 >= level);
        let full_index = self.samples.iter().position(|sample| full(&sample))?;
        let samples_since = &self.samples[full_index..];
        let at_level = samples_since.iter().filter(full).count();
        let full_sample = samples_since.first()?;
        (at_level >= FULL_SAMPLES && 2 * at_level >= samples_since.len()).then_some(CacheFull {
            elapsed: full_sample.at - self.origin,
            height: full_sample.height,
            ceiling,
        })
    }

    /// Returns the highest height that peers announced until an instant.
    pub fn announced_until(&self, at: f64) -> Option<u64> {
        let announced = self.announced.iter().filter(|announcement| announcement.at <= at);
        announced.map(|announcement| announcement.height).max()
    }

    /// Returns the highest height that peers announced.
    pub fn announced_max(&self) -> Option<u64> {
        self.announced_until(f64::INFINITY)
    }
}
