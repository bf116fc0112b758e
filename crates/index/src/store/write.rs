//! Forward by some blocks, or back to an earlier one.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, Transaction};

use super::{Store, StoreError};
use crate::places::{self, Key, Lists, place};

/// A block as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBlock {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// The hash of the one before.
    pub parent: [u8; 32],
    /// Its time, in seconds.
    pub time: u64,
    /// How many transactions it has.
    pub count: u64,
    /// Itself, packed.
    pub body: Vec<u8>,
    /// Itself as Harmony's own methods write it, packed.
    pub harmony: Option<Vec<u8>>,
    /// Its transactions by index, or those of them of which something is kept.
    pub items: Vec<NewItem>,
    /// How many logs it has.
    pub logs: u64,
    /// Bytes of what the node said of it.
    pub said: u64,
}

/// What is kept of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewItem {
    /// Its place in the block.
    pub index: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// Its receipt or its logs, packed.
    pub receipt: Option<Vec<u8>>,
    /// Itself, packed.
    pub body: Option<Vec<u8>>,
    /// What its logs are found by.
    pub keys: Vec<Key>,
}

impl NewBlock {
    /// Bytes of its packed rows.
    pub fn packed_bytes(&self) -> usize {
        let items = self.items.iter().map(|item| {
            let parts = [&item.receipt, &item.body];
            parts.iter().filter_map(|part| part.as_ref()).map(Vec::len).sum::<usize>()
        });
        let harmony = self.harmony.as_ref().map_or(0, Vec::len);
        self.body.len() + harmony + items.sum::<usize>()
    }
}

/// The first eight bytes of a hash.
pub(super) fn short(hash: &[u8; 32]) -> i64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    i64::from_be_bytes(bytes)
}

impl Store {
    /// Adds blocks that follow the last one, in one transaction with the checkpoint. `finalized` is
    /// the last block that no reorg may drop.
    ///
    /// # Errors
    /// If they cannot be written; nothing is, then.
    pub fn append(&mut self, blocks: &[NewBlock], finalized: u64) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        insert(&transaction, blocks)?;
        if let Some(first) = blocks.first() {
            transaction
                .prepare_cached("INSERT OR IGNORE INTO facts (name, value) VALUES ('first', ?1)")?
                .execute([first.number as i64])?;
        }
        set_finalized(&transaction, finalized)?;
        transaction.commit()?;
        Ok(())
    }

    /// Notes up to where no reorg may drop a block.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finalize(&mut self, finalized: u64) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        set_finalized(&transaction, finalized)?;
        transaction.commit()?;
        Ok(())
    }

    /// Drops the blocks above `last`, whose logs have these keys.
    ///
    /// # Errors
    /// If they cannot be dropped; nothing is, then.
    pub fn rewind(&mut self, last: u64, keys: &BTreeSet<Key>) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        let above = place(last + 1, 0);
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
    let mut lists = Lists::default();
    let mut hashes = Vec::new();
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
                hashes.push((short(&item.hash), place));
                for key in &item.keys {
                    lists.note(*key, place);
                }
            }
        }
    }
    // In the order of the table: each page of it is looked for once in a transaction.
    hashes.sort_unstable();
    let mut hash_row = transaction
        .prepare_cached("INSERT INTO transaction_hashes (short, place) VALUES (?1, ?2)")?;
    for entry in hashes {
        hash_row.execute(entry)?;
    }
    let mut list_row = transaction
        .prepare_cached("INSERT INTO log_places (key, first, others) VALUES (?1, ?2, ?3)")?;
    for list in lists.drain() {
        list_row.execute(list)?;
    }
    Ok(())
}

fn set_finalized(transaction: &Transaction<'_>, finalized: u64) -> Result<(), rusqlite::Error> {
    let finalized = i64::try_from(finalized).unwrap_or(i64::MAX);
    transaction
        .prepare_cached("INSERT OR REPLACE INTO facts (name, value) VALUES ('finalized', ?1)")?
        .execute([finalized])?;
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
    let kept: Vec<i64> = places::places(first, &others).take_while(|at| *at < above).collect();
    let packed = places::pack(&kept);
    if packed.len() < others.len() {
        transaction
            .prepare_cached("UPDATE log_places SET others = ?3 WHERE key = ?1 AND first = ?2")?
            .execute((key, first, packed))?;
    }
    Ok(())
}
