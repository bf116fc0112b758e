//! Computes rates by height: blocks per second, hit ratio of the page cache and accesses per block.
//! A bin is a range of heights; all bins have the same width. A variant is one of the compared
//! nodes. Rates by time would compare different blocks, because one variant is ahead of the other.

use lab_model::results::study::{Accesses, Bin, RateCross};

use super::{Sample, SyncRun};

/// Maximum number of bins of the default width. One more bin may begin at the last height.
const DEFAULT_BINS_MAX: u64 = 20;
/// Smallest mean number of samples per bin of the default width. With fewer samples, one or two
/// steps of the height would determine a rate.
const DEFAULT_SAMPLES_MIN: u64 = 4;
/// Maximum number of bins of any width.
pub const BINS_MAX: usize = 2_000;
/// Two rates count as equal if they differ by at most this share of the lower rate.
const EQUAL_SHARE: f64 = 0.01;

/// Returns the bins of a run from height 0 to its last height, with `width` blocks each; at most
/// [`BINS_MAX`]. Bins without a sample are included, so bins with the same index cover the same
/// heights in every run.
pub fn compute_bins(run: &SyncRun, width: u64) -> Vec<Bin> {
    let width = width.max(1);
    let count = usize::try_from(run.last().height / width).unwrap_or(usize::MAX) + 1;
    let mut remaining = run.samples.as_slice();
    let mut bins = Vec::new();
    for index in 0..count.min(BINS_MAX) as u64 {
        let (start, end) = (index * width, (index + 1).saturating_mul(width));
        let count_in_bin = remaining.partition_point(|sample| sample.height < end);
        let (bin_samples, later_samples) = remaining.split_at(count_in_bin);
        bins.push(compute_bin(start, end, bin_samples));
        remaining = later_samples;
    }
    bins
}

/// Returns the rates of the samples whose heights are in `from..to`.
fn compute_bin(from: u64, to: u64, samples: &[Sample]) -> Bin {
    let (blocks, seconds) = match (samples.first(), samples.last()) {
        (Some(first), Some(last)) => (last.height - first.height, last.at - first.at),
        _ => (0, 0.0),
    };
    let accesses = samples.iter().filter_map(|sample| sample.accesses).reduce(Accesses::plus);
    // Accesses per block ignore the time in which no block was added.
    let growing = samples.windows(2).filter(|pair| pair[1].height > pair[0].height);
    let growth_accesses = growing.filter_map(|pair| pair[1].accesses).reduce(Accesses::plus);
    let per_block = |count: u64| (blocks > 0).then(|| count as f64 / blocks as f64);
    Bin {
        from,
        to,
        samples: samples.len(),
        blocks,
        seconds,
        rate: (seconds > 0.0).then(|| blocks as f64 / seconds),
        hit_ratio: accesses.and_then(Accesses::hit_ratio),
        pages_per_block: growth_accesses.and_then(|accesses| per_block(accesses.pages())),
        misses_per_block: growth_accesses.and_then(|accesses| per_block(accesses.miss)),
    }
}

/// Returns the default width for a run up to `height`: 1, 2 or 5 × a power of ten. The blocks below
/// `height` fill at most 20 bins; fewer if a bin would have less than four of the `samples` on
/// average. If `height` is a multiple of the width, one more bin begins there.
pub fn default_width(height: u64, samples: usize) -> u64 {
    let bins = (samples as u64 / DEFAULT_SAMPLES_MIN).clamp(1, DEFAULT_BINS_MAX);
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

/// Compares the rates of two variants by bin. True if the first variant is faster, false if the
/// second one is. `None` if their rates are within 1 % of each other, or unknown.
pub fn faster_by_bin(first: &[Option<f64>], second: &[Option<f64>]) -> Vec<Option<bool>> {
    let is_first_faster = |(first, second): (&Option<f64>, &Option<f64>)| {
        let (first, second) = (*first).zip(*second)?;
        ((first - second).abs() > EQUAL_SHARE * first.min(second)).then_some(first > second)
    };
    first.iter().zip(second).map(is_first_faster).collect()
}

/// Returns the heights at which the faster variant changes. `faster` has an item for each bin of
/// `width` blocks, as in [`faster_by_bin`]. Bins without a faster variant are skipped.
pub fn rate_crosses(faster: &[Option<bool>], width: u64) -> Vec<RateCross> {
    let mut crosses = Vec::new();
    // The result of the last bin that was not skipped.
    let mut previous: Option<bool> = None;
    for (index, is_first_faster) in faster.iter().enumerate() {
        let Some(is_first_faster) = *is_first_faster else { continue };
        if previous.is_some_and(|previous| previous != is_first_faster) {
            crosses.push(RateCross { height: index as u64 * width, to_first: is_first_faster });
        }
        previous = Some(is_first_faster);
    }
    crosses
}
