//! Random numbers of the calls: splitmix64, which is cheap to seed for each request.
//!
//! A plan and its seed determine the bytes that are sent, so the algorithm must not change with a
//! library's version. Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
//! 2014; constants of <https://prng.di.unimi.it/splitmix64.c>.

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

    /// Returns a number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a number from `low` to `high`, inclusive. Uses Lemire's multiplication without
    /// correction of its bias, which is 2^-64 per value.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low)) + 1;
        low + ((u128::from(self.next()) * span) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
