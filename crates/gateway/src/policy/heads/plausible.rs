//! Checks the head that an upstream reports, before its blocks are linked.
//!
//! A head is plausible if the time since the last head allows its height. A *claim* is a head that
//! is too high to be plausible. A single false claim must neither be served nor make the other
//! upstreams seem to lag.

use std::time::Duration;

use crate::policy::heads::upstream::{Claim, UpstreamChain};
use crate::policy::heads::{HeadEvent, HeadPoll, HeadTracker, MISSED_MAX, ROLLBACK_POLLS};

/// Number of consecutive polls in which an upstream must repeat a claim before the claim is
/// accepted. It applies if exactly one other upstream is live (responds to polls) and does not
/// confirm the claim.
const CLAIM_POLLS_CONTESTED: u32 = 10;

impl HeadTracker {
    /// Returns true if a reported head may be linked: the block time allows its height, or another
    /// upstream confirms it. If at most one other upstream is live, enough repetitions by the same
    /// upstream suffice too. Otherwise the head is stored as a claim. A head that another upstream
    /// contradicts always stays a claim.
    pub(super) fn judge_claim(
        &mut self,
        upstream: usize,
        now: Duration,
        poll: &HeadPoll,
        events: &mut Vec<HeadEvent>,
    ) -> bool {
        let chain = &self.upstreams[upstream];
        // Upstreams that sync are no evidence against the first head of one that does not.
        let is_first = chain.head.is_none() && chain.claim.is_none();
        let rank_max = self.find_other_upstreams(upstream).map(UpstreamChain::sync_rank).max();
        if is_first && rank_max.is_some_and(|rank| rank < chain.sync_rank()) {
            return true;
        }
        let served = self.last_served.map(|head| (head.number, self.head_since));
        // The height is measured from the higher of two heads, the upstream's last one and the
        // served one. Each head comes with the time since which it has been the head.
        let upstream_head = chain.head.map(|head| (head, chain.head_changed_at));
        let Some((last_height, last_height_at)) = upstream_head.max(served) else {
            return true;
        };
        let expected_blocks =
            now.saturating_sub(last_height_at).as_nanos() / self.block_time.as_nanos().max(1);
        let highest_plausible = last_height
            .saturating_add(self.settings.jump_max)
            .saturating_add(u64::try_from(expected_blocks).unwrap_or(u64::MAX));
        let is_too_high = poll.number > highest_plausible;
        // Not even repetitions make a contradicted head plausible.
        let is_confirmed = is_too_high && self.is_confirmed(upstream, poll.number);
        let is_false = is_too_high && self.is_contradicted(upstream, poll, is_confirmed);
        if !is_too_high || (!is_false && is_confirmed) {
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
        let polls_required = match self.find_other_upstreams(upstream).count() {
            0 => Some(ROLLBACK_POLLS),
            1 => Some(CLAIM_POLLS_CONTESTED),
            _ => None,
        };
        let is_repeated = !is_false && polls_required.is_some_and(|required| polls >= required);
        self.upstreams[upstream].claim =
            (!is_repeated).then_some(Claim { number: poll.number, polls });
        is_repeated
    }

    /// Returns the other live upstreams that have a head or a claim.
    fn find_other_upstreams(&self, upstream: usize) -> impl Iterator<Item = &UpstreamChain> {
        self.upstreams
            .iter()
            .enumerate()
            .filter(move |&(other, chain)| other != upstream && chain.missed_polls < MISSED_MAX)
            .map(|(_, chain)| chain)
            .filter(|chain| chain.head.is_some() || chain.claim.is_some())
    }

    /// Returns true if the head or the claim of another upstream is at most `jump_max` blocks below
    /// `number`.
    fn is_confirmed(&self, upstream: usize, number: u64) -> bool {
        self.find_other_upstreams(upstream).any(|chain| {
            let claimed = chain.claim.map(|claim| claim.number);
            chain
                .head
                .max(claimed)
                .is_some_and(|highest| highest.saturating_add(self.settings.jump_max) >= number)
        })
    }

    /// Returns true if another upstream has the claimed block at a height that differs from the
    /// claim. A block has only one height, so the claim is false. The claim is also false if another
    /// upstream has its parent at a lower height than expected, and no other upstream confirms the
    /// claim. Only a chain that skips many heights has such a block.
    fn is_contradicted(&self, upstream: usize, poll: &HeadPoll, is_confirmed: bool) -> bool {
        self.find_other_upstreams(upstream).any(|chain| {
            chain.branch.blocks().any(|(number, hash)| {
                (hash == poll.hash && number != poll.number)
                    || (hash == poll.parent && number + 1 != poll.number && !is_confirmed)
            })
        })
    }
}
