//! Errors of a store.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::location::Location;

/// The reason why an index cannot be opened, read or written. No message contains a password.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum StoreError {
    /// The index does not exist.
    #[error("{0}: there is no {what}; `weir index sync --db` creates it", what = missing_object(.0))]
    Missing(Location),
    /// The file or schema is not an index.
    #[error("{location}: not an index of weir ({reason})")]
    Foreign {
        /// The location of the index.
        location: Location,
        reason: String,
    },
    /// A later version of the program created the index.
    #[error(
        "{location}: created by a later version of weir (schema {version}, this version supports up to {supported})"
    )]
    Newer {
        /// The location of the index.
        location: Location,
        /// The version of its schema.
        version: i64,
        /// The latest schema version that this program supports.
        supported: i64,
    },
    /// An earlier version of the program created the index, and a reader opened it. Only a writer
    /// migrates an index.
    #[error(
        "{location}: created by an earlier version of weir (schema {version}); `weir index sync` or `weir index vacuum` upgrades it"
    )]
    Older {
        /// The location of the index.
        location: Location,
        /// The version of its schema.
        version: i64,
    },
    /// Another process writes to the index.
    #[error("{0}: another process writes to this {what}; only one writer is allowed", what = object(.0))]
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
    File { path: PathBuf, error: std::io::Error },
    /// The server cannot be reached or does not respond, or the connection was lost.
    #[error("{location}: {reason}")]
    Unreachable {
        location: Location,
        /// Description of the failure.
        reason: String,
    },
    /// The server denies access.
    #[error("{location}: {reason}; {advice}")]
    Denied {
        location: Location,
        /// The server's message.
        reason: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// Another error of the server.
    #[error("{location}: {reason}")]
    Server {
        location: Location,
        /// The server's message.
        reason: String,
    },
}

/// Returns the noun for the container of an index, as messages name it.
fn object(location: &Location) -> &'static str {
    match location {
        Location::File(_) => "file",
        Location::Server(_) => "schema",
    }
}

/// Returns the noun for the container that does not exist, as messages name it.
fn missing_object(location: &Location) -> &'static str {
    match location {
        Location::File(_) => "such file",
        Location::Server(_) => "index in this schema",
    }
}

impl StoreError {
    /// Adds the path and the requirement to an error of a file that could not be written. Returns
    /// any other error unchanged.
    pub(super) fn with_file(self, path: &Path, requirement: &str) -> StoreError {
        match self {
            StoreError::ReadOnly(_) => StoreError::read_only(path, requirement),
            other => other,
        }
    }

    /// Returns the error for a file that could not be written. `requirement` says what must be
    /// writable.
    pub(super) fn read_only(path: &Path, requirement: &str) -> StoreError {
        StoreError::ReadOnly(format!("{}: {requirement}", path.display()))
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
