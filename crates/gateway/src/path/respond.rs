//! Turns the outcome of a call into its response, the counters and the access-log record.

use std::sync::Arc;
use std::time::Duration;

use wire::call::{Call, Rejection};

use super::Request;
use crate::access_log::record::CallRecord;
use crate::call::failure::{Failure, describe};
use crate::call::reply::{CallReply, Content, error_code};
use crate::call::{CacheStatus, Payload, Tier, UpstreamResponse};
use crate::state::context::ThreadContext;
use crate::trace::context::ActiveSpan;

/// Maximum bytes of a method's name in the log.
const METHOD_BYTES_MAX: usize = 256;

/// The state of a call in flight, for counters and the access log.
pub(super) struct Progress {
    /// When the call passed the limits; `None` if a limit refused it or it cannot be parsed.
    pub(super) began: Option<Duration>,
    /// The index of its record in the request.
    pub(super) record: usize,
    /// Index of the chain: of the path before routing, of the route after.
    pub(super) chain: usize,
    /// Index of the method's row in the method table; `None` before routing or if it is unknown.
    pub(super) row: Option<usize>,
    /// The span of the call; `None` if its request is not sampled.
    pub(super) span: Option<Box<ActiveSpan>>,
}

/// The reason why a call ended before it was resolved.
pub(super) enum Stop {
    /// The call cannot be parsed.
    Unreadable,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// Turns the outcome of a call into its response, the counters and the access-log record. Returns
/// `None` for a notification.
pub(super) fn respond<'a>(
    cx: &ThreadContext,
    request: &Request<'_>,
    item: &Result<Call<'a>, Rejection<'a>>,
    progress: &mut Progress,
    served: Result<UpstreamResponse, Stop>,
) -> Option<CallReply<'a>> {
    let counters = &cx.counters;
    let duration = progress.began.map_or(Duration::ZERO, |began| cx.now().saturating_sub(began));
    let (chain, row) = (progress.chain, progress.row);
    let (id, name) = match item {
        Ok(call) => (call.id, &*call.method),
        Err(rejection) => (Some(rejection.id.unwrap_or(b"null")), ""),
    };
    let local_reply = |content| CallReply {
        id: b"null",
        content,
        cache_status: None,
        tier: None,
        upstream_index: None,
    };
    let reply = match served {
        Ok(response) => {
            let counts = counters.method(chain, row);
            counts.record_call(response.cache_status, duration);
            if let Some(span) = &progress.span {
                counts.latency.set_exemplar(duration, span.context().trace_id());
            }
            match &response.payload {
                Payload::Result(_) => {}
                Payload::Error(_) => counts.errors.add(1),
                Payload::Failed(failure) => {
                    counts.failed.add(1);
                    let upstream = response.upstream;
                    tracing::debug!(method = name, upstream, ?failure, "call failed");
                }
            }
            CallReply {
                cache_status: Some(response.cache_status),
                tier: response.tier,
                upstream_index: response.upstream,
                ..local_reply(Content::Payload(response.payload))
            }
        }
        Err(Stop::Failed(failure)) => local_reply(Content::Payload(Payload::Failed(failure))),
        Err(Stop::Unreadable) => {
            counters.calls_refused.add(1);
            let rejection = item.as_ref().expect_err("an unreadable call has a rejection");
            local_reply(Content::Rejected(rejection.clone()))
        }
    };
    record_call(cx, request, progress, name, &reply, duration);
    if let Some(span) = &mut progress.span {
        describe_call(cx, span, chain, row, &reply);
    }
    if progress.began.is_some() && id.is_none() {
        counters.notifications.add(1);
    }
    // If a limit refuses a single notification, the client receives a response, because the HTTP
    // status must report the refusal. In a batch, a client could assign that response to another
    // call.
    let is_single = || request.body.trim_ascii_start().first() != Some(&b'[');
    let id = id.or_else(|| (progress.began.is_none() && is_single()).then_some(&b"null"[..]))?;
    Some(CallReply { id, ..reply })
}

/// Adds the attributes of a call to its span. An unknown method is not named, because its name is
/// the client's text.
fn describe_call(
    cx: &ThreadContext,
    span: &mut ActiveSpan,
    chain: usize,
    row: Option<usize>,
    reply: &CallReply<'_>,
) {
    let snapshot = &cx.snapshot;
    span.set("rpc.system", "jsonrpc");
    span.set("weir.chain", &snapshot.chains[chain].name);
    let family = snapshot.chains[chain].family;
    if let Some(method) = row.and_then(|row| family.methods().nth(row)) {
        span.rename(method.name);
        span.set("rpc.method", method.name);
    }
    if let Some(status) = reply.cache_status {
        span.set("weir.cache", reply.tier.map_or(status.as_str(), Tier::hit));
    }
    if let Some(index) = reply.upstream_index {
        span.set("weir.upstream", &snapshot.upstreams[index].config.name);
    }
    if let Some(code) = error_code(&reply.content, &snapshot.config) {
        span.set("rpc.jsonrpc.error_code", code);
    }
    if let Content::Payload(Payload::Failed(failure)) = &reply.content {
        span.fail(describe(failure.kind, &snapshot.config).message.to_owned());
    }
}

/// Records the response to a call for the access log.
fn record_call(
    cx: &ThreadContext,
    request: &Request<'_>,
    progress: &Progress,
    method: &str,
    reply: &CallReply<'_>,
    duration: Duration,
) {
    let Some(calls) = request.calls else { return };
    let snapshot = &cx.snapshot;
    let index = if progress.began.is_some() { progress.record } else { calls.begin() };
    calls.finish(index, || {
        let used_upstream = !matches!(reply.cache_status, None | Some(CacheStatus::Hit));
        CallRecord {
            method: method[..method.floor_char_boundary(METHOD_BYTES_MAX)].into(),
            chain: Arc::clone(&snapshot.chains[progress.chain].name),
            error: error_code(&reply.content, &snapshot.config),
            cache: reply.cache_status,
            upstream: reply
                .upstream_index
                .map(|index| Arc::clone(&snapshot.upstreams[index].config.name)),
            bytes: reply.content.bytes(),
            took: duration,
            upstream_time: used_upstream.then_some(duration),
        }
    });
}
