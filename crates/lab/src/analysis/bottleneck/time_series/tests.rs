//! Goal: a rise is found at its start, and noise is not a rise. Method: made-up series.

use super::super::tests::empty_stage;
use super::*;

/// End of the analysed time, in seconds since the start of the run.
const END: f64 = 8.0;
/// Smallest rise that counts.
const STEP: f64 = 0.1;

/// Returns samples every 250 ms, from one second before the run to its tenth second.
fn series(of: impl Fn(f64) -> f64) -> TimeSeries {
    TimeSeries((-4..40).map(|quarter| f64::from(quarter) * 0.25).map(|at| (at, of(at))).collect())
}

fn stage(from: f64, to: f64, level_from: f64, level_to: f64) -> StageRow {
    StageRow { from, to, level_from, level_to, ..empty_stage() }
}

fn ramp() -> Load {
    Load::of(&[stage(0.0, 10.0, 0.0, 100.0)], END)
}

/// Returns repeating noise between -1 and 1.
fn noise(at: f64) -> f64 {
    (at * 37.0).sin()
}

#[test]
fn the_load_is_a_share_of_its_maximum() {
    let load = ramp();
    assert!((load.at(4.0) - 0.5).abs() < 1e-9, "{}", load.at(4.0));
    assert_eq!(load.at(-0.5), 0.0);
    let steps = Load::of(&[stage(0.0, 2.0, 10.0, 10.0), stage(2.0, 4.0, 40.0, 40.0)], 9.0);
    assert_eq!(steps.at(1.0), 0.25);
    assert_eq!(steps.at(3.0), 1.0);
}

#[test]
fn a_step_is_found_at_its_start() {
    let series = series(|at| 0.02 + 0.01 * noise(at) + if at >= 5.0 { 0.5 } else { 0.0 });
    let rise = find_rise(&series, &ramp(), STEP, END).unwrap();
    assert_eq!(rise.at, 5.0);
    assert!(rise.before.unwrap() < 0.04 && rise.after > 0.5, "{rise:?}");
}

#[test]
fn a_short_peak_is_no_rise() {
    let burst = series(|at| if (3.0..3.8).contains(&at) { 1.0 } else { 0.0 });
    assert_eq!(find_rise(&burst, &ramp(), STEP, END), None);
    let flicker = series(|at| if (at * 4.0) as i64 % 4 == 0 { 0.3 } else { 0.0 });
    assert_eq!(find_rise(&flicker, &ramp(), STEP, END), None);
}

#[test]
fn noise_and_a_high_baseline_are_no_rise() {
    let noisy = series(|at| 0.5 + 0.3 * noise(at));
    assert_eq!(find_rise(&noisy, &ramp(), STEP, END), None);
    let high = series(|_| 0.97);
    assert_eq!(find_rise(&high, &ramp(), STEP, END), None, "high from before the load");
    let small = series(|at| if at > 4.0 { 0.04 } else { 0.0 });
    assert_eq!(find_rise(&small, &ramp(), STEP, END), None, "less than the step");
}

#[test]
fn samples_after_the_end_do_not_count() {
    let late = series(|at| f64::from(u8::from(at > 8.5)));
    assert_eq!(find_rise(&late, &ramp(), STEP, END), None);
}

#[test]
fn without_a_baseline_a_rise_starts_at_the_first_high_sample() {
    let series = TimeSeries((1..40).map(|n| (f64::from(n) * 0.25, 0.9)).collect());
    let constant = Load::of(&[stage(0.0, 10.0, 50.0, 50.0)], END);
    let rise = find_rise(&series, &constant, STEP, END).unwrap();
    assert_eq!((rise.at, rise.before), (0.25, None));
    assert_eq!(load_correlation(&series, &constant, END), None, "nothing varied");
}

#[test]
fn the_correlation_shows_if_a_metric_follows_the_load() {
    let with = load_correlation(&series(|at| at.max(0.0)), &ramp(), END).unwrap();
    assert!(with > 0.99, "{with}");
    let against = load_correlation(&series(|at| -at), &ramp(), END).unwrap();
    assert!(against < -0.9, "{against}");
    let beside = load_correlation(&series(noise), &ramp(), END).unwrap();
    assert!(beside.abs() < 0.3, "{beside}");
}
