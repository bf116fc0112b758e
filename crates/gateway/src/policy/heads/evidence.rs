//! Weighs the evidence for serving the elected head. A head that extends the served chain needs
//! none. A head that drops served blocks needs a second upstream, or enough polls that repeat it.

use std::time::Duration;

use crate::policy::heads::elect::{Elected, Witnesses};
use crate::policy::heads::upstream::UpstreamChain;
use crate::policy::heads::{Head, HeadTracker, ROLLBACK_POLLS};

/// How long the head of an upstream that syncs waits for the first polls of the other upstreams. It
/// is more than the timeouts of one poll.
const FIRST_POLLS_WAIT: Duration = Duration::from_secs(5);

/// As [`ROLLBACK_POLLS`], for a head below the served head. On the served branch it is no reorg: the
/// upstream is behind, and the upstreams with the served head do not respond. One address often has
/// several backends, some of which are behind. If half of them are, 12 polls in a row reach one of
/// these once in 4,096 times. Only a node that its operator has set back really has a lower head. On
/// another branch, upstreams that were down may still have the blocks from before a reorg, while
/// another upstream holds the served head. A branch that really replaces the served one soon rises
/// above the served head.
pub(super) const FALLEN_HEAD_POLLS: u32 = 12;

/// The input after which the tracker elects a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The upstream at this index reported its head.
    Poll(usize),
    /// The upstream at this index sent a header.
    Header(usize),
    /// The upstream at this index sent the header that connects its reported head to its branch.
    /// The head extends the branch.
    Linked(usize),
    /// No upstream responded: a poll was missed, or an upstream was excluded or included again.
    NoResponse,
}

/// The evidence for serving the elected head instead of the last served head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    /// The elected head is served at once: it extends the last served head, or a reorg dropped the
    /// last served head.
    Strong,
    /// The elected head is served once this number of consecutive polls per witness have repeated
    /// it.
    Weak { polls: u32 },
    /// The last served head stays.
    Missing,
}

impl HeadTracker {
    /// Returns true if the first head is not served yet. If only upstreams that sync have reported a
    /// head, another upstream may soon report a much higher one.
    pub(super) fn awaits_first_polls(&self, elected: &Elected, now: Duration) -> bool {
        let is_over = |first: Duration| now.saturating_sub(first) >= FIRST_POLLS_WAIT;
        self.last_served.is_none()
            && self.upstreams[elected.upstream].sync_rank() < 2
            && self.upstreams.iter().any(UpstreamChain::is_unpolled)
            && !self.first_poll_at.is_some_and(is_over)
    }

    /// Returns true if the elected head may be served: the evidence is strong, or enough polls in a
    /// row have repeated weak evidence. Also counts the polls with weak evidence.
    pub(super) fn may_serve(
        &mut self,
        elected: &Elected,
        witnesses: &Witnesses,
        input: Input,
    ) -> bool {
        let Some(last_served) = self.last_served else {
            return true;
        };
        // The report of an upstream is complete once its reported head is linked. On a fast chain
        // most polls skip blocks, so most heads are linked only by a later header.
        let (is_report, is_complete) = match input {
            Input::Poll(upstream) => (true, self.upstreams[upstream].is_linked()),
            Input::Linked(_) => (true, true),
            Input::Header(upstream) => (false, self.upstreams[upstream].is_linked()),
            Input::NoResponse => (false, false),
        };
        match self.weigh_evidence(last_served, elected, witnesses, input) {
            Evidence::Strong => {
                self.rollback_polls = 0;
                true
            }
            Evidence::Weak { polls } => {
                self.rollback_polls += u32::from(is_report && is_complete);
                let polls_required = polls * witnesses.upstreams.len() as u32;
                let has_persisted = self.rollback_polls >= polls_required;
                if has_persisted {
                    self.rollback_polls = 0;
                }
                has_persisted
            }
            Evidence::Missing => {
                // Without a complete report the count stays, because a missed poll or a head that
                // is not linked yet is no evidence against the reorg.
                if is_complete {
                    self.rollback_polls = 0;
                }
                false
            }
        }
    }

    /// Weighs the evidence for serving the elected head. The *winner* is `elected.upstream`, an
    /// upstream that holds the elected head.
    fn weigh_evidence(
        &self,
        last_served: Head,
        elected: &Elected,
        witnesses: &Witnesses,
        input: Input,
    ) -> Evidence {
        // With three or more live upstreams, a head that only one of them holds is not served yet.
        // The others may soon confirm it.
        if witnesses.live >= 3 && elected.support < 2 {
            return Evidence::Missing;
        }
        let winner = &self.upstreams[elected.upstream];
        let holds_last_served =
            |chain: &UpstreamChain| chain.holds(last_served.number, last_served.hash);
        let reaches_last_served = elected.head.number >= last_served.number;
        // If all known blocks of the winner lie above the last served head, they cannot be compared
        // with it. The new head then counts as an extension.
        let starts_above_last_served = winner.branch.bottom() > last_served.number;
        if reaches_last_served && (holds_last_served(winner) || starts_above_last_served) {
            return Evidence::Strong;
        }
        let last_served_has_witness = witnesses
            .upstreams
            .iter()
            .any(|&upstream| holds_last_served(&self.upstreams[upstream]));
        // The winner alone is evidence only if no witness holds the last served head, and the
        // winner has just reported a head that is linked to its branch. A missed poll of another
        // upstream is no evidence against the served head.
        let has_responded = matches!(
            input,
            Input::Poll(upstream) | Input::Header(upstream) | Input::Linked(upstream)
                if upstream == elected.upstream
        );
        let winner_suffices = !last_served_has_witness && has_responded && winner.is_linked();
        let is_shallow = self
            .canonical
            .find_fork(&winner.branch, last_served.number)
            .is_some_and(|fork| last_served.number - fork <= self.settings.rollback_max);
        if winner_suffices && elected.is_upstream_head && reaches_last_served && is_shallow {
            return Evidence::Strong;
        }
        let is_on_served_branch =
            self.canonical.get(elected.head.number) == Some(elected.head.hash);
        let has_two_witnesses = elected.is_upstream_head && elected.support >= 2;
        if !has_two_witnesses {
            let polls = if is_on_served_branch { FALLEN_HEAD_POLLS } else { ROLLBACK_POLLS };
            return if winner_suffices { Evidence::Weak { polls } } else { Evidence::Missing };
        }
        let fallen = Evidence::Weak { polls: FALLEN_HEAD_POLLS };
        // A lower head on the served branch is not a reorg. It is elected if the upstream with the
        // served head has stopped responding.
        if is_on_served_branch {
            return if last_served_has_witness { Evidence::Missing } else { fallen };
        }
        // A lower head on another branch replaces the served head at once only if no witness holds
        // the served head any more, or if the winner itself has dropped it. Otherwise the winner
        // may still switch to the served branch.
        let is_last_served_dropped =
            !last_served_has_witness || winner.has_dropped(last_served.hash);
        if reaches_last_served || is_last_served_dropped { Evidence::Strong } else { fallen }
    }
}
