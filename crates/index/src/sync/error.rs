//! Errors of a sync.

use crate::compression::CompressionError;
use crate::error::ReadError;
use crate::planner::range::RangeError;
use crate::store::StoreError;

/// The reason why a sync cannot continue. Blocks that were written before are safe.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
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
