//! The reason why a response is wrong: the blocks that it names, and whether one view has all of them.
//! The oracle needs this only if a response was not right, so it may be slow.

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
    name_blocks(&value, &mut named);
    if let Some(own) = own_hash(&value) {
        named.insert(own);
    }
    let mut places = Vec::new();
    for hash in named {
        match world.place_of(&hash) {
            Some(place) => places.push(place),
            None => return Some(Verdict::Wrong(format!("no chain holds block {hash}"))),
        }
    }
    let clash = clash(world, &places);
    clash.or_else(|| foreign_transaction(world, &value)).map(Verdict::Mixed)
}

/// The first argument as a hash.
pub(super) fn hash_argument(params: Option<&[u8]>) -> Option<B256> {
    read_hash(first_argument(params)?.as_str()?)
}

/// The first argument as bytes.
pub(super) fn bytes_argument(params: Option<&[u8]>) -> Option<Vec<u8>> {
    read_bytes(first_argument(params)?.as_str()?)
}

/// Returns true if the first argument is the newest block.
pub(super) fn asks_latest(params: Option<&[u8]>) -> bool {
    let first = first_argument(params);
    first.is_some_and(|first| first == "latest" || first == "pending" || first == -1)
}

fn first_argument(params: Option<&[u8]>) -> Option<Value> {
    let values: Vec<Value> = serde_json::from_slice(params?).ok()?;
    values.into_iter().next()
}

/// The hash of the result itself, if it is a block. Only blocks have a parent.
fn own_hash(value: &Value) -> Option<B256> {
    value.get("parentHash")?;
    let own = value.get("hash").or_else(|| value.get("blockHash"))?;
    read_hash(own.as_str()?)
}

/// Collects every `blockHash` at any depth.
fn name_blocks(value: &Value, into: &mut BTreeSet<B256>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| name_blocks(item, into)),
        Value::Object(members) => {
            let named = members.get("blockHash").and_then(Value::as_str);
            into.extend(named.and_then(read_hash));
            members.values().for_each(|member| name_blocks(member, into));
            if own_hash(value).is_some() {
                into.extend(own_hash(value));
            }
        }
        _ => {}
    }
}

/// Finds two positions that no view has together.
fn clash(world: &World, places: &[BlockPosition]) -> Option<String> {
    let (mut first, mut last) = (0, u64::MAX);
    let (mut from, mut until) = (places.first()?, places.first()?);
    for place in places {
        let (appeared, dropped) = world.schedule().heads_with(place.branch, place.number);
        if appeared > first {
            (first, from) = (appeared, place);
        }
        if dropped.is_some_and(|dropped| dropped < last) {
            (last, until) = (dropped.unwrap_or(u64::MAX), place);
        }
    }
    (first > last).then(|| {
        format!(
            "block {} of branch {} appeared with head {first}, when block {} of branch {} was gone",
            from.number, from.branch, until.number, until.branch
        )
    })
}

/// Finds a transaction in a block's list that belongs to another block.
fn foreign_transaction(world: &World, value: &Value) -> Option<String> {
    let block = world.place_of(&own_hash(value)?)?;
    for transaction in value.get("transactions")?.as_array()? {
        let hash = transaction.get("hash").unwrap_or(transaction).as_str().and_then(read_hash)?;
        let places = world.places_of(&hash);
        if !places.is_empty() && !places.iter().any(|(place, _)| *place == block) {
            let other = places[0].0;
            return Some(format!(
                "transaction {hash} stands in block {} of branch {}, not in block {} of branch {}",
                other.number, other.branch, block.number, block.branch
            ));
        }
    }
    None
}
