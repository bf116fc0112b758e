//! A node's random numbers. They are seeded, so that a run can be repeated. `seed.rs` draws the
//! values of the chain.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::settings::Latency;

/// Maximum drawn latency in milliseconds. It cuts the tail of a distribution, so that no call
/// outlasts a test.
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
    pub(super) fn draw_latency(&mut self, latency: Latency) -> Duration {
        // The value is in (0, 1], so its logarithm is finite.
        let uniform = 1.0 - self.rng.random::<f64>();
        let ms = match latency {
            Latency::None => return Duration::ZERO,
            Latency::Constant { ms } => ms,
            Latency::Uniform { low_ms, high_ms } => low_ms + (high_ms - low_ms) * uniform,
            Latency::Exponential { mean_ms } => -uniform.ln() * mean_ms,
            Latency::Lognormal { median_ms, sigma } => {
                // Box and Muller 1958: two uniform values give a normally distributed value.
                let angle = self.rng.random::<f64>() * std::f64::consts::TAU;
                let normal = (-2.0 * uniform.ln()).sqrt() * angle.cos();
                median_ms * (sigma * normal).exp()
            }
        };
        Duration::from_secs_f64(ms.min(LATENCY_MAX_MS) / 1_000.0)
    }
}

#[cfg(test)]
mod tests;
