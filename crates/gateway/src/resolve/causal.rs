//! Holds a response that shows a block above the served head until the block is served. The *served
//! head* is the newest block that clients get as `latest`.
//!
//! Such a response is news of the head: all upstreams of the chain are polled at once
//! (`upstream/watch.rs`). `policy/causal.rs` decides what a response shows, and what the client
//! gets if the block is not served in time.

use std::time::Duration;

use tokio::time::Instant;

use super::build_head_response;
use crate::call::failure::{Failure, FailureKind};
use crate::call::{CountGuard, Payload, UpstreamRequest, UpstreamResponse};
use crate::io::memory::Reservation;
use crate::policy::cacheable::{CacheRule, RejectReason, admit};
use crate::policy::causal::{EarlierResponse, Resolved, must_read};
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;
use crate::upstream::chain::{ChainState, HeadNews};

/// Longest time for which a response is held. Within this time, the upstreams are polled several
/// times.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// Returns true if the response may show a block above the served head. If the response is
/// cacheable, the caching decision has already compared its block with the served head.
pub(super) fn may_be_ahead(request: &UpstreamRequest<'_>, response: &UpstreamResponse) -> bool {
    let (rule, min_head) = (request.caching.rule, request.caching.min_head);
    match &response.cache_decision {
        Some(decision) => decision.admission == Err(RejectReason::AboveHead),
        None => request.method_row.is_some_and(|method| must_read(method, rule, min_head)),
    }
}

/// Returns the response once all its blocks are served, or the response as of the served head.
pub(super) async fn hold(
    cx: &ThreadContext,
    request: &UpstreamRequest<'_>,
    mut response: UpstreamResponse,
) -> UpstreamResponse {
    let (Payload::Result(result), Some(method)) = (&response.payload, request.method_row) else {
        return response;
    };
    let result = result.clone();
    let resolved = Resolved { method, params: request.params.as_deref(), result: &result };
    let Some(height) = resolved.highest_block() else { return response };
    let chain = &cx.snapshot.chains[request.chain];
    if !is_above_head(chain, height) {
        return response;
    }
    let is_served = wait_until_served(cx, request, chain, height, result.len()).await;
    cx.tick();
    let view = chain.view.load();
    // The served chain may have another block at this height.
    let is_right = response.cache_decision.as_deref_mut().is_none_or(|decision| {
        decision.admission = admit(&request.caching, &decision.facts, &view);
        !decision.admission.is_err_and(RejectReason::is_wrong)
    });
    let Some(head) = view.head.filter(|_| !is_served || !is_right) else { return response };
    let earlier = match resolved.respond_as_of(head.number) {
        EarlierResponse::Result(result) => Payload::Result(result.into()),
        EarlierResponse::Error(error) => Payload::Error(error.into()),
        EarlierResponse::Head => build_head_response(&request.method_name, head.number).payload,
        EarlierResponse::Unavailable => Payload::Failed(Failure::ours(FailureKind::NoUpstream)),
    };
    if let Some(decision) = &mut response.cache_decision {
        // The response is out of date as soon as the block is served.
        decision.admission = Err(RejectReason::AboveHead);
    }
    UpstreamResponse { payload: earlier, ..response }
}

/// Holds a response of Redis to a call by block hash. A response to another call is about a block
/// that this gateway serves, because its tag was compared with the view.
pub(super) async fn hold_if_by_hash(
    cx: &ThreadContext,
    request: &UpstreamRequest<'_>,
    response: UpstreamResponse,
) -> UpstreamResponse {
    match request.caching.rule {
        CacheRule::AtHash => hold(cx, request, response).await,
        _ => response,
    }
}

/// Returns true if the chain has a served head and the height is above it.
fn is_above_head(chain: &ChainState, height: u64) -> bool {
    chain.view.load().head.is_some_and(|head| height > head.number)
}

/// Reports the height as news of the head, and waits until the served head reaches it. Returns
/// false if this takes too long, or if there is no memory for a held response of this length.
async fn wait_until_served(
    cx: &ThreadContext,
    request: &UpstreamRequest<'_>,
    chain: &ChainState,
    height: u64,
    response_bytes: usize,
) -> bool {
    let now = Instant::now();
    let remaining = request.deadline.saturating_duration_since(now);
    let until = now + HOLD_MAX.min(remaining / 2);
    chain.report_news(HeadNews { height, until });
    let mut reservation = Reservation::new(&cx.snapshot.process.memory, Purpose::Response);
    if reservation.set(response_bytes).is_err() {
        return false;
    }
    let _waiting_guard = request.waiting.map(CountGuard::new);
    let served = async {
        loop {
            // Created before the check, so that no view is missed.
            let published = chain.view_published.notified();
            if !is_above_head(chain, height) {
                return;
            }
            published.await;
        }
    };
    let in_time = tokio::time::timeout_at(until, served).await;
    in_time.is_ok() && !is_above_head(chain, height)
}
