//! Transactions that were sent to a node: kept, shown as pending, never mined. All nodes of a world
//! share one pool, as though gossip were instant.

use std::collections::{HashMap, VecDeque};

use alloy_consensus::TxEnvelope;
use alloy_primitives::B256;
use foldhash::fast::RandomState;

/// The most transactions kept; geth's default is 5,120 executable ones (`txpool.globalslots`).
const TRANSACTIONS_MAX: usize = 5_120;

#[derive(Default)]
pub(crate) struct Pool {
    transactions: HashMap<B256, TxEnvelope, RandomState>,
    order: VecDeque<B256>,
}

impl Pool {
    /// Keeps a transaction, dropping the oldest above the cap. False if it is there already.
    pub(crate) fn add(&mut self, envelope: TxEnvelope) -> bool {
        let hash = *envelope.tx_hash();
        if self.transactions.contains_key(&hash) {
            return false;
        }
        self.transactions.insert(hash, envelope);
        self.order.push_back(hash);
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

    pub(crate) fn len(&self) -> usize {
        self.transactions.len()
    }
}
