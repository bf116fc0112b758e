//! What can be wrong with a file.

use std::path::PathBuf;

use rusqlite::ErrorCode;

/// Why a file cannot be worked with.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is none.
    #[error("{0}: there is no such file; `weir index sync --db` makes it")]
    Missing(PathBuf),
    /// A file, but not ours.
    #[error("{path}: this is no index of weir ({why})")]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// Made by a later version.
    #[error(
        "{path}: made by a later version of weir (schema {found}, this one knows up to {known})"
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The latest that we know.
        known: i64,
    },
    /// Made by an earlier version, and opened to read.
    #[error(
        "{path}: made by an earlier version of weir (schema {found}); `weir index sync` or `weir index vacuum` brings it up to date"
    )]
    Older {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: i64,
    },
    /// Another process writes to it.
    #[error("{0}: another process writes to this file; one writer at a time")]
    Taken(PathBuf),
    /// The disk is full.
    #[error(
        "the disk is full: {0}; what was written before is safe, and a sync goes on from there"
    )]
    Full(String),
    /// The file or its folder may not be written.
    #[error("not to be written: {0}; the file and its folder must be writable")]
    ReadOnly(String),
    /// The file is damaged.
    #[error("the file is damaged: {0}; restore it or sync anew")]
    Damaged(String),
    /// It holds another chain, or another part of what a chain has.
    #[error("{path}: {why}")]
    Other {
        /// Which file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// Another failure of SQLite.
    #[error("sqlite: {0}")]
    Sqlite(rusqlite::Error),
    /// A file beside it failed.
    #[error("{path}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full(text),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly(text),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(text),
            _ => StoreError::Sqlite(error),
        }
    }
}
