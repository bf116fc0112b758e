//! Where an index is kept: everything that is SQL.
//!
//! Two can keep it: a file of SQLite (`store/sqlite.rs`), and a schema in a database of PostgreSQL
//! (`store/postgres.rs`). They have the same tables, take the same questions, and are told apart
//! nowhere above. What is in a row is packed elsewhere; here are the tables, the settings, and the
//! two writes that there are: forward by some blocks, or back to an earlier one. Each is one
//! transaction together with the checkpoint, so a process may be killed at any instant and what is
//! kept never holds half of a step.

mod facts;
mod fault;
mod location;
mod merge;
mod postgres;
mod rows;
mod sqlite;

use std::collections::BTreeSet;
use std::time::Duration;

pub use self::facts::{Chain, Facts, Held, What};
pub use self::fault::StoreError;
pub use self::location::Location;
use self::merge::Merged;
use self::postgres::Postgres;
pub use self::rows::{BlockRow, ItemRow, NewBlock, NewItem};
pub(crate) use self::rows::{HarmonyRow, Item, Leads, ListRow, Places, Wanted};
use self::sqlite::Sqlite;
use crate::pack::Dictionary;
use crate::places::{Key, place};

#[cfg(test)]
pub(crate) mod kinds;
#[cfg(test)]
mod tests;

/// How an index is worked on.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes of pages of a file that this connection keeps in memory.
    pub page_cache: u64,
    /// Bytes of a file that are mapped instead of read; 0 for none.
    pub mmap: u64,
    /// How long a server may take over one question, or one step of a write. Questions that look
    /// through whole tables have no limit.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { page_cache: 64 << 20, mmap: 0, patience: Duration::from_secs(60) }
    }
}

/// A connection to an index.
pub struct Store {
    kept: Kept,
    location: Location,
}

/// Who keeps it.
enum Kept {
    Sqlite(Box<Sqlite>),
    Postgres(Box<Postgres>),
}

/// Does the same with either.
macro_rules! either {
    ($store:expr, $kept:ident => $does:expr) => {
        match $store {
            Kept::Sqlite($kept) => $does,
            Kept::Postgres($kept) => $does,
        }
    };
}

/// What SQLite counts of a connection's page cache since it was opened
/// (`sqlite3_db_status`, <https://www.sqlite.org/c3ref/c_dbstatus_options.html>).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCache {
    /// Bytes in use.
    pub used: u64,
    /// Pages found.
    pub hit: u64,
    /// Pages read from the file.
    pub miss: u64,
    /// Changed pages written in the middle of a transaction for want of room.
    pub spill: u64,
}

/// Opening, and what is told of the whole.
impl Store {
    /// Opens an index to write, and makes it if it is not there.
    ///
    /// # Errors
    /// If it is no index, of a newer kind, damaged, read-only, another process writes to it, or its
    /// server cannot be asked.
    pub fn open(at: impl Into<Location>, settings: Settings) -> Result<Store, StoreError> {
        let location = at.into();
        let kept = match &location {
            Location::File(path) => Kept::Sqlite(Box::new(Sqlite::open(path, settings)?)),
            Location::Server(server) => Kept::Postgres(Box::new(Postgres::open(server, settings)?)),
        };
        Ok(Store { kept, location })
    }

    /// A file that is nowhere, for a look at how something would be kept.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn in_memory() -> Result<Store, StoreError> {
        let kept = Kept::Sqlite(Box::new(Sqlite::in_memory()?));
        Ok(Store { kept, location: Location::File(std::path::PathBuf::new()) })
    }

    /// Opens an index to read; others may write meanwhile.
    ///
    /// # Errors
    /// If it is not there, no index, of another kind, damaged, or its server cannot be asked.
    pub fn open_to_read(at: impl Into<Location>, settings: Settings) -> Result<Store, StoreError> {
        let location = at.into();
        let kept = match &location {
            Location::File(path) => Kept::Sqlite(Box::new(Sqlite::open_to_read(path, settings)?)),
            Location::Server(server) => {
                Kept::Postgres(Box::new(Postgres::open_to_read(server, settings)?))
            }
        };
        Ok(Store { kept, location })
    }

    /// Where it is kept.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Bytes of a file and of its write-ahead log, or of a server's tables with what belongs to
    /// them.
    ///
    /// # Errors
    /// If the server does not tell.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        either!(&self.kept, kept => kept.disk_bytes())
    }

    /// What the page cache has done; none where a server has its own.
    pub fn page_cache(&mut self) -> Option<PageCache> {
        match &mut self.kept {
            Kept::Sqlite(file) => Some(file.page_cache()),
            Kept::Postgres(_) => None,
        }
    }

    /// Rebuilds a file without holes; has a server make room of dropped rows, and look at how
    /// values are distributed.
    ///
    /// # Errors
    /// If there is no room for a second copy, or no right to it.
    pub fn vacuum(&mut self) -> Result<(), StoreError> {
        either!(&self.kept, kept => kept.vacuum())
    }

    /// What SQLite finds wrong with its own structures; nothing if they are sound. A server does not
    /// tell of its own.
    ///
    /// # Errors
    /// If the file cannot be read at all.
    pub fn flaws(&self) -> Result<Vec<String>, StoreError> {
        match &self.kept {
            Kept::Sqlite(file) => file.flaws(),
            Kept::Postgres(_) => Ok(Vec::new()),
        }
    }

    /// What the index is about; none before the first block.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn facts(&self) -> Result<Option<Facts>, StoreError> {
        Facts::of(&either!(&self.kept, kept => kept.facts())?)
    }

    /// Says what a new index is about, and with what its pieces are packed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn found(&mut self, facts: &Facts, dictionaries: &[Dictionary]) -> Result<(), StoreError> {
        let mut texts = facts.texts().to_vec();
        texts.push((facts::DICTIONARIES, facts::digest(dictionaries)));
        either!(&mut self.kept, kept => kept.found(&texts, dictionaries))
    }

    /// Notes how closely what comes is looked at, where that is less than before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn verified(&mut self, how: &str) -> Result<(), StoreError> {
        either!(&mut self.kept, kept => kept.change_facts(&[(facts::VERIFIED, how)]))
    }

    /// Notes which forms are left to nodes, after some that no node had shown were seen.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn compared(&mut self, unlike: &[String], untried: &[String]) -> Result<(), StoreError> {
        let (unlike, untried) = (unlike.join(" "), untried.join(" "));
        let changes = [(facts::UNLIKE, &*unlike), (facts::UNTRIED, &*untried)];
        either!(&mut self.kept, kept => kept.change_facts(&changes))
    }

    /// From where to where the index goes; none before the first block.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn held(&self) -> Result<Option<Held>, StoreError> {
        either!(&self.kept, kept => kept.held())
    }

    /// The dictionaries in the order of their numbers.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn dictionaries(&self) -> Result<Vec<Dictionary>, StoreError> {
        let rows = either!(&self.kept, kept => kept.dictionaries())?;
        rows.into_iter().map(|(kind, bytes)| facts::dictionary(kind, bytes)).collect()
    }

    /// Returns false if the dictionaries are not those that the index was made with. Indexes of older
    /// versions hold no digest of them: `None`.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn dictionaries_match(&self) -> Result<Option<bool>, StoreError> {
        let texts = either!(&self.kept, kept => kept.facts())?;
        let Some(kept) = texts.get(facts::DICTIONARIES) else { return Ok(None) };
        Ok(Some(*kept == facts::digest(&self.dictionaries()?)))
    }

    /// How many blocks and transactions there are; a scan.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn totals(&self) -> Result<(u64, u64), StoreError> {
        either!(&self.kept, kept => Ok((kept.count("blocks")?, kept.count("transactions")?)))
    }

    /// Numbers of blocks that are missing between the first and the last.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn holes(&self) -> Result<u64, StoreError> {
        either!(&self.kept, kept => kept.holes())
    }
}

/// Writing.
impl Store {
    /// Adds blocks that follow the last one, in one transaction with the checkpoint. `finalized` is
    /// the last block that no reorg may drop; of what is held, what was final once stays so.
    ///
    /// # Errors
    /// If they cannot be written; nothing is, then.
    pub fn append(&mut self, blocks: &[NewBlock], finalized: u64) -> Result<(), StoreError> {
        either!(&mut self.kept, kept => kept.append(blocks, finalized))
    }

    /// Notes up to where no reorg may drop a block, if that is farther than before.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finalize(&mut self, finalized: u64) -> Result<(), StoreError> {
        self.append(&[], finalized)
    }

    /// Drops the blocks above `last`, whose logs have these keys.
    ///
    /// # Errors
    /// If they cannot be dropped; nothing is, then.
    pub fn rewind(&mut self, last: u64, keys: &BTreeSet<Key>) -> Result<(), StoreError> {
        either!(&mut self.kept, kept => kept.rewind(last, place(last + 1, 0), keys))
    }

    /// Joins the lists of a key that follow each other and together span at most 256 blocks; how
    /// many rows there are fewer. What a search finds is the same. It may be ended at any moment:
    /// each transaction leaves whole lists.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn merge_lists(&mut self) -> Result<u64, StoreError> {
        let mut fewer = 0;
        let mut from = Some((i64::MIN, i64::MIN));
        while let Some(first) = from {
            let Merged { joined, next } = either!(&mut self.kept, kept => kept.merge_lists(first))?;
            fewer += joined;
            from = next;
        }
        Ok(fewer)
    }
}

/// Rows as they are asked for.
impl Store {
    /// All that is read until [`Store::end_reading`] is of one state, whatever others write
    /// meanwhile, and takes a file's locks once.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn begin_reading(&self) -> Result<(), StoreError> {
        either!(&self.kept, kept => kept.begin_reading())
    }

    /// Ends what [`Store::begin_reading`] began.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn end_reading(&self) -> Result<(), StoreError> {
        either!(&self.kept, kept => kept.end_reading())
    }

    /// Hash and time of the block with this number.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn hash_and_time(&self, number: u64) -> Result<Option<([u8; 32], u64)>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        either!(&self.kept, kept => kept.hash_and_time(number))
    }

    /// The block with this number.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn block(&self, number: u64) -> Result<Option<BlockRow>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        either!(&self.kept, kept => kept.block(number))
    }

    /// Shows `each` the blocks from one number to another as Harmony's own methods write them, in
    /// order, until it has enough.
    pub(crate) fn harmony_blocks<E: From<StoreError>>(
        &self,
        from: u64,
        to: u64,
        each: impl FnMut(HarmonyRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let Ok(from) = i64::try_from(from) else { return Ok(()) };
        let to = i64::try_from(to).unwrap_or(i64::MAX);
        either!(&self.kept, kept => kept.harmony_blocks(from, to, each))
    }

    /// The number of the block with this hash.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn number_of(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        either!(&self.kept, kept => kept.number_of(hash))
    }

    /// The place of the transaction with this hash.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn place_of(&self, hash: &[u8; 32]) -> Result<Option<i64>, StoreError> {
        either!(&self.kept, kept => kept.place_of(hash))
    }

    /// Shows `each` what is kept of the transactions from one place to another, both included, in
    /// order, until it has enough.
    pub(crate) fn items<E: From<StoreError>>(
        &self,
        from: i64,
        to: i64,
        wanted: Wanted,
        each: impl FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        either!(&self.kept, kept => kept.items(from, to, wanted, each))
    }

    /// Shows `each` the receipts of these transactions, which are in order.
    pub(crate) fn receipts<E: From<StoreError>>(
        &self,
        places: &[i64],
        each: impl FnMut(Item<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        either!(&self.kept, kept => kept.receipts(places, each))
    }

    /// What is kept at one place.
    pub(crate) fn item(&self, place: i64, wanted: Wanted) -> Result<Option<ItemRow>, StoreError> {
        let mut found = None;
        self.items(place, place, wanted, |item| {
            found = Some(ItemRow {
                place: item.place,
                hash: item.hash,
                packed: item.packed.map(<[u8]>::to_vec),
                block: item.block,
            });
            Ok::<_, StoreError>(false)
        })?;
        Ok(found)
    }

    /// The places of some keys from one place to another, both included: those of at most `lists`
    /// lists of each key, and only up to where all lists were read.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn places(
        &self,
        keys: &[Key],
        from: i64,
        to: i64,
        lists: usize,
    ) -> Result<Places, StoreError> {
        let mut found = either!(&self.kept, kept => kept.places(keys, from, to, lists))?;
        found.close(keys.len());
        Ok(found)
    }
}

/// What a look through the whole index needs: rows in order, and entries that lead nowhere.
impl Store {
    /// The number of the first block from this number on.
    pub(crate) fn block_from(&self, number: u64) -> Result<Option<u64>, StoreError> {
        let Ok(number) = i64::try_from(number) else { return Ok(None) };
        either!(&self.kept, kept => kept.block_from(number))
    }

    /// Whether there are blocks below 0, which nothing else would find.
    pub(crate) fn has_negative(&self) -> Result<bool, StoreError> {
        either!(&self.kept, kept => kept.has_negative())
    }

    /// Whether the hash leads to the block.
    pub(crate) fn leads_to_block(&self, hash: &[u8; 32], number: u64) -> Result<bool, StoreError> {
        either!(&self.kept, kept => kept.leads_to_block(rows::short(hash), number as i64))
    }

    /// The first of these transactions, places and hashes, to which its hash does not lead.
    pub(crate) fn unled(&self, items: &[(i64, [u8; 32])]) -> Result<Option<i64>, StoreError> {
        let entries: Vec<(i64, i64)> =
            items.iter().map(|(place, hash)| (rows::short(hash), *place)).collect();
        either!(&self.kept, kept => kept.unled(&entries))
    }

    /// How many hashes lead to blocks and how many blocks there are; the same of transactions.
    pub(crate) fn leads(&self) -> Result<(Leads, Leads), StoreError> {
        let count = |table| either!(&self.kept, kept => kept.count(table));
        let blocks = Leads { entries: count("block_hashes")?, rows: count("blocks")? };
        let items = Leads { entries: count("transaction_hashes")?, rows: count("transactions")? };
        Ok((blocks, items))
    }

    /// Numbers to which a hash leads that is not that of the block there, at most so many.
    pub(crate) fn stray_block_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        either!(&self.kept, kept => kept.stray_block_hashes(most))
    }

    /// Places to which a hash leads that is not that of the transaction there, at most so many.
    pub(crate) fn stray_item_hashes(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        either!(&self.kept, kept => kept.stray_item_hashes(most))
    }

    /// Places of transactions whose block is not there, at most so many.
    pub(crate) fn stray_items(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        either!(&self.kept, kept => kept.stray_items(most))
    }

    /// Numbers of Harmony's blocks whose block is not there, at most so many.
    pub(crate) fn stray_harmony(&self, most: usize) -> Result<Vec<i64>, StoreError> {
        either!(&self.kept, kept => kept.stray_harmony(most))
    }

    /// Shows `each` all rows of `log_places` in their order, until it has enough.
    pub(crate) fn lists<E: From<StoreError>>(
        &self,
        each: impl FnMut(ListRow<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        either!(&self.kept, kept => kept.lists(each))
    }
}
