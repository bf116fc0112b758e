//! Decides how long a sync pauses calls to a node that fails.
//!
//! A node that fails half of its calls still serves the other half. So it is called again at once
//! after one failure, and pauses start at a few milliseconds. Only a node that fails many times in
//! a row is dead, and long pauses keep it from delaying the other nodes. If pauses started at 100
//! ms, a sync would spend more time waiting for a half-failing node than calling it.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// The pause after the second failure in a row. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The failures of a node. Instants are durations since a fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures_in_a_row: u32,
    failed_at: Option<Duration>,
    until: Option<Duration>,
    reported: bool,
}

impl Backoff {
    /// Returns the rest of the pause, or `None` if the node may be called.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        self.until.and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero())
    }

    /// Records a success.
    pub fn succeeded(&mut self) {
        *self = Backoff::default();
    }

    /// Records the failure of a call that started at `started`; `requested` is the pause that the
    /// node asked for. Returns true if this is the first pause since the last success.
    pub fn failed(
        &mut self,
        started: Duration,
        now: Duration,
        requested: Option<Duration>,
    ) -> bool {
        // Calls in flight fail together when a node dies, and count as one failure.
        let same = self.failed_at.is_some_and(|at| started < at);
        if !same {
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            self.failed_at = Some(now);
        }
        let own = match self.failures_in_a_row {
            _ if same => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            row => PAUSE_MIN.saturating_mul(1 << (row - 2).min(20)),
        };
        let pause = requested.unwrap_or(own).min(PAUSE_MAX);
        if pause.is_zero() {
            return false;
        }
        self.until = self.until.max(Some(now + pause));
        !std::mem::replace(&mut self.reported, true)
    }
}
