//! Resolves a call: finds its response in the memory cache, at an equal call in flight, in Redis,
//! in the index, or at an upstream. Then stores the response if it is cacheable.
//!
//! ```text
//! plan → cache → coalesce → redis → index → permit → fetch (balance → send ⟲ retry) → hold → store
//! ```
//! `policy/plan.rs` plans the call. `resolve/logs.rs` splits a call for logs into parts by block
//! range. Each part passes through the steps after `plan`.
//!
//! A *view* is a snapshot of a chain's newest blocks (`policy/heads/view.rs`). A *row* is a
//! method's entry in the method table. A *group* is a set of upstreams of one chain that serve
//! certain methods. A *permit* allows a call to be in flight at a group (`upstream/overload.rs`).

use std::borrow::Cow;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use tokio::time::Instant;
use wire::block_param::write_params_at;
use wire::call::{Call, Params};
use wire::json::walk;
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::Method;
use wire::quantity;

use crate::access::caller::Caller;
use crate::cache::coalesce::{Coalescing, InFlightCall};
use crate::cache::index::{self, IndexResult};
use crate::cache::memory::Entry;
use crate::call::failure::{Failure, FailureKind};
use crate::call::{
    CacheDecision, CacheStatus, CountGuard, Payload, UpstreamRequest, UpstreamResponse,
};
use crate::config::group::{Balance, HashKey};
use crate::policy::cacheable::{CacheRule, Caching, ResponseKind, is_valid};
use crate::policy::choose::hash64;
use crate::policy::complete::{Retention, Trust};
use crate::policy::heads::ChainView;
use crate::policy::overload::Class;
use crate::policy::overload::shares::Flow;
use crate::policy::plan::{CacheFeatures, Lookup, Plan, plan};
use crate::policy::{blocks, complete};
use crate::state::context::ThreadContext;
use crate::trace::context::TraceContext;
use crate::upstream::fetch::fetch;
use crate::upstream::overload::Permit;
use crate::upstream::topology::NO_UPSTREAM;

mod causal;
pub(crate) mod internal;
mod logs;

/// A routed call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) call: &'a Call<'a>,
    /// The index of the method's row and the row itself; `None` for unknown methods.
    pub(crate) row: Option<(usize, &'static Method)>,
    /// Index of the chain.
    pub(crate) chain: usize,
    /// Index of the group that a rule selected; `None` if no rule selected a group.
    pub(crate) group: Option<usize>,
    pub(crate) caller: &'a Caller,
    /// Value of the header that a group hashes for load balancing; `None` without such a header.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// Number of delayed or queued calls of the request. While the number is above zero, the
    /// connection checks whether its client disconnects.
    pub(crate) waiting: &'a Cell<usize>,
    /// The context of the call's span; `None` if the request has no trace.
    pub(crate) trace: Option<&'a TraceContext>,
}

impl<'a> Route<'a> {
    /// Returns the method's row; `None` for unknown methods.
    pub(crate) fn method(&self) -> Option<&'static Method> {
        self.row.map(|(_, method)| method)
    }

    /// Returns the index of the group: the group that a rule selected, or else the method's group.
    pub(crate) fn group(&self, cx: &ThreadContext) -> usize {
        let router = &cx.snapshot.router;
        self.group.unwrap_or_else(|| router.find_group(self.chain, &self.call.method))
    }
}

/// Resolves one call. The deadline of the call counts from `now`.
pub(crate) async fn resolve(
    cx: &Rc<ThreadContext>,
    route: &Route<'_>,
    now: Instant,
) -> UpstreamResponse {
    // The guard of the view must be dropped before each wait.
    let view = cx.snapshot.chains[route.chain].view.load();
    let call = route.call;
    let lookup = match plan_call(cx, route, &view) {
        Plan::Lookup(lookup) => lookup,
        Plan::Head(number) => return build_head_response(&call.method, number),
        Plan::Logs(method) => {
            let request = build_upstream_request(cx, route, Caching::never(&view), now);
            drop(view);
            return Box::pin(logs::resolve(cx, request, call, method)).await;
        }
        Plan::Forward => {
            let request = build_upstream_request(cx, route, Caching::never(&view), now);
            drop(view);
            return Box::pin(fetch_with_permit(cx, &request, None)).await;
        }
    };
    let Lookup { method, caching, block, coalesce } = lookup;
    let mut key = cx.upstreams.thread.buffers.take();
    let resolved_block = caching.resolved_height.map(ResolvedBlock::Number);
    let has_key = needs_key(&caching, coalesce)
        && write_call_key(cx, &mut key, route.chain, method, &call.params, resolved_block);
    // A cache hit returns before the upstream request is built.
    if has_key && let Some(response) = find_cached_response(cx, &key, &view) {
        cx.upstreams.thread.buffers.put_back(key);
        return response;
    }
    drop(view);
    let mut request = build_upstream_request(cx, route, caching, now);
    // The block number replaces the block tag, which is at `tag_range` in the parameters.
    let tag_range = block.ok().flatten().map(|(_, range)| range);
    if let (Some(number), Some(tag_range), Some(block_param)) =
        (caching.resolved_height, tag_range, method.block)
    {
        let mut params = Vec::new();
        write_params_at(&mut params, &call.params, tag_range, block_param.format, number);
        request.params = Some(Cow::Owned(params));
    }
    let response = resolve_uncached(cx, request, has_key.then_some(&key[..])).await;
    cx.upstreams.thread.buffers.put_back(key);
    response
}

/// Plans how to find the response to a call.
pub(crate) fn plan_call(cx: &ThreadContext, route: &Route<'_>, view: &ChainView) -> Plan {
    let cache = &cx.snapshot.config.cache;
    let features = CacheFeatures { cache: cache.enabled, coalesce: cache.coalesce };
    plan(route.method(), &route.call.params, view, features)
}

/// Returns the priority class of a call; `None` without overload protection.
pub(crate) fn find_class(cx: &ThreadContext, route: &Route<'_>) -> Option<Class> {
    let priorities = &cx.snapshot.config.overload.as_ref()?.priorities;
    Some(priorities.find_class(route.caller.tier(), weight_of(route.method())))
}

/// Returns the weight of a method, which is its relative cost.
fn weight_of(method: Option<&Method>) -> u32 {
    method.map_or(1, |method| method.weight)
}

/// Returns the response to a call for the number of the newest block. Harmony's `hmyv2` namespace
/// uses a JSON number, and the other namespaces use a hex string.
fn build_head_response(method: &str, number: u64) -> UpstreamResponse {
    let mut result = Vec::with_capacity(20);
    if method.starts_with("eth_") || method.starts_with("hmy_") {
        result.push(b'"');
        quantity::write(&mut result, number);
        result.push(b'"');
    } else {
        quantity::write_decimal(&mut result, number);
    }
    let payload = Payload::Result(result.into());
    UpstreamResponse { cache_status: CacheStatus::Hit, ..UpstreamResponse::local(payload) }
}

/// Builds the upstream request, with its group, deadline and load-balancing key.
fn build_upstream_request<'a>(
    cx: &ThreadContext,
    route: &Route<'a>,
    caching: Caching,
    now: Instant,
) -> UpstreamRequest<'a> {
    let (snapshot, call) = (&cx.snapshot, route.call);
    let (row_index, method) = route.row.unzip();
    let group = route.group(cx);
    let config = &snapshot.config.groups[group];
    let is_sticky = method.is_some_and(|method| method.sticky);
    let balance_key = match &config.balance {
        _ if is_sticky => route.caller.address_hash(),
        Balance::Hash { key, .. } => compute_balance_key(route, key),
        Balance::LeastLoaded | Balance::Weighted => 0,
    };
    UpstreamRequest {
        chain: route.chain,
        group,
        method_name: Cow::Borrowed(&*call.method),
        method_row: method,
        row_index,
        class: find_class(cx, route).unwrap_or(Class::Normal),
        flow: Flow::new(route.caller.hash(), weight_of(method)),
        params: call.params.raw().map(Cow::Borrowed),
        caching,
        coalesce: method.is_some_and(|method| method.coalesces()) && snapshot.config.cache.coalesce,
        balance_key,
        deadline: now + config.deadline,
        waiting: Some(route.waiting),
        trace: route.trace.cloned(),
    }
}

/// Returns the hash that selects the upstream if the group balances by consistent hash.
fn compute_balance_key(route: &Route<'_>, hash_key: &HashKey) -> u64 {
    let call = route.call;
    match hash_key {
        HashKey::Call => {
            let params = hash64(call.params.raw().unwrap_or(b""));
            hash64(call.method.as_bytes()) ^ params.rotate_left(1)
        }
        HashKey::Header(_) => route.hash_header.map_or_else(|| route.caller.address_hash(), hash64),
        HashKey::Client => route.caller.address_hash(),
    }
}

/// Returns true if a call needs a key, which the cache and coalescing use to find equal calls.
fn needs_key(caching: &Caching, coalesce: bool) -> bool {
    caching.rule != CacheRule::Never || coalesce
}

/// Writes the key of a call to `key`. Equal calls have equal keys. Returns false if the parameters
/// have no canonical form.
fn write_call_key(
    cx: &ThreadContext,
    key: &mut Vec<u8>,
    chain: usize,
    method: &Method,
    params: &Params<'_>,
    block: Option<ResolvedBlock>,
) -> bool {
    let chain = &cx.snapshot.chains[chain].key;
    write_key(key, &KeyParts { chain, method, params, block }).is_ok()
}

/// Returns the response from the memory tier; `None` if the tier has no valid response.
fn find_cached_response(
    cx: &ThreadContext,
    key: &[u8],
    view: &ChainView,
) -> Option<UpstreamResponse> {
    let cache = cx.snapshot.cache.as_ref()?;
    let entry = cache.get(key)?;
    let is_fresh = entry.expires_at.is_none_or(|expires_at| cx.now() < expires_at);
    let is_still_valid = is_valid(&entry.validity, view);
    if is_fresh && is_still_valid {
        Some(UpstreamResponse {
            upstream: cx.snapshot.find_upstream_by_number(entry.upstream),
            cache_status: CacheStatus::Hit,
            ..UpstreamResponse::local(entry.payload())
        })
    } else {
        // An expired response that may be incomplete (`doubted_since`) stays in the cache, because
        // `store` compares this response with the next upstream response.
        if !is_still_valid || entry.doubted_since.is_none() {
            cache.remove(key);
        }
        None
    }
}

/// Resolves a call that is not in the memory tier: joins an equal call in flight, or fetches and
/// stores the response.
///
/// `key` is the call's key; `None` if the call is neither cacheable nor coalesced. The future is
/// boxed so that the future of the client's connection stays small.
fn resolve_uncached<'a>(
    cx: &'a Rc<ThreadContext>,
    request: UpstreamRequest<'a>,
    key: Option<&'a [u8]>,
) -> Pin<Box<dyn Future<Output = UpstreamResponse> + 'a>> {
    Box::pin(async move {
        let status = if request.caching.rule == CacheRule::Never {
            CacheStatus::Bypass
        } else {
            CacheStatus::Miss
        };
        while let Some((shared_call, has_joined)) =
            key.and_then(|key| join_or_lead(cx, &request, key))
        {
            // If calls of the group wait for permits, the shared call may wait too. Meanwhile the
            // client's connection must check whether its client disconnects.
            let is_crowded = cx.upstreams.permits.is_crowded(&request);
            let waiting_guard = request.waiting.filter(|_| is_crowded).map(CountGuard::new);
            let response = shared_call.wait(request.deadline).await;
            drop(waiting_guard);
            let response = response.unwrap_or_else(|| {
                UpstreamResponse::from_failure(Failure::ours(FailureKind::Deadline))
            });
            if has_joined && let Payload::Failed(failure) = &response.payload {
                // The shared call has the deadline and the priority class of its *leader*, which is
                // the call that started it. If the leader's deadline or class caused the failure, a
                // call that has joined retries, as long as its own deadline has not passed.
                let now = cx.tick();
                let failed_by_class = matches!(failure.kind, FailureKind::Overloaded { .. })
                    && shared_call.has_lower_class_than(request.class);
                let failed_by_leader = shared_call.is_past_deadline(now) || failed_by_class;
                if failed_by_leader && now < request.deadline {
                    continue;
                }
            }
            let status = if has_joined { CacheStatus::Coalesced } else { status };
            return with_status(response, status);
        }
        with_status(fetch_and_store(cx, &request, key, None).await, status)
    })
}

/// Sets the cache status. A response from a cache tier keeps its status `Hit`, except if the new
/// status is `Coalesced`.
fn with_status(mut response: UpstreamResponse, status: CacheStatus) -> UpstreamResponse {
    if response.cache_status != CacheStatus::Hit || status == CacheStatus::Coalesced {
        response.cache_status = status;
    }
    response
}

/// Looks a call up in Redis and the index, or fetches it from an upstream. Stores a cacheable
/// response. `shared_call` is `None` if the call is not coalesced.
async fn fetch_and_store(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    shared_call: Option<&InFlightCall>,
) -> UpstreamResponse {
    if let (Some(redis), Some(key)) = (&cx.redis, key)
        && let Some(response) = Box::pin(redis.lookup(&cx.upstreams, request, key)).await
    {
        // Another gateway may have stored a block that this one does not serve yet.
        return Box::pin(causal::hold_if_by_hash(cx, request, response)).await;
    }
    // `logs::resolve` has already queried the index for the whole range of logs.
    let queries_index =
        !matches!(request.caching.rule, CacheRule::Never | CacheRule::AtRange { .. });
    let index_result = match (cx.snapshot.index.get(), &request.params) {
        (Some(index), Some(params)) if queries_index => {
            Box::pin(index::lookup(index, &cx.upstreams, request, params)).await
        }
        _ => None,
    };
    let response = match index_result {
        Some(IndexResult::Complete(result)) => index::response(result),
        Some(IndexResult::Partial { to, items, .. }) => {
            Box::pin(complete_blocks(cx, request, shared_call, to, &items)).await
        }
        Some(IndexResult::NotStored) | None => fetch_with_permit(cx, request, shared_call).await,
    };
    let response = prefer_stored(cx, request, key, response);
    store(cx, request, key, &response);
    response
}

/// Returns the stored response instead of `response` if both may be incomplete and the stored one
/// has more items. The upstream that had them may be on another branch now.
fn prefer_stored(
    cx: &ThreadContext,
    request: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    response: UpstreamResponse,
) -> UpstreamResponse {
    let (Some(cache), Some(key), Payload::Result(result)) =
        (&cx.snapshot.cache, key, &response.payload)
    else {
        return response;
    };
    if matches!(response.trust, Trust::Undoubted | Trust::Agreed) {
        return response;
    }
    let view = cx.snapshot.chains[request.chain].view.load();
    let count = |items: &[u8]| walk::elements(items).count();
    let stored = cache.get(key).filter(|entry| {
        entry.doubted_since.is_some()
            && is_valid(&entry.validity, &view)
            && count(&entry.bytes) > count(result)
    });
    let Some(entry) = stored else { return response };
    let payload = entry.payload();
    let decision = CacheDecision::new(request, &payload, false, &view);
    UpstreamResponse { payload, cache_decision: Some(Box::new(decision)), ..response }
}

/// Completes the index's blocks with blocks from an upstream. The index's blocks end at block
/// `last_indexed`. If the upstream's blocks do not follow the index's last block, the upstream is
/// on another branch. In that case, the function fetches all blocks from an upstream.
async fn complete_blocks(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    shared_call: Option<&InFlightCall>,
    last_indexed: u64,
    indexed_blocks: &[u8],
) -> UpstreamResponse {
    let remaining_params = request
        .params
        .as_deref()
        .and_then(|params| blocks::remaining_params(params, last_indexed + 1));
    if let Some(params) = remaining_params {
        let remaining_request =
            UpstreamRequest { params: Some(Cow::Owned(params)), ..request.clone() };
        let response = fetch_with_permit(cx, &remaining_request, shared_call).await;
        let Payload::Result(upstream_blocks) = &response.payload else { return response };
        if let Some(merged) = blocks::join_blocks(indexed_blocks, upstream_blocks) {
            let payload = Payload::Result(merged.into());
            return UpstreamResponse { payload, cache_decision: None, ..response };
        }
    }
    fetch_with_permit(cx, request, shared_call).await
}

/// Acquires a concurrency permit and fetches the response from an upstream. Holds a response that
/// shows a block above the served head.
async fn fetch_with_permit(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    shared_call: Option<&InFlightCall>,
) -> UpstreamResponse {
    let permit = match cx.upstreams.permits.try_acquire(request) {
        Some(permit) => Ok(permit),
        None => Box::pin(wait_for_permit(cx, request, shared_call)).await,
    };
    let response = match permit {
        Ok(_permit) => fetch(&cx.upstreams, request).await,
        Err(failure) => UpstreamResponse::from_failure(failure),
    };
    // A held response needs no permit.
    if causal::may_be_ahead(request, &response) {
        return Box::pin(causal::hold(cx, request, response)).await;
    }
    response
}

/// Waits for a permit. A shared call stops waiting once all clients that wait for its response have
/// left.
async fn wait_for_permit<'a>(
    cx: &'a ThreadContext,
    request: &UpstreamRequest<'_>,
    shared_call: Option<&InFlightCall>,
) -> Result<Permit<'a>, Failure> {
    let _waiting_guard = request.waiting.map(CountGuard::new);
    let Some(shared_call) = shared_call else {
        return cx.upstreams.permits.acquire(request).await;
    };
    tokio::select! {
        permit = cx.upstreams.permits.acquire(request) => permit,
        // All clients have left, so no client receives this failure.
        () = shared_call.wait_until_abandoned() => Err(Failure::ours(FailureKind::Stopping)),
    }
}

/// Joins the shared call of a key, or starts one. Returns the shared call, and true if it was
/// already in flight. Returns `None` if the call is not coalesced, or if too many calls are in
/// flight.
fn join_or_lead(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    key: &[u8],
) -> Option<(Rc<InFlightCall>, bool)> {
    if !request.coalesce {
        return None;
    }
    // Only calls that started under the same view share a response. The generation of the view and
    // the sequence number of its head (newest block) identify the view.
    let mut call_key = Vec::with_capacity(key.len() + 24);
    call_key.extend_from_slice(key);
    call_key.extend_from_slice(&request.caching.generation.to_le_bytes());
    call_key.extend_from_slice(&request.caching.head_seq.to_le_bytes());
    // Groups do not share responses, because a call that fails in one group can succeed in another.
    call_key.extend_from_slice(&request.group.to_le_bytes());
    match cx.in_flight_calls.join_or_lead(&call_key, request.deadline, request.class) {
        Coalescing::Alone => None,
        Coalescing::Wait(shared_call) => Some((shared_call, true)),
        Coalescing::Lead(guard) => {
            let shared_call = Rc::clone(&guard.call);
            let (cx, request) = (Rc::clone(cx), request.clone().into_owned());
            let key_bytes = key.len();
            // The future is boxed, because the runtime moves it several times.
            tokio::task::spawn_local(Box::pin(async move {
                let (key, shared_call) = (&guard.key[..key_bytes], Rc::clone(&guard.call));
                let response = fetch_and_store(&cx, &request, Some(key), Some(&shared_call)).await;
                guard.complete(response);
            }));
            Some((shared_call, false))
        }
    }
}

/// Stores a response in memory and Redis, if it is cacheable and no reorg has made it invalid
/// meanwhile. A response that may be incomplete is at first stored only briefly and only in memory,
/// or not at all.
fn store(
    cx: &ThreadContext,
    request: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    response: &UpstreamResponse,
) {
    let (Some(cache), Some(key)) = (&cx.snapshot.cache, key) else { return };
    let (Payload::Result(bytes) | Payload::Error(bytes)) = &response.payload else { return };
    if request.caching.rule == CacheRule::Never {
        return;
    }
    let view = cx.snapshot.chains[request.chain].view.load();
    // A response of the index has no decision yet. It is never an error, hence `false`.
    let CacheDecision { facts, admission } = response
        .cache_decision
        .as_deref()
        .copied()
        .unwrap_or_else(|| CacheDecision::new(request, &response.payload, false, &view));
    // A response that may be incomplete is cached for longer if upstreams have returned an equal
    // response for some time.
    let is_equal = |entry: &Entry| entry.bytes == *bytes && is_valid(&entry.validity, &view);
    let first_equal_at = match response.trust {
        Trust::NotContradicted | Trust::Unrepeated => {
            cache.get(key).filter(is_equal).and_then(|entry| entry.doubted_since)
        }
        _ => None,
    };
    let retention = complete::decide_retention(response.trust, first_equal_at, cx.now());
    let is_stored = match admission {
        Ok(validity) if retention != Retention::None && is_valid(&validity, &view) => {
            let is_error = facts.kind == ResponseKind::DeterministicError;
            let upstream = response
                .upstream
                .map_or(NO_UPSTREAM, |upstream| cx.snapshot.upstreams[upstream].cache_number);
            let (age_max, doubted_since) = match retention {
                Retention::Limited { age_max, since } => (Some(age_max), Some(since)),
                _ => (cache.age_max(is_error, &validity), None),
            };
            let expires_at = age_max.map(|age_max| cx.now() + age_max);
            if let Some(redis) = &cx.redis
                && doubted_since.is_none()
                && response.tier.is_none()
            {
                redis.store_when_proven(request, key, response, validity, &facts, &view);
            }
            let bytes = bytes.clone();
            cache.put(key, Entry { bytes, is_error, upstream, validity, expires_at, doubted_since })
        }
        Ok(_) | Err(_) => false,
    };
    let counters = &cx.counters;
    if is_stored { counters.fills.add(1) } else { counters.fills_refused.add(1) }
}
