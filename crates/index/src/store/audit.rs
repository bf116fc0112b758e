//! What a look through the whole file needs of the tables: rows in order, a piece at a time, and
//! entries that lead nowhere.

use rusqlite::OptionalExtension;

use super::write::short;
use super::{Store, StoreError};
use crate::places::Key;

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

impl Store {
    /// Sees the file as it is now until [`Store::let_go`], whatever others write meanwhile.
    pub(crate) fn hold(&self) -> Result<(), StoreError> {
        self.connection.execute_batch("BEGIN")?;
        Ok(())
    }

    /// Ends [`Store::hold`].
    pub(crate) fn let_go(&self) -> Result<(), StoreError> {
        self.connection.execute_batch("COMMIT")?;
        Ok(())
    }

    /// The number of the first block from this number on.
    pub(crate) fn block_from(&self, number: u64) -> Result<Option<u64>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        let mut first = self.connection.prepare_cached(
            "SELECT number FROM blocks WHERE number >= ?1 ORDER BY number LIMIT 1",
        )?;
        let found = first.query_row([number], |row| row.get::<_, i64>(0)).optional()?;
        Ok(found.map(|number| number as u64))
    }

    /// Whether there are blocks below 0, which nothing else would find.
    pub(crate) fn has_negative(&self) -> Result<bool, StoreError> {
        Ok(self.connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM blocks WHERE number < 0)
                 OR EXISTS (SELECT 1 FROM transactions WHERE place < 0)",
            [],
            |row| row.get(0),
        )?)
    }

    /// Whether the hash leads to the block.
    pub(crate) fn leads_to_block(&self, hash: &[u8; 32], number: u64) -> Result<bool, StoreError> {
        let mut one = self
            .connection
            .prepare_cached("SELECT 1 FROM block_hashes WHERE short = ?1 AND number = ?2")?;
        Ok(one.exists((short(hash), number as i64))?)
    }

    /// Whether the hash leads to the transaction at the place.
    pub(crate) fn leads_to_item(&self, hash: &[u8; 32], place: i64) -> Result<bool, StoreError> {
        let mut one = self
            .connection
            .prepare_cached("SELECT 1 FROM transaction_hashes WHERE short = ?1 AND place = ?2")?;
        Ok(one.exists((short(hash), place))?)
    }

    /// How many hashes lead to blocks and how many blocks there are; the same of transactions.
    pub(crate) fn leads(&self) -> Result<(Leads, Leads), StoreError> {
        let count = |table: &str| {
            let sql = format!("SELECT count(*) FROM {table}");
            self.connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).map(|n| n as u64)
        };
        let blocks = Leads { entries: count("block_hashes")?, rows: count("blocks")? };
        let items = Leads { entries: count("transaction_hashes")?, rows: count("transactions")? };
        Ok((blocks, items))
    }

    /// Numbers to which a hash leads that is not that of the block there, at most so many.
    pub(crate) fn stray_block_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT short, number, hash FROM block_hashes LEFT JOIN blocks USING (number)",
            most,
        )
    }

    /// Places to which a hash leads that is not that of the transaction there, at most so many.
    pub(crate) fn stray_item_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT short, place, hash FROM transaction_hashes
             LEFT JOIN transactions USING (place)",
            most,
        )
    }

    fn stray(&self, sql: &str, most: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut stray = Vec::new();
        while let Some(row) = rows.next()? {
            let hash: Option<[u8; 32]> = row.get(2)?;
            if hash.is_none_or(|hash| row.get(0) != Ok(short(&hash))) {
                stray.push(row.get(1)?);
                if stray.len() == most {
                    break;
                }
            }
        }
        Ok(stray)
    }

    /// Places of transactions whose block is not there, at most so many.
    pub(crate) fn stray_items(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT place FROM transactions WHERE place >> 20 NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
        )?;
        let places = statement.query_map([most as i64], |row| row.get(0))?;
        Ok(places.collect::<Result<_, _>>()?)
    }

    /// Numbers of Harmony's blocks whose block is not there, at most so many.
    pub(crate) fn stray_harmony(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT number FROM harmony_blocks WHERE number NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
        )?;
        let numbers = statement.query_map([most as i64], |row| row.get(0))?;
        Ok(numbers.collect::<Result<_, _>>()?)
    }

    /// Shows `each` all rows of `log_places` in their order, until it has enough.
    pub(crate) fn lists<E: From<StoreError>>(
        &self,
        mut each: impl FnMut(ListRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut statement = self
            .connection
            .prepare("SELECT key, first, others FROM log_places ORDER BY key, first")
            .map_err(StoreError::from)?;
        let mut rows = statement.query([]).map_err(StoreError::from)?;
        while let Some(row) = rows.next().map_err(StoreError::from)? {
            let read = || -> rusqlite::Result<ListRow<'_>> {
                Ok(ListRow {
                    key: row.get(0)?,
                    first: row.get(1)?,
                    others: row.get_ref(2)?.as_blob()?,
                })
            };
            if !each(read().map_err(StoreError::from)?)? {
                break;
            }
        }
        Ok(())
    }
}
