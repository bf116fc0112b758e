//! Reads rows of a SQLite file. A position is a transaction's block number and index in one `i64`.
//! A short hash is the first eight bytes of a hash.

use rusqlite::OptionalExtension;

use super::Sqlite;
use crate::postings::PostingKey;
use crate::store::error::StoreError;
use crate::store::interface::ReadRows;
use crate::store::rows::{
    BlockRow, HarmonyRow, Postings, TransactionPart, TransactionRow, short_hash, to_signed,
};

/// Maximum number of consecutive rows that a scan for receipts skips. After these rows, the next
/// position is looked up from the root of SQLite's tree. Skipping a row costs a fraction of a
/// lookup.
const SKIPPED_ROWS_MAX: u32 = 3;

impl ReadRows for Sqlite {
    fn begin_snapshot(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(())
    }

    fn end_snapshot(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn block_hash_and_timestamp(&self, number: u64) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let mut statement =
            self.connection.prepare_cached("SELECT hash, time FROM blocks WHERE number = ?1")?;
        let row = statement
            .query_row([to_signed(number)], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)));
        Ok(row.optional()?)
    }

    fn block(&self, number: u64) -> Result<Option<BlockRow>, StoreError> {
        let block = self
            .connection
            .prepare_cached("SELECT hash, time, count, body FROM blocks WHERE number = ?1")?
            .query_row([to_signed(number)], |row| {
                Ok(BlockRow {
                    number,
                    hash: row.get(0)?,
                    timestamp: row.get::<_, i64>(1)? as u64,
                    transaction_count: row.get::<_, i64>(2)? as u64,
                    body: row.get(3)?,
                })
            });
        Ok(block.optional()?)
    }

    fn block_number(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        let number = self.find_by_hash(
            "SELECT number, hash FROM block_hashes JOIN blocks USING (number) WHERE short = ?1",
            hash,
        )?;
        Ok(number.map(|number| number as u64))
    }

    fn transaction_position(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        self.find_by_hash(
            "SELECT position, hash FROM transaction_hashes JOIN transactions USING (position)
             WHERE short = ?1",
            hash,
        )
    }

    fn visit_transactions(
        &self,
        from: i64,
        to: i64,
        part: TransactionPart,
        visit: &mut dyn FnMut(TransactionRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let sql = match part {
            TransactionPart::Hash => {
                "SELECT position, hash FROM transactions WHERE position BETWEEN ?1 AND ?2"
            }
            TransactionPart::Receipt => {
                "SELECT position, hash, receipt FROM transactions WHERE position BETWEEN ?1 AND ?2"
            }
            TransactionPart::Body => {
                "SELECT position, hash, body FROM transactions WHERE position BETWEEN ?1 AND ?2"
            }
        };
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query((from, to))?;
        while let Some(row) = rows.next()? {
            let fragment = match part {
                TransactionPart::Hash => None,
                _ => row.get_ref(2)?.as_blob_or_null().map_err(rusqlite::Error::from)?,
            };
            let (position, hash) = (row.get(0)?, row.get(1)?);
            if !visit(TransactionRow { position, hash, fragment, block: None }) {
                break;
            }
        }
        Ok(())
    }

    fn visit_receipts(
        &self,
        positions: &[i64],
        visit: &mut dyn FnMut(TransactionRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let Some(&last) = positions.last() else { return Ok(()) };
        let mut remaining = positions.iter().copied().peekable();
        let mut is_stopped = false;
        while let Some(&from) = remaining.peek() {
            let mut skipped = 0;
            self.visit_transactions(from, last, TransactionPart::Receipt, &mut |row| {
                while remaining.next_if(|position| *position < row.position).is_some() {}
                if remaining.next_if_eq(&row.position).is_some() {
                    is_stopped = !visit(row);
                    skipped = 0;
                } else {
                    skipped += 1;
                }
                remaining.peek().is_some() && skipped < SKIPPED_ROWS_MAX && !is_stopped
            })?;
            if is_stopped {
                break;
            }
            // If the scan has not removed `from`, no row exists at or after it. Removing it lets
            // the loop end.
            remaining.next_if_eq(&from);
        }
        Ok(())
    }

    fn visit_harmony_blocks(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(HarmonyRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, hash, time, harmony_blocks.body FROM harmony_blocks
             JOIN blocks USING (number) WHERE number BETWEEN ?1 AND ?2 ORDER BY number",
        )?;
        let mut rows = statement.query((to_signed(from), to_signed(to)))?;
        while let Some(row) = rows.next()? {
            let (number, timestamp): (i64, i64) = (row.get(0)?, row.get(2)?);
            let row = HarmonyRow {
                number: number as u64,
                hash: row.get(1)?,
                timestamp: timestamp as u64,
                body: row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?,
            };
            if !visit(row) {
                break;
            }
        }
        Ok(())
    }

    fn postings(
        &self,
        keys: &[PostingKey],
        from: i64,
        to: i64,
        lists_max: usize,
    ) -> Result<Postings, StoreError> {
        // The last list that begins before the range may reach into the range.
        let mut list_before = self.connection.prepare_cached(
            "SELECT first, rest FROM log_postings WHERE key = ?1 AND first < ?2
             ORDER BY first DESC LIMIT 1",
        )?;
        let mut lists_within = self.connection.prepare_cached(
            "SELECT first, rest FROM log_postings WHERE key = ?1 AND first BETWEEN ?2 AND ?3
             ORDER BY first",
        )?;
        let mut postings = Postings::new(to);
        for key in keys {
            let end = postings.covered_to;
            let mut add = |row: &rusqlite::Row<'_>| -> rusqlite::Result<()> {
                let list = (row.get(0)?, row.get_ref(1)?.as_blob()?);
                postings.add(list, (from, end));
                Ok(())
            };
            list_before.query_row((key, from), |row| add(row)).optional()?;
            let mut rows = lists_within.query((key, from, end))?;
            let mut remaining_lists = lists_max;
            let mut first_unread = None;
            while let Some(row) = rows.next()? {
                if remaining_lists == 0 {
                    first_unread = Some(row.get(0)?);
                    break;
                }
                remaining_lists -= 1;
                add(row)?;
            }
            if let Some(first) = first_unread {
                postings.stop_before(first);
            }
        }
        Ok(postings.finish(keys.len()))
    }
}

impl Sqlite {
    /// Returns the first column of the row whose second column is this hash, or `None` if there is
    /// no such row. The query selects rows by short hash, so it may return rows with other hashes.
    fn find_by_hash(&self, sql: &str, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query([short_hash(hash)])?;
        while let Some(row) = rows.next()? {
            if row.get::<_, [u8; 32]>(1)? == *hash {
                return Ok(Some(row.get(0)?));
            }
        }
        Ok(None)
    }
}
