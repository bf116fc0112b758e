//! Headers of recent blocks: their bloom filters of logs and their lists of transactions.
//!
//! Upstreams announce a block before they have indexed its logs and receipts. The header is
//! complete from the start. Its bloom filter and its transactions show whether a response about the
//! block can be complete (`policy/complete.rs`).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use alloy_primitives::keccak256;
use wire::hex::{hash_from_value, parse_digits};
use wire::json::string::JsonString;
use wire::json::walk;
use wire::logs::{LogFields, LogMatcher};
use wire::quantity;

use crate::policy::branch::Hash;

#[cfg(test)]
pub(super) mod tests;

/// Maximum number of stored blocks: twice `heads::WINDOW`, the usual number of known blocks of the
/// served chain. A reorg adds blocks of a second branch.
pub const BLOCKS_MAX: usize = 512;
/// Maximum number of transactions of all stored blocks together, at eight bytes each.
pub const TRANSACTIONS_MAX: usize = 1 << 18;
/// A criterion of a log filter lists alternative addresses, or alternative topics of one position.
/// A criterion with more alternatives than this is ignored, because each costs one hash.
const ALTERNATIVES_MAX: usize = 64;

/// Bytes of a bloom filter (yellow paper 4.3.1).
const BLOOM_BYTES: usize = 256;

/// The stored part of one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHeader {
    /// Height of the block.
    pub number: u64,
    /// Time when the gateway first received the header.
    pub received_at: Duration,
    /// The bloom filter of the block's logs. `None` if the header has no valid one.
    bloom: Option<Box<[u8; BLOOM_BYTES]>>,
    /// The first eight bytes of each transaction's hash, sorted. `None` if the header has no list.
    transactions: Option<Box<[u64]>>,
}

impl BlockHeader {
    /// Parses the JSON of a block that lists its transactions by hash. Returns `None` if the block
    /// has no valid number.
    pub fn parse(raw: &[u8], received_at: Duration) -> Option<BlockHeader> {
        let [number, bloom, transactions] =
            walk::fields_of(raw, ["number", "logsBloom", "transactions"]);
        let transactions = transactions.filter(|raw| raw.first() == Some(&b'[')).map(|raw| {
            let mut prefixes: Vec<u64> = walk::elements(raw).filter_map(hash_prefix).collect();
            prefixes.sort_unstable();
            prefixes.into_boxed_slice()
        });
        Some(BlockHeader {
            number: quantity::from_value(number?)?,
            received_at,
            bloom: bloom.and_then(parse_bloom),
            transactions,
        })
    }

    /// Returns whether the block may have logs that match the query; `None` if the header has no
    /// bloom filter.
    pub fn may_have(&self, query: &BloomQuery) -> Option<bool> {
        let bloom = self.bloom.as_deref()?;
        let has_bits =
            |bits: &[u16; 3]| bits.iter().all(|bit| bloom[byte_of(*bit)] & (1 << (bit % 8)) != 0);
        // An empty filter means that the block has no logs.
        let is_filled = bloom.iter().any(|byte| *byte != 0);
        let matches = query.criteria.iter().all(|alternatives| alternatives.iter().any(has_bits));
        Some(is_filled && matches)
    }

    /// Returns true if the bloom filter has bits that none of these logs sets, so that the block has
    /// further logs. Returns `None` if the header has no bloom filter.
    pub fn has_further_logs<'a>(
        &self,
        logs: impl IntoIterator<Item = &'a LogFields>,
    ) -> Option<bool> {
        let mut bloom = self.bloom.as_deref()?.to_owned();
        for log in logs {
            let topics = log.topics.iter().map(|topic| &topic[..]);
            for entry in topics.chain([&log.address[..]]) {
                for bit in bloom_bits(entry) {
                    bloom[byte_of(bit)] &= !(1 << (bit % 8));
                }
            }
        }
        Some(bloom.iter().any(|byte| *byte != 0))
    }

    /// Returns the number of transactions, if the header lists them.
    pub fn transaction_count(&self) -> Option<usize> {
        self.transactions.as_ref().map(|list| list.len())
    }
}

/// Returns the first eight bytes of a hash that is given as a JSON string. Returns `None` if the
/// value is no hash.
fn hash_prefix(raw: &[u8]) -> Option<u64> {
    let hash = hash_from_value(raw)?;
    Some(u64::from_be_bytes(hash[..8].try_into().ok()?))
}

fn parse_bloom(raw: &[u8]) -> Option<Box<[u8; BLOOM_BYTES]>> {
    let text = JsonString::from_value(raw)?;
    let text = text.decode();
    parse_digits(text.strip_prefix(b"0x")?).map(Box::new)
}

/// The bloom filter bits that a log filter requires. Empty for a filter that matches all logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BloomQuery {
    /// One criterion for the addresses and one for each topic position. A criterion lists
    /// alternatives, and a block must match one of them. An alternative consists of the numbers of
    /// three bits that must be set in the bloom filter.
    criteria: Vec<Vec<[u16; 3]>>,
}

impl BloomQuery {
    /// Computes the bits of a log filter. A criterion with too many alternatives is omitted.
    /// Without the criterion the query may match more blocks than necessary, but never too few.
    pub fn new(selection: &LogMatcher) -> BloomQuery {
        let is_bounded = |count: usize| count > 0 && count <= ALTERNATIVES_MAX;
        let addresses = &selection.addresses;
        let addresses = is_bounded(addresses.len())
            .then(|| addresses.iter().map(|address| bloom_bits(address)).collect());
        let topics = selection.topics.iter().filter(|topics| is_bounded(topics.len()));
        let topics = topics.map(|topics| topics.iter().map(|topic| bloom_bits(topic)).collect());
        BloomQuery { criteria: addresses.into_iter().chain(topics).collect() }
    }
}

/// Returns the position of the byte with a bit of a bloom filter. Bit 0 is the lowest bit of the last
/// byte.
fn byte_of(bit: u16) -> usize {
    BLOOM_BYTES - 1 - usize::from(bit / 8)
}

/// Returns the numbers of the three bits that an address or topic sets in a bloom filter (yellow
/// paper 4.3.1, go-ethereum `core/types/bloom9.go`).
fn bloom_bits(entry: &[u8]) -> [u16; 3] {
    let hash = keccak256(entry);
    std::array::from_fn(|index| u16::from_be_bytes([hash[index * 2], hash[index * 2 + 1]]) & 0x7ff)
}

/// Headers of the newest blocks of one chain, by hash.
#[derive(Debug, Default)]
pub struct RecentHeaders {
    blocks: HashMap<Hash, BlockHeader, foldhash::fast::RandomState>,
    /// Hashes of the stored blocks, the oldest first.
    order: VecDeque<Hash>,
    /// Number of transactions of all stored blocks.
    transactions: usize,
    /// True after a block had logs that its bloom filter excludes. Such a block shows that nodes of
    /// this chain do not fill the filters.
    has_unfilled_blooms: bool,
}

impl RecentHeaders {
    /// Stores a header, and drops the oldest headers above the maximum. A header that is already
    /// stored keeps its arrival time.
    pub fn insert(&mut self, hash: Hash, header: BlockHeader) {
        if self.blocks.contains_key(&hash) {
            return;
        }
        self.transactions += header.transaction_count().unwrap_or(0);
        self.blocks.insert(hash, header);
        self.order.push_back(hash);
        while self.order.len() > BLOCKS_MAX || self.transactions > TRANSACTIONS_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            let removed = self.blocks.remove(&oldest);
            self.transactions -= removed.and_then(|header| header.transaction_count()).unwrap_or(0);
        }
    }

    /// Returns a stored header.
    pub fn get(&self, hash: &Hash) -> Option<&BlockHeader> {
        self.blocks.get(hash)
    }

    /// Returns whether a block may have logs that match the query. Returns `None` if the block has
    /// no bloom filter, or if the bloom filters of the chain are not trusted.
    pub fn may_have(&self, block: &BlockHeader, query: &BloomQuery) -> Option<bool> {
        if self.trusts_blooms() { block.may_have(query) } else { None }
    }

    /// Returns false if nodes of this chain do not fill the bloom filters.
    pub fn trusts_blooms(&self) -> bool {
        !self.has_unfilled_blooms
    }

    /// Ignores bloom filters from now on, because a block had logs that its filter excludes.
    pub fn distrust_blooms(&mut self) {
        self.has_unfilled_blooms = true;
    }

    /// Returns the known blocks that may contain a transaction. `transaction` is the transaction's
    /// hash as a JSON string. Only the first eight bytes of hashes are compared, so a returned
    /// block may lack the transaction.
    pub fn blocks_with(&self, transaction: &[u8]) -> impl Iterator<Item = (&Hash, &BlockHeader)> {
        let prefix = hash_prefix(transaction);
        self.blocks.iter().filter(move |(_, header)| {
            let list = header.transactions.as_deref().unwrap_or_default();
            prefix.is_some_and(|prefix| list.binary_search(&prefix).is_ok())
        })
    }
}
