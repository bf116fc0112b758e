//! Circuit breaker for a service that may be down, such as Redis. With the breaker, only a few
//! calls wait for a service that is down.
//!
//! While the breaker is closed, calls pass. After enough consecutive failures the breaker opens,
//! and calls skip the service. After a backoff the gateway sends one *probe*, a call of its own for
//! which no client waits. The outcome of the probe decides whether the breaker closes.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// A circuit breaker. Check [`Breaker::is_closed`] before a call, then report
/// [`Breaker::record_success`] or [`Breaker::record_failure`]. Check [`Breaker::begin_due_probe`]
/// periodically, and report [`Breaker::record_probe`] after a probe.
#[derive(Debug, Clone)]
pub struct Breaker {
    /// Number of consecutive failures that open the breaker.
    failures_max: u32,
    /// Time from the opening, or from a failed probe, to the next probe.
    backoff: Duration,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Calls pass. Holds the number of consecutive failures.
    Closed { failures: u32 },
    /// Calls skip the service until a probe succeeds. The probe is due at `until`.
    Open { until: Duration },
    /// A probe is in flight, and calls skip the service.
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

    /// Records a successful call. Only a probe closes an open breaker.
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

    /// Begins a probe if one is due, and returns true in this case. The probe is then in flight
    /// until [`Breaker::record_probe`].
    pub fn begin_due_probe(&mut self, now: Duration) -> bool {
        let is_due = matches!(self.state, State::Open { until } if now >= until);
        if is_due {
            self.state = State::Probing;
        }
        is_due
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
