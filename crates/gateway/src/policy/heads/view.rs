//! The state of a chain at one instant: an immutable snapshot for readers on every core.
//!
//! `heads` builds the snapshot. `cacheable` validates cached responses with it, and load balancing
//! reads its [`UpstreamView`]s.

use crate::policy::branch::Branch;
use crate::policy::branch::Hash;
use crate::policy::heads::upstream::UpstreamChain;
use crate::policy::heads::{Head, HeadEvent, HeadTracker, MISSED_MAX, Stall};

/// Maximum number of stored reorgs. If there are more, the two oldest are merged into one with the
/// lower fork. The list grows only if each reorg has a higher fork than the previous reorg, so it
/// is usually short.
const REORGS_MAX: usize = 64;

/// A snapshot of the chain, built at each change and shared by reference.
#[derive(Debug, Clone, Default)]
pub struct ChainView {
    /// The served head. `None` while no upstream's head counts, for example because all upstreams
    /// miss polls.
    pub head: Option<Head>,
    /// True while only upstreams that sync have a head, before the first head is served. They get no
    /// calls about the head.
    pub awaits_head: bool,
    /// Height of the last served head. It stays when `head` becomes `None`. Only an upstream that
    /// has reached this height gets calls about the head, because clients must not see an older
    /// head.
    pub last_served_height: Option<u64>,
    /// The finalized height that clients get. It falls only if a reorg drops its block. `None` while
    /// it is unknown.
    pub finalized: Option<u64>,
    /// The height up to which responses are kept for good, at most `finalized`. It falls if the
    /// upstreams report a lower finalized height than before. `None` while it is unknown.
    pub settled: Option<u64>,
    /// True if the upstreams reported `finalized`. Otherwise the height is the head minus a
    /// configured depth, and must not replace a client's `finalized` tag.
    pub finalized_by_upstreams: bool,
    /// Number of branch changes of the upstreams and of the served chain.
    pub generation: u64,
    /// Number of changes of `head`.
    pub head_seq: u64,
    /// Set while the head stands still although an upstream reports new blocks.
    pub stall: Option<Stall>,
    /// One entry per upstream, by the index that [`ChainView::upstream`] takes.
    pub upstreams: Vec<UpstreamView>,
    /// The newest blocks of the served chain.
    pub(super) window: Branch,
    /// The reorgs that [`ChainView::valid_since`] checks.
    pub(super) reorgs: ReorgLog,
}

/// The state of one upstream in a chain view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpstreamView {
    /// Unique number of the upstream. A reload may give the same index to another upstream, which
    /// then has another id.
    pub instance_id: u64,
    /// The upstream's head, if linked and plausible. `None` if the upstream never reported a head;
    /// such an upstream is not healthy.
    pub head: Option<u64>,
    /// Number of blocks behind the served head; 0 if the upstream is not behind, or if one of the
    /// two heads is unknown.
    pub lag: u64,
    /// True if the upstream responds to polls.
    pub live: bool,
    /// True if the upstream is on the served chain: both have the same block at the lower of their
    /// heads. At one of its last two polls, its head must also have been linked to its known
    /// blocks. Reads go only to such an upstream.
    pub consistent: bool,
    /// True if the upstream syncs, or has only block 0. It gets calls only as a last resort.
    pub syncing: bool,
    /// True if the upstream is live, consistent and not lagging: fit for reads at the head.
    pub at_head: bool,
}

impl ChainView {
    /// Returns the state of the upstream at this index, if the upstream has this id.
    pub fn upstream(&self, index: usize, instance_id: u64) -> Option<UpstreamView> {
        self.upstreams.get(index).copied().filter(|view| view.instance_id == instance_id)
    }

    /// Returns the hash of the served chain's block at `number`. Returns `None` for a height without
    /// a block, above the head, or below the window, which holds the newest blocks. The block at the
    /// lowest height of the window may be further down, so its height is unknown.
    pub fn canonical(&self, number: u64) -> Option<Hash> {
        let is_unknown = number > 0 && number == self.window.bottom();
        self.newest_at(number).filter(|_| !is_unknown && !self.window.is_skipped(number))
    }

    /// Returns the hash of the served chain's newest block at or below `number`. Returns `None` for
    /// a height above the head or below the window.
    pub fn newest_at(&self, number: u64) -> Option<Hash> {
        let is_served = self.head.is_some_and(|head| number <= head.number);
        self.window.get(number).filter(|_| is_served)
    }

    /// Returns true if the served chain has no block at this height, but lower and higher ones.
    pub fn is_skipped(&self, number: u64) -> bool {
        self.newest_at(number).is_some() && self.window.is_skipped(number)
    }

    /// Returns the height of the block with this hash on the served chain. Returns `None` if no
    /// block of the window has the hash.
    pub fn number_of(&self, hash: Hash) -> Option<u64> {
        self.window.find_number(hash).filter(|number| self.canonical(*number).is_some())
    }

    /// Returns true if no branch change since `generation` dropped the block at `number`. May
    /// return false for a block that was not dropped, if old branch changes have been merged.
    pub fn valid_since(&self, generation: u64, number: u64) -> bool {
        generation == self.generation || self.reorgs.valid_since(generation, number)
    }

    /// Returns true if `number` is at or below the settled height: no reorg may drop its block.
    pub fn is_finalized(&self, number: u64) -> bool {
        self.settled.is_some_and(|settled| number <= settled)
    }
}

impl HeadTracker {
    /// Returns the view of each upstream. Reports an event for each upstream that began to lag.
    pub(super) fn build_upstream_views(&self, events: &mut Vec<HeadEvent>) -> Vec<UpstreamView> {
        // The heads are not shown before the first one is served.
        let is_waiting = self.last_served.is_none();
        let view = |(upstream, chain): (usize, &UpstreamChain)| {
            let instance_id = self.views[upstream].instance_id;
            let syncing = chain.sync_rank() < 2;
            if is_waiting {
                return UpstreamView { instance_id, syncing, ..UpstreamView::default() };
            }
            let live = chain.missed_polls < MISSED_MAX && chain.head.is_some();
            let (Some(upstream_head), Some(served)) = (chain.head, self.head) else {
                return UpstreamView {
                    instance_id,
                    head: chain.head,
                    live,
                    syncing,
                    ..UpstreamView::default()
                };
            };
            let lower = upstream_head.min(served.number);
            // A head below the window cannot be compared, so its upstream counts as being on
            // another branch.
            let hash = self.canonical.get(lower);
            let consistent =
                hash.is_some() && chain.branch.get(lower) == hash && chain.is_branch_known();
            let lag = served.number - lower;
            let lagging = lag > self.settings.lag_max;
            if live && lagging && self.views[upstream].lag <= self.settings.lag_max {
                events.push(HeadEvent::UpstreamLagging { upstream, lag });
            }
            UpstreamView {
                instance_id,
                head: chain.head,
                lag,
                live,
                consistent,
                syncing,
                at_head: live && consistent && !lagging,
            }
        };
        self.upstreams.iter().enumerate().map(view).collect()
    }
}

/// A branch change. Blocks above the fork were dropped.
#[derive(Debug, Clone, Copy)]
struct Reorg {
    /// [`ChainView::generation`] that began with the change.
    generation: u64,
    /// Height of the highest block that stayed.
    fork: u64,
}

/// The branch changes that decide which cached responses are valid.
///
/// A later reorg with the same or a lower fork makes an earlier reorg redundant, so the earlier one
/// is removed. As a result, forks rise with generations. So of all reorgs after a generation, the
/// first has the lowest fork, and only this one must be checked.
#[derive(Debug, Clone, Default)]
pub(super) struct ReorgLog {
    reorgs: Vec<Reorg>,
}

impl ReorgLog {
    pub(super) fn push(&mut self, generation: u64, fork: u64) {
        while self.reorgs.last().is_some_and(|reorg| reorg.fork >= fork) {
            self.reorgs.pop();
        }
        self.reorgs.push(Reorg { generation, fork });
        if self.reorgs.len() > REORGS_MAX {
            let oldest = self.reorgs.remove(0);
            self.reorgs[0].fork = oldest.fork;
        }
    }

    fn valid_since(&self, generation: u64, number: u64) -> bool {
        let first_later = self.reorgs.partition_point(|reorg| reorg.generation <= generation);
        self.reorgs.get(first_later).is_none_or(|reorg| number <= reorg.fork)
    }
}
