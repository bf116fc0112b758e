//! Serves a request. This file alone defines the order of the steps of a request and its calls.
//!
//! ```text
//! authenticate → find chain → decode
//!     → for each call: limit → route → authorize → charge quota → subscribe → resolve → respond
//! ```
//!
//! `path/explain.rs` runs the same steps for `weir explain`, up to `subscribe`.
//!
//! Other modules implement the steps: `wire` decodes, `limits` enforces limits, and `resolve` uses
//! caches and upstreams. The pure decisions are in `policy`. A failed step ends the call. `respond`
//! turns the outcome into the response, the counters and the access-log record.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use wire::call::{Body, Call, Params, Rejection, decode};

use crate::access::caller::{
    self, AccessValues, Authenticated, Caller, HeaderValue, RequestIdentity,
};
use crate::access_log::pending::CallRecords;
use crate::call::failure::{Failure, FailureKind};
use crate::call::reply::{CallReply, Content, Reply};
use crate::call::{Payload, ResponseBudget, UpstreamResponse};
use crate::limits::{LimitedCall, Limits, PrefetchedKey};
use crate::policy::access::{Denial, is_subscription_method};
use crate::resolve::{Route, resolve};
use crate::state::context::ThreadContext;
use crate::subscribe::outcome::SubscribeOutcome;
use crate::subscribe::{self, SubscribeContext};
use crate::trace::context::TraceContext;
use crate::trace::span::SpanKind;

mod charge;
pub(crate) mod explain;
mod respond;
mod route;

use charge::{apply_limits, build_limited_call, charge_quota, wait_for_limit};
use respond::{Progress, StepError, respond};
use route::{authorize, rewritten_chain, route};

/// Maximum number of calls of one batch in flight. With a higher limit, one client could use all
/// upstream connections. With a lower limit, large batches would be slow.
const BATCH_CONCURRENCY: usize = 64;

/// One complete HTTP request or WebSocket message.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Index of the chain that the path selects.
    pub(crate) chain: usize,
    pub(crate) body: &'a [u8],
    pub(crate) caller: &'a Caller,
    /// The URL path without the API key.
    pub(crate) path: &'a str,
    /// The host and headers that rules use; `None` if no rule needs them.
    pub(crate) access_values: Option<&'a AccessValues>,
    /// The access-log records of the request's calls; `None` if the access log is off.
    pub(crate) call_records: Option<&'a CallRecords>,
    /// The trace of the request; `None` if the request has no trace.
    pub(crate) trace: Option<&'a TraceContext>,
    /// Value of the header that a group hashes for load balancing; `None` without such a header.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// Values of the headers that are part of rate-limit keys.
    pub(crate) limit_headers: &'a [HeaderValue],
    /// The request's key in the zone (the counters) of the first limit. The key's table entry was
    /// prefetched into the CPU cache. `None` if there is no such limit, or if the calls of the
    /// request may have different keys.
    pub(crate) prefetched: Option<PrefetchedKey>,
    /// Number of the request's calls that wait because a limit delays them, or because their
    /// upstreams are overloaded.
    pub(crate) waiting: &'a Cell<usize>,
    pub(crate) subscribe_context: SubscribeContext<'a>,
}

/// Why a request is refused as a whole, before its body is decoded.
#[derive(Debug)]
pub(crate) enum RequestRefusal {
    /// Earlier requests of the client were denied more often than a limit allows.
    FrequentDenials(Failure),
    Denied(Denial),
    /// No chain is served at the path.
    NoChain,
}

/// Authenticates the client of a request, and returns the index of the request's chain. Sets
/// `client`, which must be a caller without a key, and the full path.
///
/// # Errors
/// Why the request is refused.
pub(crate) fn admit<'a>(
    cx: &ThreadContext,
    identity: &RequestIdentity<'a>,
    client: &mut Authenticated<'a>,
) -> Result<usize, RequestRefusal> {
    let snapshot = &cx.snapshot;
    if let Some(key_index) = &snapshot.key_index {
        if let Some(limits) = &snapshot.limits {
            cx.tick();
            limits
                .check_failures(identity.client, cx.now_ms(), &cx.counters)
                .map_err(RequestRefusal::FrequentDenials)?;
        }
        let tokens = cx.tokens.as_ref();
        let authenticated = caller::authenticate(&snapshot.config, key_index, tokens, identity);
        if let (Err(_), Some(limits)) = (&authenticated, &snapshot.limits) {
            limits.record_failure(identity.client, cx.now_ms(), &cx.counters);
        }
        *client = authenticated.map_err(RequestRefusal::Denied)?;
    }
    // A rule may rewrite a path without a chain to the path of a chain.
    let chain = snapshot.router.find_chain(client.path);
    let chain = chain.or_else(|| rewritten_chain(cx, identity.access_values, client));
    let chain = chain.ok_or(RequestRefusal::NoChain)?;
    // A grant holds the rights of an API key or token.
    let denies_chain = client.caller.grant.as_ref().is_some_and(|grant| !grant.allows_chain(chain));
    if denies_chain && identity.needs_key {
        return Err(RequestRefusal::Denied(Denial::Chain));
    }
    Ok(chain)
}

/// Serves one request. Sets its `prefetched` key.
pub(crate) async fn serve<'a>(cx: &Rc<ThreadContext>, request: &mut Request<'a>) -> Reply<'a> {
    cx.counters.requests.add(1);
    // The processor loads the table entry of the first limit's key while this thread decodes the
    // body. The methods of the calls are not known yet, hence `""` and `None`.
    let limits = cx.snapshot.limits.as_ref();
    request.prefetched =
        limits.and_then(|limits| limits.prefetch_key(&build_limited_call(cx, request, "", None)));
    let request = &*request;
    let single_reply =
        |call_reply: Option<CallReply<'a>>| call_reply.map_or(Reply::Empty, Reply::Single);
    match decode(request.body, &cx.snapshot.config.call_limits) {
        Err(rejection) => single_reply(serve_call(cx, request, Err(rejection)).await),
        Ok(Body::Single(parsed_call)) => single_reply(serve_call(cx, request, parsed_call).await),
        Ok(Body::Batch(parsed_calls)) => Box::pin(serve_batch(cx, request, parsed_calls)).await,
    }
}

/// Serves the calls of a batch concurrently. The replies are in the order of the calls.
async fn serve_batch<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    parsed_calls: Vec<Result<Call<'a>, Rejection<'a>>>,
) -> Reply<'a> {
    cx.counters.batches.add(1);
    let bytes_max = cx.snapshot.config.downstream.batch_response_bytes_max;
    // The budget bounds the responses that stay in memory until the whole batch is complete.
    let budget =
        ResponseBudget::new(&cx.snapshot.process.memory, bytes_max, FailureKind::BatchTooLarge);
    let replies: Vec<_> = futures_util::stream::iter(parsed_calls)
        .map(async |parsed_call| {
            let mut reply = serve_call(cx, request, parsed_call).await?;
            // A response over the limit is dropped at once, not when the batch is complete.
            if let Err(kind) = budget.add(reply.content.bytes()) {
                reply.content = Content::Payload(Payload::Failed(Failure::ours(kind)));
            }
            Some(reply)
        })
        .buffered(BATCH_CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if replies.is_empty() { Reply::Empty } else { Reply::Batch(replies) }
}

/// Serves one call of a body. Returns `None` for a notification, which gets no response.
async fn serve_call<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    parsed_call: Result<Call<'a>, Rejection<'a>>,
) -> Option<CallReply<'a>> {
    let span = request
        .trace
        .and_then(|trace| trace.begin(SpanKind::Internal, "call", || cx.upstreams.random()));
    let trace = span.as_ref().map(|span| span.context().clone());
    let trace = trace.as_ref().or(request.trace);
    let mut progress = Progress::new(request.chain, span);
    let outcome = run_steps(cx, request, trace, &parsed_call, &mut progress, Serving).await;
    respond(cx, request, &parsed_call, &mut progress, outcome)
}

/// Handles the decisions of a call's steps. [`Serving`] acts on them, and [`explain`] records them.
/// The handler is a type parameter of the steps, so it costs a served call nothing.
trait StepHandler {
    /// The result of the last step.
    type Outcome;

    /// Called before `limits` are applied to a call.
    fn on_limits(&mut self, _limits: &Limits, _call: &LimitedCall<'_>) {}

    /// Delays the call, because a limit demands it.
    async fn delay(&mut self, cx: &ThreadContext, request: &Request<'_>, wait: Duration);

    /// Called with the indices of the rules that match a call.
    fn on_rules(&mut self, _rules: &[usize]) {}

    /// Runs the last step. `is_sticky` is true if the call may be about a subscription or filter.
    /// The call's deadline counts from `now`.
    async fn finish(
        self,
        cx: &Rc<ThreadContext>,
        request: &Request<'_>,
        route: &Route<'_>,
        is_sticky: bool,
        now: Instant,
    ) -> Self::Outcome;
}

/// Serves a call.
struct Serving;

impl StepHandler for Serving {
    type Outcome = UpstreamResponse;

    async fn delay(&mut self, cx: &ThreadContext, request: &Request<'_>, wait: Duration) {
        Box::pin(wait_for_limit(cx, request, wait)).await;
    }

    async fn finish(
        self,
        cx: &Rc<ThreadContext>,
        request: &Request<'_>,
        route: &Route<'_>,
        is_sticky: bool,
        now: Instant,
    ) -> UpstreamResponse {
        if is_sticky {
            Box::pin(subscribe_or_resolve(cx, request, route, now)).await
        } else {
            resolve(cx, route, now).await
        }
    }
}

/// Runs the steps of a call in order. `trace` is the context of the call's span.
async fn run_steps<'a, H: StepHandler>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    trace: Option<&TraceContext>,
    parsed_call: &Result<Call<'a>, Rejection<'a>>,
    progress: &mut Progress,
    mut handler: H,
) -> Result<H::Outcome, StepError> {
    let mut now = cx.tick();
    let _in_flight_guard = match &cx.snapshot.limits {
        Some(limits) => {
            apply_limits(cx, limits, request, parsed_call, &mut now, &mut handler).await?
        }
        None => None,
    };
    let call = parsed_call.as_ref().map_err(|_| StepError::Unparsable)?;
    if let Some(grant) = &request.caller.grant {
        cx.counters.keys[grant.index].calls.add(1);
    }
    progress.started_at = Some(cx.now());
    progress.record_index = request.call_records.map_or(0, CallRecords::begin);
    let route = Route { trace, ..route(cx, request, call, &mut handler)? };
    progress.chain = route.chain;
    progress.row = route.row.map(|(row_index, _)| row_index);
    authorize(cx, &route)?;
    charge_quota(cx, &route)?;
    // A sticky method creates or uses a subscription or filter, so its calls must reach the same
    // upstream.
    let is_sticky =
        route.method().map_or_else(|| is_subscription_method(&call.method), |method| method.sticky);
    Ok(handler.finish(cx, request, &route, is_sticky, now).await)
}

/// Serves a call about subscriptions or filters. Calls that the gateway cannot serve itself go to
/// an upstream.
async fn subscribe_or_resolve(
    cx: &Rc<ThreadContext>,
    request: &Request<'_>,
    call_route: &Route<'_>,
    now: Instant,
) -> UpstreamResponse {
    match subscribe::serve(cx, request.subscribe_context, call_route).await {
        SubscribeOutcome::Payload(payload) => UpstreamResponse::local(payload),
        SubscribeOutcome::Logs(filter) => {
            let params = [b"[", &*filter, b"]"].concat();
            let method = Cow::Borrowed("eth_getLogs");
            let call = Call { method, params: Params::Array(&params), ..call_route.call.clone() };
            // The rules were applied to the client's call, which has only the filter's id. The
            // rules must also apply to the `eth_getLogs` call, which has the filter itself.
            let request = Request { chain: call_route.chain, ..*request };
            let log_route = route(cx, &request, &call, &mut Serving);
            let log_route = log_route.and_then(|log_route| {
                let is_same_chain = log_route.chain == call_route.chain;
                if is_same_chain {
                    Ok(log_route)
                } else {
                    Err(Failure::ours(FailureKind::Forbidden))
                }
            });
            match log_route {
                Ok(log_route) => {
                    let log_route = Route { trace: call_route.trace, ..log_route };
                    resolve(cx, &log_route, now).await
                }
                Err(failure) => UpstreamResponse::from_failure(failure),
            }
        }
        SubscribeOutcome::Upstream => resolve(cx, call_route, now).await,
    }
}
