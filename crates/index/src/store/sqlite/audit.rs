//! Checks if the tables of a SQLite file agree with each other. A position is a transaction's block
//! number and index in one `i64`. A short hash is the first eight bytes of a hash.

use rusqlite::OptionalExtension;

use super::Sqlite;
use crate::store::error::StoreError;
use crate::store::interface::{AuditRows, Table};
use crate::store::rows::{PostingListRow, short_hash, to_signed};

impl AuditRows for Sqlite {
    fn count(&self, table: Table) -> Result<u64, StoreError> {
        let count = self.connection.query_row(table.count_sql(), [], |row| row.get::<_, i64>(0))?;
        Ok(count as u64)
    }

    fn next_block(&self, number: u64) -> Result<Option<u64>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number FROM blocks WHERE number >= ?1 ORDER BY number LIMIT 1",
        )?;
        let block =
            statement.query_row([to_signed(number)], |row| row.get::<_, i64>(0)).optional()?;
        Ok(block.map(|number| number as u64))
    }

    fn has_negative_keys(&self) -> Result<bool, StoreError> {
        Ok(self.connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM blocks WHERE number < 0)
                 OR EXISTS (SELECT 1 FROM transactions WHERE position < 0)",
            [],
            |row| row.get(0),
        )?)
    }

    fn has_block_hash_entry(&self, hash: &[u8; 32], number: u64) -> Result<bool, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT 1 FROM block_hashes WHERE short = ?1 AND number = ?2")?;
        Ok(statement.exists((short_hash(hash), number as i64))?)
    }

    fn missing_hash_entry(&self, entries: &[(i64, [u8; 32])]) -> Result<Option<i64>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT 1 FROM transaction_hashes WHERE short = ?1 AND position = ?2",
        )?;
        for (position, hash) in entries {
            if !statement.exists((short_hash(hash), position))? {
                return Ok(Some(*position));
            }
        }
        Ok(None)
    }

    fn dangling_block_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.dangling_hashes(
            "SELECT short, number, hash FROM block_hashes LEFT JOIN blocks USING (number)",
            limit,
        )
    }

    fn dangling_transaction_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.dangling_hashes(
            "SELECT short, position, hash FROM transaction_hashes
             LEFT JOIN transactions USING (position)",
            limit,
        )
    }

    fn dangling_transactions(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        // The shift is `INDEX_BITS` and yields the block number of a position.
        self.query_keys(
            "SELECT position FROM transactions WHERE position >> 20 NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
            limit,
        )
    }

    fn dangling_harmony_blocks(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.query_keys(
            "SELECT number FROM harmony_blocks WHERE number NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
            limit,
        )
    }

    fn visit_posting_lists(
        &self,
        visit: &mut dyn FnMut(PostingListRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let sql = "SELECT key, first, rest FROM log_postings ORDER BY key, first";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let rest = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            let list = PostingListRow { key: row.get(0)?, first: row.get(1)?, rest };
            if !visit(list) {
                break;
            }
        }
        Ok(())
    }
}

impl Sqlite {
    /// Returns the keys that a query finds. The only parameter of the query is the limit.
    fn query_keys(&self, sql: &str, limit: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(sql)?;
        let keys = statement.query_map([limit as i64], |row| row.get(0))?;
        Ok(keys.collect::<Result<_, _>>()?)
    }

    /// Returns the keys of hash table entries whose row is missing or has another hash. The query
    /// returns the short hash and the key of each entry, and the hash of its row.
    fn dangling_hashes(&self, sql: &str, limit: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut dangling = Vec::new();
        while let Some(row) = rows.next()? {
            let hash: Option<[u8; 32]> = row.get(2)?;
            if hash.is_none_or(|hash| row.get(0) != Ok(short_hash(&hash))) {
                dangling.push(row.get(1)?);
                if dangling.len() == limit {
                    break;
                }
            }
        }
        Ok(dangling)
    }
}
