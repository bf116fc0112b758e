//! A bounded cache of complete blocks. `world.rs` rebuilds an evicted block from the seed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::block_index::BlockPosition;
use crate::block::Block;

/// Maximum number of blocks.
const BLOCKS_MAX: usize = 2_048;
/// Maximum number of transactions. A transaction with all its renderings takes about 4 kB, so a
/// full cache takes about 64 MB.
const TRANSACTIONS_MAX: usize = 16_384;

#[derive(Default)]
pub(super) struct BlockCache {
    blocks: HashMap<BlockPosition, Arc<Block>, RandomState>,
    /// The positions in the order of their insertion.
    order: VecDeque<BlockPosition>,
    /// Number of transactions of all cached blocks.
    transactions: usize,
}

impl BlockCache {
    pub(super) fn get(&self, position: BlockPosition) -> Option<&Arc<Block>> {
        self.blocks.get(&position)
    }

    /// Adds a block and evicts the oldest blocks above the maxima.
    pub(super) fn insert(&mut self, position: BlockPosition, block: Arc<Block>) {
        self.transactions += block.transactions.len();
        match self.blocks.insert(position, block) {
            Some(replaced) => self.transactions -= replaced.transactions.len(),
            None => self.order.push_back(position),
        }
        while self.order.len() > BLOCKS_MAX || self.transactions > TRANSACTIONS_MAX {
            // The newest block stays even if it alone exceeds a maximum, because the caller is
            // about to read it.
            if self.order.len() <= 1 {
                return;
            }
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(block) = self.blocks.remove(&oldest) {
                self.transactions -= block.transactions.len();
            }
        }
    }
}
