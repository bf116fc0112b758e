//! The clock of one thread.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// The time of the last reading on this thread: the present, for all that happens between two
/// waits. Reading the clock costs as much as a lookup in the cache, so it is read seldom.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    recent: Cell<Instant>,
    now: Cell<Duration>,
}

impl Clock {
    /// A clock that counts from `started`.
    pub(crate) fn new(started: Instant) -> Clock {
        let clock = Clock { started, recent: Cell::new(started), now: Cell::default() };
        clock.tick();
        clock
    }

    /// Reads the clock. To be called where time has passed: when a connection or a call begins, and
    /// after each wait.
    pub(crate) fn tick(&self) -> Instant {
        let now = Instant::now();
        self.recent.set(now);
        self.now.set(now.saturating_duration_since(self.started));
        now
    }

    /// The time of the last tick.
    pub(crate) fn recent(&self) -> Instant {
        self.recent.get()
    }

    /// The time of the last tick, counted from the start, as the policies use it.
    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }
}
