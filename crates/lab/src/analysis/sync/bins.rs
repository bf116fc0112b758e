//! Rates by height: blocks per second, hit ratio and accesses per block in bins of equal height.
//!
//! Rates by time would compare different blocks with each other as soon as one arm leads.

use lab_model::results::study::{Accesses, Bin, RateCross};

use super::{Course, Sample};

/// Bins that a height is cut into at most by itself.
const BINS_WANTED: u64 = 20;
/// Samples of a bin, with fewer of which its rate would be that of one or two steps.
const SAMPLES_WANTED: u64 = 4;
/// Bins at most, whatever is asked for.
pub const BINS_MAX: usize = 2_000;
/// Rates that differ by less than this share are even.
pub const EVEN: f64 = 0.01;

/// The bins of a course, from height 0 to its last, `width` blocks each; at most [`BINS_MAX`]. Bins
/// without a sample are there too, so that the same place means the same heights in every course.
pub fn bins(course: &Course, width: u64) -> Vec<Bin> {
    let width = width.max(1);
    let count = usize::try_from(course.last().height / width).unwrap_or(usize::MAX) + 1;
    let mut rest = course.samples.as_slice();
    let mut found = Vec::new();
    for place in 0..count.min(BINS_MAX) as u64 {
        let (from, to) = (place * width, (place + 1).saturating_mul(width));
        let inside = rest.partition_point(|sample| sample.height < to);
        let (own, after) = rest.split_at(inside);
        found.push(bin(from, to, own));
        rest = after;
    }
    found
}

fn bin(from: u64, to: u64, own: &[Sample]) -> Bin {
    let (blocks, seconds) = match (own.first(), own.last()) {
        (Some(first), Some(last)) => (last.height - first.height, last.at - first.at),
        _ => (0, 0.0),
    };
    let all = own.iter().filter_map(|sample| sample.accesses).reduce(Accesses::plus);
    let moved = own.windows(2).filter(|pair| pair[1].height > pair[0].height);
    let working = moved.filter_map(|pair| pair[1].accesses).reduce(Accesses::plus);
    let per_block = |count: u64| (blocks > 0).then(|| count as f64 / blocks as f64);
    Bin {
        from,
        to,
        samples: own.len(),
        blocks,
        seconds,
        rate: (seconds > 0.0).then(|| blocks as f64 / seconds),
        hit_ratio: all.and_then(Accesses::hit_ratio),
        pages_per_block: working.and_then(|all| per_block(all.pages())),
        misses_per_block: working.and_then(|all| per_block(all.miss)),
    }
}

/// A width of 1, 2 or 5 × a power of ten with which a height is cut into at most 20 bins, of four
/// samples or more on the average where a course has so many.
pub fn usual_width(height: u64, samples: usize) -> u64 {
    let bins = (samples as u64 / SAMPLES_WANTED).clamp(1, BINS_WANTED);
    round_step(height.div_ceil(bins))
}

/// The next of 1, 2, 5, 10 × a power of ten.
pub fn round_step(least: u64) -> u64 {
    let mut power = 1_u64;
    while power <= least / 10 {
        power *= 10;
    }
    let steps = [1, 2, 5, 10].map(|step| power.saturating_mul(step));
    steps.into_iter().find(|step| *step >= least.max(1)).unwrap_or(u64::MAX)
}

/// Which of two arms is faster, bin by bin: more than 1 % apart, else even (none). As long as both
/// have a rate.
pub fn faster(a: &[Option<f64>], b: &[Option<f64>]) -> Vec<Option<bool>> {
    let one = |(a, b): (&Option<f64>, &Option<f64>)| {
        let (a, b) = (*a).zip(*b)?;
        ((a - b).abs() > EVEN * a.min(b)).then_some(a > b)
    };
    a.iter().zip(b).map(one).collect()
}

/// Heights at which another arm becomes the faster one; bins that are even change nothing.
pub fn rate_crosses(faster: &[Option<bool>], width: u64) -> Vec<RateCross> {
    let mut crosses = Vec::new();
    let mut now = None;
    for (place, is_first) in faster.iter().enumerate() {
        let Some(is_first) = *is_first else { continue };
        if now.is_some_and(|before: bool| before != is_first) {
            crosses.push(RateCross { height: place as u64 * width, to_first: is_first });
        }
        now = Some(is_first);
    }
    crosses
}
