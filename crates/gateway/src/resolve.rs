//! Resolves a call from the cache, an equal call in flight, Redis, the index, or an upstream. A
//! cacheable response is then stored.
//!
//! ```text
//! plan → cache → coalesce → redis → index → permit → fetch (balance → send ⟲ retry) → store
//! ```
//! A range of logs passes these steps once per part: `resolve/logs.rs`.

use std::borrow::Cow;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use tokio::time::Instant;
use wire::block_param::write_params_at;
use wire::call::{Call, Params};
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::Method;
use wire::quantity;

use crate::access::caller::Caller;
use crate::cache::coalesce::{Coalescing, InFlightCall};
use crate::cache::index::{self, IndexResult};
use crate::cache::memory::Entry;
use crate::call::failure::{Failure, Kind};
use crate::call::{
    CacheDecision, CacheStatus, CountGuard, Payload, UpstreamRequest, UpstreamResponse,
};
use crate::config::group::{Balance, HashKey};
use crate::policy::cacheable::{CacheRule, Caching, ResponseKind, is_valid};
use crate::policy::choose::hash64;
use crate::policy::complete::{BRIEF_RETENTION, Retention, Trust};
use crate::policy::heads::ChainView;
use crate::policy::overload::Class;
use crate::policy::overload::shares::Flow;
use crate::policy::plan::{CacheFeatures, Lookup, Plan, plan};
use crate::policy::{blocks, complete};
use crate::state::context::ThreadContext;
use crate::trace::context::TraceContext;
use crate::upstream::fetch::fetch;
use crate::upstream::overload;
use crate::upstream::topology::NO_UPSTREAM;

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
    /// The group that a rule selected, if any.
    pub(crate) group: Option<usize>,
    pub(crate) caller: &'a Caller,
    /// Value of the header that a group hashes for load balancing, if any.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// Number of calls of the request that are delayed or queued.
    pub(crate) waiting: &'a Cell<usize>,
    /// The context of the call's span; `None` if the request has no trace.
    pub(crate) trace: Option<&'a TraceContext>,
}

impl<'a> Route<'a> {
    /// Returns the method's row.
    pub(crate) fn method(&self) -> Option<&'static Method> {
        self.row.map(|(_, method)| method)
    }

    /// Returns the index of the group.
    pub(crate) fn group(&self, cx: &ThreadContext) -> usize {
        let router = &cx.snapshot.router;
        self.group.unwrap_or_else(|| router.find_group(self.chain, &self.call.method))
    }
}

/// Resolves one call.
pub(crate) async fn resolve(
    cx: &Rc<ThreadContext>,
    route: &Route<'_>,
    now: Instant,
) -> UpstreamResponse {
    let view = cx.snapshot.chains[route.chain].view.load();
    let call = route.call;
    let cache = &cx.snapshot.config.cache;
    let features = CacheFeatures { cache: cache.enabled, coalesce: cache.coalesce };
    let lookup = match plan(route.method(), &call.params, &view, features) {
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
    let mut key = cx.upstream.buffers.take();
    let resolved_block = caching.resolved.map(ResolvedBlock::Number);
    let has_key = is_keyed(&caching, coalesce)
        && write_call_key(cx, &mut key, route.chain, method, &call.params, resolved_block);
    // A hit needs no upstream request.
    if has_key && let Some(response) = find_cached_response(cx, &key, &view) {
        cx.upstream.buffers.give(key);
        return response;
    }
    drop(view);
    let mut request = build_upstream_request(cx, route, caching, now);
    if let (Some(number), Ok(Some((_, span))), Some(block_param)) =
        (caching.resolved, block, method.block)
    {
        let mut params = Vec::new();
        write_params_at(&mut params, &call.params, span, block_param.format, number);
        request.params = Some(Cow::Owned(params));
    }
    let response = resolve_uncached(cx, request, has_key.then_some(&key[..])).await;
    cx.upstream.buffers.give(key);
    response
}

/// Returns the response to a call for the head's number. Harmony's `hmyv2` namespace encodes a
/// number, the other namespaces a hex quantity.
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
    let (row, method) = route.row.unzip();
    let group = route.group(cx);
    let config = &snapshot.config.groups[group];
    let sticky = method.is_some_and(|method| method.sticky);
    let weight = method.map_or(1, |method| method.weight);
    let overload = snapshot.config.overload.as_ref();
    let class =
        overload.map(|overload| overload.priorities.find_class(route.caller.tier(), weight));
    let balance_key = match &config.balance {
        _ if sticky => route.caller.address_hash(),
        Balance::Hash { key, .. } => compute_balance_key(route, key),
        Balance::LeastLoaded | Balance::Weighted => 0,
    };
    UpstreamRequest {
        chain: route.chain,
        group,
        name: Cow::Borrowed(&*call.method),
        method,
        row,
        class: class.unwrap_or(Class::Normal),
        flow: Flow::new(route.caller.hash(), weight),
        params: call.params.raw().map(Cow::Borrowed),
        caching,
        coalesce: method.is_some_and(|method| method.coalesces()) && snapshot.config.cache.coalesce,
        balance_key,
        deadline: now + config.deadline,
        waiting: Some(route.waiting),
        trace: route.trace.cloned(),
    }
}

fn compute_balance_key(route: &Route<'_>, key: &HashKey) -> u64 {
    let call = route.call;
    match key {
        HashKey::Call => {
            let params = hash64(call.params.raw().unwrap_or(b""));
            hash64(call.method.as_bytes()) ^ params.rotate_left(1)
        }
        HashKey::Header(_) => route.hash_header.map_or_else(|| route.caller.address_hash(), hash64),
        HashKey::Client => route.caller.address_hash(),
    }
}

/// Returns true if a call is looked up by its key, because it is cacheable or coalesced.
fn is_keyed(caching: &Caching, coalesce: bool) -> bool {
    caching.rule != CacheRule::Never || coalesce
}

/// Writes the key of a call. Returns false if the parameters have no canonical form.
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

/// Returns a valid cached response.
fn find_cached_response(
    cx: &ThreadContext,
    key: &[u8],
    view: &ChainView,
) -> Option<UpstreamResponse> {
    let cache = cx.snapshot.cache.as_ref()?;
    let entry = cache.get(key)?;
    let is_fresh = entry.expires_at.is_none_or(|expires_at| cx.now() < expires_at);
    let still_valid = is_valid(&entry.validity, view);
    if is_fresh && still_valid {
        Some(UpstreamResponse {
            upstream: cx.snapshot.upstream_of_number(entry.upstream),
            cache_status: CacheStatus::Hit,
            ..UpstreamResponse::local(entry.payload())
        })
    } else {
        // A response that may be incomplete stays in the cache after it has expired, because the
        // next upstream response is compared with it.
        if !still_valid || entry.doubted_since.is_none() {
            cache.remove(key);
        }
        None
    }
}

/// Resolves a call that is not in memory: coalesces it, fetches it, and stores a cacheable
/// response.
///
/// The future is boxed, so that the connection's own future stays small.
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
        while let Some((in_flight, was_in_flight)) =
            key.and_then(|key| join_or_lead(cx, &request, key))
        {
            let is_crowded = overload::is_crowded(&cx.upstream, &request);
            // The shared call may then wait for a permit, so the client's connection must watch for
            // a disconnect.
            let queued = request.waiting.filter(|_| is_crowded).map(CountGuard::new);
            let response = in_flight.wait(request.deadline).await;
            drop(queued);
            let response = response
                .unwrap_or_else(|| UpstreamResponse::from_failure(Failure::ours(Kind::Deadline)));
            if was_in_flight && let Payload::Failed(failure) = &response.payload {
                // The shared call may have failed only because of its own deadline or class. A
                // waiter with time left retries.
                let now = cx.tick();
                let is_outclassed = matches!(failure.kind, Kind::Overloaded { .. })
                    && in_flight.is_worse_than(request.class);
                if (in_flight.is_past_deadline(now) || is_outclassed) && now < request.deadline {
                    continue;
                }
            }
            return with_status(
                response,
                if was_in_flight { CacheStatus::Coalesced } else { status },
            );
        }
        with_status(fetch_and_store(cx, &request, key, None).await, status)
    })
}

/// Sets the cache status. A response of a cache tier stays a hit, except for coalesced calls.
fn with_status(mut response: UpstreamResponse, status: CacheStatus) -> UpstreamResponse {
    if response.cache_status != CacheStatus::Hit || status == CacheStatus::Coalesced {
        response.cache_status = status;
    }
    response
}

/// Looks a call up in Redis and the index, or fetches it from an upstream. Stores a cacheable
/// response.
async fn fetch_and_store(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    in_flight: Option<&InFlightCall>,
) -> UpstreamResponse {
    if let (Some(redis), Some(key)) = (&cx.redis, key)
        && let Some(response) = Box::pin(redis.lookup(&cx.upstream, request, key)).await
    {
        return response;
    }
    // For a part of a range of logs, the index was already queried for the whole range.
    let queries_index =
        !matches!(request.caching.rule, CacheRule::Never | CacheRule::AtRange { .. });
    let index_result = match (cx.snapshot.process.index.get(), &request.params) {
        (Some(index), Some(params)) if queries_index => {
            Box::pin(index::lookup(index, &cx.upstream, request, params)).await
        }
        _ => None,
    };
    let response = match index_result {
        Some(IndexResult::Complete(result)) => index::response(result),
        Some(IndexResult::Partial { to, items, .. }) => {
            Box::pin(complete_blocks(cx, request, in_flight, to, &items)).await
        }
        Some(IndexResult::Missing) | None => fetch_with_permit(cx, request, in_flight).await,
    };
    store(cx, request, key, &response);
    response
}

/// Adds an upstream's blocks to the index's blocks, up to block `to`. If they do not follow the
/// index's last block, the upstream is on another branch. Then all blocks are fetched from the
/// upstream.
async fn complete_blocks(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    in_flight: Option<&InFlightCall>,
    to: u64,
    indexed: &[u8],
) -> UpstreamResponse {
    if let Some(params) =
        request.params.as_deref().and_then(|params| blocks::remaining_params(params, to + 1))
    {
        let remaining_request =
            UpstreamRequest { params: Some(Cow::Owned(params)), ..request.clone() };
        let response = fetch_with_permit(cx, &remaining_request, in_flight).await;
        let Payload::Result(upstream_blocks) = &response.payload else { return response };
        if let Some(merged) = blocks::join_blocks(indexed, upstream_blocks) {
            let payload = Payload::Result(merged.into());
            return UpstreamResponse { payload, cache_decision: None, ..response };
        }
    }
    fetch_with_permit(cx, request, in_flight).await
}

/// Fetches a call from an upstream after acquiring a concurrency permit.
async fn fetch_with_permit(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    in_flight: Option<&InFlightCall>,
) -> UpstreamResponse {
    let permit = match overload::try_acquire(&cx.upstream, request) {
        Some(permit) => Ok(permit),
        None => Box::pin(wait_for_permit(cx, request, in_flight)).await,
    };
    match permit {
        Ok(_permit) => fetch(&cx.upstream, request).await,
        Err(failure) => UpstreamResponse::from_failure(failure),
    }
}

/// Waits for a permit, unless all waiters leave.
async fn wait_for_permit<'a>(
    cx: &'a ThreadContext,
    request: &UpstreamRequest<'_>,
    in_flight: Option<&InFlightCall>,
) -> Result<overload::Permit<'a>, Failure> {
    let _queued = request.waiting.map(CountGuard::new);
    let Some(in_flight) = in_flight else { return overload::acquire(&cx.upstream, request).await };
    tokio::select! {
        permit = overload::acquire(&cx.upstream, request) => permit,
        // No caller is left that could receive this failure.
        () = in_flight.wait_until_abandoned() => Err(Failure::ours(Kind::Stopping)),
    }
}

/// Joins or starts the shared call of a key. Returns the call, and true if it was in flight before.
/// Returns `None` if the call cannot be shared.
fn join_or_lead(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    key: &[u8],
) -> Option<(Rc<InFlightCall>, bool)> {
    if !request.coalesce {
        return None;
    }
    // Only calls that started under the same view share a response.
    let mut call_key = Vec::with_capacity(key.len() + 24);
    call_key.extend_from_slice(key);
    call_key.extend_from_slice(&request.caching.generation.to_le_bytes());
    call_key.extend_from_slice(&request.caching.head_seq.to_le_bytes());
    // Groups do not share responses: a call that one group's upstreams refuse can succeed on
    // another's.
    call_key.extend_from_slice(&request.group.to_le_bytes());
    match cx.in_flight_calls.join_or_lead(&call_key, request.deadline, request.class) {
        Coalescing::Alone => None,
        Coalescing::Wait(in_flight) => Some((in_flight, true)),
        Coalescing::Lead(guard) => {
            let in_flight = Rc::clone(&guard.call);
            let (leader, request) = (Rc::clone(cx), request.clone().into_owned());
            let key_bytes = key.len();
            // The future is boxed, because the runtime moves it several times.
            tokio::task::spawn_local(Box::pin(async move {
                let (key, in_flight) = (&guard.key[..key_bytes], Rc::clone(&guard.call));
                let response =
                    fetch_and_store(&leader, &request, Some(key), Some(&in_flight)).await;
                guard.complete(response);
            }));
            Some((in_flight, false))
        }
    }
}

/// Stores a cacheable response, unless the chain has changed since the decision.
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
    // A response of the index has no decision yet.
    let CacheDecision { facts, admission } = response
        .cache_decision
        .unwrap_or_else(|| CacheDecision::new(request, &response.payload, false, &view));
    let is_same = |entry: &Entry| entry.bytes == *bytes && is_valid(&entry.validity, &view);
    let same_since = match response.trust {
        Trust::Unopposed => cache.get(key).filter(is_same).and_then(|entry| entry.doubted_since),
        _ => None,
    };
    let keep = complete::decide_retention(response.trust, same_since, cx.now());
    let stored = match admission {
        Ok(validity) if keep != Retention::None && is_valid(&validity, &view) => {
            let is_error = facts.kind == ResponseKind::DeterministicError;
            let upstream = response
                .upstream
                .map_or(NO_UPSTREAM, |upstream| cx.snapshot.upstreams[upstream].number);
            let age_max = cache.age_max(is_error, &validity).map(|age| cx.now() + age);
            let (expires_at, doubted_since) = match keep {
                Retention::Brief { since } => (Some(cx.now() + BRIEF_RETENTION), Some(since)),
                _ => (age_max, None),
            };
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
    if stored { counters.fills.add(1) } else { counters.fills_refused.add(1) }
}
