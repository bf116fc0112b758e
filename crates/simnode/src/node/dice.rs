//! A node's chance: seeded, so that a run repeats. The chain's values come from `seed.rs` instead.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::settings::Latency;

/// The longest time that a draw may give, so that a tail cannot outlive any test.
const LATENCY_MAX_MS: f64 = 60_000.0;

/// A seeded source of chance.
pub(super) struct Dice {
    rng: SmallRng,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed) }
    }

    /// True with a probability.
    pub(super) fn strikes(&mut self, share: f64) -> bool {
        share >= 1.0 || self.rng.random::<f64>() < share
    }

    /// A time of a distribution.
    pub(super) fn time(&mut self, latency: Latency) -> Duration {
        // In (0, 1], so that its logarithm is finite.
        let unit = 1.0 - self.rng.random::<f64>();
        let ms = match latency {
            Latency::None => return Duration::ZERO,
            Latency::Constant { ms } => ms,
            Latency::Uniform { low_ms, high_ms } => low_ms + (high_ms - low_ms) * unit,
            Latency::Exponential { mean_ms } => -unit.ln() * mean_ms,
            Latency::Lognormal { median_ms, sigma } => {
                // Box and Muller 1958: two uniform draws give a normal one.
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
