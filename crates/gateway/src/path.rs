//! The order of all steps of a call. This file alone knows it.
//!
//! ```text
//! decode → limit → route → authorize → charge quota → subscribe → resolve → respond
//! ```
//!
//! Each step lives elsewhere: decoding in `wire`, decisions in `policy`, limits in `limits`, what
//! is read of caches and upstreams in `resolve`. A step that fails ends the call; one place turns
//! its failure into the response, the counters and the line of the access log.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::StreamExt;
use tokio::time::Instant;
use wire::call::{Body, Call, Params, Rejection, decode};

use crate::access::caller::{Caller, Extra, KeyHeader};
use crate::access_log::pending::CallRecords;
use crate::call::cache_status::CacheStatus;
use crate::call::failure::{Failure, Kind};
use crate::call::reply::{Answered, Content, Reply};
use crate::call::response::{Payload, UpstreamResponse};
use crate::io::memory::{Full, Hold};
use crate::limits::PrefetchedKey;
use crate::policy::access::is_subscription;
use crate::policy::memory::Purpose;
use crate::resolve::{Route, resolve};
use crate::state::context::ThreadContext;
use crate::subscribe::{self, Outcome, Subscribing};

mod charge;
mod respond;
mod route;

use charge::{charge_quota, counted, limit};
use respond::{Progress, Stop, respond};
pub(crate) use route::rewritten;
use route::{authorize, route};

/// Calls of one batch that are in flight at a time. More would let one client take all connections
/// to the upstreams; fewer would make large batches slow.
const BATCH_CONCURRENCY: usize = 64;

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
    pub(crate) prefetched: Option<PrefetchedKey>,
    /// How many of its calls wait for their turn by a limit.
    pub(crate) waiting: &'a Cell<usize>,
    pub(crate) subscribing: Subscribing<'a>,
}

/// Serves one request.
pub(crate) async fn serve<'a>(cx: &Rc<ThreadContext>, request: &Request<'a>) -> Reply<'a> {
    cx.counters.requests.add(1);
    // The limits' memory is fetched while the body is decoded.
    let limits = cx.snapshot.limits.as_ref();
    let prefetched = limits.and_then(|limits| limits.prefetch_key(&counted(cx, request, "", None)));
    let request = &Request { prefetched, ..*request };
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
    items: Vec<Result<Call<'a>, Rejection<'a>>>,
) -> Reply<'a> {
    cx.counters.batches.add(1);
    let left = Cell::new(cx.snapshot.config.downstream.batch_response_bytes_max);
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

/// Serves one call of a body; returns `None` for a notification.
async fn serve_call<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    item: Result<Call<'a>, Rejection<'a>>,
) -> Option<Answered<'a>> {
    let mut progress = Progress::default();
    let served = steps(cx, request, &item, &mut progress).await;
    respond(cx, request, item, &progress, served)
}

/// The steps, in order.
async fn steps<'a>(
    cx: &Rc<ThreadContext>,
    request: &Request<'a>,
    item: &Result<Call<'a>, Rejection<'a>>,
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

/// Serves a call about subscriptions or filters, which is the gateway's own unless only an upstream
/// can answer it.
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
        Outcome::Upstream => resolve(cx, way, now).await,
    }
}
