//! Upstream health: one state machine per upstream, and the fallback of a group (set of upstreams)
//! without a healthy upstream.
//!
//! A failing upstream is *ejected*: it gets no calls until a *probe*, which is a poll of its head,
//! succeeds. Inputs are the outcomes of calls, polls and probes. `classify` maps failed calls to
//! faults, and `heads` measures the lag. `upstream/topology.rs` combines health and lag.

use std::fmt;
use std::time::Duration;

use crate::policy::classify::{Fault, HealthImpact};
use crate::policy::sliding_window::SlidingWindow;

#[cfg(test)]
mod tests;

/// First pause of an upstream that reports its rate limit without a `Retry-After`. The pause
/// doubles with each report up to [`HealthSettings::pause`]. A successful call resets the pause, so
/// that an upstream that rejects only some calls still serves the others.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Conditions for ejecting and readmitting an upstream. `config::health::Health` has the
/// configuration keys.
#[derive(Debug, Clone, Copy)]
pub struct HealthSettings {
    /// Number of consecutive failures, of calls or of polls, that eject an upstream; at least 1.
    pub failures_max: u32,
    /// Length of the sliding window.
    pub window: Duration,
    /// Minimum number of calls in the window. With fewer calls, the failure share ejects no
    /// upstream.
    pub window_calls_min: u32,
    /// Share of failed calls in the window, from 0 to 1, at which an upstream is ejected.
    pub failure_share_max: f64,
    /// Duration of the first ejection.
    pub backoff_min: Duration,
    /// Longest duration of an ejection.
    pub backoff_max: Duration,
    /// Longest pause of an upstream that reports its rate limit without a `Retry-After`.
    pub pause: Duration,
    /// Longest pause that an upstream may request.
    pub pause_max: Duration,
}

/// State of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// The upstream may be called.
    Healthy,
    /// The upstream is behind the served head. It is called only if no upstream is healthy.
    /// [`UpstreamHealth::state`] never returns this state, because only `heads` knows the lag.
    Lagging,
    /// The upstream's ejection has ended, or the upstream has stopped responding to calls. The next
    /// probe or poll decides whether it gets calls again.
    Probing,
    /// Ejected until a given time.
    Ejected {
        /// Time of the next probe.
        until: Duration,
    },
    /// Paused because of its rate limit. This is not a failure.
    Paused {
        /// End of the pause.
        until: Duration,
    },
}

/// A change of state to log and count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthEvent {
    /// The upstream was ejected.
    Ejected {
        /// Time until the next probe.
        backoff: Duration,
        /// Cause of the ejection.
        reason: EjectReason,
    },
    /// The upstream responds to no calls. The next poll decides whether it stays in service.
    Suspected,
    /// The upstream responded to a poll, so the suspicion is cleared.
    Cleared,
    /// A probe succeeded, so the upstream is no longer ejected.
    Readmitted,
    /// The upstream is paused.
    Paused {
        /// End of the pause.
        until: Duration,
    },
}

/// Cause of an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EjectReason {
    /// Too many consecutive failed calls. Holds the last fault.
    ConsecutiveFailures(Fault),
    /// Too large a share of failed calls. Holds the last fault.
    FailureShare(Fault),
    /// Too many consecutive failed polls.
    FailedPolls,
    /// A failed probe.
    FailedProbe,
    /// The upstream responds to polls but not to calls.
    PollsOnly,
}

impl fmt::Display for EjectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EjectReason::ConsecutiveFailures(fault) => {
                write!(f, "calls failed in a row, the last with {}", fault.as_str())
            }
            EjectReason::FailureShare(fault) => {
                write!(f, "too many calls failed, the last with {}", fault.as_str())
            }
            EjectReason::FailedPolls => f.write_str("polls of its head fail"),
            EjectReason::FailedProbe => f.write_str("the probe failed"),
            EjectReason::PollsOnly => f.write_str("it answers polls and no calls"),
        }
    }
}

/// Health of one upstream.
#[derive(Debug, Clone)]
pub struct UpstreamHealth {
    settings: HealthSettings,
    phase: Phase,
    /// End of the last pause.
    paused_until: Duration,
    /// Last pause without a `Retry-After`; zero after a successful call.
    last_pause: Duration,
    /// True if the upstream was suspected of a stall and has responded to no call since then.
    unresponsive: bool,
    /// Number of consecutive failed calls.
    failed_calls_in_row: u32,
    /// Number of consecutive failed polls.
    failed_polls_in_row: u32,
    /// Length of the last ejection. Readmission does not reset it, so an upstream that keeps
    /// failing stays ejected longer each time.
    backoff: Duration,
    /// Time of the last readmission.
    healthy_since: Duration,
    /// Time of the last ejection.
    ejected_at: Duration,
    window: SlidingWindow<CallCounts>,
}

/// Numbers of calls in one bucket of the sliding window.
#[derive(Debug, Clone, Copy, Default)]
struct CallCounts {
    calls: u32,
    failed: u32,
}

impl CallCounts {
    fn plus(self, other: CallCounts) -> CallCounts {
        CallCounts {
            calls: self.calls.saturating_add(other.calls),
            failed: self.failed.saturating_add(other.failed),
        }
    }
}

/// State of an upstream without regard to pauses and lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Healthy,
    /// The upstream responds to no calls. The next poll decides.
    Suspected,
    Ejected {
        until: Duration,
    },
    Probing,
}

impl UpstreamHealth {
    /// Creates the state of an upstream. It starts healthy, although its head is unknown: only
    /// `heads` judges heads.
    pub fn new(settings: HealthSettings) -> Self {
        Self {
            settings,
            phase: Phase::Healthy,
            paused_until: Duration::ZERO,
            last_pause: Duration::ZERO,
            unresponsive: false,
            failed_calls_in_row: 0,
            failed_polls_in_row: 0,
            backoff: Duration::ZERO,
            healthy_since: Duration::ZERO,
            ejected_at: Duration::ZERO,
            window: SlidingWindow::default(),
        }
    }

    /// Applies new settings.
    pub fn reconfigure(&mut self, settings: HealthSettings) {
        self.settings = settings;
    }

    // Queries.

    /// Returns the state of the upstream, without regard to its lag.
    pub fn state(&self, now: Duration) -> HealthState {
        match self.phase {
            Phase::Ejected { until } => HealthState::Ejected { until },
            Phase::Probing | Phase::Suspected => HealthState::Probing,
            Phase::Healthy if now < self.paused_until => {
                HealthState::Paused { until: self.paused_until }
            }
            Phase::Healthy => HealthState::Healthy,
        }
    }

    /// Returns the end of the last pause.
    pub fn paused_until(&self) -> Duration {
        self.paused_until
    }

    /// Begins a probe if one is due. Returns true if a probe begins, which happens once per
    /// ejection.
    pub fn begin_due_probe(&mut self, now: Duration) -> bool {
        matches!(self.phase, Phase::Ejected { until } if now >= until) && self.begin_probe(now)
    }

    /// Begins a probe after the shortest ejection time, even if the ejection lasts longer. Used
    /// while no upstream is healthy. Returns true if a probe begins, which happens once per
    /// ejection.
    pub fn begin_early_probe(&mut self, now: Duration) -> bool {
        now >= self.ejected_at + self.settings.backoff_min && self.begin_probe(now)
    }

    /// Begins a probe of an ejected upstream. Returns false if the upstream is not ejected, or is
    /// paused.
    fn begin_probe(&mut self, now: Duration) -> bool {
        let may_begin = matches!(self.phase, Phase::Ejected { .. }) && now >= self.paused_until;
        if may_begin {
            self.phase = Phase::Probing;
        }
        may_begin
    }

    // Calls.

    /// Records a successful call. A call that failed because of the caller also counts as success.
    pub fn record_success(&mut self, now: Duration) {
        self.failed_calls_in_row = 0;
        self.unresponsive = false;
        self.last_pause = Duration::ZERO;
        self.count_call(now, false);
    }

    /// Records a failed call. A fault of [`HealthImpact::None`] or [`HealthImpact::OnlyMethod`]
    /// counts as success. The caller reports a fault of [`HealthImpact::IfOtherSucceeds`] only after
    /// another upstream succeeded. `random` adds jitter to the ejection time. Returns an event if
    /// the failure ejects the upstream.
    pub fn record_failure(
        &mut self,
        now: Duration,
        fault: Fault,
        random: u64,
    ) -> Option<HealthEvent> {
        if matches!(fault.health_impact(), HealthImpact::None | HealthImpact::OnlyMethod) {
            self.record_success(now);
            return None;
        }
        self.failed_calls_in_row = self.failed_calls_in_row.saturating_add(1);
        self.count_call(now, true);
        if !matches!(self.phase, Phase::Healthy | Phase::Suspected) {
            return None;
        }
        if self.failed_calls_in_row >= self.settings.failures_max {
            return Some(self.eject(now, EjectReason::ConsecutiveFailures(fault), random));
        }
        let counts = self.window.values(now, self.settings.window);
        let CallCounts { calls, failed } = counts.fold(CallCounts::default(), CallCounts::plus);
        let is_share_too_large =
            f64::from(failed) >= f64::from(calls) * self.settings.failure_share_max;
        (calls >= self.settings.window_calls_min && is_share_too_large)
            .then(|| self.eject(now, EjectReason::FailureShare(fault), random))
    }

    fn count_call(&mut self, now: Duration, has_failed: bool) {
        let counts = self.window.current(now, self.settings.window);
        *counts = counts.plus(CallCounts { calls: 1, failed: u32::from(has_failed) });
    }

    /// Suspects a healthy upstream that has responded to no calls for too long ([`super::stall`]).
    /// The suspicion counts as a failed call, and calls go elsewhere until a poll succeeds. An
    /// upstream that has responded to no call since its last suspicion is ejected, because it
    /// responds to polls but not to calls. Returns `None` if the upstream is not healthy.
    pub fn suspect(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        if self.phase != Phase::Healthy {
            return None;
        }
        if std::mem::replace(&mut self.unresponsive, true) {
            return Some(self.eject(now, EjectReason::PollsOnly, random));
        }
        let ejection = self.record_failure(now, Fault::Timeout, random);
        ejection.or_else(|| {
            self.phase = Phase::Suspected;
            Some(HealthEvent::Suspected)
        })
    }

    /// Records that the upstream reported its rate limit. `retry_after` is the pause that the
    /// upstream requested; `None` if it requested none. Returns an event if a pause begins, and
    /// `None` if a pause is already in progress.
    pub fn record_rate_limit(
        &mut self,
        now: Duration,
        retry_after: Option<Duration>,
    ) -> Option<HealthEvent> {
        let was_paused = now < self.paused_until;
        let pause = match retry_after {
            Some(pause) => pause.min(self.settings.pause_max),
            // Calls that were in flight when the pause began carry no new information.
            None if was_paused => return None,
            None => {
                self.last_pause = (self.last_pause * 2).max(PAUSE_MIN).min(self.settings.pause);
                self.last_pause
            }
        };
        let until = now + pause;
        if until <= self.paused_until {
            return None;
        }
        self.paused_until = until;
        (!was_paused).then_some(HealthEvent::Paused { until })
    }

    // Polls and probes.

    /// Records a successful poll of the upstream's head. Returns an event if the poll clears a
    /// suspicion.
    pub fn record_poll(&mut self) -> Option<HealthEvent> {
        self.failed_polls_in_row = 0;
        if self.phase != Phase::Suspected {
            return None;
        }
        self.phase = Phase::Healthy;
        Some(HealthEvent::Cleared)
    }

    /// Records a failed poll of the upstream's head. For a poll rejected by a rate limit, call
    /// [`UpstreamHealth::record_rate_limit`] instead.
    pub fn record_failed_poll(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        self.failed_polls_in_row = self.failed_polls_in_row.saturating_add(1);
        let must_eject = match self.phase {
            Phase::Suspected => true,
            Phase::Healthy => self.failed_polls_in_row >= self.settings.failures_max,
            Phase::Ejected { .. } | Phase::Probing => false,
        };
        must_eject.then(|| self.eject(now, EjectReason::FailedPolls, random))
    }

    /// Records a successful probe, which readmits the upstream.
    pub fn record_probe(&mut self, now: Duration) -> Option<HealthEvent> {
        if self.phase != Phase::Probing {
            return None;
        }
        self.phase = Phase::Healthy;
        self.failed_calls_in_row = 0;
        self.failed_polls_in_row = 0;
        self.window = SlidingWindow::default();
        self.healthy_since = now;
        Some(HealthEvent::Readmitted)
    }

    /// Records a failed probe, which ejects the upstream again.
    pub fn record_failed_probe(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        (self.phase == Phase::Probing).then(|| self.eject(now, EjectReason::FailedProbe, random))
    }

    /// Ejects the upstream for twice its last ejection time. The time restarts at the minimum if
    /// the upstream was healthy for at least `backoff_max`. Jitter subtracts up to a quarter of the
    /// time, so that upstreams ejected together are not probed together.
    fn eject(&mut self, now: Duration, reason: EjectReason, random: u64) -> HealthEvent {
        let settings = self.settings;
        let has_recovered = matches!(self.phase, Phase::Healthy | Phase::Suspected)
            && now.saturating_sub(self.healthy_since) >= settings.backoff_max;
        self.backoff = if has_recovered || self.backoff.is_zero() {
            settings.backoff_min
        } else {
            (self.backoff * 2).min(settings.backoff_max)
        };
        let backoff = self.backoff - random_part(self.backoff / 4, random);
        self.phase = Phase::Ejected { until: now + backoff };
        self.ejected_at = now;
        HealthEvent::Ejected { backoff, reason }
    }
}

/// Returns a random part of a duration: the lower 32 bits of `random`, divided by 2^32, times the
/// duration.
pub(super) fn random_part(duration: Duration, random: u64) -> Duration {
    duration.mul_f64((random & 0xffff_ffff) as f64 / 4_294_967_296.0)
}

/// Fills `out` with the indices of the upstreams in the best available state. From best to worst,
/// the states are healthy, lagging, probing, ejected, paused. Ejected upstreams are used as a last
/// resort, because one of them may have recovered.
///
/// Returns `None` if calls may be sent to these upstreams, or if `states` is empty. If all
/// upstreams are paused, returns the earliest end of a pause; calls are rejected until then.
///
/// Called when a state changes, not for each call.
pub fn select_usable(states: &[HealthState], out: &mut Vec<u16>) -> Option<Duration> {
    let rank = |state: &HealthState| match state {
        HealthState::Healthy => 0,
        HealthState::Lagging => 1,
        HealthState::Probing => 2,
        HealthState::Ejected { .. } => 3,
        HealthState::Paused { .. } => 4,
    };
    out.clear();
    let best_rank = states.iter().map(rank).min()?;
    let usable = (0_u16..).zip(states).filter(|(_, state)| rank(state) == best_rank);
    out.extend(usable.map(|(upstream, _)| upstream));
    states.iter().try_fold(Duration::MAX, |earliest, state| match state {
        HealthState::Paused { until } => Some(earliest.min(*until)),
        _ => None,
    })
}
