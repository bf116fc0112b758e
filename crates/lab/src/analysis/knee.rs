//! When most calls of a method began to fail, and at which rate that was.
//!
//! A method with a small share of all calls can fail wholly, or mostly, and leave the error rate of all calls
//! below any usual limit. So each method is looked at on its own, second by second, by when calls
//! were due and not by when their failure was seen: a timeout is seen a timeout later.

use lab_model::record::Class;
use lab_model::results::run::Second;

#[cfg(test)]
mod tests;

/// In time in front of that in which most calls fail, a failed call weighs against this many answered
/// ones: the trouble began when more than one in ten failed. What hangs above a rate does so a little
/// at first, and mostly only when the rate is twice as high.
const FAILED_WEIGHS: i64 = 9;
/// Failed calls that it takes; fewer could be chance.
const FAILED_MIN: u64 = 10;

/// Time in which most calls of a method failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Knee {
    /// When the first of these calls was due, since the start of the run.
    pub from: f64,
    /// When calls were answered again; none if they never were.
    pub until: Option<f64>,
    /// Calls of the method that were due in this time.
    pub calls: u64,
    /// Those that failed.
    pub failed: u64,
    /// Calls that were answered before it.
    pub answered_before: u64,
    /// How most of them failed.
    pub class: Class,
    /// Iterations of the run that were begun per second when it began.
    pub rate: f64,
}

/// One second of one method, by due time.
#[derive(Clone, Copy, Default)]
struct Bin {
    answered: u64,
    failed: [u64; Class::ALL.len()],
}

impl Bin {
    fn failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Positive if more than one of `weighs + 1` calls failed.
    fn score(&self, weighs: i64) -> i64 {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX / 1024);
        weighs * count(self.failed()) - count(self.answered)
    }
}

/// The time in which calls of `method` failed most plainly, if there was one. `timeout` is the
/// seconds after which a call without an answer failed.
///
/// The segment is the one of the largest sum (Kadane's algorithm; Bentley, Programming Pearls,
/// column 8), each failed call counted 1 and each answered one -1; it begins as early before as more
/// than one in ten calls failed.
pub fn find(series: &[Second], method: &str, timeout: f64) -> Option<Knee> {
    let bins = bins(series, method, timeout);
    let (first, last) = steepest(&bins)?;
    if bins[first..=last].iter().map(Bin::failed).sum::<u64>() < FAILED_MIN {
        return None;
    }
    let first = onset(&bins, first);
    let inside = &bins[first..=last];
    let failed: u64 = inside.iter().map(Bin::failed).sum();
    let sum = |bins: &[Bin]| bins.iter().map(|bin| bin.answered).sum::<u64>();
    let answered_after = sum(&bins[last + 1..]);
    let by_class = |class: Class| inside.iter().map(|bin| bin.failed[class as usize]).sum::<u64>();
    let class = Class::ALL.into_iter().max_by_key(|class| by_class(*class))?;
    let from = start(series, first);
    Some(Knee {
        from,
        until: (answered_after > 0).then(|| series[last].at),
        calls: failed + sum(inside),
        failed,
        answered_before: sum(&bins[..first]),
        class,
        rate: series[first].begun as f64 / (series[first].at - from).max(f64::EPSILON),
    })
}

fn start(series: &[Second], index: usize) -> f64 {
    index.checked_sub(1).map_or(0.0, |before| series[before].at)
}

fn bins(series: &[Second], method: &str, timeout: f64) -> Vec<Bin> {
    let mut bins = vec![Bin::default(); series.len()];
    for (index, second) in series.iter().enumerate() {
        let Some(row) = second.methods.iter().find(|row| row.method == method) else { continue };
        for &(class, count) in &row.classes {
            if class == Class::Timeout {
                let middle = (start(series, index) + second.at) / 2.0;
                let due = (middle - timeout).max(0.0);
                let at = series.partition_point(|second| second.at <= due);
                bins[at.min(index)].failed[class as usize] += count;
            } else if class.failed() {
                bins[index].failed[class as usize] += count;
            } else {
                bins[index].answered += count;
            }
        }
    }
    bins
}

/// First and last bin of the segment of the largest sum; none if no call failed.
fn steepest(bins: &[Bin]) -> Option<(usize, usize)> {
    let (mut best, mut best_sum) = (None, 0);
    let (mut from, mut sum) = (0, 0_i64);
    for (index, bin) in bins.iter().enumerate() {
        if sum <= 0 {
            (from, sum) = (index, 0);
        }
        sum += bin.score(1);
        if sum > best_sum {
            (best, best_sum) = (Some((from, index)), sum);
        }
    }
    let (first, last) = best?;
    // Seconds without a call at its front say nothing of when it began.
    let first = (first..=last).find(|&index| bins[index].failed() > 0)?;
    Some((first, last))
}

/// The bin from which on more than one in ten calls failed until `first`, which it is if none did.
fn onset(bins: &[Bin], first: usize) -> usize {
    let (mut best, mut best_sum, mut sum) = (first, 0, 0_i64);
    for (index, bin) in bins[..first].iter().enumerate().rev() {
        sum += bin.score(FAILED_WEIGHS);
        if sum > best_sum {
            (best, best_sum) = (index, sum);
        }
    }
    best
}
