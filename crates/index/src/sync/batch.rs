//! The blocks that one database transaction writes.

use std::time::{Duration, Instant};

use crate::store::NewBlock;

/// Maximum number of blocks of a database transaction, and so of a posting list.
pub(super) const COMMIT_BLOCKS: usize = 256;
/// Maximum number of bytes of compressed rows of a database transaction.
const COMMIT_BYTES: usize = 32 << 20;
/// Maximum time that a fetched block waits to be written.
pub(super) const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Blocks that wait to be written together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) blocks: Vec<NewBlock>,
    /// Bytes of the compressed rows.
    bytes: usize,
    first_pushed_at: Option<Instant>,
}

impl Batch {
    pub(super) fn push(&mut self, block: NewBlock) {
        self.bytes += block.compressed_bytes();
        self.blocks.push(block);
        self.first_pushed_at.get_or_insert_with(Instant::now);
    }

    /// Returns true if no further block fits.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= COMMIT_BLOCKS || self.bytes >= COMMIT_BYTES
    }

    /// Returns true if the first block has waited long enough.
    pub(super) fn is_due(&self) -> bool {
        self.first_pushed_at.is_some_and(|pushed_at| pushed_at.elapsed() >= COMMIT_INTERVAL)
    }
}
