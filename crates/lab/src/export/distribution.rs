//! Converts the run's histograms of times to the formats of exports: statistics, a native histogram
//! or a classic histogram (the last two as Prometheus names them). A `Form` is the requested
//! format; a `Shape` has the converted values.
//!
//! All results are in seconds. In sums and buckets, a value counts as the middle of its bucket in
//! the run's histogram. The width of that bucket is a thousandth of the value.

use lab_model::record::Times;

use super::{Stat, Trends};

#[cfg(test)]
mod tests;

/// The requested format of exported distributions.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// The format that the user chose for remote write.
    Trends(Trends),
    /// A classic histogram: the number of values up to each of [`BOUNDS`].
    Classic,
}

/// A distribution in one of the formats.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Distribution {
    /// Number of values.
    pub(super) count: u64,
    /// Sum of the values in seconds.
    pub(super) sum: f64,
    /// The values, converted to the requested [`Form`].
    pub(super) shape: Shape,
}

/// The converted values of a distribution. Each variant belongs to one [`Form`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Statistics with their values.
    Stats(Vec<(Stat, f64)>),
    /// A native histogram.
    Native(Native),
    /// The number of values up to each of [`BOUNDS`].
    Classic(Vec<u64>),
}

/// The buckets of a native histogram, whose width grows exponentially:
/// <https://prometheus.io/docs/specs/native_histograms/#schema>.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Native {
    /// Resolution: each doubling of the value has `2^schema` buckets.
    pub(super) schema: i32,
    /// The number of values in the zero bucket, that is, up to [`ZERO`].
    pub(super) zero: u64,
    /// Index and count of each bucket with values, in order of the index. Bucket `i` ends at
    /// `2^(i / 2^schema)` seconds.
    pub(super) buckets: Vec<(i32, u64)>,
}

/// Upper bound of the zero bucket in seconds: 100 ns, the resolution of `record.rs`.
pub(super) const ZERO: f64 = 1e-7;

/// Upper bounds of the classic buckets in seconds: three per decade, from 100 µs to a minute.
pub(super) const BOUNDS: [f64; 18] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

impl Distribution {
    /// Converts `times` to a format.
    pub(super) fn of(times: &Times, form: &Form) -> Distribution {
        let mut shape = match form {
            Form::Trends(Trends::Native { schema }) => {
                Shape::Native(Native { schema: *schema, zero: 0, buckets: Vec::new() })
            }
            Form::Trends(Trends::Stats(_)) => Shape::Stats(Vec::new()),
            Form::Classic => Shape::Classic(vec![0; BOUNDS.len()]),
        };
        let mut sum = 0.0;
        for recorded in times.iter_recorded() {
            let count = recorded.count_at_value();
            let value = seconds(times.median_equivalent(recorded.value_iterated_to()));
            sum += value * count as f64;
            match &mut shape {
                Shape::Native(native) => native.add(value, count),
                Shape::Classic(counts) => {
                    // The counts are cumulative.
                    let first_index = BOUNDS.partition_point(|bound| *bound < value);
                    counts[first_index..].iter_mut().for_each(|bucket| *bucket += count);
                }
                Shape::Stats(_) => {}
            }
        }
        if let Form::Trends(Trends::Stats(stats)) = form {
            let value = |stat: &Stat| (*stat, stat_of(*stat, times, sum));
            shape = Shape::Stats(stats.iter().map(value).collect());
        }
        Distribution { count: times.len(), sum, shape }
    }
}

impl Native {
    /// Adds `count` equal values. Values must be added in ascending order.
    fn add(&mut self, value: f64, count: u64) {
        if value <= ZERO {
            self.zero += count;
            return;
        }
        let index = bucket_index(value, self.schema);
        match self.buckets.last_mut() {
            Some((last_index, bucket)) if *last_index == index => *bucket += count,
            _ => self.buckets.push((index, count)),
        }
    }
}

/// Returns the index of the bucket of a value above zero. It is the first bucket whose end is at or
/// above the value.
fn bucket_index(value: f64, schema: i32) -> i32 {
    (value.log2() * f64::from(schema).exp2()).ceil() as i32
}

/// Returns a statistic in seconds, or the number of values.
fn stat_of(stat: Stat, times: &Times, sum: f64) -> f64 {
    match stat {
        Stat::Count => times.len() as f64,
        Stat::Sum => sum,
        Stat::Avg if times.is_empty() => 0.0,
        Stat::Avg => sum / times.len() as f64,
        Stat::Min => seconds(times.min()),
        Stat::Max => seconds(times.max()),
        Stat::Med => seconds(times.value_at_quantile(0.5)),
        Stat::Percentile(number) => seconds(times.value_at_percentile(number)),
    }
}

/// Converts nanoseconds to seconds.
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
