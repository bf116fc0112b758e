//! The file: everything that is SQL.
//!
//! What is in a row is packed elsewhere; here are the tables, the settings, and the two writes that
//! there are: forward by some blocks, or back to an earlier one. Each is one transaction together
//! with the checkpoint, so a process may be killed at any instant and a file never holds half of a
//! step.

mod audit;
mod facts;
mod fault;
mod merge;
mod read;
mod schema;
mod write;

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

pub use self::facts::{Chain, Facts, Held, What};
pub use self::fault::StoreError;
pub(crate) use self::read::Wanted;
pub use self::read::{BlockRow, ItemRow};
pub use self::write::{NewBlock, NewItem};

#[cfg(test)]
mod tests;

/// How a file is worked on.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes of pages that this connection keeps in memory.
    pub page_cache: u64,
    /// Bytes of the file that are mapped instead of read; 0 for none.
    pub mmap: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { page_cache: 64 << 20, mmap: 0 }
    }
}

/// A connection to the file of an index.
pub struct Store {
    connection: Connection,
    path: PathBuf,
    counted: PageCache,
    /// SQLite's own counters when they were last looked at: 32 bits, which a long sync overflows.
    seen: [u32; 3],
    /// Held by who writes, so that there is one.
    _lock: Option<File>,
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

impl Store {
    /// Opens the file to write, and makes it if it is not there.
    ///
    /// # Errors
    /// If it is no index, of a newer kind, damaged, read-only, or another process writes to it.
    pub fn open(path: &Path, settings: Settings) -> Result<Store, StoreError> {
        let lock = schema::lock(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        schema::set_up_writer(&connection, settings)?;
        Ok(Store {
            connection,
            path: path.to_owned(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: Some(lock),
        })
    }

    /// A file that is nowhere, for a look at how something would be kept.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn in_memory() -> Result<Store, StoreError> {
        let connection = Connection::open_in_memory()?;
        schema::set_up_writer(&connection, Settings::default())?;
        Ok(Store {
            connection,
            path: PathBuf::new(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: None,
        })
    }

    /// Opens the file to read; others may write meanwhile.
    ///
    /// # Errors
    /// If it is not there, no index, of another kind, or damaged.
    pub fn open_to_read(path: &Path, settings: Settings) -> Result<Store, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        schema::set_up_reader(&connection, settings)?;
        Ok(Store {
            connection,
            path: path.to_owned(),
            counted: PageCache::default(),
            seen: [0; 3],
            _lock: None,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file and of its write-ahead log.
    pub fn disk_bytes(&self) -> u64 {
        let log = schema::beside(&self.path, "-wal");
        [self.path.as_path(), &log]
            .iter()
            .filter_map(|path| path.metadata().ok())
            .map(|file| file.len())
            .sum()
    }

    /// What the page cache has done.
    pub fn page_cache(&mut self) -> PageCache {
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
    ///
    /// # Errors
    /// If there is no room for a second copy.
    pub fn vacuum(&mut self) -> Result<(), StoreError> {
        self.connection.execute_batch("VACUUM; ANALYZE; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }

    /// What SQLite finds wrong with its own structures; nothing if they are sound.
    ///
    /// # Errors
    /// If the file cannot be read at all.
    pub fn flaws(&self) -> Result<Vec<String>, StoreError> {
        let mut statement = self.connection.prepare("PRAGMA integrity_check(20)")?;
        let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
        let lines: Vec<String> = lines.collect::<Result<_, _>>()?;
        Ok(lines.into_iter().filter(|line| line != "ok").collect())
    }
}
