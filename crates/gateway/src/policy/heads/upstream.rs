//! The known blocks of one upstream (its *branch*), and the *walk* from a new head down to the
//! branch. A walk follows the parent hashes of headers that it requests from the upstream.
//!
//! A block is *linked* once its chain of parents reaches the branch. The *fill* extends a short
//! branch downwards after the start. `heads` compares upstreams and elects the head.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::policy::branch::Branch;
use crate::policy::branch::Hash;
use crate::policy::heads::HeadPoll;

/// Maximum number of headers requested from an upstream at once. This number fills the usual gap
/// between two polls in one round trip, and is small compared with a provider's rate limit.
const HEADER_REQUESTS_MAX: u64 = 32;

/// Time after which a missing header is requested again. It is well over a slow upstream's round
/// trip.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of blocks fetched below the first head. With them, the depth of a reorg right after the
/// start is known. The reorg of Ethereum's beacon chain on 25 May 2022 dropped seven blocks; this
/// number is more than twice as large.
pub(super) const FILL_BLOCKS: usize = 16;

/// The known chain of one upstream, from its polls and walks.
#[derive(Debug, Default)]
pub(super) struct UpstreamChain {
    /// Blocks that the upstream has reported. If the upstream's head falls, the branch keeps the
    /// blocks above `head`. A different block at one of these heights is then recognised as a
    /// branch change.
    pub(super) branch: Branch,
    /// Height of the linked head; `None` before the first poll.
    pub(super) head: Option<u64>,
    /// The blocks that the last branch change dropped.
    dropped: Vec<Hash>,
    /// Time at which the head last rose by linked blocks; `None` until it first rises.
    pub(super) advanced_at: Option<Duration>,
    /// Time at which the head last changed.
    pub(super) head_changed_at: Duration,
    /// Height of the head that the upstream last reported, linked or not.
    pub(super) reported: Option<u64>,
    /// True if the upstream says that it is syncing.
    pub(super) syncing: bool,
    /// Finalized height that the upstream last reported, at a poll whose head was linked. Before the
    /// head is linked, the height may belong to another branch.
    pub(super) finalized: Option<u64>,
    /// Finalized height reported with a head that is not linked yet.
    unlinked_finalized: Option<u64>,
    /// Highest finalized height that the upstream has reported.
    pub(super) finalized_max: Option<u64>,
    /// Number of consecutive missed polls.
    pub(super) missed_polls: u32,
    /// True if the head does not count in elections.
    pub(super) excluded: bool,
    /// The reported head that awaits confirmation, if there is one.
    pub(super) claim: Option<Claim>,
    /// Number of consecutive polls whose head could not be linked to the branch at once.
    unlinked_polls: u32,
    /// Height of the header that the fill requests next; `None` while no fill is in progress. It is
    /// below the lowest height of the branch if the upstream has no blocks in between.
    next_fill: Option<u64>,
    /// Headers received for the fill, before those above them. `None` for a height at which the
    /// upstream has no block.
    fill_headers: BTreeMap<u64, Option<Header>>,
    /// The lowest height whose header the fill has requested; `None` without such a request.
    fill_requested: Option<u64>,
    /// The walk from the reported head; `None` once the walk is linked to the branch or abandoned.
    walk: Option<Walk>,
}

/// A reported head that is too high to be served without confirmation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The reported height.
    pub(super) number: u64,
    /// Number of consecutive polls that reported at least this height.
    pub(super) polls: u32,
}

/// The hashes of a header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) hash: Hash,
    pub(super) parent: Hash,
}

/// A walk back from a new head: its verified blocks, which are not linked to the branch yet.
#[derive(Debug)]
struct Walk {
    /// Hashes from the lowest walked height up to the new head, as in a [`Branch`]. The lowest
    /// heights have the hash `parent` if the upstream has no blocks there. They are verified by the
    /// header of `parent`, which may prove that the upstream only lacked the blocks.
    hashes: VecDeque<Hash>,
    /// Height of the new head.
    top: u64,
    /// Parent of the lowest verified block.
    parent: Hash,
    /// Headers received for lower heights, not yet verified. `None` for a height at which the
    /// upstream has no block.
    headers: BTreeMap<u64, Option<Header>>,
    /// Heights of the outstanding header requests.
    requested: BTreeSet<u64>,
    /// Time of the last request.
    requested_at: Duration,
    /// Number of headers in the next request that starts at or below the top of the branch. It
    /// doubles with each such request, up to half of [`HEADER_REQUESTS_MAX`].
    next_request_len: u64,
}

/// Result of linking a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkResult {
    /// The branch did not change, or headers are missing.
    Unchanged,
    /// The head moved along its branch.
    Advanced,
    /// The blocks above `fork` were replaced. The highest dropped block was `top`.
    Forked { fork: u64, top: u64 },
    /// The new blocks do not connect to the known branch, whose highest block was `top`. `replaced`
    /// is true if they are at heights of the branch, so that the fork is below all known blocks.
    Disconnected { top: u64, replaced: bool },
}

impl UpstreamChain {
    /// Returns true if the upstream has this block at or below its head.
    pub(super) fn holds(&self, number: u64, hash: Hash) -> bool {
        self.head.is_some_and(|head| head >= number) && self.branch.get(number) == Some(hash)
    }

    /// Returns the hash of the upstream's head; `None` before the first poll.
    pub(super) fn head_hash(&self) -> Option<Hash> {
        self.branch.get(self.head?)
    }

    /// Returns true if the branch is up to date: the upstream has no claim, and its head was linked
    /// at one of the last two polls.
    pub(super) fn is_branch_known(&self) -> bool {
        self.claim.is_none() && self.unlinked_polls < 2
    }

    /// Returns true if the upstream's linked head is the head that it last reported.
    pub(super) fn is_linked(&self) -> bool {
        self.claim.is_none() && self.unlinked_polls == 0
    }

    /// Returns how much the upstream's head says about the chain: 0 for an upstream with only block
    /// 0, 1 for an upstream that says that it is syncing, and 2 for any other upstream.
    pub(super) fn sync_rank(&self) -> u8 {
        match (self.head, self.syncing) {
            (Some(0), _) => 0,
            (_, true) => 1,
            (_, false) => 2,
        }
    }

    /// Returns true if no poll of the upstream has succeeded or failed yet.
    pub(super) fn is_unpolled(&self) -> bool {
        self.head.is_none() && self.claim.is_none() && self.missed_polls == 0 && !self.excluded
    }

    /// Stores the finalized height of a poll until the poll's head is linked.
    pub(super) fn report_finalized(&mut self, height: u64) {
        self.unlinked_finalized = Some(height);
    }

    /// Accepts the reported finalized height if the reported head is linked.
    pub(super) fn accept_finalized(&mut self) {
        if self.is_linked() && self.head.is_some() {
            let reported = self.unlinked_finalized.take();
            self.finalized = reported.or(self.finalized);
            self.finalized_max = self.finalized_max.max(reported);
        }
    }

    /// Returns true if the upstream's last branch change dropped this block.
    pub(super) fn has_dropped(&self, hash: Hash) -> bool {
        self.dropped.contains(&hash)
    }

    /// Processes a plausible head. The first head starts the branch. A head that is already on the
    /// branch becomes the linked head at once. For any other head, a walk starts or is extended;
    /// [`UpstreamChain::continue_walk`] then links the head. The branch keeps its `window` highest
    /// blocks.
    pub(super) fn link(&mut self, now: Duration, poll: &HeadPoll, window: usize) -> LinkResult {
        let number = poll.number;
        if self.branch.top().is_none() {
            self.restart(now, number, [poll.hash], poll.parent, window);
            self.next_fill = Some(self.branch.bottom());
            self.forget_requests();
            return LinkResult::Advanced;
        }
        if self.branch.block_at(number) == Some(poll.hash) {
            self.walk = None;
            let has_moved = self.head != Some(number);
            self.set_head(now, number);
            return if has_moved { LinkResult::Advanced } else { LinkResult::Unchanged };
        }
        match &mut self.walk {
            Some(walk) if walk.top == number && walk.hashes.back() == Some(&poll.hash) => {}
            Some(walk) if walk.top + 1 == number && walk.hashes.back() == Some(&poll.parent) => {
                walk.hashes.push_back(poll.hash);
                walk.top = number;
            }
            _ => self.walk = Some(Walk::new(poll, self.walk.take())),
        }
        self.unlinked_polls = self.unlinked_polls.saturating_add(1);
        LinkResult::Unchanged
    }

    /// Returns the height of the next header that the fill needs. Returns `None` if no fill is in
    /// progress, or the fill has reached the first block of the chain.
    pub(super) fn fill_height(&self) -> Option<u64> {
        self.next_fill.filter(|&number| number > 0)
    }

    /// Ends the fill if the branch is deep enough. Otherwise continues it at the lowest height, or
    /// below it if the upstream has no blocks there.
    pub(super) fn end_fill_if_deep(&mut self) {
        let is_deep = self.branch.len() >= FILL_BLOCKS;
        let bottom = self.branch.bottom();
        self.next_fill = (!is_deep).then(|| self.next_fill.map_or(bottom, |next| next.min(bottom)));
    }

    /// Records the header at a requested height; `None` if the upstream has no block there.
    pub(super) fn record_header(&mut self, number: u64, header: Option<Header>, window: usize) {
        if self.next_fill.is_some_and(|next| number <= next && next - number < FILL_BLOCKS as u64) {
            self.fill_headers.insert(number, header);
        }
        while let Some(next) = self.next_fill
            && let Some(header) = self.fill_headers.remove(&next)
        {
            self.fill(next, header, window);
        }
        if let Some(walk) = &mut self.walk {
            walk.requested.remove(&number);
            if number < walk.top && walk.headers.len() < window {
                walk.headers.insert(number, header);
            }
        }
    }

    /// Continues the fill with the header at `number`. The lowest hash of the branch belongs to the
    /// newest block at or below the lowest height, so its header may be further down.
    fn fill(&mut self, number: u64, header: Option<Header>, window: usize) {
        self.next_fill = None;
        let bottom = self.branch.bottom();
        let Some(lowest) = self.branch.get(bottom).filter(|_| self.branch.len() < window) else {
            return;
        };
        match header {
            Some(header) if header.hash == lowest => {
                for _ in number..bottom {
                    self.branch.push_below(lowest);
                }
                self.branch.push_below(header.parent);
                self.end_fill_if_deep();
            }
            None if bottom.saturating_sub(number) < FILL_BLOCKS as u64 => {
                self.next_fill = number.checked_sub(1);
            }
            _ => {}
        }
    }

    /// Requests the headers that the fill needs, except those that it has requested already.
    pub(super) fn request_fill(&mut self, mut request: impl FnMut(u64)) {
        let Some(next) = self.fill_height() else {
            self.fill_headers.clear();
            return;
        };
        let missing = FILL_BLOCKS.saturating_sub(self.branch.len()) as u64;
        let lowest = (next + 1).saturating_sub(missing).max(1);
        let requested = self.fill_requested.unwrap_or(u64::MAX);
        for number in (lowest..=next).rev().filter(|number| *number < requested) {
            if !self.fill_headers.contains_key(&number) {
                request(number);
            }
            self.fill_requested = Some(number);
        }
    }

    /// Forgets the outstanding requests, so that they can be sent again.
    pub(super) fn forget_requests(&mut self) {
        self.fill_requested = None;
        if let Some(walk) = &mut self.walk {
            walk.requested.clear();
        }
    }

    /// Continues the walk as far as the known headers allow, and requests missing ones.
    /// `find_parent` returns the parent of a block from the branches of other upstreams. `request`
    /// requests the header at a height. If the walk cannot reach the branch within `window` blocks,
    /// or has passed the branch's lowest block, the blocks of the walk replace the branch.
    pub(super) fn continue_walk(
        &mut self,
        now: Duration,
        window: usize,
        find_parent: impl Fn(u64, Hash) -> Option<Hash>,
        mut request: impl FnMut(u64),
    ) -> LinkResult {
        let (Some(mut walk), Some(branch_top)) = (self.walk.take(), self.branch.top()) else {
            return LinkResult::Unchanged;
        };
        loop {
            let lowest = walk.lowest();
            if lowest > 0 && self.branch.get(lowest - 1) == Some(walk.parent) {
                return self.link_at(now, lowest - 1, walk, window);
            }
            let blocks_above_branch = lowest.saturating_sub(branch_top);
            let is_out_of_reach = lowest <= self.branch.bottom()
                || walk.hashes.len() >= window
                || blocks_above_branch > window as u64;
            if is_out_of_reach {
                walk.drop_unverified();
                let replaced = lowest <= branch_top && walk.top >= self.branch.bottom();
                self.restart(now, walk.lowest(), walk.hashes, walk.parent, window);
                return LinkResult::Disconnected { top: branch_top, replaced };
            }
            let next_height = lowest - 1;
            let parent = match walk.headers.remove(&next_height) {
                Some(Some(header)) if header.hash == walk.parent => Some(header.parent),
                // The upstream has the missing blocks by now, so the next poll requests them again.
                Some(Some(header)) if walk.drop_unverified() => {
                    walk.headers.insert(next_height, Some(header));
                    self.walk = Some(walk);
                    return LinkResult::Unchanged;
                }
                // The upstream changed its branch between two responses, so the next poll starts
                // another walk.
                Some(Some(_)) => return LinkResult::Unchanged,
                // The parent is a block further down. Its height is known if it is on the branch.
                Some(None) => {
                    let parent_height = self.branch.find_number(walk.parent).unwrap_or(next_height);
                    for _ in parent_height + 1..next_height {
                        walk.hashes.push_front(walk.parent);
                    }
                    Some(walk.parent)
                }
                None => find_parent(next_height, walk.parent),
            };
            let Some(parent) = parent else {
                walk.request(now, next_height, branch_top, self.branch.bottom(), &mut request);
                self.walk = Some(walk);
                return LinkResult::Unchanged;
            };
            walk.hashes.push_front(walk.parent);
            walk.parent = parent;
        }
    }

    /// Links the walk to the branch at `fork`.
    fn link_at(&mut self, now: Duration, fork: u64, walk: Walk, window: usize) -> LinkResult {
        let dropped_top = self.branch.top().filter(|&top| top > fork);
        if let Some(top) = dropped_top {
            self.dropped = (fork + 1..=top).filter_map(|number| self.branch.get(number)).collect();
        }
        self.branch.truncate_above(fork);
        for hash in walk.hashes {
            self.branch.push(hash);
        }
        self.branch.trim(window);
        self.set_head(now, walk.top);
        match dropped_top {
            Some(top) => LinkResult::Forked { fork, top },
            None => LinkResult::Advanced,
        }
    }

    /// Replaces the branch by `parent` and the blocks above it. `lowest` is the height of the first
    /// block in `hashes`.
    fn restart(
        &mut self,
        now: Duration,
        lowest: u64,
        hashes: impl IntoIterator<Item = Hash>,
        parent: Hash,
        window: usize,
    ) {
        match lowest.checked_sub(1) {
            Some(parent_height) => {
                self.branch.restart(parent_height, std::iter::once(parent).chain(hashes))
            }
            None => self.branch.restart(0, hashes),
        }
        self.branch.trim(window);
        self.walk = None;
        if let Some(top) = self.branch.top() {
            // A replaced branch does not count as a rise, because its blocks are not linked to the
            // old ones.
            let advanced_at = self.advanced_at;
            self.set_head(now, top);
            self.advanced_at = advanced_at;
        }
    }

    /// Sets the linked head and the times at which it rose and changed.
    fn set_head(&mut self, now: Duration, number: u64) {
        if self.head.is_none_or(|head| number > head) {
            self.advanced_at = Some(now);
        }
        if self.head != Some(number) {
            self.head_changed_at = now;
        }
        self.head = Some(number);
        self.unlinked_polls = 0;
    }
}

impl Walk {
    fn new(poll: &HeadPoll, previous: Option<Walk>) -> Self {
        Self {
            hashes: VecDeque::from([poll.hash]),
            top: poll.number,
            parent: poll.parent,
            headers: previous.map(Walk::into_headers).unwrap_or_default(),
            requested: BTreeSet::new(),
            requested_at: Duration::ZERO,
            next_request_len: 1,
        }
    }

    /// Returns the height of the lowest verified block.
    fn lowest(&self) -> u64 {
        self.top + 1 - self.hashes.len() as u64
    }

    /// Drops the lowest heights that have the hash `parent`. Returns true if there were any.
    fn drop_unverified(&mut self) -> bool {
        let previous = self.hashes.len();
        while self.hashes.front() == Some(&self.parent) {
            self.hashes.pop_front();
        }
        self.hashes.len() < previous
    }

    /// Returns the headers of an abandoned walk. The next walk reuses them, so that a slow upstream
    /// can reach its branch although each poll starts another walk.
    fn into_headers(mut self) -> BTreeMap<u64, Option<Header>> {
        self.drop_unverified();
        let lowest = self.lowest();
        let mut headers = self.headers;
        headers.retain(|_, header| header.is_some());
        let mut parent = self.parent;
        for (number, hash) in (lowest..).zip(self.hashes) {
            headers.insert(number, Some(Header { hash, parent }));
            parent = hash;
        }
        headers
    }

    /// Requests the header at `height` and headers below it. Above the branch, the request reaches
    /// down to the top of the branch. At or below the top the depth of the fork is unknown, so each
    /// request is twice as large as the previous one. Sends nothing while the response to an
    /// earlier request for this header may still arrive.
    fn request(
        &mut self,
        now: Duration,
        height: u64,
        branch_top: u64,
        branch_bottom: u64,
        request: &mut impl FnMut(u64),
    ) {
        if self.requested.contains(&height)
            && now.saturating_sub(self.requested_at) < HEADER_TIMEOUT
        {
            return;
        }
        let count = if height > branch_top {
            height - branch_top
        } else {
            // The maximum applies to the doubled value, so this request has at most half of the
            // maximum.
            self.next_request_len = (self.next_request_len * 2).min(HEADER_REQUESTS_MAX);
            self.next_request_len / 2
        };
        let count = count.min(HEADER_REQUESTS_MAX);
        let lowest = (height + 1).saturating_sub(count).max(branch_bottom);
        self.requested.clear();
        self.requested_at = now;
        for number in (lowest..=height).rev() {
            if !self.headers.contains_key(&number) {
                self.requested.insert(number);
                request(number);
            }
        }
    }
}
