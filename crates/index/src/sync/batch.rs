//! The blocks that one transaction writes.

use std::time::{Duration, Instant};

use crate::store::NewBlock;

/// Maximum number of blocks of a transaction. Posting lists span as many.
pub(super) const COMMIT_BLOCKS: usize = 256;
/// Maximum number of bytes of compressed rows of a transaction.
const COMMIT_BYTES: usize = 32 << 20;
/// The longest time that a fetched block waits to be written.
pub(super) const COMMIT_AFTER: Duration = Duration::from_secs(1);

/// Blocks that wait to be written together.
#[derive(Default)]
pub(super) struct Batch {
    blocks: Vec<NewBlock>,
    bytes: usize,
    since: Option<Instant>,
}

impl Batch {
    pub(super) fn push(&mut self, block: NewBlock) {
        self.bytes += block.compressed_bytes();
        self.blocks.push(block);
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn blocks(&self) -> &[NewBlock] {
        &self.blocks
    }

    /// Returns true if no further block fits.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= COMMIT_BLOCKS || self.bytes >= COMMIT_BYTES
    }

    /// Returns true if the first block has waited long enough.
    pub(super) fn is_due(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= COMMIT_AFTER)
    }

    pub(super) fn clear(&mut self) {
        *self = Batch::default();
    }
}
