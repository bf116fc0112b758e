//! Charges a call to the request limits and to the quota of its API key.

use std::time::Duration;

use tokio::time::Instant;
use wire::call::{Call, Rejection};
use wire::method::Method;

use super::{Request, StepHandler};
use crate::call::CountGuard;
use crate::call::failure::Failure;
use crate::io::clock::unix_seconds;
use crate::limits::shared::SharedLimitQuery;
use crate::limits::{Charge, InFlightGuard, LimitedCall, Limits};
use crate::metrics::instrument::Gauge;
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Returns the method whose weight (relative cost) is charged; `None` for unknown methods. If no
/// method has exactly this name, letter case is ignored, because upstreams may ignore it too.
fn find_charged_method(cx: &ThreadContext, chain: usize, name: &str) -> Option<&'static Method> {
    let family = cx.snapshot.chains[chain].family;
    family.find(name).map(|(_, method)| method).or_else(|| family.method_ignoring_case(name))
}

/// Charges a call to the limits of the chain that the URL selects. If a limit delays the call, the
/// handler waits. Updates `now` after a wait. Returns a guard that counts the call as in flight; `None` if
/// the chain has no limit of calls in flight.
///
/// # Errors
/// The failure if a limit refuses the call.
pub(super) async fn apply_limits<'a>(
    cx: &'a ThreadContext,
    limits: &'a Limits,
    request: &Request<'_>,
    parsed_call: &Result<Call<'_>, Rejection<'_>>,
    now: &mut Instant,
    handler: &mut impl StepHandler,
) -> Result<Option<Box<InFlightGuard<'a>>>, Failure> {
    // A call that cannot be parsed has no method name.
    let name = parsed_call.as_ref().map_or("", |call| &*call.method);
    let method = find_charged_method(cx, request.chain, name);
    let limited_call = build_limited_call(cx, request, name, method);
    handler.on_limits(limits, &limited_call);
    let mut charge = limits.charge(&limited_call, cx.now_ms(), &cx.counters);
    if let Charge::AskRedis(query) = charge {
        charge = Box::pin(charge_shared(cx, limits, &query, &limited_call)).await;
        *now = cx.tick();
    }
    match charge {
        // `apply_decision` never returns `AskRedis`.
        Charge::Pass | Charge::AskRedis(_) => {}
        Charge::Wait(wait) => {
            handler.delay(cx, request, wait).await;
            *now = cx.tick();
        }
        Charge::Refuse(failure) => return Err(failure),
    }
    limits.count_in_flight(&limited_call, &cx.counters)
}

/// Charges the quota of the caller's API key.
///
/// # Errors
/// The failure if the quota is used up.
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

/// Asks Redis whether a call passes the limits that gateways share, and charges the call.
async fn charge_shared(
    cx: &ThreadContext,
    limits: &Limits,
    query: &SharedLimitQuery,
    limited_call: &LimitedCall<'_>,
) -> Charge {
    // `None` if Redis has not decided. The gateway then decides by its local share.
    let decision = match &cx.shared_limits {
        Some(client) => client.check(query).await,
        None => None,
    };
    cx.tick();
    limits.apply_decision(query, decision.as_ref(), limited_call, cx.now_ms(), &cx.counters)
}

/// Waits as long as a limit delays the call. Meanwhile the call holds memory, but no upstream
/// connection.
pub(super) async fn wait_for_limit(cx: &ThreadContext, request: &Request<'_>, wait: Duration) {
    let _count_guard = CountGuard::new(request.waiting);
    cx.counters.calls_waiting.add(1);
    let _gauge_guard = GaugeGuard(&cx.counters.calls_waiting);
    tokio::time::sleep(wait).await;
}

/// Lowers the gauge of delayed calls when this guard is dropped.
struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.subtract_one();
    }
}
