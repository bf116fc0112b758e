//! Decides how long a sync pauses calls to a node that fails.
//!
//! A node that fails half of its calls still serves the other half. The sync therefore calls a node
//! again at once after one failure, and pauses start at a few milliseconds. If pauses started at
//! 100 ms, a sync would spend more time waiting for such a node than calling it. A node that fails
//! many times in a row is probably dead. Long pauses keep a dead node from delaying the sync.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// The pause after the second failure in a row. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause, even if the node requests a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The recent failures of a node. A point in time is a duration since the start of the sync.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backoff {
    /// Number of counted failures since the last success.
    failures_in_a_row: u32,
    /// When the last failure was counted; `None` after a success.
    failed_at: Option<Duration>,
    /// The end of the latest pause; `None` if there was no pause since the last success.
    paused_until: Option<Duration>,
    /// True if a pause has begun since the last success.
    has_paused: bool,
}

impl Backoff {
    /// Returns the remaining time of the pause, or `None` if the node may be called.
    pub fn remaining(&self, now: Duration) -> Option<Duration> {
        self.paused_until
            .and_then(|paused_until| paused_until.checked_sub(now))
            .filter(|remaining| !remaining.is_zero())
    }

    /// Records a success, which clears all failures.
    pub fn record_success(&mut self) {
        *self = Backoff::default();
    }

    /// Records the failure of a call that started at `started`. `requested_pause` is the pause that
    /// the node requested; `None` if it requested none. Returns true if the first pause since the
    /// last success begins.
    pub fn record_failure(
        &mut self,
        started: Duration,
        now: Duration,
        requested_pause: Option<Duration>,
    ) -> bool {
        // When a node dies, all its calls in flight fail. Together they count as one failure: calls
        // that started before the last counted failure are not counted.
        let is_same_failure = self.failed_at.is_some_and(|failed_at| started < failed_at);
        if !is_same_failure {
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            self.failed_at = Some(now);
        }
        let default_pause = match self.failures_in_a_row {
            _ if is_same_failure => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            failures => PAUSE_MIN.saturating_mul(1 << (failures - 2).min(20)),
        };
        let pause = requested_pause.unwrap_or(default_pause).min(PAUSE_MAX);
        if pause.is_zero() {
            return false;
        }
        self.paused_until = self.paused_until.max(Some(now + pause));
        let is_first_pause = !self.has_paused;
        self.has_paused = true;
        is_first_pause
    }
}
