//! `eth_getLogs` with every form of its filter. Invalid filters are rejected as in geth
//! (go-ethereum `eth/filters/api.go`, `FilterCriteria.UnmarshalJSON` and `GetLogs`). A view is the
//! part of the chain that the node has. The head of a view is its newest block.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Log};
use serde_json::value::RawValue;

use super::arguments::{BlockArgument, invalid, read_block};
use super::wording::{INVALID_PARAMS, LIMIT_EXCEEDED, SERVER_ERROR};
use super::{Call, RpcError, RpcResult, View};
use crate::block::{Block, push_log};
use crate::hex;

/// Maximum number of blocks of one query. A query may have to rebuild each block, which takes about
/// 0.1 ms per block.
const RANGE_BLOCKS_MAX: u64 = 10_000;
/// Maximum number of topics of a log (yellow paper).
const TOPICS_MAX: usize = 4;
/// Maximum number of addresses, or alternatives of one topic (geth, `maxAddresses` and
/// `maxSubTopics`).
const ALTERNATIVES_MAX: usize = 1_000;

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilterInput<'a> {
    #[serde(borrow)]
    from_block: Option<&'a RawValue>,
    #[serde(borrow)]
    to_block: Option<&'a RawValue>,
    block_hash: Option<String>,
    address: Option<OneOrMany<String>>,
    // The topics by position. Each is null, one topic, or a list of alternatives and nulls.
    topics: Option<Vec<Option<OneOrMany<Option<String>>>>>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(item) => vec![item],
            Self::Many(items) => items,
        }
    }
}

/// A log filter. An empty list of alternatives matches everything.
struct Filter {
    addresses: Vec<Address>,
    /// The alternatives by the position of the topic.
    topics: Vec<Vec<B256>>,
}

impl Call<'_> {
    /// Returns true if the node has indexed the logs and receipts of a block, and has not pruned
    /// them. After a reorg, the logs of a block of the new branch are indexed only if the view up
    /// to the newest indexed block contains the block.
    pub(super) fn has_indexed(&self, block: &Block) -> bool {
        let View { head, indexed, retention, .. } = self.view;
        let number = block.header.number;
        let is_retained =
            retention.logs_blocks.is_none_or(|blocks| number.saturating_add(blocks) >= *head);
        let is_old_enough = number.saturating_add(retention.unindexed_blocks) <= *head;
        if !is_retained || !is_old_enough {
            return false;
        }
        indexed >= head || self.world.hash_at(*indexed, number) == Some(block.hash)
    }

    /// Appends the matching ones of the logs of a block that the node has indexed.
    fn push_indexed(&self, filter: &Filter, out: &mut Vec<u8>, block: &Block) {
        let logs = block.transactions.iter().map(|transaction| transaction.logs.len()).sum();
        let indexed = match self.has_indexed(block) {
            true => logs,
            false if self.view.retention.half_indexed => logs / 2,
            false => 0,
        };
        filter.push_matching(out, block, indexed);
    }

    /// Serves `eth_getLogs`.
    pub(super) fn logs(&self) -> RpcResult {
        let raw = self.arguments.required(0)?;
        let input: FilterInput<'_> = serde_json::from_str(raw)
            .map_err(|_| invalid(0, "cannot unmarshal into Go value of type filters.input"))?;
        let (from, to) = (input.from_block, input.to_block);
        let block_hash = input.block_hash.clone();
        let filter = Filter::read(input)?;
        let mut out = vec![b'['];
        match block_hash {
            Some(_) if from.is_some() || to.is_some() => {
                let message = "can't specify fromBlock/toBlock with blockHash";
                return Err(RpcError::new(INVALID_PARAMS, message));
            }
            Some(hash) => {
                let hash = hex::read_hash(&hash).ok_or_else(|| invalid(0, "bad blockHash"))?;
                let block = self.block_of(BlockArgument::Hash { hash, strict: false })?;
                match block {
                    Some(block) => self.push_indexed(&filter, &mut out, &block),
                    None if self.view.clamps_logs_to_head => {}
                    None => return Err(RpcError::new(SERVER_ERROR, "unknown block")),
                }
            }
            None => {
                let (from, to) = self.read_range(from, to)?;
                let has_block = |number: &u64| !self.world.options().is_skipped(*number);
                for number in (from..=to).filter(has_block) {
                    self.reject_pruned(number)?;
                    let block = self.world.block_at(self.view.head, number);
                    let missing = || self.view.retention.client.history_missing();
                    let block: Arc<Block> = block.ok_or_else(missing)?;
                    self.push_indexed(&filter, &mut out, &block);
                }
            }
        }
        out.push(b']');
        Ok(out.into())
    }

    /// Reads and checks the bounds of a range of blocks. A range beyond the newest block is an
    /// error. If the view clamps logs to the head, such a range ends at the newest block instead.
    fn read_range(
        &self,
        from: Option<&RawValue>,
        to: Option<&RawValue>,
    ) -> Result<(u64, u64), RpcError> {
        let from = self.read_bound(from)?;
        let to = self.read_bound(to)?;
        if from > to {
            return Err(RpcError::new(INVALID_PARAMS, "invalid block range params"));
        }
        if to > self.view.head && self.view.clamps_logs_to_head {
            return Ok((from, self.view.head));
        }
        if to > self.view.head {
            let message = "block range extends beyond current head block";
            return Err(RpcError::new(INVALID_PARAMS, message));
        }
        let limit = self.view.retention.logs_range_blocks_max.unwrap_or(RANGE_BLOCKS_MAX);
        let limit = limit.min(RANGE_BLOCKS_MAX);
        if to - from >= limit {
            let message = format!("query exceeds max block range {limit}");
            return Err(RpcError::new(LIMIT_EXCEEDED, message));
        }
        Ok((from, to))
    }

    /// Reads a bound of a range of blocks. An absent bound means the newest block.
    fn read_bound(&self, raw: Option<&RawValue>) -> Result<u64, RpcError> {
        let raw = raw.map_or("\"latest\"", RawValue::get);
        if raw == "\"pending\"" {
            return Err(RpcError::new(INVALID_PARAMS, "pending logs are not supported"));
        }
        let head = self.view.head;
        let (allow_hash, decimal) = (false, false);
        match read_block(raw, allow_hash, decimal) {
            Some(BlockArgument::Number(number)) => Ok(number),
            Some(BlockArgument::Safe) => Ok(self.world.safe_number(head)),
            Some(BlockArgument::Finalized) => Ok(self.world.finalized_number(head)),
            Some(BlockArgument::Latest | BlockArgument::Hash { .. }) => Ok(head),
            None if raw == "null" => Ok(head),
            None => Err(invalid(0, "cannot unmarshal hex string of type rpc.BlockNumber")),
        }
    }
}

impl Filter {
    fn read(input: FilterInput<'_>) -> Result<Self, RpcError> {
        let addresses = input.address.map(OneOrMany::into_vec).unwrap_or_default();
        let topics = input.topics.unwrap_or_default();
        if topics.len() > TOPICS_MAX {
            return Err(RpcError::new(INVALID_PARAMS, "exceed max topics"));
        }
        let too_many =
            || RpcError::new(INVALID_PARAMS, "exceed max addresses or topics per search position");
        if addresses.len() > ALTERNATIVES_MAX {
            return Err(too_many());
        }
        let read_address = |text: String| {
            hex::read_address(&text).ok_or_else(|| invalid(0, "invalid address in filter"))
        };
        let addresses = addresses.into_iter().map(read_address).collect::<Result<_, _>>()?;
        let mut topic_positions = Vec::with_capacity(topics.len());
        for position in topics {
            let alternatives = position.map(OneOrMany::into_vec).unwrap_or_default();
            if alternatives.len() > ALTERNATIVES_MAX {
                return Err(too_many());
            }
            // A null among the alternatives matches every topic, as in geth.
            let matches_any = alternatives.iter().any(Option::is_none);
            let read_topic = |text: String| {
                hex::read_hash(&text).ok_or_else(|| invalid(0, "invalid topic in filter"))
            };
            let hashes: Vec<B256> =
                alternatives.into_iter().flatten().map(read_topic).collect::<Result<_, _>>()?;
            topic_positions.push(if matches_any { Vec::new() } else { hashes });
        }
        Ok(Self { addresses, topics: topic_positions })
    }

    /// Appends the matching ones of the first `count` logs of a block.
    fn push_matching(&self, out: &mut Vec<u8>, block: &Block, count: usize) {
        let mut position = 0;
        for (transaction_index, transaction) in block.transactions.iter().enumerate() {
            for (log_index, log) in transaction.logs.iter().enumerate() {
                position += 1;
                if position <= count && self.matches(log) {
                    let has_earlier_log = out.len() > b"[".len();
                    if has_earlier_log {
                        out.push(b',');
                    }
                    push_log(out, block, transaction_index, log_index);
                }
            }
        }
    }

    fn matches(&self, log: &Log) -> bool {
        let matches_address = self.addresses.is_empty() || self.addresses.contains(&log.address);
        let topics = log.topics();
        matches_address
            && self.topics.len() <= topics.len()
            && self.topics.iter().zip(topics).all(|(alternatives, topic)| {
                alternatives.is_empty() || alternatives.contains(topic)
            })
    }
}
