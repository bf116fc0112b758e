//! The pool of transactions that were sent to a node. They stay pending and are never mined. All
//! nodes of a simulated chain (world) share one pool, as if transactions spread among nodes at
//! once.

use std::collections::{HashMap, VecDeque};

use alloy_consensus::TxEnvelope;
use alloy_primitives::B256;
use foldhash::fast::RandomState;

/// Maximum number of transactions of the pool. geth's default is 5,120 executable transactions
/// (`txpool.globalslots`).
const TRANSACTIONS_MAX: usize = 5_120;

#[derive(Default)]
pub(crate) struct TransactionPool {
    transactions: HashMap<B256, TxEnvelope, RandomState>,
    /// Hashes of the transactions in the order of their addition.
    order: VecDeque<B256>,
    /// Number of transactions ever added.
    added: u64,
}

impl TransactionPool {
    /// Adds a transaction. Removes the oldest one if there are more than [`TRANSACTIONS_MAX`].
    /// Returns false for a duplicate.
    pub(crate) fn add(&mut self, envelope: TxEnvelope) -> bool {
        let hash = *envelope.tx_hash();
        if self.transactions.contains_key(&hash) {
            return false;
        }
        self.transactions.insert(hash, envelope);
        self.order.push_back(hash);
        self.added += 1;
        if self.order.len() > TRANSACTIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.transactions.remove(&oldest);
        }
        true
    }

    pub(crate) fn get(&self, hash: &B256) -> Option<&TxEnvelope> {
        self.transactions.get(hash)
    }

    /// Returns the number of transactions ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Returns the hashes of the transactions that were added after the first `added` ones, as far
    /// as the pool still has them.
    pub(crate) fn added_since(&self, added: u64) -> Vec<B256> {
        let new_count = usize::try_from(self.added - added).unwrap_or(usize::MAX);
        let count = self.order.len();
        self.order.range(count - new_count.min(count)..).copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.transactions.len()
    }
}
