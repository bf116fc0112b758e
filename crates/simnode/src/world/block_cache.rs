//! A bounded cache of complete blocks. An evicted block is rebuilt from the seed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::block_index::BlockPosition;
use crate::block::Block;

/// Maximum number of blocks.
const BLOCKS_MAX: usize = 2_048;
/// Maximum number of transactions. With all renderings a transaction takes about 4 kB, so all take
/// about 64 MB.
const TRANSACTIONS_MAX: usize = 16_384;

#[derive(Default)]
pub(super) struct BlockCache {
    blocks: HashMap<BlockPosition, Arc<Block>, RandomState>,
    order: VecDeque<BlockPosition>,
    transactions: usize,
}

impl BlockCache {
    pub(super) fn get(&self, position: BlockPosition) -> Option<&Arc<Block>> {
        self.blocks.get(&position)
    }

    /// Adds a block and evicts the oldest ones.
    pub(super) fn insert(&mut self, position: BlockPosition, block: Arc<Block>) {
        self.transactions += block.transactions.len();
        match self.blocks.insert(position, block) {
            Some(replaced) => self.transactions -= replaced.transactions.len(),
            None => self.order.push_back(position),
        }
        while self.order.len() > BLOCKS_MAX || self.transactions > TRANSACTIONS_MAX {
            // The newest block stays even if it alone exceeds the maximum, because it is about to
            // be read.
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
