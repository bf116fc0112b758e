//! The token bucket of a rate limit. `now` is an argument; `node.rs` waits.

use std::time::Duration;

use tokio::time::Instant;

use super::settings::Rate;

/// A token bucket that may go into debt. A negative number of tokens is the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    tokens: f64,
    last: Instant,
}

/// Maximum debt of a bucket, in seconds of its rate. A call waits no longer than that.
const DEBT_SECONDS_MAX: f64 = 3_600.0;

impl TokenBucket {
    pub(super) fn full(rate: &Rate, now: Instant) -> Self {
        Self { tokens: rate.burst, last: now }
    }

    /// Takes a token and returns true if there is one.
    pub(super) fn take(&mut self, rate: &Rate, now: Instant) -> bool {
        self.fill(rate, now);
        let available = self.tokens >= 1.0;
        if available {
            self.tokens -= 1.0;
        }
        available
    }

    /// Takes a token, if need be on debt, and returns how long to wait for it.
    pub(super) fn reserve(&mut self, rate: &Rate, now: Instant) -> Duration {
        self.fill(rate, now);
        self.tokens = (self.tokens - 1.0).max(-DEBT_SECONDS_MAX * rate.per_second);
        Duration::from_secs_f64((-self.tokens).max(0.0) / rate.per_second)
    }

    fn fill(&mut self, rate: &Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.tokens = (self.tokens + passed * rate.per_second).min(rate.burst);
        self.last = now;
    }
}
