//! Charges a call: request limits, and the quota of its key.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;
use wire::call::{Call, Rejection};
use wire::method::Method;

use super::Request;
use crate::call::failure::Failure;
use crate::limits::shared::SharedLimitQuery;
use crate::limits::{Charge, InFlightGuard, LimitedCall, Limits};
use crate::quota::unix_seconds;
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Returns the method's name, or an empty string for an unreadable call.
fn method_name<'a>(item: &'a Result<Call<'_>, Rejection<'_>>) -> &'a str {
    item.as_ref().map_or("", |call| &*call.method)
}

/// Returns the row whose weight is charged. If the exact name is unknown, letter case is ignored,
/// because upstreams may ignore it too.
fn charged_method(cx: &ThreadContext, chain: usize, name: &str) -> Option<&'static Method> {
    let family = cx.snapshot.chains[chain].family;
    family.find(name).map(|(_, method)| method).or_else(|| family.method_ignoring_case(name))
}

/// Charges the limits of the chain in the URL, and waits if a limit delays the call.
pub(super) async fn apply_limits<'a>(
    cx: &'a ThreadContext,
    limits: &'a Limits,
    request: &Request<'_>,
    item: &Result<Call<'_>, Rejection<'_>>,
    now: &mut Instant,
) -> Result<Option<Box<InFlightGuard<'a>>>, Failure> {
    let name = method_name(item);
    let method = charged_method(cx, request.chain, name);
    let caller = limited_call(cx, request, name, method);
    let mut charge = limits.charge(&caller, cx.now_ms(), &cx.counters);
    if let Charge::AskRedis(query) = charge {
        charge = Box::pin(charge_shared(cx, limits, &query, &caller)).await;
        *now = cx.tick();
    }
    match charge {
        // `settle` never returns `AskRedis`.
        Charge::Pass | Charge::AskRedis(_) => {}
        Charge::Wait(wait) => {
            Box::pin(wait_for_limit(cx, request, wait)).await;
            *now = cx.tick();
        }
        Charge::Refuse(failure) => return Err(failure),
    }
    limits.enter(&caller, &cx.counters)
}

/// Charges the quota of the caller's key.
pub(super) fn charge_quota(cx: &ThreadContext, route: &Route<'_>) -> Result<(), Failure> {
    let (Some(quotas), Some(grant)) = (&cx.snapshot.quotas, &route.caller.grant) else {
        return Ok(());
    };
    quotas.charge(grant, charged_method(cx, route.chain, &route.call.method), unix_seconds())
}

/// Returns the properties of a call that limits depend on.
pub(super) fn limited_call<'a>(
    cx: &'a ThreadContext,
    request: &Request<'a>,
    name: &'a str,
    method: Option<&'static Method>,
) -> LimitedCall<'a> {
    LimitedCall {
        client: request.caller.address,
        chain: request.chain,
        chain_name: &cx.snapshot.chains[request.chain].name,
        name,
        method,
        headers: request.limit_headers,
        grant: request.caller.grant.as_deref(),
        prefetched: request.prefetched,
    }
}

/// Charges a call in the zones that gateways share.
async fn charge_shared(
    cx: &ThreadContext,
    limits: &Limits,
    query: &SharedLimitQuery,
    caller: &LimitedCall<'_>,
) -> Charge {
    let verdict = match &cx.shared_limits {
        Some(client) => client.check(query).await,
        None => None,
    };
    cx.tick();
    limits.settle(query, verdict.as_ref(), caller, cx.now_ms(), &cx.counters)
}

/// Waits for the delay of a limit; only the request's memory is held.
async fn wait_for_limit(cx: &ThreadContext, request: &Request<'_>, wait: Duration) {
    let _waiting = WaitGuard::begin(cx, request.waiting);
    tokio::time::sleep(wait).await;
}

/// Counts a delayed call until it is dropped.
struct WaitGuard<'a> {
    cx: &'a ThreadContext,
    request_waiting: &'a Cell<usize>,
}

impl<'a> WaitGuard<'a> {
    fn begin(cx: &'a ThreadContext, request_waiting: &'a Cell<usize>) -> WaitGuard<'a> {
        request_waiting.set(request_waiting.get() + 1);
        cx.counters.calls_waiting.add(1);
        WaitGuard { cx, request_waiting }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.request_waiting.set(self.request_waiting.get() - 1);
        self.cx.counters.calls_waiting.subtract_one();
    }
}
