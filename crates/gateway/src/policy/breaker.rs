//! Whether a helper that may be dead is asked, so that waiting for it costs at most a few calls.
//!
//! Closed: it is asked. After so many failures in a row open: it is not. Then, after a backoff, one
//! probe decides. The probe is not a client's call, so that nobody waits for it.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// A breaker. Order of calls: [`Breaker::is_closed`] before asking, then [`Breaker::succeeded`] or
/// [`Breaker::failed`]; now and then [`Breaker::probe_due`], and after it [`Breaker::probed`].
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
    /// One that is open until its first probe: nothing is known of the other side yet.
    pub fn new(failures_max: u32, backoff: Duration) -> Breaker {
        Breaker { failures_max, backoff, state: State::Open { until: Duration::ZERO } }
    }

    /// Whether to ask.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    /// It answered.
    pub fn succeeded(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = 0;
        }
    }

    /// It failed or was too slow; whether the breaker opened by that.
    pub fn failed(&mut self, now: Duration) -> bool {
        let State::Closed { failures } = &mut self.state else { return false };
        *failures += 1;
        if *failures < self.failures_max {
            return false;
        }
        self.state = State::Open { until: now + self.backoff };
        true
    }

    /// Whether to send a probe now; if so one is under way until [`Breaker::probed`].
    pub fn probe_due(&mut self, now: Duration) -> bool {
        let due = matches!(self.state, State::Open { until } if now >= until);
        if due {
            self.state = State::Probing;
        }
        due
    }

    /// The probe ended.
    pub fn probed(&mut self, well: bool, now: Duration) {
        self.state = if well {
            State::Closed { failures: 0 }
        } else {
            State::Open { until: now + self.backoff }
        };
    }
}
