//! Whether an upstream's claimed head is plausible, before its blocks are linked.
//!
//! One false high head must neither be served nor make the other upstreams look late. `upstream.rs`
//! links blocks, and `elect.rs` elects the head.

use std::time::Duration;

use crate::policy::heads::upstream::{Claim, UpstreamChain};
use crate::policy::heads::{HeadEvent, HeadPoll, HeadTracker};

/// Number of polls that must repeat the claim of one of two upstreams that the other lags far
/// behind.
pub const CLAIM_POLLS_CONTESTED: u32 = 10;

impl HeadTracker {
    /// Returns true if a claimed head may be linked: the block time allows it, another upstream
    /// confirms it, or the upstream repeats it while no other can contradict it.
    pub(super) fn plausible(
        &mut self,
        upstream: usize,
        now: Duration,
        poll: &HeadPoll,
        events: &mut Vec<HeadEvent>,
    ) -> bool {
        let served = self.floor.map(|head| (head.number, self.head_since));
        let own = self.upstreams[upstream].head.map(|head| (head, self.upstreams[upstream].moved));
        let Some((base, since)) = own.max(served) else {
            return true;
        };
        let elapsed = now.saturating_sub(since).as_nanos() / self.block_time.as_nanos().max(1);
        let reach = base
            .saturating_add(self.settings.jump_max)
            .saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX));
        let lie = poll.number > reach && self.contradicted(upstream, poll);
        if !lie && (poll.number <= reach || self.confirmed(upstream, poll.number)) {
            self.upstreams[upstream].claim = None;
            return true;
        }
        let polls = match self.upstreams[upstream].claim {
            Some(claim) if poll.number >= claim.number => claim.polls.saturating_add(1),
            _ => 1,
        };
        if polls == 1 {
            events.push(HeadEvent::HeadImplausible { upstream, number: poll.number });
        }
        let wanted = match self.others(upstream).count() {
            0 => Some(self.settings.rollback_polls),
            1 => Some(CLAIM_POLLS_CONTESTED),
            _ => None,
        };
        let insisted = !lie && wanted.is_some_and(|wanted| polls >= wanted);
        self.upstreams[upstream].claim =
            (!insisted).then_some(Claim { number: poll.number, polls });
        insisted
    }

    /// Returns the other live upstreams that have a head.
    fn others(&self, upstream: usize) -> impl Iterator<Item = &UpstreamChain> {
        let missed_max = self.settings.missed_max;
        self.upstreams
            .iter()
            .enumerate()
            .filter(move |&(other, chain)| other != upstream && chain.missed < missed_max)
            .map(|(_, chain)| chain)
            .filter(|chain| chain.head.is_some() || chain.claim.is_some())
    }

    fn confirmed(&self, upstream: usize, number: u64) -> bool {
        self.others(upstream).any(|chain| {
            let claimed = chain.claim.map(|claim| claim.number);
            chain
                .head
                .max(claimed)
                .is_some_and(|other| other.saturating_add(self.settings.jump_max) >= number)
        })
    }

    /// Returns true if another upstream has the claimed block, or its parent, at another height. A
    /// hash has only one height, so the claim is false.
    fn contradicted(&self, upstream: usize, poll: &HeadPoll) -> bool {
        self.others(upstream).any(|chain| {
            (chain.branch.bottom()..).zip(chain.branch.hashes()).any(|(number, hash)| {
                (hash == poll.hash && number != poll.number)
                    || (hash == poll.parent && number + 1 != poll.number)
            })
        })
    }
}
