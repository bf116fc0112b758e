//! Chooses the upstream of the next attempt, and waits briefly if none can be chosen now.
//!
//! `balance.rs` has the balancer. `policy/choose.rs` and `policy/health.rs` have the decisions.

use std::rc::Rc;
use std::time::Duration;

use crate::call::failure::{Failure, Kind};
use crate::call::request::UpstreamRequest;
use crate::policy::heads::ChainView;
use crate::policy::health::HealthState;
use crate::upstream::overload;
use crate::upstream::thread::UpstreamContext;

/// Interval at which a waiting call looks for an upstream again.
const UPSTREAM_WAIT_STEP: Duration = Duration::from_millis(20);
/// Longest wait for an upstream that has reached the requested block. In this time a few polls of
/// heads are made, so that an upstream that has stopped responding no longer counts.
const UPSTREAM_WAIT_MAX: Duration = Duration::from_secs(3);

/// Longest wait for the end of a pause if all upstreams are paused. An upstream is paused after it
/// has reported its rate limit.
const PAUSE_WAIT_MAX: Duration = Duration::from_millis(100);

/// The time that a call may wait, by the best response to it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// There is no response yet, so the call may wait long.
    Long,
    /// There is an error to return. The call waits only if an untried upstream follows the chain,
    /// because such an upstream reaches the block soon.
    Brief,
    /// There is a result to return, so the call does not wait.
    None,
}

/// Why no upstream can be chosen.
pub(super) enum NoUpstream {
    /// Some upstreams can be called, but none has reached the requested block.
    Behind,
    /// All upstreams have reported their rate limit; holds the end of the first pause.
    Paused(Duration),
    /// All upstreams were tried.
    Exhausted,
}

impl NoUpstream {
    fn failure(self, cx: &UpstreamContext) -> Failure {
        match self {
            NoUpstream::Paused(until) => {
                let retry_after = Some(until.saturating_sub(cx.now()));
                Failure { retry_after, ..Failure::ours(Kind::RateLimited) }
            }
            NoUpstream::Behind | NoUpstream::Exhausted => Failure::ours(Kind::NoUpstream),
        }
    }
}

/// Chooses an upstream. Waits briefly for an upstream to reach the requested block, or for a short
/// pause to end.
pub(super) async fn choose_or_wait(
    cx: &Rc<UpstreamContext>,
    request: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> Result<usize, Failure> {
    match choose(cx, request, tried) {
        Ok(upstream) => Ok(upstream),
        Err(NoUpstream::Behind) if is_worth_waiting(cx, request, tried, patience) => {
            Box::pin(wait_for_upstream(cx, request, tried, patience)).await
        }
        Err(NoUpstream::Paused(until)) if pause_ends_soon(cx, request, until) => {
            Box::pin(wait_for_upstream(cx, request, tried, patience)).await
        }
        Err(reason) => Err(reason.failure(cx)),
    }
}

/// Returns true if a pause is short enough to wait for it.
fn pause_ends_soon(cx: &UpstreamContext, request: &UpstreamRequest<'_>, until: Duration) -> bool {
    let remaining = until.saturating_sub(cx.now());
    remaining <= PAUSE_WAIT_MAX && cx.recent() + remaining < request.deadline
}

/// Returns true if an upstream may reach the requested block soon enough to wait for it.
fn is_worth_waiting(
    cx: &UpstreamContext,
    request: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> bool {
    // The branch of the upstream does not matter, because one of two branches is soon abandoned.
    let follows_chain = |upstream: &usize| {
        let view = cx.topology.chains[request.chain].view.load();
        let lag_max = cx.topology.config.chains[request.chain].lag_max;
        let upstream_view = cx.topology.upstreams[*upstream].in_view(&view);
        upstream_view
            .is_some_and(|upstream_view| upstream_view.live && upstream_view.lag <= lag_max)
    };
    match patience {
        Patience::Long => true,
        Patience::None => false,
        Patience::Brief => {
            let now = cx.now();
            let is_in_rotation =
                |upstream: &usize| cx.topology.upstreams[*upstream].is_in_rotation(now);
            let upstreams = cx.topology.config.groups[request.group].upstreams.iter();
            let mut untried = upstreams.filter(|upstream| !tried.contains(upstream));
            untried.any(|upstream| is_in_rotation(upstream) && follows_chain(upstream))
        }
    }
}

async fn wait_for_upstream(
    cx: &Rc<UpstreamContext>,
    request: &UpstreamRequest<'_>,
    tried: &[usize],
    patience: Patience,
) -> Result<usize, Failure> {
    let wait_until = request.deadline.min(cx.recent() + UPSTREAM_WAIT_MAX);
    let _lent = overload::lend(cx, request);
    loop {
        tokio::time::sleep(UPSTREAM_WAIT_STEP).await;
        cx.tick();
        match choose(cx, request, tried) {
            Ok(upstream) => return Ok(upstream),
            Err(NoUpstream::Behind)
                if cx.recent() < wait_until && is_worth_waiting(cx, request, tried, patience) => {}
            Err(NoUpstream::Paused(until))
                if cx.recent() < wait_until && pause_ends_soon(cx, request, until) => {}
            Err(reason) => return Err(reason.failure(cx)),
        }
    }
}

/// Returns false if the upstream has recently rejected the method as unsupported.
pub(super) fn supports(
    cx: &UpstreamContext,
    request: &UpstreamRequest<'_>,
    upstream: usize,
) -> bool {
    !cx.topology.upstreams[upstream].unsupported.lock().contains(cx.now(), &request.name)
}

/// Chooses a healthy upstream that was not tried and can serve the call.
pub(super) fn choose_candidate(
    cx: &UpstreamContext,
    request: &UpstreamRequest<'_>,
    tried: &[usize],
) -> Option<usize> {
    let group = &cx.topology.config.groups[request.group];
    let view = cx.topology.chains[request.chain].view.load();
    let candidates = cx.topology.groups[request.group].candidates.load();
    let fits = |upstream: usize| {
        !tried.contains(&upstream)
            && has_block(cx, request, &view, upstream)
            && supports(cx, request, upstream)
    };
    let mut balancer = cx.balancers[request.group].borrow_mut();
    let crowded = overload::is_crowded(cx, request);
    balancer.pick(cx, group, &candidates.group_indices, request.balance_key, crowded, fits)
}

/// Returns true if an upstream has the block that the call needs.
fn has_block(
    cx: &UpstreamContext,
    request: &UpstreamRequest<'_>,
    view: &ChainView,
    upstream: usize,
) -> bool {
    let min_head = request.caching.min_head;
    let upstream_view = cx.topology.upstreams[upstream].in_view(view);
    min_head == 0
        || upstream_view
            .is_some_and(|view| view.consistent && view.head.is_some_and(|head| head >= min_head))
}

/// Chooses a candidate of the group that can serve the call. Falls back to any callable upstream
/// that can serve it, then to any untried upstream that has the block. Never chooses a foreign or
/// cordoned upstream.
pub(super) fn choose(
    cx: &UpstreamContext,
    request: &UpstreamRequest<'_>,
    tried: &[usize],
) -> Result<usize, NoUpstream> {
    let topology = &cx.topology;
    let group = &topology.config.groups[request.group];
    let view = topology.chains[request.chain].view.load();
    let candidates = topology.groups[request.group].candidates.load();
    if let Some(until) = candidates.paused_until
        && until > cx.now()
    {
        return Err(NoUpstream::Paused(until));
    }
    let has_block = |upstream: usize| has_block(cx, request, &view, upstream);
    let supports = |upstream: usize| supports(cx, request, upstream);
    let fits =
        |upstream: usize| !tried.contains(&upstream) && has_block(upstream) && supports(upstream);
    if request.method.is_some_and(|method| method.sticky) && tried.is_empty() {
        let sticky_index = request.balance_key as usize % candidates.group_indices.len().max(1);
        let sticky = candidates
            .group_indices
            .get(sticky_index)
            .map(|group_index| group.upstreams[usize::from(*group_index)]);
        if let Some(upstream) = sticky {
            return Ok(upstream);
        }
    }
    let mut balancer = cx.balancers[request.group].borrow_mut();
    let (group_indices, crowded) = (&candidates.group_indices, overload::is_crowded(cx, request));
    if let Some(upstream) =
        balancer.pick(cx, group, group_indices, request.balance_key, crowded, fits)
    {
        return Ok(upstream);
    }
    let now = cx.now();
    let is_in_rotation = |upstream: &usize| topology.upstreams[*upstream].is_in_rotation(now);
    let mut untried = group
        .upstreams
        .iter()
        .copied()
        .filter(is_in_rotation)
        .filter(|upstream| !tried.contains(upstream));
    let is_callable = |upstream: &usize| {
        let state = topology.upstream_state(*upstream, &view);
        matches!(state, HealthState::Healthy | HealthState::Lagging | HealthState::Probing)
    };
    let callable_upstream = untried
        .clone()
        .find(|upstream| has_block(*upstream) && supports(*upstream) && is_callable(upstream));
    let any_untried = || untried.clone().find(|upstream| has_block(*upstream));
    match callable_upstream.or_else(any_untried) {
        Some(upstream) => Ok(upstream),
        None if untried.next().is_some() => Err(NoUpstream::Behind),
        None => Err(NoUpstream::Exhausted),
    }
}
