//! A metric over time: when it left its own baseline for good, and whether it goes with the load.

use std::collections::BTreeMap;

use lab_model::metrics::host::{HostMetric, HostName};
use lab_model::plan::level_at;
use lab_model::results::run::{HostSample, StageRow};

use crate::analysis::statistics::ranks::correlation;
use crate::analysis::statistics::{mean, median};

/// Samples without load that make a baseline: what is watched before a run is short.
const BASELINE_MIN: usize = 2;
/// A change is sustained if this share of the samples after it is above it.
const SUSTAINED_SHARE: f64 = 0.6;
/// And there are this many samples.
const SUSTAINED_MIN: usize = 3;

/// Values by time, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Course(pub(super) Vec<(f64, f64)>);

impl Course {
    /// The mean between two times; none without values there.
    pub(super) fn mean(&self, from: f64, to: f64) -> Option<f64> {
        let within = self.0.iter().filter(|(at, _)| (from..=to).contains(at));
        mean(&within.map(|(_, value)| *value).collect::<Vec<f64>>())
    }

    /// The median of each value and the two on both sides, which leaves steps where they are: CPU is
    /// counted in ticks of 10 ms, so that single samples at 100 ms are off by a tenth.
    pub(super) fn smooth(&self) -> Course {
        let around = |index: usize| {
            let from = index.saturating_sub(2);
            let to = (index + 3).min(self.0.len());
            let values: Vec<f64> = self.0[from..to].iter().map(|(_, value)| *value).collect();
            median(&values).unwrap_or(0.0)
        };
        Course(self.0.iter().enumerate().map(|(index, (at, _))| (*at, around(index))).collect())
    }

    /// The same times with other values, by both values of each time that both have.
    pub(super) fn with(&self, other: &Course, of: impl Fn(f64, f64) -> f64) -> Course {
        let others: BTreeMap<u64, f64> =
            other.0.iter().map(|(at, value)| (at.to_bits(), *value)).collect();
        let both = self.0.iter().filter_map(|(at, value)| {
            others.get(&at.to_bits()).map(|other| (*at, of(*value, *other)))
        });
        Course(both.collect())
    }

    /// The larger value at each time of either.
    pub(super) fn larger(&self, other: &Course) -> Course {
        let mut all: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (at, value) in self.0.iter().chain(&other.0) {
            let known = all.entry(at.to_bits()).or_insert((*at, *value));
            known.1 = known.1.max(*value);
        }
        let mut values: Vec<(f64, f64)> = all.into_values().collect();
        values.sort_by(|one, other| one.0.total_cmp(&other.0));
        Course(values)
    }

    /// Whether there are no values.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where a metric left its baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rise {
    /// When.
    pub at: f64,
    /// Median before; none if there was no time without load.
    pub before: Option<f64>,
    /// Mean from then on.
    pub after: f64,
}

/// The load that the plan asks for, from 0 to 1 of what it asks for until the objective broke.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// From, to, level at both ends, as a share of the largest level of its model.
    parts: Vec<[f64; 4]>,
    most: f64,
}

impl Load {
    /// Of the stages of a run. Open and closed stages count by the largest level of their kind, since
    /// iterations per second and workers have no common measure.
    pub(super) fn of(stages: &[StageRow], end: f64) -> Load {
        let largest = |model: &str| {
            let same = stages.iter().filter(|stage| stage.model == model);
            same.map(|stage| stage.level_from.max(stage.level_to)).fold(0.0, f64::max)
        };
        let (open, closed) = (largest("open"), largest("closed"));
        let parts = stages.iter().map(|stage| {
            let whole = if stage.model == "open" { open } else { closed }.max(f64::MIN_POSITIVE);
            [stage.from, stage.to, stage.level_from / whole, stage.level_to / whole]
        });
        let mut load = Load { parts: parts.collect(), most: 1.0 };
        let seen = load.parts.iter().filter(|part| part[0] < end);
        let ends = seen.map(|part| {
            let begun = load.level(part[0] + 1e-6);
            begun.max(load.level(part[1].min(end)))
        });
        load.most = ends.fold(0.0, f64::max);
        load
    }

    /// The share at a time; 0 before the run and after it.
    pub(super) fn at(&self, at: f64) -> f64 {
        if self.most > 0.0 { self.level(at) / self.most } else { 0.0 }
    }

    /// What is sampled at a time tells of the time before it: a stage's end belongs to it, its start
    /// to the one before.
    fn level(&self, at: f64) -> f64 {
        let now = self.parts.iter().filter(|part| part[0] < at && at <= part[1]);
        let level = |[from, to, low, high]: &[f64; 4]| level_at(*low, *high, at - from, to - from);
        now.map(level).sum()
    }
}

/// A metric is at its baseline while the load is at most this share of what it was when the
/// objective broke.
const BASELINE_LOAD: f64 = 0.2;

/// When a metric rose above its own baseline by at least `step` and stayed there until `end`; none
/// if it did not.
///
/// Page's CUSUM (E. S. Page, Continuous inspection schemes, Biometrika 41, 1954): what is above the
/// baseline by more than an allowance is added up, what is below taken off; the change began where
/// the sum last was zero. The baseline is the median of the samples with little load, the allowance
/// three of their deviations (1.4826 times the median absolute one) and at least half of `step`.
/// Without such samples the first value from which it stayed above `step` counts.
pub(super) fn rise(course: &Course, load: &Load, step: f64, end: f64) -> Option<Rise> {
    let seen: Vec<(f64, f64)> = course.0.iter().copied().filter(|(at, _)| *at <= end).collect();
    let calm = seen.iter().filter(|(at, _)| load.at(*at) <= BASELINE_LOAD);
    let calm: Vec<f64> = calm.map(|(_, value)| *value).collect();
    let before = if calm.len() < BASELINE_MIN { None } else { median(&calm) };
    let level = before.unwrap_or(0.0);
    let off: Vec<f64> = calm.iter().map(|value| (value - level).abs()).collect();
    let spread = before.and_then(|_| median(&off)).unwrap_or(0.0) * 1.4826;
    let allowance = (3.0 * spread).max(step / 2.0);
    let alarm = step.max(2.0 * allowance);
    let (mut sum, mut began, mut found) = (0.0_f64, None, None);
    for (index, (_, value)) in seen.iter().enumerate() {
        sum = (sum + value - level - allowance).max(0.0);
        if sum == 0.0 {
            (began, found) = (None, None);
        } else if began.is_none() {
            began = Some(index);
        }
        if sum >= alarm {
            found = began;
        }
        // A long stay high must not take as long to be forgotten.
        sum = sum.min(4.0 * alarm);
    }
    let after: Vec<f64> = seen[found?..].iter().map(|(_, value)| *value).collect();
    let above = after.iter().filter(|value| **value > level + allowance).count();
    let sustained =
        after.len() >= SUSTAINED_MIN && above as f64 >= SUSTAINED_SHARE * after.len() as f64;
    let after = mean(&after)?;
    (sustained && after - level >= step).then_some(Rise { at: seen[found?].0, before, after })
}

/// How a metric goes with the load until `end`: Spearman's rank correlation, -1 to 1. None if the
/// load did not change, so that nothing can be said.
pub(super) fn association(course: &Course, load: &Load, end: f64) -> Option<f64> {
    let seen = course.0.iter().filter(|(at, _)| *at <= end);
    let (loads, values): (Vec<f64>, Vec<f64>) =
        seen.map(|(at, value)| (load.at(*at), *value)).unzip();
    let few = |wanted: bool| {
        loads.iter().filter(|load| (**load <= BASELINE_LOAD) == wanted).count() < BASELINE_MIN
    };
    if few(true) || few(false) {
        return None;
    }
    correlation(&loads, &values)
}

/// All metrics of one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Courses(BTreeMap<String, Course>);

impl Courses {
    /// Of the samples of one host.
    pub(super) fn of(samples: &[HostSample], host: &str) -> Courses {
        let mut courses: BTreeMap<String, Course> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| sample.host == host) {
            for (name, value) in &sample.values {
                match courses.get_mut(name) {
                    Some(course) => course.0.push((sample.at, *value)),
                    None => {
                        courses.insert(name.clone(), Course(vec![(sample.at, *value)]));
                    }
                }
            }
        }
        Courses(courses)
    }

    /// One metric; without values if it was not sampled.
    pub(super) fn get(&self, name: impl Into<HostName>) -> Course {
        self.0.get(&name.into().into_string()).cloned().unwrap_or_default()
    }

    /// A metric of every device, process or thread that has it, with the owner's name.
    pub(super) fn all(&self, metric: &HostMetric) -> Vec<(&str, &Course)> {
        let all = self.0.iter();
        all.filter_map(|(name, course)| Some((metric.owner(name)?, course))).collect()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
