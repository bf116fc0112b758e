//! Conclusions from page cache counters: whether a cold cache explains a slow start, whether a
//! block costs both variants the same work, and which variant reads less. A bin is a range of block
//! heights.

use lab_model::results::study::{About, Conclusion, RunRow, VariantRow};

use super::conclusion;
use super::{rate_over, value_at};
use crate::wording::number::{count, percent, short};

/// Ratios of the rates of two variants from which the start of the slower one is slow. The second
/// is used if the first bin does not reach the first ratio.
const SLOW: [f64; 2] = [1.5, 1.1];
/// Relative difference of accesses per block up to which the work is the same.
const SAME_WORK: f64 = 0.05;
/// Minimum share of bins with the same work at which the work is the same overall.
const SAME_BINS: f64 = 0.8;
/// Ratio of reads per block from which a difference is reported.
const FEWER: f64 = 1.25;

/// Checks if a cold cache explains a slow start of `slow` compared with `quick`: its hit ratio
/// would be lower at the start than later.
pub(super) fn warmup(bin: u64, slow: &VariantRow, quick: &VariantRow) -> Option<Conclusion> {
    let start = SLOW.iter().find_map(|factor| {
        let is_slower = |index: &usize| {
            let rates = value_at(&slow.rates, *index).zip(value_at(&quick.rates, *index));
            rates.is_some_and(|(slow, quick)| quick >= factor * slow)
        };
        let bins: Vec<usize> = (0..slow.rates.len()).take_while(is_slower).collect();
        (!bins.is_empty()).then_some(bins)
    })?;
    let start_bins = start.len();
    // A variant that is slower all the way has no slow start.
    let faster_later = (start_bins..slow.rates.len()).any(|index| {
        value_at(&slow.rates, index)
            .zip(value_at(&quick.rates, index))
            .is_some_and(|(slow, quick)| slow > quick)
    });
    let hit_ratios_at_start: Vec<f64> =
        (0..start_bins).filter_map(|index| value_at(&slow.hit_ratios, index)).collect();
    let hit_ratios_later: Vec<f64> = (start_bins..slow.hit_ratios.len())
        .filter_map(|index| value_at(&slow.hit_ratios, index))
        .collect();
    if !faster_later || hit_ratios_at_start.is_empty() || hit_ratios_later.is_empty() {
        return None;
    }
    let minimum = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let maximum = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let times = rate_over(quick, &start)? / rate_over(slow, &start)?;
    let begin = format!(
        "below {} {} is {times:.1} times slower than {}",
        count(start_bins as u64 * bin),
        slow.name,
        quick.name
    );
    let range = format!(
        "later {} to {}",
        percent(minimum(&hit_ratios_later)),
        percent(maximum(&hit_ratios_later))
    );
    let text = if minimum(&hit_ratios_at_start) >= maximum(&hit_ratios_later) {
        format!(
            "{begin}, although its hit ratio is highest there ({} or more, {range}): cache warm-up is \
             not the cause of its slow start",
            percent(minimum(&hit_ratios_at_start))
        )
    } else if maximum(&hit_ratios_at_start) < minimum(&hit_ratios_later) {
        format!(
            "{begin}, and its hit ratio is lowest there (at most {}, {range}): cache warm-up may be the \
             cause of its slow start",
            percent(maximum(&hit_ratios_at_start))
        )
    } else {
        format!(
            "{begin} at hit ratios that it also has later ({} to {}, {range}): cannot tell whether \
             cache warm-up is the cause of its slow start",
            percent(minimum(&hit_ratios_at_start)),
            percent(maximum(&hit_ratios_at_start))
        )
    };
    Some(conclusion(About::Cause, text))
}

/// Checks if a block costs both variants the same number of page accesses. Only then is a
/// difference of rates a difference of speed.
pub(super) fn work(a: &VariantRow, b: &VariantRow) -> Option<Conclusion> {
    let pairs = a.pages_per_block.iter().zip(&b.pages_per_block).enumerate();
    let differences: Vec<(usize, f64)> = pairs
        .filter_map(|(index, (a, b))| {
            let (a, b) = (*a).zip(*b).filter(|(a, b)| *a > 0.0 && *b > 0.0)?;
            Some((index, (a / b).max(b / a) - 1.0))
        })
        .collect();
    if differences.is_empty() {
        return None;
    }
    let same_work: Vec<f64> = differences
        .iter()
        .map(|difference| difference.1)
        .filter(|difference| *difference <= SAME_WORK)
        .collect();
    let within = percent(same_work.iter().copied().fold(0.0, f64::max));
    let (total, worst_bin) =
        (differences.len(), differences.iter().copied().max_by(|x, y| x.1.total_cmp(&y.1))?);
    let bin = a.runs.first().and_then(|run| run.bins.get(worst_bin.0))?;
    let farthest = format!(
        "farthest apart from {} to {}: {}",
        count(bin.from),
        count(bin.to),
        percent(worst_bin.1)
    );
    let text = match () {
        () if same_work.len() == total => format!(
            "the work per block is the same: page accesses per block agree within {within} in every \
             bin, so differences in blocks/s are real"
        ),
        () if same_work.len() as f64 >= SAME_BINS * total as f64 => format!(
            "the work per block is the same: page accesses per block agree within {within} in {} of {total} \
             bins ({farthest}), so differences in blocks/s are real there",
            same_work.len()
        ),
        () => format!(
            "the work per block is not the same: page accesses per block agree within {} in {} of {total} bins \
             only ({farthest}), so differences in blocks/s may come from different work",
            percent(SAME_WORK),
            same_work.len()
        ),
    };
    Some(conclusion(About::Work, text))
}

/// Names the variant that reads fewer pages per block, and states if it is faster there.
pub(super) fn reads(
    bin: u64,
    a: &VariantRow,
    b: &VariantRow,
    faster: &[Option<bool>],
) -> Option<Conclusion> {
    let total = |variant: &VariantRow| {
        let known = variant.runs.iter().filter_map(|run| run.accesses);
        let pages: f64 = known.map(|accesses| accesses.miss as f64).sum();
        // Blocks are counted until the tip, as accesses are.
        let last_height = |run: &RunRow| run.tip.map_or(run.height, |tip| tip.height);
        let blocks: f64 =
            variant.runs.iter().map(|run| (last_height(run) - run.height_first) as f64).sum();
        (blocks > 0.0 && variant.runs.iter().all(|run| run.accesses.is_some()))
            .then(|| pages / blocks)
    };
    let (pages_a, pages_b) = (total(a)?, total(b)?);
    let a_less = pages_a < pages_b;
    let (less, more) = if a_less { (a, b) } else { (b, a) };
    let (fewest_pages, most_pages) = if a_less { (pages_a, pages_b) } else { (pages_b, pages_a) };
    if most_pages < FEWER * fewest_pages.max(f64::MIN_POSITIVE) {
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
    let fewer = |index: &usize| {
        let misses =
            value_at(&less.misses_per_block, *index).zip(value_at(&more.misses_per_block, *index));
        misses.is_some_and(|(less, more)| FEWER * less < more)
    };
    let bins: Vec<usize> = (0..faster.len()).filter(fewer).collect();
    let agree = bins.iter().filter(|index| faster[**index] == Some(a_less)).count();
    let times = if fewest_pages > 0.0 {
        format!("{} times ", short(most_pages / fewest_pages))
    } else {
        String::new()
    };
    let slower_bins: Vec<String> = bins
        .iter()
        .filter(|index| faster[**index] == Some(!a_less))
        .map(|index| count(*index as u64 * bin))
        .collect();
    let mut text = format!(
        "{} reads {times}fewer pages per block than {} ({} compared with {})",
        less.name,
        more.name,
        short(fewest_pages),
        short(most_pages)
    );
    if !bins.is_empty() {
        let bin_count = bins.len();
        text += &format!(", and is faster in {agree} of the {bin_count} bins where it does");
    }
    if !slower_bins.is_empty() && agree > 0 {
        text += &format!(
            "; in those that begin at {} it is slower nevertheless: reading is not the limit there",
            slower_bins.join(", ")
        );
    } else if !slower_bins.is_empty() {
        text += ": reading less does not make it faster here";
    }
    Some(conclusion(About::Cause, text))
}
