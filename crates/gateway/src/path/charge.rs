//! What a call is charged: request limits and the quota of its key.

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

/// The method's name; empty where there is no call.
fn name_of<'a>(item: &'a Result<Call<'_>, Rejection<'_>>) -> &'a str {
    item.as_ref().map_or("", |call| &*call.method)
}

/// The row that a call is weighed by: a method in another case is what it may be to an upstream.
fn weighed(cx: &ThreadContext, chain: usize, name: &str) -> Option<&'static Method> {
    let family = cx.snapshot.chains[chain].family;
    family.find(name).map(|(_, method)| method).or_else(|| family.method_ignoring_case(name))
}

/// Charges the limits of the chain in the URL and waits for the call's turn.
pub(super) async fn limit<'a>(
    cx: &'a ThreadContext,
    request: &Request<'_>,
    item: &Result<Call<'_>, Rejection<'_>>,
    now: &mut Instant,
) -> Result<Option<Box<InFlightGuard<'a>>>, Failure> {
    let Some(limits) = &cx.snapshot.limits else { return Ok(None) };
    let name = name_of(item);
    let method = weighed(cx, request.chain, name);
    let caller = counted(cx, request, name, method);
    let mut charge = limits.charge(&caller, cx.now_ms(), &cx.counters);
    if let Charge::AskRedis(question) = charge {
        charge = Box::pin(judged(cx, limits, &question, &caller)).await;
        *now = cx.tick();
    }
    match charge {
        // Nothing more is asked once that was.
        Charge::Pass | Charge::AskRedis(_) => {}
        Charge::Wait(wait) => {
            Box::pin(wait_turn(cx, request, wait)).await;
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
    quotas.charge(grant, weighed(cx, route.chain, &route.call.method), unix_seconds())
}

/// What limits need to know of a call.
pub(super) fn counted<'a>(
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

/// What becomes of a call in zones that gateways share.
async fn judged(
    cx: &ThreadContext,
    limits: &Limits,
    question: &SharedLimitQuery,
    caller: &LimitedCall<'_>,
) -> Charge {
    let verdict = match &cx.judge {
        Some(judge) => judge.ask(question).await,
        None => None,
    };
    cx.tick();
    limits.settle(question, verdict.as_ref(), caller, cx.now_ms(), &cx.counters)
}

/// Waits until a call's turn has come, holding nothing but the request.
async fn wait_turn(cx: &ThreadContext, request: &Request<'_>, wait: Duration) {
    let _waiting = Waiting::begin(cx, request.waiting);
    tokio::time::sleep(wait).await;
}

/// Counts a call that waits for its turn, until it is dropped.
struct Waiting<'a> {
    cx: &'a ThreadContext,
    of_request: &'a Cell<usize>,
}

impl<'a> Waiting<'a> {
    fn begin(cx: &'a ThreadContext, of_request: &'a Cell<usize>) -> Waiting<'a> {
        of_request.set(of_request.get() + 1);
        cx.counters.calls_waiting.add(1);
        Waiting { cx, of_request }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.of_request.set(self.of_request.get() - 1);
        self.cx.counters.calls_waiting.subtract_one();
    }
}
