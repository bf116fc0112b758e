//! Compares two sync runs, in which nodes download their chain: finds which run leads, by how many
//! blocks and by how many seconds.
//!
//! A lead in blocks is positive if the first run is ahead. A lead in seconds has the opposite sign:
//! it is positive if the second run reached the height earlier. The lead at the chain tip
//! ([`tip_lead`]) is an exception: it is positive if the first variant was earlier.

use lab_model::results::study::{Align, BlockLead, Cross, TimeLead, TipLead};

use super::SyncRun;
use crate::analysis::statistics::median;

/// A run becomes the leader if it is ahead for this many samples in a row. Nearly equal curves may
/// cross at every sample.
pub const LEAD_CHANGE_SAMPLES: usize = 3;
/// Maximum number of reported changes of the leader.
pub const LEAD_CHANGES_MAX: usize = 50;

/// Returns the lead at the chain tip: the difference of both variants' median times to the tip. The
/// arguments have a time for each run of a variant. `None` if a run did not reach the tip, or if a
/// variant has no run. The seconds are positive if the first variant was earlier.
pub fn tip_lead(first: &[Option<f64>], second: &[Option<f64>]) -> Option<TipLead> {
    let median_if_complete =
        |times: &[Option<f64>]| median(&times.iter().copied().collect::<Option<Vec<f64>>>()?);
    let (first, second) = (median_if_complete(first)?, median_if_complete(second)?);
    Some(TipLead { first, other: second, seconds: second - first })
}

/// Returns the number of seconds to add to a time of the first run to get the corresponding time of
/// the second run.
fn clock_offset(first: &SyncRun, second: &SyncRun, align: Align) -> f64 {
    match align {
        Align::Clock => 0.0,
        Align::Start => second.origin - first.origin,
    }
}

/// Returns the lead in blocks at every sample of the first run: positive if the first run is ahead.
/// The height of the second run is interpolated. Samples outside of the second run are left out.
pub fn block_leads(first: &SyncRun, second: &SyncRun, align: Align) -> Vec<BlockLead> {
    let (offset, start) = (clock_offset(first, second, align), first.origin);
    let lead_at = |sample: &super::Sample| {
        let second_height = second.height_at(sample.at + offset)?;
        let blocks = sample.height as f64 - second_height;
        Some(BlockLead { elapsed: sample.at - start, at: sample.at, blocks })
    };
    first.samples.iter().filter_map(lead_at).collect()
}

/// Returns the lead in seconds at heights that both runs reached: positive if the second run
/// reached the height earlier. The times are interpolated.
pub fn time_leads(
    first: &SyncRun,
    second: &SyncRun,
    align: Align,
    heights: &[f64],
) -> Vec<TimeLead> {
    let offset = clock_offset(first, second, align);
    let lead_at = |height: &f64| {
        let (first_time, second_time) =
            (first.instant_of_height(*height)?, second.instant_of_height(*height)?);
        Some(TimeLead { height: *height, seconds: first_time - (second_time - offset) })
    };
    heights.iter().filter_map(lead_at).collect()
}

/// Returns the largest lead in blocks of the first run and of the second run. `None` for a run that
/// never leads.
pub fn largest_block_leads(leads: &[BlockLead]) -> (Option<BlockLead>, Option<BlockLead>) {
    let first_lead = leads.iter().copied().max_by(|x, y| x.blocks.total_cmp(&y.blocks));
    let second_lead = leads.iter().copied().min_by(|x, y| x.blocks.total_cmp(&y.blocks));
    (first_lead.filter(|lead| lead.blocks > 0.0), second_lead.filter(|lead| lead.blocks < 0.0))
}

/// Returns the largest lead in seconds of the first run and of the second run. `None` for a run
/// that never leads.
pub fn largest_time_leads(leads: &[TimeLead]) -> (Option<TimeLead>, Option<TimeLead>) {
    let first_lead = leads.iter().copied().min_by(|x, y| x.seconds.total_cmp(&y.seconds));
    let second_lead = leads.iter().copied().max_by(|x, y| x.seconds.total_cmp(&y.seconds));
    (first_lead.filter(|lead| lead.seconds < 0.0), second_lead.filter(|lead| lead.seconds > 0.0))
}

/// Returns the changes of the leader. A run becomes the leader if it is ahead for
/// [`LEAD_CHANGE_SAMPLES`] samples in a row. The change happens at the first of these samples. The
/// choice of the first leader is not a change.
pub fn find_lead_changes(first: &SyncRun, leads: &[BlockLead]) -> Vec<Cross> {
    let mut changes = Vec::new();
    // `streak` has the consecutive samples, up to `LEAD_CHANGE_SAMPLES`, at which the same run
    // was ahead. `is_first_leader` is true if the first run is the leader, and `None` before there
    // is a leader.
    let (mut is_first_leader, mut streak): (Option<bool>, Vec<&BlockLead>) = (None, Vec::new());
    for lead in leads {
        if lead.blocks == 0.0 {
            streak.clear();
            continue;
        }
        let is_first_ahead = lead.blocks > 0.0;
        if streak.first().is_some_and(|start| (start.blocks > 0.0) != is_first_ahead) {
            streak.clear();
        }
        if streak.len() < LEAD_CHANGE_SAMPLES {
            streak.push(lead);
        }
        if streak.len() == LEAD_CHANGE_SAMPLES && is_first_leader != Some(is_first_ahead) {
            if is_first_leader.is_some() && changes.len() < LEAD_CHANGES_MAX {
                changes.push(lead_change(first, streak[0], is_first_ahead));
            }
            is_first_leader = Some(is_first_ahead);
        }
    }
    changes
}

/// Returns the change of the leader at a lead. `to_first` is true if the first run becomes the
/// leader.
fn lead_change(first: &SyncRun, lead: &BlockLead, to_first: bool) -> Cross {
    let index = first.samples.partition_point(|sample| sample.at < lead.at);
    let height = first.samples.get(index).map_or(0, |sample| sample.height);
    Cross { elapsed: lead.elapsed, at: lead.at, height, to_first }
}
