//! Notices a served head that stands still although upstreams report new blocks.

use std::time::Duration;

use crate::policy::heads::{HeadEvent, HeadTracker, MISSED_MAX};

/// Minimum time for which upstreams must be ahead of the served head until it counts as stalled. It
/// is well over the time in which an upstream confirms the head of another one.
const STALL_MIN: Duration = Duration::from_secs(5);
/// The same minimum in block times. Until then, an upstream that is one block ahead is usual.
const STALL_BLOCKS: u32 = 2;

/// A served head that stands still although an upstream reports new blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Index of the upstream with the highest reported head.
    pub upstream: usize,
    /// Height of this head.
    pub number: u64,
    /// Why the head is not served.
    pub reason: StallReason,
}

/// Why a reported head is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallReason {
    /// The head is not linked to known blocks.
    Unlinked,
    /// The head is too high to be plausible.
    Implausible,
    /// No second upstream has the head, or too few polls have repeated it.
    Unconfirmed,
}

impl StallReason {
    /// Returns the reason in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unlinked => "the headers between its head and the known blocks are missing",
            Self::Implausible => {
                "its head is higher than the block time allows, and no other upstream confirms it"
            }
            Self::Unconfirmed => "no other upstream confirms its head",
        }
    }
}

/// When upstreams were first ahead of the current served head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// [`HeadTracker::head_seq`] of the served head.
    head_seq: u64,
    since: Duration,
    /// The highest reported head at that time.
    number: u64,
}

impl HeadTracker {
    /// Updates the stall after a poll. Reports an event if a stall begins or ends.
    pub(super) fn detect_stall(&mut self, now: Duration, events: &mut Vec<HeadEvent>) {
        let stall = self.find_stall(now);
        match (self.stall, stall) {
            (None, Some(stall)) => events.push(HeadEvent::HeadStalled(stall)),
            (Some(_), None) => events.push(HeadEvent::HeadResumed),
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.stall = stall;
    }

    fn find_stall(&mut self, now: Duration) -> Option<Stall> {
        let served = self.last_served?.number;
        let live = || {
            let chains = self.upstreams.iter().enumerate();
            chains.filter(|(_, chain)| chain.missed_polls < MISSED_MAX && !chain.excluded)
        };
        let reported = || live().filter_map(|(index, chain)| Some((chain.reported?, index)));
        let ahead = || reported().filter(|(number, _)| *number > served);
        let is_minority = ahead().count() * 2 < reported().count();
        let highest = ahead().max();
        let start = self.ahead.filter(|start| start.head_seq == self.head_seq);
        let Some((number, upstream)) = highest.filter(|_| !is_minority) else {
            self.ahead = None;
            return None;
        };
        let first = Ahead { head_seq: self.head_seq, since: now, number };
        let Ahead { since, number: first_number, .. } = *self.ahead.insert(start.unwrap_or(first));
        let stall_min = STALL_MIN.max(self.block_time * STALL_BLOCKS);
        let is_stalled = number > first_number && now.saturating_sub(since) >= stall_min;
        let chain = &self.upstreams[upstream];
        let reason = match (chain.claim, chain.is_linked()) {
            (Some(_), _) => StallReason::Implausible,
            (None, false) => StallReason::Unlinked,
            (None, true) => StallReason::Unconfirmed,
        };
        is_stalled.then_some(Stall { upstream, number, reason })
    }
}
