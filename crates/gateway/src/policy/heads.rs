//! Elects the served head of a chain from the heads of its upstreams, and tracks the finalized
//! height. A *head* is the newest block of an upstream. The *served head* is the newest block that
//! clients get, and the *served chain* is the branch that ends at it.
//!
//! Each upstream has a *branch*: its known blocks, linked by their parent hashes. A new head is
//! *linked* once its ancestors connect it to the branch. A *walk* fetches these ancestors, from the
//! new head downwards. A *fill* extends a short branch downwards. A *witness* is an upstream whose
//! head counts in the election. An upstream *holds* the blocks of its branch up to its head. A
//! *claim* is a reported head that is too high to be plausible.
//!
//! One [`HeadTracker`] per chain takes polls and builds an immutable [`ChainView`]. The tracker
//! does no I/O: it returns the headers to fetch as [`Step::requests`]. Parts: `heads/upstream.rs`
//! links the blocks of one upstream, `heads/plausible.rs` judges claims, `heads/elect.rs` elects
//! the head, `heads/evidence.rs` decides whether it may be served, `heads/finality.rs` finds the
//! finalized height, `heads/view.rs` is the snapshot for readers.
//!
//! Order of calls: [`HeadTracker::observe`] or [`HeadTracker::record_missed_poll`] per poll, and
//! [`HeadTracker::record_header`] per header received. After a step with `changed`, call
//! [`HeadTracker::view`]. When the upstreams change, call [`HeadTracker::reconfigure`], then
//! [`HeadTracker::replace_upstream`] for each changed upstream.

use std::time::Duration;

use crate::policy::branch::{Branch, Hash};

mod elect;
mod evidence;
mod finality;
mod plausible;
mod stall;
#[cfg(test)]
mod tests;
mod upstream;
mod view;

use elect::{Elected, elect, find_witnesses};
use evidence::Input;
use stall::Ahead;
use upstream::{Header, LinkResult, UpstreamChain};
use view::ReorgLog;

pub use stall::{Stall, StallReason};
pub use view::{ChainView, UpstreamView};

/// Number and hash of a block, such as a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Height.
    pub number: u64,
    /// Hash.
    pub hash: Hash,
}

/// Result of one poll of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPoll {
    /// Height of the upstream's head.
    pub number: u64,
    /// Hash of the upstream's head.
    pub hash: Hash,
    /// Hash of the head's parent.
    pub parent: Hash,
    /// Finalized height that the upstream reported. `None` if this poll did not query the finalized
    /// height, or the upstream reports none.
    pub finalized: Option<u64>,
}

/// A header to fetch from an upstream. [`HeadTracker::record_header`] takes the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderRequest {
    /// Index of the upstream.
    pub upstream: usize,
    /// Height of the header.
    pub number: u64,
}

/// Source of the finalized height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finality {
    /// The upstreams report the finalized height. No block is final until they do.
    FromUpstreams,
    /// The upstreams report the finalized height. If no upstream of the chain has ever reported
    /// one, the finalized height is the head minus this many blocks.
    FromUpstreamsOr(u64),
    /// The finalized height is the head minus this many blocks. This is for chains on which
    /// upstreams report no finalized height.
    Depth(u64),
}

/// Settings of the tracker of one chain.
#[derive(Debug, Clone, Copy)]
pub struct HeadSettings {
    /// Number of recent blocks stored per upstream and for the served chain. It is at least the
    /// usual distance between the head and the finalized block.
    pub window: usize,
    /// Source of the finalized height.
    pub finality: Finality,
    /// An upstream that is at most this many blocks behind the served head counts as being at the
    /// head.
    pub lag_max: u64,
    /// A reported head is plausible up to this many blocks above the height that follows from the
    /// block time. A higher head needs a second witness.
    pub jump_max: u64,
    /// Largest depth, in blocks, of a reorg that is accepted at once from a single upstream.
    pub rollback_max: u64,
    /// Initial block time. The tracker adapts it to the measured times.
    pub block_time: Duration,
}

/// Minimum of [`HeadSettings::window`]. On Ethereum the finalized block usually is two epochs (64
/// blocks) below the head. The window has four times as many blocks, so it contains the finalized
/// block even if finality is late.
pub const WINDOW: usize = 256;
/// Usual [`HeadSettings::rollback_max`], in blocks. The deepest known reorg of Ethereum is 7 blocks
/// (May 2022).
pub const ROLLBACK_MAX: u64 = 8;
/// Number of consecutive polls that must repeat an unusual report before the report is accepted
/// with little evidence. The report can be a reorg that is deeper than
/// [`HeadSettings::rollback_max`], a lower finalized height, or a claim. For a reorg or a lower
/// finalized height, the number is multiplied by the number of witnesses.
const ROLLBACK_POLLS: u32 = 3;
/// Number of consecutive missed polls after which the head of an upstream no longer counts. Fewer
/// missed polls may mean only that the connection restarts.
const MISSED_MAX: u32 = 3;
/// An upstream counts as rising (`heads/elect.rs`) for this many block times after its last new
/// block.
const FRESH_BLOCKS: u32 = 20;
/// Minimum time for which an upstream counts as rising. Some chains with very short block times
/// pause now and then.
const FRESH_MIN: Duration = Duration::from_secs(10);
/// Minimum of the measured block time.
const BLOCK_TIME_MIN: Duration = Duration::from_millis(1);
/// Maximum of the measured block time. A chain without a block for an hour has halted.
const BLOCK_TIME_MAX: Duration = Duration::from_secs(3600);

/// An event for logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadEvent {
    /// The served chain dropped the `depth` blocks above `fork`, up to its former head.
    Reorg {
        /// Highest block that stays.
        fork: u64,
        /// Number of dropped blocks.
        depth: u64,
    },
    /// The branch of one upstream changed above `fork`.
    UpstreamReorg {
        /// The upstream.
        upstream: usize,
        /// Highest block that stays.
        fork: u64,
        /// Number of dropped blocks.
        depth: u64,
    },
    /// An upstream that responds to polls fell more than [`HeadSettings::lag_max`] blocks behind.
    UpstreamLagging {
        /// The upstream.
        upstream: usize,
        /// Number of blocks behind the served head.
        lag: u64,
    },
    /// The finalized height fell, so the whole cache is invalid.
    FinalizedFell {
        /// Previous height.
        from: u64,
        /// New height.
        to: u64,
    },
    /// The served head stands still although an upstream reports new blocks.
    HeadStalled(Stall),
    /// A stall has ended.
    HeadResumed,
    /// An upstream claims a head beyond what the block time allows, and no other upstream confirms
    /// it.
    HeadImplausible {
        /// The upstream.
        upstream: usize,
        /// The claimed height.
        number: u64,
    },
}

/// Result of one input.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Headers to fetch.
    pub requests: Vec<HeaderRequest>,
    /// Events to log and count.
    pub events: Vec<HeadEvent>,
    /// True if [`HeadTracker::view`] now returns another view.
    pub changed: bool,
}

/// Tracks one chain over its upstreams.
#[derive(Debug)]
pub struct HeadTracker {
    settings: HeadSettings,
    /// The known blocks of each upstream.
    upstreams: Vec<UpstreamChain>,
    /// The state of each upstream in the last view.
    views: Vec<UpstreamView>,
    /// The newest blocks of the served chain.
    canonical: Branch,
    /// The served head; `None` while there is no witness.
    head: Option<Head>,
    /// The last served head. It stays when `head` becomes `None`, and the next head is then
    /// compared with it.
    last_served: Option<Head>,
    /// Time since which `last_served` has been served.
    head_since: Duration,
    /// Number of changes of `head`.
    head_seq: u64,
    /// Moving average of the time per block, measured from one served head to the next.
    block_time: Duration,
    /// The finalized height that clients get; `None` while it is unknown.
    finalized: Option<u64>,
    /// The height up to which responses are kept for good; `None` while it is unknown.
    settled: Option<u64>,
    /// Set while the served head stands still although an upstream reports new blocks.
    stall: Option<Stall>,
    /// Set while upstreams are ahead of the served head.
    ahead: Option<Ahead>,
    /// True while the first head waits for the first polls of further upstreams.
    awaits_head: bool,
    /// When the first poll succeeded; `None` before it.
    first_poll_at: Option<Duration>,
    /// Number of branch changes so far, of the upstreams and of the served chain.
    generation: u64,
    reorgs: ReorgLog,
    /// Number of successful polls of all upstreams.
    polls: u64,
    /// Number of consecutive polls that repeated a reorg without enough evidence for it.
    rollback_polls: u32,
    /// Number of consecutive polls in which enough upstreams reported a lower finalized height.
    finalized_low_polls: u32,
}

impl HeadTracker {
    /// Creates a tracker for the `upstream_count` upstreams of one chain.
    pub fn new(settings: HeadSettings, upstream_count: usize) -> Self {
        Self {
            settings,
            upstreams: (0..upstream_count).map(|_| UpstreamChain::default()).collect(),
            views: vec![UpstreamView::default(); upstream_count],
            canonical: Branch::default(),
            head: None,
            last_served: None,
            head_since: Duration::ZERO,
            head_seq: 0,
            block_time: settings.block_time,
            finalized: None,
            settled: None,
            stall: None,
            ahead: None,
            awaits_head: false,
            first_poll_at: None,
            generation: 0,
            reorgs: ReorgLog::default(),
            polls: 0,
            rollback_polls: 0,
            finalized_low_polls: 0,
        }
    }

    /// Applies new settings and grows to at least `upstream_count` upstreams. The state of the
    /// chain stays.
    pub fn reconfigure(&mut self, settings: HeadSettings, upstream_count: usize) {
        self.settings = settings;
        let count = upstream_count.max(self.upstreams.len());
        self.upstreams.resize_with(count, UpstreamChain::default);
        self.views.resize(count, UpstreamView::default());
    }

    /// Resets the state at an index whose upstream was removed or replaced. Views of the new
    /// upstream contain `instance_id`, so readers can distinguish the two upstreams.
    pub fn replace_upstream(&mut self, upstream: usize, instance_id: u64) {
        self.upstreams[upstream] = UpstreamChain::default();
        self.views[upstream] = UpstreamView { instance_id, ..UpstreamView::default() };
    }

    /// Processes the result of a poll of `upstream`.
    pub fn observe(&mut self, upstream: usize, now: Duration, poll: HeadPoll) -> Step {
        let mut step = Step::default();
        self.polls += 1;
        self.first_poll_at.get_or_insert(now);
        self.upstreams[upstream].reported = Some(poll.number);
        if let Some(finalized) = poll.finalized {
            self.upstreams[upstream].report_finalized(finalized);
        }
        if self.judge_claim(upstream, now, &poll, &mut step.events) {
            let link = self.upstreams[upstream].link(now, &poll, self.settings.window);
            self.apply_link(upstream, link, &mut step);
            self.continue_walk(upstream, now, &mut step);
            self.request_fill(upstream, &mut step);
        }
        self.mark_responsive(upstream);
        self.elect_and_serve(now, Input::Poll(upstream), &mut step);
        step
    }

    /// Records that a poll of `upstream` failed or was rejected.
    pub fn record_missed_poll(&mut self, upstream: usize, now: Duration) -> Step {
        let mut step = Step::default();
        let chain = &mut self.upstreams[upstream];
        chain.missed_polls = chain.missed_polls.saturating_add(1);
        self.elect_and_serve(now, Input::NoResponse, &mut step);
        step
    }

    /// Excludes the head of `upstream` from elections, or includes it again. Polls of an excluded
    /// upstream are still recorded.
    pub fn set_excluded(&mut self, upstream: usize, now: Duration, excluded: bool) -> Step {
        let mut step = Step::default();
        let previous = std::mem::replace(&mut self.upstreams[upstream].excluded, excluded);
        if previous != excluded {
            self.elect_and_serve(now, Input::NoResponse, &mut step);
        }
        step
    }

    /// Records whether `upstream` says that it is syncing.
    pub fn set_syncing(&mut self, upstream: usize, syncing: bool) {
        self.upstreams[upstream].syncing = syncing;
    }

    /// Drops the outstanding header requests of `upstream`, so its next poll requests the headers
    /// again. Without this call the tracker waits for `HEADER_TIMEOUT`.
    pub fn forget_header_requests(&mut self, upstream: usize) {
        self.upstreams[upstream].forget_requests();
    }

    /// Processes a header received from `upstream`.
    pub fn record_header(
        &mut self,
        upstream: usize,
        now: Duration,
        number: u64,
        hash: Hash,
        parent: Hash,
    ) -> Step {
        self.record_response(upstream, now, number, Some(Header { hash, parent }))
    }

    /// Records that `upstream` has no block at a requested height. The height is skipped, or the
    /// upstream does not have its block yet.
    pub fn record_no_header(&mut self, upstream: usize, now: Duration, number: u64) -> Step {
        self.record_response(upstream, now, number, None)
    }

    fn record_response(
        &mut self,
        upstream: usize,
        now: Duration,
        number: u64,
        header: Option<Header>,
    ) -> Step {
        let mut step = Step::default();
        let fill = self.upstreams[upstream].fill_height();
        self.upstreams[upstream].record_header(number, header, self.settings.window);
        if fill != self.upstreams[upstream].fill_height() {
            self.request_fill(upstream, &mut step);
        }
        let has_advanced = self.continue_walk(upstream, now, &mut step);
        self.mark_responsive(upstream);
        let input = if has_advanced { Input::Linked(upstream) } else { Input::Header(upstream) };
        self.elect_and_serve(now, input, &mut step);
        let bottom = self.canonical.bottom();
        self.canonical.deepen(&self.upstreams[upstream].branch);
        // Readers also compare the hashes of blocks far below the head, so they need a new view if
        // the window has become deeper.
        step.changed |= self.canonical.bottom() != bottom;
        step
    }

    /// Returns a snapshot of the present state for readers.
    pub fn view(&self) -> ChainView {
        ChainView {
            head: self.head,
            last_served_height: self.last_served.map(|head| head.number),
            finalized: self.finalized,
            settled: self.settled,
            stall: self.stall,
            awaits_head: self.awaits_head,
            finalized_by_upstreams: self.is_finalized_by_upstreams(),
            generation: self.generation,
            head_seq: self.head_seq,
            upstreams: self.views.clone(),
            window: self.canonical.clone(),
            reorgs: self.reorgs.clone(),
        }
    }

    /// Marks an upstream as responsive. After a long silence the upstream must first link its new
    /// head to its known blocks, because its former head may be stale.
    fn mark_responsive(&mut self, upstream: usize) {
        let chain = &mut self.upstreams[upstream];
        if chain.missed_polls < MISSED_MAX || chain.is_linked() {
            chain.missed_polls = 0;
        }
    }

    /// Continues the walk from the upstream's reported head back to its branch, and requests the
    /// headers that the walk lacks. Returns true if the reported head now extends the branch.
    fn continue_walk(&mut self, upstream: usize, now: Duration, step: &mut Step) -> bool {
        // The walk changes this chain while it reads the chains of the other upstreams, so this
        // chain is moved out of the list.
        let mut chain = std::mem::take(&mut self.upstreams[upstream]);
        let others = &self.upstreams;
        let find_parent = |number: u64, hash: Hash| {
            let below = number.checked_sub(1)?;
            others
                .iter()
                .find(|other| other.branch.get(number) == Some(hash))
                .and_then(|other| other.branch.get(below))
        };
        let requests = &mut step.requests;
        let request = |number| requests.push(HeaderRequest { upstream, number });
        let link = chain.continue_walk(now, self.settings.window, find_parent, request);
        self.upstreams[upstream] = chain;
        let has_advanced = link == LinkResult::Advanced;
        self.apply_link(upstream, link, step);
        has_advanced
    }

    /// Extends a branch of fewer than `FILL_BLOCKS` blocks downwards: copies blocks from the
    /// branches of other upstreams, and requests the missing headers.
    fn request_fill(&mut self, upstream: usize, step: &mut Step) {
        if self.upstreams[upstream].fill_height().is_none() {
            return;
        }
        let mut chain = std::mem::take(&mut self.upstreams[upstream]);
        for other in &self.upstreams {
            chain.branch.deepen(&other.branch);
        }
        chain.end_fill_if_deep();
        let requests = &mut step.requests;
        chain.request_fill(|number| requests.push(HeaderRequest { upstream, number }));
        self.upstreams[upstream] = chain;
    }

    /// Records a reorg if linking a head dropped blocks of the upstream's branch.
    fn apply_link(&mut self, upstream: usize, link: LinkResult, step: &mut Step) {
        let (fork, top) = match link {
            LinkResult::Unchanged | LinkResult::Advanced => return,
            LinkResult::Forked { fork, top } => (fork, top),
            // A reorg deeper than all known blocks may be deeper than the finalized height too.
            LinkResult::Disconnected { top, replaced: true } => (0, top),
            // The fork is unknown, so all blocks above the finalized height count as dropped.
            LinkResult::Disconnected { top, replaced: false } => {
                (self.settled.unwrap_or(0).min(top), top)
            }
        };
        self.mark_reorg(fork);
        step.events.push(HeadEvent::UpstreamReorg { upstream, fork, depth: top - fork });
    }

    /// Invalidates the cached responses about blocks above `fork`.
    fn mark_reorg(&mut self, fork: u64) {
        self.generation += 1;
        self.reorgs.push(self.generation, fork);
    }

    /// Elects the head, moves the served chain, and updates the finalized height and the views.
    fn elect_and_serve(&mut self, now: Duration, input: Input, step: &mut Step) {
        let state = |tracker: &Self| {
            let finality = (tracker.finalized, tracker.settled);
            (tracker.head_seq, tracker.generation, finality, tracker.stall, tracker.awaits_head)
        };
        let old_state = state(self);
        for chain in &mut self.upstreams {
            chain.accept_finalized();
        }
        let fresh_for = (self.block_time * FRESH_BLOCKS).max(FRESH_MIN);
        let witnesses = find_witnesses(&self.upstreams, now, self.settings.lag_max, fresh_for);
        let elected = elect(&self.upstreams, &witnesses, self.last_served);
        self.awaits_head = elected.is_some_and(|elected| self.awaits_first_polls(&elected, now));
        match elected {
            Some(_) if self.awaits_head => {}
            Some(elected) if self.may_serve(&elected, &witnesses, input) => {
                self.serve_head(now, &elected, &mut step.events);
            }
            // The last served head stays until there is evidence for the reorg.
            Some(_) => self.set_head(self.last_served),
            None => self.set_head(None),
        }
        let is_poll = matches!(input, Input::Poll(_));
        self.update_finalized(&witnesses.upstreams, is_poll, &mut step.events);
        self.detect_stall(now, &mut step.events);
        let views = self.build_upstream_views(&mut step.events);
        step.changed = old_state != state(self) || views != self.views;
        self.views = views;
    }

    /// Serves the elected head: moves the served chain to the branch of this head, and records a
    /// reorg if blocks of the served chain were dropped.
    fn serve_head(&mut self, now: Duration, elected: &Elected, events: &mut Vec<HeadEvent>) {
        let Elected { head, upstream, .. } = *elected;
        let branch = &self.upstreams[upstream].branch;
        let former_head = self.last_served;
        let fork = self.canonical.find_fork(branch, head.number);
        let mut dropped_above = None;
        let mut is_deeper_than_known = false;
        match fork {
            Some(fork) => {
                if fork < head.number && self.canonical.get(fork + 1).is_some() {
                    dropped_above = Some(fork);
                    self.canonical.truncate_above(fork);
                }
                for number in fork + 1..=head.number {
                    if let Some(hash) = branch.get(number) {
                        self.canonical.push(hash);
                    }
                }
            }
            None => {
                // The branches have no known block in common. If they have blocks at the same
                // heights, the reorg is deeper than all known blocks, and no cached response is
                // certain. Otherwise all blocks above the finalized height count as dropped.
                let bottom = self.canonical.bottom();
                let is_replaced = bottom <= head.number
                    && self.canonical.top().is_some_and(|top| branch.bottom() <= top);
                dropped_above = match is_replaced {
                    true => Some(bottom.saturating_sub(1)),
                    false => self.canonical.top().map(|_| self.settled.unwrap_or(0)),
                };
                is_deeper_than_known = is_replaced;
                self.canonical = branch.clone();
                self.canonical.truncate_above(head.number);
            }
        }
        self.canonical.trim(self.settings.window);
        if let (Some(fork), Some(former)) = (dropped_above, former_head) {
            self.mark_reorg(if is_deeper_than_known { 0 } else { fork });
            let depth = former.number.saturating_sub(fork);
            events.push(HeadEvent::Reorg { fork, depth });
            self.lower_finalized(fork, is_deeper_than_known, events);
        }
        self.measure_block_time(now, former_head, head);
        self.last_served = Some(head);
        self.set_head(Some(head));
    }

    fn measure_block_time(&mut self, now: Duration, former: Option<Head>, head: Head) {
        if former == Some(head) {
            return;
        }
        if let Some(former) = former
            && let Ok(blocks @ 1..) = u32::try_from(head.number.saturating_sub(former.number))
        {
            let time_per_block = now.saturating_sub(self.head_since) / blocks;
            // The newest head has a weight of one eighth, so one late block has little effect.
            self.block_time = ((self.block_time * 7 + time_per_block.min(BLOCK_TIME_MAX)) / 8)
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
}
