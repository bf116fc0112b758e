//! Charges a call: request limits, and the quota of its key.

use std::time::Duration;

use tokio::time::Instant;
use wire::call::{Call, Rejection};
use wire::method::Method;

use super::Request;
use crate::call::CountGuard;
use crate::call::failure::Failure;
use crate::io::clock::unix_seconds;
use crate::limits::shared::SharedLimitQuery;
use crate::limits::{Charge, InFlightGuard, LimitedCall, Limits};
use crate::metrics::instrument::Gauge;
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Returns the row whose weight is charged. If the exact name is unknown, letter case is ignored,
/// because upstreams may ignore it too.
fn find_charged_method(cx: &ThreadContext, chain: usize, name: &str) -> Option<&'static Method> {
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
    // An unreadable call has no name.
    let name = item.as_ref().map_or("", |call| &*call.method);
    let method = find_charged_method(cx, request.chain, name);
    let caller = build_limited_call(cx, request, name, method);
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
    quotas.charge(grant, find_charged_method(cx, route.chain, &route.call.method), unix_seconds())
}

/// Returns the properties of a call that limits depend on.
pub(super) fn build_limited_call<'a>(
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
    let decision = match &cx.shared_limits {
        Some(client) => client.check(query).await,
        None => None,
    };
    cx.tick();
    limits.settle(query, decision.as_ref(), caller, cx.now_ms(), &cx.counters)
}

/// Waits for the delay of a limit; only the request's memory is held.
async fn wait_for_limit(cx: &ThreadContext, request: &Request<'_>, wait: Duration) {
    let _count_guard = CountGuard::new(request.waiting);
    cx.counters.calls_waiting.add(1);
    let _gauge_guard = GaugeGuard(&cx.counters.calls_waiting);
    tokio::time::sleep(wait).await;
}

/// Lowers the gauge of delayed calls when it is dropped.
struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.subtract_one();
    }
}
