//! Goal: quantiles and rows are right. Method: values calculated by hand, and sorted samples.

use std::time::Duration;

use lab_model::plan::Model;
use lab_model::record::{Class, Interval, Iterations, Slot, Totals, empty_times};
use lab_model::samples;
use proptest::prelude::*;

use super::{
    compute_method_rows, compute_quantiles, compute_stage_rows, delivered_share, percentile_ms,
};

const MS: u64 = 1_000_000;

/// Returns true if a value equals the expected one within the precision of a histogram.
fn close(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected.abs() * 0.002 + 0.001
}

#[test]
fn statistics_without_values_are_zero() {
    assert_eq!(compute_quantiles(&empty_times()).count, 0);
    assert_eq!(percentile_ms(&empty_times(), 99.0), None);
}

#[test]
fn statistics_of_one_value_equal_that_value() {
    let mut times = empty_times();
    times.saturating_record(5 * MS);
    let quantiles = compute_quantiles(&times);
    for value in [
        quantiles.min_ms,
        quantiles.p50_ms,
        quantiles.p99_ms,
        quantiles.max_ms,
        quantiles.p99_interval_ms.0,
    ] {
        assert!(close(value, 5.0), "{quantiles:?}");
    }
}

#[test]
fn ranks_and_interval_of_a_p99_are_those_of_the_formula() {
    let mut times = empty_times();
    (1..=10_000).for_each(|number| times.saturating_record(number * MS / 10));
    let quantiles = compute_quantiles(&times);
    assert!(close(quantiles.p50_ms, 500.05), "{quantiles:?}");
    assert!(close(quantiles.p99_ms, 990.001), "{quantiles:?}");
    // The ranks of the interval are 9,900 ± 19.5.
    assert!(close(quantiles.p99_interval_ms.0, 988.0), "{quantiles:?}");
    assert!(close(quantiles.p99_interval_ms.1, 992.0), "{quantiles:?}");
    assert!(quantiles.p99_interval_ms.1 - quantiles.p99_interval_ms.0 > 3.0, "{quantiles:?}");
}

proptest! {
    /// Compares with k6's definition: linear interpolation of the sorted values at `p (n - 1)`.
    #[test]
    fn percentiles_agree_with_sorted_samples(
        values in prop::collection::vec(1_000_u64..100_000_000_000, 1..60),
        percentile in 0.0_f64..=100.0,
    ) {
        let mut recorded = empty_times();
        values.iter().for_each(|value| recorded.saturating_record(*value));
        let mut sorted = values;
        sorted.sort_unstable();
        let rank = percentile / 100.0 * (sorted.len() - 1) as f64;
        let (low, high) = (sorted[rank.floor() as usize], sorted[rank.ceil() as usize]);
        let exact = low as f64 + (high as f64 - low as f64) * rank.fract();
        let computed = percentile_ms(&recorded, percentile).unwrap() * 1e6;
        prop_assert!((computed - exact).abs() <= exact * 0.001 + 100.0, "{computed} {exact}");
    }
}

/// Returns the counts of two methods in one stage of 10 s. The service time of each call is half of
/// its latency.
fn example_totals() -> Totals {
    let mut interval = Interval::new(0, 1, 2);
    let mut record = |method, class, count, latency_ms: u64| {
        let slot = Slot { stage: 0, method, class };
        (0..count).for_each(|_| interval.record(slot, latency_ms * MS, latency_ms * MS / 2));
    };
    record(0, Class::Ok, 80, 10);
    record(0, Class::Limited, 20, 1);
    record(1, Class::Ok, 5, 100);
    record(1, Class::Timeout, 15, 5_000);
    (0..3).for_each(|_| interval.record_code(1, -32_000));
    interval.iterations[0] = Iterations {
        scheduled: 130,
        started: 120,
        ended: 118,
        dropped: 10,
        interrupted: 2,
        ..Iterations::default()
    };
    let mut totals = Totals::new(1);
    totals.merge(&interval);
    totals
}

#[test]
fn rows_separate_the_classes_and_exclude_429_from_failures() {
    // 100 iterations per second for 10 s.
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs", "never_called"]);
    let (all, rows) = compute_method_rows(&plan, &example_totals(), 10.0);
    assert_eq!((all.calls, all.method.as_str()), (120, "all"));
    // 85 calls of class `ok` in 10 s.
    assert_eq!(all.goodput, 8.5);
    assert_eq!(all.codes, [(-32_000, 3)]);
    let names: Vec<_> = rows.iter().map(|row| row.method.as_str()).collect();
    assert_eq!(names, ["eth_call", "eth_getLogs"], "a method without calls has no row");
    let [call, logs] = rows.as_slice() else { panic!("two rows") };
    assert_eq!((call.failed_share, call.limited_share, call.goodput), (0.0, 0.2, 8.0));
    assert_eq!((logs.failed_share, logs.share), (0.75, 20.0 / 120.0));
    assert_eq!(logs.codes, [(-32_000, 3)]);
    assert!(call.codes.is_empty());
    let timeouts = logs.classes.iter().find(|row| row.class == Class::Timeout).unwrap();
    assert!(close(timeouts.latency.p50_ms, 5_000.0), "a timeout is in the percentiles");
    assert!(close(logs.latency.p50_ms, 5_000.0));
    assert!(close(logs.service.p50_ms, 2_500.0));
}

#[test]
fn calls_after_the_end_count_for_times_but_not_for_rates() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let mut totals = example_totals();
    totals.iterations[0].started_after_end = 20;
    totals.ended_after_end.insert(Slot { stage: 0, method: 0, class: Class::Ok }, 15);
    totals.ended_after_end.insert(Slot { stage: 0, method: 1, class: Class::Timeout }, 5);
    let (all, rows) = compute_method_rows(&plan, &totals, 10.0);
    assert_eq!((all.calls, all.latency.count, all.goodput, all.rate), (120, 120, 7.0, 10.0));
    assert_eq!((rows[0].goodput, rows[1].goodput), (6.5, 0.5));
    assert_eq!(delivered_share(super::sum_iterations(&totals)), 100.0 / 130.0);
    let stage =
        |totals: &Totals| compute_stage_rows(&plan, totals, Duration::from_secs(10)).remove(0);
    assert_eq!((stage(&totals).rate_started, stage(&totals).overall.goodput), (10.0, 7.0));
    // A call that ended in the next stage counts for the rate of the run, but not for the rate of
    // its stage.
    totals.carried.insert(Slot { stage: 0, method: 0, class: Class::Ok }, 10);
    assert_eq!((stage(&totals).overall.goodput, stage(&totals).overall.rate), (6.0, 9.0));
    assert_eq!(compute_method_rows(&plan, &totals, 10.0).0.goodput, 7.0);
}

#[test]
fn an_interrupted_stage_has_its_actual_length() {
    let plan = samples::open(100.0, 10, &["eth_call", "eth_getLogs"]);
    let rows = compute_stage_rows(&plan, &example_totals(), Duration::from_secs(6));
    let [row] = rows.as_slice() else { panic!("one stage") };
    assert_eq!((row.from, row.to, row.rate_started), (0.0, 6.0, 20.0));
    assert_eq!((row.model.as_str(), row.level_from, row.level_to), ("open", 100.0, 100.0));
    assert_eq!(row.iterations.dropped, 10);
    assert_eq!(row.methods.len(), 2);
}

#[test]
fn stages_follow_each_other_from_the_start_of_their_scenario() {
    let mut plan = samples::open(100.0, 10, &["eth_call"]);
    // A second stage of scenario 0: 20 s, in which the level rises from 100 to 200.
    samples::stage(&mut plan, 0, 20, 100.0, 200.0);
    plan.scenarios[0].start = Duration::from_secs(5);
    plan.scenarios[0].model = Model::Closed;
    let rows = compute_stage_rows(&plan, &Totals::new(2), Duration::from_secs(100));
    let spans: Vec<_> = rows.iter().map(|row| (row.from, row.to)).collect();
    assert_eq!(spans, [(5.0, 15.0), (15.0, 35.0)]);
    assert_eq!(rows[1].model, "closed");
}

#[test]
fn a_run_without_scheduled_iterations_delivers_all() {
    assert_eq!(delivered_share(Iterations::default()), 1.0);
    assert_eq!(
        delivered_share(Iterations { scheduled: 4, started: 3, ..Iterations::default() }),
        0.75
    );
}
