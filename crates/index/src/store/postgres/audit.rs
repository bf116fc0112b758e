//! Checks if the tables of a PostgreSQL schema agree with each other. A position is a transaction's
//! block number and index in one `i64`. A short hash is the first eight bytes of a hash.

use super::Postgres;
use super::session::read_value;
use crate::store::error::StoreError;
use crate::store::interface::{AuditRows, Table};
use crate::store::rows::{PostingListRow, short_hash, to_signed};

/// Maximum number of posting lists of one query. These lists have a few megabytes together.
const LISTS_PER_QUERY: i64 = 16_384;

impl AuditRows for Postgres {
    fn count(&self, table: Table) -> Result<u64, StoreError> {
        let query = || self.session.query_one(table.count_sql(), &[]);
        Ok(read_value::<i64>(&self.session.without_timeout(query)?, 0)? as u64)
    }

    fn next_block(&self, number: u64) -> Result<Option<u64>, StoreError> {
        let rows = self.session.query(
            "SELECT number FROM blocks WHERE number >= $1 ORDER BY number LIMIT 1",
            &[&to_signed(number)],
        )?;
        rows.first().map(|row| Ok(read_value::<i64>(row, 0)? as u64)).transpose()
    }

    fn has_negative_keys(&self) -> Result<bool, StoreError> {
        let row = self.session.query_one(
            "SELECT EXISTS (SELECT 1 FROM blocks WHERE number < 0)
                 OR EXISTS (SELECT 1 FROM transactions WHERE position < 0)",
            &[],
        )?;
        read_value(&row, 0)
    }

    fn has_block_hash_entry(&self, hash: &[u8; 32], number: u64) -> Result<bool, StoreError> {
        let rows = self.session.query(
            "SELECT 1 FROM block_hashes WHERE short = $1 AND number = $2",
            &[&short_hash(hash), &(number as i64)],
        )?;
        Ok(!rows.is_empty())
    }

    fn missing_hash_entry(&self, entries: &[(i64, [u8; 32])]) -> Result<Option<i64>, StoreError> {
        let (short_hashes, positions): (Vec<i64>, Vec<i64>) =
            entries.iter().map(|(position, hash)| (short_hash(hash), *position)).unzip();
        let row = self.session.query_one(
            "SELECT min(position) FROM unnest($1::int8[], $2::int8[]) e (short, position)
             WHERE NOT EXISTS (SELECT 1 FROM transaction_hashes h
                               WHERE h.short = e.short AND h.position = e.position)",
            &[&short_hashes, &positions],
        )?;
        read_value(&row, 0)
    }

    fn dangling_block_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.query_keys(
            "SELECT number FROM block_hashes LEFT JOIN blocks USING (number)
             WHERE hash IS NULL
                OR short <> ('x' || encode(substring(hash FOR 8), 'hex'))::bit(64)::int8
             LIMIT $1",
            limit,
        )
    }

    fn dangling_transaction_hashes(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.query_keys(
            "SELECT position FROM transaction_hashes LEFT JOIN transactions USING (position)
             WHERE hash IS NULL
                OR short <> ('x' || encode(substring(hash FOR 8), 'hex'))::bit(64)::int8
             LIMIT $1",
            limit,
        )
    }

    fn dangling_transactions(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        // The shift is `INDEX_BITS` and yields the block number of a position.
        self.query_keys(
            "SELECT position FROM transactions
             WHERE NOT EXISTS (SELECT 1 FROM blocks WHERE number = position >> 20) LIMIT $1",
            limit,
        )
    }

    fn dangling_harmony_blocks(&self, limit: usize) -> Result<Vec<i64>, StoreError> {
        self.query_keys(
            "SELECT number FROM harmony_blocks h
             WHERE NOT EXISTS (SELECT 1 FROM blocks b WHERE b.number = h.number) LIMIT $1",
            limit,
        )
    }

    fn visit_posting_lists(
        &self,
        visit: &mut dyn FnMut(PostingListRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        // The key and the first position of the list that was visited last. At first, they precede
        // all lists.
        let mut previous = (i64::MIN, i64::MIN);
        loop {
            let rows = self.session.query(
                "SELECT key, first, rest FROM log_postings WHERE (key, first) > ($1, $2)
                 ORDER BY key, first LIMIT $3",
                &[&previous.0, &previous.1, &LISTS_PER_QUERY],
            )?;
            for row in &rows {
                let (key, first) = (read_value(row, 0)?, read_value(row, 1)?);
                previous = (key, first);
                let list = PostingListRow { key, first, rest: read_value(row, 2)? };
                if !visit(list) {
                    return Ok(());
                }
            }
            if (rows.len() as i64) < LISTS_PER_QUERY {
                return Ok(());
            }
        }
    }
}

impl Postgres {
    /// Returns the keys that a query finds. The only parameter of the query is the limit.
    fn query_keys(&self, sql: &'static str, limit: usize) -> Result<Vec<i64>, StoreError> {
        let rows = self.session.without_timeout(|| self.session.query(sql, &[&(limit as i64)]))?;
        rows.iter().map(|row| read_value(row, 0)).collect()
    }
}
