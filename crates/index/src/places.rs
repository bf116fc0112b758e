//! Where logs with some address or topic are: lists of transactions, short enough to be read often.
//!
//! A place is a transaction: its block's number and its index in one number, so that places sort as
//! the chain does. A list holds the places of one key within some blocks.

use std::collections::HashMap;

use foldhash::fast::FixedState;

#[cfg(test)]
mod tests;

/// Bits of a place that tell the transaction's index; a block has fewer than 2^20 transactions (one
/// takes 21,000 gas, and no chain has blocks of 2 * 10^10).
pub const INDEX_BITS: u32 = 20;
/// Greatest index of a transaction.
pub const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

/// Greatest number of a block: at one per millisecond it is reached after 278 years.
pub const NUMBER_MAX: u64 = (1 << (63 - INDEX_BITS)) - 1;

/// The place of a transaction.
pub fn place(number: u64, index: u64) -> i64 {
    (number << INDEX_BITS | index.min(INDEX_MAX)) as i64
}

/// Number of the block and index of the transaction at a place.
pub fn parts(place: i64) -> (u64, u64) {
    let place = place as u64;
    (place >> INDEX_BITS, place & INDEX_MAX)
}

/// What logs are found by: a digest of an address, or of a topic and its position. Two may share
/// one, so what is found has to be looked at.
pub type Key = i64;

/// The key of an address.
pub fn address_key(address: &[u8; 20]) -> Key {
    digest(0, address)
}

/// The key of a topic at a position, from 0.
pub fn topic_key(position: usize, topic: &[u8; 32]) -> Key {
    digest(position as u64 + 1, topic)
}

/// Stands in files: may never change. Each word is mixed in by a multiplication to 128 bits whose
/// halves are folded, as in wyhash (<https://github.com/wangyi-fudan/wyhash>).
fn digest(kind: u64, bytes: &[u8]) -> i64 {
    const SECRETS: [u64; 2] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db];
    let mix = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mut state = mix(kind ^ SECRETS[0], SECRETS[1]);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state =
            mix(state ^ u64::from_le_bytes(word), SECRETS[1] ^ SECRETS[0]) ^ state.rotate_left(7);
    }
    mix(state, SECRETS[1]) as i64
}

/// The keys of a log with this address and these topics.
pub fn keys_of<'a>(
    address: &'a [u8; 20],
    topics: &'a [[u8; 32]],
) -> impl Iterator<Item = Key> + 'a {
    let topics = topics.iter().enumerate().map(|(at, topic)| topic_key(at, topic));
    std::iter::once(address_key(address)).chain(topics)
}

/// Lists while they grow, by key.
#[derive(Debug, Default)]
pub struct Lists {
    lists: HashMap<Key, List, FixedState>,
}

#[derive(Debug)]
struct List {
    first: i64,
    last: i64,
    bytes: Vec<u8>,
}

impl Lists {
    /// Notes a place under a key. Places of a key come in order.
    pub fn note(&mut self, key: Key, place: i64) {
        match self.lists.entry(key) {
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(List { first: place, last: place, bytes: Vec::new() });
            }
            std::collections::hash_map::Entry::Occupied(mut slot) => {
                let list = slot.get_mut();
                if place > list.last {
                    push_varint(&mut list.bytes, (place - list.last) as u64);
                    list.last = place;
                }
            }
        }
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// All lists in the order of their keys, which is that of the table: key, first place, the
    /// others.
    pub fn drain(&mut self) -> Vec<(Key, i64, Vec<u8>)> {
        let mut rows: Vec<_> =
            self.lists.drain().map(|(key, list)| (key, list.first, list.bytes)).collect();
        rows.sort_unstable_by_key(|row| row.0);
        rows
    }
}

/// The places of a list, in order.
pub fn places(first: i64, bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    let mut rest = bytes;
    let mut place = first;
    let others = std::iter::from_fn(move || {
        let step = take_varint(&mut rest)?;
        place = place.checked_add_unsigned(step)?;
        Some(place)
    });
    std::iter::once(first).chain(others)
}

/// A list of these places in order, without the first.
pub fn pack(places: &[i64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for pair in places.windows(2) {
        push_varint(&mut bytes, (pair[1] - pair[0]) as u64);
    }
    bytes
}

/// Seven bits a byte, the lowest first (LEB128).
fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
