//! The head of a chain as several upstreams show it, and what of the past may still change.
//!
//! One [`HeadTracker`] per chain is fed with polls and gives an immutable [`ChainView`]. It sends
//! nothing: headers that it lacks are asked for by effect ([`Step::asks`]). Parts:
//! `heads/upstream.rs` links one upstream's blocks, `heads/plausible.rs` doubts heads,
//! `heads/elect.rs` chooses among upstreams, `heads/finality.rs` says what no reorg may undo,
//! `heads/view.rs` is what readers see.
//!
//! Order of calls: [`HeadTracker::observe`] or [`HeadTracker::missed`] per poll,
//! [`HeadTracker::header`] per answered ask; after a step that says `changed`,
//! [`HeadTracker::view`]. When the upstreams change: [`HeadTracker::settle_for`], then
//! [`HeadTracker::begin`] per upstream that did.

use std::time::Duration;

mod branch;
mod elect;
mod finality;
mod plausible;
#[cfg(test)]
mod tests;
mod upstream;
mod view;

use branch::Branch;
use elect::{Elected, Witnesses, elect, witnesses};
use upstream::{Linked, UpstreamChain, asks_of};
use view::ReorgLog;

pub use finality::FINALITY_POLLS;
pub use plausible::CLAIM_POLLS_CONTESTED;
pub use upstream::{ASK_AGAIN, ASKS_MAX, FILL_BLOCKS};
pub use view::{ChainView, REORG_MARKS_MAX, UpstreamView};

/// A block hash.
pub type Hash = [u8; 32];

/// A block as a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Height.
    pub number: u64,
    /// Hash.
    pub hash: Hash,
}

/// What one poll of an upstream showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSeen {
    /// Height of its head.
    pub number: u64,
    /// Hash of its head.
    pub hash: Hash,
    /// Hash of the head's parent.
    pub parent: Hash,
    /// Height that it calls finalized, if it was asked and knows one.
    pub finalized: Option<u64>,
}

/// A header wanted from an upstream: answer with [`HeadTracker::header`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Index of the upstream.
    pub upstream: usize,
    /// Height of the header.
    pub number: u64,
}

/// Where the finalized height comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// The upstreams name it; while they do not, nothing is final.
    FromUpstreams,
    /// The upstreams name it; on a chain whose upstreams never named one, head minus so many
    /// blocks.
    FromUpstreamsOr(u64),
    /// Head minus so many blocks: for chains whose upstreams name none.
    Depth(u64),
}

/// How the tracker judges. All values are per chain.
#[derive(Debug, Clone, Copy)]
pub struct HeadSettings {
    /// Recent blocks kept per upstream and for the served chain; at least the finality distance.
    pub window: usize,
    /// Where the finalized height comes from.
    pub finality: Finality,
    /// Blocks that an upstream may be behind and still count as being at the head.
    pub lag_max: u64,
    /// Blocks that a head may rise beyond what the block time allows without a second witness.
    pub jump_max: u64,
    /// Depth up to which a lone upstream's branch change is believed at once.
    pub rollback_max: u64,
    /// Polls, per upstream that counts, for which a deeper rollback must persist without a second
    /// witness.
    pub rollback_polls: u32,
    /// Polls missed in a row after which an upstream's head no longer counts.
    pub missed_max: u32,
    /// Block time to start from; then it is measured.
    pub block_time: Duration,
}

/// Two Ethereum epochs are 64 blocks; four times that, so that a late finality does not empty it.
pub const WINDOW: usize = 256;
/// An upstream polled just before a new block is one behind, and one more for slow import.
pub const LAG_MAX: u64 = 2;
/// More than a poll interval's blocks on the fastest chains (250 ms), less than a plausible lie.
pub const JUMP_MAX: u64 = 64;
/// Ethereum since the Merge has rarely seen more than 7 blocks (May 2022, the deepest known).
pub const ROLLBACK_MAX: u64 = 8;
/// Polls that a lone upstream must insist on a deeper rollback.
pub const ROLLBACK_POLLS: u32 = 3;
/// Polls missed before silence counts: one may be lost to a restart of the connection.
pub const MISSED_MAX: u32 = 3;
/// An upstream counts as rising for so many block times after its last new block.
const FRESH_BLOCKS: u32 = 20;
/// And at least this long, for chains of very short block times that pause now and then.
const FRESH_MIN: Duration = Duration::from_secs(10);
/// Bounds of the measured block time: below a millisecond nothing is measured, above an hour a
/// chain is halted rather than slow.
const BLOCK_TIME_MIN: Duration = Duration::from_millis(1);
const BLOCK_TIME_MAX: Duration = Duration::from_secs(3600);

/// What happened, for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadEvent {
    /// The served chain left the blocks above `fork`, `depth` of them up to its former head.
    Reorg {
        /// Highest block kept.
        fork: u64,
        /// Blocks dropped.
        depth: u64,
    },
    /// An upstream's own branch changed above `fork`.
    UpstreamReorg {
        /// The upstream.
        upstream: usize,
        /// Highest block kept.
        fork: u64,
        /// Blocks dropped.
        depth: u64,
    },
    /// A live upstream fell more than the allowed number of blocks behind.
    UpstreamLagging {
        /// The upstream.
        upstream: usize,
        /// Blocks behind.
        lag: u64,
    },
    /// The finalized height fell: everything cached must go.
    FinalizedFell {
        /// Before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// An upstream claims a head that nobody confirms and the block time does not allow.
    HeadImplausible {
        /// The upstream.
        upstream: usize,
        /// The claimed height.
        number: u64,
    },
}

/// What an input led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Headers to fetch.
    pub asks: Vec<Ask>,
    /// What to log and count.
    pub events: Vec<HeadEvent>,
    /// Whether [`HeadTracker::view`] would now differ.
    pub changed: bool,
}

/// Tracks one chain over its upstreams.
#[derive(Debug)]
pub struct HeadTracker {
    settings: HeadSettings,
    upstreams: Vec<UpstreamChain>,
    views: Vec<UpstreamView>,
    canonical: Branch,
    head: Option<Head>,
    /// The head last served, also while no upstream vouches for one: it is the floor for the next.
    floor: Option<Head>,
    head_since: Duration,
    head_seq: u64,
    block_time: Duration,
    finalized: Option<u64>,
    generation: u64,
    reorgs: ReorgLog,
    polls: u64,
    /// Polls in a row that wanted a rollback which still lacks evidence.
    rollback_polls: u32,
    finalized_low_polls: u32,
}

impl HeadTracker {
    /// A tracker of `upstream_count` upstreams of one chain.
    pub fn new(settings: HeadSettings, upstream_count: usize) -> Self {
        Self {
            settings,
            upstreams: (0..upstream_count).map(|_| UpstreamChain::default()).collect(),
            views: vec![UpstreamView::default(); upstream_count],
            canonical: Branch::default(),
            head: None,
            floor: None,
            head_since: Duration::ZERO,
            head_seq: 0,
            block_time: settings.block_time,
            finalized: None,
            generation: 0,
            reorgs: ReorgLog::default(),
            polls: 0,
            rollback_polls: 0,
            finalized_low_polls: 0,
        }
    }

    /// Goes by other settings from now on, with room for `upstream_count` upstreams at least. What
    /// is known of the chain stays.
    pub fn settle_for(&mut self, settings: HeadSettings, upstream_count: usize) {
        self.settings = settings;
        let count = upstream_count.max(self.upstreams.len());
        self.upstreams.resize_with(count, UpstreamChain::default);
        self.views.resize(count, UpstreamView::default());
    }

    /// Another upstream than before has this index from now on, or none: nothing is known of it.
    /// Views say by its mark that they are about this one.
    pub fn begin(&mut self, upstream: usize, mark: u64) {
        self.upstreams[upstream] = UpstreamChain::default();
        self.views[upstream] = UpstreamView { mark, ..UpstreamView::default() };
    }

    /// A poll of `upstream` was answered.
    pub fn observe(&mut self, upstream: usize, now: Duration, seen: HeadSeen) -> Step {
        let mut step = Step::default();
        self.polls += 1;
        let chain = &mut self.upstreams[upstream];
        if let Some(finalized) = seen.finalized {
            chain.finalized = Some(finalized);
            chain.finalized_max = chain.finalized_max.max(Some(finalized));
        }
        if self.plausible(upstream, now, &seen, &mut step.events) {
            let linked = self.upstreams[upstream].link(now, &seen, self.settings.window);
            self.linked(upstream, linked, &mut step);
            self.walk(upstream, now, &mut step);
            self.ask_fill(upstream, &mut step);
        }
        self.heard(upstream);
        self.settle(now, Some(upstream), true, &mut step);
        step
    }

    /// A poll of `upstream` failed or was refused.
    pub fn missed(&mut self, upstream: usize, now: Duration) -> Step {
        let mut step = Step::default();
        let chain = &mut self.upstreams[upstream];
        chain.missed = chain.missed.saturating_add(1);
        self.settle(now, None, false, &mut step);
        step
    }

    /// Headers asked of `upstream` will not come, as far as they have not: its next poll asks
    /// again. Without this call they are waited for, for [`ASK_AGAIN`].
    pub fn unanswered(&mut self, upstream: usize) {
        self.upstreams[upstream].forget_asks();
    }

    /// A header asked of `upstream` arrived.
    pub fn header(
        &mut self,
        upstream: usize,
        now: Duration,
        number: u64,
        hash: Hash,
        parent: Hash,
    ) -> Step {
        let mut step = Step::default();
        let wanted = self.upstreams[upstream].fill_wanted();
        self.upstreams[upstream].header(number, hash, parent, self.settings.window);
        if wanted == Some(number) {
            self.ask_fill(upstream, &mut step);
        }
        self.walk(upstream, now, &mut step);
        self.heard(upstream);
        self.settle(now, Some(upstream), false, &mut step);
        let bottom = self.canonical.bottom();
        self.canonical.deepen(&self.upstreams[upstream].branch);
        // What is known below the head counts too: readers compare hashes there.
        step.changed |= self.canonical.bottom() != bottom;
        step
    }

    /// The present state, to be shared with readers.
    pub fn view(&self) -> ChainView {
        ChainView {
            head: self.head,
            floor: self.floor.map(|head| head.number),
            finalized: self.finalized,
            finalized_by_upstreams: self.named_by_upstreams(),
            generation: self.generation,
            head_seq: self.head_seq,
            upstreams: self.views.clone(),
            window_bottom: self.canonical.bottom(),
            window: self.canonical.hashes().collect(),
            reorgs: self.reorgs.clone(),
        }
    }

    /// The measured time between blocks, for poll intervals.
    pub fn block_time(&self) -> Duration {
        self.block_time
    }

    /// An upstream that answers counts again. One that was silent for long must first show how its
    /// head follows from what is known of it: its former head is no news.
    fn heard(&mut self, upstream: usize) {
        let chain = &mut self.upstreams[upstream];
        if chain.missed < self.settings.missed_max || chain.is_linked() {
            chain.missed = 0;
        }
    }

    fn walk(&mut self, upstream: usize, now: Duration, step: &mut Step) {
        // Taken out, so that the other upstreams' blocks can be read meanwhile.
        let mut chain = std::mem::take(&mut self.upstreams[upstream]);
        let others = &self.upstreams;
        let known = |number: u64, hash: Hash| {
            let below = number.checked_sub(1)?;
            others
                .iter()
                .find(|other| other.branch.get(number) == Some(hash))
                .and_then(|other| other.branch.get(below))
        };
        let ask = asks_of(upstream, &mut step.asks);
        let linked = chain.walk(now, self.settings.window, known, ask);
        self.upstreams[upstream] = chain;
        self.linked(upstream, linked, step);
    }

    /// Asks for the next header below a young branch, unless another upstream's blocks tell it.
    fn ask_fill(&mut self, upstream: usize, step: &mut Step) {
        if self.upstreams[upstream].fill_wanted().is_none() {
            return;
        }
        let mut chain = std::mem::take(&mut self.upstreams[upstream]);
        for other in &self.upstreams {
            chain.branch.deepen(&other.branch);
        }
        chain.end_fill_if_deep();
        if let Some(number) = chain.fill_wanted() {
            step.asks.push(Ask { upstream, number });
        }
        self.upstreams[upstream] = chain;
    }

    fn linked(&mut self, upstream: usize, linked: Linked, step: &mut Step) {
        let (fork, top) = match linked {
            Linked::No | Linked::Along => return,
            Linked::Changed { fork, top } => (fork, top),
            // Where it forked is unknown; only what is final is safe.
            Linked::Apart { top } => (self.finalized.unwrap_or(0).min(top), top),
        };
        self.mark_reorg(fork);
        step.events.push(HeadEvent::UpstreamReorg { upstream, fork, depth: top - fork });
    }

    fn mark_reorg(&mut self, fork: u64) {
        self.generation += 1;
        self.reorgs.push(self.generation, fork);
    }

    /// Elects the head, moves the served chain, and brings the derived values up to date.
    /// `spoke` is the upstream that was just heard, `polled` whether of its head.
    fn settle(&mut self, now: Duration, spoke: Option<usize>, polled: bool, step: &mut Step) {
        let before = (self.head_seq, self.generation, self.finalized);
        let fresh = (self.block_time * FRESH_BLOCKS).max(FRESH_MIN);
        let settings = self.settings;
        let witnesses =
            witnesses(&self.upstreams, now, settings.missed_max, settings.lag_max, fresh);
        let elected = elect(&self.upstreams, &witnesses, self.floor);
        match elected {
            Some(elected) if self.allowed(&elected, &witnesses, spoke, polled) => {
                self.serve(now, &elected, &mut step.events);
            }
            // While a rollback waits for evidence the present head stays.
            Some(_) => self.set_head(self.floor),
            None => self.set_head(None),
        }
        self.settle_finalized(&witnesses.upstreams, polled, &mut step.events);
        let views = self.upstream_views(&mut step.events);
        step.changed =
            before != (self.head_seq, self.generation, self.finalized) || views != self.views;
        self.views = views;
    }

    /// Whether the elected head may be served: it extends the present one, or there is evidence
    /// that the present one is gone.
    fn allowed(
        &mut self,
        elected: &Elected,
        witnesses: &Witnesses,
        spoke: Option<usize>,
        polled: bool,
    ) -> bool {
        let Some(floor) = self.floor else {
            return true;
        };
        let winner = &self.upstreams[elected.upstream];
        // Of three and more that all differ, one alone proves nothing: the others are on their way.
        let alone = witnesses.live >= 3 && elected.support < 2;
        let apart = winner.branch.bottom() > floor.number;
        let above = elected.head.number >= floor.number;
        let extends = above && (winner.holds(floor.number, floor.hash) || apart);
        let held = witnesses
            .upstreams
            .iter()
            .any(|&upstream| self.upstreams[upstream].holds(floor.number, floor.hash));
        let depth = self
            .canonical
            .fork(&winner.branch, elected.head.number.min(floor.number))
            .map(|fork| floor.number - fork);
        // A lower head on the same branch is no reorg: an upstream that held the served head went
        // silent.
        let behind = self.canonical.get(elected.head.number) == Some(elected.head.hash);
        let shallow = depth.is_some_and(|depth| depth <= self.settings.rollback_max);
        let backed = elected.own_head && elected.support >= 2;
        // That others went silent says nothing against the head that they held: the lone upstream
        // must have said just now what its head is, and not a head that is still being linked.
        let insists = spoke == Some(elected.upstream) && winner.is_linked();
        // While an upstream holds the served head, others that never did and stand below it on
        // another branch may be on their way over it: the branch that replaces it soon reaches
        // above it.
        let gone = !held || winner.has_dropped(floor.hash);
        let by_two = backed && !behind && (above || gone);
        let by_one = elected.own_head && above && shallow && !held && insists;
        let replaced = by_two || by_one;
        if !alone && (extends || replaced) {
            self.rollback_polls = 0;
            return true;
        }
        let evident = if backed { !(held && behind) } else { !held && insists };
        if alone || !evident {
            self.rollback_polls = 0;
            return false;
        }
        self.rollback_polls += u32::from(polled);
        let wanted = self.settings.rollback_polls * witnesses.upstreams.len() as u32;
        let persisted = self.rollback_polls >= wanted;
        if persisted {
            self.rollback_polls = 0;
        }
        persisted
    }

    /// Makes the elected head the served one.
    fn serve(&mut self, now: Duration, elected: &Elected, events: &mut Vec<HeadEvent>) {
        let Elected { head, upstream, .. } = *elected;
        let branch = &self.upstreams[upstream].branch;
        let former = self.floor;
        let fork = self.canonical.fork(branch, head.number);
        let mut dropped = None;
        match fork {
            Some(fork) => {
                if fork < head.number && self.canonical.get(fork + 1).is_some() {
                    dropped = Some(fork);
                    self.canonical.cut_above(fork);
                }
                for number in fork + 1..=head.number {
                    if let Some(hash) = branch.get(number) {
                        self.canonical.push(hash);
                    }
                }
            }
            None => {
                // Nothing in common: only what is final may have stayed.
                dropped = self.canonical.top().map(|_| self.finalized.unwrap_or(0));
                self.canonical = branch.clone();
                self.canonical.cut_above(head.number);
            }
        }
        self.canonical.trim(self.settings.window);
        if let (Some(fork), Some(former)) = (dropped, former) {
            self.mark_reorg(fork);
            let depth = former.number.saturating_sub(fork);
            events.push(HeadEvent::Reorg { fork, depth });
            if self.finalized.is_some_and(|finalized| finalized > fork) {
                self.finalized_fell(fork, events);
            }
        }
        self.measure(now, former, head);
        self.floor = Some(head);
        self.set_head(Some(head));
    }

    fn measure(&mut self, now: Duration, former: Option<Head>, head: Head) {
        if former == Some(head) {
            return;
        }
        if let Some(former) = former
            && let Ok(blocks @ 1..) = u32::try_from(head.number.saturating_sub(former.number))
        {
            let each = now.saturating_sub(self.head_since) / blocks;
            // Smoothed over about eight heads, so that one late block does not stretch it.
            self.block_time = ((self.block_time * 7 + each.min(BLOCK_TIME_MAX)) / 8)
                .clamp(BLOCK_TIME_MIN, BLOCK_TIME_MAX);
        }
        self.head_since = now;
    }

    fn set_head(&mut self, head: Option<Head>) {
        if self.head != head {
            self.head = head;
            self.head_seq += 1;
        }
    }

    fn upstream_views(&self, events: &mut Vec<HeadEvent>) -> Vec<UpstreamView> {
        let view = |(upstream, chain): (usize, &UpstreamChain)| {
            let mark = self.views[upstream].mark;
            let live = chain.missed < self.settings.missed_max && chain.head.is_some();
            let (Some(own), Some(served)) = (chain.head, self.head) else {
                return UpstreamView { mark, head: chain.head, live, ..UpstreamView::default() };
            };
            let lower = own.min(served.number);
            // Below the window nobody can tell, so an upstream that far behind counts as elsewhere.
            let hash = self.canonical.get(lower);
            let consistent =
                hash.is_some() && chain.branch.get(lower) == hash && chain.is_explained();
            let lag = served.number - lower;
            let lagging = lag > self.settings.lag_max;
            if live && lagging && self.views[upstream].lag <= self.settings.lag_max {
                events.push(HeadEvent::UpstreamLagging { upstream, lag });
            }
            UpstreamView {
                mark,
                head: chain.head,
                lag,
                live,
                consistent,
                at_head: live && consistent && !lagging,
            }
        };
        self.upstreams.iter().enumerate().map(view).collect()
    }
}
