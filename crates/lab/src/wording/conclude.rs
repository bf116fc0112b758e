//! Writes the conclusions of a sync study.
//!
//! A sync study compares how fast variants of a node sync a chain. The first variant is the
//! reference. A [`VariantComparison`] compares one other variant with the first. It has pairs of
//! runs, one run of each variant, and the times that the variants took to certain block heights.
//! The verdict is about the main height, which is the highest of these heights that every run
//! reached.
//!
//! A cross is a change of the leader: the height of one run overtakes that of the other. A cross of
//! rates is a height at which the faster variant changes. The rates are measured in bins, which are
//! ranges of heights of equal width. The floor of a comparison is the smallest change that matters.
//! The tip is the newest block of the chain.
//!
//! Each sentence contains its evidence, or states that nothing can be concluded. A difference
//! between single runs of two variants is never reported as an effect. `conclude/cause.rs` has the
//! conclusions from cache counters, and `conclude/limits.rs` those about the tip and stalls.

mod cause;
mod limits;

use lab_model::results::study::{
    About, Conclusion, Cross, StudyResult, TimeComparison, TimeRow, VariantComparison, VariantRow,
};
use lab_model::results::{Basis, ComparisonVerdict};

use crate::analysis::sync::judge::main_row;
use crate::wording::number::{clock, count, percent, plural, short, span};

/// Creates a conclusion that names no variant (`variant`) and has no verdict (`word`).
fn conclusion(about: About, text: String) -> Conclusion {
    Conclusion { about, variant: None, word: None, text }
}

/// Returns all conclusions of a study. The conclusions about each variant except the first one
/// begin with its verdict. The conclusions about the tip and stalls come last.
pub(crate) fn conclusions(result: &StudyResult) -> Vec<Conclusion> {
    let mut conclusions: Vec<Conclusion> = Vec::new();
    let has_several_pairs = result.against.len() > 1;
    let Some(first) = result.variants.first() else { return conclusions };
    for (against, other) in result.against.iter().zip(result.variants.iter().skip(1)) {
        conclusions.push(describe_verdict(result, against));
        conclusions.extend(compare_repeats(result, against));
        let mut variant_conclusions = Vec::new();
        variant_conclusions.extend(describe_heights(against));
        variant_conclusions.extend(describe_rates(result, against));
        let first_faster = &against.faster;
        let other_faster: Vec<Option<bool>> =
            first_faster.iter().map(|is_first| is_first.map(|is_first| !is_first)).collect();
        variant_conclusions.extend(cause::explain_slow_start(
            result.bin,
            first,
            other,
            first_faster,
        ));
        variant_conclusions.extend(cause::explain_slow_start(
            result.bin,
            other,
            first,
            &other_faster,
        ));
        variant_conclusions.extend(cause::compare_work(first, other));
        variant_conclusions.extend(cause::compare_reads(result.bin, first, other, first_faster));
        variant_conclusions.extend(limits::tip_lead(against));
        conclusions.extend(variant_conclusions.into_iter().map(|conclusion| {
            let variant = has_several_pairs.then(|| other.name.clone());
            Conclusion { variant, ..conclusion }
        }));
    }
    if result.against.is_empty() {
        conclusions.extend(describe_progress(first));
    }
    conclusions.extend(limits::tips(result));
    conclusions.extend(limits::stalls(result));
    conclusions
}

/// Describes the progress of each run, for a study with only one variant.
fn describe_progress(variant: &VariantRow) -> impl Iterator<Item = Conclusion> {
    variant.runs.iter().map(|run| {
        let progress = format!("{} to {}", count(run.height_first), count(run.height));
        let text = format!("{} syncs blocks {progress} in {}", variant.name, span(run.elapsed));
        conclusion(About::Verdict, format!("{text}; it is compared with no other variant"))
    })
}

/// Returns the verdict on whether a variant syncs faster than the first variant.
fn describe_verdict(result: &StudyResult, against: &VariantComparison) -> Conclusion {
    let (first, other) = (&against.first, &against.other);
    let (verdict, text) = match main_row(result, against) {
        None => (
            ComparisonVerdict::CannotTell,
            format!("cannot tell: no height was reached by every run of {first} and {other}"),
        ),
        Some(row) if row.above_tip => (
            ComparisonVerdict::CannotTell,
            format!(
                "cannot tell whether {other} syncs faster than {first}: the target {} was above the \
                 chain tip when it could have been reached, so its time depends on the block time",
                count(row.height)
            ),
        ),
        Some(TimeRow { height, comparison: None, .. }) => (
            ComparisonVerdict::CannotTell,
            format!("cannot tell: {first} and {other} did not both reach {}", count(*height)),
        ),
        Some(TimeRow { height, comparison: Some(comparison), .. }) => {
            (comparison.verdict, describe_comparison(*height, comparison, (first, other)))
        }
    };
    Conclusion { about: About::Verdict, variant: Some(other.clone()), word: Some(verdict), text }
}

/// Describes the verdict on the times to the main height. In `comparison`, `a` is the first variant
/// and `b` the other variant.
fn describe_comparison(
    height: u64,
    comparison: &TimeComparison,
    (first, other): (&str, &str),
) -> String {
    let difference = comparison.b - comparison.a;
    let direction = if difference < 0.0 { "earlier" } else { "later" };
    let difference_text =
        format!("{} {direction} ({})", span(difference.abs()), change(comparison.change));
    let height = count(height);
    // The separator is part of the interval's text, so it disappears if there is no interval.
    let interval = comparison.interval.map_or_else(String::new, |(low, high)| {
        format!(
            "; 95 % interval {} to {}, {}",
            change(low),
            change(high),
            describe_basis(comparison.basis, comparison)
        )
    });
    match comparison.verdict {
        ComparisonVerdict::Better => {
            format!(
                "{other} syncs faster than {first}: it reaches {height} {difference_text}{interval}"
            )
        }
        ComparisonVerdict::Worse => {
            format!(
                "{other} syncs slower than {first}: it reaches {height} {difference_text}{interval}"
            )
        }
        ComparisonVerdict::Same => format!(
            "{other} and {first} are equally fast: any difference at {height} is below \
             {}{interval}",
            percent(comparison.floor)
        ),
        ComparisonVerdict::Negligible => {
            let adverb = if difference < 0.0 { "faster" } else { "slower" };
            format!(
                "{other} syncs {adverb} than {first}, but the difference is negligible: it reaches \
                 {height} {difference_text}{interval}; only changes of {} or more matter",
                percent(comparison.floor)
            )
        }
        ComparisonVerdict::CannotTell if comparison.a_count.min(comparison.b_count) < 2 => {
            let runs = match (comparison.a_count, comparison.b_count) {
                (1, 1) => "one run of each variant gives",
                _ => "a single run of a variant gives",
            };
            format!(
                "cannot tell whether {other} syncs faster than {first}: {runs} no effect size, because \
                 the spread between equal runs is unknown; in these runs {other} reached {height} {difference_text}"
            )
        }
        ComparisonVerdict::CannotTell => format!(
            "cannot tell whether {other} syncs faster than {first}: its median time to {height} is \
             {difference_text}{interval}; only changes of {} or more matter",
            percent(comparison.floor)
        ),
    }
}

/// Formats the number of runs on which a comparison is based. Paired runs are counted as pairs.
fn describe_basis(basis: Basis, comparison: &TimeComparison) -> String {
    match basis {
        Basis::PairedRuns => plural(comparison.pairs.len() as u64, "pair"),
        _ => format!("{} and {} runs", comparison.a_count, comparison.b_count),
    }
}

/// Formats a relative change: `−16.0 %`, `+3.2 %`.
pub(crate) fn change(change: f64) -> String {
    let sign = if change < 0.0 { "−" } else { "+" };
    format!("{sign}{:.1} %", change.abs() * 100.0)
}

/// Compares the spread between repeats with the difference between variants. Repeats are the runs
/// of one variant. The spread is the time between its fastest and its slowest run. `None` if no
/// variant has repeats, or if the times to the main height are not compared.
fn compare_repeats(result: &StudyResult, against: &VariantComparison) -> Option<Conclusion> {
    let row = main_row(result, against).filter(|row| !row.above_tip)?;
    let comparison = row.comparison.as_ref()?;
    let mut parts = Vec::new();
    for (name, spread, runs) in [
        (&against.first, comparison.a_spread, comparison.a_count),
        (&against.other, comparison.b_spread, comparison.b_count),
    ] {
        if let Some(spread) = spread {
            parts.push(format!("{runs} runs of {name} differ by {}", span(spread)));
        }
    }
    let difference_text = span((comparison.b - comparison.a).abs());
    let text = format!(
        "at height {}, {}; the medians of both variants differ by {difference_text}",
        count(row.height),
        parts.join(" and ")
    );
    (!parts.is_empty()).then(|| Conclusion {
        variant: Some(against.other.clone()),
        ..conclusion(About::Repeats, text)
    })
}

/// Names the variant that leads in the first pair of runs, and the heights at which the lead
/// changes. If the lead never changes in that pair, names the variant that is never behind in any
/// pair. If this is true of both variants or of neither, returns `None`.
fn describe_heights(against: &VariantComparison) -> Option<Conclusion> {
    let pairs = &against.pairs;
    let (first, other) = (&against.first, &against.other);
    let crossed_pairs = pairs.iter().filter(|pair| !pair.crosses.is_empty()).count();
    let first_pair = pairs.first()?;
    let name = |is_first: bool| if is_first { first } else { other };
    let describe =
        |cross: &Cross| format!("{} (height {})", clock(cross.elapsed), count(cross.height));
    let mut text = match first_pair.crosses.as_slice() {
        [] => {
            // `blocks.0` is the largest lead of the first variant. `blocks.1` is the largest lead
            // of the other variant, as a negative number. A lead below one block does not count.
            let first_is_never_behind =
                pairs.iter().all(|pair| pair.blocks.1.is_none_or(|lead| lead.blocks > -1.0));
            let other_is_never_behind =
                pairs.iter().all(|pair| pair.blocks.0.is_none_or(|lead| lead.blocks < 1.0));
            match (first_is_never_behind, other_is_never_behind) {
                (true, false) => format!("{first} is never behind {other}"),
                (false, true) => format!("{other} is never behind {first}"),
                _ => return None,
            }
        }
        [only] => format!(
            "{} leads until {}, then {} leads",
            name(!only.to_first),
            describe(only),
            name(only.to_first)
        ),
        [begin, .., last] => format!(
            "the lead changes {} times, first at {} and last at {}; after that {} leads",
            first_pair.crosses.len(),
            describe(begin),
            describe(last),
            name(last.to_first)
        ),
    };
    if pairs.len() > 1 {
        text += &format!(
            " ({}; heights cross in {crossed_pairs} of {} pairs)",
            first_pair.first,
            pairs.len()
        );
    }
    Some(conclusion(About::Heights, text))
}

/// Names the variant that syncs faster in the end, and the height from which on it is faster. If it
/// takes the lead only at a greater height, the text has the number of blocks between both heights.
/// If the rates never cross, returns `None`, except if both variants have several runs that show no
/// difference in any bin.
fn describe_rates(result: &StudyResult, against: &VariantComparison) -> Option<Conclusion> {
    let (first, other) = (&against.first, &against.other);
    let crosses = &against.rate_crosses;
    let mut compared = result.variants.iter().filter(|row| [first, other].contains(&&row.name));
    let has_repeats = compared.all(|row| row.runs.len() >= 2);
    let Some(last_cross) = crosses.last() else {
        let shows_nothing = has_repeats && against.faster.iter().all(Option::is_none);
        let text = format!("in no bin do the runs show that {first} or {other} is faster");
        return shows_nothing.then(|| conclusion(About::Rates, text));
    };
    // `to_first` is true if the first variant is faster from this height on.
    let first_ends_faster = last_cross.to_first;
    let name = if first_ends_faster { first } else { other };
    // From `first_cross` on, the variant that is faster in the end is faster, with exceptions. Each
    // exception is a range from a cross to the other variant until the next cross.
    let first_cross = crosses.iter().find(|cross| cross.to_first == first_ends_faster)?;
    let exceptions: Vec<String> = crosses
        .iter()
        .filter(|cross| cross.height > first_cross.height)
        .collect::<Vec<_>>()
        .chunks(2)
        .filter_map(|pair| match pair {
            [start, end] => Some(format!("from {} to {}", count(start.height), count(end.height))),
            _ => None,
        })
        .collect();
    let mut text = format!("{name} is faster from height {} on", count(first_cross.height));
    if !exceptions.is_empty() {
        text += &format!(", except {}", exceptions.join(", "));
    }
    if has_repeats && against.faster.contains(&None) {
        text += "; bins in which the runs show no difference do not count";
    }
    let height_crosses: Vec<f64> = against
        .pairs
        .iter()
        .filter_map(|pair| {
            pair.crosses.iter().rev().find(|cross| cross.to_first == first_ends_faster)
        })
        .map(|cross| cross.height as f64)
        .collect();
    let height = crate::analysis::statistics::median(&height_crosses);
    if let Some(height) = height.filter(|height| *height > (first_cross.height + result.bin) as f64)
    {
        text += &format!(
            "; it takes the lead {} blocks later",
            short(height - first_cross.height as f64)
        );
    }
    Some(conclusion(About::Rates, text))
}
