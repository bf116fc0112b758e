//! The options of a world, and the schedule that determines when each block exists. `block.rs`
//! builds the contents; `world.rs` has the clock.
//!
//! A world is a chain with all its branches. Its history is a sequence of views. View `n` is the
//! chain whose head (newest block) has number `n`, on the branch that is canonical at that head.
//! Branch 0 starts at block 0, and each reorg creates the next branch.
//!
//! In a reorg at height `h` of depth `d`, the old branch is canonical up to head `h`. Head `h + 1`
//! is on a new branch that forks after block `h - d`. The `d + 1` blocks of the new branch appear
//! at the same instant. So the head's number never falls, the new branch is always one block longer
//! than the old one, and the head's number identifies a view.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of reorgs of one world. A list with more reorgs is invalid. Repeating reorgs stop
/// at this number.
pub const REORGS_MAX: usize = 10_000;

/// The options of a world. They are fixed for its life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldOptions {
    /// The seed of every value of the chain.
    pub seed: u64,
    /// The result of `eth_chainId` and `net_version`.
    pub chain_id: u64,
    /// The head's number at the start.
    pub height_start: u64,
    /// Time between blocks.
    #[serde(rename = "block_time_ms", with = "crate::millis")]
    pub block_time: Duration,
    /// The timestamp of block 0, in seconds since 1970.
    pub genesis_seconds: u64,
    /// Number of blocks from the head down to the finalized block.
    pub finality_depth: u64,
    /// Minimum number of transactions of a block.
    pub transactions_min: u64,
    /// Maximum number of transactions of a block, at most [`TRANSACTIONS_MAX`].
    pub transactions_max: u64,
    /// Number of addresses in logs. The frequencies of the addresses are as skewed as on a real
    /// chain. This option is rounded up to one below a power of two. With 0, logs have only the few
    /// accounts and contracts of the world.
    pub log_parties: u64,
    /// The last height of every group of this many heights has no block, as in a null round of
    /// Filecoin: with 10, the parent of block 20 is block 18. At least 2; `None` for a chain with a
    /// block at each height.
    pub skip_every: Option<u64>,
    /// Reorgs at fixed heights, in rising order; at most [`REORGS_MAX`].
    pub reorgs: Vec<Reorg>,
    /// Reorgs that repeat until the world has [`REORGS_MAX`] reorgs.
    pub reorg_every: Option<ReorgEvery>,
}

/// Maximum of `transactions_max`. A block of mainnet holds under 2,000.
pub const TRANSACTIONS_MAX: u64 = 5_000;

/// The chain of the demo: one block per second, with about 8 transactions and 16 logs.
impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            // No chain is registered under this id, so no wallet mistakes this chain for another
            // one.
            chain_id: 424_242,
            height_start: 1_000,
            block_time: Duration::from_secs(1),
            genesis_seconds: 1_700_000_000,
            finality_depth: 64, // two epochs of Ethereum's beacon chain
            transactions_min: 4,
            transactions_max: 12,
            log_parties: 0,
            skip_every: None,
            reorgs: Vec::new(),
            reorg_every: None,
        }
    }
}

impl WorldOptions {
    /// Returns true if no branch has a block at this height.
    #[must_use]
    pub fn is_skipped(&self, number: u64) -> bool {
        self.skip_every.is_some_and(|every| number % every == every - 1)
    }
}

/// A reorg: after head `at_height`, the last `depth` blocks are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorg {
    /// The last head of the old branch.
    pub at_height: u64,
    /// Number of replaced blocks.
    pub depth: u64,
}

impl Reorg {
    /// Returns the last block that the old and the new branch share.
    fn fork(self) -> u64 {
        self.at_height - self.depth
    }
}

/// A reorg after every `blocks` blocks from the start. Its depth is drawn from 1 to `depth_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReorgEvery {
    /// Number of blocks between reorgs.
    pub blocks: u64,
    /// Maximum depth.
    pub depth_max: u64,
}

/// The reason why options are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The block time is zero.
    #[error("block time is 0, it must be at least 1 ms")]
    BlockTime,
    /// All heights, or heights at which a reorg begins, have no block.
    #[error(
        "skip every {every} heights: it must be at least 2, and every reorg must begin at a block"
    )]
    Skipped {
        /// Number of heights.
        every: u64,
    },
    /// The range of transactions is invalid.
    #[error(
        "transactions per block from {min} to {max}: the minimum must not exceed the maximum, and the maximum must not exceed {TRANSACTIONS_MAX}"
    )]
    Transactions {
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// A reorg would replace a finalized block, or no block.
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
    /// The reorgs are not in order.
    #[error(
        "reorg at height {at_height}: heights must increase, and no reorg may fork below the fork of the one before"
    )]
    Order {
        /// The height of the reorg that breaks the order.
        at_height: u64,
    },
    /// There are too many reorgs.
    #[error("{count} reorgs, at most {REORGS_MAX} are allowed")]
    Count {
        /// The number of reorgs.
        count: usize,
    },
    /// Repeating reorgs would overlap, or would replace no block.
    #[error(
        "reorg every {blocks} blocks of depth up to {depth_max}: the depth must be at least 1 and below the number of blocks"
    )]
    Every {
        /// Blocks between reorgs.
        blocks: u64,
        /// Maximum depth.
        depth_max: u64,
    },
}

/// The reorgs of a world. They determine its branches.
#[derive(Clone, Debug)]
pub struct Schedule {
    reorgs: Vec<Reorg>,
}

impl Schedule {
    /// Validates the options and computes all reorgs.
    ///
    /// # Errors
    /// Returns the first invalid option.
    pub fn new(options: &WorldOptions) -> Result<Self, OptionsError> {
        if options.block_time.is_zero() {
            return Err(OptionsError::BlockTime);
        }
        let (min, max) = (options.transactions_min, options.transactions_max);
        if min > max || max > TRANSACTIONS_MAX {
            return Err(OptionsError::Transactions { min, max });
        }
        let mut reorgs = options.reorgs.clone();
        if reorgs.len() > REORGS_MAX {
            return Err(OptionsError::Count { count: reorgs.len() });
        }
        if let Some(every) = options.reorg_every {
            if every.depth_max == 0 || every.blocks <= every.depth_max {
                return Err(OptionsError::Every {
                    blocks: every.blocks,
                    depth_max: every.depth_max,
                });
            }
            append_repeating(options, every, &mut reorgs);
        }
        if let Some(every) = options.skip_every
            && (every < 2 || reorgs.iter().any(|reorg| options.is_skipped(reorg.at_height)))
        {
            return Err(OptionsError::Skipped { every });
        }
        let mut previous = Reorg { at_height: 0, depth: 0 };
        for reorg in &reorgs {
            let (at_height, depth) = (reorg.at_height, reorg.depth);
            let finality_depth = options.finality_depth;
            if depth == 0 || depth > finality_depth || depth >= at_height {
                return Err(OptionsError::Depth { at_height, depth, finality_depth });
            }
            if at_height <= previous.at_height || reorg.fork() < previous.fork() {
                return Err(OptionsError::Order { at_height });
            }
            previous = *reorg;
        }
        Ok(Self { reorgs })
    }

    /// Returns the number of branches over the whole life of the world.
    #[must_use]
    pub fn branches(&self) -> usize {
        self.reorgs.len() + 1
    }

    /// Returns the reorgs in order. The reorg with index `k - 1` creates branch `k`.
    #[must_use]
    pub fn reorgs(&self) -> &[Reorg] {
        &self.reorgs
    }

    /// Returns the branch of head `number`.
    #[must_use]
    pub fn branch_of_head(&self, number: u64) -> usize {
        self.reorgs.partition_point(|reorg| reorg.at_height < number)
    }

    /// Returns the branch of block `number` in the view of `head`.
    #[must_use]
    pub fn branch_of_block(&self, head: u64, number: u64) -> usize {
        let head_branch = self.branch_of_head(head);
        self.reorgs[..head_branch].partition_point(|reorg| reorg.fork() < number)
    }

    /// Returns the last block that `branch` shares with the branch before it, or `None` for branch
    /// 0.
    #[must_use]
    pub fn fork_of(&self, branch: usize) -> Option<u64> {
        let reorg = self.reorgs.get(branch.checked_sub(1)?)?;
        Some(reorg.fork())
    }

    /// Returns the first and the last head whose chain has block `number` of `branch`. The last is
    /// `None` if no reorg replaces the block.
    #[must_use]
    pub fn heads_with(&self, branch: usize, number: u64) -> (u64, Option<u64>) {
        let first_head = match branch.checked_sub(1) {
            None => number,
            Some(reorg) => number.max(self.reorgs[reorg].at_height + 1),
        };
        let replacing_reorg = self.reorgs[branch..].iter().find(|reorg| reorg.fork() < number);
        (first_head, replacing_reorg.map(|reorg| reorg.at_height))
    }
}

/// Appends the repeating reorgs, up to [`REORGS_MAX`].
fn append_repeating(options: &WorldOptions, every: ReorgEvery, reorgs: &mut Vec<Reorg>) {
    let last_fixed_height = reorgs.last().map_or(0, |reorg| reorg.at_height);
    for repetition in 1_u64.. {
        if reorgs.len() >= REORGS_MAX {
            return;
        }
        let at_height = options.height_start + repetition * every.blocks;
        // A repeating reorg must not replace a block at or below the last height of the fixed
        // reorgs.
        if at_height <= last_fixed_height + every.depth_max {
            continue;
        }
        let mut draws = crate::seed::SeedStream::at(options.seed, &[DRAW_REORG, repetition]);
        reorgs.push(Reorg { at_height, depth: draws.within(1, every.depth_max) });
    }
}

/// The first word of the positions of the random streams for reorg depths. Other streams have other
/// first words.
const DRAW_REORG: u64 = 6;
