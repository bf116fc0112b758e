//! What can be wrong with an index.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::Location;

/// Why an index cannot be worked with. No message holds a password.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is none.
    #[error("{0}: there is no {what}; `weir index sync --db` makes it", what = lacking(.0))]
    Missing(Location),
    /// Something, but not ours.
    #[error("{at}: this is no index of weir ({why})")]
    Foreign {
        /// Where.
        at: Location,
        /// What it is instead.
        why: String,
    },
    /// Made by a later version.
    #[error("{at}: made by a later version of weir (schema {found}, this one knows up to {known})")]
    Newer {
        /// Where.
        at: Location,
        /// Its schema.
        found: i64,
        /// The latest that we know.
        known: i64,
    },
    /// Made by an earlier version, and opened to read.
    #[error(
        "{at}: made by an earlier version of weir (schema {found}); `weir index sync` or `weir index vacuum` brings it up to date"
    )]
    Older {
        /// Where.
        at: Location,
        /// Its schema.
        found: i64,
    },
    /// Another process writes to it.
    #[error("{0}: another process writes to this {what}; one writer at a time", what = named(.0))]
    Taken(Location),
    /// The disk is full.
    #[error(
        "the disk is full: {0}; what was written before is safe, and a sync goes on from there"
    )]
    Full(String),
    /// The file or its folder may not be written, or the server takes no writes.
    #[error("not to be written: {0}")]
    ReadOnly(String),
    /// What is kept is damaged.
    #[error("the index is damaged: {0}; restore it or sync anew")]
    Damaged(String),
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
    /// The server is not there, or has left in the middle.
    #[error(
        "{at}: {why}; what the schema holds is whole, and a sync that begins anew goes on from there"
    )]
    Unreachable {
        /// Where.
        at: Location,
        /// What happened.
        why: String,
    },
    /// The server does not let us do it.
    #[error("{at}: {why}; {advice}")]
    Refused {
        /// Where.
        at: Location,
        /// What the server said.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// Another failure of the server.
    #[error("{at}: {why}")]
    Server {
        /// Where.
        at: Location,
        /// What it said.
        why: String,
    },
}

fn named(at: &Location) -> &'static str {
    match at {
        Location::File(_) => "file",
        Location::Server(_) => "schema",
    }
}

fn lacking(at: &Location) -> &'static str {
    match at {
        Location::File(_) => "such file",
        Location::Server(_) => "index in this schema",
    }
}

impl StoreError {
    /// The same, naming the file and what is needed, if it could not be written.
    pub(super) fn of_file(self, path: &Path, needed: &str) -> StoreError {
        match self {
            StoreError::ReadOnly(_) => StoreError::read_only(path, needed),
            other => other,
        }
    }

    /// A file that could not be written, and what is needed.
    pub(super) fn read_only(path: &Path, needed: &str) -> StoreError {
        StoreError::ReadOnly(format!("{}: {needed}", path.display()))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        let text = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => StoreError::Full(text),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                StoreError::ReadOnly(format!("{text}; the file and its folder must be writable"))
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged(text),
            _ => StoreError::Sqlite(error),
        }
    }
}
