//! Rows in order, and entries that lead nowhere.

use rusqlite::OptionalExtension;

use super::Sqlite;
use crate::store::StoreError;
use crate::store::rows::{ListRow, short};

impl Sqlite {
    pub(in crate::store) fn block_from(&self, number: i64) -> Result<Option<u64>, StoreError> {
        let mut first = self.connection.prepare_cached(
            "SELECT number FROM blocks WHERE number >= ?1 ORDER BY number LIMIT 1",
        )?;
        let found = first.query_row([number], |row| row.get::<_, i64>(0)).optional()?;
        Ok(found.map(|number| number as u64))
    }

    pub(in crate::store) fn has_negative(&self) -> Result<bool, StoreError> {
        Ok(self.connection.query_row(
            "SELECT EXISTS (SELECT 1 FROM blocks WHERE number < 0)
                 OR EXISTS (SELECT 1 FROM transactions WHERE place < 0)",
            [],
            |row| row.get(0),
        )?)
    }

    pub(in crate::store) fn leads_to_block(
        &self,
        short: i64,
        number: i64,
    ) -> Result<bool, StoreError> {
        let mut one = self
            .connection
            .prepare_cached("SELECT 1 FROM block_hashes WHERE short = ?1 AND number = ?2")?;
        Ok(one.exists((short, number))?)
    }

    pub(in crate::store) fn unled(
        &self,
        entries: &[(i64, i64)],
    ) -> Result<Option<i64>, StoreError> {
        let mut one = self
            .connection
            .prepare_cached("SELECT 1 FROM transaction_hashes WHERE short = ?1 AND place = ?2")?;
        for entry in entries {
            if !one.exists(*entry)? {
                return Ok(Some(entry.1));
            }
        }
        Ok(None)
    }

    pub(in crate::store) fn stray_block_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT short, number, hash FROM block_hashes LEFT JOIN blocks USING (number)",
            most,
        )
    }

    pub(in crate::store) fn stray_item_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
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

    pub(in crate::store) fn stray_items(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT place FROM transactions WHERE place >> 20 NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
        )?;
        let places = statement.query_map([most as i64], |row| row.get(0))?;
        Ok(places.collect::<Result<_, _>>()?)
    }

    pub(in crate::store) fn stray_harmony(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT number FROM harmony_blocks WHERE number NOT IN (SELECT number FROM blocks)
             LIMIT ?1",
        )?;
        let numbers = statement.query_map([most as i64], |row| row.get(0))?;
        Ok(numbers.collect::<Result<_, _>>()?)
    }

    pub(in crate::store) fn lists<E: From<StoreError>>(
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
