//! Finds evidence in a wrong response: a block that is on no branch, or blocks that were never on
//! one chain together. The oracle searches only wrong responses, so the search may be slow.
//!
//! A reorg starts a new *branch* of the simulated chain. A *view* is the chain up to one head, as
//! it is while this head is the newest block. Evidence that a block is on no branch gives
//! `Verdict::Wrong`. Evidence of blocks that no view has together gives `Verdict::Mixed`.

use std::collections::BTreeSet;

use alloy_primitives::B256;
use serde_json::Value;

use super::Verdict;
use crate::hex::{read_bytes, read_hash};
use crate::world::World;
use crate::world::block_index::BlockPosition;

/// Searches a result for evidence. Returns `None` if there is no evidence. The verdict is `Wrong`
/// if the result is not JSON, or has a block that is on no branch. The verdict is `Mixed` if no
/// view has all blocks of the result, or if a block of the result has a transaction of another
/// block.
pub(super) fn examine(world: &World, result: &[u8]) -> Option<Verdict> {
    let Ok(value) = serde_json::from_slice::<Value>(result) else {
        return Some(Verdict::Wrong("the result is not JSON".to_owned()));
    };
    let mut hashes = BTreeSet::new();
    collect_block_hashes(&value, &mut hashes);
    let mut positions = Vec::new();
    for hash in hashes {
        match world.position_of(&hash) {
            Some(position) => positions.push(position),
            None => return Some(Verdict::Wrong(format!("no branch has block {hash}"))),
        }
    }
    find_conflict(world, &positions)
        .or_else(|| find_misplaced_transaction(world, &value))
        .map(Verdict::Mixed)
}

/// Returns the first argument as a hash.
pub(super) fn hash_argument(params: Option<&[u8]>) -> Option<B256> {
    read_hash(first_argument(params)?.as_str()?)
}

/// Returns the first argument as bytes.
pub(super) fn bytes_argument(params: Option<&[u8]>) -> Option<Vec<u8>> {
    read_bytes(first_argument(params)?.as_str()?)
}

/// Returns true if the first argument is a tag for the newest block: `latest`, `pending` or, on
/// Harmony, -1.
pub(super) fn requests_latest(params: Option<&[u8]>) -> bool {
    let first = first_argument(params);
    first.is_some_and(|first| first == "latest" || first == "pending" || first == -1)
}

fn first_argument(params: Option<&[u8]>) -> Option<Value> {
    let values: Vec<Value> = serde_json::from_slice(params?).ok()?;
    values.into_iter().next()
}

/// Returns the hash of a value that is a block or a header. Returns `None` for any other value.
/// Only blocks and headers have a parent.
fn hash_of_block(value: &Value) -> Option<B256> {
    value.get("parentHash")?;
    let hash = value.get("hash").or_else(|| value.get("blockHash"))?;
    read_hash(hash.as_str()?)
}

/// Collects every `blockHash` at any depth, and the hash of every block.
fn collect_block_hashes(value: &Value, hashes: &mut BTreeSet<B256>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_block_hashes(item, hashes)),
        Value::Object(members) => {
            let block_hash = members.get("blockHash").and_then(Value::as_str);
            hashes.extend(block_hash.and_then(read_hash));
            members.values().for_each(|member| collect_block_hashes(member, hashes));
            hashes.extend(hash_of_block(value));
        }
        _ => {}
    }
}

/// Finds two blocks that no view has together, and returns a message about them. Returns `None` if
/// one view has all blocks. A position is the branch and the number of a block.
fn find_conflict(world: &World, positions: &[BlockPosition]) -> Option<String> {
    // A view has all blocks so far if its head is from `first_head` to `last_head`. `newest` is the
    // block that determines `first_head`, and `earliest_dropped` the one that determines
    // `last_head`.
    let (mut first_head, mut last_head) = (0, u64::MAX);
    let (mut newest, mut earliest_dropped) = (positions.first()?, positions.first()?);
    for position in positions {
        // The heads of the first and the last view with this block. There is no last view if no
        // reorg drops the block.
        let (first, last) = world.schedule().heads_with(position.branch, position.number);
        if first > first_head {
            (first_head, newest) = (first, position);
        }
        if let Some(last) = last.filter(|last| *last < last_head) {
            (last_head, earliest_dropped) = (last, position);
        }
    }
    (first_head > last_head).then(|| {
        format!(
            "block {} of branch {} appeared with head {first_head}, after block {} of branch {} was dropped",
            newest.number, newest.branch, earliest_dropped.number, earliest_dropped.branch
        )
    })
}

/// If the value is a block, finds a transaction in its list that belongs to another block, and
/// returns a message about it. Returns `None` if there is no such transaction, or if the value is
/// not a block.
fn find_misplaced_transaction(world: &World, value: &Value) -> Option<String> {
    let block = world.position_of(&hash_of_block(value)?)?;
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
