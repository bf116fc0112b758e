//! What happens to the nodes in the course of a demo, and when. Plain arithmetic; `nodes.rs` lets
//! it happen.

use std::time::Duration;

use simnode::schedule::{Reorg, WorldOptions};

#[cfg(test)]
mod tests;

/// Which node the trouble strikes; the others stay well.
pub(super) const TROUBLED: usize = 2;
/// Slowest and fastest pace of the chain; a run shows about [`BLOCKS`] blocks in between.
const BLOCK_TIME_MAX: Duration = Duration::from_secs(1);
const BLOCK_TIME_MIN: Duration = Duration::from_millis(250);
/// Blocks that a run shows unless the pace's bounds say otherwise.
const BLOCKS: u32 = 20;
/// Transactions of a block: small, so that one core does for chain, nodes and judge.
const TRANSACTIONS: (u64, u64) = (4, 12);

/// What becomes of the troubled node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It gets no new blocks, and so falls behind by one after the other.
    Freeze,
    /// It is at the head again.
    CatchUp,
    /// It takes calls and never answers.
    Stall,
    /// Its connections are reset, new ones refused.
    Die,
    /// It is back and well.
    Recover,
}

/// Something that happens at a time after the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) at: Duration,
    pub(super) trouble: Trouble,
}

/// The troubles of a run in order. The shares leave time for the default backoff (1 s, doubling) to
/// take the node back before a run of 20 s ends.
pub(super) fn steps(duration: Duration) -> [Step; 5] {
    let step = |share: f64, trouble| Step { at: duration.mul_f64(share), trouble };
    [
        step(0.06, Trouble::Freeze),
        step(0.26, Trouble::CatchUp),
        step(0.34, Trouble::Stall),
        step(0.50, Trouble::Die),
        step(0.65, Trouble::Recover),
    ]
}

/// The chain of a run: two reorgs, one while the node falls behind and one near the end.
pub(super) fn world(seed: u64, duration: Duration) -> WorldOptions {
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

impl Trouble {
    /// What a reader is told when it begins.
    pub(super) fn told(self, node: &str) -> String {
        match self {
            Trouble::Freeze => format!("{node} gets no new blocks any more"),
            Trouble::CatchUp => format!("{node} has caught up"),
            Trouble::Stall => format!("{node} stalls: takes calls and never answers"),
            Trouble::Die => format!("{node} dies: connections are reset and refused"),
            Trouble::Recover => format!("{node} is up again"),
        }
    }
}
