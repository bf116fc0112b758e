//! A bounded index of blocks. By branch and number, it has a short record of each block. By hash,
//! it has the positions of blocks and transactions. `world/block_cache.rs` has the complete blocks.

use std::collections::{HashMap, VecDeque};

use alloy_primitives::B256;
use foldhash::fast::RandomState;

use crate::block::{Block, PostState};

/// Maximum number of blocks. The index removes the oldest blocks first, and nodes then respond as
/// if these blocks had never existed. A block with 8 transactions takes about 2.5 kB, so a full
/// index takes 125 MB.
pub(super) const RECORDS_MAX: usize = 50_000;
/// Maximum number of transaction positions, for worlds with large blocks. They take about 100 MB.
pub(super) const TRANSACTIONS_MAX: usize = 1_000_000;

/// The position of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockPosition {
    /// Index of the block's branch.
    pub branch: usize,
    /// The number of the block.
    pub number: u64,
}

/// The record of one block.
struct Record {
    post_state: PostState,
    /// The hashes of the block's transactions.
    transactions: Box<[B256]>,
}

/// The positions of one transaction: its block, and its index in the block. After a reorg, a
/// transaction may have several positions.
enum Positions {
    One(BlockPosition, u32),
    Many(Vec<(BlockPosition, u32)>),
}

/// The records of the consecutive blocks of one branch.
#[derive(Default)]
struct Branch {
    /// Block number of the first record.
    first_number: u64,
    records: VecDeque<Record>,
}

/// The index of all blocks of all branches.
#[derive(Default)]
pub(super) struct BlockIndex {
    branches: Vec<Branch>,
    blocks: HashMap<B256, BlockPosition, RandomState>,
    transactions: HashMap<B256, Positions, RandomState>,
    /// Number of records of all branches.
    record_count: usize,
    /// Number of positions of all transactions.
    position_count: usize,
    /// The lowest block number in the index.
    pub(super) floor: u64,
}

impl BlockIndex {
    /// Returns the state after the block at a position, if the index has it.
    pub(super) fn post_state(&self, position: BlockPosition) -> Option<&PostState> {
        let branch = self.branches.get(position.branch)?;
        let index = usize::try_from(position.number.checked_sub(branch.first_number)?).ok()?;
        Some(&branch.records.get(index)?.post_state)
    }

    /// Returns the position of a block.
    pub(super) fn block_position(&self, hash: &B256) -> Option<BlockPosition> {
        self.blocks.get(hash).copied()
    }

    /// Returns all positions of a transaction: its block, and its index in the block.
    pub(super) fn transaction_positions(
        &self,
        hash: &B256,
    ) -> impl Iterator<Item = (BlockPosition, u32)> + '_ {
        let (single, several) = match self.transactions.get(hash) {
            None => (None, [].as_slice()),
            Some(Positions::One(position, index)) => (Some((*position, *index)), [].as_slice()),
            Some(Positions::Many(positions)) => (None, positions.as_slice()),
        };
        single.into_iter().chain(several.iter().copied())
    }

    /// Adds a block. The block must be on the newest branch, directly above the height of this
    /// branch that was added last.
    pub(super) fn add(&mut self, block: &Block, post_state: PostState) {
        let position = BlockPosition { branch: block.branch, number: block.header.number };
        let hashes: Box<[B256]> =
            block.transactions.iter().map(|transaction| *transaction.hash()).collect();
        for (index, hash) in hashes.iter().enumerate() {
            self.position_count += 1;
            let new_position = (position, index as u32);
            self.transactions
                .entry(*hash)
                .and_modify(|positions| match positions {
                    Positions::One(position, index) => {
                        *positions = Positions::Many(vec![(*position, *index), new_position])
                    }
                    Positions::Many(positions) => positions.push(new_position),
                })
                .or_insert(Positions::One(position, index as u32));
        }
        self.blocks.insert(block.hash, position);
        self.push(position, Record { post_state, transactions: hashes });
    }

    /// Adds a height without a block. `post_state` is the state after the block below.
    pub(super) fn add_skipped(&mut self, position: BlockPosition, post_state: PostState) {
        self.push(position, Record { post_state, transactions: Box::default() });
    }

    fn push(&mut self, position: BlockPosition, record: Record) {
        if self.branches.len() <= position.branch {
            self.branches.resize_with(position.branch + 1, Branch::default);
            self.branches[position.branch].first_number = position.number;
        }
        self.record_count += 1;
        self.branches[position.branch].records.push_back(record);
    }

    /// Removes the blocks with the lowest numbers until the index is within its maxima.
    pub(super) fn trim(&mut self) {
        while self.record_count > RECORDS_MAX || self.position_count > TRANSACTIONS_MAX {
            self.evict_floor();
        }
    }

    /// Removes the blocks with the lowest number from all branches.
    pub(super) fn evict_floor(&mut self) {
        let number = self.floor;
        self.floor += 1;
        for branch_index in 0..self.branches.len() {
            let branch = &mut self.branches[branch_index];
            if branch.first_number != number {
                continue;
            }
            let Some(record) = branch.records.pop_front() else { continue };
            branch.first_number += 1;
            self.record_count -= 1;
            self.position_count -= record.transactions.len();
            self.blocks.remove(&record.post_state.hash);
            let position = BlockPosition { branch: branch_index, number };
            for hash in &record.transactions {
                self.evict_transaction(hash, position);
            }
        }
    }

    /// Removes one position of a transaction.
    fn evict_transaction(&mut self, hash: &B256, position: BlockPosition) {
        match self.transactions.get_mut(hash) {
            Some(Positions::Many(positions)) => {
                positions.retain(|(indexed, _)| *indexed != position);
                if positions.is_empty() {
                    self.transactions.remove(hash);
                }
            }
            Some(Positions::One(indexed, _)) if *indexed == position => {
                self.transactions.remove(hash);
            }
            _ => {}
        }
    }
}
