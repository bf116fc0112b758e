//! Errors of an export.

use std::path::{Path, PathBuf};

use crate::error::ReadError;

/// The reason why an export failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum ExportError {
    /// The index cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The index does not hold the requested blocks or tables.
    #[error("{0}")]
    NotInIndex(String),
    /// A value does not fit its column.
    #[error("block {block}: {description}")]
    Unfit {
        block: u64,
        /// The column, and the allowed values.
        description: String,
    },
    /// The Parquet writer failed.
    #[error("{path}: {message}")]
    Parquet {
        path: PathBuf,
        /// The writer's message.
        message: String,
    },
    /// A file cannot be written.
    #[error("{path}: {error}")]
    File { path: PathBuf, error: std::io::Error },
    /// The caller stopped the export. It leaves no unfinished tables.
    #[error("stopped before the end")]
    Stopped,
}

impl ExportError {
    /// Returns the function that maps an I/O error of this file.
    pub(super) fn for_file(path: &Path) -> impl Fn(std::io::Error) -> ExportError + '_ {
        move |error| ExportError::File { path: path.to_owned(), error }
    }
}
