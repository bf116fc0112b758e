//! The SQLite backend: an index in a file. A lock file beside it ensures that there is only one
//! writer.

mod audit;
mod read;
mod schema;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

#[cfg(test)]
pub(super) use self::schema::SCHEMA_VERSION;

use super::error::StoreError;
use super::interface::{PageCache, Settings, Store};
use super::location::Location;
use super::metadata;
use crate::compression::Dictionary;
use crate::contents::StoredRange;

/// A connection to a file.
pub(super) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    page_cache: PageCache,
    /// The last readings of SQLite's counters of hits, misses and spills, in this order. The
    /// counters have 32 bits and overflow in a long sync, so only their differences are added to
    /// `page_cache`.
    last_readings: [u32; 3],
    /// The lock file, which stays locked while it is open; `None` for a reader.
    _lock: Option<File>,
}

impl Sqlite {
    /// Opens the file to write, and creates it if it does not exist.
    pub(super) fn open(path: &Path, settings: Settings) -> Result<Sqlite, StoreError> {
        let lock_file = schema::lock(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let requirement = "it and its folder must be writable";
        // SQLite opens a file that is not writable as read-only, without an error.
        if connection.is_readonly("main")? {
            return Err(StoreError::read_only(path, requirement));
        }
        schema::set_up_writer(&connection, settings)
            .map_err(|error| error.with_file(path, requirement))?;
        Ok(Sqlite::new(connection, path, Some(lock_file)))
    }

    /// Creates an index in memory.
    pub(super) fn in_memory() -> Result<Sqlite, StoreError> {
        let connection = Connection::open_in_memory()?;
        schema::set_up_writer(&connection, Settings::default())?;
        Ok(Sqlite::new(connection, Path::new(""), None))
    }

    /// Opens the file to read. Another process may write to it meanwhile.
    pub(super) fn open_to_read(path: &Path, settings: Settings) -> Result<Sqlite, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing(path.into()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let requirement = "a reader keeps two files beside it, FILE-shm and FILE-wal, so its folder must \
                   be writable";
        schema::set_up_reader(&connection, settings)
            .map_err(|error| error.with_file(path, requirement))?;
        Ok(Sqlite::new(connection, path, None))
    }

    /// Deletes the file and the files beside it, unless it has metadata.
    pub(super) fn delete_uninitialized(path: &Path) -> Result<(), StoreError> {
        let store = Sqlite::open(path, Settings::default())?;
        if store.metadata()?.is_some() {
            return Ok(());
        }
        // The lock file is the last, so that no other writer creates the index meanwhile.
        for suffix in ["", "-wal", "-shm", ".lock"] {
            let path = schema::path_with_suffix(path, suffix);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::File { path, error });
                }
                _ => {}
            }
        }
        drop(store);
        Ok(())
    }

    fn new(connection: Connection, path: &Path, lock: Option<File>) -> Sqlite {
        let (page_cache, last_readings) = (PageCache::default(), [0; 3]);
        Sqlite { connection, path: path.to_owned(), page_cache, last_readings, _lock: lock }
    }

    /// Returns the value of one of SQLite's counters, or 0 if SQLite does not know the counter.
    #[allow(unsafe_code)] // SQLite's counters have no safe wrapper.
    fn read_counter(&self, counter: i32) -> u32 {
        let (mut current, mut highest) = (0, 0);
        // SAFETY: `self` keeps the connection of this handle open, and only this thread uses the
        // connection. Both output pointers are valid during the call.
        let status = unsafe {
            rusqlite::ffi::sqlite3_db_status(
                self.connection.handle(),
                counter,
                &mut current,
                &mut highest,
                0,
            )
        };
        if status == rusqlite::ffi::SQLITE_OK { current as u32 } else { 0 }
    }
}

impl Store for Sqlite {
    fn location(&self) -> Location {
        Location::File(self.path.clone())
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        let write_ahead_log = schema::path_with_suffix(&self.path, "-wal");
        let files = [self.path.as_path(), &write_ahead_log];
        let existing_files = files.into_iter().filter_map(|path| path.metadata().ok());
        Ok(existing_files.map(|metadata| metadata.len()).sum())
    }

    fn page_cache(&mut self) -> Option<PageCache> {
        use rusqlite::ffi;
        let readings = [
            self.read_counter(ffi::SQLITE_DBSTATUS_CACHE_HIT),
            self.read_counter(ffi::SQLITE_DBSTATUS_CACHE_MISS),
            self.read_counter(ffi::SQLITE_DBSTATUS_CACHE_SPILL),
        ];
        let page_cache = &mut self.page_cache;
        let totals = [&mut page_cache.hit, &mut page_cache.miss, &mut page_cache.spill];
        for ((total, reading), last_reading) in
            totals.into_iter().zip(readings).zip(&mut self.last_readings)
        {
            *total += u64::from(reading.wrapping_sub(*last_reading));
            *last_reading = reading;
        }
        self.page_cache.used = u64::from(self.read_counter(ffi::SQLITE_DBSTATUS_CACHE_USED));
        Some(self.page_cache)
    }

    fn vacuum(&self) -> Result<(), StoreError> {
        self.connection.execute_batch("VACUUM; ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }

    fn integrity_errors(&self) -> Result<Vec<String>, StoreError> {
        // The check ends at 20 errors.
        let mut statement = self.connection.prepare("PRAGMA integrity_check(20)")?;
        let messages = statement.query_map([], |row| row.get::<_, String>(0))?;
        let messages: Vec<String> = messages.collect::<Result<_, _>>()?;
        Ok(messages.into_iter().filter(|message| message != "ok").collect())
    }

    fn metadata_rows(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT name, CASE typeof(value) WHEN 'blob' THEN hex(value) ELSE value || '' END
             FROM facts WHERE value IS NOT NULL",
        )?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn insert_metadata(
        &mut self,
        rows: &[(&str, String)],
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        {
            // The genesis hash is stored as a blob.
            let mut insert = transaction.prepare(
                "INSERT INTO facts (name, value)
                 VALUES (?1, CASE ?1 WHEN 'genesis' THEN unhex(?2) ELSE ?2 END)",
            )?;
            for row in rows {
                insert.execute((row.0, &row.1))?;
            }
            let mut insert =
                transaction.prepare("INSERT INTO dictionaries (kind, bytes) VALUES (?1, ?2)")?;
            for dictionary in dictionaries {
                insert.execute((dictionary.kind as i64, &dictionary.bytes))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn update_metadata(&mut self, rows: &[(&str, &str)]) -> Result<(), StoreError> {
        let sql = "UPDATE facts SET value = ?1 WHERE name = ?2";
        let transaction = self.connection.transaction()?;
        for (name, value) in rows {
            transaction.execute(sql, [value, name])?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn dictionary_rows(&self) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let mut statement =
            self.connection.prepare("SELECT kind, bytes FROM dictionaries ORDER BY number")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn stored_range(&self) -> Result<Option<StoredRange>, StoreError> {
        let row = self
            .connection
            .prepare_cached(
                "SELECT (SELECT value FROM facts WHERE name = 'first'), max(number), hash,
                    (SELECT value FROM facts WHERE name = 'finalized') FROM blocks",
            )?
            .query_row([], |row| {
                let first: Option<i64> = row.get(0)?;
                let last: Option<i64> = row.get(1)?;
                let hash: Option<[u8; 32]> = row.get(2)?;
                let finalized: Option<i64> = row.get(3)?;
                Ok((first, last, hash, finalized))
            })?;
        let (Some(first), Some(last), Some(hash), finalized) = row else { return Ok(None) };
        Ok(Some(metadata::parse_stored_range(first, last, hash, finalized)))
    }

    #[cfg(test)]
    fn execute(&self, sql: &str) -> u64 {
        let changes_before = self.connection.total_changes();
        self.connection.execute_batch(sql).unwrap();
        self.connection.total_changes() - changes_before
    }
}
