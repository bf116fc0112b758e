//! Deterministic draws: every value of the simulated chain is a pure function of the seed and of
//! where it stands. Not a source of randomness for a node's latencies and faults; that is
//! `node/dice.rs`.

use alloy_primitives::{B256, U256};

/// One step of SplitMix64 (Steele, Lea, Flood 2014; the constants are those of Vigna's public
/// domain `splitmix64.c`). Written here rather than taken from a crate so that the chain of a seed
/// stays the same when a dependency changes its generator.
#[must_use]
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of draws that starts from a seed and a place.
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// A stream for one place, named by any number of words. Equal places give equal streams.
    #[must_use]
    pub fn at(seed: u64, place: &[u64]) -> Self {
        let state = place.iter().fold(mix(seed), |state, word| mix(state ^ mix(*word)));
        Self { state }
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number from `low` to `high`, both included. The bias of the modulus is below 2^-32 for
    /// the small ranges used here.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high, "range {low}..={high} is reversed");
        low + self.word() % (high - low + 1)
    }

    /// 32 bytes.
    pub fn hash(&mut self) -> B256 {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word().to_be_bytes());
        }
        B256::from(bytes)
    }

    /// A 256-bit number below 2^252, so that it is a valid signature component (the order of
    /// secp256k1 is just under 2^256) and never zero.
    pub fn scalar(&mut self) -> U256 {
        (U256::from_be_bytes(self.hash().0) >> 4) | U256::from(1)
    }
}
