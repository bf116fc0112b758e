//! Circuit breaker for a service that may be down, so that at most a few calls wait for it.
//!
//! While the breaker is closed, calls pass. After enough consecutive failures it opens, and calls
//! skip the service. After a backoff one probe decides whether it closes. The probe is not a
//! client's call, so no client waits for it.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// A circuit breaker. Check [`Breaker::is_closed`] before a call, then report
/// [`Breaker::record_success`] or [`Breaker::record_failure`]. Check [`Breaker::begin_due_probe`]
/// periodically, and report [`Breaker::record_probe`] after a probe.
#[derive(Debug, Clone)]
pub struct Breaker {
    failures_max: u32,
    backoff: Duration,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Duration },
    Probing,
}

impl Breaker {
    /// Creates an open breaker: the state of the service is unknown until the first probe.
    pub fn new(failures_max: u32, backoff: Duration) -> Breaker {
        Breaker { failures_max, backoff, state: State::Open { until: Duration::ZERO } }
    }

    /// Returns true if calls may pass.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// Records a success.
    pub fn record_success(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = 0;
        }
    }

    /// Records a failure or timeout. Returns true if this failure opened the breaker.
    pub fn record_failure(&mut self, now: Duration) -> bool {
        let State::Closed { failures } = &mut self.state else { return false };
        *failures += 1;
        if *failures < self.failures_max {
            return false;
        }
        self.state = State::Open { until: now + self.backoff };
        true
    }

    /// Returns true if a probe is due. The probe is then in flight until [`Breaker::record_probe`].
    pub fn begin_due_probe(&mut self, now: Duration) -> bool {
        let due = matches!(self.state, State::Open { until } if now >= until);
        if due {
            self.state = State::Probing;
        }
        due
    }

    /// Records the outcome of the probe.
    pub fn record_probe(&mut self, succeeded: bool, now: Duration) {
        self.state = if succeeded {
            State::Closed { failures: 0 }
        } else {
            State::Open { until: now + self.backoff }
        };
    }
}
