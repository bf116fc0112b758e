//! A pool of reusable buffers for requests and responses, and the growth of buffers for bodies.
//! Each thread has one pool.

use std::cell::RefCell;

use bytes::BytesMut;

/// Maximum number of spare buffers per thread. Only bursts of calls need more buffers at a time.
const SPARES_MAX: usize = 64;
/// Maximum capacity of a spare buffer in bytes. A larger buffer is freed.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes that are allocated for a body of known length before any of it has arrived.
pub(crate) const PREALLOCATED_BYTES_MAX: usize = 1 << 20;
/// Factor by which the buffer of a longer body grows. With 4, a quarter of the body is copied, and
/// a few more bytes.
const GROWTH: usize = 4;

/// Creates the buffer of a body of `length` bytes. A long body gets the rest of its memory as its
/// bytes arrive ([`grow_body`]): the allocator may return memory that the process still holds, so
/// it must be counted even if nothing was written to it.
pub(crate) fn create_body(length: usize) -> BytesMut {
    BytesMut::with_capacity(length.min(PREALLOCATED_BYTES_MAX))
}

/// Makes room in the buffer of a body of `length` bytes if it is full and the body is incomplete.
pub(crate) fn grow_body(body: &mut BytesMut, length: usize) {
    if body.len() == body.capacity() && body.len() < length {
        body.reserve((length - body.len()).min((GROWTH - 1) * body.len()));
    }
}

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

#[cfg(test)]
mod tests {
    //! Goal: the memory of a body follows the bytes that have arrived.

    use super::*;

    #[test]
    fn a_long_body_gets_its_memory_as_bytes_arrive() {
        for length in [0, 1, 4096, PREALLOCATED_BYTES_MAX, 10 << 20] {
            let mut body = create_body(length);
            while body.len() < length {
                grow_body(&mut body, length);
                let capacity_max = PREALLOCATED_BYTES_MAX.max(GROWTH * body.len()).min(length);
                assert!(body.capacity() > body.len(), "there is room for more bytes");
                assert!(body.capacity() <= capacity_max.max(8), "{} of {length}", body.len());
                let room = body.capacity() - body.len();
                body.resize(body.len() + room.min(100_000).min(length - body.len()), 0);
            }
        }
    }
}
