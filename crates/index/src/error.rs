//! The error of reading an index.

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
    /// The query exceeds a limit, which the text names.
    #[error("{0}")]
    LimitExceeded(String),
}
