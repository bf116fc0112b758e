//! Keeping the samples of a run of any length in bounded memory: when there are too many, neighbours
//! are merged, so that the whole run stays visible, only coarser.

use std::collections::BTreeMap;

use crate::result::HostSample;

/// Samples that are kept per host. At 250 ms these are 8 minutes whole; two hours are then kept at
/// 4 seconds. About 10 MB.
pub const KEPT_MAX: usize = 2_000;

/// The samples of a run, by host, evenly thinned.
#[derive(Debug)]
pub struct Kept {
    max: usize,
    hosts: BTreeMap<String, Course>,
}

#[derive(Debug)]
struct Course {
    kept: Vec<HostSample>,
    /// Samples that become one.
    stride: usize,
    /// The sample that is being merged, and of how many it is.
    merging: Option<(HostSample, usize)>,
}

impl Kept {
    /// Keeps at most `max` samples of each host; at least 2.
    pub fn new(max: usize) -> Kept {
        Kept { max: max.max(2), hosts: BTreeMap::new() }
    }

    /// Adds the next sample of its host.
    pub fn push(&mut self, sample: HostSample) {
        let course = self.hosts.entry(sample.host.clone()).or_insert(Course {
            kept: Vec::new(),
            stride: 1,
            merging: None,
        });
        course.push(sample);
        if course.kept.len() >= self.max {
            course.halve();
        }
    }

    /// Everything, in order of time.
    pub fn samples(&self) -> Vec<HostSample> {
        let mut all = Vec::new();
        for course in self.hosts.values() {
            all.extend(course.kept.iter().cloned());
            all.extend(course.merging.iter().map(|(sample, _)| sample.clone()));
        }
        all.sort_by(|one, other| one.at.total_cmp(&other.at));
        all
    }
}

impl Course {
    fn push(&mut self, sample: HostSample) {
        let (merged, count) = match self.merging.take() {
            None => (sample, 1),
            Some((before, count)) => (merge(before, count, sample, 1), count + 1),
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
                Some(second) => halved.push(merge(first, 1, second, 1)),
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
fn merge(first: HostSample, weight: usize, second: HostSample, other: usize) -> HostSample {
    #[expect(clippy::cast_precision_loss)]
    let part = other as f64 / (weight + other) as f64;
    let mut values = Vec::with_capacity(first.values.len().max(second.values.len()));
    let (mut left, mut right) = (first.values.into_iter().peekable(), second.values.into_iter());
    let mut next_right = right.next();
    while let Some(after) = next_right.take() {
        while let Some(before) = left.next_if(|before| before.0 < after.0) {
            values.push(before);
        }
        values.push(match left.next_if(|before| before.0 == after.0) {
            Some(before) => (after.0, before.1 + (after.1 - before.1) * part),
            None => after,
        });
        next_right = right.next();
    }
    values.extend(left);
    HostSample { at: second.at, host: second.host, values }
}

#[cfg(test)]
mod tests;
