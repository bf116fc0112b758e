//! The token bucket of a rate limit. The caller, `node.rs`, passes the current time and waits.

use std::time::Duration;

use tokio::time::Instant;

use super::settings::Rate;

/// A token bucket that may go into debt. In debt, its number of tokens is minus the number of
/// waiting calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// Number of available tokens; negative in debt.
    tokens: f64,
    last_refill: Instant,
}

/// Maximum debt of a bucket, in seconds of its rate. It is also the longest wait of a call.
const DEBT_SECONDS_MAX: f64 = 3_600.0;

impl TokenBucket {
    pub(super) fn full(rate: &Rate, now: Instant) -> Self {
        Self { tokens: rate.burst, last_refill: now }
    }

    /// Takes a token if there is one. Returns true if it took one.
    pub(super) fn try_take(&mut self, rate: &Rate, now: Instant) -> bool {
        self.refill(rate, now);
        let is_available = self.tokens >= 1.0;
        if is_available {
            self.tokens -= 1.0;
        }
        is_available
    }

    /// Takes a token even if there is none, so that the bucket may go into debt. Returns the time
    /// until the token is available.
    pub(super) fn reserve(&mut self, rate: &Rate, now: Instant) -> Duration {
        self.refill(rate, now);
        self.tokens = (self.tokens - 1.0).max(-DEBT_SECONDS_MAX * rate.per_second);
        Duration::from_secs_f64((-self.tokens).max(0.0) / rate.per_second)
    }

    fn refill(&mut self, rate: &Rate, now: Instant) {
        let elapsed = now.saturating_duration_since(self.last_refill).as_secs_f64();
        self.tokens = (self.tokens + elapsed * rate.per_second).min(rate.burst);
        self.last_refill = now;
    }
}
