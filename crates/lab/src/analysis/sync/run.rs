//! Analysis of one sync run, in which a node downloads its chain: its sample period, heights by
//! time, times by height, and its page cache.

use lab_model::results::study::{Accesses, CacheFull, Tip};

use super::{Sample, SyncRun};
use crate::analysis::statistics::median;

/// A cache is full once its size is at least this share of the largest observed size.
const FULL_SHARE: f64 = 0.995;
/// Smallest number of samples with a full cache. With fewer samples, the cache might still have
/// been growing.
const FULL_SAMPLES_MIN: usize = 3;

impl SyncRun {
    /// Returns the first sample.
    pub fn first(&self) -> Sample {
        self.samples.first().copied().unwrap_or_default()
    }

    /// Returns the last sample.
    pub fn last(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }

    /// Returns the sample period: the median number of seconds between samples. 0 for a single
    /// sample.
    pub fn period(&self) -> f64 {
        let steps: Vec<f64> = self.samples.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        median(&steps).unwrap_or(0.0)
    }

    /// Returns the part of the run until it reached the chain tip. From the tip on, a node only
    /// waits for new blocks. Returns the whole run if `tip` is `None`.
    #[must_use]
    pub fn until_tip(&self, tip: Option<Tip>) -> SyncRun {
        let Some(tip) = tip else { return self.clone() };
        let before_tip = |sample: &Sample| sample.at - self.origin <= tip.elapsed;
        let samples = self.samples.iter().copied().take_while(before_tip).collect();
        SyncRun { samples, ..self.clone() }
    }

    /// Returns the first sample at or above a height; `None` if the run did not reach it.
    pub fn first_sample_at(&self, height: u64) -> Option<Sample> {
        let index = self.samples.partition_point(|sample| sample.height < height);
        self.samples.get(index).copied()
    }

    /// Returns the height at an instant, interpolated between samples. `None` outside of the run.
    pub fn height_at(&self, at: f64) -> Option<f64> {
        let next_index = self.samples.partition_point(|sample| sample.at < at);
        let next = self.samples.get(next_index)?;
        if next.at <= at {
            return Some(next.height as f64);
        }
        let previous = self.samples.get(next_index.checked_sub(1)?)?;
        let share = (at - previous.at) / (next.at - previous.at);
        Some(previous.height as f64 + share * (next.height - previous.height) as f64)
    }

    /// Returns the instant at which the run reached a height, interpolated between samples. `None`
    /// if it did not reach the height, or reached it before the first sample.
    pub fn instant_of_height(&self, height: f64) -> Option<f64> {
        let next_index = self.samples.partition_point(|sample| (sample.height as f64) < height);
        let next = self.samples.get(next_index)?;
        let previous_index = next_index.checked_sub(1);
        let Some(previous) = previous_index.and_then(|index| self.samples.get(index)) else {
            return (next.height as f64 <= height).then_some(next.at);
        };
        let share = (height - previous.height as f64) / (next.height - previous.height) as f64;
        Some(previous.at + share * (next.at - previous.at))
    }

    /// Returns the sum of all cache accesses. `None` if the node does not report them.
    pub fn accesses(&self) -> Option<Accesses> {
        let known = self.samples.iter().filter_map(|sample| sample.accesses);
        known.reduce(Accesses::plus)
    }

    /// Returns when the cache was full: the first sample with at least 99.5 % of the largest size.
    /// `None` in three cases: the size is unknown, fewer than three samples have a full cache, or
    /// fewer than half of the samples since then have one. In the second case the cache was perhaps
    /// still growing. In the third case the cache is emptied repeatedly.
    pub fn cache_full(&self) -> Option<CacheFull> {
        let ceiling = self.samples.iter().filter_map(|sample| sample.used).max()?;
        let full_size = ceiling as f64 * FULL_SHARE;
        let is_full = |sample: &&Sample| sample.used.is_some_and(|size| size as f64 >= full_size);
        let full_index = self.samples.iter().position(|sample| is_full(&sample))?;
        let samples_since = &self.samples[full_index..];
        let full_count = samples_since.iter().filter(is_full).count();
        let full_sample = samples_since.first()?;
        (full_count >= FULL_SAMPLES_MIN && 2 * full_count >= samples_since.len()).then_some(
            CacheFull {
                elapsed: full_sample.at - self.origin,
                height: full_sample.height,
                ceiling,
            },
        )
    }

    /// Returns the highest height that peers announced until an instant; `None` if they announced
    /// none.
    pub fn announced_until(&self, at: f64) -> Option<u64> {
        let announced = self.announced.iter().filter(|announcement| announcement.at <= at);
        announced.map(|announcement| announcement.height).max()
    }

    /// Returns the highest height that peers announced.
    pub fn announced_max(&self) -> Option<u64> {
        self.announced_until(f64::INFINITY)
    }
}
