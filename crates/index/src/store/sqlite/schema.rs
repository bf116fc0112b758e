//! The tables of a SQLite file, their migrations, and the settings of SQLite with their reasons.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::store::error::StoreError;
use crate::store::interface::Settings;
use crate::store::rows::RENAMES;

/// `weir` in ASCII, by which `file` (the Unix command) and SQLite recognize an index.
const APPLICATION_ID: i64 = 0x7765_6972;

/// Each migration brings a file from one schema version to the next. A file holds its version in
/// SQLite's `user_version`.
///
/// The last migration renames the table `log_places` to `log_postings`, and the columns `place` to
/// `position` and `others` to `rest`. The columns hold:
///
/// - `facts`: the properties of the index, each with its name and value (`metadata.rs`).
/// - `short`: the first eight bytes of a hash, as a signed number. The row of the block or
///   transaction has the whole hash.
/// - `count`: the number of transactions of a block.
/// - `place`: the position of a transaction, which is `block number << INDEX_BITS | index`. Larger
///   indexes than `INDEX_MAX` are stored as `INDEX_MAX` (`postings.rs`).
/// - `key`: the digest of an address or topic.
/// - `first`: the first position of a posting list.
/// - `others`: the further positions of the list, encoded.
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
    -- place: block number << 20 | index. Logs are read from the receipt, so hash and
    -- receipt come before the body, which only a query for the transaction reads.
    CREATE TABLE transactions (
        place INTEGER PRIMARY KEY, hash BLOB NOT NULL, receipt BLOB, body BLOB
    );
    CREATE TABLE transaction_hashes (
        short INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (short, place)
    ) WITHOUT ROWID;
    -- An inverted index. Each row covers one address or topic in a range of a few hundred blocks
    -- and lists the transactions whose logs contain it. A search therefore reads only rows with
    -- matches.
    CREATE TABLE log_places (
        key INTEGER NOT NULL, first INTEGER NOT NULL, others BLOB NOT NULL, PRIMARY KEY (key, first)
    ) WITHOUT ROWID;
",
    // body: the compressed block as Harmony's hmyv2_ methods write it.
    "
    CREATE TABLE harmony_blocks (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
",
    RENAMES,
];

/// The schema version that this program writes.
pub(in crate::store) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Returns the database's path with a suffix, such as the path of its lock file.
pub(super) fn path_with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Locks the file for its only writer, by a lock file. SQLite's own locks last for one transaction.
/// With these locks alone, the first writer could check the index, and a second writer could change
/// it before the first one writes.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = path_with_suffix(path, ".lock");
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

/// Sets up a connection that writes: checks the file, and creates or migrates its tables.
pub(super) fn set_up_writer(connection: &Connection, settings: Settings) -> Result<(), StoreError> {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    // The check comes before the first write, because the file may belong to another program.
    let version = read_version(connection, &path)?;
    // With a write-ahead log, a commit is one append and never blocks readers
    // (https://www.sqlite.org/wal.html).
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // With NORMAL, a crash of the machine may lose the last commits, but the file stays consistent.
    // The next sync fetches the lost blocks again. FULL would wait for the disk at each commit.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // A checkpoint copies the log into the file after 16,384 changed pages, which are 64 MiB with
    // pages of 4 KiB. Pages that change often in between are written to the file only once.
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
    let kib = i64::try_from(settings.page_cache_bytes >> 10).unwrap_or(i64::MAX).max(1);
    connection.pragma_update(None, "cache_size", -kib)?;
    let mmap_bytes = i64::try_from(settings.mmap_bytes).unwrap_or(i64::MAX);
    connection.pragma_update(None, "mmap_size", mmap_bytes)?;
    // The timeout for a lock that another process holds. A checkpoint of that process takes
    // milliseconds.
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(32);
    // Without this setting, SQLite plans a statement again if the bounds of a range change. The
    // best plans of our statements do not depend on the bounds
    // (https://www.sqlite.org/queryplanner-ng.html#qpsg).
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

/// Applies all migrations after this version in one transaction.
fn migrate(connection: &Connection, version: i64) -> Result<(), StoreError> {
    let migrations = MIGRATIONS.get(version as usize..).unwrap_or_default().concat();
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {migrations}
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT"
    ))?;
    Ok(())
}
