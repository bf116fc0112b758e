//! The order of all steps of a call. This file alone knows it.
//!
//! ```text
//! decode → limit → route → authorize → charge quota → subscribe → resolve → respond
//! ```
//!
//! Each step lives elsewhere: decoding in `wire`, decisions in `policy`, limits in `limits`, what is
//! read of caches and upstreams in `resolve`. A step that fails ends the call; one place turns its
//! failure into the response, the counters and the line of the access log.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use wire::call::{Body, Call, Params, Refusal, decode};
use wire::method::Method;

use crate::access::caller::{Caller, Extra, KeyHeader};
use crate::access_log::pending::CallRecords;
use crate::access_log::record::CallRecord;
use crate::call::cache_status::CacheStatus;
use crate::call::failure::{Failure, Kind};
use crate::call::reply::{Answered, Content, Reply, code_of};
use crate::call::response::{Payload, UpstreamResponse};
use crate::io::memory::{Full, Hold};
use crate::limits::shared::Question;
use crate::limits::{Ahead, Charge, Counted, Entered, Limits};
use crate::policy::access::is_subscription;
use crate::policy::memory::Purpose;
use crate::quota::unix_seconds;
use crate::resolve::{Route, resolve};
use crate::state::context::ThreadContext;
use crate::subscribe;
use crate::subscribe::{Outcome, Subscribing};

mod route;

pub(crate) use route::rewritten;
use route::{authorize, route};

/// Calls of one batch that are in flight at a time. More would let one client take all connections
/// to the upstreams; fewer would make large batches slow.
const BATCH_CONCURRENCY: usize = 64;

/// Bytes of a method's name that are logged.
const METHOD_BYTES_MAX: usize = 256;

/// One HTTP request or one WebSocket message, whole.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Index of the chain that its path leads to.
    pub(crate) chain: usize,
    pub(crate) body: &'a [u8],
    pub(crate) caller: &'a Caller,
    /// Its path, without a key.
    pub(crate) path: &'a str,
    /// What rules read of its head; `None` while no rule reads it.
    pub(crate) extra: Option<&'a Extra>,
    /// The records of its calls for the access log; `None` while the log is off.
    pub(crate) calls: Option<&'a CallRecords>,
    /// Value of the header that a group balances by, if one does.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// Values of the headers that keys of limits are made of.
    pub(crate) limit_headers: &'a [KeyHeader],
    /// Its key in the first of its limits, where that is the same for all its calls.
    pub(crate) ahead: Option<Ahead>,
    /// How many of its calls wait for their turn by a limit.
    pub(crate) waiting: &'a Cell<usize>,
    pub(crate) subscribing: Subscribing<'a>,
}

/// Serves one request.
pub(crate) async fn serve<'a>(cx: &Rc<ThreadContext>, request: &Request<'a>) -> Reply<'a> {
    cx.counters.requests.add(1);
    // The limits' memory is fetched while the body is decoded.
    let limits = cx.snapshot.limits.as_ref();
    let ahead = limits.and_then(|limits| limits.look_ahead(&counted(cx, request, "", None)));
    let request = &Request { ahead, ..*request };
    let reply = |response: Option<Answered<'a>>| response.map_or(Reply::Nothing, Reply::One);
    match decode(request.body, &cx.snapshot.config.call_limits) {
        Err(refusal) => reply(serve_call(cx, request, Err(refusal)).await),
        Ok(Body::Single(item)) => reply(serve_call(cx, request, item).await),
        Ok(Body::Batch(items)) => Box::pin(serve_batch(cx, request, items)).await,
    }
}

async fn serve_batch<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    items: Vec<Result<Call<'a>, Refusal<'a>>>,
) -> Reply<'a> {
    cx.counters.batches.add(1);
    let left = Cell::new(cx.snapshot.config.front.batch_answer_bytes_max);
    // What waits for the other calls of the batch.
    let hold = Hold::new(&cx.snapshot.registry.memory, Purpose::Response);
    let gathered = RefCell::new((hold, 0));
    let answers: Vec<_> = futures_util::stream::iter(items)
        .map(async |item| {
            let mut answered = serve_call(cx, request, item).await?;
            // What has no room is not kept until all are there.
            let bytes = answered.payload.bytes();
            let counted = match left.get().checked_sub(bytes) {
                None => Err(Kind::BatchTooLarge),
                Some(rest) => {
                    left.set(rest);
                    let (hold, sum) = &mut *gathered.borrow_mut();
                    hold.set(*sum + bytes).map(|()| *sum += bytes).map_err(|Full| Kind::Memory)
                }
            };
            if let Err(kind) = counted {
                answered.payload = Content::Payload(Payload::Failed(Failure::ours(kind)));
            }
            Some(answered)
        })
        .buffered(BATCH_CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if answers.is_empty() { Reply::Nothing } else { Reply::Batch(answers) }
}

/// What is known of a call in flight, for counters and the access log.
#[derive(Default)]
struct Progress {
    /// When its steps began after the limits; `None` for a call that a limit refused or that cannot be
    /// read.
    began: Option<Duration>,
    /// Its place among the records of the request.
    record: usize,
    /// The chain and the method's row, once it is routed.
    routed: Option<(usize, Option<usize>)>,
}

/// Why a call ended before it was resolved.
enum Stop {
    /// It cannot be read.
    Unreadable,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// Serves one call of a body; returns `None` for a notification.
async fn serve_call<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    item: Result<Call<'a>, Refusal<'a>>,
) -> Option<Answered<'a>> {
    let mut progress = Progress::default();
    let served = steps(cx, request, &item, &mut progress).await;
    respond(cx, request, item, &progress, served)
}

/// The steps, in order.
async fn steps<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    item: &Result<Call<'a>, Refusal<'a>>,
    progress: &mut Progress,
) -> Result<(UpstreamResponse, CacheStatus), Stop> {
    let mut now = cx.tick();
    let _entered = limit(cx, request, item, &mut now).await?;
    let call = item.as_ref().map_err(|_| Stop::Unreadable)?;
    if let Some(grant) = &request.caller.grant {
        cx.counters.keys[grant.index].calls.add(1);
    }
    progress.began = Some(cx.now());
    progress.record = request.calls.map_or(0, CallRecords::begin);
    let route = route(cx, request, call)?;
    progress.routed = Some((route.chain, route.row.map(|(place, _)| place)));
    authorize(cx, &route)?;
    charge_quota(cx, &route)?;
    let sticky = route.method().map_or_else(|| is_subscription(&call.method), |own| own.sticky);
    let (fetched, status) = if sticky {
        Box::pin(subscribe_or_resolve(cx, request, &route, now)).await
    } else {
        resolve(cx, &route, now).await
    };
    Ok((fetched, status))
}

/// The one place that turns what came of a call, or its failure, into the response, the counters and
/// the record of the access log.
fn respond<'a>(
    cx: &ThreadContext,
    request: &Request<'_>,
    item: Result<Call<'a>, Refusal<'a>>,
    progress: &Progress,
    served: Result<(UpstreamResponse, CacheStatus), Stop>,
) -> Option<Answered<'a>> {
    let counters = &cx.counters;
    let took = progress.began.map_or(Duration::ZERO, |began| cx.now().saturating_sub(began));
    let (chain, row) = progress.routed.unwrap_or((request.chain, None));
    let id = match &item {
        Ok(call) => call.id.raw(),
        Err(refusal) => Some(refusal.id.unwrap_or(b"null")),
    };
    let (name, refusal) = match item {
        Ok(call) => (call.method, None),
        Err(refusal) => (Cow::Borrowed(""), Some(refusal)),
    };
    let (content, status, node) = match served {
        Ok((fetched, status)) => {
            let counts = counters.method(chain, row);
            counts.answered(status, took);
            match &fetched.payload {
                Payload::Result(_) => {}
                Payload::Error(_) => counts.errors.add(1),
                Payload::Failed(failure) => {
                    counts.failed.add(1);
                    tracing::debug!(method = &*name, %failure, "call failed");
                }
            }
            (Content::Payload(fetched.payload), Some(status), fetched.node)
        }
        Err(Stop::Failed(failure)) => (Content::Payload(Payload::Failed(failure)), None, None),
        Err(Stop::Unreadable) => {
            counters.calls_refused.add(1);
            let refusal = refusal.expect("a call that cannot be read has a refusal");
            (Content::Refused(refusal), None, None)
        }
    };
    let response = Answered { id: b"null", payload: content, mark: status, node };
    record(cx, request, chain, progress, &name, &response, took);
    if progress.began.is_some() && id.is_none() {
        counters.notifications.add(1);
    }
    // A notification that a limit refused is answered if it came alone: its HTTP status has to say so,
    // and its response cannot be taken for another one's.
    let alone = || request.body.trim_ascii_start().first() != Some(&b'[');
    let id = id.or_else(|| (progress.began.is_none() && alone()).then_some(&b"null"[..]))?;
    Some(Answered { id, ..response })
}

/// Records the response to a call for the access log.
fn record(
    cx: &ThreadContext,
    request: &Request<'_>,
    chain: usize,
    progress: &Progress,
    method: &str,
    response: &Answered<'_>,
    took: Duration,
) {
    let Some(calls) = request.calls else { return };
    let snapshot = &cx.snapshot;
    let place = if progress.began.is_some() { progress.record } else { calls.begin() };
    calls.finish(place, || {
        let upstream_used = !matches!(response.mark, None | Some(CacheStatus::Hit));
        CallRecord {
            method: method[..method.floor_char_boundary(METHOD_BYTES_MAX)].into(),
            chain: Arc::clone(&snapshot.chains[chain].name),
            error: code_of(&response.payload, &snapshot.config),
            cache: response.mark,
            upstream: response.node.map(|node| Arc::clone(&snapshot.nodes[node].config.name)),
            bytes: response.payload.bytes(),
            took,
            upstream_time: upstream_used.then_some(took),
        }
    });
}

/// The method's name; empty where there is no call.
fn name_of<'a>(item: &'a Result<Call<'_>, Refusal<'_>>) -> &'a str {
    item.as_ref().map_or("", |call| &*call.method)
}

/// The row that a call is weighed by: a method in another case is what it may be to an upstream.
fn weighed(cx: &ThreadContext, chain: usize, name: &str) -> Option<&'static Method> {
    let family = cx.snapshot.chains[chain].family;
    family.find(name).map(|(_, method)| method).or_else(|| family.in_any_case(name))
}

/// Charges the limits of the chain in the URL and waits for the call's turn.
async fn limit<'a>(
    cx: &'a ThreadContext,
    request: &Request<'_>,
    item: &Result<Call<'_>, Refusal<'_>>,
    now: &mut Instant,
) -> Result<Option<Box<Entered<'a>>>, Failure> {
    let Some(limits) = &cx.snapshot.limits else { return Ok(None) };
    let name = name_of(item);
    let method = weighed(cx, request.chain, name);
    let caller = counted(cx, request, name, method);
    let mut charge = limits.charge(&caller, cx.now_ms(), &cx.counters);
    if let Charge::Ask(question) = charge {
        charge = Box::pin(judged(cx, limits, &question, &caller)).await;
        *now = cx.tick();
    }
    match charge {
        // Nothing more is asked once that was.
        Charge::Pass | Charge::Ask(_) => {}
        Charge::Wait(wait) => {
            Box::pin(wait_turn(cx, request, wait)).await;
            *now = cx.tick();
        }
        Charge::Refuse(failure) => return Err(failure),
    }
    limits.enter(&caller, &cx.counters)
}

/// Charges the quota of the caller's key.
fn charge_quota(cx: &ThreadContext, route: &Route<'_>) -> Result<(), Failure> {
    let (Some(quotas), Some(grant)) = (&cx.snapshot.quotas, &route.caller.grant) else {
        return Ok(());
    };
    quotas.charge(grant, weighed(cx, route.chain, &route.call.method), unix_seconds())
}

/// What limits need to know of a call.
fn counted<'a>(
    cx: &'a ThreadContext,
    request: &Request<'a>,
    name: &'a str,
    method: Option<&'static Method>,
) -> Counted<'a> {
    Counted {
        client: request.caller.address,
        chain: request.chain,
        chain_name: &cx.snapshot.chains[request.chain].name,
        name,
        method,
        headers: request.limit_headers,
        grant: request.caller.grant.as_deref(),
        ahead: request.ahead,
    }
}

/// What becomes of a call in zones that gateways share.
async fn judged(
    cx: &ThreadContext,
    limits: &Limits,
    question: &Question,
    caller: &Counted<'_>,
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

/// Serves a call about subscriptions or filters, which is the gateway's own unless only an upstream can
/// answer it.
async fn subscribe_or_resolve(
    cx: &Rc<ThreadContext>,
    request: &Request<'_>,
    way: &Route<'_>,
    now: Instant,
) -> (UpstreamResponse, CacheStatus) {
    match subscribe::answer(cx, request.subscribing, way).await {
        Outcome::Payload(payload) => (UpstreamResponse::of(payload), CacheStatus::Bypass),
        Outcome::Logs(filter) => {
            let params = [b"[", &*filter, b"]"].concat();
            let method = Cow::Borrowed("eth_getLogs");
            let call = Call { method, params: Params::Array(&params), ..way.call.clone() };
            // The rules have seen only the filter's id.
            let directed = route(cx, &Request { chain: way.chain, ..*request }, &call);
            let directed = directed.and_then(|directed| {
                let same = directed.chain == way.chain;
                if same { Ok(directed) } else { Err(Failure::ours(Kind::Forbidden)) }
            });
            match directed {
                Ok(directed) => resolve(cx, &directed, now).await,
                Err(failure) => (UpstreamResponse::failed(failure), CacheStatus::Bypass),
            }
        }
        Outcome::Node => resolve(cx, way, now).await,
    }
}
