//! Rows in order, and entries that lead nowhere.

use super::Postgres;
use super::session::value;
use crate::store::StoreError;
use crate::store::rows::ListRow;

/// Rows of `log_places` that are taken at a time: some megabytes.
const LISTS_AT_ONCE: i64 = 16_384;

impl Postgres {
    pub(in crate::store) fn block_from(&self, number: i64) -> Result<Option<u64>, StoreError> {
        let rows = self.session.all(
            "SELECT number FROM blocks WHERE number >= $1 ORDER BY number LIMIT 1",
            &[&number],
        )?;
        rows.first().map(|row| Ok(value::<i64>(row, 0)? as u64)).transpose()
    }

    pub(in crate::store) fn has_negative(&self) -> Result<bool, StoreError> {
        let row = self.session.one(
            "SELECT EXISTS (SELECT 1 FROM blocks WHERE number < 0)
                 OR EXISTS (SELECT 1 FROM transactions WHERE place < 0)",
            &[],
        )?;
        value(&row, 0)
    }

    pub(in crate::store) fn leads_to_block(
        &self,
        short: i64,
        number: i64,
    ) -> Result<bool, StoreError> {
        let rows = self.session.all(
            "SELECT 1 FROM block_hashes WHERE short = $1 AND number = $2",
            &[&short, &number],
        )?;
        Ok(!rows.is_empty())
    }

    pub(in crate::store) fn unled(
        &self,
        entries: &[(i64, i64)],
    ) -> Result<Option<i64>, StoreError> {
        let (shorts, places): (Vec<i64>, Vec<i64>) = entries.iter().copied().unzip();
        let row = self.session.one(
            "SELECT min(place) FROM unnest($1::int8[], $2::int8[]) e (short, place)
             WHERE NOT EXISTS (SELECT 1 FROM transaction_hashes h
                               WHERE h.short = e.short AND h.place = e.place)",
            &[&shorts, &places],
        )?;
        value(&row, 0)
    }

    pub(in crate::store) fn stray_block_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT number FROM block_hashes LEFT JOIN blocks USING (number)
             WHERE hash IS NULL
                OR short <> ('x' || encode(substring(hash FOR 8), 'hex'))::bit(64)::int8
             LIMIT $1",
            most,
        )
    }

    pub(in crate::store) fn stray_item_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT place FROM transaction_hashes LEFT JOIN transactions USING (place)
             WHERE hash IS NULL
                OR short <> ('x' || encode(substring(hash FOR 8), 'hex'))::bit(64)::int8
             LIMIT $1",
            most,
        )
    }

    pub(in crate::store) fn stray_items(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT place FROM transactions
             WHERE NOT EXISTS (SELECT 1 FROM blocks WHERE number = place >> 20) LIMIT $1",
            most,
        )
    }

    pub(in crate::store) fn stray_harmony(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        self.stray(
            "SELECT number FROM harmony_blocks h
             WHERE NOT EXISTS (SELECT 1 FROM blocks b WHERE b.number = h.number) LIMIT $1",
            most,
        )
    }

    fn stray(&self, sql: &'static str, most: usize) -> Result<Vec<i64>, StoreError> {
        let rows = self.session.unhurried(|| self.session.all(sql, &[&(most as i64)]))?;
        rows.iter().map(|row| value(row, 0)).collect()
    }

    pub(in crate::store) fn lists<E: From<StoreError>>(
        &self,
        mut each: impl FnMut(ListRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut after = (i64::MIN, i64::MIN);
        loop {
            let rows = self.session.all(
                "SELECT key, first, others FROM log_places WHERE (key, first) > ($1, $2)
                 ORDER BY key, first LIMIT $3",
                &[&after.0, &after.1, &LISTS_AT_ONCE],
            )?;
            for row in &rows {
                let list =
                    ListRow { key: value(row, 0)?, first: value(row, 1)?, others: value(row, 2)? };
                after = (list.key, list.first);
                if !each(list)? {
                    return Ok(());
                }
            }
            if (rows.len() as i64) < LISTS_AT_ONCE {
                return Ok(());
            }
        }
    }
}
