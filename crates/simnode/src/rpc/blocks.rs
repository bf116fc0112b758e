//! Serves the methods that read blocks, transactions and receipts. The methods read the node's
//! view: the part of the chain that the node has.

use std::sync::Arc;

use alloy_primitives::B256;
use bytes::Bytes;

use super::arguments::BlockArgument;
use super::{Call, RpcError, RpcResult, SkippedHeight, fixed, null, quantity};
use crate::block::{Block, push_pooled};

/// Code of the error for a height without a block (filecoin-project/lotus#12633).
const NULL_ROUND: i64 = 12;

impl Call<'_> {
    pub(super) fn block_number(&self) -> RpcResult {
        quantity(self.view.announced_head().into())
    }

    /// Returns the progress of a node that syncs. The target is far above its head.
    pub(super) fn sync_progress(&self) -> RpcResult {
        let head = self.view.head;
        let target = head + 1_000_000;
        fixed(&format!("{{\"currentBlock\":\"{head:#x}\",\"highestBlock\":\"{target:#x}\"}}"))
    }

    pub(super) fn block_by_number(&self) -> RpcResult {
        let argument = self.arguments.number(0)?;
        let full_transactions = self.arguments.flag(1)?;
        block_json(self.block_of(argument)?, full_transactions)
    }

    pub(super) fn block_by_hash(&self) -> RpcResult {
        let hash = self.arguments.hash(0)?;
        let full_transactions = self.arguments.flag(1)?;
        block_json(self.block_by_hash_in_view(&hash)?, full_transactions)
    }

    pub(super) fn transaction_count_by_number(&self) -> RpcResult {
        let block = self.block_of(self.arguments.number(0)?)?;
        block.map_or_else(null, |block| quantity(block.transactions.len() as u128))
    }

    pub(super) fn transaction_count_by_hash(&self) -> RpcResult {
        let block = self.block_by_hash_in_view(&self.arguments.hash(0)?)?;
        block.map_or_else(null, |block| quantity(block.transactions.len() as u128))
    }

    pub(super) fn uncle_count_by_number(&self) -> RpcResult {
        self.block_of(self.arguments.number(0)?)?.map_or_else(null, |_| quantity(0))
    }

    pub(super) fn uncle_count_by_hash(&self) -> RpcResult {
        self.block_by_hash_in_view(&self.arguments.hash(0)?)?.map_or_else(null, |_| quantity(0))
    }

    pub(super) fn transaction_by_hash(&self) -> RpcResult {
        let hash = self.arguments.hash(0)?;
        if let Some((block, index)) = self.find_transaction(&hash) {
            return transaction_json(&block, index);
        }
        let Some(envelope) = self.world.pool_get(&hash) else { return null() };
        let mut out = Vec::with_capacity(1_024);
        push_pooled(&mut out, &envelope);
        Ok(out.into())
    }

    pub(super) fn transaction_by_number_and_index(&self) -> RpcResult {
        let block = self.block_of(self.arguments.number(0)?)?;
        self.transaction_at_index(block)
    }

    pub(super) fn transaction_by_hash_and_index(&self) -> RpcResult {
        let block = self.block_by_hash_in_view(&self.arguments.hash(0)?)?;
        self.transaction_at_index(block)
    }

    pub(super) fn transaction_receipt(&self) -> RpcResult {
        let hash = self.arguments.hash(0)?;
        let indexed = self.find_transaction(&hash).filter(|(block, _)| self.has_indexed(block));
        let Some((block, index)) = indexed else { return null() };
        let mut out = Vec::with_capacity(2_048);
        block.push_receipt(&mut out, index);
        Ok(out.into())
    }

    pub(super) fn block_receipts(&self) -> RpcResult {
        let block = self.block_of(self.arguments.block(0)?)?;
        match block {
            Some(block) if self.has_indexed(&block) => Ok(block.receipts().clone()),
            Some(_) => fixed("[]"),
            None if self.view.clamps_logs_to_head => fixed("[]"),
            None => null(),
        }
    }

    fn transaction_at_index(&self, block: Option<Arc<Block>>) -> RpcResult {
        let index = self.arguments.quantity(1)?;
        let Some(block) = block else { return null() };
        match usize::try_from(index) {
            Ok(index) if index < block.transactions.len() => transaction_json(&block, index),
            _ => null(),
        }
    }

    /// Returns the block that an argument names, or `None` if the node does not have it. A lying
    /// node announces a head above its real head. For a number between the two heads, the returned
    /// block is fabricated.
    pub(super) fn block_of(&self, argument: BlockArgument) -> Result<Option<Arc<Block>>, RpcError> {
        let number = match argument {
            BlockArgument::Hash { hash, .. } => return self.block_by_hash_in_view(&hash),
            BlockArgument::Latest => self.view.announced_head(),
            BlockArgument::Number(number) => number,
            BlockArgument::Safe => self.world.safe_number(self.view.head),
            BlockArgument::Finalized => match self.view.retention.finality_depth {
                Some(depth) => self.world.block_at_or_below(self.view.head.saturating_sub(depth)),
                None => self.world.finalized_number(self.view.head),
            },
        };
        if number > self.view.head && number <= self.view.announced_head() {
            let head = self.world.block_at(self.view.head, self.view.head);
            return Ok(head.map(|head| Arc::new(Block::fabricated(&head, number))));
        }
        self.reject_pruned(number)?;
        let number = if number <= self.view.head && self.world.options().is_skipped(number) {
            match self.view.retention.skipped_heights {
                SkippedHeight::Null => return Ok(None),
                SkippedHeight::Error => {
                    let message = format!("requested epoch was a null round ({number})");
                    return Err(RpcError::new(NULL_ROUND, message));
                }
                SkippedHeight::BlockBelow => self.world.block_at_or_below(number),
            }
        } else {
            number
        };
        Ok(self.world.block_at(self.view.head, number))
    }

    /// Returns the block with this hash, or `None` if the node does not have it.
    fn block_by_hash_in_view(&self, hash: &B256) -> Result<Option<Arc<Block>>, RpcError> {
        let block = self.world.block_by_hash(self.view.head, hash);
        if let Some(block) = &block {
            self.reject_pruned(block.header.number)?;
        }
        Ok(block)
    }

    /// Returns the block of a transaction and its index in the block. Returns `None` if the node
    /// does not have the transaction, or has pruned its block.
    pub(super) fn find_transaction(&self, hash: &B256) -> Option<(Arc<Block>, usize)> {
        let (block, index) = self.world.find_transaction(self.view.head, hash)?;
        let is_indexed = |blocks| block.header.number.saturating_add(blocks) >= self.view.head;
        if !self.view.retention.transaction_index_blocks.is_none_or(is_indexed) {
            return None;
        }
        self.reject_pruned(block.header.number).ok()?;
        Some((block, index))
    }

    /// Rejects a block that the node has pruned. Block 0 is never pruned.
    pub(super) fn reject_pruned(&self, number: u64) -> Result<(), RpcError> {
        match self.view.retention.history_blocks {
            Some(retained_blocks)
                if number > 0 && number.saturating_add(retained_blocks) < self.view.head =>
            {
                Err(self.view.retention.client.history_missing())
            }
            _ => Ok(()),
        }
    }
}

fn block_json(block: Option<Arc<Block>>, full_transactions: bool) -> RpcResult {
    let Some(block) = block else { return null() };
    Ok(if full_transactions {
        block.with_transactions().clone()
    } else {
        block.with_hashes().clone()
    })
}

fn transaction_json(block: &Block, index: usize) -> RpcResult {
    let mut out = Vec::with_capacity(1_024);
    block.push_transaction(&mut out, index);
    Ok(Bytes::from(out))
}
