//! What is known of a chain at one instant: an immutable snapshot for readers on every core.
//!
//! `heads` builds it; `cacheable` judges entries by it; choosing reads the upstreams' part.

use crate::policy::heads::{Hash, Head};

/// Reorg marks kept. The list only grows while later forks lie above earlier ones, so it stays
/// short; beyond the bound the two oldest are merged to the safe side.
pub const REORG_MARKS_MAX: usize = 64;

/// A snapshot of the chain. Made at each change, shared by reference.
#[derive(Debug, Clone, Default)]
pub struct ChainView {
    /// The corroborated head; none while no upstream vouches for one.
    pub head: Option<Head>,
    /// The height last served, also while no upstream vouches for a head: whoever answers about the
    /// head must have reached it, or a client would see the head go back.
    pub floor: Option<u64>,
    /// The height that no reorg may undo; none if the upstreams name none.
    pub finalized: Option<u64>,
    /// Whether the upstreams themselves named `finalized`; otherwise it is head minus a depth and
    /// must not be put in place of a client's `finalized` tag.
    pub finalized_by_upstreams: bool,
    /// Counts branch changes seen on any upstream.
    pub generation: u64,
    /// Counts changes of `head`.
    pub head_seq: u64,
    /// One entry per upstream, in the order of the group.
    pub upstreams: Vec<UpstreamView>,
    pub(super) window_bottom: u64,
    pub(super) window: Vec<Hash>,
    pub(super) reorgs: ReorgLog,
}

/// What the chain view says of one upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamView {
    /// Which upstream it is about: another one may have its place.
    pub mark: u64,
    /// Its own head, as far as it was linked and plausible. None: never seen, so not healthy.
    pub head: Option<u64>,
    /// Blocks that it is behind the served head.
    pub lag: u64,
    /// Its polls are answered.
    pub live: bool,
    /// It holds the served chain's block at the lower of the two heads, and its last polls fit what
    /// is known of it. Only such an upstream may be read from.
    pub consistent: bool,
    /// Live, consistent and not lagging: fit for reads at the head.
    pub at_head: bool,
}

impl ChainView {
    /// What is known of the upstream with this mark at this place.
    pub fn of(&self, place: usize, mark: u64) -> Option<UpstreamView> {
        self.upstreams.get(place).copied().filter(|seen| seen.mark == mark)
    }

    /// The served chain's hash at `number`, if it lies within the window and not above the head.
    pub fn canonical(&self, number: u64) -> Option<Hash> {
        if self.head.is_none_or(|head| number > head.number) {
            return None;
        }
        let at = usize::try_from(number.checked_sub(self.window_bottom)?).ok()?;
        self.window.get(at).copied()
    }

    /// The height at which the served chain has this hash, if it lies within the window.
    pub fn number_of(&self, hash: Hash) -> Option<u64> {
        let at = self.window.iter().rposition(|known| *known == hash)?;
        let number = self.window_bottom + at as u64;
        self.canonical(number).map(|_| number)
    }

    /// Whether no branch change since `generation` touched the block at `number`.
    pub fn valid_since(&self, generation: u64, number: u64) -> bool {
        generation == self.generation || self.reorgs.valid_since(generation, number)
    }

    /// Whether `number` is at or below the finalized height.
    pub fn is_finalized(&self, number: u64) -> bool {
        self.finalized.is_some_and(|finalized| number <= finalized)
    }
}

/// Marks (generation, fork height) of branch changes; blocks above the fork were dropped.
///
/// A mark with a higher fork than a later mark tells nothing more than the later one, so such marks
/// are removed: forks rise with generations and the first later mark is the deepest.
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
