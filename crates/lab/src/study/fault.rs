//! Errors of studies.

use std::path::PathBuf;

/// Reason why a study failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum StudyFault {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A line of a file is invalid.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The problem and the allowed values.
        what: String,
    },
    /// A file has no samples.
    #[error("{}: {what}", path.display())]
    Empty {
        path: PathBuf,
        /// The missing data.
        what: String,
    },
    /// The variants or the options cannot be used; the text is the message.
    #[error("{0}")]
    Option(String),
    /// A program, file or port cannot be used; the text is the message.
    #[error("{0}")]
    Operation(String),
}
