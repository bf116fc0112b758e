//! Errors of a sync.

use crate::compression::CompressionError;
use crate::error::ReadError;
use crate::planner::range::RangeError;
use crate::store::StoreError;

/// The reason why a sync cannot continue. Blocks that were written before are safe.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The connection to the server of the index was lost or could not be opened.
    #[error("{0}; committed blocks are safe, and the next sync continues after them")]
    Unreachable(StoreError),
    /// The store failed in another way.
    #[error(transparent)]
    Store(StoreError),
    /// The index cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Start and end do not fit the index.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The compression failed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// The nodes failed.
    #[error("{0}")]
    Nodes(String),
    /// The index and the nodes, or the index and the options, contradict each other.
    #[error("{0}")]
    Mismatch(String),
}

impl From<StoreError> for SyncError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreachable { .. } => SyncError::Unreachable(error),
            error => SyncError::Store(error),
        }
    }
}
