//! Bounded storage for the samples of a run of any length. Neighbours are merged if there are too
//! many, so that the whole run stays visible at a lower resolution.
//!
//! A sample has about a hundred values with long names, four times a second. Each name is stored
//! once, and a value takes eight bytes.

use std::collections::{BTreeMap, HashMap};

use lab_model::results::run::HostSample;

/// Maximum number of samples per host. At an interval of 250 ms these cover 4 minutes in full, and
/// two hours at one sample per 8 seconds. They take less than a megabyte.
pub const SAMPLES_MAX: usize = 1_000;

/// The samples of a run by host, evenly downsampled.
#[derive(Debug)]
pub struct HostSamples {
    max: usize,
    names: Names,
    hosts: BTreeMap<String, HostSeries>,
}

/// All names by number.
#[derive(Debug, Default)]
struct Names {
    list: Vec<String>,
    numbers: HashMap<String, u16>,
}

#[derive(Debug)]
struct HostSeries {
    points: Vec<Point>,
    /// Number of samples that are merged into one.
    stride: usize,
    /// The sample that is being merged, and the number of samples merged so far.
    merging: Option<(Point, usize)>,
}

/// The values of a sample, ordered by the numbers of their names. Single precision has seven
/// digits, which is enough.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    at: f64,
    values: Box<[(u16, f32)]>,
}

impl HostSamples {
    /// Creates a store of at most `max` samples per host. `max` must be at least 2.
    pub fn new(max: usize) -> HostSamples {
        HostSamples { max: max.max(2), names: Names::default(), hosts: BTreeMap::new() }
    }

    /// Adds the next sample of its host.
    pub fn push(&mut self, sample: &HostSample) {
        let point = self.names.point(sample);
        if !self.hosts.contains_key(&sample.host) {
            let series = HostSeries { points: Vec::new(), stride: 1, merging: None };
            self.hosts.insert(sample.host.clone(), series);
        }
        let series = self.hosts.get_mut(&sample.host).expect("it was put there if it was not");
        series.push(point);
        if series.points.len() >= self.max {
            series.halve();
        }
    }

    /// Returns all samples in order of time.
    pub fn samples(&self) -> Vec<HostSample> {
        let mut all = Vec::new();
        for (host, series) in &self.hosts {
            let merging = series.merging.iter().map(|(point, _)| point);
            let points = series.points.iter().chain(merging);
            all.extend(points.map(|point| self.names.sample(point, host)));
        }
        all.sort_by(|one, other| one.at.total_cmp(&other.at));
        all
    }
}

impl Names {
    #[expect(clippy::cast_possible_truncation)]
    fn point(&mut self, sample: &HostSample) -> Point {
        let values = sample.values.iter();
        let mut values: Vec<_> =
            values.filter_map(|(name, value)| Some((self.number(name)?, *value as f32))).collect();
        values.sort_by_key(|(number, _)| *number);
        Point { at: sample.at, values: values.into() }
    }

    /// Returns a name's number, or `None` if there are too many names.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.list.len()).ok()?;
        self.list.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    fn sample(&self, point: &Point, host: &str) -> HostSample {
        let values = point.values.iter();
        let mut values: Vec<_> = values
            .map(|(number, value)| (self.list[usize::from(*number)].clone(), f64::from(*value)))
            .collect();
        values.sort_by(|one, other| one.0.cmp(&other.0));
        HostSample { at: point.at, host: host.to_owned(), values }
    }
}

impl HostSeries {
    fn push(&mut self, point: Point) {
        let (merged, count) = match self.merging.take() {
            None => (point, 1),
            Some((before, count)) => (merge(&before, count, &point, 1), count + 1),
        };
        if count >= self.stride {
            self.points.push(merged);
        } else {
            self.merging = Some((merged, count));
        }
    }

    fn halve(&mut self) {
        let mut halved = Vec::with_capacity(self.points.len() / 2 + 1);
        let mut kept = std::mem::take(&mut self.points).into_iter();
        while let Some(first) = kept.next() {
            match kept.next() {
                Some(second) => halved.push(merge(&first, 1, &second, 1)),
                // The last sample has no neighbour and stays.
                None => self.merging = Some((first, self.stride)),
            }
        }
        self.points = halved;
        self.stride *= 2;
    }
}

/// Returns the weighted mean of two neighbours. A value that only one of them has is not changed.
/// The time is the later one, because a sample describes the time before it.
fn merge(first: &Point, weight: usize, second: &Point, other: usize) -> Point {
    #[expect(clippy::cast_precision_loss)]
    let part = other as f32 / (weight + other) as f32;
    let mut values = Vec::with_capacity(first.values.len().max(second.values.len()));
    let mut left = first.values.iter().copied().peekable();
    for after in second.values.iter().copied() {
        while let Some(before) = left.next_if(|before| before.0 < after.0) {
            values.push(before);
        }
        values.push(match left.next_if(|before| before.0 == after.0) {
            Some(before) => (after.0, before.1 + (after.1 - before.1) * part),
            None => after,
        });
    }
    values.extend(left);
    Point { at: second.at, values: values.into() }
}

#[cfg(test)]
mod tests;
