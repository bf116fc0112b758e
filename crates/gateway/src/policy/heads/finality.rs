//! Tracks the finalized height: the height of the highest block that no reorg may drop. The
//! upstreams report it, or it is a fixed number of blocks below the head.
//!
//! A restarted node may report a finalized height that is too high for some time, or a lower one
//! than before. So there are two heights. The *finalized* height is what clients get. It falls only
//! if a reorg drops its block. Responses are kept for good up to the *settled* height. It falls if
//! the upstreams report a lower finalized height. The whole cache then becomes invalid, and
//! `HeadEvent::FinalizedFell` reports it. `heads` elects the served head.

use crate::policy::heads::upstream::UpstreamChain;
use crate::policy::heads::{Finality, Head, HeadEvent, HeadTracker, ROLLBACK_POLLS};

/// If no upstream has reported a finalized height after this number of polls, the tracker assumes
/// that upstreams report none.
const FINALITY_POLLS: u64 = 5;

impl HeadTracker {
    /// Updates the finalized and the settled height. The settled height falls only if the witnesses (upstreams whose heads
    /// count) report a lower height in enough consecutive polls. `is_poll` is true if an upstream
    /// has just reported its head.
    pub(super) fn update_finalized(
        &mut self,
        witnesses: &[usize],
        is_poll: bool,
        events: &mut Vec<HeadEvent>,
    ) {
        let Some(head) = self.head else {
            return;
        };
        // The distance from the head to the finalized height; `None` if the upstreams report the
        // finalized height.
        let depth = match self.settings.finality {
            Finality::FromUpstreams => None,
            Finality::FromUpstreamsOr(_) if self.is_finalized_by_upstreams() => None,
            Finality::FromUpstreamsOr(depth) | Finality::Depth(depth) => Some(depth),
        };
        let height = match depth {
            Some(depth) => Some(head.number.saturating_sub(depth)),
            None => {
                let mut reported: Vec<u64> = witnesses
                    .iter()
                    .filter_map(|&upstream| self.find_final(&self.upstreams[upstream], head))
                    .collect();
                reported.sort_unstable();
                // Of one or two reported heights, the lowest counts. Of three or more, the second
                // lowest counts, so that one upstream cannot hold the height back.
                reported.get(usize::from(reported.len() > 2)).copied()
            }
        };
        let Some(height) = height.map(|height| height.min(head.number)) else {
            return;
        };
        match self.settled {
            Some(settled) if height < settled => {
                let has_fallen = self.has_fallen(witnesses, settled);
                self.finalized_low_polls =
                    if has_fallen { self.finalized_low_polls + u32::from(is_poll) } else { 0 };
                let polls_required = ROLLBACK_POLLS * witnesses.len() as u32;
                if has_fallen && self.finalized_low_polls >= polls_required {
                    self.lower_settled(height, events);
                }
            }
            _ => {
                self.settled = Some(height);
                self.finalized = self.finalized.max(self.settled);
                self.finalized_low_polls = 0;
            }
        }
    }

    /// Returns the height up to which an upstream confirms that the served chain is final: the
    /// finalized height of the upstream, or the fork if the upstream is on another branch.
    fn find_final(&self, chain: &UpstreamChain, head: Head) -> Option<u64> {
        let height = chain.finalized?.min(head.number);
        let hashes = self.canonical.get(height).zip(chain.branch.get(height));
        match hashes {
            Some((served, own)) if served != own => self.canonical.find_fork(&chain.branch, height),
            _ => Some(height),
        }
    }

    /// Returns true if the finalized height comes from the upstreams. With
    /// [`Finality::FromUpstreamsOr`], the result is true until poll number [`FINALITY_POLLS`]. From
    /// then on it is true only if an upstream has ever reported a finalized height.
    pub(super) fn is_finalized_by_upstreams(&self) -> bool {
        match self.settings.finality {
            Finality::FromUpstreams => true,
            Finality::Depth(_) => false,
            Finality::FromUpstreamsOr(_) => {
                self.polls < FINALITY_POLLS
                    || self.upstreams.iter().any(|chain| chain.finalized_max.is_some())
            }
        }
    }

    /// Returns true if two witnesses report a height below `settled`, and each of these two has
    /// reported a greater height before. One such witness is enough if no other witness reports a
    /// finalized height. So a new upstream whose first report is low does not count.
    fn has_fallen(&self, witnesses: &[usize], settled: u64) -> bool {
        let reporting = witnesses
            .iter()
            .filter(|&&upstream| self.upstreams[upstream].finalized.is_some())
            .count();
        let fallen = witnesses
            .iter()
            .map(|&upstream| &self.upstreams[upstream])
            .filter(|chain| chain.finalized < chain.finalized_max)
            .filter(|chain| chain.finalized.is_some_and(|reported| reported < settled))
            .count();
        fallen >= reporting.clamp(1, 2)
    }

    /// Lowers the finalized and the settled height to the fork of a reorg. If `is_upper_bound` is
    /// true, the fork is at this height or below, so a lower settled height is wrong too.
    pub(super) fn lower_finalized(
        &mut self,
        fork: u64,
        is_upper_bound: bool,
        events: &mut Vec<HeadEvent>,
    ) {
        self.finalized = self.finalized.map(|finalized| finalized.min(fork));
        if let Some(settled) = self.settled
            && (settled > fork || is_upper_bound)
        {
            self.lower_settled(settled.min(fork), events);
        }
    }

    /// Lowers the settled height, invalidates the whole cache and reports the event.
    fn lower_settled(&mut self, to: u64, events: &mut Vec<HeadEvent>) {
        let from = self.settled.unwrap_or(to);
        // A block that was reported as final may be dropped, so nothing in the cache can be
        // trusted. Recording a reorg above height 0 invalidates all of it.
        self.mark_reorg(0);
        self.settled = Some(to);
        self.finalized_low_polls = 0;
        for chain in &mut self.upstreams {
            chain.finalized_max = chain.finalized;
        }
        events.push(HeadEvent::FinalizedFell { from, to });
    }
}
