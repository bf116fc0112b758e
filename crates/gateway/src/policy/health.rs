//! Upstream health: one state machine per upstream, and the fallback of a group without a healthy
//! upstream.
//!
//! Inputs are outcomes of calls, polls and probes. `heads` judges the lag, and `upstream/topology.rs`
//! combines both. This file starts no probes and reads no clock. The caller polls [`UpstreamHealth::probe_due`]. `classify` maps
//! responses to faults.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::policy::classify::{Blame, Fault};

#[cfg(test)]
mod tests;

/// Buckets of the sliding window. More buckets make the window more exact and cost more.
const WINDOW_BUCKETS: usize = 10;

/// Maximum number of unsupported methods stored per upstream. Beyond it a new method replaces the
/// one that expires first.
pub const UNSUPPORTED_MAX: usize = 256;

/// First pause of an upstream that reports its rate limit without a `Retry-After`. It doubles with
/// each report up to [`HealthSettings::pause`]. A successful call resets it, so that an upstream
/// that rejects only some calls still serves the others.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// Conditions for ejecting and readmitting an upstream. `config::health::Health` has the keys.
#[derive(Debug, Clone, Copy)]
pub struct HealthSettings {
    /// Consecutive failures, of calls or of polls, that eject an upstream; at least 1.
    pub failures_max: u32,
    /// Length of the sliding window.
    pub window: Duration,
    /// Minimum number of calls in the window before the failure share is judged.
    pub window_calls_min: u32,
    /// Share of failed calls in the window at which an upstream is ejected.
    pub failure_share_max: f64,
    /// First ejection time.
    pub backoff_min: Duration,
    /// Longest ejection time.
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
    /// The upstream is behind the others, and is called only if no upstream is healthy.
    /// [`UpstreamHealth`] never returns this state, because the chain's view determines the lag.
    Lagging,
    /// The next probe decides: its ejection time is over, or it has stopped responding to calls.
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
                write!(f, "calls failed in a row, the last with {}", fault.name())
            }
            EjectReason::FailureShare(fault) => {
                write!(f, "too many calls failed, the last with {}", fault.name())
            }
            EjectReason::FailedPolls => f.write_str("it answers no poll"),
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
    paused_until: Duration,
    /// Last pause without a `Retry-After`; zero after a successful call.
    last_pause: Duration,
    /// True if the upstream was suspected and has responded to no call since then.
    unresponsive: bool,
    calls_failed: u32,
    polls_failed: u32,
    /// Length of the last ejection. It survives readmission, so an upstream that keeps failing
    /// stays ejected longer.
    backoff: Duration,
    healthy_since: Duration,
    /// Time of the last ejection.
    ejected_at: Duration,
    window: Window,
}

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
    /// Creates the state of an upstream, which starts healthy. `heads` judges its head.
    pub fn new(settings: HealthSettings) -> Self {
        Self {
            settings,
            phase: Phase::Healthy,
            paused_until: Duration::ZERO,
            last_pause: Duration::ZERO,
            unresponsive: false,
            calls_failed: 0,
            polls_failed: 0,
            backoff: Duration::ZERO,
            healthy_since: Duration::ZERO,
            ejected_at: Duration::ZERO,
            window: Window::default(),
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

    /// Returns true, once per ejection, when a probe is due. A head poll serves as a probe.
    pub fn probe_due(&mut self, now: Duration) -> bool {
        match self.phase {
            Phase::Ejected { until } if now >= until && now >= self.paused_until => {
                self.phase = Phase::Probing;
                true
            }
            _ => false,
        }
    }

    /// Returns true, once per ejection, after the shortest ejection time, even if the ejection
    /// lasts longer. Used while no other upstream is usable.
    pub fn probe_early(&mut self, now: Duration) -> bool {
        let due = now >= self.paused_until && now >= self.ejected_at + self.settings.backoff_min;
        match self.phase {
            Phase::Ejected { .. } if due => {
                self.phase = Phase::Probing;
                true
            }
            _ => false,
        }
    }

    // Calls.

    /// Records a successful call. An error caused by the caller counts as success.
    pub fn call_ok(&mut self, now: Duration) {
        self.calls_failed = 0;
        self.unresponsive = false;
        self.last_pause = Duration::ZERO;
        self.window.record(now, self.settings.window, false);
    }

    /// Records a failed call. A fault without blame counts as success. Some faults are blamed only
    /// if another upstream does better ([`Fault::blame`]); the caller reports such a fault only
    /// after another upstream did. `random` adds jitter to the ejection time.
    pub fn call_failed(&mut self, now: Duration, fault: Fault, random: u64) -> Option<HealthEvent> {
        if fault.blame() == Blame::None {
            self.call_ok(now);
            return None;
        }
        self.calls_failed = self.calls_failed.saturating_add(1);
        self.window.record(now, self.settings.window, true);
        if !matches!(self.phase, Phase::Healthy | Phase::Suspected) {
            return None;
        }
        if self.calls_failed >= self.settings.failures_max {
            return Some(self.eject(now, EjectReason::ConsecutiveFailures(fault), random));
        }
        let (calls, failed) = self.window.totals(now, self.settings.window);
        let is_share_too_large =
            f64::from(failed) >= f64::from(calls) * self.settings.failure_share_max;
        (calls >= self.settings.window_calls_min && is_share_too_large)
            .then(|| self.eject(now, EjectReason::FailureShare(fault), random))
    }

    /// Suspects an upstream that has responded to no calls for too long ([`super::stall`]). This
    /// counts as a failed call, and calls go elsewhere until a poll succeeds. An upstream that has
    /// responded to no call since its last suspicion is ejected, because its polls prove nothing
    /// about calls.
    pub fn suspect(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        if self.phase != Phase::Healthy {
            return None;
        }
        if std::mem::replace(&mut self.unresponsive, true) {
            return Some(self.eject(now, EjectReason::PollsOnly, random));
        }
        let ejection = self.call_failed(now, Fault::Timeout, random);
        ejection.or_else(|| {
            self.phase = Phase::Suspected;
            Some(HealthEvent::Suspected)
        })
    }

    /// Records that the upstream reported its rate limit.
    pub fn rate_limited(
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

    /// Records a successful head poll.
    pub fn poll_ok(&mut self) -> Option<HealthEvent> {
        self.polls_failed = 0;
        if self.phase != Phase::Suspected {
            return None;
        }
        self.phase = Phase::Healthy;
        Some(HealthEvent::Cleared)
    }

    /// Records a failed head poll. For a poll rejected by a rate limit, call
    /// [`UpstreamHealth::rate_limited`] instead.
    pub fn poll_failed(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        self.polls_failed = self.polls_failed.saturating_add(1);
        let must_eject = self.phase == Phase::Suspected
            || self.phase == Phase::Healthy && self.polls_failed >= self.settings.failures_max;
        must_eject.then(|| self.eject(now, EjectReason::FailedPolls, random))
    }

    /// Records a successful probe.
    pub fn probe_ok(&mut self, now: Duration) -> Option<HealthEvent> {
        if self.phase != Phase::Probing {
            return None;
        }
        self.phase = Phase::Healthy;
        self.calls_failed = 0;
        self.polls_failed = 0;
        self.window = Window::default();
        self.healthy_since = now;
        Some(HealthEvent::Readmitted)
    }

    /// Records a failed probe.
    pub fn probe_failed(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        (self.phase == Phase::Probing).then(|| self.eject(now, EjectReason::FailedProbe, random))
    }

    /// Ejects the upstream for twice its last ejection time. The time restarts at the minimum if
    /// the upstream was healthy for at least the longest ejection time. Jitter subtracts up to a
    /// quarter, so that upstreams ejected together are not probed together.
    fn eject(&mut self, now: Duration, reason: EjectReason, random: u64) -> HealthEvent {
        let settings = self.settings;
        let recovered = matches!(self.phase, Phase::Healthy | Phase::Suspected)
            && now.saturating_sub(self.healthy_since) >= settings.backoff_max;
        self.backoff = if recovered || self.backoff.is_zero() {
            settings.backoff_min
        } else {
            (self.backoff * 2).min(settings.backoff_max)
        };
        let backoff = self.backoff - fraction(self.backoff / 4, random);
        self.phase = Phase::Ejected { until: now + backoff };
        self.ejected_at = now;
        HealthEvent::Ejected { backoff, reason }
    }
}

/// Multiplies a duration by a random factor from 0 to 1: the lower 32 bits of `random`, divided by
/// 2^32.
fn fraction(duration: Duration, random: u64) -> Duration {
    duration.mul_f64((random & 0xffff_ffff) as f64 / 4_294_967_296.0)
}

/// Calls and failures in a sliding window of buckets.
#[derive(Debug, Clone, Default)]
struct Window {
    buckets: [Bucket; WINDOW_BUCKETS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    index: u64,
    calls: u32,
    failed: u32,
}

impl Window {
    fn record(&mut self, now: Duration, window: Duration, failed: bool) {
        let index = Self::index(now, window);
        let bucket = &mut self.buckets[(index % WINDOW_BUCKETS as u64) as usize];
        if bucket.index != index {
            *bucket = Bucket { index, ..Bucket::default() };
        }
        bucket.calls = bucket.calls.saturating_add(1);
        bucket.failed = bucket.failed.saturating_add(u32::from(failed));
    }

    /// Returns the numbers of calls and failed calls in the window.
    fn totals(&self, now: Duration, window: Duration) -> (u32, u32) {
        let oldest = (Self::index(now, window) + 1).saturating_sub(WINDOW_BUCKETS as u64);
        self.buckets.iter().filter(|bucket| bucket.index >= oldest).fold(
            (0, 0),
            |(calls, failed), bucket| {
                (calls.saturating_add(bucket.calls), failed.saturating_add(bucket.failed))
            },
        )
    }

    /// Returns the number of the bucket for this time, counted from time 0.
    fn index(now: Duration, window: Duration) -> u64 {
        let bucket_nanos = (window.as_nanos() / WINDOW_BUCKETS as u128).max(1);
        u64::try_from(now.as_nanos() / bucket_nanos).unwrap_or(u64::MAX)
    }
}

/// Which upstreams of a group may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The healthy upstreams.
    None,
    /// No upstream is healthy, so the ones that only lag.
    Lagging,
    /// No upstream is healthy or lagging, so the ones with a probe in flight.
    Probing,
    /// Only ejected upstreams are left, so all of them, because any may have recovered.
    Ejected,
    /// All remaining upstreams are paused. Calls are rejected until `until`.
    Paused {
        /// The earliest end of a pause.
        until: Duration,
    },
}

/// Fills `out` with the upstreams to call: the healthy ones, or else the least unhealthy ones.
/// Called when a state changes, not for each call.
pub fn usable_set(states: &[HealthState], out: &mut Vec<u16>) -> Fallback {
    let rank = |state: &HealthState| match state {
        HealthState::Healthy => 0,
        HealthState::Lagging => 1,
        HealthState::Probing => 2,
        HealthState::Ejected { .. } => 3,
        HealthState::Paused { .. } => 4,
    };
    out.clear();
    let Some(best) = states.iter().min_by_key(|state| rank(state)) else { return Fallback::None };
    let usable = (0_u16..).zip(states).filter(|(_, state)| rank(state) == rank(best));
    out.extend(usable.map(|(upstream, _)| upstream));
    match best {
        HealthState::Healthy => Fallback::None,
        HealthState::Lagging => Fallback::Lagging,
        HealthState::Probing => Fallback::Probing,
        HealthState::Ejected { .. } => Fallback::Ejected,
        HealthState::Paused { .. } => Fallback::Paused { until: earliest_pause(states) },
    }
}

fn earliest_pause(states: &[HealthState]) -> Duration {
    let ends = states.iter().filter_map(|state| match state {
        HealthState::Paused { until } => Some(*until),
        _ => None,
    });
    ends.min().unwrap_or_default()
}

/// Methods that an upstream does not support, each with an expiry time.
#[derive(Debug, Clone, Default)]
pub struct UnsupportedMethods {
    until: HashMap<Box<str>, Duration, RandomState>,
}

impl UnsupportedMethods {
    /// Records that the upstream does not support `method` until `until`.
    pub fn learn(&mut self, now: Duration, method: &str, until: Duration) {
        if let Some(known) = self.until.get_mut(method) {
            *known = until;
            return;
        }
        if self.until.len() >= UNSUPPORTED_MAX {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() >= UNSUPPORTED_MAX {
            let expires_first = self.until.iter().min_by_key(|(_, until)| **until);
            if let Some(method) = expires_first.map(|(method, _)| method.clone()) {
                self.until.remove(&method);
            }
        }
        self.until.insert(method.into(), until);
    }

    /// Removes `method`, because the upstream supports it after all.
    pub fn forget(&mut self, method: &str) {
        if !self.until.is_empty() {
            self.until.remove(method);
        }
    }

    /// Returns true if the upstream is believed not to support `method`.
    pub fn contains(&self, now: Duration, method: &str) -> bool {
        !self.until.is_empty() && self.until.get(method).is_some_and(|until| now < *until)
    }
}
