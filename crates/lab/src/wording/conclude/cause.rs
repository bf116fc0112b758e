//! Conclusions from page cache counters: whether a cold cache explains a slow start, whether a
//! block costs both arms the same work, and which arm reads less.

use lab_model::results::study::{About, ArmRow, Conclusion, RunRow};

use super::conclusion;
use super::{at, rate_over};
use crate::wording::number::{count, percent, short};

/// Ratios of rates from which a start is slow. The second is used if the first is never reached.
const SLOW: [f64; 2] = [1.5, 1.1];
/// Relative difference of accesses per block up to which the work is the same.
const SAME_WORK: f64 = 0.05;
/// Share of buckets with the same work from which the work is the same overall.
const SAME_BINS: f64 = 0.8;
/// Ratio of reads per block from which a difference is reported.
const FEWER: f64 = 1.25;

/// Checks if a cold cache explains a slow start of `slow` compared with `quick`: its hit ratio
/// would be lower at the start than later.
pub(super) fn warmup(bin: u64, slow: &ArmRow, quick: &ArmRow) -> Option<Conclusion> {
    let start = SLOW.iter().find_map(|factor| {
        let behind = |place: &usize| {
            let both = at(&slow.rates, *place).zip(at(&quick.rates, *place));
            both.is_some_and(|(slow, quick)| quick >= factor * slow)
        };
        let bins: Vec<usize> = (0..slow.rates.len()).take_while(behind).collect();
        (!bins.is_empty()).then_some(bins)
    })?;
    let end = start.len();
    // An arm that is slower all the way has no slow start.
    let faster_later = (end..slow.rates.len()).any(|place| {
        at(&slow.rates, place)
            .zip(at(&quick.rates, place))
            .is_some_and(|(slow, quick)| slow > quick)
    });
    let there: Vec<f64> = (0..end).filter_map(|place| at(&slow.hit_ratios, place)).collect();
    let later: Vec<f64> =
        (end..slow.hit_ratios.len()).filter_map(|place| at(&slow.hit_ratios, place)).collect();
    if !faster_later || there.is_empty() || later.is_empty() {
        return None;
    }
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let times = rate_over(quick, &start)? / rate_over(slow, &start)?;
    let begin = format!(
        "below {} {} is {times:.1} times slower than {}",
        count(end as u64 * bin),
        slow.name,
        quick.name
    );
    let range = format!("later {} to {}", percent(least(&later)), percent(most(&later)));
    let text = if least(&there) >= most(&later) {
        format!(
            "{begin}, although its hit ratio is highest there ({} or more, {range}): cache warm-up is \
             not the cause of its slow start",
            percent(least(&there))
        )
    } else if most(&there) < least(&later) {
        format!(
            "{begin}, and its hit ratio is lowest there (at most {}, {range}): cache warm-up may be the \
             cause of its slow start",
            percent(most(&there))
        )
    } else {
        format!(
            "{begin} at hit ratios that it also has later ({} to {}, {range}): cannot tell whether \
             cache warm-up is the cause of its slow start",
            percent(least(&there)),
            percent(most(&there))
        )
    };
    Some(conclusion(About::Cause, text))
}

/// Checks if a block costs both arms the same number of page accesses. Only then is a difference of
/// rates a difference of speed.
pub(super) fn work(a: &ArmRow, b: &ArmRow) -> Option<Conclusion> {
    let both = a.pages_per_block.iter().zip(&b.pages_per_block).enumerate();
    let apart: Vec<(usize, f64)> = both
        .filter_map(|(place, (a, b))| {
            let (a, b) = (*a).zip(*b).filter(|(a, b)| *a > 0.0 && *b > 0.0)?;
            Some((place, (a / b).max(b / a) - 1.0))
        })
        .collect();
    if apart.is_empty() {
        return None;
    }
    let same: Vec<f64> = apart.iter().map(|one| one.1).filter(|one| *one <= SAME_WORK).collect();
    let within = percent(same.iter().copied().fold(0.0, f64::max));
    let (of, worst) = (apart.len(), apart.iter().copied().max_by(|x, y| x.1.total_cmp(&y.1))?);
    let bin = a.runs.first().and_then(|run| run.bins.get(worst.0))?;
    let farthest = format!(
        "farthest apart from {} to {}: {}",
        count(bin.from),
        count(bin.to),
        percent(worst.1)
    );
    let text = match () {
        () if same.len() == of => format!(
            "the work per block is the same: page accesses per block agree within {within} in every \
             bin, so differences in blocks/s are real"
        ),
        () if same.len() as f64 >= SAME_BINS * of as f64 => format!(
            "the work per block is the same: page accesses per block agree within {within} in {} of {of} \
             bins ({farthest}), so differences in blocks/s are real there",
            same.len()
        ),
        () => format!(
            "the work per block is not the same: page accesses per block agree within {} in {} of {of} bins \
             only ({farthest}), so differences in blocks/s may come from different work",
            percent(SAME_WORK),
            same.len()
        ),
    };
    Some(conclusion(About::Work, text))
}

/// Which arm reads fewer pages per block, and whether it is faster where it does.
pub(super) fn reads(
    bin: u64,
    a: &ArmRow,
    b: &ArmRow,
    faster: &[Option<bool>],
) -> Option<Conclusion> {
    let total = |arm: &ArmRow| {
        let known = arm.runs.iter().filter_map(|run| run.accesses);
        let pages: f64 = known.map(|all| all.miss as f64).sum();
        // Blocks are counted until the tip, as accesses are.
        let end = |run: &RunRow| run.tip.map_or(run.height, |tip| tip.height);
        let blocks: f64 = arm.runs.iter().map(|run| (end(run) - run.height_first) as f64).sum();
        (blocks > 0.0 && arm.runs.iter().all(|run| run.accesses.is_some())).then(|| pages / blocks)
    };
    let (first, second) = (total(a)?, total(b)?);
    let a_less = first < second;
    let (less, more) = if a_less { (a, b) } else { (b, a) };
    let (fewest, most) = if a_less { (first, second) } else { (second, first) };
    if most < FEWER * fewest.max(f64::MIN_POSITIVE) {
        return Some(conclusion(
            About::Cause,
            format!(
                "both read nearly the same number of pages per block ({} and {}): the cache does not \
                 explain a difference",
                short(first),
                short(second)
            ),
        ));
    }
    let fewer = |place: &usize| {
        let both = at(&less.misses_per_block, *place).zip(at(&more.misses_per_block, *place));
        both.is_some_and(|(less, more)| FEWER * less < more)
    };
    let bins: Vec<usize> = (0..faster.len()).filter(fewer).collect();
    let agree = bins.iter().filter(|place| faster[**place] == Some(a_less)).count();
    let times =
        if fewest > 0.0 { format!("{} times ", short(most / fewest)) } else { String::new() };
    let against: Vec<String> = bins
        .iter()
        .filter(|place| faster[**place] == Some(!a_less))
        .map(|place| count(*place as u64 * bin))
        .collect();
    let mut text = format!(
        "{} reads {times}fewer pages per block than {} ({} compared with {})",
        less.name,
        more.name,
        short(fewest),
        short(most)
    );
    if !bins.is_empty() {
        let all = bins.len();
        text += &format!(", and is faster in {agree} of the {all} bins where it does");
    }
    if !against.is_empty() && agree > 0 {
        text += &format!(
            "; in those that begin at {} it is slower nevertheless: reading is not the limit there",
            against.join(", ")
        );
    } else if !against.is_empty() {
        text += ": reading less does not make it faster here";
    }
    Some(conclusion(About::Cause, text))
}
