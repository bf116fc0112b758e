//! Rows as they are asked for.

use rusqlite::OptionalExtension;

use super::Sqlite;
use crate::places::Key;
use crate::store::StoreError;
use crate::store::rows::{BlockRow, HarmonyRow, Item, Places, Wanted, short};

/// Rows that are stepped over before the next wanted one is searched from the root again: a step takes
/// a fraction of a search.
const STEPS_IN_VAIN: u32 = 3;

impl Sqlite {
    pub(in crate::store) fn begin_reading(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(())
    }

    pub(in crate::store) fn end_reading(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    pub(in crate::store) fn hash_and_time(
        &self,
        number: i64,
    ) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let mut statement =
            self.connection.prepare_cached("SELECT hash, time FROM blocks WHERE number = ?1")?;
        let found = statement
            .query_row([number], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
            .optional()?;
        Ok(found)
    }

    pub(in crate::store) fn block(&self, number: i64) -> Result<Option<BlockRow>, StoreError> {
        let found = self
            .connection
            .prepare_cached("SELECT hash, time, count, body FROM blocks WHERE number = ?1")?
            .query_row([number], |row| {
                Ok(BlockRow {
                    number: number as u64,
                    hash: row.get(0)?,
                    time: row.get::<_, i64>(1)? as u64,
                    count: row.get::<_, i64>(2)? as u64,
                    body: row.get(3)?,
                })
            });
        Ok(found.optional()?)
    }

    pub(in crate::store) fn harmony_blocks<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        mut each: impl FnMut(HarmonyRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT number, hash, time, harmony_blocks.body FROM harmony_blocks
                 JOIN blocks USING (number) WHERE number BETWEEN ?1 AND ?2 ORDER BY number",
            )
            .map_err(StoreError::from)?;
        let mut rows = statement.query((from, to)).map_err(StoreError::from)?;
        while let Some(row) = rows.next().map_err(StoreError::from)? {
            let read = || -> rusqlite::Result<HarmonyRow<'_>> {
                let (number, time): (i64, i64) = (row.get(0)?, row.get(2)?);
                let body = row.get_ref(3)?.as_blob()?;
                Ok(HarmonyRow { number: number as u64, hash: row.get(1)?, time: time as u64, body })
            };
            if !each(read().map_err(StoreError::from)?)? {
                break;
            }
        }
        Ok(())
    }

    pub(in crate::store) fn number_of(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT number, hash FROM block_hashes JOIN blocks USING (number) WHERE short = ?1",
        )?;
        let mut rows = statement.query([short(hash)])?;
        while let Some(row) = rows.next()? {
            if row.get::<_, [u8; 32]>(1)? == *hash {
                return Ok(Some(row.get::<_, i64>(0)? as u64));
            }
        }
        Ok(None)
    }

    pub(in crate::store) fn place_of(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT place, hash FROM transaction_hashes JOIN transactions USING (place)
             WHERE short = ?1",
        )?;
        let mut rows = statement.query([short(hash)])?;
        while let Some(row) = rows.next()? {
            if row.get::<_, [u8; 32]>(1)? == *hash {
                return Ok(Some(row.get(0)?));
            }
        }
        Ok(None)
    }

    pub(in crate::store) fn items<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        wanted: Wanted,
        mut each: impl FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let sql = match wanted {
            Wanted::Hash => "SELECT place, hash FROM transactions WHERE place BETWEEN ?1 AND ?2",
            Wanted::Receipt => {
                "SELECT place, hash, receipt FROM transactions WHERE place BETWEEN ?1 AND ?2"
            }
            Wanted::Body => {
                "SELECT place, hash, body FROM transactions WHERE place BETWEEN ?1 AND ?2"
            }
        };
        let mut statement = self.connection.prepare_cached(sql).map_err(StoreError::from)?;
        let mut rows = statement.query((from, to)).map_err(StoreError::from)?;
        while let Some(row) = rows.next().map_err(StoreError::from)? {
            let read = || -> rusqlite::Result<Item<'_>> {
                let packed = match wanted {
                    Wanted::Hash => None,
                    _ => row.get_ref(2)?.as_blob_or_null()?,
                };
                Ok(Item { place: row.get(0)?, hash: row.get(1)?, packed, block: None })
            };
            if !each(read().map_err(StoreError::from)?)? {
                break;
            }
        }
        Ok(())
    }

    pub(in crate::store) fn receipts<E: From<StoreError>>(
        &self,
        places: &[i64],
        mut each: impl FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(&last) = places.last() else { return Ok(()) };
        let mut wanted = places.iter().copied().peekable();
        while let Some(&from) = wanted.peek() {
            let mut in_vain = 0;
            self.items(from, last, Wanted::Receipt, |item| {
                while wanted.next_if(|wanted| *wanted < item.place).is_some() {}
                if wanted.next_if_eq(&item.place).is_some() {
                    each(item)?;
                    in_vain = 0;
                } else {
                    in_vain += 1;
                }
                Ok::<_, E>(wanted.peek().is_some() && in_vain < STEPS_IN_VAIN)
            })?;
            // A place that has no row is none of those that follow either.
            if wanted.peek() == Some(&from) {
                wanted.next();
            }
        }
        Ok(())
    }

    pub(in crate::store) fn places(
        &self,
        keys: &[Key],
        from: i64,
        to: i64,
        lists: usize,
    ) -> Result<Places, StoreError> {
        // The list that begins before may reach into the range.
        let mut before = self.connection.prepare_cached(
            "SELECT first, others FROM log_places WHERE key = ?1 AND first < ?2
             ORDER BY first DESC LIMIT 1",
        )?;
        let mut within = self.connection.prepare_cached(
            "SELECT first, others FROM log_places WHERE key = ?1 AND first BETWEEN ?2 AND ?3
             ORDER BY first",
        )?;
        let mut found = Places::new(to);
        for key in keys {
            let end = found.to;
            let mut take = |row: &rusqlite::Row<'_>| -> rusqlite::Result<()> {
                let list = (row.get(0)?, row.get_ref(1)?.as_blob()?);
                found.take(list, (from, end));
                Ok(())
            };
            before.query_row((key, from), |row| take(row)).optional()?;
            let mut rows = within.query((key, from, end))?;
            let mut left = lists;
            let mut rest = None;
            while let Some(row) = rows.next()? {
                if left == 0 {
                    rest = Some(row.get(0)?);
                    break;
                }
                left -= 1;
                take(row)?;
            }
            if let Some(rest) = rest {
                found.stop_before(rest);
            }
        }
        Ok(found)
    }

    pub(in crate::store) fn count(&self, table: &str) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM {table}");
        Ok(self.connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? as u64)
    }

    pub(in crate::store) fn holes(&self) -> Result<u64, StoreError> {
        let missing = self.connection.query_row(
            "SELECT coalesce(max(number) - min(number) + 1 - count(*), 0) FROM blocks",
            [],
            |row| row.get::<_, i64>(0),
        )?;
        Ok(missing as u64)
    }
}
