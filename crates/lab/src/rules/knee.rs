//! When the calls of a method began to fail altogether, and at which rate that was.
//!
//! A method with a small share of all calls can fail wholly and leave the error rate of all calls
//! below any usual limit. So each method is looked at on its own, second by second, by when calls
//! were due and not by when their failure was seen: a timeout is seen a timeout later.

use crate::record::Class;
use crate::result::Second;

#[cfg(test)]
mod tests;

/// An answered call weighs against this many failed ones: time in which more than nine in ten calls
/// fail adds up, time in which fewer fail does not.
const ANSWERED_WEIGHS: i64 = 9;
/// Failed calls that it takes; fewer could be chance.
const FAILED_MIN: u64 = 10;

/// Time in which nearly all calls of a method failed.
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

    fn score(&self) -> i64 {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX / 1024);
        count(self.failed()) - ANSWERED_WEIGHS * count(self.answered)
    }
}

/// The time in which calls of `method` failed most plainly, if there was one. `timeout` is the
/// seconds after which a call without an answer failed.
///
/// The segment is the one of the largest sum (Kadane's algorithm; Bentley, Programming Pearls,
/// column 8), each failed call counted 1 and each answered one -9.
pub fn find(series: &[Second], method: &str, timeout: f64) -> Option<Knee> {
    let bins = bins(series, method, timeout);
    let (first, last) = steepest(&bins)?;
    let inside = &bins[first..=last];
    let failed: u64 = inside.iter().map(Bin::failed).sum();
    if failed < FAILED_MIN {
        return None;
    }
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
        sum += bin.score();
        if sum > best_sum {
            (best, best_sum) = (Some((from, index)), sum);
        }
    }
    let (first, last) = best?;
    // Seconds without a call at its front say nothing of when it began.
    let first = (first..=last).find(|&index| bins[index].failed() > 0)?;
    Some((first, last))
}
