//! The times at which calls may be sent. They are multiples of one interval, so that the calls to a
//! target are never closer than the rate allows, and calls to several targets coincide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Share of the interval by which a call may be late.
const LATE_SHARE_MAX: f64 = 0.05;

/// The turns of one target.
pub(super) struct Turns {
    origin: Instant,
    /// Seconds between turns.
    interval: f64,
    /// Number of the next turn.
    next: AtomicU64,
}

/// A turn: permission for one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turn {
    /// Its number, which is the same for all targets.
    pub(super) number: u64,
    /// Its time.
    pub(super) at: Instant,
    /// Number of turns since the previous one that passed unused.
    pub(super) skipped: u64,
}

impl Turns {
    /// Creates turns from `origin`, with this many per second.
    pub(super) fn new(origin: Instant, rate: f64) -> Turns {
        Turns { origin, interval: 1.0 / rate, next: AtomicU64::new(0) }
    }

    /// Waits for the next turn.
    pub(super) fn wait(&self) -> Turn {
        let next = self.next.load(Ordering::Relaxed);
        let number = due(next, self.origin.elapsed().as_secs_f64(), self.interval);
        self.next.store(number + 1, Ordering::Relaxed);
        let at = self.origin + Duration::from_secs_f64(number as f64 * self.interval);
        loop {
            let remaining = at.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Turn { number, at, skipped: number - next };
            }
            std::thread::park_timeout(remaining);
        }
    }
}

/// Returns the number of the first turn from `next` on that is not over `elapsed` seconds after the
/// origin.
fn due(next: u64, elapsed: f64, interval: f64) -> u64 {
    let current = (elapsed / interval - LATE_SHARE_MAX).ceil().max(0.0);
    next.max(current as u64)
}
