//! Rows as they are asked for, some at a time.

use super::Postgres;
use super::session::{hash, value};
use crate::places::{Key, place};
use crate::store::StoreError;
use crate::store::rows::{BlockRow, HarmonyRow, Item, Places, SPAN, Wanted, short};

/// Transactions that are taken at a time: a block's are one way to the server, and their pieces some
/// hundred kilobytes.
const ITEMS_AT_ONCE: i64 = 1024;
/// Blocks of Harmony's that are taken at a time, which may have some hundred kilobytes each.
const HARMONY_AT_ONCE: i64 = 64;

/// Hash and time of the block in the fourth and fifth column.
fn item<'a>(row: &'a tokio_postgres::Row, wanted: Wanted) -> Result<Item<'a>, StoreError> {
    let (place, own) = (value(row, 0)?, hash(row, 1)?);
    if wanted == Wanted::Hash {
        return Ok(Item { place, hash: own, packed: None, block: None });
    }
    let time: Option<i64> = value(row, 4)?;
    let block = time.map(|time| Ok::<_, StoreError>((hash(row, 3)?, time as u64))).transpose()?;
    Ok(Item { place, hash: own, packed: value(row, 2)?, block })
}

impl Postgres {
    /// Ways to the server so far.
    #[cfg(test)]
    pub(in crate::store) fn trips(&self) -> u64 {
        self.session.trips()
    }

    /// Changes something past all checks.
    #[cfg(test)]
    pub(in crate::store) fn execute(&self, sql: &str) -> u64 {
        self.session.execute(sql)
    }

    pub(in crate::store) fn begin_reading(&self) -> Result<(), StoreError> {
        self.session.begin_reading();
        Ok(())
    }

    pub(in crate::store) fn end_reading(&self) -> Result<(), StoreError> {
        self.session.end_reading()
    }

    pub(in crate::store) fn hash_and_time(
        &self,
        number: i64,
    ) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let rows =
            self.session.all("SELECT hash, time FROM blocks WHERE number = $1", &[&number])?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((hash(row, 0)?, value::<i64>(row, 1)? as u64)))
    }

    pub(in crate::store) fn block(&self, number: i64) -> Result<Option<BlockRow>, StoreError> {
        let rows = self
            .session
            .all("SELECT hash, time, count, body FROM blocks WHERE number = $1", &[&number])?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(BlockRow {
            number: number as u64,
            hash: hash(row, 0)?,
            time: value::<i64>(row, 1)? as u64,
            count: value::<i64>(row, 2)? as u64,
            body: value(row, 3)?,
        }))
    }

    pub(in crate::store) fn harmony_blocks<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        mut each: impl FnMut(HarmonyRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut next = from;
        while next <= to {
            let last = to.min(next.saturating_add(HARMONY_AT_ONCE - 1));
            let rows = self.session.all(
                "SELECT number, hash, time, harmony_blocks.body FROM harmony_blocks
                 JOIN blocks USING (number) WHERE number BETWEEN $1 AND $2 ORDER BY number",
                &[&next, &last],
            )?;
            for row in &rows {
                let number = value::<i64>(row, 0)? as u64;
                let time = value::<i64>(row, 2)? as u64;
                let row = HarmonyRow { number, hash: hash(row, 1)?, time, body: value(row, 3)? };
                if !each(row)? {
                    return Ok(());
                }
            }
            let Some(after) = last.checked_add(1) else { break };
            next = after;
        }
        Ok(())
    }

    pub(in crate::store) fn number_of(&self, own: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        let rows = self.session.all(
            "SELECT number FROM block_hashes JOIN blocks USING (number)
             WHERE short = $1 AND hash = $2 LIMIT 1",
            &[&short(own), &own.as_slice()],
        )?;
        rows.first().map(|row| Ok(value::<i64>(row, 0)? as u64)).transpose()
    }

    pub(in crate::store) fn place_of(&self, own: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        let rows = self.session.all(
            "SELECT place FROM transaction_hashes JOIN transactions USING (place)
             WHERE short = $1 AND hash = $2 LIMIT 1",
            &[&short(own), &own.as_slice()],
        )?;
        rows.first().map(|row| value(row, 0)).transpose()
    }

    pub(in crate::store) fn items<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        wanted: Wanted,
        mut each: impl FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let sql = match wanted {
            Wanted::Hash => {
                "SELECT place, hash FROM transactions WHERE place BETWEEN $1 AND $2
                 ORDER BY place LIMIT $3"
            }
            Wanted::Receipt => {
                "SELECT place, t.hash, receipt, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = place >> 20
                 WHERE place BETWEEN $1 AND $2 ORDER BY place LIMIT $3"
            }
            Wanted::Body => {
                "SELECT place, t.hash, t.body, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = place >> 20
                 WHERE place BETWEEN $1 AND $2 ORDER BY place LIMIT $3"
            }
        };
        let mut next = from;
        loop {
            let rows = self.session.all(sql, &[&next, &to, &ITEMS_AT_ONCE])?;
            for row in &rows {
                let item = item(row, wanted)?;
                next = item.place;
                if !each(item)? {
                    return Ok(());
                }
            }
            if (rows.len() as i64) < ITEMS_AT_ONCE || next >= to {
                return Ok(());
            }
            next += 1;
        }
    }

    pub(in crate::store) fn receipts<E: From<StoreError>>(
        &self,
        places: &[i64],
        mut each: impl FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for some in places.chunks(ITEMS_AT_ONCE as usize) {
            let rows = self.session.all(
                "SELECT place, t.hash, receipt, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = place >> 20
                 WHERE place = ANY($1) ORDER BY place",
                &[&some],
            )?;
            for row in &rows {
                each(item(row, Wanted::Receipt)?)?;
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
        // The list that begins before may reach into the range, from so far at most.
        let earliest = from.saturating_sub(place(SPAN, 0)).max(0);
        let most = i64::try_from(lists).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self.session.all(
            "SELECT k.key, first, others FROM unnest($1::int8[]) k (key) CROSS JOIN LATERAL (
                 (SELECT first, others FROM log_places l
                  WHERE l.key = k.key AND first >= $2 AND first < $3 ORDER BY first DESC LIMIT 1)
                 UNION ALL
                 (SELECT first, others FROM log_places l
                  WHERE l.key = k.key AND first BETWEEN $3 AND $4 ORDER BY first LIMIT $5)
             ) lists",
            &[&keys, &earliest, &from, &to, &most],
        )?;
        let mut found = Places::new(to);
        let mut of: Option<(Key, usize)> = None;
        for row in &rows {
            let (key, first, others) = (value(row, 0)?, value(row, 1)?, value(row, 2)?);
            let count = of.filter(|(known, _)| *known == key).map_or(0, |(_, count)| count);
            if first >= from && count == lists {
                found.stop_before(first);
                continue;
            }
            of = Some((key, count + usize::from(first >= from)));
            found.take((first, others), (from, to));
        }
        Ok(found)
    }

    pub(in crate::store) fn count(&self, table: &str) -> Result<u64, StoreError> {
        let sql = match table {
            "blocks" => "SELECT count(*) FROM blocks",
            "transactions" => "SELECT count(*) FROM transactions",
            "block_hashes" => "SELECT count(*) FROM block_hashes",
            _ => "SELECT count(*) FROM transaction_hashes",
        };
        let row = self.session.unhurried(|| self.session.one(sql, &[]))?;
        Ok(value::<i64>(&row, 0)? as u64)
    }

    pub(in crate::store) fn holes(&self) -> Result<u64, StoreError> {
        let row = self.session.unhurried(|| {
            self.session.one(
                "SELECT coalesce(max(number) - min(number) + 1 - count(*), 0) FROM blocks",
                &[],
            )
        })?;
        Ok(value::<i64>(&row, 0)? as u64)
    }
}
