//! What waits to be pushed, and when it is tried again: decisions only. Time is an argument, in
//! any clock that begins at zero; sending is in `remote.rs`.
//!
//! Pushes go out in order, so that the samples of each series stay in order of time: while one is
//! being repeated, those behind it wait. What may be repeated is as the specification says: network
//! errors, 5xx and 429, never another status.

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// First and longest wait between two attempts, as Prometheus's own sender has them
/// (`min_backoff` and `max_backoff`):
/// <https://prometheus.io/docs/prometheus/latest/configuration/configuration/#remote_write>.
const BACKOFF_MIN: Duration = Duration::from_millis(30);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A receiver that asks for more than this is asked again after this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Bytes of all waiting pushes; of a usual plan that is more than an hour.
const BYTES_MAX: usize = 32 << 20;

/// Letters that are kept of what a receiver says.
const SAID_CHARS_MAX: usize = 300;

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Push {
    pub(super) body: Vec<u8>,
    pub(super) samples: u64,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// 2xx.
    Stored,
    /// Another status, with its Retry-After.
    Status(u16, Option<Duration>),
    /// No answer.
    Unreachable,
}

/// What became of everything that was to be pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Samples that the receiver took.
    pub stored: u64,
    /// Samples that the receiver refused for good.
    pub refused: u64,
    /// The status that it refused the last of them with.
    pub refused_status: Option<u16>,
    /// What was said to the last attempt that failed, in one line.
    pub said: String,
    /// Samples given up because too many waited, or because the run was over.
    pub given_up: u64,
    /// Attempts that were repeated later.
    pub repeated: u64,
    /// Times at which nothing was gathered, because the pushing thread was far behind.
    pub skipped: u64,
}

/// Pushes in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Push>,
    bytes: usize,
    attempts: u32,
    not_before: Duration,
    pub(super) told: Told,
}

impl Queue {
    /// Adds a push at the end; gives up the oldest if too much waits.
    pub(super) fn put(&mut self, push: Push) {
        self.bytes += push.body.len();
        self.waiting.push_back(push);
        while self.bytes > BYTES_MAX {
            self.give_up_first();
            (self.attempts, self.not_before) = (0, Duration::ZERO);
        }
    }

    /// The push to send now, if one may be sent.
    pub(super) fn due(&self, now: Duration) -> Option<&Push> {
        self.waiting.front().filter(|_| now >= self.not_before)
    }

    /// How long nothing is to be sent; none if nothing waits.
    pub(super) fn wait(&self, now: Duration) -> Option<Duration> {
        self.waiting.front().map(|_| self.not_before.saturating_sub(now))
    }

    /// Takes what came of sending the first push. `dice` is any number; it spreads the senders of
    /// several machines over time.
    pub(super) fn took(&mut self, now: Duration, outcome: Outcome, said: &str, dice: u32) {
        let Some(first) = self.waiting.front() else { return };
        let samples = first.samples;
        if outcome != Outcome::Stored {
            let line = said.trim().lines().next().unwrap_or_default();
            self.told.said = line.chars().take(SAID_CHARS_MAX).collect();
        }
        match outcome {
            Outcome::Stored => self.told.stored += samples,
            Outcome::Unreachable => return self.repeat(now, None, dice),
            Outcome::Status(429 | 500.., retry_after) => {
                return self.repeat(now, retry_after, dice);
            }
            Outcome::Status(status, _) => {
                self.told.refused += samples;
                self.told.refused_status = Some(status);
            }
        }
        self.remove_first();
    }

    /// Gives up whatever waits.
    pub(super) fn end(mut self) -> Told {
        while !self.waiting.is_empty() {
            self.give_up_first();
        }
        self.told
    }

    fn repeat(&mut self, now: Duration, retry_after: Option<Duration>, dice: u32) {
        let doubled = BACKOFF_MIN.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_MAX);
        // Between half of it and all of it.
        let share = 0.5 + f64::from(dice) / f64::from(u32::MAX) / 2.0;
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        self.not_before = now + doubled.mul_f64(share).max(asked);
        self.attempts += 1;
        self.told.repeated += 1;
    }

    fn give_up_first(&mut self) {
        self.told.given_up += self.waiting.front().map_or(0, |push| push.samples);
        self.remove_first();
    }

    fn remove_first(&mut self) {
        if let Some(push) = self.waiting.pop_front() {
            self.bytes -= push.body.len();
        }
        (self.attempts, self.not_before) = (0, Duration::ZERO);
    }
}
