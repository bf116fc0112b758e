//! A pool of reusable buffers for requests and responses, one pool per thread.

use std::cell::RefCell;

/// Maximum spare buffers per thread; only bursts use more at once.
const SPARES_MAX: usize = 64;
/// A larger buffer is not returned to the pool.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// Empty buffers for requests and responses.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Takes an empty buffer from the pool, or creates one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            spare.push(buffer);
        }
    }
}
