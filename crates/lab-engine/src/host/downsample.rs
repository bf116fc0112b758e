//! Stores the samples of a run of any length in bounded memory. If there are too many samples, the
//! store merges neighbouring samples. So the series still covers the whole run, at a lower
//! resolution.
//!
//! A sample has about a hundred values with long names. The store holds each name once, and a value
//! takes eight bytes.

use std::collections::{BTreeMap, HashMap};

use lab_model::results::run::HostSample;

/// Maximum number of samples per host. At the default interval of 500 ms, they cover 8 minutes
/// without merging, and two hours with one point per 8 seconds. They take less than a megabyte.
pub const SAMPLES_MAX: usize = 1_000;

/// The samples of a run by host. All points of a host cover the same number of samples.
#[derive(Debug)]
pub struct HostSamples {
    /// Maximum number of samples per host.
    max: usize,
    names: Names,
    /// The series of each host, by the name of the host.
    hosts: BTreeMap<String, HostSeries>,
}

/// Names of metrics. Each name has a number, which is its index in `list`.
#[derive(Debug, Default)]
struct Names {
    list: Vec<String>,
    /// The number of each name.
    numbers: HashMap<String, u16>,
}

/// The samples of one host.
#[derive(Debug)]
struct HostSeries {
    points: Vec<Point>,
    /// Number of samples per point.
    stride: usize,
    /// The incomplete point, and the number of samples in it.
    merging: Option<(Point, usize)>,
}

/// One sample, or the mean of several.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    /// Seconds since the start of the run.
    at: f64,
    /// Numbers of names with their values, ordered by number. Single precision has seven digits,
    /// which is enough.
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
        let series = self.hosts.get_mut(&sample.host).expect("the series was inserted above");
        series.push(point);
        if series.points.len() >= self.max {
            series.halve();
        }
    }

    /// Returns all samples in order of time.
    pub fn samples(&self) -> Vec<HostSample> {
        let mut samples = Vec::new();
        for (host, series) in &self.hosts {
            let merging = series.merging.iter().map(|(point, _)| point);
            let points = series.points.iter().chain(merging);
            samples.extend(points.map(|point| self.names.sample(point, host)));
        }
        samples.sort_by(|first, second| first.at.total_cmp(&second.at));
        samples
    }
}

impl Names {
    /// Converts a sample to a point.
    #[expect(clippy::cast_possible_truncation)]
    fn point(&mut self, sample: &HostSample) -> Point {
        let values = sample.values.iter();
        let mut values: Vec<_> =
            values.filter_map(|(name, value)| Some((self.number(name)?, *value as f32))).collect();
        values.sort_by_key(|(number, _)| *number);
        Point { at: sample.at, values: values.into() }
    }

    /// Returns the number of a name, and adds the name if it is new. Returns `None` if there are
    /// too many names.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.list.len()).ok()?;
        self.list.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    /// Converts a point to a sample.
    fn sample(&self, point: &Point, host: &str) -> HostSample {
        let values = point.values.iter();
        let mut values: Vec<_> = values
            .map(|(number, value)| (self.list[usize::from(*number)].clone(), f64::from(*value)))
            .collect();
        values.sort_by(|(first, _), (second, _)| first.cmp(second));
        HostSample { at: point.at, host: host.to_owned(), values }
    }
}

impl HostSeries {
    /// Adds a sample to the incomplete point.
    fn push(&mut self, point: Point) {
        let (merged, count) = match self.merging.take() {
            None => (point, 1),
            Some((merging, count)) => (merge(&merging, count, &point, 1), count + 1),
        };
        if count >= self.stride {
            self.points.push(merged);
        } else {
            self.merging = Some((merged, count));
        }
    }

    /// Merges each pair of neighbours.
    fn halve(&mut self) {
        let mut halved = Vec::with_capacity(self.points.len() / 2 + 1);
        let mut points = std::mem::take(&mut self.points).into_iter();
        while let Some(first) = points.next() {
            match points.next() {
                Some(second) => halved.push(merge(&first, 1, &second, 1)),
                // The last point has no neighbour. It becomes the incomplete point.
                None => self.merging = Some((first, self.stride)),
            }
        }
        self.points = halved;
        self.stride *= 2;
    }
}

/// Returns the weighted mean of two neighbours. If only one neighbour has a value, that value is
/// kept. The result has the time of `second`, because a sample describes the time before it.
fn merge(first: &Point, first_weight: usize, second: &Point, second_weight: usize) -> Point {
    #[expect(clippy::cast_precision_loss)]
    let second_share = second_weight as f32 / (first_weight + second_weight) as f32;
    let mut values = Vec::with_capacity(first.values.len().max(second.values.len()));
    let mut first_values = first.values.iter().copied().peekable();
    for (number, value) in second.values.iter().copied() {
        while let Some(first_only) = first_values.next_if(|(other, _)| *other < number) {
            values.push(first_only);
        }
        values.push(match first_values.next_if(|(other, _)| *other == number) {
            Some((_, first_value)) => (number, first_value + (value - first_value) * second_share),
            None => (number, value),
        });
    }
    values.extend(first_values);
    Point { at: second.at, values: values.into() }
}

#[cfg(test)]
mod tests;
