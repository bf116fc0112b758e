//! A node's random numbers. They are seeded, so a run repeats. `seed.rs` draws the values of the
//! chain.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::settings::Latency;

/// Maximum drawn latency in milliseconds, so that the tail of a distribution cannot outlive a test.
const LATENCY_MAX_MS: f64 = 60_000.0;

/// A seeded random number generator.
pub(super) struct NodeRng {
    rng: SmallRng,
}

impl NodeRng {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed) }
    }

    /// Returns true with probability `share`.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        share >= 1.0 || self.rng.random::<f64>() < share
    }

    /// Draws a time from a distribution.
    pub(super) fn latency(&mut self, latency: Latency) -> Duration {
        // The value is in (0, 1], so its logarithm is finite.
        let unit = 1.0 - self.rng.random::<f64>();
        let ms = match latency {
            Latency::None => return Duration::ZERO,
            Latency::Constant { ms } => ms,
            Latency::Uniform { low_ms, high_ms } => low_ms + (high_ms - low_ms) * unit,
            Latency::Exponential { mean_ms } => -unit.ln() * mean_ms,
            Latency::Lognormal { median_ms, sigma } => {
                // Box and Muller 1958: two uniform values give a normal one.
                let angle = self.rng.random::<f64>() * std::f64::consts::TAU;
                let normal = (-2.0 * unit.ln()).sqrt() * angle.cos();
                median_ms * (sigma * normal).exp()
            }
        };
        Duration::from_secs_f64(ms.min(LATENCY_MAX_MS) / 1_000.0)
    }
}

#[cfg(test)]
mod tests;
