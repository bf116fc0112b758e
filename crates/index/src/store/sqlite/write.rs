//! Forward by some blocks, or back to an earlier one.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Transaction};

use super::Sqlite;
use crate::places::{Key, place};
use crate::store::StoreError;
use crate::store::rows::{NewBlock, hash_entries, lists, short, shortened, signed};

impl Sqlite {
    pub(in crate::store) fn append(
        &mut self,
        blocks: &[NewBlock],
        finalized: u64,
    ) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        insert(&transaction, blocks)?;
        if let Some(first) = blocks.first() {
            transaction
                .prepare_cached("INSERT OR IGNORE INTO facts (name, value) VALUES ('first', ?1)")?
                .execute([first.number as i64])?;
        }
        transaction
            .prepare_cached(
                "INSERT INTO facts (name, value)
                 SELECT 'finalized', min(?1, max(number)) FROM blocks HAVING max(number) NOT NULL
                 ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            )?
            .execute([signed(finalized)])?;
        transaction.commit()?;
        Ok(())
    }

    pub(in crate::store) fn rewind(
        &mut self,
        last: u64,
        above: i64,
        keys: &BTreeSet<Key>,
    ) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        for key in keys {
            shorten_list(&transaction, *key, above)?;
        }
        let run = |sql: &str, value: i64| -> Result<usize, rusqlite::Error> {
            transaction.prepare_cached(sql)?.execute([value])
        };
        let hashes: Vec<(i64, i64)> = transaction
            .prepare_cached("SELECT hash, place FROM transactions WHERE place >= ?1")?
            .query_map([above], |row| Ok((short(&row.get(0)?), row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for entry in hashes {
            transaction
                .prepare_cached("DELETE FROM transaction_hashes WHERE short = ?1 AND place = ?2")?
                .execute(entry)?;
        }
        let hashes: Vec<(i64, i64)> = transaction
            .prepare_cached("SELECT hash, number FROM blocks WHERE number > ?1")?
            .query_map([last as i64], |row| Ok((short(&row.get(0)?), row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for entry in hashes {
            transaction
                .prepare_cached("DELETE FROM block_hashes WHERE short = ?1 AND number = ?2")?
                .execute(entry)?;
        }
        run("DELETE FROM transactions WHERE place >= ?1", above)?;
        run("DELETE FROM blocks WHERE number > ?1", last as i64)?;
        run("DELETE FROM harmony_blocks WHERE number > ?1", last as i64)?;
        transaction.commit()?;
        Ok(())
    }
}

fn insert(transaction: &Transaction<'_>, blocks: &[NewBlock]) -> Result<(), rusqlite::Error> {
    {
        let mut block_row = transaction.prepare_cached(
            "INSERT INTO blocks (number, hash, time, count, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let mut hash_row = transaction
            .prepare_cached("INSERT INTO block_hashes (short, number) VALUES (?1, ?2)")?;
        let mut item_row = transaction.prepare_cached(
            "INSERT INTO transactions (place, hash, receipt, body) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let mut harmony_row = transaction
            .prepare_cached("INSERT INTO harmony_blocks (number, body) VALUES (?1, ?2)")?;
        for block in blocks {
            let number = block.number as i64;
            let (time, count) = (block.time as i64, block.count as i64);
            block_row.execute((number, block.hash.as_slice(), time, count, &block.body))?;
            hash_row.execute((short(&block.hash), number))?;
            if let Some(body) = &block.harmony {
                harmony_row.execute((number, body))?;
            }
            for item in &block.items {
                let place = place(block.number, item.index);
                item_row.execute((place, item.hash.as_slice(), &item.receipt, &item.body))?;
            }
        }
    }
    let mut hash_row = transaction
        .prepare_cached("INSERT INTO transaction_hashes (short, place) VALUES (?1, ?2)")?;
    for entry in hash_entries(blocks) {
        hash_row.execute(entry)?;
    }
    let mut list_row = transaction
        .prepare_cached("INSERT INTO log_places (key, first, others) VALUES (?1, ?2, ?3)")?;
    for list in lists(blocks) {
        list_row.execute(list)?;
    }
    Ok(())
}

/// Takes the places from `above` on out of the lists of a key.
fn shorten_list(
    transaction: &Transaction<'_>,
    key: Key,
    above: i64,
) -> Result<(), rusqlite::Error> {
    transaction
        .prepare_cached("DELETE FROM log_places WHERE key = ?1 AND first >= ?2")?
        .execute((key, above))?;
    let last: Option<(i64, Vec<u8>)> = transaction
        .prepare_cached(
            "SELECT first, others FROM log_places WHERE key = ?1 ORDER BY first DESC LIMIT 1",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((first, others)) = last else { return Ok(()) };
    if let Some(packed) = shortened(first, &others, above) {
        transaction
            .prepare_cached("UPDATE log_places SET others = ?3 WHERE key = ?1 AND first = ?2")?
            .execute((key, first, packed))?;
    }
    Ok(())
}
