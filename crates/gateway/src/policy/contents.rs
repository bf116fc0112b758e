//! Bloom filters and transaction lists from the headers of recent blocks.
//!
//! Upstreams announce a block before they have indexed its logs and receipts. The header is
//! complete from the start. Its bloom filter and its transactions show whether a response about the
//! block can be complete (`policy/complete.rs`). [`Headers`] stores them for the newest blocks of
//! one chain.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use alloy_primitives::keccak256;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::logs::LogMatcher;
use wire::quantity;

use crate::policy::heads::Hash;

#[cfg(test)]
pub(super) mod tests;

/// Maximum number of stored blocks: twice the usual window of the served chain, because a reorg
/// adds blocks of a second branch.
pub const BLOCKS_MAX: usize = 512;
/// Maximum number of transactions of all stored blocks together, at eight bytes each.
pub const TRANSACTIONS_MAX: usize = 1 << 18;
/// Maximum number of addresses, or of topics of one position, to look up in a bloom filter. Each
/// costs one hash.
const ALTERNATIVES_MAX: usize = 64;

/// Bytes of a bloom filter (yellow paper 4.3.1).
const BLOOM_BYTES: usize = 256;

/// The stored part of one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Height of the block.
    pub number: u64,
    /// Time when the gateway first received the header.
    pub received_at: Duration,
    bloom: Option<Box<[u8; BLOOM_BYTES]>>,
    /// The first eight bytes of each transaction's hash, sorted. `None` if the header has no list.
    transactions: Option<Box<[u64]>>,
}

impl Contents {
    /// Parses a raw block that lists its transactions by hash.
    pub fn read(raw: &[u8], received_at: Duration) -> Option<Contents> {
        let [number, bloom, transactions] =
            walk::fields_of(raw, ["number", "logsBloom", "transactions"]);
        let transactions = transactions.filter(|raw| raw.first() == Some(&b'[')).map(|raw| {
            let mut prefixes: Vec<u64> = walk::elements(raw).filter_map(hash_prefix).collect();
            prefixes.sort_unstable();
            prefixes.into_boxed_slice()
        });
        Some(Contents {
            number: quantity::from_value(number?)?,
            received_at,
            bloom: bloom.and_then(read_bloom),
            transactions,
        })
    }

    /// Returns true if the block may have matching logs; `None` if the header has no bloom filter.
    pub fn may_have(&self, query: &BloomQuery) -> Option<bool> {
        let bloom = self.bloom.as_deref()?;
        let has_bits = |bits: &[u16; 3]| {
            bits.iter().all(|bit| {
                let byte = BLOOM_BYTES - 1 - usize::from(bit / 8);
                bloom[byte] & (1 << (bit % 8)) != 0
            })
        };
        let is_filled = bloom.iter().any(|byte| *byte != 0);
        let matches = query.positions.iter().all(|alternatives| alternatives.iter().any(has_bits));
        Some(is_filled && matches)
    }

    /// Returns the number of transactions, if the header lists them.
    pub fn transactions(&self) -> Option<usize> {
        self.transactions.as_ref().map(|list| list.len())
    }

    fn has_transaction(&self, prefix: u64) -> bool {
        self.transactions.as_ref().is_some_and(|list| list.binary_search(&prefix).is_ok())
    }
}

/// Returns the first eight bytes of a raw hash.
fn hash_prefix(raw: &[u8]) -> Option<u64> {
    let hash = wire::hex::hash_from_value(raw)?;
    Some(u64::from_be_bytes(hash[..8].try_into().ok()?))
}

fn read_bloom(raw: &[u8]) -> Option<Box<[u8; BLOOM_BYTES]>> {
    let text = JsonString::from_value(raw)?;
    let text = text.decode();
    let digits = text.strip_prefix(b"0x")?;
    if digits.len() != BLOOM_BYTES * 2 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bloom = Box::new([0; BLOOM_BYTES]);
    for (byte, pair) in bloom.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bloom)
}

/// The bloom filter bits that a log filter requires. Empty for a filter that matches all logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BloomQuery {
    /// For the addresses and for each topic position: the alternatives, of which one must match.
    positions: Vec<Vec<[u16; 3]>>,
}

impl BloomQuery {
    /// Computes the bits of a log filter. A position with too many alternatives is omitted.
    pub fn new(selection: &LogMatcher) -> BloomQuery {
        let is_bounded = |count: usize| count > 0 && count <= ALTERNATIVES_MAX;
        let addresses = selection.addresses();
        let addresses = is_bounded(addresses.len())
            .then(|| addresses.iter().map(|address| bits_of(address)).collect());
        let topics = selection.topics().iter().filter(|topics| is_bounded(topics.len()));
        let topics = topics.map(|topics| topics.iter().map(|topic| bits_of(topic)).collect());
        BloomQuery { positions: addresses.into_iter().chain(topics).collect() }
    }
}

/// Returns the three bits of an entry (yellow paper 4.3.1, go-ethereum `core/types/bloom9.go`).
fn bits_of(entry: &[u8]) -> [u16; 3] {
    let hash = keccak256(entry);
    std::array::from_fn(|index| u16::from_be_bytes([hash[index * 2], hash[index * 2 + 1]]) & 0x7ff)
}

/// Headers of the newest blocks of one chain, by hash.
#[derive(Debug, Default)]
pub struct Headers {
    blocks: HashMap<Hash, Contents, foldhash::fast::RandomState>,
    /// Hashes of the stored blocks, the oldest first.
    order: VecDeque<Hash>,
    /// Number of transactions of all stored blocks.
    transactions: usize,
    /// True after a block had logs that its bloom filter excludes: nodes of this chain do not fill
    /// the filters.
    blooms_unfilled: bool,
}

impl Headers {
    /// Stores a header. The arrival time of a known header does not change.
    pub fn insert(&mut self, hash: Hash, contents: Contents) {
        if self.blocks.contains_key(&hash) {
            return;
        }
        self.transactions += contents.transactions().unwrap_or(0);
        self.blocks.insert(hash, contents);
        self.order.push_back(hash);
        while self.order.len() > BLOCKS_MAX || self.transactions > TRANSACTIONS_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            let removed = self.blocks.remove(&oldest);
            self.transactions -= removed.and_then(|block| block.transactions()).unwrap_or(0);
        }
    }

    /// Returns true if the header is known.
    pub fn has(&self, hash: &Hash) -> bool {
        self.blocks.contains_key(hash)
    }

    /// Returns a header.
    pub fn get(&self, hash: &Hash) -> Option<&Contents> {
        self.blocks.get(hash)
    }

    /// Returns true if a block may have matching logs; `None` if that is unknown.
    pub fn may_have(&self, block: &Contents, query: &BloomQuery) -> Option<bool> {
        if self.blooms_unfilled { None } else { block.may_have(query) }
    }

    /// Ignores bloom filters from now on, because a block had logs that its filter excludes.
    pub fn distrust_blooms(&mut self) {
        self.blooms_unfilled = true;
    }

    /// Returns the known blocks that contain a transaction, by its raw hash.
    pub fn blocks_with(&self, transaction: &[u8]) -> impl Iterator<Item = (&Hash, &Contents)> {
        let prefix = hash_prefix(transaction);
        self.blocks
            .iter()
            .filter(move |(_, block)| prefix.is_some_and(|prefix| block.has_transaction(prefix)))
    }
}
