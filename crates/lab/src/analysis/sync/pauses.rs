//! Finds where the height of a run stops growing: stalls, and the chain tip. From the tip on, a
//! node only waits for new blocks.

use lab_model::results::study::{Stall, Tip};

use super::SyncRun;

/// Number of sample periods without a new block that count as a stall: four minutes at one sample
/// per minute.
pub const STALL_PERIODS: f64 = 4.0;
/// Number of samples over which the growth at the chain tip is measured.
pub const TIP_SAMPLES: usize = 30;
/// Maximum growth at the tip, as a multiple of the rate of new blocks. With one new block per
/// minute, that is 60 blocks in 30 one-minute samples.
const TIP_FACTOR: f64 = 2.0;
/// Maximum number of listed stalls of one run. Further stalls are counted.
pub const STALLS_MAX: usize = 200;

/// Returns the stalls: four sample periods or more without a new block. Half a period of slack
/// allows for jitter of the samples. The time before the first new block does not count as a stall.
/// Waiting for new blocks at the chain tip does not count either.
pub fn find_stalls(run: &SyncRun, tip: Option<Tip>) -> Vec<Stall> {
    let (period, start) = (run.period(), run.first());
    let min_seconds = (STALL_PERIODS - 0.5) * period;
    let end = tip.map_or(f64::INFINITY, |tip| tip.elapsed);
    let mut stalls = Vec::new();
    let groups = run.samples.chunk_by(|a, b| a.height == b.height);
    for group in groups {
        let (Some(first_sample), Some(last_sample)) = (group.first(), group.last()) else {
            continue;
        };
        let is_starting = first_sample.height == start.height;
        let start_elapsed = first_sample.at - run.origin;
        if is_starting
            || period <= 0.0
            || last_sample.at - first_sample.at < min_seconds
            || start_elapsed >= end
        {
            continue;
        }
        let nearby = (first_sample.at - period)..=(last_sample.at + period);
        stalls.push(Stall {
            from: start_elapsed,
            seconds: last_sample.at - first_sample.at,
            height: first_sample.height,
            timeouts: run.timeouts.iter().filter(|timeout| nearby.contains(&timeout.at)).count(),
            open: last_sample.at >= run.last().at,
        });
    }
    stalls
}

/// Returns the sample at which a run reached the chain tip. From then on, 30 consecutive samples
/// never add more than twice the blocks that the chain produces in that time. `block_time` is in
/// seconds. At least two samples must add blocks, because a run that stopped growing is not at the
/// tip. `None` if there is no such sample, or if fewer than 30 samples follow it.
pub fn find_tip(run: &SyncRun, block_time: f64) -> Option<Tip> {
    let samples = &run.samples;
    let last_start = samples.len().checked_sub(TIP_SAMPLES + 1)?;
    let grows_slowly = |index: &usize| {
        let (start, end) = (&samples[*index], &samples[index + TIP_SAMPLES]);
        let max_blocks = (TIP_FACTOR * (end.at - start.at) / block_time).round().max(1.0);
        (end.height - start.height) as f64 <= max_blocks
    };
    let index = (0..=last_start).rev().take_while(grows_slowly).last()?;
    let tail = &samples[index..];
    let growths = tail.windows(2).filter(|pair| pair[1].height > pair[0].height).count();
    let tip_sample = tail.first().filter(|_| growths >= 2)?;
    Some(Tip { elapsed: tip_sample.at - run.origin, height: tip_sample.height })
}

/// Returns the total seconds of stalls before `elapsed`, the seconds since the start of the run.
pub fn stalled_until(stalls: &[Stall], elapsed: f64) -> f64 {
    let stalled_seconds = |stall: &Stall| (elapsed - stall.from).clamp(0.0, stall.seconds);
    stalls.iter().map(stalled_seconds).sum()
}
