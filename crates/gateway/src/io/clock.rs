//! The clock of one thread, and the wall clock.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// A cached clock of one thread. Reading the system's clock costs as much as a lookup in the
/// response cache. So code reads the clock once after each wait, and uses the cached time until the
/// next wait.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The time of the last reading.
    instant: Cell<Instant>,
    /// The same time, counted from `started`.
    now: Cell<Duration>,
}

impl Clock {
    /// Creates a clock that counts from `started`.
    pub(crate) fn new(started: Instant) -> Clock {
        let clock = Clock { started, instant: Cell::new(started), now: Cell::default() };
        clock.tick();
        clock
    }

    /// Reads the system's clock and caches the time. Called when a connection or a call begins, and
    /// after each wait.
    pub(crate) fn tick(&self) -> Instant {
        let now = Instant::now();
        self.instant.set(now);
        self.now.set(now.saturating_duration_since(self.started));
        now
    }

    /// Returns the time of the last tick.
    pub(crate) fn instant(&self) -> Instant {
        self.instant.get()
    }

    /// Returns the time of the last tick, counted from `started`. The functions of `policy/` take
    /// the time in this form.
    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }
}

/// Returns the wall clock time in seconds since 1970, for calendar months and the expiry of keys.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
