//! A bounded store of whole blocks. What falls out is rebuilt from the seed when asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::ledger::Place;
use crate::block::Block;

/// The most blocks kept whole.
const BLOCKS_MAX: usize = 2_048;
/// The most transactions kept whole: with every rendering about 4 kB each, so about 64 MB.
const TRANSACTIONS_MAX: usize = 16_384;

#[derive(Default)]
pub(super) struct Bodies {
    blocks: HashMap<Place, Arc<Block>, RandomState>,
    order: VecDeque<Place>,
    transactions: usize,
}

impl Bodies {
    pub(super) fn get(&self, place: Place) -> Option<&Arc<Block>> {
        self.blocks.get(&place)
    }

    /// Keeps a block, dropping those that came first.
    pub(super) fn keep(&mut self, place: Place, block: Arc<Block>) {
        self.transactions += block.transactions.len();
        match self.blocks.insert(place, block) {
            Some(former) => self.transactions -= former.transactions.len(),
            None => self.order.push_back(place),
        }
        while self.order.len() > BLOCKS_MAX || self.transactions > TRANSACTIONS_MAX {
            // The newest stays even if it alone is above the cap: it is about to be read.
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
