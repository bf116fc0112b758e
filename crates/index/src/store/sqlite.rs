//! A file of SQLite.

mod audit;
mod merge;
mod read;
mod schema;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

#[cfg(test)]
pub(super) use self::schema::KNOWN;

use super::facts::Held;
use super::{Location, PageCache, Settings, StoreError};
use crate::pack::Dictionary;

/// A connection to a file.
pub(super) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    counted: PageCache,
    /// SQLite's own counters when they were last looked at: 32 bits, which a long sync overflows.
    seen: [u32; 3],
    /// Held by who writes, so that there is one.
    _lock: Option<File>,
}

impl Sqlite {
    /// Opens the file to write, and makes it if it is not there.
    pub(super) fn open(path: &Path, settings: Settings) -> Result<Sqlite, StoreError> {
        let lock = schema::lock(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let needed = "it and its folder must be writable";
        // SQLite opens what may not be written to read it.
        if connection.is_readonly("main")? {
            return Err(StoreError::read_only(path, needed));
        }
        let set_up = schema::set_up_writer(&connection, settings);
        set_up.map_err(|error| error.of_file(path, needed))?;
        Ok(Sqlite {
            connection,
            path: path.to_owned(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: Some(lock),
        })
    }

    /// A file that is nowhere, for a look at how something would be kept.
    pub(super) fn in_memory() -> Result<Sqlite, StoreError> {
        let connection = Connection::open_in_memory()?;
        schema::set_up_writer(&connection, Settings::default())?;
        Ok(Sqlite {
            connection,
            path: PathBuf::new(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: None,
        })
    }

    /// Opens the file to read; others may write meanwhile.
    pub(super) fn open_to_read(path: &Path, settings: Settings) -> Result<Sqlite, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing(Location::File(path.to_owned())));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        let set_up = schema::set_up_reader(&connection, settings);
        let why = "who reads it keeps two files beside it, FILE-shm and FILE-wal, so its folder \
                   must be writable";
        set_up.map_err(|error| error.of_file(path, why))?;
        Ok(Sqlite {
            connection,
            path: path.to_owned(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: None,
        })
    }

    /// SQLite's own connection.
    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Bytes of the file and of its write-ahead log.
    pub(super) fn disk_bytes(&self) -> Result<u64, StoreError> {
        let log = schema::beside(&self.path, "-wal");
        let files = [self.path.as_path(), &log].into_iter().filter_map(|path| path.metadata().ok());
        Ok(files.map(|file| file.len()).sum())
    }

    /// What the page cache has done.
    pub(super) fn page_cache(&mut self) -> PageCache {
        use rusqlite::ffi;
        let now = [
            self.status(ffi::SQLITE_DBSTATUS_CACHE_HIT),
            self.status(ffi::SQLITE_DBSTATUS_CACHE_MISS),
            self.status(ffi::SQLITE_DBSTATUS_CACHE_SPILL),
        ];
        let totals = [&mut self.counted.hit, &mut self.counted.miss, &mut self.counted.spill];
        for ((total, now), before) in totals.into_iter().zip(now).zip(&mut self.seen) {
            *total += u64::from(now.wrapping_sub(*before));
            *before = now;
        }
        self.counted.used = u64::from(self.status(ffi::SQLITE_DBSTATUS_CACHE_USED));
        self.counted
    }

    #[allow(unsafe_code)] // SQLite's counters have no safe wrapper.
    fn status(&self, which: i32) -> u32 {
        let (mut now, mut highest) = (0, 0);
        // SAFETY: the handle is that of an open connection, which `self` keeps open and which only
        // this thread uses; both out pointers are valid for the call.
        let status = unsafe {
            rusqlite::ffi::sqlite3_db_status(
                self.connection.handle(),
                which,
                &mut now,
                &mut highest,
                0,
            )
        };
        if status == rusqlite::ffi::SQLITE_OK { now as u32 } else { 0 }
    }

    /// Rebuilds the file without holes.
    pub(super) fn vacuum(&self) -> Result<(), StoreError> {
        self.connection.execute_batch("VACUUM; ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }

    /// What SQLite finds wrong with its own structures; nothing if they are sound.
    pub(super) fn flaws(&self) -> Result<Vec<String>, StoreError> {
        let mut statement = self.connection.prepare("PRAGMA integrity_check(20)")?;
        let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
        let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
        Ok(lines.into_iter().filter(|line| line != "ok").collect())
    }
}

/// What the file is about.
impl Sqlite {
    pub(super) fn facts(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let mut all = self.connection.prepare_cached(
            "SELECT name, CASE typeof(value) WHEN 'blob' THEN hex(value) ELSE value || '' END
             FROM facts WHERE value IS NOT NULL",
        )?;
        let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    pub(super) fn found(
        &mut self,
        facts: &[(&str, String)],
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        {
            // A hash is a blob.
            let mut set = transaction.prepare(
                "INSERT INTO facts (name, value)
                 VALUES (?1, CASE ?1 WHEN 'genesis' THEN unhex(?2) ELSE ?2 END)",
            )?;
            for fact in facts {
                set.execute((fact.0, &fact.1))?;
            }
            let mut add =
                transaction.prepare("INSERT INTO dictionaries (kind, bytes) VALUES (?1, ?2)")?;
            for dictionary in dictionaries {
                add.execute((dictionary.kind as i64, &dictionary.bytes))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    pub(super) fn change_facts(&mut self, changes: &[(&str, &str)]) -> Result<(), StoreError> {
        let sql = "UPDATE facts SET value = ?1 WHERE name = ?2";
        let transaction = self.connection.transaction()?;
        for (name, value) in changes {
            transaction.execute(sql, [value, name])?;
        }
        transaction.commit()?;
        Ok(())
    }

    pub(super) fn held(&self) -> Result<Option<Held>, StoreError> {
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
        let (Some(first), Some(last), Some(last_hash), finalized) = row else { return Ok(None) };
        Ok(Some(Held::of(first, last, last_hash, finalized)))
    }

    pub(super) fn dictionaries(&self) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let mut all =
            self.connection.prepare("SELECT kind, bytes FROM dictionaries ORDER BY number")?;
        let rows = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
