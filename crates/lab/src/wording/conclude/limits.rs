//! Writes the conclusions about the limits of a study's data.
//!
//! The tip is the newest block of the chain. A run at the tip waits for the chain, so its speed no
//! longer depends on the variant. A stall is a long time in which a run adds no block.
//!
//! `clock` formats a time as `1:02:03`, and `span` as `1 h 2 min`.

use lab_model::results::study::{
    About, BlockTimeSource, Conclusion, RunRow, StudyResult, VariantComparison,
};

use super::conclusion;
use crate::wording::number::{clock, count, join_first, plural, span};

/// Maximum number of runs that a sentence names.
const NAMED_MAX: usize = 4;

/// Returns the runs of all variants, each with its name for sentences. The only run of a variant
/// has the variant's name.
fn runs_with_names(result: &StudyResult) -> impl Iterator<Item = (String, &RunRow)> {
    let runs = result
        .variants
        .iter()
        .flat_map(|variant| variant.runs.iter().map(move |run| (variant, run)));
    runs.map(|(variant, run)| match variant.runs.len() {
        1 => (variant.name.clone(), run),
        _ => (format!("{}, {}", variant.name, run.label), run),
    })
}

/// Names the variant that reached the tip first, and its lead. `comparison` compares a study's
/// first variant with another variant. `None` if a run of the two variants did not reach the tip.
///
/// In `lead`, `first` and `other` are the times of the two variants to the tip. `seconds` is
/// positive if the first variant was earlier.
pub(super) fn tip_lead(comparison: &VariantComparison) -> Option<Conclusion> {
    let lead = comparison.tip?;
    let (first, other) = (&comparison.first, &comparison.other);
    let text = match lead.seconds {
        0.0 => format!("{first} and {other} reached the tip after {}", clock(lead.first)),
        seconds => {
            let (leader, leader_time, follower, follower_time) = match seconds > 0.0 {
                true => (first, lead.first, other, lead.other),
                false => (other, lead.other, first, lead.first),
            };
            format!(
                "{leader} reached the tip {} before {follower}: after {} and {}",
                span(seconds.abs()),
                clock(leader_time),
                clock(follower_time)
            )
        }
    };
    Some(conclusion(About::Tip, text))
}

/// Describes the tip in up to three conclusions: the runs that reached the tip, the study's heights
/// above the tip, and the runs that stopped below it.
pub(super) fn tips(result: &StudyResult) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let runs_at_tip: Vec<String> = runs_with_names(result)
        .filter_map(|(name, run)| {
            let tip = run.tip?;
            Some(format!("{name} at {} after {}", count(tip.height), clock(tip.elapsed)))
        })
        .collect();
    if !runs_at_tip.is_empty() {
        let text = format!(
            "at the tip a run only waits for new blocks, so its analysis ends there: {}{}",
            join_first(&runs_at_tip, NAMED_MAX, "; "),
            describe_block_time(result),
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    conclusions.extend(runs_without_tip(result));
    let heights_above_tip: Vec<u64> = result
        .heights
        .iter()
        .copied()
        .filter(|height| {
            let mut times =
                result.variants.iter().flat_map(|variant| &variant.runs).flat_map(|run| &run.times);
            times.any(|time| time.height == *height && time.above_tip)
        })
        .collect();
    if !heights_above_tip.is_empty() {
        let heights: Vec<String> = heights_above_tip.into_iter().map(count).collect();
        let text = format!(
            "target above the tip: {} did not exist yet when a run could have reached it; times to it \
             depend on the block time",
            heights.join(", ")
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    // All runs sync the same chain. The highest block that peers announced to one run exists for
    // all.
    let announced = runs_with_names(result).filter_map(|(_, run)| run.announced).max();
    let runs_below: Vec<String> = runs_with_names(result)
        .filter(|(_, run)| run.tip.is_none())
        .filter_map(|(name, run)| {
            let below = announced?.checked_sub(run.height).filter(|below| *below > 0)?;
            Some(format!("{name} ends at {}, {} blocks below it", count(run.height), count(below)))
        })
        .collect();
    if let Some(announced) = announced.filter(|_| !runs_below.is_empty()) {
        let text = format!(
            "peers announced {} at most: {}",
            count(announced),
            join_first(&runs_below, NAMED_MAX, "; ")
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    conclusions
}

/// Names the runs that did not reach the tip.
fn runs_without_tip(result: &StudyResult) -> Option<Conclusion> {
    let without_tip: Vec<String> = runs_with_names(result)
        .filter(|(_, run)| run.tip.is_none())
        .map(|(name, run)| format!("{name} ends at {}", count(run.height)))
        .collect();
    let who = match without_tip.len() == runs_with_names(result).count() {
        true => "no run is seen to reach the tip",
        false => "not seen to reach the tip",
    };
    let text = format!("{who}: {}", join_first(&without_tip, NAMED_MAX, "; "));
    (!without_tip.is_empty()).then(|| conclusion(About::Tip, text))
}

/// Describes the block time by which the tip was found. Empty if the ages of blocks show the tip.
fn describe_block_time(result: &StudyResult) -> String {
    let seconds = result.block_time;
    let seconds = if seconds < 10.0 { format!("{seconds:.1}") } else { format!("{seconds:.0}") };
    match result.block_time_source {
        BlockTimeSource::Given => String::new(),
        BlockTimeSource::Measured => format!("; there the chain makes a block every {seconds} s"),
        BlockTimeSource::Assumed => {
            format!("; a block every {seconds} s is assumed (--block-time)")
        }
    }
}

/// Describes the stalls of each run: first the stalls that ended, then the open stall, which lasts
/// until the end of the data. `timeouts` counts log lines about blocks that a peer did not deliver
/// in time. `stalls_more` counts the stalls that the result does not list.
pub(super) fn stalls(result: &StudyResult) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    for (name, run) in runs_with_names(result) {
        let ended: Vec<_> = run.stalls.iter().filter(|stall| !stall.open).collect();
        let seconds: f64 = ended.iter().map(|stall| stall.seconds).sum();
        if let Some(longest) = ended.iter().max_by(|x, y| x.seconds.total_cmp(&y.seconds)) {
            let with_timeouts = ended.iter().filter(|stall| stall.timeouts > 0).count();
            let cause = match (with_timeouts, run.timeouts) {
                (0, 0) => "the log reports no late block of a peer".to_owned(),
                (0, _) => "none coincides with a late block of a peer".to_owned(),
                (with_timeouts, _) => {
                    format!("{with_timeouts} coincide with late blocks of peers: network events")
                }
            };
            let treatment = match result.stalls_subtracted {
                true => "subtracted from its times",
                false => "included in its times",
            };
            let text = format!(
                "{name} had {}, {} together, the longest of {} at height {}; {cause}; they are \
                 {treatment}",
                plural((ended.len() + run.stalls_more) as u64, "stall"),
                span(seconds),
                span(longest.seconds),
                count(longest.height),
            );
            conclusions.push(conclusion(About::Stalls, text));
        }
        if let Some(open) = run.stalls.iter().find(|stall| stall.open) {
            let text = format!(
                "{name} stalled at height {} for the last {} of its data: it stopped, or was at \
                 the tip",
                count(open.height),
                span(open.seconds),
            );
            conclusions.push(conclusion(About::Stalls, text));
        }
    }
    conclusions
}
