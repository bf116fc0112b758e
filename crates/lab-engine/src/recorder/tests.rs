//! Goal: intervals of several threads are merged into the right seconds, and no count is lost. An
//! interval has the counts of one thread over about a second. Method: intervals made by hand.
//!
//! The arguments of `interval` are the thread, the start and the end in milliseconds, the number of
//! calls, and their latency in milliseconds.

use std::time::Duration;

use lab_model::plan::Plan;
use lab_model::record::{Class, Interval, Iterations, Slot};
use lab_model::results::run::Second;
use lab_model::samples;

use super::{ClosedSecond, OPEN_SECONDS_MAX, Recorder, SERIES_MAX, Series};

fn plan(threads: usize, warmup: u64) -> Plan {
    let mut plan = samples::open(100.0, 60, &["eth_call", "eth_getLogs"]);
    (plan.threads, plan.warmup) = (threads, Duration::from_secs(warmup));
    plan
}

/// Returns an interval of a thread. It has `calls` calls of method 0, each with this latency.
fn interval(thread: usize, from_ms: u64, to_ms: u64, calls: u64, latency_ms: u64) -> Interval {
    let mut interval = Interval::new(thread, 1, 2);
    interval.from = Duration::from_millis(from_ms);
    interval.to = Duration::from_millis(to_ms);
    let slot = Slot { stage: 0, method: 0, class: Class::Ok };
    let latency_ns = latency_ms * 1_000_000;
    (0..calls).for_each(|_| interval.record(slot, latency_ns, latency_ns));
    interval.iterations[0] =
        Iterations { scheduled: calls, started: calls, ..Iterations::default() };
    interval.traffic.requests = calls;
    interval.idle = Duration::from_millis((to_ms - from_ms) / 4);
    interval.in_flight = 2;
    interval
}

fn close_all(recorder: &mut Recorder) -> Vec<ClosedSecond> {
    std::iter::from_fn(|| recorder.close()).collect()
}

#[test]
fn a_second_is_closed_after_all_threads_have_passed_it() {
    let mut recorder = Recorder::new(&plan(2, 0));
    recorder.add(&interval(0, 0, 1_002, 10, 5));
    assert!(recorder.close().is_none(), "the other thread may still have something");
    recorder.add(&interval(1, 0, 1_001, 30, 50));
    let closed = recorder.close().unwrap();
    let second = &closed.second;
    assert_eq!((second.at, second.started, second.requests, second.in_flight), (1.0, 40, 40, 4));
    assert!((second.generator_busy - 0.75).abs() < 0.01, "{second:?}");
    let row = &second.methods[0];
    assert_eq!((row.method.as_str(), row.classes.as_slice()), ("eth_call", &[(Class::Ok, 40)][..]));
    assert!((row.p50_ms - 50.0).abs() < 0.1 && (row.max_ms - 50.0).abs() < 0.1, "{row:?}");
    assert_eq!(second.methods.len(), 1, "a method that was not called has no row");
    assert!(recorder.close().is_none());
}

#[test]
fn a_thread_that_lags_or_ends_does_not_delay_the_others() {
    let mut recorder = Recorder::new(&plan(2, 0));
    recorder.add(&interval(1, 0, 1_000, 1, 5));
    let mut closed = Vec::new();
    for at in 0..10 {
        recorder.add(&interval(0, at * 1_000, at * 1_000 + 1_000, 10, 5));
        closed.extend(close_all(&mut recorder));
    }
    assert!(closed.len() >= 5, "{}", closed.len());
    // An interval that arrives too late counts in the oldest open second.
    recorder.add(&interval(1, 1_000, 9_000, 100, 5));
    closed.extend(std::iter::from_fn(|| recorder.close_oldest()));
    let requests: u64 = closed.iter().map(|closed| closed.second.requests).sum();
    // 1 call and 100 calls of thread 1, and 100 calls of thread 0.
    assert_eq!(requests, 201);
    assert_eq!(recorder.finish().total.traffic.requests, 201);
}

#[test]
fn the_last_second_has_its_actual_length() {
    let mut recorder = Recorder::new(&plan(1, 0));
    recorder.add(&interval(0, 0, 1_000, 10, 5));
    recorder.add(&interval(0, 1_000, 1_370, 4, 5));
    assert_eq!(recorder.close().unwrap().to, Duration::from_secs(1));
    assert!(recorder.close().is_none());
    let last = recorder.close_oldest().unwrap();
    assert_eq!((last.from, last.to), (Duration::from_secs(1), Duration::from_millis(1_370)));
    assert!(recorder.close_oldest().is_none());
}

#[test]
fn the_warm_up_is_recorded_but_not_measured() {
    let mut recorder = Recorder::new(&plan(1, 2));
    for at in 0..5 {
        recorder.add(&interval(
            0,
            at * 1_000,
            at * 1_000 + 1_000,
            10,
            if at < 2 { 900 } else { 5 },
        ));
    }
    let measured: Vec<_> =
        close_all(&mut recorder).iter().map(|closed| closed.is_measured).collect();
    assert_eq!(measured, [false, false, true, true, true]);
    let recorded = recorder.finish();
    assert_eq!((recorded.total.count(|_| true), recorded.measured.count(|_| true)), (50, 30));
    assert_eq!(recorded.measured.iterations[0].started, 30);
    assert!(recorded.measured.latency(|_| true).max() < 6_000_000, "the slow start is left out");
    assert_eq!(recorded.series.len(), 5, "but it is shown");
}

#[test]
fn a_run_that_ends_within_the_warm_up_has_nothing_to_judge() {
    let mut recorder = Recorder::new(&plan(1, 20));
    recorder.add(&interval(0, 0, 1_000, 10, 5));
    assert_eq!(close_all(&mut recorder).len(), 1);
    assert_eq!(recorder.finish().measured.count(|_| true), 0);
}

#[test]
fn memory_is_bounded_for_a_stalled_clock_and_for_invalid_intervals() {
    let mut recorder = Recorder::new(&plan(1, 0));
    recorder.add(&interval(0, 900_000_000, 900_001_000, 1, 5));
    assert!(recorder.open.len() < 20);
}

#[test]
fn counts_are_reused_and_empty() {
    let mut recorder = Recorder::new(&plan(1, 0));
    for at in 0..50 {
        recorder.add(&interval(0, at * 1_000, at * 1_000 + 1_000, 10, 5));
        let closed = recorder.close().unwrap();
        assert_eq!(closed.counts.count(|_| true), 10);
        recorder.reuse(closed.counts);
        assert_eq!(recorder.spare.len(), OPEN_SECONDS_MAX, "as many as at the start");
    }
    assert_eq!(recorder.finish().total.count(|_| true), 500);
}

#[test]
fn a_long_series_is_reduced_and_loses_no_count_and_no_peak() {
    let mut series = Series::default();
    let seconds = SERIES_MAX as u64 * 5 + 3;
    for at in 1..=seconds {
        let mut second = samples::second(at, 10, "eth_call", &[(Class::Ok, 9), (Class::Reset, 1)]);
        second.methods[0].p99_ms = if at == 5_001 { 700.0 } else { 3.0 };
        second.methods[0].p50_ms = 2.0;
        series.push(second);
    }
    let points = series.points;
    assert!(points.len() <= SERIES_MAX && points.len() > SERIES_MAX / 2, "{}", points.len());
    assert_eq!(points.iter().map(|point| point.started).sum::<u64>(), seconds * 10);
    let peak = points.iter().map(|point| point.methods[0].p99_ms).fold(0.0, f64::max);
    assert_eq!(peak, 700.0);
    assert!(points.iter().all(|point: &Second| (point.methods[0].p50_ms - 2.0).abs() < 1e-9));
    assert_eq!(points.last().unwrap().at, seconds as f64);
    assert!(points.windows(2).all(|pair| pair[0].at < pair[1].at));
    let classes = points.iter().flat_map(|point| &point.methods[0].classes);
    let calls: u64 = classes.map(|(_, calls)| calls).sum();
    assert_eq!(calls, seconds * 10);
}
