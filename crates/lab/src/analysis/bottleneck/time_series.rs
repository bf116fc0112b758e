//! Metrics of hosts over time. Finds when a metric rose above its own baseline and stayed there,
//! and measures its correlation with the planned load.

use std::collections::BTreeMap;

use lab_model::metrics::host::{HostMetric, HostName};
use lab_model::plan::level_at;
use lab_model::results::run::{HostSample, StageRow};

use crate::analysis::statistics::ranks::spearman;
use crate::analysis::statistics::{mean, median};

/// Smallest number of samples under low load ([`LOW_LOAD_SHARE`]) for a baseline. The number is
/// small, because hosts are observed only for a short time before a run.
const BASELINE_MIN: usize = 2;
/// A rise is sustained if at least this share of the later samples exceeds the baseline by more
/// than the allowance that [`find_rise`] describes.
const SUSTAINED_SHARE: f64 = 0.6;
/// A rise is sustained only if there are at least this many samples since its start.
const SUSTAINED_MIN: usize = 3;

/// Values of one metric: pairs of time, in seconds since the start of the run, and value. The times
/// ascend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TimeSeries(pub(super) Vec<(f64, f64)>);

impl TimeSeries {
    /// Returns the mean from `from` to `to`, both included. `None` without values in that time.
    pub(super) fn mean(&self, from: f64, to: f64) -> Option<f64> {
        let within = self.0.iter().filter(|(at, _)| (from..=to).contains(at));
        mean(&within.map(|(_, value)| *value).collect::<Vec<f64>>())
    }

    /// Returns the running median over five values. It removes single outliers and keeps the time
    /// of a step. Outliers are common: CPU time is counted in ticks of 10 ms, so a sample of 100 ms
    /// is off by up to a tenth.
    pub(super) fn smooth(&self) -> TimeSeries {
        let median_around = |index: usize| {
            let start = index.saturating_sub(2);
            let end = (index + 3).min(self.0.len());
            let values: Vec<f64> = self.0[start..end].iter().map(|(_, value)| *value).collect();
            median(&values).unwrap_or(0.0)
        };
        let indexed = self.0.iter().enumerate();
        TimeSeries(indexed.map(|(index, (at, _))| (*at, median_around(index))).collect())
    }

    /// Combines the values of both series at each time that is in both. Samples of one collection
    /// have exactly equal times, so the bits of the times are compared.
    pub(super) fn zip_with(
        &self,
        other: &TimeSeries,
        combine: impl Fn(f64, f64) -> f64,
    ) -> TimeSeries {
        let others: BTreeMap<u64, f64> =
            other.0.iter().map(|(at, value)| (at.to_bits(), *value)).collect();
        let combined = self.0.iter().filter_map(|(at, value)| {
            others.get(&at.to_bits()).map(|other| (*at, combine(*value, *other)))
        });
        TimeSeries(combined.collect())
    }

    /// Returns the larger value at each time that is in either series.
    pub(super) fn larger(&self, other: &TimeSeries) -> TimeSeries {
        let mut by_time: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (at, value) in self.0.iter().chain(&other.0) {
            let largest = by_time.entry(at.to_bits()).or_insert((*at, *value));
            largest.1 = largest.1.max(*value);
        }
        let mut values: Vec<(f64, f64)> = by_time.into_values().collect();
        values.sort_by(|left, right| left.0.total_cmp(&right.0));
        TimeSeries(values)
    }

    /// Returns true if there are no values.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A sustained rise of a metric above its baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    /// Start of the rise, in seconds since the start of the run.
    pub at: f64,
    /// Baseline: the median under low load. `None` if the load was never low.
    pub before: Option<f64>,
    /// Mean since the start of the rise.
    pub after: f64,
}

/// The planned load over time, as a share of its maximum before the threshold was broken.
#[derive(Clone, Debug)]
pub(super) struct Load {
    stages: Vec<RelativeStage>,
    /// Maximum of the load before the threshold was broken. The load is the sum of all levels.
    maximum: f64,
}

/// A stage of the plan. A level is a share of the largest level of any stage with the same model.
#[derive(Clone, Copy, Debug)]
struct RelativeStage {
    /// Start in seconds since the start of the run.
    from: f64,
    /// End in seconds since the start of the run.
    to: f64,
    /// Level at the start.
    level_from: f64,
    /// Level at the end; between both times the level changes evenly.
    level_to: f64,
}

impl Load {
    /// Reads the load from the stages of a run. `end` is the time from which the load is ignored,
    /// shortly after the threshold was broken. Levels are relative to the largest level of the same
    /// model, because iterations per second (open) and workers (closed) have no common unit.
    pub(super) fn of(stages: &[StageRow], end: f64) -> Load {
        let largest_level_of = |model: &str| {
            let of_model = stages.iter().filter(|stage| stage.model == model);
            of_model.map(|stage| stage.level_from.max(stage.level_to)).fold(0.0, f64::max)
        };
        let (max_rate, max_workers) = (largest_level_of("open"), largest_level_of("closed"));
        let relative = stages.iter().map(|stage| {
            let largest_level = if stage.model == "open" { max_rate } else { max_workers };
            let largest_level = largest_level.max(f64::MIN_POSITIVE);
            RelativeStage {
                from: stage.from,
                to: stage.to,
                level_from: stage.level_from / largest_level,
                level_to: stage.level_to / largest_level,
            }
        });
        let mut load = Load { stages: relative.collect(), maximum: 1.0 };
        let started_stages = load.stages.iter().filter(|stage| stage.from < end);
        let levels = started_stages.map(|stage| {
            // The instant of the start belongs to the previous stage.
            let after_start = load.sum_of_levels(stage.from + 1e-6);
            after_start.max(load.sum_of_levels(stage.to.min(end)))
        });
        load.maximum = levels.fold(0.0, f64::max);
        load
    }

    /// Returns the load at a time as a share of its maximum; 0 before and after the run.
    pub(super) fn at(&self, at: f64) -> f64 {
        if self.maximum > 0.0 { self.sum_of_levels(at) / self.maximum } else { 0.0 }
    }

    /// Returns the sum of all stages' levels at a time. A sample of a metric covers the time before
    /// it. So the end of a stage belongs to that stage, and its start belongs to the previous
    /// stage.
    fn sum_of_levels(&self, at: f64) -> f64 {
        let running = self.stages.iter().filter(|stage| stage.from < at && at <= stage.to);
        let level = |stage: &RelativeStage| {
            let (elapsed, duration) = (at - stage.from, stage.to - stage.from);
            level_at(stage.level_from, stage.level_to, elapsed, duration)
        };
        running.map(level).sum()
    }
}

/// The load is low while it is at most this share of its maximum. Samples under low load give the
/// baseline of a metric.
const LOW_LOAD_SHARE: f64 = 0.2;

/// Returns the rise of a metric above its own baseline, by at least `step`, that lasted until
/// `end`. `None` if there was no such rise.
///
/// The algorithm is Page's CUSUM (E. S. Page, Continuous inspection schemes, Biometrika 41, 1954).
/// It sums how far the values exceed the baseline plus an allowance, and keeps the sum at zero or
/// above. If the sum reaches an alarm level, the rise began where the sum last left zero.
///
/// The baseline is the median of the samples under low load, or 0 with too few of these samples.
/// The allowance is three standard deviations of these samples, and at least half of `step`. The
/// standard deviation is estimated as 1.4826 times the median absolute deviation.
pub(super) fn find_rise(series: &TimeSeries, load: &Load, step: f64, end: f64) -> Option<Rise> {
    let values: Vec<(f64, f64)> = series.0.iter().copied().filter(|(at, _)| *at <= end).collect();
    let at_low_load = values.iter().filter(|(at, _)| load.at(*at) <= LOW_LOAD_SHARE);
    let at_low_load: Vec<f64> = at_low_load.map(|(_, value)| *value).collect();
    let known_baseline = if at_low_load.len() < BASELINE_MIN { None } else { median(&at_low_load) };
    let baseline = known_baseline.unwrap_or(0.0);
    let deviations: Vec<f64> = at_low_load.iter().map(|value| (value - baseline).abs()).collect();
    let deviation = known_baseline.and_then(|_| median(&deviations)).unwrap_or(0.0) * 1.4826;
    let allowance = (3.0 * deviation).max(step / 2.0);
    let alarm = step.max(2.0 * allowance);
    // `candidate` is the index where the sum last left zero. `rise_start` is that index once the
    // sum has reached the alarm.
    let (mut sum, mut candidate, mut rise_start) = (0.0_f64, None, None);
    for (index, (_, value)) in values.iter().enumerate() {
        sum = (sum + value - baseline - allowance).max(0.0);
        if sum == 0.0 {
            (candidate, rise_start) = (None, None);
        } else if candidate.is_none() {
            candidate = Some(index);
        }
        if sum >= alarm {
            rise_start = candidate;
        }
        // The cap lets the sum return to zero soon after a long period of high values.
        sum = sum.min(4.0 * alarm);
    }
    let values_after: Vec<f64> = values[rise_start?..].iter().map(|(_, value)| *value).collect();
    let values_above = values_after.iter().filter(|value| **value > baseline + allowance).count();
    let is_sustained = values_after.len() >= SUSTAINED_MIN
        && values_above as f64 >= SUSTAINED_SHARE * values_after.len() as f64;
    let after = mean(&values_after)?;
    (is_sustained && after - baseline >= step).then_some(Rise {
        at: values[rise_start?].0,
        before: known_baseline,
        after,
    })
}

/// Returns Spearman's rank correlation of a metric with the load until `end`, from -1 to 1. `None`
/// unless at least two samples are under low load and two under higher load. `None` also if the
/// metric or the load does not vary.
pub(super) fn load_correlation(series: &TimeSeries, load: &Load, end: f64) -> Option<f64> {
    let until_end = series.0.iter().filter(|(at, _)| *at <= end);
    let (loads, values): (Vec<f64>, Vec<f64>) =
        until_end.map(|(at, value)| (load.at(*at), *value)).unzip();
    let low = loads.iter().filter(|load| **load <= LOW_LOAD_SHARE).count();
    let high = loads.len() - low;
    if low < BASELINE_MIN || high < BASELINE_MIN {
        return None;
    }
    spearman(&loads, &values)
}

/// All metrics of one host, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct HostSeries(BTreeMap<String, TimeSeries>);

impl HostSeries {
    /// Collects the samples of one host by metric.
    pub(super) fn of(samples: &[HostSample], host: &str) -> HostSeries {
        let mut series: BTreeMap<String, TimeSeries> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| sample.host == host) {
            for (name, value) in &sample.values {
                match series.get_mut(name) {
                    Some(series) => series.0.push((sample.at, *value)),
                    None => {
                        series.insert(name.clone(), TimeSeries(vec![(sample.at, *value)]));
                    }
                }
            }
        }
        HostSeries(series)
    }

    /// Returns one metric; empty if it was not sampled.
    pub(super) fn get(&self, name: impl Into<HostName>) -> TimeSeries {
        self.0.get(&name.into().into_string()).cloned().unwrap_or_default()
    }

    /// Returns one metric of every device, process or thread that has it, with the name of the
    /// device, process or thread.
    pub(super) fn by_owner(&self, metric: &HostMetric) -> Vec<(&str, &TimeSeries)> {
        let metrics = self.0.iter();
        metrics.filter_map(|(name, series)| Some((metric.owner(name)?, series))).collect()
    }

    /// Returns true if there are no metrics.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
