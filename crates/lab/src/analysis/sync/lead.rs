//! Compares two runs. Finds which run leads at a time, by how many blocks and by how many seconds.

use lab_model::results::study::{Align, BlockLead, Cross, TimeLead, TipLead};

use super::SyncRun;
use crate::analysis::statistics::median;

/// A run becomes the leader if it is ahead for this many samples in a row. Nearly equal curves may
/// cross at every sample.
pub const HOLD: usize = 3;
/// Maximum number of reported changes of the leader.
pub const CROSSES_MAX: usize = 50;

/// Returns the lead at the chain tip from the times of all runs of both variants. None if a run did
/// not reach the tip.
pub fn tip_lead(first: &[Option<f64>], other: &[Option<f64>]) -> Option<TipLead> {
    let median_if_complete =
        |times: &[Option<f64>]| median(&times.iter().copied().collect::<Option<Vec<f64>>>()?);
    let (first, other) = (median_if_complete(first)?, median_if_complete(other)?);
    Some(TipLead { first, other, seconds: other - first })
}

/// Returns the offset, in seconds, from a time of the first run to the corresponding time of the
/// second.
fn clock_offset(a: &SyncRun, b: &SyncRun, align: Align) -> f64 {
    match align {
        Align::Clock => 0.0,
        Align::Start => b.origin - a.origin,
    }
}

/// Returns the lead in blocks at every sample of the first run. The height of the second run is
/// interpolated. Samples outside of the second run are left out.
pub fn over_time(a: &SyncRun, b: &SyncRun, align: Align) -> Vec<BlockLead> {
    let (shift, start) = (clock_offset(a, b, align), a.origin);
    let lead_at = |sample: &super::Sample| {
        let other = b.height_at(sample.at + shift)?;
        let blocks = sample.height as f64 - other;
        Some(BlockLead { elapsed: sample.at - start, at: sample.at, blocks })
    };
    a.samples.iter().filter_map(lead_at).collect()
}

/// Returns the second run's lead in seconds at heights that both runs reached. The times are
/// interpolated.
pub fn over_height(a: &SyncRun, b: &SyncRun, align: Align, heights: &[f64]) -> Vec<TimeLead> {
    let shift = clock_offset(a, b, align);
    let lead_at = |height: &f64| {
        let (first, second) = (a.instant(*height)?, b.instant(*height)?);
        Some(TimeLead { height: *height, seconds: first - (second - shift) })
    };
    heights.iter().filter_map(lead_at).collect()
}

/// Returns the largest lead of the first run and of the second run; none for a run that never
/// leads.
pub fn largest(leads: &[BlockLead]) -> (Option<BlockLead>, Option<BlockLead>) {
    let first_lead = leads.iter().copied().max_by(|x, y| x.blocks.total_cmp(&y.blocks));
    let second_lead = leads.iter().copied().min_by(|x, y| x.blocks.total_cmp(&y.blocks));
    (first_lead.filter(|lead| lead.blocks > 0.0), second_lead.filter(|lead| lead.blocks < 0.0))
}

/// Returns the largest lead in time of the first run and of the second run; none for a run that
/// never leads.
pub fn largest_times(leads: &[TimeLead]) -> (Option<TimeLead>, Option<TimeLead>) {
    let second_lead = leads.iter().copied().max_by(|x, y| x.seconds.total_cmp(&y.seconds));
    let first_lead = leads.iter().copied().min_by(|x, y| x.seconds.total_cmp(&y.seconds));
    (first_lead.filter(|lead| lead.seconds < 0.0), second_lead.filter(|lead| lead.seconds > 0.0))
}

/// Returns the changes of the leader. A run becomes the leader if it is ahead for [`HOLD`] samples
/// in a row. The change happens at the first of these samples. The first leader is not a change.
pub fn crosses(a: &SyncRun, leads: &[BlockLead]) -> Vec<Cross> {
    let mut crosses = Vec::new();
    let (mut leader, mut run): (Option<bool>, Vec<&BlockLead>) = (None, Vec::new());
    for lead in leads {
        if lead.blocks == 0.0 {
            run.clear();
            continue;
        }
        let first_ahead = lead.blocks > 0.0;
        if run.first().is_some_and(|first_of_run| (first_of_run.blocks > 0.0) != first_ahead) {
            run.clear();
        }
        if run.len() < HOLD {
            run.push(lead);
        }
        if run.len() == HOLD && leader != Some(first_ahead) {
            if leader.is_some() && crosses.len() < CROSSES_MAX {
                crosses.push(cross(a, run[0], first_ahead));
            }
            leader = Some(first_ahead);
        }
    }
    crosses
}

fn cross(a: &SyncRun, lead: &BlockLead, to_first: bool) -> Cross {
    let index = a.samples.partition_point(|sample| sample.at < lead.at);
    let height = a.samples.get(index).map_or(0, |sample| sample.height);
    Cross { elapsed: lead.elapsed, at: lead.at, height, to_first }
}
