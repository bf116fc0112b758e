//! Goal: iterations start, and the number of workers changes, at the planned times, on any number
//! of threads. Method: the computed times are compared with a numeric integration of the rate, and
//! with known times of k6's executors.

use std::time::Duration;

use lab_model::plan::{Model, Scenario, Stage};
use proptest::prelude::*;

use super::{Arrivals, Change, Changes, StageClock, share};

/// Returns an open scenario. A stage is its length in milliseconds, its level at the start, and its
/// level at the end.
fn scenario(start_ms: u64, stages: &[(u64, f64, f64)]) -> Scenario {
    let stage = |(index, &(ms, from, to)): (usize, &(u64, f64, f64))| Stage {
        index,
        name: index.to_string(),
        duration: Duration::from_millis(ms),
        from,
        to,
    };
    Scenario {
        name: "s".to_owned(),
        start: Duration::from_millis(start_ms),
        model: Model::Open,
        queue_max: 0,
        stages: stages.iter().enumerate().map(stage).collect(),
        mix: 0,
        workers_max: 10,
        pause: Duration::ZERO,
        batch: None,
        iterations_max: None,
        transactions: None,
        grace: Duration::ZERO,
    }
}

/// Returns the start times of all iterations in seconds.
fn times(scenario: &Scenario) -> Vec<f64> {
    Arrivals::new(scenario, 0, 1).map(|arrival| arrival.at as f64 / 1e9).collect()
}

/// Integrates the rate in small steps and returns the times at which the integral passes a whole
/// number.
fn integrate_times(scenario: &Scenario) -> Vec<f64> {
    const STEPS: u64 = 20_000;
    let (mut found, mut area, mut stage_start) = (Vec::new(), 0.0, scenario.start.as_secs_f64());
    for stage in &scenario.stages {
        let seconds = stage.duration.as_secs_f64();
        let step = seconds / STEPS as f64;
        for index in 0..STEPS {
            let middle = (index as f64 + 0.5) / STEPS as f64;
            let rate = stage.from + (stage.to - stage.from) * middle;
            let next = area + rate * step;
            while rate > 0.0 && next >= (found.len() + 1) as f64 {
                let within = ((found.len() + 1) as f64 - area) / rate;
                found.push(stage_start + index as f64 * step + within);
            }
            area = next;
        }
        stage_start += seconds;
    }
    found
}

#[test]
fn a_constant_rate_starts_at_once_and_keeps_its_period() {
    let times = times(&scenario(500, &[(2_000, 5.0, 5.0)]));
    let expected: Vec<f64> = (0..10).map(|n| f64::from(5 + n * 2) / 10.0).collect();
    assert_eq!(times, expected);
}

#[test]
fn a_fractional_constant_rate_sends_what_fits() {
    assert_eq!(times(&scenario(0, &[(1_000, 2.5, 2.5)])), [0.0, 0.4, 0.8]);
}

#[test]
fn a_ramp_from_zero_follows_the_square_root() {
    // The rate rises from 0 to 10/s in 2 s. The area is 2.5 t², so it reaches n at sqrt(n / 2.5).
    let times = times(&scenario(0, &[(2_000, 0.0, 10.0)]));
    assert_eq!(times.len(), 10);
    for (index, time) in times.iter().enumerate() {
        let expected = ((index + 1) as f64 / 2.5).sqrt();
        assert!((time - expected).abs() < 1e-9, "{index}: {time} != {expected}");
    }
}

#[test]
fn a_ramp_to_zero_ends_with_the_stage() {
    let times = times(&scenario(0, &[(2_000, 10.0, 0.0)]));
    assert_eq!(times.len(), 10);
    assert_eq!(*times.last().unwrap(), 2.0);
}

#[test]
fn a_stage_without_time_is_a_step() {
    let stepped = scenario(0, &[(1_000, 10.0, 10.0), (0, 10.0, 50.0), (1_000, 50.0, 50.0)]);
    let times = times(&stepped);
    assert_eq!(times.len(), 60);
    assert_eq!(times[9], 1.0);
    assert_eq!(times[10], 1.02);
    let stages: Vec<u16> = Arrivals::new(&stepped, 0, 1).map(|arrival| arrival.stage).collect();
    assert_eq!((stages[9], stages[10]), (0, 2));
}

#[test]
fn the_fraction_of_an_iteration_counts_for_the_next_stage() {
    // Half an iteration carries over from the first stage.
    let times = times(&scenario(0, &[(1_000, 1.5, 1.5), (1_000, 1.0, 1.0)]));
    assert_eq!(times.len(), 2);
    assert!((times[0] - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(times[1], 1.5);
}

#[test]
fn no_iteration_is_scheduled_at_a_rate_of_zero() {
    assert!(times(&scenario(0, &[(5_000, 0.0, 0.0)])).is_empty());
    assert!(times(&scenario(0, &[(0, 0.0, 100.0)])).is_empty());
    assert_eq!(times(&scenario(0, &[(1_000, 0.0, 0.0), (1_000, 2.0, 2.0)])), [1.5, 2.0]);
}

#[test]
fn iterations_max_ends_the_arrivals_over_all_threads() {
    let mut limited = scenario(0, &[(10_000, 100.0, 100.0)]);
    limited.iterations_max = Some(7);
    let counts: Vec<usize> = (0..3).map(|k| Arrivals::new(&limited, k, 3).count()).collect();
    assert_eq!(counts, [3, 2, 2]);
}

#[test]
fn the_ten_millionth_arrival_is_as_exact_as_the_first() {
    let long = scenario(0, &[(1_000_000, 20_000.0, 20_000.0)]);
    let last = Arrivals::new(&long, 0, 10_000_000).nth(1).unwrap();
    assert_eq!(last.number, 10_000_001);
    assert_eq!(last.at, 500_000_000_000);
}

#[test]
fn workers_start_and_stop_when_the_level_is_a_whole_number() {
    // The number of workers rises to 2 in 2 s, stays for 1 s, and falls to 0 in 2 s.
    let ramped = scenario(1_000, &[(2_000, 0.0, 2.0), (1_000, 2.0, 2.0), (2_000, 2.0, 0.0)]);
    let changes: Vec<(f64, usize)> =
        Changes::new(&ramped).map(|Change { at, workers }| (at as f64 / 1e9, workers)).collect();
    assert_eq!(changes, [(2.0, 1), (3.0, 2), (5.0, 1), (6.0, 0), (6.0, 0)]);
}

#[test]
fn workers_follow_a_step_at_once() {
    let stepped = scenario(0, &[(1_000, 5.0, 5.0), (0, 5.0, 2.0), (1_000, 2.0, 2.0)]);
    let changes: Vec<(u64, usize)> =
        Changes::new(&stepped).map(|change| (change.at / 1_000_000, change.workers)).collect();
    assert_eq!(changes, [(0, 5), (1_000, 2), (2_000, 0)]);
}

#[test]
fn the_stage_of_a_time_skips_stages_without_time() {
    let mut clock =
        StageClock::new(&scenario(0, &[(1_000, 1.0, 1.0), (0, 1.0, 2.0), (1, 2.0, 2.0)]));
    let stages: Vec<u16> =
        [0, 999_999_999, 1_000_000_000, 9_000_000_000].map(|at| clock.stage_at(at)).into();
    assert_eq!(stages, [0, 0, 2, 2]);
}

#[test]
fn shares_sum_up() {
    let shares: Vec<usize> = (0..4).map(|part| share(10, part, 4)).collect();
    assert_eq!(shares, [3, 3, 2, 2]);
}

fn any_stages() -> impl Strategy<Value = Vec<(u64, f64, f64)>> {
    let stage = (prop_oneof![Just(0u64), 1u64..3_000], 0.0f64..80.0, 0.0f64..80.0);
    prop::collection::vec(stage, 1..5).prop_map(|stages| {
        let mut level = 7.0;
        let chain = |(ms, _, to): (u64, f64, f64)| {
            let from = std::mem::replace(&mut level, to);
            (ms, from, to)
        };
        stages.into_iter().map(chain).collect()
    })
}

proptest! {
    #[test]
    fn arrivals_equal_those_of_the_integration(stages in any_stages()) {
        let scenario = scenario(250, &stages);
        let (computed, integrated) = (times(&scenario), integrate_times(&scenario));
        let counts = (computed.len(), integrated.len());
        prop_assert!(counts.0.abs_diff(counts.1) <= 1, "{} {}", counts.0, counts.1);
        for (index, (exact, approx)) in computed.iter().zip(&integrated).enumerate() {
            // Near a rate of zero, a small error of the integrated area is a large error of the
            // time. So the tolerance is as large as 20 ms.
            prop_assert!((exact - approx).abs() < 2e-2, "{}: {} {}", index, exact, approx);
        }
    }

    #[test]
    fn threads_share_the_arrivals_exactly(stages in any_stages(), threads in 1usize..7) {
        let scenario = scenario(0, &stages);
        let whole: Vec<_> = Arrivals::new(&scenario, 0, 1).collect();
        let mut parts: Vec<_> =
            (0..threads).flat_map(|k| Arrivals::new(&scenario, k, threads)).collect();
        parts.sort_by_key(|arrival| arrival.number);
        prop_assert_eq!(&whole, &parts);
        prop_assert!(whole.is_sorted_by_key(|arrival| arrival.at));
    }

    #[test]
    fn workers_follow_the_level(stages in any_stages()) {
        let scenario = scenario(0, &stages);
        let changes: Vec<Change> = Changes::new(&scenario).collect();
        prop_assert!(changes.is_sorted_by_key(|change| change.at));
        prop_assert_eq!(changes.last().unwrap().workers, 0);
        for pair in changes.windows(2) {
            let middle = Duration::from_nanos(u64::midpoint(pair[0].at, pair[1].at));
            let level = scenario.level(middle, true);
            if pair[1].at - pair[0].at > 1_000 && middle < scenario.duration() {
                prop_assert!((pair[0].workers as f64 - level).abs() <= 1.0 + 1e-6);
            }
        }
    }
}
