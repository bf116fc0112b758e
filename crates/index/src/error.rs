//! The errors of a reader of an index.

use crate::compression::CompressionError;
use crate::store::StoreError;

/// The reason why an index cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A stored fragment cannot be decompressed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
    /// The query exceeds a limit: the reason as a sentence.
    #[error("{0}")]
    LimitExceeded(String),
}
