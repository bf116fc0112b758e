//! Random numbers for the parameters of calls.
//!
//! The algorithm is splitmix64, which is cheap to seed for each request (Steele, Lea, Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014). The constants are from
//! <https://prng.di.unimi.it/splitmix64.c>. A plan and its seed determine the bytes of a run. So
//! the algorithm is implemented here, and does not change with the version of a library.

/// A random number generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// Seeds the generator of one request. Equal arguments give equal numbers.
    pub(crate) fn new(seed: u64, scenario: u64, iteration: u64, step: u64) -> Rng {
        let mut state = seed;
        for part in [scenario, iteration, step] {
            state = mix(state ^ mix(part.wrapping_add(GOLDEN)));
        }
        Rng { state }
    }

    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Returns a number from 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        // An f64 holds 53 bits exactly.
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a number from `low` to `high`, inclusive. Uses Lemire's multiplication. The
    /// probabilities of two numbers differ by at most 2^-64, which is too little to matter.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low)) + 1;
        low + ((u128::from(self.next()) * span) >> 64) as u64
    }
}

/// Increment of the generator's state: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of splitmix64.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
