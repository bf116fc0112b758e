//! Rows as they are asked for.

use rusqlite::OptionalExtension;

use super::write::short;
use super::{Store, StoreError};
use crate::places::{self, Key};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HarmonyRow {
    /// Its hash.
    pub(crate) hash: [u8; 32],
    /// Its time, in seconds.
    pub(crate) time: u64,
    /// Itself, packed.
    pub(crate) body: Vec<u8>,
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
}

/// Which column of a transaction is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Hash,
    Receipt,
    Body,
}

/// Place, hash, and what was asked for of a transaction.
type Shown<'a> = (i64, [u8; 32], Option<&'a [u8]>);

/// Rows that are stepped over before the next wanted one is searched from the root again: a step takes
/// a fraction of a search.
const STEPS_IN_VAIN: u32 = 3;

impl Store {
    /// All that is read until [`Store::end_reading`] is of one state of the file, and takes its locks
    /// once.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn begin_reading(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("BEGIN")?.execute([])?;
        Ok(())
    }

    /// Ends what [`Store::begin_reading`] began.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn end_reading(&self) -> Result<(), StoreError> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    /// Hash and time of the block with this number.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn hash_and_time(&self, number: u64) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        let mut statement =
            self.connection.prepare_cached("SELECT hash, time FROM blocks WHERE number = ?1")?;
        let found = statement
            .query_row([number], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)))
            .optional()?;
        Ok(found)
    }

    /// The block with this number.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn block(&self, number: u64) -> Result<Option<BlockRow>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
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

    /// The block with this number as Harmony's own methods write it.
    pub(crate) fn harmony_block(&self, number: u64) -> Result<Option<HarmonyRow>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        let found = self
            .connection
            .prepare_cached(
                "SELECT hash, time, harmony_blocks.body FROM harmony_blocks
                 JOIN blocks USING (number) WHERE number = ?1",
            )?
            .query_row([number], |row| {
                let time = row.get::<_, i64>(1)? as u64;
                Ok(HarmonyRow { hash: row.get(0)?, time, body: row.get(2)? })
            });
        Ok(found.optional()?)
    }

    /// The number of the block with this hash.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn number_of(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
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

    /// The place of the transaction with this hash.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn place_of(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
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

    /// Shows `each` what is kept of the transactions from one place to another, both included, in
    /// order, until it has enough.
    pub(crate) fn items<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        wanted: Wanted,
        mut each: impl FnMut(i64, [u8; 32], Option<&[u8]>) -> Result<bool, E>,
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
            let read = || -> rusqlite::Result<Shown<'_>> {
                let packed = match wanted {
                    Wanted::Hash => None,
                    _ => row.get_ref(2)?.as_blob_or_null()?,
                };
                Ok((row.get(0)?, row.get(1)?, packed))
            };
            let (place, hash, packed) = read().map_err(StoreError::from)?;
            if !each(place, hash, packed)? {
                break;
            }
        }
        Ok(())
    }

    /// Shows `each` the receipts of these transactions, which are in order.
    pub(crate) fn receipts<E: From<StoreError>>(
        &self,
        places: &[i64],
        mut each: impl FnMut(i64, [u8; 32], Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(&last) = places.last() else { return Ok(()) };
        let mut wanted = places.iter().copied().peekable();
        while let Some(&from) = wanted.peek() {
            let mut in_vain = 0;
            self.items(from, last, Wanted::Receipt, |place, hash, packed| {
                while wanted.next_if(|wanted| *wanted < place).is_some() {}
                if wanted.next_if_eq(&place).is_some() {
                    each(place, hash, packed)?;
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

    /// What is kept at one place.
    pub(crate) fn item(&self, place: i64, wanted: Wanted) -> Result<Option<ItemRow>, StoreError> {
        let mut found = None;
        self.items(place, place, wanted, |place, hash, packed| {
            found = Some(ItemRow { place, hash, packed: packed.map(<[u8]>::to_vec) });
            Ok::<_, StoreError>(false)
        })?;
        Ok(found)
    }

    /// The places of a key from one to another, both included, in order, in whole lists: those of
    /// at most `lists` lists. The second part is from where the rest is to be asked for, if there is
    /// any.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn places(
        &self,
        key: Key,
        from: i64,
        to: i64,
        lists: usize,
    ) -> Result<(Vec<i64>, Option<i64>), StoreError> {
        let mut found = Vec::new();
        // The list that begins before may reach into the range.
        let mut before = self.connection.prepare_cached(
            "SELECT first, others FROM log_places WHERE key = ?1 AND first < ?2
             ORDER BY first DESC LIMIT 1",
        )?;
        let mut take = |row: &rusqlite::Row<'_>| -> rusqlite::Result<()> {
            let first: i64 = row.get(0)?;
            let others = row.get_ref(1)?.as_blob()?;
            let inside = |at: &i64| *at >= from && *at <= to;
            found.extend(places::places(first, others).filter(inside));
            Ok(())
        };
        before.query_row((key, from), |row| take(row)).optional()?;
        let mut within = self.connection.prepare_cached(
            "SELECT first, others FROM log_places WHERE key = ?1 AND first BETWEEN ?2 AND ?3
             ORDER BY first",
        )?;
        let mut rows = within.query((key, from, to))?;
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
        Ok((found, rest))
    }

    /// How many rows a table has; a scan.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn totals(&self) -> Result<(u64, u64), StoreError> {
        let one = |sql: &str| self.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        let blocks = one("SELECT count(*) FROM blocks")?;
        let transactions = one("SELECT count(*) FROM transactions")?;
        Ok((blocks as u64, transactions as u64))
    }

    /// Numbers of blocks that are missing between the first and the last.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn holes(&self) -> Result<u64, StoreError> {
        let missing = self.connection.query_row(
            "SELECT coalesce(max(number) - min(number) + 1 - count(*), 0) FROM blocks",
            [],
            |row| row.get::<_, i64>(0),
        )?;
        Ok(missing as u64)
    }
}
