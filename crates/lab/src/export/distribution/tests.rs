//! Goal: all formats represent the same distribution. Method: known values, and the quantiles that
//! a reader computes from each format.

use lab_model::record::empty_times;

use super::*;

fn times_of(values_ms: impl IntoIterator<Item = f64>) -> Times {
    let mut all = empty_times();
    values_ms.into_iter().for_each(|ms| all.saturating_record((ms * 1e6) as u64));
    all
}

fn native(times: &Times, schema: i32) -> Native {
    match Distribution::of(times, &Form::Trends(Trends::Native { schema })).shape {
        Shape::Native(native) => native,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bucket_includes_its_end() {
    // The ends of the buckets of schema 0 are the powers of two.
    for (value, expected) in [(1.0, 0), (1.000_001, 1), (2.0, 1), (0.5, -1), (0.500_001, 0)] {
        assert_eq!(bucket_index(value, 0), expected, "{value}");
    }
    assert_eq!(bucket_index(2.0, 5), 32);
    assert_eq!(bucket_index(1e-3, 5), -318);
}

#[test]
fn native_buckets_give_the_quantiles_within_their_width() {
    let times = times_of((1..=10_000).map(|ms| f64::from(ms) / 10.0));
    for (schema, width) in [(5, 0.022), (8, 0.0028)] {
        let native = native(&times, schema);
        assert_eq!(native.buckets.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        assert!(native.buckets.is_sorted_by(|left, right| left.0 < right.0));
        let mut below = 0;
        let bucket = native.buckets.iter().find(|(_, count)| {
            below += count;
            below >= 9_900
        });
        let end = (f64::from(bucket.unwrap().0) / f64::from(schema).exp2()).exp2();
        assert!((end / 0.99 - 1.0).abs() < width + 0.001, "schema {schema}: {end}");
    }
}

#[test]
fn values_below_the_resolution_are_in_the_zero_bucket() {
    let native = native(&times_of([0.0, 0.000_05, 1.0]), 5);
    assert_eq!(native.zero, 2);
    assert_eq!(native.buckets.len(), 1);
}

#[test]
fn sums_and_statistics_are_in_seconds() {
    let times = times_of((1..=100).map(f64::from));
    let stats = ["count", "sum", "min", "max", "avg", "med", "p(99)"];
    let stats: Vec<Stat> = stats.iter().map(|text| text.parse().unwrap()).collect();
    let distribution = Distribution::of(&times, &Form::Trends(Trends::Stats(stats)));
    let Shape::Stats(stats) = distribution.shape else { panic!("{distribution:?}") };
    let expected = [100.0, 5.05, 0.001, 0.1, 0.0505, 0.05, 0.099];
    for ((stat, value), expected) in stats.iter().zip(expected) {
        assert!((value / expected - 1.0).abs() < 0.002, "{stat:?} is {value}, not {expected}");
    }
    assert!((distribution.sum / 5.05 - 1.0).abs() < 0.001, "{}", distribution.sum);
}

#[test]
fn classic_buckets_are_cumulative() {
    let distribution = Distribution::of(&times_of([0.05, 0.3, 0.3, 70_000.0]), &Form::Classic);
    let Shape::Classic(cumulative_counts) = &distribution.shape else { panic!("{distribution:?}") };
    assert_eq!(cumulative_counts[..3], [1, 1, 3]);
    assert_eq!(cumulative_counts.last(), Some(&3), "70 s is above every bound");
    assert_eq!(distribution.count, 4);
}

#[test]
fn statistics_of_no_values_are_zero() {
    let stats = vec![Stat::Avg, Stat::Max, Stat::Percentile(99.0)];
    let distribution = Distribution::of(&empty_times(), &Form::Trends(Trends::Stats(stats)));
    let Shape::Stats(stats) = distribution.shape else { panic!("{distribution:?}") };
    assert!(stats.iter().all(|(_, value)| *value == 0.0), "{stats:?}");
}
