//! Keeping the samples of a run of any length in bounded memory: when there are too many, neighbours
//! are merged, so that the whole run stays visible, only coarser.
//!
//! A sample has about a hundred values with long names, and there are four in a second: names are
//! kept once, and a value takes eight bytes.

use std::collections::{BTreeMap, HashMap};

use lab_model::results::run::HostSample;

/// Samples that are kept per host. At 250 ms these are 4 minutes whole; two hours are then kept at
/// 8 seconds. Less than a megabyte.
pub const KEPT_MAX: usize = 1_000;

/// The samples of a run, by host, evenly thinned.
#[derive(Debug)]
pub struct Kept {
    max: usize,
    names: Names,
    hosts: BTreeMap<String, Course>,
}

/// Every name that was seen, by its number.
#[derive(Debug, Default)]
struct Names {
    list: Vec<String>,
    numbers: HashMap<String, u16>,
}

#[derive(Debug)]
struct Course {
    kept: Vec<Point>,
    /// Samples that become one.
    stride: usize,
    /// The sample that is being merged, and of how many it is.
    merging: Option<(Point, usize)>,
}

/// A sample with its names as numbers, in their order. Single precision has seven digits, which is
/// more than a sample means.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    at: f64,
    values: Box<[(u16, f32)]>,
}

impl Kept {
    /// Keeps at most `max` samples of each host; at least 2.
    pub fn new(max: usize) -> Kept {
        Kept { max: max.max(2), names: Names::default(), hosts: BTreeMap::new() }
    }

    /// Adds the next sample of its host.
    pub fn push(&mut self, sample: &HostSample) {
        let point = self.names.point(sample);
        if !self.hosts.contains_key(&sample.host) {
            let course = Course { kept: Vec::new(), stride: 1, merging: None };
            self.hosts.insert(sample.host.clone(), course);
        }
        let course = self.hosts.get_mut(&sample.host).expect("it was put there if it was not");
        course.push(point);
        if course.kept.len() >= self.max {
            course.halve();
        }
    }

    /// Everything, in order of time.
    pub fn samples(&self) -> Vec<HostSample> {
        let mut all = Vec::new();
        for (host, course) in &self.hosts {
            let merging = course.merging.iter().map(|(point, _)| point);
            let points = course.kept.iter().chain(merging);
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

    /// A name's number; none for a name beyond all that there can be.
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

impl Course {
    fn push(&mut self, point: Point) {
        let (merged, count) = match self.merging.take() {
            None => (point, 1),
            Some((before, count)) => (merge(&before, count, &point, 1), count + 1),
        };
        if count >= self.stride {
            self.kept.push(merged);
        } else {
            self.merging = Some((merged, count));
        }
    }

    fn halve(&mut self) {
        let mut halved = Vec::with_capacity(self.kept.len() / 2 + 1);
        let mut kept = std::mem::take(&mut self.kept).into_iter();
        while let Some(first) = kept.next() {
            match kept.next() {
                Some(second) => halved.push(merge(&first, 1, &second, 1)),
                // One that has no neighbour yet waits for it.
                None => self.merging = Some((first, self.stride)),
            }
        }
        self.kept = halved;
        self.stride *= 2;
    }
}

/// The mean of two neighbours by their weights; a value that only one has stays. The time is that of
/// the later one: a sample tells of the time before it.
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
