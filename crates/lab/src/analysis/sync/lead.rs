//! Compares two runs. Finds which run leads at a time, by how many blocks and by how many seconds.

use lab_model::results::study::{Align, BlockLead, Cross, TimeLead, TipLead};

use super::SyncRun;
use crate::analysis::statistics::median;

/// A run becomes the leader if it is ahead for this many samples in a row. Nearly equal curves may
/// cross at every sample.
pub const HOLD: usize = 3;
/// Maximum number of reported changes of the leader.
pub const CROSSES_MAX: usize = 50;

/// Returns the lead at the chain tip from the times of all runs of both arms. None if a run did not
/// reach the tip.
pub fn tip_lead(first: &[Option<f64>], other: &[Option<f64>]) -> Option<TipLead> {
    let middle =
        |times: &[Option<f64>]| median(&times.iter().copied().collect::<Option<Vec<f64>>>()?);
    let (first, other) = (middle(first)?, middle(other)?);
    Some(TipLead { first, other, seconds: other - first })
}

/// Returns the offset, in seconds, from a time of the first run to the corresponding time of the
/// second.
fn shift(a: &SyncRun, b: &SyncRun, align: Align) -> f64 {
    match align {
        Align::Clock => 0.0,
        Align::Start => b.origin - a.origin,
    }
}

/// Returns the lead in blocks at every sample of the first run. The height of the second run is
/// interpolated. Samples outside of the second run are left out.
pub fn over_time(a: &SyncRun, b: &SyncRun, align: Align) -> Vec<BlockLead> {
    let (shift, start) = (shift(a, b, align), a.origin);
    let one = |sample: &super::Sample| {
        let other = b.height_at(sample.at + shift)?;
        let blocks = sample.height as f64 - other;
        Some(BlockLead { elapsed: sample.at - start, at: sample.at, blocks })
    };
    a.samples.iter().filter_map(one).collect()
}

/// Returns the second run's lead in seconds at heights that both runs reached. The times are
/// interpolated.
pub fn over_height(a: &SyncRun, b: &SyncRun, align: Align, heights: &[f64]) -> Vec<TimeLead> {
    let shift = shift(a, b, align);
    let one = |height: &f64| {
        let (first, second) = (a.instant(*height)?, b.instant(*height)?);
        Some(TimeLead { height: *height, seconds: first - (second - shift) })
    };
    heights.iter().filter_map(one).collect()
}

/// Returns the largest lead of the first run and of the second run; none for a run that never
/// leads.
pub fn largest(leads: &[BlockLead]) -> (Option<BlockLead>, Option<BlockLead>) {
    let most = leads.iter().copied().max_by(|x, y| x.blocks.total_cmp(&y.blocks));
    let least = leads.iter().copied().min_by(|x, y| x.blocks.total_cmp(&y.blocks));
    (most.filter(|lead| lead.blocks > 0.0), least.filter(|lead| lead.blocks < 0.0))
}

/// Returns the largest lead in time of the first run and of the second run; none for a run that
/// never leads.
pub fn largest_times(leads: &[TimeLead]) -> (Option<TimeLead>, Option<TimeLead>) {
    let most = leads.iter().copied().max_by(|x, y| x.seconds.total_cmp(&y.seconds));
    let least = leads.iter().copied().min_by(|x, y| x.seconds.total_cmp(&y.seconds));
    (least.filter(|lead| lead.seconds < 0.0), most.filter(|lead| lead.seconds > 0.0))
}

/// Returns the changes of the leader. A run becomes the leader if it is ahead for [`HOLD`] samples
/// in a row. The change happens at the first of these samples. The first leader is not a change.
pub fn crosses(a: &SyncRun, leads: &[BlockLead]) -> Vec<Cross> {
    let mut found = Vec::new();
    let (mut leader, mut run): (Option<bool>, Vec<&BlockLead>) = (None, Vec::new());
    for lead in leads {
        if lead.blocks == 0.0 {
            run.clear();
            continue;
        }
        let first_ahead = lead.blocks > 0.0;
        if run.first().is_some_and(|before| (before.blocks > 0.0) != first_ahead) {
            run.clear();
        }
        if run.len() < HOLD {
            run.push(lead);
        }
        if run.len() == HOLD && leader != Some(first_ahead) {
            if leader.is_some() && found.len() < CROSSES_MAX {
                found.push(cross(a, run[0], first_ahead));
            }
            leader = Some(first_ahead);
        }
    }
    found
}

fn cross(a: &SyncRun, lead: &BlockLead, to_first: bool) -> Cross {
    let place = a.samples.partition_point(|sample| sample.at < lead.at);
    let height = a.samples.get(place).map_or(0, |sample| sample.height);
    Cross { elapsed: lead.elapsed, at: lead.at, height, to_first }
}
