//! What can be wrong with what a study is to be made from.

use std::path::PathBuf;

/// Why a study could not be made from what was given.
#[derive(Debug, thiserror::Error)]
pub enum StudyFault {
    /// A file cannot be read at all.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line of a file is not what it must be.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// What is wrong, and what is allowed.
        what: String,
    },
    /// A file holds nothing of use.
    #[error("{}: {what}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// Fewer than two arms.
    #[error("a study compares at least two arms; {found}")]
    Arms {
        /// What was given.
        found: String,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Asked(String),
}
