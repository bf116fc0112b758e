//! Goal: each rule of the analysis does what its documentation says. Method: made-up runs with one
//! sample per minute, small enough to check by eye. The numbers of a real run are in
//! `study/tests.rs`.

use lab_model::results::study::{Accesses, Align};

use super::bins::{compute_bins, default_width, faster_by_bin, rate_crosses, round_step};
use super::lead::{block_leads, find_lead_changes, largest_block_leads, time_leads};
use super::pauses::{find_stalls, stalled_until};
use super::*;

pub(super) fn run_of(heights: &[u64]) -> SyncRun {
    let sample = |(index, height): (usize, &u64)| Sample {
        at: 1e9 + index as f64 * 60.0,
        height: *height,
        ..Sample::default()
    };
    let samples = heights.iter().enumerate().map(sample).collect();
    SyncRun { label: "x".into(), origin: 1e9, samples, ..SyncRun::default() }
}

#[test]
fn heights_and_instants_are_interpolated() {
    let run = run_of(&[0, 100, 100, 300]);
    assert_eq!(run.period(), 60.0);
    assert_eq!(run.height_at(1e9 + 30.0), Some(50.0));
    assert_eq!(run.height_at(1e9 + 180.0), Some(300.0));
    assert_eq!(run.height_at(1e9 - 1.0), None);
    assert_eq!(run.height_at(1e9 + 181.0), None);
    assert_eq!(run.instant_of_height(50.0), Some(1e9 + 30.0));
    assert_eq!(run.instant_of_height(100.0), Some(1e9 + 60.0), "the first time that it is there");
    assert_eq!(run.instant_of_height(200.0), Some(1e9 + 150.0));
    assert_eq!(run.instant_of_height(301.0), None);
    assert_eq!(run.first_sample_at(101).map(|sample| sample.at), Some(1e9 + 180.0));
    let later = run_of(&[10, 20]);
    assert_eq!(later.instant_of_height(5.0), None, "it was there before its first sample");
    assert_eq!(SyncRun::default().height_at(0.0), None);
}

#[test]
fn touching_curves_do_not_cross_and_a_leader_must_stay_ahead() {
    let flat = run_of(&[100; 12]);
    let check = |heights: &[u64]| -> Vec<(f64, bool)> {
        let run = run_of(heights);
        let leads = block_leads(&run, &flat, Align::Clock);
        let changes = find_lead_changes(&run, &leads);
        changes.iter().map(|change| (change.elapsed, change.to_first)).collect()
    };
    // The run is behind for only two samples, so the leader does not change.
    assert_eq!(check(&[101, 101, 101, 99, 99, 101, 101, 101, 101, 101, 101, 101]), []);
    // The run is behind for three samples and then ahead.
    assert_eq!(check(&[100, 99, 99, 99, 101, 101, 102, 102, 103, 104, 105, 106]), [(240.0, true)]);
    let touching = [100, 101, 101, 101, 101, 101, 101, 101, 101, 101, 101, 101];
    assert_eq!(check(&touching), [], "the first leader is no change");
    let run = run_of(&[90, 95, 101, 101, 101, 101]);
    // The other run overtakes this run once.
    let other = run_of(&[80, 90, 100, 102, 103, 104]);
    let actual = find_lead_changes(&run, &block_leads(&run, &other, Align::Clock));
    assert_eq!(actual.len(), 1);
    assert_eq!((actual[0].elapsed, actual[0].height, actual[0].to_first), (180.0, 101, false));
}

#[test]
fn leads_by_the_clock_and_since_the_start() {
    let a = run_of(&[0, 100, 200, 300]);
    let mut b = run_of(&[0, 200, 400]);
    for sample in &mut b.samples {
        sample.at += 3_600.0;
    }
    b.origin += 3_600.0;
    assert_eq!(block_leads(&a, &b, Align::Clock), [], "they did not run at one time");
    let leads = block_leads(&a, &b, Align::Start);
    assert_eq!(leads.iter().map(|one| one.blocks).collect::<Vec<_>>(), [0.0, -100.0, -200.0]);
    let (first, second) = largest_block_leads(&leads);
    assert_eq!((first, second.map(|one| one.elapsed)), (None, Some(120.0)));
    let times = time_leads(&a, &b, Align::Start, &[100.0, 200.0, 1_000.0]);
    assert_eq!(times.iter().map(|one| one.seconds).collect::<Vec<_>>(), [30.0, 60.0]);
}

#[test]
fn bins_count_their_own_samples() {
    let mut run = run_of(&[0, 400, 900, 1_100, 1_100, 1_900, 3_500]);
    for (index, sample) in run.samples.iter_mut().enumerate() {
        let hit = 10 * index as u64;
        sample.accesses = Some(Accesses { hit, miss: 10, spill: 0 });
    }
    let actual = compute_bins(&run, 1_000);
    assert_eq!(actual.len(), 4);
    assert_eq!((actual[0].blocks, actual[0].seconds, actual[0].rate), (900, 120.0, Some(7.5)));
    assert_eq!(actual[0].hit_ratio, Some(0.5));
    // Accesses while the height does not grow (sample 4) do not count per block.
    assert_eq!(actual[1].pages_per_block, Some(60.0 / 800.0));
    assert_eq!((actual[2].samples, actual[2].rate, actual[2].hit_ratio), (0, None, None));
    assert_eq!((actual[3].samples, actual[3].rate), (1, None));
}

#[test]
fn rates_cross_where_the_faster_run_changes() {
    let a = [Some(10.0), Some(5.0), Some(5.0), None, Some(6.0), Some(5.0)];
    let b = [Some(5.0), Some(5.02), Some(6.0), Some(6.0), Some(5.0), Some(6.0)];
    let faster = faster_by_bin(&a, &b);
    assert_eq!(faster, [Some(true), None, Some(false), None, Some(true), Some(false)]);
    let actual: Vec<(u64, bool)> =
        rate_crosses(&faster, 100).iter().map(|cross| (cross.height, cross.to_first)).collect();
    assert_eq!(actual, [(200, false), (400, true), (500, false)]);
}

#[test]
fn widths_are_round() {
    assert_eq!([0, 1, 3, 7, 67_468, 100_001].map(round_step), [1, 1, 5, 10, 100_000, 200_000]);
    assert_eq!(
        [1, 1_349_351, 20_000_000].map(|height| default_width(height, 1_000)),
        [1, 100_000, 1_000_000]
    );
    assert_eq!([0, 11, 40].map(|samples| default_width(1_000, samples)), [1_000, 500, 100]);
    assert_eq!(round_step(u64::MAX), u64::MAX);
}

#[test]
fn a_stall_lasts_four_periods_and_the_start_is_no_stall() {
    // Three periods are not a stall, four periods are. The start is not a stall, however long it
    // is.
    let heights =
        [0, 0, 0, 0, 0, 0, 10, 20, 20, 20, 20, 30, 40, 40, 40, 40, 40, 50, 60, 60, 60, 60, 60];
    let run = run_of(&heights);
    let actual = find_stalls(&run, None);
    assert_eq!(actual.len(), 2);
    assert_eq!((actual[0].height, actual[0].from, actual[0].seconds), (40, 720.0, 240.0));
    assert_eq!((actual[1].height, actual[1].open), (60, true));
    assert_eq!(stalled_until(&actual, 840.0), 120.0);
    assert_eq!(stalled_until(&actual, 1e6), 480.0);
    // With one sample per second, a stall is four seconds.
    let mut quick = run_of(&heights);
    for (index, sample) in quick.samples.iter_mut().enumerate() {
        sample.at = 1e9 + index as f64;
    }
    assert_eq!(find_stalls(&quick, None)[0].seconds, 4.0);
}

#[test]
fn a_cache_is_full_when_it_stops_growing() {
    let cache_full = |used: &[u64]| {
        let mut run = run_of(&(0..used.len() as u64).collect::<Vec<_>>());
        for (sample, used) in run.samples.iter_mut().zip(used) {
            sample.used = Some(*used);
        }
        run.cache_full().map(|full| (full.elapsed, full.height))
    };
    assert_eq!(cache_full(&[10, 500, 999, 1_000, 1_000, 998]), Some((120.0, 2)));
    assert_eq!(cache_full(&[10, 20, 30, 40, 50]), None, "it grows still");
    assert_eq!(
        cache_full(&[10, 100, 20, 30, 100, 20, 10, 100, 10]),
        None,
        "it is emptied again and again"
    );
    assert_eq!(run_of(&[1, 2]).cache_full(), None);
}
