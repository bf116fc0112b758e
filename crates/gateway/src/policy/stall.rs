//! Detects stalled upstreams. An upstream has stalled if it has calls in flight and has sent no
//! response for far longer than calls usually take. The *patience* of a call is the time that it
//! waits at such an upstream. The patience depends on the latency of the call's *class*, which
//! holds all calls to methods of similar weight (`hedge.rs`).
//!
//! A call that has waited for its patience *suspects* the upstream. Calls that wait there are then
//! started again at other upstreams, and a poll decides whether the suspected upstream stays in
//! service (`health.rs`). Envoy's hedging on per-try timeouts and HAProxy's `observe` with
//! `fastinter` work alike.

use std::time::Duration;

/// A call suspects an upstream after this multiple of the 99th percentile latency of its class.
const PATIENCE_FACTOR: u32 = 10;

/// Shortest patience. It is longer than the pauses of a node that collects garbage or imports a
/// block. Such a pause takes about a tenth of a second.
const PATIENCE_MIN: Duration = Duration::from_millis(200);

/// Patience of a call whose class has too few samples, if its latency cannot be estimated either. A
/// patience that follows from an estimate is never longer than this.
const PATIENCE_UNKNOWN: Duration = Duration::from_millis(500);

/// Returns the patience of a call. `p99` is the 99th percentile latency of the call's class.
pub fn compute_patience(p99: Duration) -> Duration {
    p99.saturating_mul(PATIENCE_FACTOR).max(PATIENCE_MIN)
}

/// Returns the patience of a call whose class has too few samples. `estimate` is the 99th
/// percentile latency extrapolated from lighter calls; `None` if there are too few lighter calls
/// too.
pub fn estimate_patience(estimate: Option<Duration>) -> Duration {
    estimate.map_or(PATIENCE_UNKNOWN, |p99| compute_patience(p99).min(PATIENCE_UNKNOWN))
}

/// The time for which an upstream has sent no response, as one thread observes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silence {
    /// Time of the last response, or of the first call after an idle time.
    since: Duration,
}

impl Silence {
    /// Records a new call. `idle` is true if no other call is in flight at the upstream.
    pub fn record_call(&mut self, now: Duration, idle: bool) {
        if idle {
            self.since = now;
        }
    }

    /// Records a response.
    pub fn record_response(&mut self, now: Duration) {
        self.since = now;
    }

    /// Returns the time since the last response. The value has a meaning only while calls are in
    /// flight.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Returns the time at which a call suspects the upstream: after `patience` without a response.
    /// Time before the start of the call does not count.
    pub fn suspect_at(&self, call_start: Duration, patience: Duration) -> Duration {
        self.since.max(call_start) + patience
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only an upstream that leaves calls waiting and responds to none is suspected.

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn patience_follows_the_latency_of_calls() {
        assert_eq!(compute_patience(ms(3)), ms(200));
        assert_eq!(compute_patience(ms(50)), ms(500));
        assert_eq!(compute_patience(Duration::MAX), Duration::MAX);
        assert_eq!(estimate_patience(None), ms(500));
        assert_eq!(estimate_patience(Some(ms(3))), ms(200));
        assert_eq!(estimate_patience(Some(ms(60))), ms(500));
    }

    #[test]
    fn every_response_and_every_idle_time_restarts_the_silence() {
        let mut silence = Silence::default();
        silence.record_call(ms(1000), true);
        assert_eq!(silence.suspect_at(ms(1000), ms(300)), ms(1300));
        silence.record_call(ms(1100), false);
        assert_eq!(silence.age(ms(1200)), ms(200), "the first call still waits");
        silence.record_response(ms(1250));
        assert_eq!(silence.suspect_at(ms(1000), ms(300)), ms(1550));
        silence.record_call(ms(5000), true);
        assert_eq!(silence.suspect_at(ms(5000), ms(300)), ms(5300));
        silence.record_call(ms(5200), false);
        assert_eq!(
            silence.suspect_at(ms(5200), ms(300)),
            ms(5500),
            "a call waits for its own time"
        );
    }
}
