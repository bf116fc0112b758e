//! A batch: the blocks that one database transaction writes.

use std::time::{Duration, Instant};

use crate::store::NewBlock;

/// Maximum number of blocks of a database transaction. A posting list spans at most this many
/// blocks.
pub(super) const COMMIT_BLOCKS: usize = 256;
/// Number of bytes of compressed rows at which a database transaction ends. The limit bounds
/// memory.
const COMMIT_BYTES: usize = 32 << 20;
/// The longest time that a fetched block waits to be written.
pub(super) const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Blocks that wait to be written together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) blocks: Vec<NewBlock>,
    /// Bytes of the compressed rows.
    bytes: usize,
    /// When the first block was added; `None` while there is no block.
    first_pushed_at: Option<Instant>,
}

impl Batch {
    pub(super) fn push(&mut self, block: NewBlock) {
        self.bytes += block.compressed_bytes();
        self.blocks.push(block);
        self.first_pushed_at.get_or_insert_with(Instant::now);
    }

    /// Returns true if the batch has reached its maximum number of blocks or bytes.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= COMMIT_BLOCKS || self.bytes >= COMMIT_BYTES
    }

    /// Returns true if the first block has waited for [`COMMIT_INTERVAL`].
    pub(super) fn is_due(&self) -> bool {
        self.first_pushed_at.is_some_and(|pushed_at| pushed_at.elapsed() >= COMMIT_INTERVAL)
    }
}
