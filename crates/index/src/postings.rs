//! Log postings are the inverted index for log searches: they map each address and each topic to
//! the transactions whose logs contain that value.
//!
//! A position is a transaction's block number and index in one integer, so positions sort in the
//! order of the chain. A posting list holds the positions of one key within a few hundred blocks.
//! The row of a list has the first position in a column of its own. Each further position is stored
//! as the difference from the previous position. LEB128 encodes these differences with seven bits
//! in each byte.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::FixedState;

#[cfg(test)]
mod tests;

/// Number of bits of a position that hold the transaction's index. A block has fewer than 2^20
/// transactions: a transaction takes at least 21,000 gas, and no chain has blocks of 2 * 10^10 gas.
pub const INDEX_BITS: u32 = 20;
/// The greatest index of a transaction.
pub const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

/// The greatest block number. A chain with one block per millisecond reaches it after 278 years.
pub const BLOCK_NUMBER_MAX: u64 = (1 << (63 - INDEX_BITS)) - 1;

/// Returns the position of the transaction with this index in the block with this number. An index
/// above [`INDEX_MAX`] counts as [`INDEX_MAX`].
pub fn position(number: u64, index: u64) -> i64 {
    (number << INDEX_BITS | index.min(INDEX_MAX)) as i64
}

/// Returns the block number and the transaction index of a position.
pub fn block_and_index(position: i64) -> (u64, u64) {
    let position = position as u64;
    (position >> INDEX_BITS, position & INDEX_MAX)
}

/// The key of a posting list: a digest of an address, or of a topic and its index in the log. Two
/// digests may collide, so a search must compare the logs themselves with the filter.
pub type PostingKey = i64;

/// Returns the key of an address.
pub fn address_key(address: &[u8; 20]) -> PostingKey {
    digest(0, address)
}

/// Returns the key of the topic with this index in a log, counted from 0.
pub fn topic_key(topic_index: usize, topic: &[u8; 32]) -> PostingKey {
    digest(topic_index as u64 + 1, topic)
}

/// Returns the digest of an address or topic. `kind` is 0 for an address, and 1 plus the index of a
/// topic. Files store digests, so the function must never change. Each word is multiplied to 128
/// bits and the two halves are combined, as in wyhash (<https://github.com/wangyi-fudan/wyhash>).
fn digest(kind: u64, bytes: &[u8]) -> i64 {
    /// The first two constants of wyhash.
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

/// Returns the keys of a log with this address and these topics.
pub fn log_keys<'a>(
    address: &'a [u8; 20],
    topics: &'a [[u8; 32]],
) -> impl Iterator<Item = PostingKey> + 'a {
    let topics =
        topics.iter().enumerate().map(|(topic_index, topic)| topic_key(topic_index, topic));
    std::iter::once(address_key(address)).chain(topics)
}

/// Collects positions into posting lists.
#[derive(Debug, Default)]
pub struct PostingLists {
    lists: HashMap<PostingKey, PostingList, FixedState>,
}

/// A posting list as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedList {
    /// The key.
    pub key: PostingKey,
    /// The first position.
    pub first: i64,
    /// The positions after the first, encoded.
    pub rest: Vec<u8>,
}

/// A posting list to which positions are added.
#[derive(Debug)]
struct PostingList {
    /// The first position.
    first: i64,
    /// The last position.
    last: i64,
    /// The positions after the first, encoded.
    rest: Vec<u8>,
}

impl PostingLists {
    /// Adds a position to the list of a key. The positions of a key must be added in ascending
    /// order. A repeated position is ignored.
    pub fn add(&mut self, key: PostingKey, position: i64) {
        match self.lists.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(PostingList { first: position, last: position, rest: Vec::new() });
            }
            Entry::Occupied(mut slot) => {
                let list = slot.get_mut();
                if position > list.last {
                    push_varint(&mut list.rest, (position - list.last) as u64);
                    list.last = position;
                }
            }
        }
    }

    /// Returns true if there are no lists.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Removes all lists and returns them in ascending order of keys, the order of their table.
    pub fn drain(&mut self) -> Vec<EncodedList> {
        let encode = |(key, PostingList { first, rest, .. })| EncodedList { key, first, rest };
        let mut rows: Vec<EncodedList> = self.lists.drain().map(encode).collect();
        rows.sort_unstable_by_key(|list| list.key);
        rows
    }
}

/// Decodes the positions of a list in ascending order. Ends early if `rest` is truncated.
pub fn decode(first: i64, rest: &[u8]) -> impl Iterator<Item = i64> + '_ {
    let mut bytes = rest;
    let mut position = first;
    let later_positions = std::iter::from_fn(move || {
        let difference = read_varint(&mut bytes)?;
        position = position.checked_add_unsigned(difference)?;
        Some(position)
    });
    std::iter::once(first).chain(later_positions)
}

/// Encodes the positions of a list except the first. The positions must ascend.
pub fn encode_rest(positions: &[i64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for pair in positions.windows(2) {
        push_varint(&mut bytes, (pair[1] - pair[0]) as u64);
    }
    bytes
}

/// Appends a number with seven bits in each byte, the lowest first (LEB128).
fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a LEB128 number, and removes it from the start of `bytes`. Returns `None` if the number is
/// truncated or too long.
fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
