//! Finds the period in which most calls of a method failed, and the rate of the run when that
//! period began.
//!
//! A method with a small share of the calls can fail completely while the error rate of all calls
//! stays below any usual limit. So each method is examined separately, second by second. A call
//! counts in the second in which it ended. A timed-out call counts in the second in which it was
//! scheduled, one timeout earlier.

use lab_model::record::Class;
use lab_model::results::run::Second;

#[cfg(test)]
mod tests;

/// Weight of a failed call, relative to a successful one, while the start of the period is moved
/// back. With 9, the start moves back while more than one call in ten failed. A server that fails
/// above some rate fails only a few calls at first.
const ONSET_FAILURE_WEIGHT: i64 = 9;
/// Smallest number of failed calls in a period; fewer may be chance.
const FAILED_MIN: u64 = 10;

/// A period in which most calls of a method failed.
#[derive(Clone, Debug, PartialEq)]
pub struct FailurePeriod {
    /// Start of the period, in seconds since the start of the run.
    pub from: f64,
    /// End of the period, in seconds since the start of the run; `None` if no later call succeeded.
    pub until: Option<f64>,
    /// Number of calls of the method that count in the period.
    pub calls: u64,
    /// Number of failed calls of the period.
    pub failed: u64,
    /// Number of calls before the period that did not fail.
    pub succeeded_before: u64,
    /// Class of the most frequent failure.
    pub class: Class,
    /// Number of iterations per second that the run started when the period began.
    pub rate: f64,
}

/// Numbers of calls of one method that count in one second.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Calls that did not fail.
    succeeded: u64,
    /// Failed calls, by class.
    failed: [u64; Class::ALL.len()],
}

impl Bucket {
    /// Returns the number of failed calls of all classes.
    fn failed(&self) -> u64 {
        self.failed.iter().sum()
    }

    /// Returns the failed calls times `weight`, minus the successful calls. The score is positive
    /// if more than one call in `weight + 1` failed.
    fn score(&self, weight: i64) -> i64 {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX / 1024);
        weight * signed(self.failed()) - signed(self.succeeded)
    }
}

/// Returns the period in which most calls of `method` failed. `None` if there was no such period,
/// or if fewer than ten calls failed in it. `timeout` is the call timeout in seconds.
///
/// The period is the segment with the largest sum (Kadane's algorithm; Bentley, Programming Pearls,
/// column 8), where a failed call counts 1 and a successful one -1. The start of the period is then
/// moved back over the time in which more than one call in ten failed.
pub fn find(series: &[Second], method: &str, timeout: f64) -> Option<FailurePeriod> {
    let buckets = count_by_second(series, method, timeout);
    let (first_index, last_index) = find_largest_segment(&buckets)?;
    if buckets[first_index..=last_index].iter().map(Bucket::failed).sum::<u64>() < FAILED_MIN {
        return None;
    }
    let first_index = find_onset(&buckets, first_index);
    let inside = &buckets[first_index..=last_index];
    let failed: u64 = inside.iter().map(Bucket::failed).sum();
    let succeeded = |buckets: &[Bucket]| buckets.iter().map(|bucket| bucket.succeeded).sum::<u64>();
    let succeeded_after = succeeded(&buckets[last_index + 1..]);
    let by_class =
        |class: Class| inside.iter().map(|bucket| bucket.failed[class as usize]).sum::<u64>();
    let class = Class::ALL.into_iter().max_by_key(|class| by_class(*class))?;
    let from = bucket_start(series, first_index);
    Some(FailurePeriod {
        from,
        until: (succeeded_after > 0).then(|| series[last_index].at),
        calls: failed + succeeded(inside),
        failed,
        succeeded_before: succeeded(&buckets[..first_index]),
        class,
        rate: series[first_index].started as f64
            / (series[first_index].at - from).max(f64::EPSILON),
    })
}

/// Returns the start of a bucket in seconds since the start of the run. A [`Second`] has only its
/// end.
fn bucket_start(series: &[Second], index: usize) -> f64 {
    index.checked_sub(1).map_or(0.0, |previous| series[previous].at)
}

/// Returns the calls of a method by the second in which they count.
fn count_by_second(series: &[Second], method: &str, timeout: f64) -> Vec<Bucket> {
    let mut buckets = vec![Bucket::default(); series.len()];
    for (index, second) in series.iter().enumerate() {
        let Some(row) = second.methods.iter().find(|row| row.method == method) else { continue };
        for &(class, count) in &row.classes {
            if class == Class::Timeout {
                // The calls of a second end in the middle of that second, on average.
                let ended_at = (bucket_start(series, index) + second.at) / 2.0;
                let scheduled_at = (ended_at - timeout).max(0.0);
                let scheduled_index = series.partition_point(|second| second.at <= scheduled_at);
                buckets[scheduled_index.min(index)].failed[class as usize] += count;
            } else if class.is_failure() {
                buckets[index].failed[class as usize] += count;
            } else {
                buckets[index].succeeded += count;
            }
        }
    }
    buckets
}

/// Returns the first and last index of the segment with the largest sum of scores. `None` if no
/// segment has a positive sum.
fn find_largest_segment(buckets: &[Bucket]) -> Option<(usize, usize)> {
    let (mut best, mut best_sum) = (None, 0);
    let (mut start, mut sum) = (0, 0_i64);
    for (index, bucket) in buckets.iter().enumerate() {
        if sum <= 0 {
            (start, sum) = (index, 0);
        }
        sum += bucket.score(1);
        if sum > best_sum {
            (best, best_sum) = (Some((start, index)), sum);
        }
    }
    let (first_bucket, last_bucket) = best?;
    // Leading seconds without a failed call do not belong to the period.
    let first_bucket = (first_bucket..=last_bucket).find(|&index| buckets[index].failed() > 0)?;
    Some((first_bucket, last_bucket))
}

/// Moves the start of a period back over the seconds in which only some calls failed. `first_index`
/// is the first bucket in which most calls failed. Returns the earlier index from which the sum of
/// scores up to `first_index` is largest, or `first_index` if no such sum is positive.
fn find_onset(buckets: &[Bucket], first_index: usize) -> usize {
    let (mut best, mut best_sum, mut sum) = (first_index, 0, 0_i64);
    for (index, bucket) in buckets[..first_index].iter().enumerate().rev() {
        sum += bucket.score(ONSET_FAILURE_WEIGHT);
        if sum > best_sum {
            (best, best_sum) = (index, sum);
        }
    }
    best
}
