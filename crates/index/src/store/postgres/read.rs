//! Reads rows of a PostgreSQL schema, in batches. A position is a transaction's block number and
//! index in one `i64`. A short hash is the first eight bytes of a hash.

use super::Postgres;
use super::session::{read_hash, read_value};
use crate::postings::{PostingKey, position};
use crate::store::error::StoreError;
use crate::store::interface::ReadRows;
use crate::store::rows::{
    BlockRow, HarmonyRow, LIST_BLOCKS_MAX, Postings, TransactionPart, TransactionRow, short_hash,
    to_signed,
};

/// Maximum number of transactions of one query. Most blocks have fewer, so one round trip returns
/// them all. The fragments of one query have some hundred kilobytes together.
const TRANSACTIONS_PER_QUERY: i64 = 1024;
/// Maximum number of Harmony blocks of one query. A block may have some hundred kilobytes.
const HARMONY_BLOCKS_PER_QUERY: i64 = 64;

/// Reads a row of a query for transactions. The columns are position, hash, fragment, and the hash
/// and the timestamp of the block. A query for [`TransactionPart::Hash`] has only the first two
/// columns.
fn read_transaction_row(
    row: &tokio_postgres::Row,
    part: TransactionPart,
) -> Result<TransactionRow<'_>, StoreError> {
    let (position, transaction_hash) = (read_value(row, 0)?, read_hash(row, 1)?);
    if part == TransactionPart::Hash {
        return Ok(TransactionRow {
            position,
            hash: transaction_hash,
            fragment: None,
            block: None,
        });
    }
    let timestamp: Option<i64> = read_value(row, 4)?;
    let block =
        timestamp.map(|timestamp| Ok::<_, StoreError>((read_hash(row, 3)?, timestamp as u64)));
    let (fragment, block) = (read_value(row, 2)?, block.transpose()?);
    Ok(TransactionRow { position, hash: transaction_hash, fragment, block })
}

impl ReadRows for Postgres {
    fn begin_snapshot(&self) -> Result<(), StoreError> {
        self.session.begin_snapshot();
        Ok(())
    }

    fn end_snapshot(&self) -> Result<(), StoreError> {
        self.session.end_snapshot()
    }

    fn block_hash_and_timestamp(&self, number: u64) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let sql = "SELECT hash, time FROM blocks WHERE number = $1";
        let rows = self.session.query(sql, &[&to_signed(number)])?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((read_hash(row, 0)?, read_value::<i64>(row, 1)? as u64)))
    }

    fn block(&self, number: u64) -> Result<Option<BlockRow>, StoreError> {
        let sql = "SELECT hash, time, count, body FROM blocks WHERE number = $1";
        let rows = self.session.query(sql, &[&to_signed(number)])?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(BlockRow {
            number,
            hash: read_hash(row, 0)?,
            timestamp: read_value::<i64>(row, 1)? as u64,
            transaction_count: read_value::<i64>(row, 2)? as u64,
            body: read_value(row, 3)?,
        }))
    }

    fn block_number(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        let rows = self.session.query(
            "SELECT number FROM block_hashes JOIN blocks USING (number)
             WHERE short = $1 AND hash = $2 LIMIT 1",
            &[&short_hash(hash), &hash.as_slice()],
        )?;
        rows.first().map(|row| Ok(read_value::<i64>(row, 0)? as u64)).transpose()
    }

    fn transaction_position(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        let rows = self.session.query(
            "SELECT position FROM transaction_hashes JOIN transactions USING (position)
             WHERE short = $1 AND hash = $2 LIMIT 1",
            &[&short_hash(hash), &hash.as_slice()],
        )?;
        rows.first().map(|row| read_value(row, 0)).transpose()
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
                "SELECT position, hash FROM transactions WHERE position BETWEEN $1 AND $2
                 ORDER BY position LIMIT $3"
            }
            TransactionPart::Receipt => {
                "SELECT position, t.hash, receipt, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = position >> 20
                 WHERE position BETWEEN $1 AND $2 ORDER BY position LIMIT $3"
            }
            TransactionPart::Body => {
                "SELECT position, t.hash, t.body, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = position >> 20
                 WHERE position BETWEEN $1 AND $2 ORDER BY position LIMIT $3"
            }
        };
        let mut next = from;
        loop {
            let rows = self.session.query(sql, &[&next, &to, &TRANSACTIONS_PER_QUERY])?;
            for row in &rows {
                let row = read_transaction_row(row, part)?;
                next = row.position;
                if !visit(row) {
                    return Ok(());
                }
            }
            if (rows.len() as i64) < TRANSACTIONS_PER_QUERY || next >= to {
                return Ok(());
            }
            next += 1;
        }
    }

    fn visit_receipts(
        &self,
        positions: &[i64],
        visit: &mut dyn FnMut(TransactionRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        for batch in positions.chunks(TRANSACTIONS_PER_QUERY as usize) {
            let rows = self.session.query(
                "SELECT position, t.hash, receipt, b.hash, b.time FROM transactions t
                 LEFT JOIN blocks b ON number = position >> 20
                 WHERE position = ANY($1) ORDER BY position",
                &[&batch],
            )?;
            for row in &rows {
                if !visit(read_transaction_row(row, TransactionPart::Receipt)?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn visit_harmony_blocks(
        &self,
        from: u64,
        to: u64,
        visit: &mut dyn FnMut(HarmonyRow<'_>) -> bool,
    ) -> Result<(), StoreError> {
        let (mut next, to) = (to_signed(from), to_signed(to));
        while next <= to {
            let last = to.min(next.saturating_add(HARMONY_BLOCKS_PER_QUERY - 1));
            let rows = self.session.query(
                "SELECT number, hash, time, harmony_blocks.body FROM harmony_blocks
                 JOIN blocks USING (number) WHERE number BETWEEN $1 AND $2 ORDER BY number",
                &[&next, &last],
            )?;
            for row in &rows {
                let (number, timestamp): (i64, i64) = (read_value(row, 0)?, read_value(row, 2)?);
                let row = HarmonyRow {
                    number: number as u64,
                    hash: read_hash(row, 1)?,
                    timestamp: timestamp as u64,
                    body: read_value(row, 3)?,
                };
                if !visit(row) {
                    return Ok(());
                }
            }
            let Some(next_number) = last.checked_add(1) else { break };
            next = next_number;
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
        // The last list that begins before the range may reach into the range. Such a list begins
        // at this position or later.
        let earliest = from.saturating_sub(position(LIST_BLOCKS_MAX, 0)).max(0);
        // The query reads one list more than allowed, because that list shows where the unread
        // lists begin.
        let limit = i64::try_from(lists_max).unwrap_or(i64::MAX).saturating_add(1);
        let rows = self.session.query(
            "SELECT k.key, first, rest FROM unnest($1::int8[]) k (key) CROSS JOIN LATERAL (
                 (SELECT first, rest FROM log_postings l
                  WHERE l.key = k.key AND first >= $2 AND first < $3 ORDER BY first DESC LIMIT 1)
                 UNION ALL
                 (SELECT first, rest FROM log_postings l
                  WHERE l.key = k.key AND first BETWEEN $3 AND $4 ORDER BY first LIMIT $5)
             ) lists",
            &[&keys, &earliest, &from, &to, &limit],
        )?;
        let mut postings = Postings::new(to);
        let mut current_key: Option<PostingKey> = None;
        // The number of lists of the current key within the range so far.
        let mut list_count = 0;
        for row in &rows {
            let key: PostingKey = read_value(row, 0)?;
            let (first, rest): (i64, &[u8]) = (read_value(row, 1)?, read_value(row, 2)?);
            if current_key != Some(key) {
                (current_key, list_count) = (Some(key), 0);
            }
            let begins_within_range = first >= from;
            if begins_within_range && list_count == lists_max {
                postings.stop_before(first);
                continue;
            }
            list_count += usize::from(begins_within_range);
            postings.add((first, rest), (from, to));
        }
        Ok(postings.finish(keys.len()))
    }
}
