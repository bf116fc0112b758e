//! When which block exists: the options of a world and the arithmetic of its branches. No block
//! contents (see `block.rs`) and no clock (see `world.rs`, which turns instants into heights).
//!
//! A world's history is a sequence of views. View `n` is the chain with head number `n` on the
//! branch that is canonical while `n` is the head. A reorg at height `h` of depth `d` means: up to
//! head `h` the old branch is canonical; the next head, `h + 1`, stands on a new branch that forks
//! after block `h - d`, whose `d + 1` blocks all appear at that instant. So the head's number never
//! falls, every reorg's new branch is longer by one, and one number names a node's whole view.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The most branches of one world. A schedule that asks for more is refused, or cut if it repeats.
pub const BRANCHES_MAX: usize = 10_000;

/// What a world is made of. Everything in it is fixed for the life of the world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldOptions {
    /// The seed of every value of the chain.
    pub seed: u64,
    /// The number that `eth_chainId` and `net_version` name.
    pub chain_id: u64,
    /// The head's number at the world's start.
    pub height_start: u64,
    /// Time between blocks.
    #[serde(rename = "block_time_ms", with = "crate::millis")]
    pub block_time: Duration,
    /// The timestamp of block 0, in seconds since 1970.
    pub genesis_seconds: u64,
    /// How many blocks the finalized block stands behind the head.
    pub finality_depth: u64,
    /// Fewest transactions of a block.
    pub transactions_min: u64,
    /// Most transactions of a block, at most [`TRANSACTIONS_MAX`].
    pub transactions_max: u64,
    /// How many addresses logs tell of, the first of them far more often than the last, as on a
    /// chain that people use; 0 for the few accounts and contracts that the world has anyway.
    pub log_parties: u64,
    /// Reorgs at given heights, in rising order.
    pub reorgs: Vec<Reorg>,
    /// Reorgs that repeat for ever.
    pub reorg_every: Option<ReorgEvery>,
}

/// The most transactions that a block may be asked to hold; a block of mainnet holds under 2,000.
pub const TRANSACTIONS_MAX: u64 = 5_000;

/// The chain of a newcomer's demo: one block a second, about 8 transactions and 16 logs in each.
impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            // Not a registered chain, so that nobody's wallet takes it for one.
            chain_id: 424_242,
            height_start: 1_000,
            block_time: Duration::from_secs(1),
            genesis_seconds: 1_700_000_000,
            finality_depth: 64, // two epochs of Ethereum's beacon chain
            transactions_min: 4,
            transactions_max: 12,
            log_parties: 0,
            reorgs: Vec::new(),
            reorg_every: None,
        }
    }
}

impl WorldOptions {
    /// Blocks of about mainnet's size: 150 transactions and 300 logs.
    #[must_use]
    pub fn mainnet_like(self) -> Self {
        Self { transactions_min: 100, transactions_max: 200, ..self }
    }
}

/// One reorg: when `at_height` was the head, its last `depth` blocks are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorg {
    /// The last head of the old branch.
    pub at_height: u64,
    /// How many blocks are replaced.
    pub depth: u64,
}

/// A reorg after every `blocks` blocks from the start, of a depth drawn from 1 to `depth_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReorgEvery {
    /// Distance of the reorgs.
    pub blocks: u64,
    /// Largest depth.
    pub depth_max: u64,
}

/// A world that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsFault {
    /// Time would stand still.
    #[error("block time is 0, it must be at least 1 ms")]
    BlockTime,
    /// Too few or too many transactions.
    #[error(
        "transactions per block from {min} to {max}: the range must rise and end at {TRANSACTIONS_MAX} or below"
    )]
    Transactions {
        /// What was asked as fewest.
        min: u64,
        /// What was asked as most.
        max: u64,
    },
    /// A reorg that would undo a finalized block, or none at all.
    #[error(
        "reorg of depth {depth} at height {at_height}: depth must be from 1 to the finality depth {finality_depth} and below the height"
    )]
    Depth {
        /// The reorg's height.
        at_height: u64,
        /// Its depth.
        depth: u64,
        /// The world's finality depth.
        finality_depth: u64,
    },
    /// Reorgs that are not in order.
    #[error(
        "reorg at height {at_height}: heights must rise and no fork may lie below an earlier one"
    )]
    Order {
        /// The height of the one that breaks the order.
        at_height: u64,
    },
    /// Too many reorgs.
    #[error("{count} reorgs, at most {BRANCHES_MAX} are allowed")]
    Count {
        /// How many were asked.
        count: usize,
    },
    /// A repeating reorg that would overlap itself.
    #[error("reorg every {blocks} blocks of depth up to {depth_max}: blocks must exceed the depth")]
    Every {
        /// Distance.
        blocks: u64,
        /// Largest depth.
        depth_max: u64,
    },
}

/// Where branches begin and end.
#[derive(Clone, Debug)]
pub struct Schedule {
    reorgs: Vec<Reorg>,
}

impl Schedule {
    /// Checks the options and lays out the branches.
    ///
    /// # Errors
    /// The first of the options that cannot be.
    pub fn new(options: &WorldOptions) -> Result<Self, OptionsFault> {
        if options.block_time.is_zero() {
            return Err(OptionsFault::BlockTime);
        }
        let (min, max) = (options.transactions_min, options.transactions_max);
        if min > max || max > TRANSACTIONS_MAX {
            return Err(OptionsFault::Transactions { min, max });
        }
        let mut reorgs = options.reorgs.clone();
        if reorgs.len() > BRANCHES_MAX {
            return Err(OptionsFault::Count { count: reorgs.len() });
        }
        if let Some(every) = options.reorg_every {
            if every.depth_max == 0 || every.blocks <= every.depth_max {
                return Err(OptionsFault::Every {
                    blocks: every.blocks,
                    depth_max: every.depth_max,
                });
            }
            repeat(options, every, &mut reorgs);
        }
        let mut before = Reorg { at_height: 0, depth: 0 };
        for reorg in &reorgs {
            let (at_height, depth) = (reorg.at_height, reorg.depth);
            let finality_depth = options.finality_depth;
            if depth == 0 || depth > finality_depth || depth >= at_height {
                return Err(OptionsFault::Depth { at_height, depth, finality_depth });
            }
            if at_height <= before.at_height || at_height - depth < before.at_height - before.depth
            {
                return Err(OptionsFault::Order { at_height });
            }
            before = *reorg;
        }
        Ok(Self { reorgs })
    }

    /// How many branches the world will ever have.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.reorgs.len() + 1
    }

    /// The reorgs, in order; branch `k` is made by reorg `k - 1`.
    #[must_use]
    pub fn reorgs(&self) -> &[Reorg] {
        &self.reorgs
    }

    /// The branch on which head `number` stands.
    #[must_use]
    pub fn branch_of_head(&self, number: u64) -> usize {
        self.reorgs.partition_point(|reorg| reorg.at_height < number)
    }

    /// The branch that holds block `number` in the view whose head is `head`.
    #[must_use]
    pub fn branch_of_block(&self, head: u64, number: u64) -> usize {
        let newest = self.branch_of_head(head);
        self.reorgs[..newest].partition_point(|reorg| reorg.at_height - reorg.depth < number)
    }

    /// The number of the last block that `branch` shares with the one before it; branch 0 begins
    /// with the world, so it shares nothing.
    #[must_use]
    pub fn fork_of(&self, branch: usize) -> Option<u64> {
        let reorg = self.reorgs.get(branch.checked_sub(1)?)?;
        Some(reorg.at_height - reorg.depth)
    }

    /// The heads that have block `number` of `branch` on their chain: first and last, both
    /// included, no last if it stays for ever.
    #[must_use]
    pub fn heads_with(&self, branch: usize, number: u64) -> (u64, Option<u64>) {
        let appeared = match branch.checked_sub(1) {
            None => number,
            Some(maker) => number.max(self.reorgs[maker].at_height + 1),
        };
        let dropped = self.reorgs[branch..].iter().find(|r| r.at_height - r.depth < number);
        (appeared, dropped.map(|reorg| reorg.at_height))
    }
}

/// Appends the repeating reorgs, up to the cap on branches.
fn repeat(options: &WorldOptions, every: ReorgEvery, reorgs: &mut Vec<Reorg>) {
    let after = reorgs.last().map_or(0, |reorg| reorg.at_height);
    for turn in 1_u64.. {
        if reorgs.len() >= BRANCHES_MAX {
            return;
        }
        let at_height = options.height_start + turn * every.blocks;
        if at_height <= after + every.depth_max {
            continue;
        }
        let mut draws = crate::seed::Draws::at(options.seed, &[DRAW_REORG, turn]);
        reorgs.push(Reorg { at_height, depth: draws.within(1, every.depth_max) });
    }
}

/// Names the stream of reorg depths.
const DRAW_REORG: u64 = 6;
