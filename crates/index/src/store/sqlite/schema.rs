//! The tables of a SQLite file, and SQLite's settings with their reasons.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::store::error::StoreError;
use crate::store::interface::Settings;

/// `weir` in ASCII, by which `file` and SQLite recognize an index.
const APPLICATION_ID: i64 = 0x7765_6972;

/// Each migration brings a file from one schema version to the next. A file holds its version in
/// `user_version`.
const MIGRATIONS: [&str; 3] = [
    "
    CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE dictionaries (number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, bytes BLOB NOT NULL);
    -- body: the compressed block without its transactions.
    CREATE TABLE blocks (
        number INTEGER PRIMARY KEY, hash BLOB NOT NULL, time INTEGER NOT NULL,
        count INTEGER NOT NULL, body BLOB NOT NULL
    );
    -- short: the first eight bytes of the hash. The block's row has the whole hash.
    CREATE TABLE block_hashes (
        short INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (short, number)
    ) WITHOUT ROWID;
    -- place: the block number and the index in one. Logs are read from the receipt, so hash and
    -- receipt come before the body, which only a query for the transaction reads.
    CREATE TABLE transactions (
        place INTEGER PRIMARY KEY, hash BLOB NOT NULL, receipt BLOB, body BLOB
    );
    CREATE TABLE transaction_hashes (
        short INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (short, place)
    ) WITHOUT ROWID;
    -- One row lists the transactions within a few hundred blocks that have logs with a key, so the
    -- cost of a search for an address grows with its logs, not with the chain.
    CREATE TABLE log_places (
        key INTEGER NOT NULL, first INTEGER NOT NULL, others BLOB NOT NULL, PRIMARY KEY (key, first)
    ) WITHOUT ROWID;
",
    // body: the compressed block as Harmony's hmyv2_ methods write it.
    "
    CREATE TABLE harmony_blocks (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
",
    // Renames tables and columns to standard terms.
    "
    ALTER TABLE log_places RENAME TO log_postings;
    ALTER TABLE log_postings RENAME COLUMN others TO rest;
    ALTER TABLE transactions RENAME COLUMN place TO position;
    ALTER TABLE transaction_hashes RENAME COLUMN place TO position;
    UPDATE facts SET name = 'contents' WHERE name = 'what';
    UPDATE facts SET name = 'verification' WHERE name = 'verified';
    UPDATE facts SET name = 'differing_forms' WHERE name = 'unlike';
    UPDATE facts SET name = 'untested_forms' WHERE name = 'untried';
",
];

/// The schema version that this program writes.
pub(in crate::store) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Returns the path of a file beside the database: the database's path with a suffix.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Locks the file for its one writer. SQLite's own locks last for one transaction. With them alone,
/// a second writer could write between a check of the first writer and its next transaction.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = beside(path, ".lock");
    let file_error = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly(format!(
                "{}: {error}; the folder must be writable",
                lock_path.display()
            ))
        }
        _ => StoreError::File { path: lock_path.clone(), error },
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(file_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(path.into())),
        Err(TryLockError::Error(error)) => Err(file_error(error)),
    }
}

/// Sets up a connection that writes: checks the file, creates its tables or migrates them.
pub(super) fn set_up_writer(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    // The check comes before the first write, since the file may belong to another program.
    let version = read_version(connection, &path)?;
    // With a write-ahead log, a commit is one append and never blocks readers
    // (https://www.sqlite.org/wal.html).
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // With a write-ahead log and NORMAL, a crash of the machine may lose the last commits, but the
    // file stays consistent. The next sync fetches the lost blocks again. FULL would wait for the
    // disk at each commit.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // 64 MiB of changes collect before a checkpoint, so pages that change often are written once.
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    set_up_common(connection, settings)?;
    if version < SCHEMA_VERSION {
        migrate(connection, version)?;
    }
    Ok(())
}

/// Sets up a connection that reads.
pub(super) fn set_up_reader(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    let version = read_version(connection, &path)?;
    if version < SCHEMA_VERSION {
        return Err(StoreError::Older { location: path.into(), version });
    }
    set_up_common(connection, settings)
}

/// Applies the settings that readers and writers have in common.
fn set_up_common(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    // A negative value counts KiB instead of pages.
    let kib = i64::try_from(settings.page_cache >> 10).unwrap_or(i64::MAX).max(1);
    connection.pragma_update(None, "cache_size", -kib)?;
    let mmap = i64::try_from(settings.mmap).unwrap_or(i64::MAX);
    connection.pragma_update(None, "mmap_size", mmap)?;
    // A checkpoint of another process blocks for milliseconds.
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    // Without this setting, SQLite plans a statement again if the bounds of a range change. None of
    // our plans depends on the bounds (https://www.sqlite.org/queryplanner-ng.html#qpsg).
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Returns the schema version of the file, or 0 for a new one.
fn read_version(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let foreign_error =
        |reason: &str| StoreError::Foreign { location: path.into(), reason: reason.to_owned() };
    let read_pragma =
        |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = match read_pragma("application_id") {
        Ok(id) => id,
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(foreign_error("not a database of SQLite"));
        }
        Err(error) => return Err(error.into()),
    };
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, tables) {
        (0, 0) => return Ok(0),
        (APPLICATION_ID, _) => {}
        _ => return Err(foreign_error("a database of another program")),
    }
    let version = read_pragma("user_version")?;
    if version > SCHEMA_VERSION {
        return Err(StoreError::Newer {
            location: path.into(),
            version,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(version)
}

fn migrate(connection: &Connection, version: i64) -> Result<(), StoreError> {
    let migrations = MIGRATIONS.get(version as usize..).unwrap_or_default().concat();
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {migrations}
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
    ))?;
    Ok(())
}
