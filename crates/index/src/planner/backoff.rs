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
/// The longest pause, even if the node requests a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The failures of a node. Instants are durations since a fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    failures_in_a_row: u32,
    /// When the last failure was counted.
    failed_at: Option<Duration>,
    paused_until: Option<Duration>,
    /// True if a pause began since the last success.
    is_reported: bool,
}

impl Backoff {
    /// Returns the remaining time of the pause, or `None` if the node may be called.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        self.paused_until
            .and_then(|paused_until| paused_until.checked_sub(now))
            .filter(|rest| !rest.is_zero())
    }

    /// Records a success.
    pub fn record_success(&mut self) {
        *self = Backoff::default();
    }

    /// Records the failure of a call that started at `started`; `requested` is the pause that the
    /// node asked for. Returns true if this is the first pause since the last success.
    pub fn record_failure(
        &mut self,
        started: Duration,
        now: Duration,
        requested: Option<Duration>,
    ) -> bool {
        // Calls in flight fail together when a node dies, and count as one failure.
        let is_same_failure = self.failed_at.is_some_and(|failed_at| started < failed_at);
        if !is_same_failure {
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            self.failed_at = Some(now);
        }
        let backoff_pause = match self.failures_in_a_row {
            _ if is_same_failure => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            failures => PAUSE_MIN.saturating_mul(1 << (failures - 2).min(20)),
        };
        let pause = requested.unwrap_or(backoff_pause).min(PAUSE_MAX);
        if pause.is_zero() {
            return false;
        }
        self.paused_until = self.paused_until.max(Some(now + pause));
        !std::mem::replace(&mut self.is_reported, true)
    }
}
