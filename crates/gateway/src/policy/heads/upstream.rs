//! The known blocks of one upstream, and the walk back that links a new head to them.
//!
//! This file does not compare upstreams and elects no head (see `heads`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::policy::heads::branch::Branch;
use crate::policy::heads::{Hash, HeadPoll, HeaderRequest};

/// Maximum number of headers requested from an upstream at once. This number fills the usual gap
/// between two polls in one round trip, and is small compared with a provider's rate limit.
pub const HEADER_REQUESTS_MAX: u64 = 32;

/// Time after which a missing header is requested again. It is well over a slow upstream's round
/// trip.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of blocks fetched below the first head, to measure the depth of a reorg right after the
/// start. It is twice the deepest reorg of Ethereum since the Merge.
pub const FILL_BLOCKS: usize = 16;

/// The known chain of one upstream, from its polls and walks.
#[derive(Debug, Default)]
pub(super) struct UpstreamChain {
    /// Blocks that the upstream has reported. After its head falls, the branch may reach above
    /// `head`. A different block at one of these heights is then recognised as a branch change.
    pub(super) branch: Branch,
    /// Height of the linked head.
    pub(super) head: Option<u64>,
    /// The blocks that the last branch change dropped.
    dropped: Vec<Hash>,
    /// Time at which the head last rose by linked blocks.
    pub(super) advanced_at: Option<Duration>,
    /// Time at which the head last changed.
    pub(super) head_changed_at: Duration,
    /// Finalized height that the upstream last reported.
    pub(super) finalized: Option<u64>,
    /// Highest finalized height that the upstream has reported.
    pub(super) finalized_max: Option<u64>,
    /// Consecutive missed polls.
    pub(super) missed_polls: u32,
    /// True if the head does not count in elections.
    pub(super) excluded: bool,
    pub(super) claim: Option<Claim>,
    /// Consecutive polls that began or ended with unlinked blocks.
    unlinked_polls: u32,
    /// The height requested next to extend a branch of fewer than [`FILL_BLOCKS`] blocks downwards.
    fill: Option<u64>,
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

/// A walk back from a new head: its verified blocks, which are not linked to the branch yet.
#[derive(Debug)]
struct Walk {
    /// Hashes from the lowest verified block up to the new head.
    hashes: VecDeque<Hash>,
    top: u64,
    /// Parent of the lowest verified block.
    parent: Hash,
    /// Headers received for lower heights, not yet verified: (hash, parent).
    headers: BTreeMap<u64, (Hash, Hash)>,
    /// Heights of the outstanding header requests.
    requested: BTreeSet<u64>,
    requested_at: Duration,
    /// Number of headers in the next request below the top of the branch.
    burst: u64,
}

/// Result of linking a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkResult {
    /// The branch did not change, or headers are missing.
    Unchanged,
    /// The head moved along its branch.
    Advanced,
    /// The blocks above `fork` were replaced; the highest dropped one was `top`.
    Forked { fork: u64, top: u64 },
    /// The new blocks do not connect to the known branch.
    Disconnected { top: u64 },
}

impl UpstreamChain {
    /// Returns true if the upstream has this block at or below its head.
    pub(super) fn holds(&self, number: u64, hash: Hash) -> bool {
        self.head.is_some_and(|head| head >= number) && self.branch.get(number) == Some(hash)
    }

    /// Returns the hash of its head.
    pub(super) fn head_hash(&self) -> Option<Hash> {
        self.branch.get(self.head?)
    }

    /// Returns true if the last poll matches the known blocks. The upstream's branch is unknown
    /// while it has a claim, or while a walk lasts beyond the next poll.
    pub(super) fn is_explained(&self) -> bool {
        self.claim.is_none() && self.unlinked_polls < 2
    }

    /// Returns true if the upstream's linked head is the head that it last reported.
    pub(super) fn is_linked(&self) -> bool {
        self.claim.is_none() && self.unlinked_polls == 0
    }

    /// Returns true if its last branch change dropped this block.
    pub(super) fn has_dropped(&self, hash: Hash) -> bool {
        self.dropped.contains(&hash)
    }

    /// Links a plausible head to the branch, or starts a walk, which may then request headers.
    pub(super) fn link(&mut self, now: Duration, poll: &HeadPoll, window: usize) -> LinkResult {
        let number = poll.number;
        if self.branch.top().is_none() {
            self.restart(now, number, [poll.hash], poll.parent, window);
            self.fill = Some(self.branch.bottom());
            return LinkResult::Advanced;
        }
        if self.branch.get(number) == Some(poll.hash) {
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

    /// Returns the height of the next header needed to extend a short branch downwards.
    pub(super) fn fill_height(&self) -> Option<u64> {
        self.fill.filter(|&number| number > 0)
    }

    /// Ends the downward extension once the branch is deep enough. Otherwise continues it at the
    /// lowest block.
    pub(super) fn end_fill_if_deep(&mut self) {
        let is_deep = self.branch.hashes().len() >= FILL_BLOCKS;
        self.fill = (!is_deep).then(|| self.branch.bottom());
    }

    /// Records a requested header.
    pub(super) fn record_header(&mut self, number: u64, hash: Hash, parent: Hash, window: usize) {
        if self.fill == Some(number) {
            let is_linked = number == self.branch.bottom() && self.branch.get(number) == Some(hash);
            self.fill = None;
            if is_linked && self.branch.hashes().len() < window {
                self.branch.push_below(parent);
                self.fill = Some(self.branch.bottom());
                self.end_fill_if_deep();
            }
        }
        if let Some(walk) = &mut self.walk {
            walk.requested.remove(&number);
            if number < walk.top && walk.headers.len() < window {
                walk.headers.insert(number, (hash, parent));
            }
        }
    }

    /// Forgets the outstanding requests, so that they can be sent again.
    pub(super) fn forget_requests(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.requested.clear();
        }
    }

    /// Continues the walk as far as the known headers allow, and requests missing ones. `known`
    /// returns the parent of a block from the branches of other upstreams.
    pub(super) fn walk(
        &mut self,
        now: Duration,
        window: usize,
        known: impl Fn(u64, Hash) -> Option<Hash>,
        mut request: impl FnMut(u64),
    ) -> LinkResult {
        let Some(walk) = &mut self.walk else {
            return LinkResult::Unchanged;
        };
        let Some(top) = self.branch.top() else {
            return LinkResult::Unchanged;
        };
        loop {
            let lowest = walk.top + 1 - walk.hashes.len() as u64;
            if lowest > 0 && self.branch.get(lowest - 1) == Some(walk.parent) {
                return self.link_at(now, lowest - 1, window);
            }
            let out_of_reach = lowest <= self.branch.bottom()
                || walk.hashes.len() >= window
                || lowest - top.min(lowest) > window as u64;
            if out_of_reach {
                return self.replace_branch(now, lowest, window);
            }
            let below = lowest - 1;
            let parent = match walk.headers.remove(&below) {
                Some((hash, parent)) if hash == walk.parent => Some(parent),
                Some(_) => {
                    // The upstream changed its branch between two responses, so the next poll
                    // starts again.
                    self.walk = None;
                    return LinkResult::Unchanged;
                }
                None => known(below, walk.parent),
            };
            let Some(parent) = parent else {
                walk.request(now, below, top, self.branch.bottom(), &mut request);
                return LinkResult::Unchanged;
            };
            walk.hashes.push_front(walk.parent);
            walk.parent = parent;
        }
    }

    /// Links the walk to the branch at `fork`.
    fn link_at(&mut self, now: Duration, fork: u64, window: usize) -> LinkResult {
        let Some(walk) = self.walk.take() else {
            return LinkResult::Unchanged;
        };
        let old_top = self.branch.top().filter(|&top| top > fork);
        if let Some(top) = old_top {
            self.dropped = (fork + 1..=top).filter_map(|number| self.branch.get(number)).collect();
        }
        self.branch.truncate_above(fork);
        for hash in walk.hashes {
            self.branch.push(hash);
        }
        self.branch.trim(window);
        self.set_head(now, walk.top);
        match old_top {
            Some(top) => LinkResult::Forked { fork, top },
            None => LinkResult::Advanced,
        }
    }

    /// Replaces the branch, because the walk and the branch have no known block in common.
    fn replace_branch(&mut self, now: Duration, lowest: u64, window: usize) -> LinkResult {
        let Some(walk) = self.walk.take() else {
            return LinkResult::Unchanged;
        };
        let top = self.branch.top().unwrap_or(0);
        self.restart(now, lowest, walk.hashes, walk.parent, window);
        LinkResult::Disconnected { top }
    }

    fn restart(
        &mut self,
        now: Duration,
        lowest: u64,
        hashes: impl IntoIterator<Item = Hash>,
        parent: Hash,
        window: usize,
    ) {
        match lowest.checked_sub(1) {
            Some(below) => self.branch.restart(below, std::iter::once(parent).chain(hashes)),
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
            burst: 1,
        }
    }

    /// Returns the headers of an abandoned walk, so that a slow upstream need not start again at
    /// each poll.
    fn into_headers(self) -> BTreeMap<u64, (Hash, Hash)> {
        let lowest = self.top + 1 - self.hashes.len() as u64;
        let mut headers = self.headers;
        let mut parent = self.parent;
        for (number, hash) in (lowest..).zip(self.hashes) {
            headers.insert(number, (hash, parent));
            parent = hash;
        }
        headers
    }

    /// Requests the header at `below` and the headers under it, down to the top of the branch.
    /// Below that top, each request is twice as large as the last, because the depth of the fork is
    /// unknown.
    fn request(
        &mut self,
        now: Duration,
        below: u64,
        top: u64,
        bottom: u64,
        request: &mut impl FnMut(u64),
    ) {
        if self.requested.contains(&below) && now.saturating_sub(self.requested_at) < HEADER_TIMEOUT
        {
            return;
        }
        let count = if below > top {
            below - top
        } else {
            self.burst = (self.burst * 2).min(HEADER_REQUESTS_MAX);
            self.burst / 2
        };
        let lowest = (below + 1).saturating_sub(count.min(HEADER_REQUESTS_MAX)).max(bottom);
        self.requested.clear();
        self.requested_at = now;
        for number in (lowest..=below).rev() {
            if !self.headers.contains_key(&number) {
                self.requested.insert(number);
                request(number);
            }
        }
    }
}

/// Returns a callback that collects header requests.
pub(super) fn request_collector(
    upstream: usize,
    requests: &mut Vec<HeaderRequest>,
) -> impl FnMut(u64) + '_ {
    move |number| requests.push(HeaderRequest { upstream, number })
}
