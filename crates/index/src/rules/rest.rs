//! How long a node that fails is left alone.
//!
//! A node that fails half of what it is asked gives the other half: it is asked again at once, and
//! pauses grow from a few milliseconds. Only one that fails often in a row is dead, and costs others
//! their time. If pauses began at a tenth of a second, a node of the first kind would be waited for
//! longer than it is asked: every further failure is half as likely and costs twice as much.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// Pause after a second failure in a row; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A node's failures. Instants are told as the time since any one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rest {
    in_a_row: u32,
    failed_at: Option<Duration>,
    until: Option<Duration>,
    told: bool,
}

impl Rest {
    /// How long it is still to be left alone.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.until.and_then(|until| until.checked_sub(now)).filter(|left| !left.is_zero())
    }

    /// It gave what it was asked for.
    pub fn went_well(&mut self) {
        *self = Rest::default();
    }

    /// It failed on what it was asked at `begun`, and perhaps said how long it wants to be left
    /// alone. Returns whether it is left alone for the first time since something went well.
    pub fn failed(&mut self, begun: Duration, now: Duration, asked: Option<Duration>) -> bool {
        // Several that were asked at once fail at once: that is one failure.
        let same = self.failed_at.is_some_and(|at| begun < at);
        if !same {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.failed_at = Some(now);
        }
        let own = match self.in_a_row {
            _ if same => Duration::ZERO,
            0 | 1 => Duration::ZERO,
            row => PAUSE_MIN.saturating_mul(1 << (row - 2).min(20)),
        };
        let pause = asked.unwrap_or(own).min(PAUSE_MAX);
        if pause.is_zero() {
            return false;
        }
        self.until = self.until.max(Some(now + pause));
        !std::mem::replace(&mut self.told, true)
    }
}
