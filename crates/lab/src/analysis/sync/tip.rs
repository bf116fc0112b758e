//! Finds the chain tip. From the tip on, a node only waits for new blocks, so its growth no longer
//! depends on its speed.
//!
//! There are three kinds of evidence, from the strongest to the weakest:
//!
//! 1. Timestamps of blocks, where the log has them: at the tip, blocks are young.
//! 2. Growth: at its end, a run grows steadily and much more slowly than before. The rate is that of
//!    the chain. This gives the chain's block time, which all runs share.
//! 3. An assumed block time.
//!
//! A block time that the user gives replaces all of them.

use lab_model::results::study::{BlockTimeSource, Tip};

use super::{Sample, SyncRun, VariantRuns};

/// Number of samples over which the growth at the chain tip is compared with a block time.
const TIP_SAMPLES: usize = 30;
/// Maximum growth at the tip, as a multiple of the rate of new blocks.
const TIP_FACTOR: f64 = 2.0;
/// Additional growth at the tip, in standard deviations of randomly timed (Poisson) blocks. With one
/// new block per minute, at most 77 blocks are added in 30 one-minute samples.
const TIP_DEVIATIONS: f64 = 3.0;
/// Number of samples with new blocks over which the rate at the end of a run is measured. The count
/// of 20 random (Poisson) blocks is off by a factor of two in fewer than 1 % of all cases.
const PACE_SAMPLES: usize = 20;
/// Number of estimates of that rate. Each is from a longer end than the one before.
const PACE_ESTIMATES: usize = 4;
/// An end with at least this many samples with new blocks is long.
const PACE_SAMPLES_LONG: usize = 30;
/// Smallest ratio of the rate before a long end to the rate in it. Heavier blocks seldom slow a sync
/// down by more than this at once, and a sync does not stay steady after it.
const DROP_MIN: f64 = 3.0;
/// Smallest ratio for a short end.
const DROP_MIN_SHORT: f64 = 10.0;
/// Largest relative difference between the rates of both halves of a steady end, in addition to
/// three standard deviations of randomly timed blocks.
const PACE_TOLERANCE: f64 = 0.15;
/// A run at the tip is at most this many blocks behind another run, because blocks take time to
/// reach a node.
const BEHIND_MAX: f64 = 64.0;
/// A run at the tip is at most this many sample periods behind another run.
const BEHIND_PERIODS_MAX: f64 = 3.0;

/// The block time of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockTime {
    /// Seconds between two blocks.
    pub seconds: f64,
    /// Origin of this number.
    pub source: BlockTimeSource,
}

/// The steady end of a run that grew faster before.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SteadyEnd {
    first: Sample,
    /// Seconds between two blocks.
    block_time: f64,
}

/// Returns the block time of the chain, measured at the steady ends of runs. The longest one counts,
/// because a node that syncs is faster than its chain. If no run has a steady end, returns
/// `assumed`, in seconds.
pub fn measure_block_time(variants: &[VariantRuns], assumed: f64) -> BlockTime {
    let runs = variants.iter().flat_map(|variant| &variant.runs);
    let measured = runs.filter_map(find_steady_end).map(|end| end.block_time).reduce(f64::max);
    match measured {
        Some(seconds) => BlockTime { seconds, source: BlockTimeSource::Measured },
        None => BlockTime { seconds: assumed, source: BlockTimeSource::Assumed },
    }
}

/// Returns when each run of each variant reached the chain tip.
pub fn find_tips(variants: &[VariantRuns], block_time: BlockTime) -> Vec<Vec<Option<Tip>>> {
    let find = |run: &SyncRun| match block_time.source {
        BlockTimeSource::Given => find_slow_end(run, block_time.seconds),
        _ => find_tip(run, block_time.seconds, variants),
    };
    variants.iter().map(|variant| variant.runs.iter().map(find).collect()).collect()
}

/// Returns when a run reached the tip, by the best evidence that there is.
fn find_tip(run: &SyncRun, block_time: f64, variants: &[VariantRuns]) -> Option<Tip> {
    if let Some(age_max) = run.tip_age {
        return find_young_end(run, age_max);
    }
    let steady_end = || {
        let end = find_steady_end(run)?;
        (end.block_time * TIP_FACTOR >= block_time).then(|| tip_at(run, end.first))
    };
    let tip = find_slow_end(run, block_time).or_else(steady_end)?;
    // The tip is found one sample too early if few blocks were missing then.
    let first = run.samples.partition_point(|sample| sample.at < run.origin + tip.elapsed);
    let later = run.samples[(first + TIP_SAMPLES).min(run.samples.len() - 1)];
    let behind_max = BEHIND_MAX.max(BEHIND_PERIODS_MAX * run.period() / block_time);
    let is_ahead = |other: &SyncRun| {
        other.height_at(later.at).is_some_and(|height| height > later.height as f64 + behind_max)
    };
    let is_behind = variants.iter().flat_map(|variant| &variant.runs).any(is_ahead);
    (!is_behind).then_some(tip)
}

fn tip_at(run: &SyncRun, sample: Sample) -> Tip {
    Tip { elapsed: sample.at - run.origin, height: sample.height }
}

/// Returns the first sample of the end in which all blocks are younger than `age_max` seconds when
/// they are processed. A single late block does not interrupt the end.
fn find_young_end(run: &SyncRun, age_max: f64) -> Option<Tip> {
    let is_young = |sample: &Sample| sample.age.is_some_and(|age| age <= age_max);
    let last_old_pair = run.samples.windows(2).rposition(|pair| !pair.iter().any(is_young));
    let end = last_old_pair.map_or(run.samples.as_slice(), |index| &run.samples[index + 2..]);
    end.iter().copied().find(is_young).map(|sample| tip_at(run, sample))
}

/// Returns the sample from which on 30 consecutive samples never add far more than twice the blocks
/// that the chain produces in that time. `block_time` is in seconds. At least two samples must add
/// blocks, because a run that stopped growing is not at the tip. `None` if there is no such sample,
/// or if fewer than 30 samples follow it.
fn find_slow_end(run: &SyncRun, block_time: f64) -> Option<Tip> {
    let samples = &run.samples;
    let last_start = samples.len().checked_sub(TIP_SAMPLES + 1)?;
    let grows_slowly = |index: &usize| {
        let (start, end) = (&samples[*index], &samples[index + TIP_SAMPLES]);
        let expected = (end.at - start.at) / block_time;
        let max_blocks = TIP_FACTOR * expected + TIP_DEVIATIONS * expected.sqrt() + 1.0;
        (end.height - start.height) as f64 <= max_blocks.round()
    };
    let index = (0..=last_start).rev().take_while(grows_slowly).last()?;
    let tail = &samples[index..];
    let growths = tail.windows(2).filter(|pair| pair[1].height > pair[0].height).count();
    tail.first().filter(|_| growths >= 2).map(|sample| tip_at(run, *sample))
}

/// Returns the end of a run in which it grows at one rate, if it grew at least three times faster
/// just before. For an end of fewer than 30 samples with new blocks, it must have grown ten times
/// faster. A run that grows at one rate from start to end has no such end: its rate may be its own.
fn find_steady_end(run: &SyncRun) -> Option<SteadyEnd> {
    let mut growths = run.samples.clone();
    growths.dedup_by_key(|sample| sample.height);
    let last = growths.len().checked_sub(1)?;
    let blocks = |from: usize, to: usize| (growths[to].height - growths[from].height) as f64;
    let rate = |from: usize, to: usize| blocks(from, to) / (growths[to].at - growths[from].at);
    let last_start = last.checked_sub(PACE_SAMPLES)?;
    let mut start = last_start;
    // The first estimate of the rate is from few samples, so it is refined.
    for _ in 0..PACE_ESTIMATES {
        let rate_max = TIP_FACTOR * rate(start, last);
        let grows_slowly = |index: &usize| rate(*index, index + PACE_SAMPLES) <= rate_max;
        start = (0..=last_start).rev().take_while(grows_slowly).last()?;
    }
    let pace = rate(start, last);
    let drop = rate(start.saturating_sub(PACE_SAMPLES), start) / pace;
    let drop_min = if last - start < PACE_SAMPLES_LONG { DROP_MIN_SHORT } else { DROP_MIN };
    let middle = usize::midpoint(start, last);
    let deviation = (1.0 / blocks(start, middle) + 1.0 / blocks(middle, last)).sqrt();
    let change = (rate(start, middle) - rate(middle, last)).abs() / pace;
    let is_steady = change <= PACE_TOLERANCE + 3.0 * deviation;
    (start > 0 && is_steady && drop >= drop_min)
        .then(|| SteadyEnd { first: growths[start], block_time: 1.0 / pace })
}

#[cfg(test)]
mod tests;
