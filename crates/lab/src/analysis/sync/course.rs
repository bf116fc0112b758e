//! One course alone: its period, what stood when, what was reached when, and when its cache was full.

use lab_model::results::study::{Accesses, CacheFull, Tip};

use super::{Course, Sample};
use crate::analysis::statistics::median;

/// A cache is full from the first sample on that shows this share of the most it ever uses.
const FULL_SHARE: f64 = 0.995;
/// Samples at that level without which nobody knows whether it would have grown further.
const FULL_SAMPLES: usize = 3;

impl Course {
    /// The first sample.
    pub fn first(&self) -> Sample {
        self.samples.first().copied().unwrap_or_default()
    }

    /// The last sample.
    pub fn last(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }

    /// Seconds between samples: the median of all steps; 0 for a single sample.
    pub fn period(&self) -> f64 {
        let steps: Vec<f64> = self.samples.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        median(&steps).unwrap_or(0.0)
    }

    /// The course until it came to the tip: what is sampled from there on is waiting for new blocks.
    #[must_use]
    pub fn until(&self, tip: Option<Tip>) -> Course {
        let Some(tip) = tip else { return self.clone() };
        let kept = |sample: &Sample| sample.at - self.origin <= tip.elapsed;
        let samples = self.samples.iter().copied().take_while(kept).collect();
        Course { samples, ..self.clone() }
    }

    /// The first sample at or above a height.
    pub fn reached(&self, height: u64) -> Option<Sample> {
        let place = self.samples.partition_point(|sample| sample.height < height);
        self.samples.get(place).copied()
    }

    /// The height at an instant, on the straight line between the samples around it; none outside
    /// of the course.
    pub fn height_at(&self, at: f64) -> Option<f64> {
        let next = self.samples.partition_point(|sample| sample.at < at);
        let after = self.samples.get(next)?;
        if after.at <= at {
            return Some(after.height as f64);
        }
        let before = self.samples.get(next.checked_sub(1)?)?;
        let share = (at - before.at) / (after.at - before.at);
        Some(before.height as f64 + share * (after.height - before.height) as f64)
    }

    /// The instant at which a height was reached, on the straight line between the samples around
    /// it; none if it was not, or was already before the first sample.
    pub fn instant(&self, height: f64) -> Option<f64> {
        let next = self.samples.partition_point(|sample| (sample.height as f64) < height);
        let after = self.samples.get(next)?;
        let Some(before) = next.checked_sub(1).and_then(|place| self.samples.get(place)) else {
            return (after.height as f64 <= height).then_some(after.at);
        };
        let share = (height - before.height as f64) / (after.height - before.height) as f64;
        Some(before.at + share * (after.at - before.at))
    }

    /// All accesses to its cache; none if it does not tell.
    pub fn accesses(&self) -> Option<Accesses> {
        let told = self.samples.iter().filter_map(|sample| sample.accesses);
        told.reduce(Accesses::plus)
    }

    /// When its cache was full: the first sample that shows 99.5 % of the most it ever uses. None if
    /// fewer than three samples, or fewer than half of those from there on, are at that level: it
    /// was growing still, or is emptied again and again.
    pub fn cache_full(&self) -> Option<CacheFull> {
        let ceiling = self.samples.iter().filter_map(|sample| sample.used).max()?;
        let level = ceiling as f64 * FULL_SHARE;
        let full = |sample: &&Sample| sample.used.is_some_and(|used| used as f64 >= level);
        let place = self.samples.iter().position(|sample| full(&sample))?;
        let rest = &self.samples[place..];
        let at_level = rest.iter().filter(full).count();
        let first = rest.first()?;
        (at_level >= FULL_SAMPLES && 2 * at_level >= rest.len()).then_some(CacheFull {
            elapsed: first.at - self.origin,
            height: first.height,
            ceiling,
        })
    }

    /// The highest height that anybody announced to it until an instant.
    pub fn announced_until(&self, at: f64) -> Option<u64> {
        let known = self.announced.iter().filter(|one| one.at <= at);
        known.map(|one| one.height).max()
    }

    /// The highest height that anybody announced to it.
    pub fn announced_max(&self) -> Option<u64> {
        self.announced_until(f64::INFINITY)
    }
}
