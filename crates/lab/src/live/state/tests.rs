//! Goal: the state has the correct counts, and its memory does not grow with the length of a run.
//! Method: a scene with known counts, and rates of many seconds.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::live::scene::Scene;

#[test]
fn rows_have_calls_failures_and_limits_by_method_and_in_total() {
    let scene = Scene::new();
    let mut state = State::new(Arc::clone(&scene.plan), true);
    state.update(&scene.progress());
    let rows: Vec<_> = state
        .rows
        .iter()
        .map(|row| (&*row.method, row.calls, row.failed, row.limited, row.calls_last))
        .collect();
    assert_eq!(
        rows,
        [
            ("all", 12_000, 70, 30, 997),
            ("eth_blockNumber", 9_000, 0, 0, 700),
            ("eth_getLogs", 3_000, 70, 30, 297),
        ]
    );
    let totals = state.rows[0].last_second.expect("there were calls");
    assert!(totals.p99.is_nan(), "a p99 of all cannot be had from those of the methods");
    assert_eq!(totals.max, 960.0);
    assert!((state.rows[0].whole_run.max - 5_500.0).abs() < 60.0, "{:?}", state.rows[0].whole_run);
    assert_eq!(state.classes[0], (Class::RpcError, 50));
    assert_eq!(state.codes, [(-32_000, 49), (-32_005, 1)]);
}

#[test]
fn the_current_stage_is_known_at_its_edges() {
    let scene = Scene::new();
    let scenario = &scene.plan.scenarios[0];
    let name = |at_ms| {
        let stage = stage_at(scenario, Duration::from_millis(at_ms));
        stage.map(|(stage, remaining)| (stage.name.clone(), remaining.as_millis()))
    };
    assert_eq!(name(0), Some(("steady".to_owned(), 10_000)));
    assert_eq!(name(10_000), Some(("climb".to_owned(), 50_000)));
    assert_eq!(name(59_999), Some(("climb".to_owned(), 1)));
    assert_eq!(name(60_000), None);
}

#[test]
fn the_rates_of_a_day_stay_small_and_correct() {
    let mut rates = RateSeries::new();
    for second in 0..86_400_u64 {
        rates.push(1_000, if second < 43_200 { 1_000 } else { 500 });
    }
    assert!(rates.points.len() < POINTS_MAX, "{} points", rates.points.len());
    let seconds = rates.seconds();
    assert!((86_000..=86_400).contains(&seconds), "{seconds} seconds are shown");
    let middle = rates.points.len() / 2;
    assert_eq!(rates.points[middle - 2], Rates { planned: 1_000.0, started: 1_000.0 });
    assert_eq!(rates.points[middle + 2], Rates { planned: 1_000.0, started: 500.0 });
}

#[test]
fn the_last_sample_of_a_host_stays_until_the_next_sample() {
    let mut scene = Scene::new();
    let mut state = State::new(Arc::clone(&scene.plan), true);
    state.update(&scene.progress());
    scene.host.clear();
    state.update(&scene.progress());
    assert_eq!(state.hosts.len(), 1);
}
