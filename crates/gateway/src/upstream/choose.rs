//! Chooses the upstream of the next attempt. Waits briefly if no upstream can be chosen now.
//!
//! The *head* of an upstream is its newest block. A chain's *view* is a snapshot of the heads of
//! its upstreams. The *candidates* of a group are its upstreams that may be called now
//! (`topology.rs`). An operator *cordons* an upstream to take it out of rotation. A *sticky*
//! method, such as a read of a filter, must reach the upstream that created the filter.
//! `balance.rs` has the balancer. `policy/choose.rs` and `policy/health.rs` have the decisions.
//! `upstreams.now()` and `upstreams.instant()` return the time of the last `upstreams.tick()`.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::call::UpstreamRequest;
use crate::call::failure::{Failure, FailureKind};
use crate::policy::avoided_methods::{Unsupported, is_refused_at_once};
use crate::policy::cacheable::CacheRule;
use crate::policy::complete::is_depth_proven;
use crate::policy::heads::{ChainView, UpstreamView};
use crate::policy::health::HealthState;
use crate::upstream::thread::Upstreams;
use crate::upstream::topology::Candidates;

/// Interval at which a waiting call looks for an upstream again.
const UPSTREAM_WAIT_STEP: Duration = Duration::from_millis(20);
/// Longest wait for an upstream to reach the requested block. Within this time a few polls of heads
/// show which upstreams have stopped responding.
const UPSTREAM_WAIT_MAX: Duration = Duration::from_secs(3);

/// Longest wait for the end of a pause if all upstreams are paused. An upstream is paused after it
/// has rejected a call because of its rate limit.
const PAUSE_WAIT_MAX: Duration = Duration::from_millis(100);

/// Whether a call may wait for an upstream that has the requested block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamWait {
    /// No upstream has responded yet, so the call waits up to [`UPSTREAM_WAIT_MAX`].
    Long,
    /// The call already has an error to return. It waits only if an untried upstream is at most the
    /// chain's `lag_max` blocks behind the head, because such an upstream reaches the block soon.
    IfNearHead,
    /// The call already has a result to return, so it does not wait.
    None,
}

/// Why no upstream can be chosen now.
#[derive(Debug, Clone, Copy)]
pub(super) enum NoUpstream {
    /// Some upstreams can be called, but they have not reached the requested block.
    Behind,
    /// All upstreams are paused. Holds the end of the first pause, as time since the process
    /// started.
    Paused(Duration),
    /// All upstreams were tried, or none supports the method.
    Exhausted,
}

/// Chooses the next upstream of a call.
pub(super) struct Chooser<'a> {
    pub(super) upstreams: &'a Upstreams,
    pub(super) request: &'a UpstreamRequest<'a>,
    /// Indices of the upstreams that were called before.
    pub(super) tried: &'a [usize],
}

impl Chooser<'_> {
    /// Chooses an upstream. If no upstream can be chosen now, waits until an upstream has reached
    /// the requested block or a short pause has ended. `allowed_wait` limits the wait for the
    /// block.
    pub(super) async fn choose_or_wait(
        &self,
        allowed_wait: UpstreamWait,
    ) -> Result<usize, Failure> {
        match self.choose_now() {
            Err(reason) if self.is_worth_waiting(reason, allowed_wait) => {
                Box::pin(self.wait(allowed_wait)).await
            }
            chosen => chosen.map_err(|reason| self.failure(reason)),
        }
    }

    /// Chooses an upstream without waiting. If no upstream has the requested block, chooses any
    /// upstream that responds to polls and was not tried.
    pub(super) fn choose_regardless_of_head(&self) -> Result<usize, Failure> {
        self.choose_now().or_else(|reason| {
            let (topology, request) = (&self.upstreams.topology, self.request);
            let view = topology.chains[request.chain].view.load();
            let is_live = |upstream: &usize| {
                let state = &topology.upstreams[*upstream];
                !self.tried.contains(upstream)
                    && state.is_in_rotation(self.upstreams.now())
                    && state.in_view(&view).is_some_and(|view| view.live)
            };
            let mut members = topology.config.groups[request.group].upstreams.iter().copied();
            members.find(is_live).ok_or_else(|| self.failure(reason))
        })
    }

    /// Tries to choose an upstream at intervals, until an upstream can be chosen or the wait is
    /// over.
    async fn wait(&self, allowed_wait: UpstreamWait) -> Result<usize, Failure> {
        let upstreams = self.upstreams;
        let wait_until = self.request.deadline.min(upstreams.instant() + UPSTREAM_WAIT_MAX);
        // While the call waits, another call may use its permit.
        let _lent_permit = upstreams.permits.lend(self.request);
        loop {
            tokio::time::sleep(UPSTREAM_WAIT_STEP).await;
            upstreams.tick();
            match self.choose_now() {
                Err(reason)
                    if upstreams.instant() < wait_until
                        && self.is_worth_waiting(reason, allowed_wait) => {}
                chosen => return chosen.map_err(|reason| self.failure(reason)),
            }
        }
    }

    /// Returns true if an upstream may be available soon enough to wait for it.
    fn is_worth_waiting(&self, reason: NoUpstream, allowed_wait: UpstreamWait) -> bool {
        let (upstreams, request) = (self.upstreams, self.request);
        match (reason, allowed_wait) {
            (NoUpstream::Paused(until), _) => {
                let remaining = until.saturating_sub(upstreams.now());
                remaining <= PAUSE_WAIT_MAX && upstreams.instant() + remaining < request.deadline
            }
            (NoUpstream::Exhausted, _) | (NoUpstream::Behind, UpstreamWait::None) => false,
            (NoUpstream::Behind, UpstreamWait::Long) => true,
            (NoUpstream::Behind, UpstreamWait::IfNearHead) => {
                let now = upstreams.now();
                let config = &upstreams.topology.config;
                let lag_max = config.chains[request.chain].lag_max;
                let view = upstreams.topology.chains[request.chain].view.load();
                let mut members = config.groups[request.group].upstreams.iter();
                members.any(|upstream| {
                    let state = &upstreams.topology.upstreams[*upstream];
                    // The check ignores the branch (fork) of the upstream, because one of two
                    // branches is soon abandoned.
                    let follows_chain = |view: UpstreamView| view.live && view.lag <= lag_max;
                    !self.tried.contains(upstream)
                        && state.is_in_rotation(now)
                        && state.in_view(&view).is_some_and(follows_chain)
                })
            }
        }
    }

    /// Returns the failure of a call for which no upstream can be chosen.
    fn failure(&self, reason: NoUpstream) -> Failure {
        match reason {
            NoUpstream::Paused(until) => {
                let retry_after = Some(until.saturating_sub(self.upstreams.now()));
                Failure { retry_after, ..Failure::ours(FailureKind::RateLimited) }
            }
            NoUpstream::Behind | NoUpstream::Exhausted => Failure::ours(FailureKind::NoUpstream),
        }
    }

    /// Returns false if the upstream has recently rejected the method, or calls of it.
    pub(super) fn supports(&self, upstream: usize) -> bool {
        let upstreams = self.upstreams;
        let avoided_methods = upstreams.topology.upstreams[upstream].avoided_methods.lock();
        !avoided_methods.contains(upstreams.now(), &self.request.method_name)
    }

    /// Returns true if an upstream has the block that the call needs. A `min_head` of 0 means that
    /// the call needs no particular block.
    fn has_block(&self, view: &ChainView, upstream: usize) -> bool {
        let min_head = self.request.caching.min_head;
        let upstream_view = self.upstreams.topology.upstreams[upstream].in_view(view);
        min_head == 0
            || upstream_view.is_some_and(|view| {
                // A consistent upstream has the blocks of the served chain. The served chain ends
                // with the block that clients get as `latest`.
                view.consistent && view.head.is_some_and(|head| head >= min_head)
            })
    }

    /// Returns the raw error of an upstream that does not support the method, if no upstream that may
    /// be called supports it. Also returns the index of the upstream. Returns `None` if an upstream
    /// should be asked.
    pub(super) fn find_unsupported_error(&self) -> Option<(usize, Bytes)> {
        let (topology, now) = (&self.upstreams.topology, self.upstreams.now());
        let mut unsupported: SmallVec<[(usize, Unsupported); 4]> = SmallVec::new();
        for &upstream in &topology.config.groups[self.request.group].upstreams {
            let state = &topology.upstreams[upstream];
            if state.is_in_rotation(now) {
                let methods = state.avoided_methods.lock();
                let of_upstream = methods.unsupported(now, &self.request.method_name)?.clone();
                unsupported.push((upstream, of_upstream));
            }
        }
        let all = unsupported.iter().map(|(_, unsupported)| unsupported);
        let (upstream, first) = unsupported.first()?;
        is_refused_at_once(now, all).then(|| (*upstream, first.error.clone()))
    }

    /// Returns false if the upstream is known to lack the data of an old block that the call reads,
    /// or to refuse the call's range of logs.
    pub(super) fn can_cover(&self, view: &ChainView, upstream: usize) -> bool {
        let state = &self.upstreams.topology.upstreams[upstream];
        let lacks = |(data, depth)| state.history.lacks(data, depth);
        let now = self.upstreams.now();
        let allows = |blocks| state.log_range.allows(now, blocks);
        !self.request.history(view).is_some_and(lacks)
            && self.request.log_range().is_none_or(allows)
    }

    /// Chooses a healthy upstream that was not tried and can serve the call.
    pub(super) fn choose_healthy(&self) -> Option<usize> {
        let topology = &self.upstreams.topology;
        let candidates = topology.groups[self.request.group].candidates.load();
        let view = topology.chains[self.request.chain].view.load();
        self.balance_among(&candidates, &view, |_| true)
    }

    /// As [`Chooser::choose_healthy`], but an upstream that has returned logs as old as the first
    /// block of the call's range comes first. One response of such an upstream is enough.
    pub(super) fn choose_second_opinion(&self) -> Option<usize> {
        let CacheRule::AtRange { from, .. } = self.request.caching.rule else {
            return self.choose_healthy();
        };
        let topology = &self.upstreams.topology;
        let candidates = topology.groups[self.request.group].candidates.load();
        let view = topology.chains[self.request.chain].view.load();
        let now = self.upstreams.now();
        let is_proven = |upstream: usize| {
            let depth = topology.upstreams[upstream].logs_depth.lock().get(now);
            is_depth_proven(depth, &view, from)
        };
        self.balance_among(&candidates, &view, is_proven).or_else(|| self.choose_healthy())
    }

    /// Lets the group's balancer choose among the candidates that were not tried, can serve the
    /// call and meet a condition. Of these, an upstream that may be an archive comes last, unless
    /// calls wait for permits: it alone serves calls about old blocks, and its calls cost the most.
    fn balance_among(
        &self,
        candidates: &Candidates,
        view: &ChainView,
        meets_condition: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let (upstreams, request) = (self.upstreams, self.request);
        let is_eligible = |upstream: usize| {
            !self.tried.contains(&upstream)
                && meets_condition(upstream)
                && self.has_block(view, upstream)
                && self.can_cover(view, upstream)
                && self.supports(upstream)
        };
        let group = &upstreams.topology.config.groups[request.group];
        let (group_indices, key) = (&candidates.group_indices, request.balance_key);
        let is_crowded = upstreams.permits.is_crowded(request);
        let mut balancer = upstreams.balancers[request.group].borrow_mut();
        let mut pick = |is_eligible: &dyn Fn(usize) -> bool| {
            balancer.pick(upstreams.loads(), group, group_indices, key, is_crowded, is_eligible)
        };
        let is_limited =
            |upstream: usize| upstreams.topology.upstreams[upstream].history.is_limited();
        let is_limited_member = |index: &u16| is_limited(group.upstreams[usize::from(*index)]);
        let limited = if !is_crowded && group_indices.iter().any(is_limited_member) {
            pick(&|upstream| is_limited(upstream) && is_eligible(upstream))
        } else {
            None
        };
        limited.or_else(|| pick(&is_eligible))
    }

    /// Chooses an untried upstream, without waiting. The first choice is a candidate of the group
    /// that can serve the call; after the first attempt, one whose latency is known. The second
    /// choice is another healthy, lagging or probing upstream that can serve the call. The last
    /// choice is any untried upstream that has the block.
    ///
    /// For a sticky method, the balance key is a hash of the client's address. This hash selects
    /// the candidate of the first attempt, without further checks. Upstreams of another chain and
    /// cordoned upstreams are never chosen.
    pub(super) fn choose_now(&self) -> Result<usize, NoUpstream> {
        let (upstreams, request, topology) =
            (self.upstreams, self.request, &self.upstreams.topology);
        let group = &topology.config.groups[request.group];
        let view = topology.chains[request.chain].view.load();
        let candidates = topology.groups[request.group].candidates.load();
        if let Some(until) = candidates.paused_until
            && until > upstreams.now()
        {
            return Err(NoUpstream::Paused(until));
        }
        let is_sticky = request.method_row.is_some_and(|method| method.sticky);
        if is_sticky && self.tried.is_empty() {
            let group_indices = &candidates.group_indices;
            let sticky_index = request.balance_key as usize % group_indices.len().max(1);
            if let Some(group_index) = group_indices.get(sticky_index) {
                return Ok(group.upstreams[usize::from(*group_index)]);
            }
        }
        // A call that has waited at one upstream in vain must not be the first call of another one,
        // which may have stalled too.
        let is_measured = |upstream: usize| upstreams.local[upstream].latency.get().is_measured();
        let measured = match self.tried {
            [] => None,
            _ => self.balance_among(&candidates, &view, is_measured),
        };
        let chosen = measured.or_else(|| self.balance_among(&candidates, &view, |_| true));
        if let Some(upstream) = chosen {
            return Ok(upstream);
        }
        if self.tried.is_empty() && self.find_unsupported_error().is_some() {
            return Err(NoUpstream::Exhausted);
        }
        let now = upstreams.now();
        let is_untried = |upstream: &usize| {
            topology.upstreams[*upstream].is_in_rotation(now) && !self.tried.contains(upstream)
        };
        let untried = group.upstreams.iter().copied().filter(is_untried);
        let has_block = |upstream: &usize| self.has_block(&view, *upstream);
        let is_callable = |upstream: &usize| {
            let state = topology.upstream_state(*upstream, &view);
            matches!(state, HealthState::Healthy | HealthState::Lagging | HealthState::Probing)
        };
        let can_serve = |upstream: &usize| {
            has_block(upstream) && self.supports(*upstream) && is_callable(upstream)
        };
        let can_cover = |upstream: &usize| can_serve(upstream) && self.can_cover(&view, *upstream);
        let chosen = untried.clone().find(can_cover);
        let chosen = chosen.or_else(|| untried.clone().find(can_serve));
        match chosen.or_else(|| untried.clone().find(has_block)) {
            Some(upstream) => Ok(upstream),
            None if untried.clone().next().is_some() => Err(NoUpstream::Behind),
            None => Err(NoUpstream::Exhausted),
        }
    }
}
