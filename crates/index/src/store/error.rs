//! Errors of a store.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::location::Location;

/// Why an index cannot be opened, read or written. No message holds a password.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The index does not exist.
    #[error("{0}: there is no {what}; `weir index sync --db` creates it", what = missing(.0))]
    Missing(Location),
    /// The file or schema is not an index.
    #[error("{at}: not an index of weir ({why})")]
    Foreign {
        /// The location of the index.
        at: Location,
        /// The reason.
        why: String,
    },
    /// A later version of the program created the index.
    #[error(
        "{at}: created by a later version of weir (schema {found}, this version supports up to {known})"
    )]
    Newer {
        /// The location of the index.
        at: Location,
        /// The version of its schema.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// An earlier version of the program created the index, and it was opened to read.
    #[error(
        "{at}: created by an earlier version of weir (schema {found}); `weir index sync` or `weir index vacuum` upgrades it"
    )]
    Older {
        /// The location of the index.
        at: Location,
        /// The version of its schema.
        found: i64,
    },
    /// Another process writes to the index.
    #[error("{0}: another process writes to this {what}; only one writer is allowed", what = kind(.0))]
    Locked(Location),
    /// The disk is full.
    #[error(
        "the disk is full: {0}; committed blocks are safe, and the next sync continues after them"
    )]
    DiskFull(String),
    /// The file or its folder is not writable, or the server accepts no writes.
    #[error("cannot write: {0}")]
    ReadOnly(String),
    /// The content of the index is damaged.
    #[error("the index is damaged: {0}; restore it or sync a new one")]
    Damaged(String),
    /// Any other error of SQLite.
    #[error("sqlite: {0}")]
    Sqlite(rusqlite::Error),
    /// A file beside the index failed.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The server cannot be reached, or the connection was lost.
    #[error("{at}: {why}; committed blocks are safe, and the next sync continues after them")]
    Unreachable {
        /// The server.
        at: Location,
        /// What happened.
        why: String,
    },
    /// The server denies access.
    #[error("{at}: {why}; {advice}")]
    Denied {
        /// The server.
        at: Location,
        /// The server's message.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// Another error of the server.
    #[error("{at}: {why}")]
    Server {
        /// The server.
        at: Location,
        /// The server's message.
        why: String,
    },
}

fn kind(at: &Location) -> &'static str {
    match at {
        Location::File(_) => "file",
        Location::Server(_) => "schema",
    }
}

fn missing(at: &Location) -> &'static str {
    match at {
        Location::File(_) => "such file",
        Location::Server(_) => "index in this schema",
    }
}

impl StoreError {
    /// Returns the same error. If a file could not be written, it names the file and what is
    /// needed.
    pub(super) fn of_file(self, path: &Path, needed: &str) -> StoreError {
        match self {
            StoreError::ReadOnly(_) => StoreError::read_only(path, needed),
            other => other,
        }
    }

    /// Returns the error for a file that could not be written, and what is needed.
    pub(super) fn read_only(path: &Path, needed: &str) -> StoreError {
        StoreError::ReadOnly(format!("{}: {needed}", path.display()))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::DiskFull(text),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                StoreError::ReadOnly(format!("{text}; the file and its folder must be writable"))
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(text),
            _ => StoreError::Sqlite(error),
        }
    }
}
