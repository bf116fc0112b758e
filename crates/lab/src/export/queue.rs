//! The queue of pushes and the times of their retries. A push is one request of remote write with
//! its samples. This code does no I/O; `remote.rs` sends the pushes. The current time is an
//! argument, from any clock that begins at zero.
//!
//! Pushes are sent in order, so the samples of each series stay in order of time. While one push is
//! retried, the others wait. As the specification demands or allows, pushes are retried after
//! network errors and the statuses 5xx and 429, but not after other statuses.

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// First wait between two attempts, as in Prometheus's own sender (`min_backoff`):
/// <https://prometheus.io/docs/prometheus/latest/configuration/configuration/#remote_write>.
const BACKOFF_MIN: Duration = Duration::from_millis(30);
/// Maximum wait between two attempts, as in Prometheus's own sender (`max_backoff`).
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Maximum wait for a receiver's `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Maximum number of bytes of all queued pushes. With a usual plan, that is more than an hour of
/// data.
const QUEUED_BYTES_MAX: usize = 32 << 20;

/// Maximum number of characters of a receiver's error message that are stored.
const ERROR_CHARS_MAX: usize = 300;

/// A queued request with the number of its samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Push {
    /// The compressed body of the request.
    pub(super) body: Vec<u8>,
    /// Number of samples in the body.
    pub(super) samples: u64,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A status of 2xx: the receiver stored the samples.
    Stored,
    /// Another status, with the wait of the `Retry-After` header if there is one.
    Status(u16, Option<Duration>),
    /// No response.
    Unreachable,
}

/// Counts of the samples that were pushed in a run, and of those that could not be pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushSummary {
    /// Number of samples that the receiver accepted.
    pub stored: u64,
    /// Number of samples that the receiver rejected.
    pub rejected: u64,
    /// The status of the last rejection; `None` without a rejection.
    pub rejected_status: Option<u16>,
    /// The error of the last failed attempt, in one line; empty without a failed attempt.
    pub last_error: String,
    /// Number of samples that were discarded because too many were queued, or because the run had
    /// ended.
    pub discarded: u64,
    /// Number of failed attempts after which the push was queued for another attempt.
    pub retried: u64,
    /// Number of batches that were discarded because the sending thread was far behind. A batch has
    /// the samples of one instant.
    pub skipped: u64,
}

/// The queue of pushes. Only the first push is sent; the others wait until it is removed.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The pushes, oldest first.
    pending: VecDeque<Push>,
    /// Bytes of all queued pushes.
    queued_bytes: usize,
    /// Number of failed attempts to send the first push.
    attempts: u32,
    /// Earliest time of the next attempt.
    not_before: Duration,
    /// Counts of the samples so far.
    pub(super) summary: PushSummary,
}

impl Queue {
    /// Adds a push at the end. Discards the oldest pushes while the queue is too large.
    pub(super) fn put(&mut self, push: Push) {
        self.queued_bytes += push.body.len();
        self.pending.push_back(push);
        while self.queued_bytes > QUEUED_BYTES_MAX {
            self.discard_first();
            (self.attempts, self.not_before) = (0, Duration::ZERO);
        }
    }

    /// Returns the first push if it may be sent now.
    pub(super) fn next_due(&self, now: Duration) -> Option<&Push> {
        self.pending.front().filter(|_| now >= self.not_before)
    }

    /// Returns the time until the next attempt. `None` if the queue is empty.
    pub(super) fn wait(&self, now: Duration) -> Option<Duration> {
        self.pending.front().map(|_| self.not_before.saturating_sub(now))
    }

    /// Records the outcome of sending the first push. `error` is its error message. The number
    /// `random` spreads the retries of several machines over time.
    pub(super) fn record(&mut self, now: Duration, outcome: Outcome, error: &str, random: u32) {
        let Some(push) = self.pending.front() else { return };
        let samples = push.samples;
        if outcome != Outcome::Stored {
            let first_line = error.trim().lines().next().unwrap_or_default();
            self.summary.last_error = first_line.chars().take(ERROR_CHARS_MAX).collect();
        }
        match outcome {
            Outcome::Stored => self.summary.stored += samples,
            Outcome::Unreachable => return self.retry(now, None, random),
            Outcome::Status(429 | 500.., retry_after) => {
                return self.retry(now, retry_after, random);
            }
            Outcome::Status(status, _) => {
                self.summary.rejected += samples;
                self.summary.rejected_status = Some(status);
            }
        }
        self.remove_first();
    }

    /// Discards the remaining pushes and returns the counts.
    pub(super) fn end(mut self) -> PushSummary {
        while !self.pending.is_empty() {
            self.discard_first();
        }
        self.summary
    }

    /// Sets the time of the next attempt to send the first push.
    fn retry(&mut self, now: Duration, retry_after: Option<Duration>, random: u32) {
        let backoff = BACKOFF_MIN.saturating_mul(1 << self.attempts.min(16)).min(BACKOFF_MAX);
        // The wait is between half and all of the backoff.
        let share = 0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0;
        let requested_wait = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        self.not_before = now + backoff.mul_f64(share).max(requested_wait);
        self.attempts += 1;
        self.summary.retried += 1;
    }

    /// Removes the first push and counts its samples as discarded.
    fn discard_first(&mut self) {
        self.summary.discarded += self.pending.front().map_or(0, |push| push.samples);
        self.remove_first();
    }

    /// Removes the first push. The next push may be sent at once.
    fn remove_first(&mut self) {
        if let Some(push) = self.pending.pop_front() {
            self.queued_bytes -= push.body.len();
        }
        (self.attempts, self.not_before) = (0, Duration::ZERO);
    }
}
