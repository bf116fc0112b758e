//! Writes rows of a SQLite file. A position is a transaction's block number and index in one `i64`.
//! A short hash is the first eight bytes of a hash.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Transaction};

use super::Sqlite;
use crate::postings::{PostingKey, position};
use crate::store::error::StoreError;
use crate::store::interface::WriteRows;
use crate::store::merge::{MergePlan, MergeStep, MergedList, ROWS_PER_STEP};
use crate::store::rows::{
    NewBlock, collect_hash_entries, collect_posting_lists, short_hash, to_signed, truncate_rest,
};

/// The statement that replaces all positions of a posting list except the first.
const UPDATE_LIST: &str = "UPDATE log_postings SET rest = ?3 WHERE key = ?1 AND first = ?2";

impl WriteRows for Sqlite {
    fn append(&mut self, blocks: &[NewBlock], finalized: u64) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        insert(&transaction, blocks)?;
        if let Some(first) = blocks.first() {
            transaction
                .prepare_cached("INSERT OR IGNORE INTO facts (name, value) VALUES ('first', ?1)")?
                .execute([first.header.number as i64])?;
        }
        transaction
            .prepare_cached(
                "INSERT INTO facts (name, value)
                 SELECT 'finalized', min(?1, max(number)) FROM blocks HAVING max(number) NOT NULL
                 ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            )?
            .execute([to_signed(finalized)])?;
        transaction.commit()?;
        Ok(())
    }

    fn rewind(&mut self, last: u64, keys: &BTreeSet<PostingKey>) -> Result<(), StoreError> {
        let (end, last) = (position(last + 1, 0), last as i64);
        let transaction = self.connection.transaction()?;
        for key in keys {
            truncate_list(&transaction, *key, end)?;
        }
        delete_hash_entries(
            &transaction,
            ("SELECT hash, position FROM transactions WHERE position >= ?1", end),
            "DELETE FROM transaction_hashes WHERE short = ?1 AND position = ?2",
        )?;
        delete_hash_entries(
            &transaction,
            ("SELECT hash, number FROM blocks WHERE number > ?1", last),
            "DELETE FROM block_hashes WHERE short = ?1 AND number = ?2",
        )?;
        for (sql, value) in [
            ("DELETE FROM transactions WHERE position >= ?1", end),
            ("DELETE FROM blocks WHERE number > ?1", last),
            ("DELETE FROM harmony_blocks WHERE number > ?1", last),
            ("UPDATE facts SET value = min(value, ?1) WHERE name = 'finalized'", last),
        ] {
            transaction.prepare_cached(sql)?.execute([value])?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn merge_some_postings(&mut self, from: (PostingKey, i64)) -> Result<MergeStep, StoreError> {
        let transaction = self.connection.transaction()?;
        let mut plan = MergePlan::starting_at(from);
        {
            let mut statement = transaction.prepare_cached(
                "SELECT key, first, rest FROM log_postings WHERE (key, first) >= (?1, ?2)
                 ORDER BY key, first LIMIT ?3",
            )?;
            let mut rows = statement.query((from.0, from.1, ROWS_PER_STEP as i64))?;
            while let Some(row) = rows.next()? {
                let rest = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
                plan.add(row.get(0)?, row.get(1)?, rest);
            }
        }
        let (lists, step) = plan.finish();
        for list in &lists {
            write_merged_list(&transaction, list)?;
        }
        transaction.commit()?;
        Ok(step)
    }
}

/// Inserts blocks and everything that belongs to them.
fn insert(transaction: &Transaction<'_>, blocks: &[NewBlock]) -> Result<(), rusqlite::Error> {
    {
        let mut insert_block = transaction.prepare_cached(
            "INSERT INTO blocks (number, hash, time, count, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let mut insert_hash = transaction
            .prepare_cached("INSERT INTO block_hashes (short, number) VALUES (?1, ?2)")?;
        let mut insert_transaction = transaction.prepare_cached(
            "INSERT INTO transactions (position, hash, receipt, body) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let mut insert_harmony = transaction
            .prepare_cached("INSERT INTO harmony_blocks (number, body) VALUES (?1, ?2)")?;
        for block in blocks {
            let header = &block.header;
            let (number, timestamp) = (header.number as i64, header.timestamp as i64);
            let (hash, count) = (header.hash.as_slice(), block.transactions.len() as i64);
            insert_block.execute((number, hash, timestamp, count, &block.body))?;
            insert_hash.execute((short_hash(&header.hash), number))?;
            if let Some(body) = &block.harmony {
                insert_harmony.execute((number, body))?;
            }
            for row in &block.transactions {
                let position = position(header.number, row.index);
                insert_transaction.execute((
                    position,
                    row.hash.as_slice(),
                    &row.receipt,
                    &row.body,
                ))?;
            }
        }
    }
    let mut insert_hash = transaction
        .prepare_cached("INSERT INTO transaction_hashes (short, position) VALUES (?1, ?2)")?;
    for entry in collect_hash_entries(blocks) {
        insert_hash.execute(entry)?;
    }
    let mut insert_list = transaction
        .prepare_cached("INSERT INTO log_postings (key, first, rest) VALUES (?1, ?2, ?3)")?;
    for list in collect_posting_lists(blocks) {
        insert_list.execute((list.key, list.first, list.rest))?;
    }
    Ok(())
}

/// Deletes entries of a hash table. `select` returns the hashes and keys of the rows to which the
/// entries lead, and `parameter` is its parameter. `delete` deletes one entry, given its short hash
/// and its key.
fn delete_hash_entries(
    transaction: &Transaction<'_>,
    (select, parameter): (&str, i64),
    delete: &str,
) -> Result<(), rusqlite::Error> {
    let entries: Vec<(i64, i64)> = transaction
        .prepare_cached(select)?
        .query_map([parameter], |row| Ok((short_hash(&row.get(0)?), row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut delete = transaction.prepare_cached(delete)?;
    for entry in entries {
        delete.execute(entry)?;
    }
    Ok(())
}

/// Deletes all positions from `end` on from the posting lists of a key.
fn truncate_list(
    transaction: &Transaction<'_>,
    key: PostingKey,
    end: i64,
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("DELETE FROM log_postings WHERE key = ?1 AND first >= ?2")?
        .execute((key, end))?;
    let last_list: Option<(i64, Vec<u8>)> = transaction
        .prepare_cached(
            "SELECT first, rest FROM log_postings WHERE key = ?1 ORDER BY first DESC LIMIT 1",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((first, rest)) = last_list else { return Ok(()) };
    if let Some(shortened_rest) = truncate_rest(first, &rest, end) {
        transaction.prepare_cached(UPDATE_LIST)?.execute((key, first, shortened_rest))?;
    }
    Ok(())
}

/// Writes a merged list, and deletes the rows that it absorbed.
fn write_merged_list(
    transaction: &Transaction<'_>,
    list: &MergedList,
) -> Result<(), rusqlite::Error> {
    let mut delete =
        transaction.prepare_cached("DELETE FROM log_postings WHERE key = ?1 AND first = ?2")?;
    for row in list.rows_to_delete() {
        delete.execute(row)?;
    }
    let list = list.encode();
    transaction.prepare_cached(UPDATE_LIST)?.execute((list.key, list.first, list.rest))?;
    Ok(())
}
