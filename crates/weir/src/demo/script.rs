//! The schedule of faults and reorgs of a demo. `nodes.rs` injects the faults.

use std::time::Duration;

use simnode::schedule::{Reorg, WorldOptions};

#[cfg(test)]
mod tests;

/// Index of the node that gets all faults.
pub(super) const FAULTY_NODE: usize = 2;
/// Maximum block time of the chain.
const BLOCK_TIME_MAX: Duration = Duration::from_secs(1);
/// Minimum block time of the chain.
const BLOCK_TIME_MIN: Duration = Duration::from_millis(250);
/// Number of blocks in a run, unless the block time reaches a bound.
const BLOCKS: u32 = 20;
/// Minimum and maximum number of transactions per block. They are small, so that one core can run
/// the chain, the nodes and the judge.
const TRANSACTIONS: (u64, u64) = (4, 12);

/// A fault of the faulty node, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeEvent {
    /// The node gets no new blocks, so its lag grows.
    Freeze,
    /// The node gets new blocks again and is at the head.
    CatchUp,
    /// The node accepts calls and never responds.
    Stall,
    /// The node resets its connections and refuses new ones.
    Die,
    /// The node works again.
    Recover,
}

/// An event at a time after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) event: NodeEvent,
}

/// Returns the events of a run in order. With the gateway's default backoff (1 s, doubling), the
/// node is readmitted before a run of 20 s ends.
pub(super) fn steps(duration: Duration) -> [Step; 5] {
    // `share` is the part of the run that has passed.
    let step = |share: f64, event| Step { at: duration.mul_f64(share), event };
    [
        step(0.06, NodeEvent::Freeze),
        step(0.26, NodeEvent::CatchUp),
        step(0.34, NodeEvent::Stall),
        step(0.50, NodeEvent::Die),
        step(0.65, NodeEvent::Recover),
    ]
}

/// Returns the options of a run's chain, with one reorg while the node lags and one near the end.
pub(super) fn world_options(seed: u64, duration: Duration) -> WorldOptions {
    let block_time = (duration / BLOCKS).clamp(BLOCK_TIME_MIN, BLOCK_TIME_MAX);
    let start = WorldOptions::default().height_start;
    let height = |share: f64| start + (duration.div_duration_f64(block_time) * share) as u64;
    WorldOptions {
        seed,
        block_time,
        transactions_min: TRANSACTIONS.0,
        transactions_max: TRANSACTIONS.1,
        reorgs: vec![
            Reorg { at_height: height(0.20), depth: 2 },
            Reorg { at_height: height(0.80), depth: 3 },
        ],
        ..WorldOptions::default()
    }
}

impl NodeEvent {
    /// Describes the event for the timeline.
    pub(super) fn describe(self, node: &str) -> String {
        match self {
            NodeEvent::Freeze => format!("{node} gets no new blocks"),
            NodeEvent::CatchUp => format!("{node} has caught up"),
            NodeEvent::Stall => format!("{node} stalls: accepts calls and never responds"),
            NodeEvent::Die => format!("{node} dies: connections are reset and refused"),
            NodeEvent::Recover => format!("{node} is up again"),
        }
    }
}
