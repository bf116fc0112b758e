//! Deterministic draws: every value of the chain is a pure function of the seed and of the value's
//! position, for example the number of its block. `node/rng.rs` draws the latencies and faults of a
//! node.

use alloy_primitives::{B256, U256};

/// The increment of SplitMix64's state: 2^64 divided by the golden ratio.
const STATE_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Computes one step of SplitMix64 (Steele, Lea, Flood 2014; constants of Vigna's `splitmix64.c`).
/// The code is here instead of in a crate, so that the chain of a seed never changes with a
/// dependency.
#[must_use]
pub fn mix(state: u64) -> u64 {
    let mut bits = state.wrapping_add(STATE_INCREMENT);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A stream of values for one position of the chain.
#[derive(Clone, Debug)]
pub struct SeedStream {
    state: u64,
}

impl SeedStream {
    /// Creates the stream of a position, which is a list of words.
    #[must_use]
    pub fn at(seed: u64, position: &[u64]) -> Self {
        let state = position.iter().fold(mix(seed), |state, word| mix(state ^ mix(*word)));
        Self { state }
    }

    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STATE_INCREMENT);
        mix(self.state)
    }

    /// Returns a number from `low` to `high`, both included. The bias of the modulus is below 2^-32
    /// for small ranges.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "range {low}..={high} is reversed");
        low + self.word() % (high - low + 1)
    }

    /// Returns the next 32 bytes.
    pub fn hash(&mut self) -> B256 {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word().to_be_bytes());
        }
        B256::from(bytes)
    }

    /// Returns a 256-bit number from 1 to below 2^252: a valid signature component, which must be
    /// below the order of secp256k1, just under 2^256.
    pub fn scalar(&mut self) -> U256 {
        (U256::from_be_bytes(self.hash().0) >> 4) | U256::from(1)
    }
}
