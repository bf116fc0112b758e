//! Rows as they are written and read, wherever they are kept.

use crate::places::{self, Key, Lists, place};

/// Blocks that a list of logs may span, from its first to its last: as many as a sync writes at
/// once. A search in a server counts on it.
pub(super) const SPAN: u64 = 256;

/// A block as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlock {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// The hash of the one before.
    pub parent: [u8; 32],
    /// Its time, in seconds.
    pub time: u64,
    /// How many transactions it has.
    pub count: u64,
    /// Itself, packed.
    pub body: Vec<u8>,
    /// Itself as Harmony's own methods write it, packed.
    pub harmony: Option<Vec<u8>>,
    /// Its transactions by index, or those of them of which something is kept.
    pub items: Vec<NewItem>,
    /// How many logs it has.
    pub logs: u64,
    /// Bytes of what the node said of it.
    pub said: u64,
}

/// What is kept of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// Its place in the block.
    pub index: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// Its receipt or its logs, packed.
    pub receipt: Option<Vec<u8>>,
    /// Itself, packed.
    pub body: Option<Vec<u8>>,
    /// What its logs are found by.
    pub keys: Vec<Key>,
}

impl NewBlock {
    /// Bytes of its packed rows.
    pub fn packed_bytes(&self) -> usize {
        let items = self.items.iter().map(|item| {
            let parts = [&item.receipt, &item.body];
            parts.iter().filter_map(|part| part.as_ref()).map(Vec::len).sum::<usize>()
        });
        let harmony = self.harmony.as_ref().map_or(0, Vec::len);
        self.body.len() + harmony + items.sum::<usize>()
    }
}

/// A block as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// Its time, in seconds.
    pub time: u64,
    /// How many transactions it has.
    pub count: u64,
    /// Itself, packed.
    pub body: Vec<u8>,
}

/// A block of Harmony's as it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HarmonyRow<'a> {
    pub(crate) number: u64,
    pub(crate) hash: [u8; 32],
    /// In seconds.
    pub(crate) time: u64,
    /// Itself, packed.
    pub(crate) body: &'a [u8],
}

/// What is kept of a transaction; only what was asked for is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemRow {
    /// Where it is.
    pub place: i64,
    /// Its hash.
    pub hash: [u8; 32],
    /// Its receipt or its logs, or itself, packed.
    pub packed: Option<Vec<u8>>,
    /// Hash and time of its block, where they were read with it.
    pub block: Option<([u8; 32], u64)>,
}

/// A transaction as it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) place: i64,
    pub(crate) hash: [u8; 32],
    /// What was asked for of it.
    pub(crate) packed: Option<&'a [u8]>,
    /// Hash and time of its block, where a question of their own would be a way to a server: in a
    /// file they are looked for if they are needed.
    pub(crate) block: Option<([u8; 32], u64)>,
}

/// Which column of a transaction is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Hash,
    Receipt,
    Body,
}

/// Entries of a table that lead from a hash to a row, and the rows that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leads {
    pub(crate) entries: u64,
    pub(crate) rows: u64,
}

/// A row of `log_places` as it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListRow<'a> {
    pub(crate) key: Key,
    pub(crate) first: i64,
    pub(crate) others: &'a [u8],
}

/// What was read of the lists of some keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// In order.
    pub(crate) places: Vec<i64>,
    /// All places up to this one were read.
    pub(crate) to: i64,
}

impl Places {
    pub(super) fn new(to: i64) -> Places {
        Places { places: Vec::new(), to }
    }

    /// Takes the places of a list that lie within a range.
    pub(super) fn take(&mut self, (first, others): (i64, &[u8]), (from, to): (i64, i64)) {
        let inside = |at: &i64| *at >= from && *at <= to;
        self.places.extend(places::places(first, others).filter(inside));
    }

    /// The list that begins here was not read any more.
    pub(super) fn stop_before(&mut self, first: i64) {
        self.to = self.to.min(first - 1);
    }

    /// All lists of so many keys were taken.
    pub(super) fn close(&mut self, keys: usize) {
        if keys > 1 {
            self.places.sort_unstable();
            self.places.dedup();
        }
        let end = self.places.partition_point(|place| *place <= self.to);
        self.places.truncate(end);
    }
}

/// The first eight bytes of a hash.
pub(super) fn short(hash: &[u8; 32]) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(bytes)
}

/// The entries of transactions' hashes, in the order of their table: each page of it is looked for
/// once in a transaction.
pub(super) fn hash_entries(blocks: &[NewBlock]) -> Vec<(i64, i64)> {
    let all = blocks.iter().flat_map(|block| {
        block.items.iter().map(|item| (short(&item.hash), place(block.number, item.index)))
    });
    let mut entries: Vec<(i64, i64)> = all.collect();
    entries.sort_unstable();
    entries
}

/// The lists of logs of blocks that follow each other, in the order of their table.
pub(super) fn lists(blocks: &[NewBlock]) -> Vec<(Key, i64, Vec<u8>)> {
    let mut all = Vec::new();
    for some in blocks.chunks(SPAN as usize) {
        let mut lists = Lists::default();
        for block in some {
            for item in &block.items {
                let place = place(block.number, item.index);
                item.keys.iter().for_each(|key| lists.note(*key, place));
            }
        }
        all.extend(lists.drain());
    }
    if blocks.len() > SPAN as usize {
        all.sort_unstable_by_key(|(key, first, _)| (*key, *first));
    }
    all
}

/// What is left of a list without the places from `above` on; none if it is as it was.
pub(super) fn shortened(first: i64, others: &[u8], above: i64) -> Option<Vec<u8>> {
    let kept: Vec<i64> = places::places(first, others).take_while(|at| *at < above).collect();
    let packed = places::pack(&kept);
    (packed.len() < others.len()).then_some(packed)
}

/// A number as tables have it.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
