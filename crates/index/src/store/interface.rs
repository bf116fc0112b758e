//! The interface of a store, which both backends implement: [`Store`] for the index as a whole, and
//! the traits [`ReadRows`], [`WriteRows`] and [`AuditRows`] for its rows. A position is a
//! transaction's block number and index in one `i64`. A posting key stands for an address or topic
//! (`postings.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::error::StoreError;
use super::location::Location;
use super::merge::MergeStep;
use super::metadata;
use super::rows::{
    BlockRow, HarmonyRow, NewBlock, PostingListRow, Postings, TransactionPart, TransactionRow,
};
use crate::compression::Dictionary;
use crate::contents::{Metadata, StoredRange};
use crate::postings::PostingKey;

/// Settings of a connection to an index.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Maximum bytes of a SQLite file's pages that the connection caches in memory. Not used for a
    /// server.
    pub page_cache_bytes: u64,
    /// Maximum bytes of a SQLite file that are mapped into memory instead of read; 0 for no
    /// mapping. Not used for a server.
    pub mmap_bytes: u64,
    /// Timeout of one query or one step of a write on a server. Queries over whole tables have no
    /// timeout.
    pub query_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            page_cache_bytes: 64 << 20,
            mmap_bytes: 0,
            query_timeout: Duration::from_secs(60),
        }
    }
}

/// SQLite's counters of a connection's page cache, counted since the connection was opened
/// (`sqlite3_db_status`, <https://www.sqlite.org/c3ref/c_dbstatus_options.html>).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCache {
    /// Bytes of the cache in use.
    pub used: u64,
    /// Number of pages that were found in the cache.
    pub hit: u64,
    /// Number of pages that were read from the file.
    pub miss: u64,
    /// Number of changed pages that were written before the end of their transaction, because the
    /// cache was full.
    pub spill: u64,
}

/// A connection to an index. Every method fails if the index cannot be read or written.
pub trait Store: ReadRows + WriteRows + AuditRows + Send {
    /// Returns the location of the index.
    fn location(&self) -> Location;

    /// Returns the number of bytes of the file and its write-ahead log, or of the server's tables
    /// with their indexes.
    fn disk_bytes(&self) -> Result<u64, StoreError>;

    /// Returns the counters of the connection's page cache, or `None` for a server, which has its
    /// own cache.
    fn page_cache(&mut self) -> Option<PageCache> {
        None
    }

    /// Rebuilds a file, so that it has no free pages. On a server, makes the space of deleted rows
    /// available for new rows, and updates the statistics of the query planner.
    ///
    /// # Errors
    /// Fails if the disk has no room for a second copy of the file, or if the user lacks the
    /// privilege.
    fn vacuum(&self) -> Result<(), StoreError>;

    /// Returns the errors that SQLite finds in the structures of its file. Returns an empty list
    /// for a server.
    ///
    /// # Errors
    /// Fails if the file cannot be read at all.
    fn integrity_errors(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns the names and values in the table `facts`, which holds the properties of the index.
    fn metadata_rows(&self) -> Result<BTreeMap<String, String>, StoreError>;

    /// Inserts rows into the tables `facts` and `dictionaries`, in one transaction.
    fn insert_metadata(
        &mut self,
        rows: &[(&str, String)],
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError>;

    /// Updates rows of the table `facts`, given as names and new values, in one transaction.
    fn update_metadata(&mut self, rows: &[(&str, &str)]) -> Result<(), StoreError>;

    /// Returns the kind and the bytes of each dictionary, in the order of their numbers.
    fn dictionary_rows(&self) -> Result<Vec<(i64, Vec<u8>)>, StoreError>;

    /// Returns the range of blocks that the index holds, or `None` before the first block.
    fn stored_range(&self) -> Result<Option<StoredRange>, StoreError>;

    /// Runs SQL without any check and returns the number of changed rows.
    #[cfg(test)]
    fn execute(&self, sql: &str) -> u64;

    /// Returns the number of round trips to the server so far.
    #[cfg(test)]
    fn round_trips(&self) -> u64 {
        0
    }

    /// Returns the properties of the index, or `None` before it is initialized.
    fn metadata(&self) -> Result<Option<Metadata>, StoreError> {
        metadata::from_rows(&self.metadata_rows()?)
    }

    /// Returns the dictionaries in the order of their numbers.
    fn dictionaries(&self) -> Result<Vec<Dictionary>, StoreError> {
        let rows = self.dictionary_rows()?.into_iter();
        rows.map(|(kind, bytes)| metadata::parse_dictionary(kind, bytes)).collect()
    }

    /// Initializes a new index with its properties and dictionaries.
    fn initialize(
        &mut self,
        metadata: &Metadata,
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError> {
        let mut rows = metadata::to_rows(metadata).to_vec();
        rows.push((metadata::DICTIONARIES, metadata::digest_dictionaries(dictionaries)));
        self.insert_metadata(&rows, dictionaries)
    }

    /// Replaces the record of verification, because later blocks are verified at a lower level.
    fn set_verification(&mut self, verification: &str) -> Result<(), StoreError> {
        self.update_metadata(&[(metadata::VERIFICATION, verification)])
    }

    /// Replaces the lists of response forms that nodes must serve.
    fn set_response_forms(
        &mut self,
        differing: &[String],
        untested: &[String],
    ) -> Result<(), StoreError> {
        let (differing, untested) = (differing.join(" "), untested.join(" "));
        self.update_metadata(&[
            (metadata::DIFFERING_FORMS, &differing),
            (metadata::UNTESTED_FORMS, &untested),
        ])
    }

    /// Returns true if the dictionaries are unchanged since the index was initialized. Returns
    /// `None` for an index of an older version, which has no digest of its dictionaries.
    fn dictionaries_match(&self) -> Result<Option<bool>, StoreError> {
        let rows = self.metadata_rows()?;
        let Some(stored) = rows.get(metadata::DICTIONARIES) else { return Ok(None) };
        Ok(Some(*stored == metadata::digest_dictionaries(&self.dictionaries()?)))
    }
}

/// Reads rows. Every method fails if the index cannot be read. A method returns `None` if there is
/// no such row. A `visit` function receives one row after the other and returns false to end the
/// visit.
pub trait ReadRows {
    /// Begins a snapshot. All reads until [`ReadRows::end_snapshot`] see the same state, even if
    /// rows are written meanwhile. SQLite then locks its file once for all these reads.
    fn begin_snapshot(&self) -> Result<(), StoreError>;

    /// Ends the snapshot.
    fn end_snapshot(&self) -> Result<(), StoreError>;

    /// Returns the hash and the timestamp of the block with this number.
    fn block_hash_and_timestamp(&self, number: u64) -> Result<Option<([u8; 32], u64)>, StoreError>;

    /// Returns the block with this number.
    fn block(&self, number: u64) -> Result<Option<BlockRow>, StoreError>;

    /// Returns the number of the block with this hash.
    fn block_number(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError>;

    /// Returns the position of the transaction with this hash.
    fn transaction_position(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError>;

    /// Visits the transactions from one position to another, both included, in ascending order.
    fn visit_transactions(
        &self,
        from: i64,
        to: i64,
        part: TransactionPart,
        visit: &mut dyn FnMut(TransactionRow<'_>) -> bool,
    ) -> Result<(), StoreError>;

    /// Visits the receipts at these positions, which must ascend. Skips positions without a
    /// transaction.
    fn visit_receipts(
        &self,
        positions: &[i64],
        visit: &mut dyn FnMut(TransactionRow<'_>) -> bool,
    ) -> Result<(), StoreError>;

    /// Visits the `hmyv2_` form of the blocks from one number to another, both included, in
    /// ascending order.
    fn visit_harmony_blocks(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(HarmonyRow<'_>) -> bool,
    ) -> Result<(), StoreError>;

    /// Returns the postings of these keys from one position to another, both included. Of each key,
    /// reads at most `lists_max` of the lists that begin in this range. The result ends before the
    /// first list that was not read.
    fn postings(
        &self,
        keys: &[PostingKey],
        from: i64,
        to: i64,
        lists_max: usize,
    ) -> Result<Postings, StoreError>;
}

/// Writes rows. A method that fails leaves the index unchanged.
pub trait WriteRows {
    /// Appends blocks that follow the last stored block, in one transaction. `finalized` is the
    /// last finalized block of the chain. A number below the recorded one is ignored.
    fn append(&mut self, blocks: &[NewBlock], finalized: u64) -> Result<(), StoreError>;

    /// Deletes the blocks above `last`. `keys` are the posting keys of the logs in these blocks.
    /// The method shortens the posting lists of these keys. If later blocks were finalized, `last`
    /// becomes the last finalized block.
    fn rewind(&mut self, last: u64, keys: &BTreeSet<PostingKey>) -> Result<(), StoreError>;

    /// Merges posting lists within a limited number of rows, in one transaction. `from` is the key
    /// and first position of the first of these rows.
    fn merge_some_postings(&mut self, from: (PostingKey, i64)) -> Result<MergeStep, StoreError>;

    /// Records the last finalized block of the chain. A number below the recorded one is ignored.
    fn finalize(&mut self, finalized: u64) -> Result<(), StoreError> {
        self.append(&[], finalized)
    }

    /// Merges consecutive posting lists of a key that together span at most 256 blocks. Returns the
    /// number of removed rows. The results of searches do not change. The process may be killed at
    /// any instant, because each transaction leaves complete lists.
    fn merge_postings(&mut self) -> Result<u64, StoreError> {
        let mut removed_rows = 0;
        // This key and this position precede all rows.
        let mut next_row = Some((i64::MIN, i64::MIN));
        while let Some(from) = next_row {
            let step = self.merge_some_postings(from)?;
            removed_rows += step.removed_rows;
            next_row = step.next_row;
        }
        Ok(removed_rows)
    }
}

/// A table whose rows can be counted.
#[derive(Debug, Clone, Copy)]
pub enum Table {
    /// Blocks by number.
    Blocks,
    /// Block numbers by hash.
    BlockHashes,
    /// Transactions by position.
    Transactions,
    /// Positions by transaction hash.
    TransactionHashes,
}

impl Table {
    /// Returns the query that counts the rows.
    pub(super) fn count_sql(self) -> &'static str {
        match self {
            Table::Blocks => "SELECT count(*) FROM blocks",
            Table::BlockHashes => "SELECT count(*) FROM block_hashes",
            Table::Transactions => "SELECT count(*) FROM transactions",
            Table::TransactionHashes => "SELECT count(*) FROM transaction_hashes",
        }
    }
}

/// Checks if the tables agree with each other. A hash table leads from hashes to blocks or
/// transactions. A dangling row refers to a missing row. Every method fails if the index cannot be
/// read. A method returns `None` if it finds no such block or transaction.
pub trait AuditRows {
    /// Returns the number of rows of a table. Reads the whole table.
    fn count(&self, table: Table) -> Result<u64, StoreError>;

    /// Returns the number of the first stored block that is at least `number`.
    fn next_block(&self, number: u64) -> Result<Option<u64>, StoreError>;

    /// Returns true if there are rows with negative block numbers or positions, which no other
    /// query finds.
    fn has_negative_keys(&self) -> Result<bool, StoreError>;

    /// Returns true if the hash table has an entry from this hash to this block number.
    fn has_block_hash_entry(&self, hash: &[u8; 32], number: u64) -> Result<bool, StoreError>;

    /// Returns the position of the first transaction in `entries` that has no entry in the hash
    /// table. `entries` are positions and hashes of transactions.
    fn missing_hash_entry(&self, entries: &[(i64, [u8; 32])]) -> Result<Option<i64>, StoreError>;

    /// Returns at most `limit` block numbers of hash table entries. The block of such an entry is
    /// missing or has another hash.
    fn dangling_block_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError>;

    /// Returns at most `limit` positions of hash table entries. The transaction of such an entry is
    /// missing or has another hash.
    fn dangling_transaction_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError>;

    /// Returns the positions of at most `limit` transactions whose block is missing.
    fn dangling_transactions(&self, limit: usize) -> Result<Vec<i64>, StoreError>;

    /// Returns the numbers of at most `limit` `hmyv2_` forms whose block is missing.
    fn dangling_harmony_blocks(&self, limit: usize) -> Result<Vec<i64>, StoreError>;

    /// Visits all posting lists in the order of their table, until `visit` returns false.
    fn visit_posting_lists(
        &self,
        visit: &mut dyn FnMut(PostingListRow<'_>) -> bool,
    ) -> Result<(), StoreError>;

    /// Returns the number of blocks and the number of transactions. Reads the whole tables.
    fn totals(&self) -> Result<(u64, u64), StoreError> {
        Ok((self.count(Table::Blocks)?, self.count(Table::Transactions)?))
    }
}

/// These methods visit rows with a function that may fail. The function returns `Ok(false)` or an
/// error to end the visit.
impl dyn Store + '_ {
    /// Visits transactions; see [`ReadRows::visit_transactions`].
    pub fn try_visit_transactions<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        part: TransactionPart,
        mut visit: impl FnMut(TransactionRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut failure = None;
        let mut visit_row = |row: TransactionRow<'_>| continues_visit(visit(row), &mut failure);
        self.visit_transactions(from, to, part, &mut visit_row)?;
        failure.map_or(Ok(()), Err)
    }

    /// Visits receipts; see [`ReadRows::visit_receipts`].
    pub fn try_visit_receipts<E: From<StoreError>>(
        &self,
        positions: &[i64],
        mut visit: impl FnMut(TransactionRow<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut failure = None;
        let mut visit_row =
            |row: TransactionRow<'_>| continues_visit(visit(row).map(|()| true), &mut failure);
        self.visit_receipts(positions, &mut visit_row)?;
        failure.map_or(Ok(()), Err)
    }

    /// Visits blocks in their `hmyv2_` form; see [`ReadRows::visit_harmony_blocks`].
    pub fn try_visit_harmony_blocks<E: From<StoreError>>(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(HarmonyRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut failure = None;
        let mut visit_row = |row: HarmonyRow<'_>| continues_visit(visit(row), &mut failure);
        self.visit_harmony_blocks(from, to, &mut visit_row)?;
        failure.map_or(Ok(()), Err)
    }
}

/// Returns true if the visit continues. Stores an error of the visiting function in `failure`.
fn continues_visit<E>(result: Result<bool, E>, failure: &mut Option<E>) -> bool {
    result.unwrap_or_else(|error| {
        *failure = Some(error);
        false
    })
}
