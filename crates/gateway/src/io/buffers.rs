//! Buffers that one thread uses again and again.

use std::cell::RefCell;

/// Spare buffers kept per thread; more are in use at once only in a burst.
const SPARES_MAX: usize = 64;
/// A spare buffer larger than this is not kept.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// Empty buffers for requests and responses.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let mut buffers = self.spare.borrow_mut();
        if buffers.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            buffers.push(buffer);
        }
    }
}
