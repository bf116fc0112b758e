//! The state of a chain at one instant: an immutable snapshot for readers on every core.
//!
//! `heads` builds it, `cacheable` validates cached responses with it, and load balancing reads
//! [`UpstreamView`].

use crate::policy::heads::{Hash, Head};

/// Maximum number of reorg marks. Beyond it the two oldest are merged into the lower fork. The list
/// grows only while later forks lie above earlier ones, so it stays short.
pub const REORG_MARKS_MAX: usize = 64;

/// A snapshot of the chain, built at each change and shared by reference.
#[derive(Debug, Clone, Default)]
pub struct ChainView {
    /// The served head. `None` while no upstream vouches for a head.
    pub head: Option<Head>,
    /// The last served height, also while no upstream vouches for a head. An upstream must have
    /// reached it to serve calls about the head, or clients would see the head go back.
    pub floor: Option<u64>,
    /// The height that no reorg may undo. `None` if the upstreams name none.
    pub finalized: Option<u64>,
    /// True if the upstreams named `finalized`. Otherwise it is head minus a depth, and must not
    /// replace a client's `finalized` tag.
    pub finalized_by_upstreams: bool,
    /// Number of branch changes observed on any upstream.
    pub generation: u64,
    /// Number of changes of `head`.
    pub head_seq: u64,
    /// One entry per upstream, in the order of the group.
    pub upstreams: Vec<UpstreamView>,
    pub(super) window_bottom: u64,
    pub(super) window: Vec<Hash>,
    pub(super) reorgs: ReorgLog,
}

/// The state of one upstream in a chain view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamView {
    /// Identity of the upstream. A reload may give the same index to another upstream.
    pub mark: u64,
    /// The upstream's head, if linked and plausible. `None` if the upstream never reported one and
    /// so is not healthy.
    pub head: Option<u64>,
    /// Number of blocks behind the served head.
    pub lag: u64,
    /// True if it responds to polls.
    pub live: bool,
    /// True if it has the served chain's block at the lower of the two heads, and its last polls
    /// match its known blocks. Reads go only to such an upstream.
    pub consistent: bool,
    /// True if it is live, consistent and not lagging: fit for reads at the head.
    pub at_head: bool,
}

impl ChainView {
    /// Returns the state of the upstream at this index, if it has this mark.
    pub fn of(&self, index: usize, mark: u64) -> Option<UpstreamView> {
        self.upstreams.get(index).copied().filter(|own| own.mark == mark)
    }

    /// Returns the served chain's hash at `number`, if it lies within the window and not above the
    /// head.
    pub fn canonical(&self, number: u64) -> Option<Hash> {
        if self.head.is_none_or(|head| number > head.number) {
            return None;
        }
        let at = usize::try_from(number.checked_sub(self.window_bottom)?).ok()?;
        self.window.get(at).copied()
    }

    /// Returns the height of a hash on the served chain, if it lies within the window.
    pub fn number_of(&self, hash: Hash) -> Option<u64> {
        let at = self.window.iter().rposition(|known| *known == hash)?;
        let number = self.window_bottom + at as u64;
        self.canonical(number).map(|_| number)
    }

    /// Returns true if no branch change since `generation` dropped the block at `number`.
    pub fn valid_since(&self, generation: u64, number: u64) -> bool {
        generation == self.generation || self.reorgs.valid_since(generation, number)
    }

    /// Returns true if `number` is at or below the finalized height.
    pub fn is_finalized(&self, number: u64) -> bool {
        self.finalized.is_some_and(|finalized| number <= finalized)
    }
}

/// Branch changes as (generation, fork height). Blocks above the fork were dropped.
///
/// A mark is redundant and removed if a later mark has the same or a lower fork. So forks rise with
/// generations, and the first mark after a generation has the lowest fork of all later marks.
#[derive(Debug, Clone, Default)]
pub(super) struct ReorgLog {
    marks: Vec<(u64, u64)>,
}

impl ReorgLog {
    pub(super) fn push(&mut self, generation: u64, fork: u64) {
        while self.marks.last().is_some_and(|mark| mark.1 >= fork) {
            self.marks.pop();
        }
        self.marks.push((generation, fork));
        if self.marks.len() > REORG_MARKS_MAX {
            let (_, fork) = self.marks.remove(0);
            self.marks[0].1 = fork;
        }
    }

    fn valid_since(&self, generation: u64, number: u64) -> bool {
        let later = self.marks.partition_point(|mark| mark.0 <= generation);
        self.marks.get(later).is_none_or(|mark| number <= mark.1)
    }
}
