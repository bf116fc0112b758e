//! Whether an upstream may be called: one state machine per upstream, and what a group does when
//! none may.
//!
//! Inputs are outcomes of calls, polls and probes; lag comes from `heads`. It starts no probe and
//! keeps no clock: the caller asks [`UpstreamHealth::probe_due`]. Which reply counts as which fault
//! is decided in `classify`.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::policy::classify::{Blame, Fault};

#[cfg(test)]
mod tests;

/// Parts of the sliding window; finer parts would follow the edge more closely, at more cost.
const WINDOW_PARTS: usize = 10;

/// Methods remembered per upstream as unknown to it; one beyond replaces the one that ends first.
pub const UNSUPPORTED_MAX: usize = 256;

/// First rest of an upstream that is over its rate limit and does not say for how long. It doubles
/// with each refusal up to [`HealthSettings::pause`], and begins anew after an answered call, so
/// that an upstream that refuses some calls is used for the others.
const REST_MIN: Duration = Duration::from_millis(50);

/// When an upstream is taken out and when it comes back; see `config::health::Health` for the keys.
#[derive(Debug, Clone, Copy)]
pub struct HealthSettings {
    /// Failures in a row that take an upstream out, of calls or of polls; at least 1.
    pub failures_max: u32,
    /// Length of the sliding window.
    pub window: Duration,
    /// Calls within the window below which the share is not judged.
    pub window_calls_min: u32,
    /// Share of failed calls in the window that takes an upstream out.
    pub failure_share_max: f64,
    /// First time out.
    pub backoff_min: Duration,
    /// Longest time out.
    pub backoff_max: Duration,
    /// Longest rest of an upstream that is over its rate limit and does not say for how long.
    pub pause: Duration,
    /// Longest rest that an upstream may ask for.
    pub pause_max: Duration,
}

/// Whether an upstream may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthState {
    /// Yes.
    Healthy,
    /// It is behind the others: only if nobody is at the head.
    Lagging,
    /// One probe decides: it was out and its time is over, or it has stopped answering calls.
    Probing,
    /// Out until then.
    Ejected {
        /// Time of the next probe.
        until: Duration,
    },
    /// It asked for a rest; this is no ill health.
    Paused {
        /// End of the rest.
        until: Duration,
    },
}

/// A change worth a log line and a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthEvent {
    /// Taken out for so long.
    Ejected {
        /// Time until the probe.
        backoff: Duration,
        /// What tipped it.
        why: Why,
    },
    /// It answers no call: a poll decides whether it stays in service.
    Suspected,
    /// It has answered a poll, so that the suspicion was wrong or is over.
    Cleared,
    /// Back in service.
    Readmitted,
    /// At rest until then.
    Paused {
        /// End of the rest.
        until: Duration,
    },
}

/// What tipped an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Too many failed calls in a row; the last one failed so.
    InRow(Fault),
    /// Too large a share of failed calls; the last one failed so.
    Share(Fault),
    /// Too many failed polls in a row.
    Polls,
    /// A failed probe.
    Probe,
    /// It answers polls and no calls.
    PollsOnly,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::InRow(fault) => write!(f, "calls failed in a row, the last with {}", fault.name()),
            Why::Share(fault) => write!(f, "too many calls failed, the last with {}", fault.name()),
            Why::Polls => f.write_str("it answers no poll"),
            Why::Probe => f.write_str("the probe failed"),
            Why::PollsOnly => f.write_str("it answers polls and no calls"),
        }
    }
}

/// One upstream's health.
#[derive(Debug, Clone)]
pub struct UpstreamHealth {
    settings: HealthSettings,
    phase: Phase,
    paused_until: Duration,
    /// Last rest of our own choice; zero after an answered call.
    rest: Duration,
    lagging: bool,
    /// It was suspected and has answered no call since.
    unanswered: bool,
    calls_failed: u32,
    polls_failed: u32,
    /// Last time out, kept after readmission so that an upstream that keeps failing stays out
    /// longer.
    backoff: Duration,
    healthy_since: Duration,
    ejected: Duration,
    window: Window,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Healthy,
    /// It answers no call, and the next poll decides.
    Suspected,
    Ejected {
        until: Duration,
    },
    Probing,
}

impl UpstreamHealth {
    /// An upstream is healthy until it shows otherwise; whether it has a head is judged by `heads`.
    pub fn new(settings: HealthSettings) -> Self {
        Self {
            settings,
            phase: Phase::Healthy,
            paused_until: Duration::ZERO,
            rest: Duration::ZERO,
            lagging: false,
            unanswered: false,
            calls_failed: 0,
            polls_failed: 0,
            backoff: Duration::ZERO,
            healthy_since: Duration::ZERO,
            ejected: Duration::ZERO,
            window: Window::default(),
        }
    }

    /// Goes by other settings from now on.
    pub fn settle(&mut self, settings: HealthSettings) {
        self.settings = settings;
    }

    // Queries.

    /// Whether it may be called now.
    pub fn state(&self, now: Duration) -> HealthState {
        match self.phase {
            Phase::Ejected { until } => HealthState::Ejected { until },
            Phase::Probing | Phase::Suspected => HealthState::Probing,
            Phase::Healthy if now < self.paused_until => {
                HealthState::Paused { until: self.paused_until }
            }
            Phase::Healthy if self.lagging => HealthState::Lagging,
            Phase::Healthy => HealthState::Healthy,
        }
    }

    /// End of the last rest that the upstream asked for or was given.
    pub fn paused_until(&self) -> Duration {
        self.paused_until
    }

    /// Whether to send a probe now; true once per time out. A head poll does as a probe.
    pub fn probe_due(&mut self, now: Duration) -> bool {
        match self.phase {
            Phase::Ejected { until } if now >= until && now >= self.paused_until => {
                self.phase = Phase::Probing;
                true
            }
            _ => false,
        }
    }

    /// The same once it has been out for the shortest time, however long it is out for: for when no
    /// other upstream can be used, so that one which answers again need not be waited for.
    pub fn probe_early(&mut self, now: Duration) -> bool {
        let ripe = now >= self.paused_until && now >= self.ejected + self.settings.backoff_min;
        match self.phase {
            Phase::Ejected { .. } if ripe => {
                self.phase = Phase::Probing;
                true
            }
            _ => false,
        }
    }

    // Calls.

    /// A call was answered, be it with an error that is the caller's.
    pub fn call_ok(&mut self, now: Duration) {
        self.calls_failed = 0;
        self.unanswered = false;
        self.rest = Duration::ZERO;
        self.window.note(now, self.settings.window, false);
    }

    /// A call failed. Faults that do not speak against the upstream are counted as answers, and
    /// those that speak against it only if another upstream does better must be held back by the
    /// caller until one did ([`Fault::blame`]). `random` spreads the time out.
    pub fn call_failed(&mut self, now: Duration, fault: Fault, random: u64) -> Option<HealthEvent> {
        if fault.blame() == Blame::None {
            self.call_ok(now);
            return None;
        }
        self.calls_failed = self.calls_failed.saturating_add(1);
        self.window.note(now, self.settings.window, true);
        if !matches!(self.phase, Phase::Healthy | Phase::Suspected) {
            return None;
        }
        if self.calls_failed >= self.settings.failures_max {
            return Some(self.eject(now, Why::InRow(fault), random));
        }
        let (calls, failed) = self.window.sums(now, self.settings.window);
        let too_many = f64::from(failed) >= f64::from(calls) * self.settings.failure_share_max;
        (calls >= self.settings.window_calls_min && too_many)
            .then(|| self.eject(now, Why::Share(fault), random))
    }

    /// The upstream has answered no call for too long ([`super::stall`]). It counts as a failed
    /// call; calls go elsewhere until a poll is answered. An upstream that has answered no call
    /// since it was last suspected is taken out: its answers to polls say nothing about calls.
    pub fn suspect(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        if self.phase != Phase::Healthy {
            return None;
        }
        if std::mem::replace(&mut self.unanswered, true) {
            return Some(self.eject(now, Why::PollsOnly, random));
        }
        let ejected = self.call_failed(now, Fault::Timeout, random);
        ejected.or_else(|| {
            self.phase = Phase::Suspected;
            Some(HealthEvent::Suspected)
        })
    }

    /// The upstream said that it is called too often.
    pub fn rate_limited(
        &mut self,
        now: Duration,
        retry_after: Option<Duration>,
    ) -> Option<HealthEvent> {
        let was_paused = now < self.paused_until;
        let rest = match retry_after {
            Some(rest) => rest.min(self.settings.pause_max),
            // Calls that were in flight when the rest began say nothing new.
            None if was_paused => return None,
            None => {
                self.rest = (self.rest * 2).max(REST_MIN).min(self.settings.pause);
                self.rest
            }
        };
        let until = now + rest;
        if until <= self.paused_until {
            return None;
        }
        self.paused_until = until;
        (!was_paused).then_some(HealthEvent::Paused { until })
    }

    // Polls and probes.

    /// A head poll was answered.
    pub fn poll_ok(&mut self) -> Option<HealthEvent> {
        self.polls_failed = 0;
        if self.phase != Phase::Suspected {
            return None;
        }
        self.phase = Phase::Healthy;
        Some(HealthEvent::Cleared)
    }

    /// A head poll failed (not: was refused for its rate, which is
    /// [`UpstreamHealth::rate_limited`]).
    pub fn poll_failed(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        self.polls_failed = self.polls_failed.saturating_add(1);
        let out = self.phase == Phase::Suspected
            || self.phase == Phase::Healthy && self.polls_failed >= self.settings.failures_max;
        out.then(|| self.eject(now, Why::Polls, random))
    }

    /// The probe was answered well.
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

    /// The probe failed.
    pub fn probe_failed(&mut self, now: Duration, random: u64) -> Option<HealthEvent> {
        (self.phase == Phase::Probing).then(|| self.eject(now, Why::Probe, random))
    }

    /// `heads` says that it fell behind, or is wholly unknown.
    pub fn lagging(&mut self) {
        self.lagging = true;
    }

    /// `heads` says that it is at the head.
    pub fn caught_up(&mut self) {
        self.lagging = false;
    }

    /// Doubles the time out, unless the upstream has been well for as long as the longest time out;
    /// then it starts anew. Jitter takes off up to a quarter, so that upstreams lost together are
    /// not probed together.
    fn eject(&mut self, now: Duration, why: Why, random: u64) -> HealthEvent {
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
        self.ejected = now;
        HealthEvent::Ejected { backoff, why }
    }
}

/// The part `random / 2^32` (its lower half) of a duration.
fn fraction(whole: Duration, random: u64) -> Duration {
    whole.mul_f64((random & 0xffff_ffff) as f64 / 4_294_967_296.0)
}

/// Calls and failures of the last window, in parts that are cleared as time passes over them.
#[derive(Debug, Clone, Default)]
struct Window {
    parts: [Part; WINDOW_PARTS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Part {
    turn: u64,
    calls: u32,
    failed: u32,
}

impl Window {
    fn note(&mut self, now: Duration, window: Duration, failed: bool) {
        let turn = Self::turn(now, window);
        let part = &mut self.parts[(turn % WINDOW_PARTS as u64) as usize];
        if part.turn != turn {
            *part = Part { turn, ..Part::default() };
        }
        part.calls = part.calls.saturating_add(1);
        part.failed = part.failed.saturating_add(u32::from(failed));
    }

    fn sums(&self, now: Duration, window: Duration) -> (u32, u32) {
        let oldest = (Self::turn(now, window) + 1).saturating_sub(WINDOW_PARTS as u64);
        self.parts.iter().filter(|part| part.turn >= oldest).fold(
            (0, 0),
            |(calls, failed), part| {
                (calls.saturating_add(part.calls), failed.saturating_add(part.failed))
            },
        )
    }

    fn turn(now: Duration, window: Duration) -> u64 {
        let part = (window.as_nanos() / WINDOW_PARTS as u128).max(1);
        u64::try_from(now.as_nanos() / part).unwrap_or(u64::MAX)
    }
}

/// Which upstreams of a group to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Healthy ones.
    None,
    /// None is healthy: those that only lag.
    Lagging,
    /// Those of which a probe is under way.
    Probing,
    /// All are out: all of those, since one of them may be back already.
    Ejected,
    /// All that is left asked for a rest: better to refuse with this time than to call.
    Paused {
        /// The earliest end of a rest.
        until: Duration,
    },
}

/// Fills `out` with the upstreams to call: the healthy ones, or the least bad, so that a group is
/// never wholly out. Meant to be called when a state changes, not for each call.
pub fn usable_set(states: &[HealthState], out: &mut Vec<u16>) -> Fallback {
    let rank = |state: &HealthState| match state {
        HealthState::Healthy => 0,
        HealthState::Lagging => 1,
        HealthState::Probing => 2,
        HealthState::Ejected { .. } => 3,
        HealthState::Paused { .. } => 4,
    };
    out.clear();
    let best = states.iter().map(rank).min();
    let best_upstreams = (0_u16..).zip(states).filter(|(_, state)| Some(rank(state)) == best);
    out.extend(best_upstreams.map(|(upstream, _)| upstream));
    match best {
        Some(1) => Fallback::Lagging,
        Some(2) => Fallback::Probing,
        Some(3) => Fallback::Ejected,
        Some(4) => Fallback::Paused { until: earliest_rest(states) },
        _ => Fallback::None,
    }
}

fn earliest_rest(states: &[HealthState]) -> Duration {
    let ends = states.iter().filter_map(|state| match state {
        HealthState::Paused { until } => Some(*until),
        _ => None,
    });
    ends.min().unwrap_or_default()
}

/// Methods that an upstream said it does not know, each until some time.
#[derive(Debug, Clone, Default)]
pub struct Unsupported {
    until: HashMap<Box<str>, Duration, RandomState>,
}

impl Unsupported {
    /// The upstream does not know `method`; this is believed until `until`.
    pub fn learn(&mut self, now: Duration, method: &str, until: Duration) {
        if let Some(known) = self.until.get_mut(method) {
            *known = until;
            return;
        }
        if self.until.len() >= UNSUPPORTED_MAX {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() >= UNSUPPORTED_MAX {
            let first = self.until.iter().min_by_key(|(_, until)| **until);
            if let Some(method) = first.map(|(method, _)| method.clone()) {
                self.until.remove(&method);
            }
        }
        self.until.insert(method.into(), until);
    }

    /// The upstream answered `method` after all.
    pub fn forget(&mut self, method: &str) {
        if !self.until.is_empty() {
            self.until.remove(method);
        }
    }

    /// Whether the upstream is believed not to know `method`.
    pub fn contains(&self, now: Duration, method: &str) -> bool {
        !self.until.is_empty() && self.until.get(method).is_some_and(|until| now < *until)
    }
}
