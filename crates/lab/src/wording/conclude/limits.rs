//! Limits of the data: the chain tip, runs that stop below it, and stalls.

use lab_model::results::study::{About, Against, Conclusion, RunRow, StudyResult};

use super::conclusion;
use crate::wording::number::{clock, count, join_first, plural, span};

/// Largest number of runs that a sentence names.
const NAMED_MAX: usize = 4;

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

/// Names the variant that reached the tip first, and its lead.
pub(super) fn tip_lead(against: &Against) -> Option<Conclusion> {
    let lead = against.tip?;
    let (first, other) = (&against.first, &against.other);
    let text = match lead.seconds {
        0.0 => format!("{first} and {other} reached the tip after {}", clock(lead.first)),
        seconds => {
            let first_ahead = (first, lead.first, other, lead.other);
            let (early, sooner, late, later) = match seconds > 0.0 {
                true => first_ahead,
                false => (other, lead.other, first, lead.first),
            };
            format!(
                "{early} reached the tip {} before {late}: after {} and {}",
                span(seconds.abs()),
                clock(sooner),
                clock(later)
            )
        }
    };
    Some(conclusion(About::Tip, text))
}

/// Lists the runs that reached the tip, the runs that stopped below it, and the target heights
/// above it.
pub(super) fn tips(result: &StudyResult) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    let arrived: Vec<String> = runs_with_names(result)
        .filter_map(|(name, run)| {
            let tip = run.tip?;
            Some(format!("{name} at {} after {}", count(tip.height), clock(tip.elapsed)))
        })
        .collect();
    if !arrived.is_empty() {
        let text = format!(
            "at the tip a run only waits for new blocks, so its analysis ends there: {}",
            join_first(&arrived, NAMED_MAX, "; ")
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    let above: Vec<u64> = result
        .heights
        .iter()
        .copied()
        .filter(|height| {
            let mut times =
                result.variants.iter().flat_map(|variant| &variant.runs).flat_map(|run| &run.times);
            times.any(|time| time.height == *height && time.above_tip)
        })
        .collect();
    if !above.is_empty() {
        let heights: Vec<String> = above.into_iter().map(count).collect();
        let text = format!(
            "target above the tip: {} did not exist yet when a run could have reached it; times to it \
             depend on the block time",
            heights.join(", ")
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    // An announcement in one log holds for all runs, because they sync the same chain.
    let announced = runs_with_names(result).filter_map(|(_, run)| run.announced).max();
    let halted: Vec<String> = runs_with_names(result)
        .filter(|(_, run)| run.tip.is_none())
        .filter_map(|(name, run)| {
            let below = announced?.checked_sub(run.height).filter(|below| *below > 0)?;
            Some(format!("{name} ends at {}, {} blocks below it", count(run.height), count(below)))
        })
        .collect();
    if let Some(announced) = announced.filter(|_| !halted.is_empty()) {
        let text = format!(
            "peers announced {} at most: {}",
            count(announced),
            join_first(&halted, NAMED_MAX, "; ")
        );
        conclusions.push(conclusion(About::Tip, text));
    }
    conclusions
}

/// Describes the stalls of each run.
pub(super) fn stalls(result: &StudyResult) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    for (name, run) in runs_with_names(result) {
        let closed: Vec<_> = run.stalls.iter().filter(|stall| !stall.open).collect();
        let seconds: f64 = closed.iter().map(|stall| stall.seconds).sum();
        if let Some(longest) = closed.iter().max_by(|x, y| x.seconds.total_cmp(&y.seconds)) {
            let with_timeouts = closed.iter().filter(|stall| stall.timeouts > 0).count();
            let cause = match (with_timeouts, run.timeouts) {
                (0, 0) => "the log reports no block that a peer did not deliver".to_owned(),
                (0, _) => "none coincides with a block that a peer did not deliver".to_owned(),
                (with_timeouts, _) => format!(
                    "{with_timeouts} coincide with blocks that peers did not deliver: network events"
                ),
            };
            let taken = match result.stalls_subtracted {
                true => "subtracted from its times",
                false => "included in its times",
            };
            let text = format!(
                "{name} had {}, {} together, the longest of {} at {}; {cause}; they are {taken}",
                plural((closed.len() + run.stalls_more) as u64, "stall"),
                span(seconds),
                span(longest.seconds),
                count(longest.height),
            );
            conclusions.push(conclusion(About::Stalls, text));
        }
        if let Some(open) = run.stalls.iter().find(|stall| stall.open) {
            let text = format!(
                "{name} stalled at {} for the last {} of its data: it stopped, or was at the tip",
                count(open.height),
                span(open.seconds),
            );
            conclusions.push(conclusion(About::Stalls, text));
        }
    }
    conclusions
}
