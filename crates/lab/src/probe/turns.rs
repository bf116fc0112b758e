//! The turns of a probe. A *turn* is an instant at which each target may receive one call, so turns
//! limit the rate of calls. Turn `n` comes `n` intervals after the start of the probe. All targets
//! have the same start and interval, so they are called at the same instants.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Maximum delay of a call after the time of its turn, as a share of the interval between turns. A
/// later call waits for the next turn.
const LATE_SHARE_MAX: f64 = 0.05;

/// The turns of one target.
pub(super) struct Turns {
    /// Time of turn 0.
    origin: Instant,
    /// Seconds between turns.
    interval_seconds: f64,
    /// Number of the first turn that was neither used nor skipped.
    next_number: AtomicU64,
}

/// A turn that one target uses for one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turn {
    /// Number of the turn. Turns of all targets with the same number have the same time.
    pub(super) number: u64,
    /// Time of the turn.
    pub(super) at: Instant,
    /// Number of turns that passed unused since the target's previous turn, because its previous
    /// call took too long.
    pub(super) skipped: u64,
}

impl Turns {
    /// Creates turns from `origin`; `rate` is the number of turns per second.
    pub(super) fn new(origin: Instant, rate: f64) -> Turns {
        Turns { origin, interval_seconds: 1.0 / rate, next_number: AtomicU64::new(0) }
    }

    /// Waits for the next turn. Only the target's own thread calls this.
    pub(super) fn wait(&self) -> Turn {
        let next_number = self.next_number.load(Ordering::Relaxed);
        let elapsed_seconds = self.origin.elapsed().as_secs_f64();
        let number = next_usable(next_number, elapsed_seconds, self.interval_seconds);
        self.next_number.store(number + 1, Ordering::Relaxed);
        let at = self.origin + Duration::from_secs_f64(number as f64 * self.interval_seconds);
        loop {
            let remaining = at.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Turn { number, at, skipped: number - next_number };
            }
            std::thread::park_timeout(remaining);
        }
    }
}

/// Returns the number of the first turn from `next_number` on that can still be used. A turn
/// expires when more than [`LATE_SHARE_MAX`] of an interval has passed since its time.
/// `elapsed_seconds` is the time since turn 0.
fn next_usable(next_number: u64, elapsed_seconds: f64, interval_seconds: f64) -> u64 {
    let usable = (elapsed_seconds / interval_seconds - LATE_SHARE_MAX).ceil().max(0.0);
    next_number.max(usable as u64)
}
