//! Tables, and the settings of SQLite with their reasons.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::store::{Settings, StoreError};

/// `weir` in ASCII: what `file` and SQLite know our files by.
const APPLICATION_ID: i64 = 0x7765_6972;

/// Each step brings a file from the schema before to its own; a file keeps its number in
/// `user_version`.
const STEPS: [&str; 2] = [
    "
    CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE dictionaries (number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, bytes BLOB NOT NULL);
    -- body: the block without its transactions, packed.
    CREATE TABLE blocks (
        number INTEGER PRIMARY KEY, hash BLOB NOT NULL, time INTEGER NOT NULL,
        count INTEGER NOT NULL, body BLOB NOT NULL
    );
    -- short: the first eight bytes of the hash; the row it leads to has the whole.
    CREATE TABLE block_hashes (
        short INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (short, number)
    ) WITHOUT ROWID;
    -- place: number of the block and index in one. The hash and the receipt, which logs are read
    -- from, stand before what is only read with the transaction.
    CREATE TABLE transactions (
        place INTEGER PRIMARY KEY, hash BLOB NOT NULL, receipt BLOB, body BLOB
    );
    CREATE TABLE transaction_hashes (
        short INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (short, place)
    ) WITHOUT ROWID;
    -- The transactions that have logs with a key, some blocks to a row: what is read for an address
    -- grows with its logs, not with the chain.
    CREATE TABLE log_places (
        key INTEGER NOT NULL, first INTEGER NOT NULL, others BLOB NOT NULL, PRIMARY KEY (key, first)
    ) WITHOUT ROWID;
",
    // body: the block as Harmony's own methods write it, packed.
    "
    CREATE TABLE harmony_blocks (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
",
];

/// The schema that this version writes.
pub(in crate::store) const KNOWN: i64 = STEPS.len() as i64;

/// A file whose name is that of the database with something added.
pub(super) fn beside(path: &Path, added: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(added);
    PathBuf::from(name)
}

/// Takes the place of the one writer. SQLite's own locks last for a transaction only; two that take
/// turns would each undo what the other has checked.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let lock = beside(path, ".lock");
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly(format!(
                "{}: {error}; the folder must be writable",
                lock.display()
            ))
        }
        _ => StoreError::File { path: lock.clone(), error },
    };
    let file =
        File::options().create(true).truncate(false).write(true).open(&lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Taken(path.into())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Prepares a connection that writes.
pub(super) fn set_up_writer(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    // Before anything is written: whose file is it?
    let found = version(connection, &path)?;
    // A file of its own for changes: readers are never held up, and a commit is one append
    // (https://www.sqlite.org/wal.html).
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // With WAL, NORMAL loses at most the last commits when the machine dies, never consistency, and
    // what is lost is synced again; FULL would wait for the disk at each commit.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // 64 MiB of changes before they go to the file: pages that change often are written once.
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    common(connection, settings)?;
    if found < KNOWN {
        migrate(connection, found)?;
    }
    Ok(())
}

/// Prepares a connection that reads.
pub(super) fn set_up_reader(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    let found = version(connection, &path)?;
    if found < KNOWN {
        return Err(StoreError::Older { at: path.into(), found });
    }
    common(connection, settings)
}

fn common(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    // Negative: KiB instead of pages.
    let kib = i64::try_from(settings.page_cache >> 10).unwrap_or(i64::MAX).max(1);
    connection.pragma_update(None, "cache_size", -kib)?;
    let mmap = i64::try_from(settings.mmap).unwrap_or(i64::MAX);
    connection.pragma_update(None, "mmap_size", mmap)?;
    // A checkpoint of another process holds up for milliseconds.
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    // Else a statement is planned anew whenever a bound of a range is another; no plan of ours depends
    // on one (https://www.sqlite.org/queryplanner-ng.html#qpsg).
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// The schema of the file, 0 of a new one.
fn version(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let foreign = |why: &str| StoreError::Foreign { at: path.into(), why: why.to_owned() };
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = match pragma("application_id") {
        Ok(id) => id,
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(foreign("not a database of SQLite"));
        }
        Err(error) => return Err(error.into()),
    };
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, tables) {
        (0, 0) => return Ok(0),
        (APPLICATION_ID, _) => {}
        _ => return Err(foreign("a database of another program")),
    }
    let found = pragma("user_version")?;
    if found > KNOWN {
        return Err(StoreError::Newer { at: path.into(), found, known: KNOWN });
    }
    Ok(found)
}

fn migrate(connection: &Connection, found: i64) -> Result<(), StoreError> {
    let todo = STEPS.get(found as usize..).unwrap_or_default();
    let steps = todo.concat();
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {steps}
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {KNOWN}; COMMIT"
    ))?;
    Ok(())
}
