//! Goal: the tip is found where a run begins to wait for its chain, whatever the chain's block time,
//! and only there. Method: simulated nodes that sync a simulated chain at known rates.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::tests::run_of;
use super::*;

/// When a node's samples are taken.
#[derive(Clone, Copy, Debug)]
enum Sampling {
    /// Every so many seconds.
    Polled(f64),
    /// At each import: every eight seconds while the node syncs, then at each block, as geth logs.
    Imports,
}

/// A simulated sync.
#[derive(Clone, Copy)]
struct Sync {
    /// Seconds between two blocks of the chain.
    block_time: f64,
    /// True if blocks come at random times, as with proof of work.
    is_random: bool,
    /// Height of the chain when the sync begins at height 0.
    chain_height: u64,
    /// Blocks per second of the node, which vary by 20 %.
    rate: f64,
    seconds: f64,
    sampling: Sampling,
}

impl Sync {
    const fn new(block_time: f64, rate: f64, seconds: f64, sampling: Sampling) -> Sync {
        Sync { block_time, is_random: false, chain_height: 50_000, rate, seconds, sampling }
    }

    /// Returns the run, and the true time and height at which it reached the tip.
    fn run(&self, seed: u64) -> (SyncRun, Option<(f64, u64)>) {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut at, mut height, mut tip) = (0.0, 0.0, None);
        let mut next_block = self.block_time;
        let mut chain = self.chain_height as f64;
        let mut samples = Vec::new();
        let step = 0.1;
        let (mut next_sample, mut imported) = (0.0, 0.0);
        while at < self.seconds {
            while next_block <= at {
                chain += 1.0;
                let wait = -(1.0 - random.random::<f64>()).ln();
                next_block += self.block_time * if self.is_random { wait } else { 1.0 };
            }
            height += self.rate * step * random.random_range(0.8..1.2);
            if height >= chain {
                height = chain;
                tip = tip.or(Some((at, chain as u64)));
            }
            let is_sample = match self.sampling {
                Sampling::Polled(_) => at >= next_sample,
                Sampling::Imports if tip.is_some() => height > imported,
                Sampling::Imports => at >= next_sample,
            };
            if is_sample {
                next_sample +=
                    if let Sampling::Polled(period) = self.sampling { period } else { 8.0 };
                imported = height;
                samples.push(Sample { at: 1e9 + at, height: height as u64, ..Sample::default() });
            }
            at += step;
        }
        (SyncRun { label: "x".into(), origin: 1e9, samples, ..SyncRun::default() }, tip)
    }
}

fn variants(runs: &[&SyncRun]) -> Vec<VariantRuns> {
    let variant = |run: &&SyncRun| VariantRuns { name: "x".into(), runs: vec![(*run).clone()] };
    runs.iter().map(variant).collect()
}

/// Assumes a block time of a minute, and returns the tips of runs.
fn tips(runs: &[&SyncRun]) -> (BlockTime, Vec<Option<Tip>>) {
    let variants = variants(runs);
    let block_time = measure_block_time(&variants, 60.0);
    (block_time, find_tips(&variants, block_time).concat())
}

/// Two nodes sync 50,000 blocks, of 100 and of 70 per second. Then they wait for new blocks.
#[test]
fn the_tip_is_found_for_every_block_time() {
    let samplings = [Sampling::Polled(1.0), Sampling::Polled(10.0), Sampling::Imports];
    for sampling in samplings {
        for block_time in [0.4, 2.0, 12.0, 60.0, 600.0] {
            // The nodes wait for 40 blocks and 40 samples or more.
            let seconds = 800.0 + 40.0 * f64::max(block_time, 10.0);
            let sync = |rate| Sync::new(block_time, rate, seconds, sampling);
            let ((quick, quick_tip), (slow, slow_tip)) = (sync(100.0).run(1), sync(70.0).run(2));
            let (measured, tips) = tips(&[&quick, &slow]);
            let context = format!("{sampling:?}, {block_time} s: {measured:?} {tips:?}");
            assert_eq!(measured.source, BlockTimeSource::Measured, "{context}");
            assert!((measured.seconds / block_time - 1.0).abs() < 0.1, "{context}");
            for (tip, truth) in tips.iter().zip([quick_tip, slow_tip]) {
                let (tip, (at, height)) = (tip.expect(&context), truth.unwrap());
                assert!((tip.elapsed - at).abs() <= 20.0 + block_time, "{context}: {truth:?}");
                // The tip may be found one sample early.
                assert!(tip.height.abs_diff(height) <= 1_100, "{context}: {truth:?}");
            }
        }
    }
}

#[test]
fn blocks_at_random_times_do_not_hide_the_tip() {
    for seed in 0..20 {
        let sync =
            Sync { is_random: true, ..Sync::new(12.0, 100.0, 1_500.0, Sampling::Polled(1.0)) };
        let (run, truth) = sync.run(seed);
        let (measured, tips) = tips(&[&run]);
        let ((at, _), tip) = (truth.unwrap(), tips[0]);
        let tip = tip.unwrap_or_else(|| panic!("{seed}: {measured:?}"));
        assert!((tip.elapsed - at).abs() < 120.0, "{seed}: {measured:?} {tip:?} {truth:?}");
    }
}

#[test]
fn a_run_that_never_reaches_the_tip_has_none() {
    for sampling in [Sampling::Polled(1.0), Sampling::Polled(60.0), Sampling::Imports] {
        for block_time in [0.4, 2.0, 12.0, 60.0, 600.0] {
            let short = |rate| Sync {
                chain_height: 10_000_000,
                ..Sync::new(block_time, rate, 5_000.0, sampling)
            };
            let ((a, _), (b, _)) = (short(100.0).run(3), short(70.0).run(4));
            let (measured, found) = tips(&[&a, &b]);
            assert_eq!(found, [None, None], "{sampling:?}, {block_time} s");
            assert_eq!(measured.source, BlockTimeSource::Assumed);
            // One run reaches the tip, the other one is far below it.
            let seconds = 800.0 + 40.0 * block_time;
            let (reaches, truth) = Sync::new(block_time, 100.0, seconds, sampling).run(5);
            let (slow, _) = Sync::new(block_time, 30_000.0 / seconds, seconds, sampling).run(6);
            let (measured, found) = tips(&[&slow, &reaches]);
            let context = format!("{sampling:?}, {block_time} s: {measured:?} {found:?} {truth:?}");
            assert!(
                found[0].is_none() && (found[1].is_some() || reaches.samples.len() < 60),
                "{context}"
            );
        }
    }
}

/// Heavier blocks slow a sync down. That is not the tip.
#[test]
fn a_sync_that_slows_down_is_not_at_the_tip() {
    for (end_share, is_gradual) in [(0.1_f64, true), (0.4, true), (0.02, true), (0.5, false)] {
        let mut random = StdRng::seed_from_u64(7);
        let mut height = 0.0;
        let heights: Vec<u64> = (0..600)
            .map(|index| {
                let share = f64::from(index) / 600.0;
                let factor = match is_gradual {
                    true => end_share.powf(share),
                    false if share < 0.5 => 1.0,
                    false => end_share,
                };
                height += 6_000.0 * factor * random.random_range(0.7..1.3);
                height as u64
            })
            .collect();
        let run = run_of(&heights);
        assert_eq!(tips(&[&run]).1, [None], "{end_share} {is_gradual}");
    }
}

/// Both runs slow down, but the other run was far above at that time, so it is not the tip.
#[test]
fn a_run_far_behind_another_one_is_not_at_the_tip() {
    let climb = |step: u64, end: u64| {
        (0..60)
            .map(move |index| index * step)
            .chain((0..60).map(move |index| 60 * step + index * end))
    };
    let (ahead, behind) = (climb(1_000, 100), climb(500, 1));
    let (ahead, behind) = (run_of(&ahead.collect::<Vec<_>>()), run_of(&behind.collect::<Vec<_>>()));
    assert_eq!(tips(&[&ahead, &behind]).1[1], None);
}

#[test]
fn young_blocks_show_the_tip_and_old_ones_that_it_is_not_reached() {
    let with_ages = |ages: &[f64]| {
        let mut run = run_of(&(0..ages.len() as u64).map(|index| index * 10).collect::<Vec<_>>());
        run.tip_age = Some(60.0);
        for (sample, age) in run.samples.iter_mut().zip(ages) {
            sample.age = Some(*age);
        }
        tips(&[&run]).1[0].map(|tip| tip.height)
    };
    assert_eq!(with_ages(&[9e3, 6e3, 3e3, 600.0, 10.0, 3.0, 90.0, 4.0]), Some(40));
    assert_eq!(with_ages(&[9e3, 6e3, 3e3, 600.0]), None);
    assert_eq!(with_ages(&[9e3, 10.0, 10.0, 300.0, 400.0, 20.0]), Some(50), "it fell behind");
    assert_eq!(with_ages(&[5.0, 4.0]), Some(0));
}

#[test]
fn a_given_block_time_decides_alone() {
    let climb = |tail: Vec<u64>| -> Option<(u64, f64)> {
        let heights: Vec<u64> = (0..20).map(|index| index * 1_000).chain(tail).collect();
        let given = BlockTime { seconds: 60.0, source: BlockTimeSource::Given };
        find_tips(&variants(&[&run_of(&heights)]), given)[0][0].map(|tip| (tip.height, tip.elapsed))
    };
    assert_eq!(climb((0..40).map(|index| 20_000 + index * 2).collect()), Some((20_000, 1_200.0)));
    assert_eq!(climb((0..40).map(|index| 20_000 + index * 3).collect()), None, "too quick");
    assert_eq!(climb((0..29).map(|index| 20_000 + index).collect()), None, "too few samples");
    assert_eq!(climb(vec![20_000; 40]), None, "a halt");
    // A slow part before the end is not the tip.
    let slow =
        (0..40).map(|index| 20_000 + index).chain((1..10).map(|index| 30_000 + index * 1_000));
    assert_eq!(climb(slow.collect()), None);
    assert_eq!(tips(&[&SyncRun::default()]).1, [None]);
}
