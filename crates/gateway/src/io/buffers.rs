//! A pool of reusable buffers for requests and responses. Each thread has one pool.

use std::cell::RefCell;

/// Maximum number of spare buffers per thread. Only bursts of calls need more buffers at a time.
const SPARES_MAX: usize = 64;
/// Maximum capacity of a spare buffer in bytes. A larger buffer is freed.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// The pool of one thread.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Takes an empty buffer from the pool, or creates one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool. Frees the buffer if the pool is full or the buffer is too
    /// large.
    pub(crate) fn put_back(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            spare.push(buffer);
        }
    }
}
