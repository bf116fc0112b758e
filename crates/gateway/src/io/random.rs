//! Pseudo-random numbers, not for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};

/// Returns a number that differs between processes. It is not suitable for secrets.
pub(crate) fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Pseudo-random numbers of one thread: xorshift64* (Vigna 2016), sufficient for load balancing.
#[derive(Debug)]
pub(crate) struct Random(Cell<u64>);

impl Random {
    /// Creates the generator of the thread with this index.
    pub(crate) fn new(seed: u64, index: usize) -> Random {
        // An odd state is never zero, the generator's fixed point.
        Random(Cell::new(seed.wrapping_add(index as u64).wrapping_mul(2) | 1))
    }

    /// Returns the next number.
    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
