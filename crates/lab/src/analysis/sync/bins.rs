//! Rates by height: blocks per second, hit ratio and accesses per block, in bins. A bin is a
//! range of heights; all bins have the same width.
//!
//! Rates by time would compare different blocks once one variant leads.

use lab_model::results::study::{Accesses, Bin, RateCross};

use super::{Sample, SyncRun};

/// Maximum number of bins of the default width.
const BINS_WANTED: u64 = 20;
/// Smallest mean number of samples per bin of the default width. With fewer, one or two steps
/// would decide a rate.
const SAMPLES_WANTED: u64 = 4;
/// Maximum number of bins of any width.
pub const BINS_MAX: usize = 2_000;
/// Rates that differ by less than this share are equal.
pub const EVEN: f64 = 0.01;

/// Returns the bins of a run from height 0 to its last height, with `width` blocks each; at most
/// [`BINS_MAX`]. Bins without a sample are included, so an index has the same heights in every
/// run.
pub fn bins(run: &SyncRun, width: u64) -> Vec<Bin> {
    let width = width.max(1);
    let count = usize::try_from(run.last().height / width).unwrap_or(usize::MAX) + 1;
    let mut remaining = run.samples.as_slice();
    let mut bins = Vec::new();
    for index in 0..count.min(BINS_MAX) as u64 {
        let (start, end) = (index * width, (index + 1).saturating_mul(width));
        let inside = remaining.partition_point(|sample| sample.height < end);
        let (bin_samples, later) = remaining.split_at(inside);
        bins.push(bin(start, end, bin_samples));
        remaining = later;
    }
    bins
}

fn bin(from: u64, to: u64, samples: &[Sample]) -> Bin {
    let (blocks, seconds) = match (samples.first(), samples.last()) {
        (Some(first), Some(last)) => (last.height - first.height, last.at - first.at),
        _ => (0, 0.0),
    };
    let accesses = samples.iter().filter_map(|sample| sample.accesses).reduce(Accesses::plus);
    let growing = samples.windows(2).filter(|pair| pair[1].height > pair[0].height);
    let working = growing.filter_map(|pair| pair[1].accesses).reduce(Accesses::plus);
    let per_block = |count: u64| (blocks > 0).then(|| count as f64 / blocks as f64);
    Bin {
        from,
        to,
        samples: samples.len(),
        blocks,
        seconds,
        rate: (seconds > 0.0).then(|| blocks as f64 / seconds),
        hit_ratio: accesses.and_then(Accesses::hit_ratio),
        pages_per_block: working.and_then(|accesses| per_block(accesses.pages())),
        misses_per_block: working.and_then(|accesses| per_block(accesses.miss)),
    }
}

/// Returns the default width: 1, 2 or 5 × a power of ten. It gives at most 20 bins, with four
/// samples or more on average.
pub fn default_width(height: u64, samples: usize) -> u64 {
    let bins = (samples as u64 / SAMPLES_WANTED).clamp(1, BINS_WANTED);
    round_step(height.div_ceil(bins))
}

/// Returns the smallest of 1, 2, 5 or 10 × a power of ten that is at least `minimum`.
pub fn round_step(minimum: u64) -> u64 {
    let mut power = 1_u64;
    while power <= minimum / 10 {
        power *= 10;
    }
    let steps = [1, 2, 5, 10].map(|step| power.saturating_mul(step));
    steps.into_iter().find(|step| *step >= minimum.max(1)).unwrap_or(u64::MAX)
}

/// Returns the faster variant of each bin: true for the first variant, false for the second. None
/// if their rates are within 1 % or unknown.
pub fn faster_by_bin(a: &[Option<f64>], b: &[Option<f64>]) -> Vec<Option<bool>> {
    let faster_of = |(a, b): (&Option<f64>, &Option<f64>)| {
        let (a, b) = (*a).zip(*b)?;
        ((a - b).abs() > EVEN * a.min(b)).then_some(a > b)
    };
    a.iter().zip(b).map(faster_of).collect()
}

/// Returns the heights at which the other variant becomes the faster one. Bins with equal rates are
/// skipped.
pub fn rate_crosses(faster: &[Option<bool>], width: u64) -> Vec<RateCross> {
    let mut crosses = Vec::new();
    let mut leader = None;
    for (index, is_first) in faster.iter().enumerate() {
        let Some(is_first) = *is_first else { continue };
        if leader.is_some_and(|previous: bool| previous != is_first) {
            crosses.push(RateCross { height: index as u64 * width, to_first: is_first });
        }
        leader = Some(is_first);
    }
    crosses
}
