//! The rows that both backends write and read.
//!
//! A position is a transaction's block number and index in one `i64`. A posting list holds the
//! positions of the transactions whose logs contain one address or topic (`postings.rs`).
//!
//! Some columns have short names: `short` holds the first eight bytes of a hash. `first` holds the
//! first position of a posting list, and `rest` the further positions, encoded.

use crate::fragments::BlockHeader;
use crate::postings::{self, EncodedList, PostingKey, PostingLists, position};

/// A migration of both backends. It renames tables, columns and facts to standard terms. A fact is
/// a row of the table `facts`, which holds the properties of the index.
pub(super) const RENAMES: &str = "
    ALTER TABLE log_places RENAME TO log_postings;
    ALTER TABLE log_postings RENAME COLUMN others TO rest;
    ALTER TABLE transactions RENAME COLUMN place TO position;
    ALTER TABLE transaction_hashes RENAME COLUMN place TO position;
    UPDATE facts SET name = 'contents' WHERE name = 'what';
    UPDATE facts SET name = 'verification' WHERE name = 'verified';
    UPDATE facts SET name = 'differing_forms' WHERE name = 'unlike';
    UPDATE facts SET name = 'untested_forms' WHERE name = 'untried';
";

/// Maximum number of blocks from the first to the last position of a posting list. A search on a
/// server relies on this limit to find the list that begins before a range and reaches into it.
pub(super) const LIST_BLOCKS_MAX: u64 = 256;

/// A block to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlock {
    /// The block's number, hash, parent and timestamp.
    pub header: BlockHeader,
    /// The compressed block without its transactions.
    pub body: Vec<u8>,
    /// The compressed block as Harmony's `hmyv2_` methods write it; `None` if the index does not
    /// hold that form.
    pub harmony: Option<Vec<u8>>,
    /// The transactions by index.
    pub transactions: Vec<NewTransaction>,
    /// The number of logs.
    pub log_count: u64,
    /// Bytes of the node's responses about the block.
    pub response_bytes: u64,
}

/// A transaction to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTransaction {
    /// The index in the block.
    pub index: u64,
    /// The transaction's hash.
    pub hash: [u8; 32],
    /// The compressed receipt, or the compressed logs if the index holds logs without receipts;
    /// `None` if there is neither.
    pub receipt: Option<Vec<u8>>,
    /// The compressed transaction; `None` if the index does not hold transactions.
    pub body: Option<Vec<u8>>,
    /// The posting keys of the transaction's logs.
    pub posting_keys: Vec<PostingKey>,
}

impl NewBlock {
    /// Returns the number of bytes of the compressed fragments.
    pub fn compressed_bytes(&self) -> usize {
        let transactions = self.transactions.iter().flat_map(|row| [&row.receipt, &row.body]);
        let fragments = transactions.chain([&self.harmony]).flatten();
        self.body.len() + fragments.map(Vec::len).sum::<usize>()
    }
}

/// A stored block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: [u8; 32],
    /// The block's time in seconds since 1970.
    pub timestamp: u64,
    /// The number of transactions.
    pub transaction_count: u64,
    /// The compressed block without its transactions.
    pub body: Vec<u8>,
}

/// A stored block as Harmony's `hmyv2_` methods write it.
#[derive(Debug, Clone, Copy)]
pub struct HarmonyRow<'a> {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: [u8; 32],
    /// The block's time in seconds since 1970.
    pub timestamp: u64,
    /// The compressed block.
    pub body: &'a [u8],
}

/// A stored transaction, with the part that was requested.
#[derive(Debug, Clone, Copy)]
pub struct TransactionRow<'a> {
    /// The transaction's position.
    pub position: i64,
    /// The transaction's hash.
    pub hash: [u8; 32],
    /// The compressed part that was requested; `None` if only the hash was requested, or if the
    /// index does not hold the part.
    pub fragment: Option<&'a [u8]>,
    /// The hash and the timestamp of the block. Only PostgreSQL returns them, and only with a body
    /// or a receipt, because a second query would cost a round trip. If this field is `None`, the
    /// caller queries them when they are needed.
    pub block: Option<([u8; 32], u64)>,
}

/// The part of a transaction that a query requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionPart {
    /// The hash alone.
    Hash,
    /// The transaction itself.
    Body,
    /// The receipt, or the array of logs if the index holds logs without receipts.
    Receipt,
}

/// A stored posting list.
#[derive(Debug, Clone, Copy)]
pub struct PostingListRow<'a> {
    /// The key.
    pub key: PostingKey,
    /// The first position.
    pub first: i64,
    /// The positions after the first, encoded.
    pub rest: &'a [u8],
}

/// The postings of some keys, up to the position where reading stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postings {
    /// The positions in ascending order.
    pub positions: Vec<i64>,
    /// All positions up to this one were read.
    pub covered_to: i64,
}

impl Postings {
    /// Creates postings without positions that cover all positions up to `to`.
    pub(super) fn new(to: i64) -> Postings {
        Postings { positions: Vec::new(), covered_to: to }
    }

    /// Adds those positions of a list that lie within a range. The list is given by its columns
    /// `first` and `rest`.
    pub(super) fn add(&mut self, (first, rest): (i64, &[u8]), (from, to): (i64, i64)) {
        let is_inside = |position: &i64| *position >= from && *position <= to;
        self.positions.extend(postings::decode(first, rest).filter(is_inside));
    }

    /// Records that the list with this first position, and all later lists, were not read.
    pub(super) fn stop_before(&mut self, first: i64) {
        self.covered_to = self.covered_to.min(first - 1);
    }

    /// Returns the postings after all lists were added: sorted, without duplicates, and without
    /// positions above `covered_to`. `key_count` is the number of keys whose lists were added.
    pub(super) fn finish(mut self, key_count: usize) -> Postings {
        // The lists of a single key are in order, so their positions are sorted already.
        if key_count > 1 {
            self.positions.sort_unstable();
            self.positions.dedup();
        }
        let covered_count = self.positions.partition_point(|position| *position <= self.covered_to);
        self.positions.truncate(covered_count);
        self
    }
}

/// Returns the first eight bytes of a hash as a number. The hash tables hold this number.
pub(super) fn short_hash(hash: &[u8; 32]) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(bytes)
}

/// Returns the new entries of the transactions' hash table, each a short hash and a position. The
/// entries are sorted like the table, so a database looks up each page only once.
pub(super) fn collect_hash_entries(blocks: &[NewBlock]) -> Vec<(i64, i64)> {
    let entries = blocks.iter().flat_map(|block| {
        let number = block.header.number;
        let entry =
            move |row: &NewTransaction| (short_hash(&row.hash), position(number, row.index));
        block.transactions.iter().map(entry)
    });
    let mut entries: Vec<(i64, i64)> = entries.collect();
    entries.sort_unstable();
    entries
}

/// Returns the posting lists of consecutive blocks, sorted like their table.
pub(super) fn collect_posting_lists(blocks: &[NewBlock]) -> Vec<EncodedList> {
    let mut rows = Vec::new();
    for batch in blocks.chunks(LIST_BLOCKS_MAX as usize) {
        let mut lists = PostingLists::default();
        for block in batch {
            for row in &block.transactions {
                let position = position(block.header.number, row.index);
                row.posting_keys.iter().for_each(|key| lists.add(*key, position));
            }
        }
        rows.extend(lists.drain());
    }
    if blocks.len() > LIST_BLOCKS_MAX as usize {
        rows.sort_unstable_by_key(|list| (list.key, list.first));
    }
    rows
}

/// Removes the positions from `end` on from a list, and returns the new `rest`. Returns `None` if
/// the list has no such positions.
pub(super) fn truncate_rest(first: i64, rest: &[u8], end: i64) -> Option<Vec<u8>> {
    let kept_positions: Vec<i64> =
        postings::decode(first, rest).take_while(|position| *position < end).collect();
    let encoded = postings::encode_rest(&kept_positions);
    (encoded.len() < rest.len()).then_some(encoded)
}

/// Converts an unsigned number to the type of a column. A number above `i64::MAX` becomes
/// `i64::MAX`, which no row has.
pub(super) fn to_signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
