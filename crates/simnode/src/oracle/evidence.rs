//! The reason why a response is wrong: the blocks that it names, and whether one view has all of
//! them. The oracle needs this only if a response was not right, so it may be slow.

use std::collections::BTreeSet;

use alloy_primitives::B256;
use serde_json::Value;

use super::Verdict;
use crate::hex::{read_bytes, read_hash};
use crate::world::World;
use crate::world::block_index::BlockPosition;

/// Finds a block that no chain has, or blocks that no view has together.
pub(super) fn examine(world: &World, result: &[u8]) -> Option<Verdict> {
    let Ok(value) = serde_json::from_slice::<Value>(result) else {
        return Some(Verdict::Wrong("the result is not JSON".to_owned()));
    };
    let mut named = BTreeSet::new();
    collect_block_hashes(&value, &mut named);
    if let Some(own) = own_hash(&value) {
        named.insert(own);
    }
    let mut positions = Vec::new();
    for hash in named {
        match world.position_of(&hash) {
            Some(position) => positions.push(position),
            None => return Some(Verdict::Wrong(format!("no branch has block {hash}"))),
        }
    }
    let conflict = conflict(world, &positions);
    conflict.or_else(|| misplaced_transaction(world, &value)).map(Verdict::Mixed)
}

/// Returns the first argument as a hash.
pub(super) fn hash_argument(params: Option<&[u8]>) -> Option<B256> {
    read_hash(first_argument(params)?.as_str()?)
}

/// Returns the first argument as bytes.
pub(super) fn bytes_argument(params: Option<&[u8]>) -> Option<Vec<u8>> {
    read_bytes(first_argument(params)?.as_str()?)
}

/// Returns true if the first argument is the newest block.
pub(super) fn requests_latest(params: Option<&[u8]>) -> bool {
    let first = first_argument(params);
    first.is_some_and(|first| first == "latest" || first == "pending" || first == -1)
}

fn first_argument(params: Option<&[u8]>) -> Option<Value> {
    let values: Vec<Value> = serde_json::from_slice(params?).ok()?;
    values.into_iter().next()
}

/// Returns the hash of the result itself, if it is a block. Only blocks have a parent.
fn own_hash(value: &Value) -> Option<B256> {
    value.get("parentHash")?;
    let own = value.get("hash").or_else(|| value.get("blockHash"))?;
    read_hash(own.as_str()?)
}

/// Collects every `blockHash` at any depth.
fn collect_block_hashes(value: &Value, into: &mut BTreeSet<B256>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_block_hashes(item, into)),
        Value::Object(members) => {
            let named = members.get("blockHash").and_then(Value::as_str);
            into.extend(named.and_then(read_hash));
            members.values().for_each(|member| collect_block_hashes(member, into));
            if own_hash(value).is_some() {
                into.extend(own_hash(value));
            }
        }
        _ => {}
    }
}

/// Finds two positions that no view has together.
fn conflict(world: &World, positions: &[BlockPosition]) -> Option<String> {
    let (mut first, mut last) = (0, u64::MAX);
    let (mut from, mut until) = (positions.first()?, positions.first()?);
    for position in positions {
        let (appeared, dropped) = world.schedule().heads_with(position.branch, position.number);
        if appeared > first {
            (first, from) = (appeared, position);
        }
        if dropped.is_some_and(|dropped| dropped < last) {
            (last, until) = (dropped.unwrap_or(u64::MAX), position);
        }
    }
    (first > last).then(|| {
        format!(
            "block {} of branch {} appeared with head {first}, after block {} of branch {} was dropped",
            from.number, from.branch, until.number, until.branch
        )
    })
}

/// Finds a transaction in a block's list that belongs to another block.
fn misplaced_transaction(world: &World, value: &Value) -> Option<String> {
    let block = world.position_of(&own_hash(value)?)?;
    for transaction in value.get("transactions")?.as_array()? {
        let hash = transaction.get("hash").unwrap_or(transaction).as_str().and_then(read_hash)?;
        let positions = world.positions_of(&hash);
        if !positions.is_empty() && !positions.iter().any(|(position, _)| *position == block) {
            let other = positions[0].0;
            return Some(format!(
                "transaction {hash} is in block {} of branch {}, not in block {} of branch {}",
                other.number, other.branch, block.number, block.branch
            ));
        }
    }
    None
}
