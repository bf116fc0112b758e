//! Draws conclusions from the counters of a node's page cache. They answer three questions. Does a
//! cold cache explain a slow start? Does a block cost both variants the same work? Which variant
//! reads less from the disk?
//!
//! A bin is a range of block heights; all bins of a study have the same width. The result has one
//! value per bin: the rate in blocks per second, the hit ratio, and the page accesses per block.

use lab_model::results::study::{About, Conclusion, RunRow, VariantRow};

use super::conclusion;
use crate::wording::number::{count, percent, short};

/// A variant starts slowly if, in the first bins, the other variant's rate is at least this many
/// times its own rate. The second ratio is tried only if the very first bin does not reach the
/// first ratio.
const SLOW_RATIOS: [f64; 2] = [1.5, 1.1];
/// Two variants do the same work in a bin if their page accesses per block differ by at most this
/// share.
const SAME_WORK_MAX: f64 = 0.05;
/// Two variants do the same work overall if they do the same work in at least this share of bins.
const SAME_BINS_MIN: f64 = 0.8;
/// Smallest ratio of reads per block that is reported as a difference.
const FEWER_READS_RATIO: f64 = 1.25;

/// States if a cold cache explains that `slow` starts slower than `quick`. A cold cache has a lower
/// hit ratio at the start than later. `bin_width` is in blocks. `is_slow_faster` has a value per
/// bin: true if `slow` is faster there, `None` if neither variant is. Returns `None` if `slow` does
/// not start slower, if it is faster in no later bin, or if hit ratios are unknown.
pub(super) fn explain_slow_start(
    bin_width: u64,
    slow: &VariantRow,
    quick: &VariantRow,
    is_slow_faster: &[Option<bool>],
) -> Option<Conclusion> {
    let rates = |index: usize| value_at(&slow.rates, index).zip(value_at(&quick.rates, index));
    let start_bins = SLOW_RATIOS.into_iter().find_map(|factor| {
        let is_slower = |index: &usize| {
            is_slow_faster[*index] == Some(false)
                && rates(*index).is_some_and(|(slow, quick)| quick >= factor * slow)
        };
        let bins = (0..is_slow_faster.len()).take_while(is_slower).count();
        (bins > 0).then_some(bins)
    })?;
    // A variant that is slower in all bins is slow, but it has no slow start.
    if !is_slow_faster[start_bins..].contains(&Some(true)) {
        return None;
    }
    let (start_low, start_high) = range_of(slow.hit_ratios.iter().take(start_bins))?;
    let (later_low, later_high) = range_of(slow.hit_ratios.iter().skip(start_bins))?;
    let rate_ratio = rate_over(quick, start_bins)? / rate_over(slow, start_bins)?;
    let observation = format!(
        "below height {}, {} is {rate_ratio:.1} times slower than {}",
        count(start_bins as u64 * bin_width),
        slow.name,
        quick.name
    );
    let later = format!("later {} to {}", percent(later_low), percent(later_high));
    let (low, high) = (percent(start_low), percent(start_high));
    let text = if start_low >= later_high {
        format!(
            "{observation}, although its hit ratio is highest there ({low} or more, {later}): cache warm-up \
             is not the cause of its slow start"
        )
    } else if start_high < later_low {
        format!(
            "{observation}, and its hit ratio is lowest there (at most {high}, {later}): cache warm-up may \
             be the cause of its slow start"
        )
    } else {
        format!(
            "{observation}, and its hit ratios there and later overlap ({low} to {high}, {later}): \
             cannot tell whether cache warm-up is the cause of its slow start"
        )
    };
    Some(conclusion(About::Cause, text))
}

/// Returns the lowest and the highest of the known values, or `None` if no value is known.
fn range_of<'a>(values: impl Iterator<Item = &'a Option<f64>> + Clone) -> Option<(f64, f64)> {
    let known = values.flatten().copied();
    known.clone().reduce(f64::min).zip(known.reduce(f64::max))
}

/// Returns a variant's blocks per second over the first `bins` bins of all its runs.
fn rate_over(variant: &VariantRow, bins: usize) -> Option<f64> {
    let first_bins = || variant.runs.iter().flat_map(|run| run.bins.iter().take(bins));
    let blocks: f64 = first_bins().map(|bin| bin.blocks as f64).sum();
    let seconds: f64 = first_bins().map(|bin| bin.seconds).sum();
    (seconds > 0.0).then(|| blocks / seconds)
}

/// Returns the value of a bin, or `None` if it is unknown.
fn value_at(values: &[Option<f64>], index: usize) -> Option<f64> {
    values.get(index).copied().flatten()
}

/// States if a block costs both variants the same number of page accesses. If not, their rates may
/// differ because they do different work. `None` if no bin has the counters of both variants.
pub(super) fn compare_work(a: &VariantRow, b: &VariantRow) -> Option<Conclusion> {
    let pairs = a.pages_per_block.iter().zip(&b.pages_per_block).enumerate();
    let differences: Vec<(usize, f64)> = pairs
        .filter_map(|(index, (a, b))| {
            let (a, b) = (*a).zip(*b).filter(|(a, b)| *a > 0.0 && *b > 0.0)?;
            Some((index, (a / b).max(b / a) - 1.0))
        })
        .collect();
    let same_work: Vec<f64> = differences
        .iter()
        .map(|(_, difference)| *difference)
        .filter(|difference| *difference <= SAME_WORK_MAX)
        .collect();
    let largest_same = percent(same_work.iter().copied().fold(0.0, f64::max));
    let total = differences.len();
    let (index, largest) = differences.iter().copied().max_by(|x, y| x.1.total_cmp(&y.1))?;
    let bin = a.runs.first().and_then(|run| run.bins.get(index))?;
    let largest_difference = format!(
        "the largest difference is {}, in the bin from {} to {}",
        percent(largest),
        count(bin.from),
        count(bin.to)
    );
    let text = if same_work.len() == total {
        format!(
            "the work per block is the same: page accesses per block agree within {largest_same} in every \
             bin, so differences in blocks/s are real"
        )
    } else if same_work.len() as f64 >= SAME_BINS_MIN * total as f64 {
        format!(
            "the work per block is the same: page accesses per block agree within {largest_same} in {} of {total} \
             bins ({largest_difference}), so differences in blocks/s are real there",
            same_work.len()
        )
    } else {
        format!(
            "the work per block is not the same: page accesses per block agree within {} in only \
             {} of {total} bins ({largest_difference}), so differences in blocks/s may come from \
             different work",
            percent(SAME_WORK_MAX),
            same_work.len()
        )
    };
    Some(conclusion(About::Work, text))
}

/// Names the variant that reads fewer pages per block, and states if it is faster in the bins in
/// which it reads fewer. `bin_width` is in blocks. `faster` has a value per bin: true if variant
/// `a` is faster there, `None` if neither variant is. Returns `None` if a run has no counters, or
/// if the runs of a variant added no block.
pub(super) fn compare_reads(
    bin_width: u64,
    a: &VariantRow,
    b: &VariantRow,
    faster: &[Option<bool>],
) -> Option<Conclusion> {
    let pages_per_block = |variant: &VariantRow| {
        let accesses = variant.runs.iter().filter_map(|run| run.accesses);
        let pages: f64 = accesses.map(|accesses| accesses.miss as f64).sum();
        // The accesses are counted until the tip, so blocks are counted until the tip too.
        let last_height = |run: &RunRow| run.tip.map_or(run.height, |tip| tip.height);
        let blocks: f64 =
            variant.runs.iter().map(|run| (last_height(run) - run.height_first) as f64).sum();
        (blocks > 0.0 && variant.runs.iter().all(|run| run.accesses.is_some()))
            .then(|| pages / blocks)
    };
    let (pages_a, pages_b) = (pages_per_block(a)?, pages_per_block(b)?);
    let a_reads_less = pages_a < pages_b;
    let (less, more) = if a_reads_less { (a, b) } else { (b, a) };
    let (fewest_pages, most_pages) =
        if a_reads_less { (pages_a, pages_b) } else { (pages_b, pages_a) };
    if most_pages < FEWER_READS_RATIO * fewest_pages.max(f64::MIN_POSITIVE) {
        return Some(conclusion(
            About::Cause,
            format!(
                "both read nearly the same number of pages per block ({} and {}): the cache does not \
                 explain a difference",
                short(pages_a),
                short(pages_b)
            ),
        ));
    }
    let reads_fewer = |index: &usize| {
        let misses =
            value_at(&less.misses_per_block, *index).zip(value_at(&more.misses_per_block, *index));
        misses.is_some_and(|(less, more)| FEWER_READS_RATIO * less < more)
    };
    let bins: Vec<usize> = (0..faster.len()).filter(reads_fewer).collect();
    let faster_bins = bins.iter().filter(|index| faster[**index] == Some(a_reads_less)).count();
    let factor = if fewest_pages > 0.0 {
        format!("{} times ", short(most_pages / fewest_pages))
    } else {
        String::new()
    };
    let slower_bins: Vec<String> = bins
        .iter()
        .filter(|index| faster[**index] == Some(!a_reads_less))
        .map(|index| count(*index as u64 * bin_width))
        .collect();
    let mut text = format!(
        "{} reads {factor}fewer pages per block than {} ({} compared with {})",
        less.name,
        more.name,
        short(fewest_pages),
        short(most_pages)
    );
    if !bins.is_empty() {
        let bin_count = bins.len();
        text += &format!(
            "; it is faster in {faster_bins} of the {bin_count} bins in which it reads fewer"
        );
    }
    if !slower_bins.is_empty() && faster_bins > 0 {
        text += &format!(
            "; in the bins that begin at {} it reads fewer but is slower, so reading is not the \
             limit there",
            slower_bins.join(", ")
        );
    } else if !slower_bins.is_empty() {
        text += ": reading less does not make it faster here";
    }
    Some(conclusion(About::Cause, text))
}
