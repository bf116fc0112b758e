//! The store of an index: its tables in a database. All SQL is in this module.
//!
//! Two backends implement [`Store`] (`store/interface.rs`): a SQLite file (`store/sqlite.rs`) and a
//! schema in a PostgreSQL database (`store/postgres.rs`). Both have the same tables, and no other
//! module distinguishes them. The callers compress the rows.
//!
//! A store changes in two ways: a sync appends blocks, or a rewind deletes the last blocks. Each
//! change is one transaction, which also updates the range of stored blocks. A process may
//! therefore be killed at any instant, and the store never holds half of a change.

mod error;
mod interface;
mod location;
mod merge;
mod metadata;
mod postgres;
mod rows;
mod sqlite;

pub use self::error::StoreError;
pub use self::interface::{AuditRows, PageCache, ReadRows, Settings, Store, Table, WriteRows};
pub use self::location::Location;
pub use self::merge::MergeStep;
use self::postgres::Postgres;
pub use self::rows::{
    BlockRow, HarmonyRow, NewBlock, NewTransaction, PostingListRow, Postings, TransactionPart,
    TransactionRow,
};
use self::sqlite::Sqlite;

#[cfg(test)]
pub(crate) mod test_backends;
#[cfg(test)]
mod tests;

/// Opens an index to write, and creates the index if it does not exist.
///
/// # Errors
/// Fails if the file or schema is not an index, has a newer schema version, is damaged or
/// read-only, or has another writer. Fails if the server does not respond.
pub fn open(
    location: impl Into<Location>,
    settings: Settings,
) -> Result<Box<dyn Store>, StoreError> {
    Ok(match location.into() {
        Location::File(path) => Box::new(Sqlite::open(&path, settings)?),
        Location::Server(server) => Box::new(Postgres::open(&server, settings)?),
    })
}

/// Opens an index to read. Another process may write to it meanwhile.
///
/// # Errors
/// Fails if the index does not exist, has another schema version or is damaged. Fails if the file
/// or schema is not an index, or if the server does not respond.
pub fn open_to_read(
    location: impl Into<Location>,
    settings: Settings,
) -> Result<Box<dyn Store>, StoreError> {
    Ok(match location.into() {
        Location::File(path) => Box::new(Sqlite::open_to_read(&path, settings)?),
        Location::Server(server) => Box::new(Postgres::open_to_read(&server, settings)?),
    })
}

/// Deletes the files of an index that was never initialized, as a sync that fails at once leaves it.
/// Keeps an index with metadata, and any index on a server.
///
/// # Errors
/// Fails if the index cannot be read, or another process writes to it.
pub fn delete_uninitialized(location: &Location) -> Result<(), StoreError> {
    match location {
        Location::File(path) => Sqlite::delete_uninitialized(path),
        Location::Server(_) => Ok(()),
    }
}

/// Creates an index in memory that is lost when it is dropped.
///
/// # Errors
/// Fails if SQLite cannot allocate memory.
pub(crate) fn in_memory() -> Result<Box<dyn Store>, StoreError> {
    Ok(Box::new(Sqlite::in_memory()?))
}
