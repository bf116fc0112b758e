//! The state of `weir probe`, which calls each target at a steady interval: counts since the start,
//! and the changes of each target's state. The targets and their methods bound the memory, so a
//! probe may run without end.
//!
//! A turn is one call to each target. A head is the newest block that a target reports. Times are
//! durations since the start of the probe. This code does not send, wait or read a clock.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use lab_model::record::{Class, TIME_MAX_NS, Times, to_nanos};
use lab_model::results::TargetFacts;

#[cfg(test)]
mod tests;

/// Shortest time that the histograms of a probe resolve, in nanoseconds.
const TIME_MIN_NANOS: u64 = 1_000;
/// Significant decimal digits of these histograms. With two, a histogram takes about 30 kB.
const SIGNIFICANT_DIGITS: u8 = 2;
/// Number of heads that are stored for each target. While some targets still respond in one turn,
/// others have already reported the head of the next turn. So each target needs the heads of two
/// turns.
const HEADS_MAX: usize = 2;
/// Maximum number of characters of the reason of a failed call.
const REASON_CHARS_MAX: usize = 160;

/// Rules by which the state of a target changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Number of consecutive failed calls after which a target counts as failed. The same number of
    /// successful calls makes it count as recovered.
    pub calls_in_a_row: u32,
    /// A target lags if it is more than this many blocks behind other targets of its chain.
    pub lag_max: u64,
}

/// The state of all targets.
#[derive(Debug)]
pub struct ProbeState {
    /// Time since the start.
    pub elapsed: Duration,
    /// The targets, in the order of the command line.
    pub targets: Vec<TargetState>,
    /// Rules by which states change.
    rules: Rules,
    /// Events that [`ProbeState::take_events`] has not yet returned.
    events: Vec<Event>,
}

/// The state of one target.
#[derive(Debug, Default)]
pub struct TargetState {
    /// Name in metrics and messages.
    pub name: String,
    /// Client, chain and family of the chain's methods (such as Ethereum); `None` until the target
    /// has responded to the first calls.
    pub facts: Option<TargetFacts>,
    /// Status of the target.
    pub status: Status,
    /// True if the target is up but behind other targets of its chain.
    pub lagging: bool,
    /// Finished calls by method and class.
    pub calls: BTreeMap<(String, Class), u64>,
    /// Latencies of calls with a result, by method.
    pub latencies: BTreeMap<String, Times>,
    /// Number of calls that were not sent, because the previous call was still in flight.
    pub calls_skipped: u64,
    /// Number of times that the target failed.
    pub outages: u64,
    /// The last heads, newest last.
    heads: Vec<Head>,
    /// Time of the last change of the head.
    head_changed: Duration,
    /// Start of the first failed call in the latest series of failed calls.
    failing_since: Duration,
    /// Number of consecutive failed calls up to now.
    failed_in_a_row: u32,
    /// Number of consecutive successful calls up to now.
    succeeded_in_a_row: u32,
}

/// The status of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// No call has ended yet.
    #[default]
    Starting,
    /// The target responds.
    Up,
    /// The last calls failed.
    Failed,
}

/// A head that a target reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Number of the turn in which the target reported the head.
    turn: u64,
    /// Block number.
    number: u64,
}

/// A finished call.
#[derive(Clone, Debug)]
pub struct FinishedCall<'a> {
    /// Method of the call.
    pub method: &'a str,
    /// Outcome of the call.
    pub class: Class,
    /// Time from the scheduled start of the call to its end.
    pub latency: Duration,
    /// Number of the turn in which the call was made.
    pub turn: u64,
    /// Block number of the head; `None` if the call did not return a head.
    pub head: Option<u64>,
    /// Reason why the call failed; ignored if it succeeded.
    pub reason: &'a str,
}

/// A change of a target's state, or a warning about its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Index of the target.
    pub target: usize,
    /// The change.
    pub change: Change,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The first call had a result.
    Up(TargetFacts),
    /// The target failed.
    Failed {
        /// Why the last call failed.
        reason: String,
        /// Number of consecutive failed calls; 0 if the target could not be identified.
        calls: u32,
    },
    /// The target responds again.
    Recovered {
        /// Time since the start of the first failed call.
        after: Duration,
    },
    /// The target is behind other targets of its chain.
    Lags {
        /// Number of blocks.
        blocks: u64,
    },
    /// The target lags no longer.
    CaughtUp,
    /// The plan is not probed as it is written, such as without the calls for which the chain lacks
    /// data.
    Warned(String),
}

impl ProbeState {
    /// Creates the state of targets with these names, before the first call.
    pub fn new(names: impl IntoIterator<Item = String>, rules: Rules) -> ProbeState {
        let target = |name| TargetState { name, ..TargetState::default() };
        let targets = names.into_iter().map(target).collect();
        ProbeState { elapsed: Duration::ZERO, targets, rules, events: Vec::new() }
    }

    /// Records that a target was identified, with the warnings about the calls of its plan.
    pub fn identify(&mut self, index: usize, facts: TargetFacts, warnings: Vec<String>) {
        self.targets[index].facts = Some(facts);
        let warned = |text| Event { target: index, change: Change::Warned(text) };
        self.events.extend(warnings.into_iter().map(warned));
    }

    /// Records that a target could not be identified.
    pub fn fail_to_identify(&mut self, index: usize, reason: &str, now: Duration) {
        if self.targets[index].status != Status::Failed {
            self.targets[index].failing_since = now;
            self.fail(index, reason, 0);
        }
    }

    /// Records a finished call. A 429 counts neither as a failure nor as a success.
    pub fn record(&mut self, index: usize, call: &FinishedCall<'_>, now: Duration) {
        let rules = self.rules;
        let target = &mut self.targets[index];
        target.count(call, now);
        match call.class {
            Class::Limited => {}
            Class::Ok => {
                target.failed_in_a_row = 0;
                target.succeeded_in_a_row = target.succeeded_in_a_row.saturating_add(1);
            }
            _ => {
                if target.failed_in_a_row == 0 && target.status != Status::Failed {
                    target.failing_since = now.saturating_sub(call.latency);
                }
                target.failed_in_a_row = target.failed_in_a_row.saturating_add(1);
                target.succeeded_in_a_row = 0;
            }
        }
        match target.status {
            Status::Starting if call.class == Class::Ok => {
                target.status = Status::Up;
                let facts = target.facts.clone().unwrap_or_default();
                self.events.push(Event { target: index, change: Change::Up(facts) });
            }
            Status::Failed if target.succeeded_in_a_row >= rules.calls_in_a_row => {
                let after = now.saturating_sub(target.failing_since);
                target.status = Status::Up;
                self.events.push(Event { target: index, change: Change::Recovered { after } });
            }
            Status::Starting | Status::Up if target.failed_in_a_row >= rules.calls_in_a_row => {
                let calls = target.failed_in_a_row;
                self.fail(index, call.reason, calls);
            }
            Status::Starting | Status::Up | Status::Failed => {}
        }
    }

    /// Sets the time. Adds an event for each target that started or stopped lagging.
    pub fn tick(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
        for index in 0..self.targets.len() {
            let lag = self.lag(index).unwrap_or_default();
            let target = &mut self.targets[index];
            if target.status != Status::Up {
                continue;
            }
            // A target has caught up only at half of `lag_max`. Otherwise a lag near `lag_max`
            // would change the state with each block.
            let caught_up = lag <= self.rules.lag_max / 2;
            let change = match target.lagging {
                false if lag > self.rules.lag_max => Change::Lags { blocks: lag },
                true if caught_up => Change::CaughtUp,
                _ => continue,
            };
            target.lagging = !target.lagging;
            self.events.push(Event { target: index, change });
        }
    }

    /// Returns the events since the last call of this function.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns the number of blocks by which a target is behind the highest head of all targets of
    /// its chain. `None` if the head of the target is unknown. Heads of the same turn are compared,
    /// because a chain may grow by many blocks between two turns.
    pub fn lag(&self, index: usize) -> Option<u64> {
        let target = &self.targets[index];
        let own_head = target.heads.last()?;
        let peers = self.targets.iter().filter(|peer| peer.chain() == target.chain());
        let heads = peers.filter_map(|peer| peer.head_in(own_head.turn));
        heads.map(|head| head.saturating_sub(own_head.number)).max()
    }

    /// Sets the status of a target to failed. `calls` is the number of consecutive failed calls.
    fn fail(&mut self, index: usize, reason: &str, calls: u32) {
        let target = &mut self.targets[index];
        target.status = Status::Failed;
        target.lagging = false;
        target.outages += 1;
        target.succeeded_in_a_row = 0;
        let reason = reason.chars().take(REASON_CHARS_MAX).collect();
        self.events.push(Event { target: index, change: Change::Failed { reason, calls } });
    }
}

impl TargetState {
    /// Returns the last known head.
    pub fn head(&self) -> Option<u64> {
        self.heads.last().map(|head| head.number)
    }

    /// Returns the time since the head changed; `None` if the head is unknown.
    pub fn head_age(&self, elapsed: Duration) -> Option<Duration> {
        self.head().map(|_| elapsed.saturating_sub(self.head_changed))
    }

    /// Counts a finished call, and stores its latency and its head.
    fn count(&mut self, call: &FinishedCall<'_>, now: Duration) {
        *self.calls.entry((call.method.to_owned(), call.class)).or_default() += 1;
        if call.class == Class::Ok {
            let times = self.latencies.entry(call.method.to_owned()).or_insert_with(|| {
                Histogram::new_with_bounds(TIME_MIN_NANOS, TIME_MAX_NS, SIGNIFICANT_DIGITS)
                    .expect("the bounds are constants that fit")
            });
            times.saturating_record(to_nanos(call.latency).max(1));
        }
        let Some(number) = call.head else { return };
        if self.head() != Some(number) {
            self.head_changed = now;
        }
        if self.heads.len() == HEADS_MAX {
            self.heads.remove(0);
        }
        self.heads.push(Head { turn: call.turn, number });
    }

    /// Returns the family and the id of the chain; `None` if they are unknown.
    fn chain(&self) -> Option<(&str, Option<&str>)> {
        let facts = self.facts.as_ref()?;
        Some((&facts.family, facts.chain_id.as_deref()))
    }

    /// Returns the newest head up to a turn, or the oldest stored head if all stored heads are
    /// newer.
    fn head_in(&self, turn: u64) -> Option<u64> {
        let newest_until_turn = self.heads.iter().rev().find(|head| head.turn <= turn);
        newest_until_turn.or_else(|| self.heads.first()).map(|head| head.number)
    }
}
