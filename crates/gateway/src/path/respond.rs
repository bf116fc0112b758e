//! Builds the response of a call from its outcome, and updates the counters and the access-log
//! record.

use std::sync::Arc;
use std::time::Duration;

use wire::call::{Call, Rejection};

use super::Request;
use crate::access_log::record::CallRecord;
use crate::call::failure::{Failure, describe};
use crate::call::reply::{CallReply, Content, error_code};
use crate::call::{CacheStatus, CacheTier, Payload, UpstreamResponse};
use crate::state::context::ThreadContext;
use crate::trace::context::ActiveSpan;

/// Maximum bytes of a method's name in the access log. No real method has a longer name.
const METHOD_BYTES_MAX: usize = 256;

/// Facts about a call in flight that the counters and the access log need.
pub(super) struct Progress {
    /// When the call passed the limits; `None` if a limit refused the call or the call cannot be
    /// parsed.
    pub(super) started_at: Option<Duration>,
    /// Index of the call's record in the access-log records of the request.
    pub(super) record_index: usize,
    /// Index of the chain that the URL selects. After routing, index of the route's chain.
    pub(super) chain: usize,
    /// Index of the method's row (its entry in the method table); `None` before routing and for
    /// unknown methods.
    pub(super) row: Option<usize>,
    /// The span that traces the call; `None` if the request is not sampled.
    pub(super) span: Option<Box<ActiveSpan>>,
}

impl Progress {
    /// Returns the progress of a call before its first step.
    pub(super) fn new(chain: usize, span: Option<Box<ActiveSpan>>) -> Progress {
        Progress { started_at: None, record_index: 0, chain, row: None, span }
    }
}

/// Why a step ended the call before `resolve`.
pub(super) enum StepError {
    /// The call cannot be parsed.
    Unparsable,
    Failed(Failure),
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> StepError {
        StepError::Failed(failure)
    }
}

/// Builds the response of a call from its outcome. Updates the counters and the access-log record.
/// Returns `None` for a notification, unless a limit refused it and it is the only call of its
/// request.
pub(super) fn respond<'a>(
    cx: &ThreadContext,
    request: &Request<'_>,
    parsed_call: &Result<Call<'a>, Rejection<'a>>,
    progress: &mut Progress,
    outcome: Result<UpstreamResponse, StepError>,
) -> Option<CallReply<'a>> {
    let counters = &cx.counters;
    let duration = progress
        .started_at
        .map_or(Duration::ZERO, |started_at| cx.now().saturating_sub(started_at));
    let (chain, row) = (progress.chain, progress.row);
    let (id, name) = match parsed_call {
        Ok(call) => (call.id, &*call.method),
        Err(rejection) => (Some(rejection.id.unwrap_or(b"null")), ""),
    };
    let local_reply = |content| CallReply {
        // The last line of this function sets the id.
        id: b"null",
        content,
        cache_status: None,
        tier: None,
        upstream_index: None,
    };
    let reply = match outcome {
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
        Err(StepError::Failed(failure)) => local_reply(Content::Payload(Payload::Failed(failure))),
        Err(StepError::Unparsable) => {
            counters.calls_refused.add(1);
            let rejection = parsed_call.as_ref().expect_err("an unreadable call has a rejection");
            local_reply(Content::Rejected(rejection.clone()))
        }
    };
    record_call(cx, request, progress, name, &reply, duration);
    if let Some(span) = &mut progress.span {
        describe_call(cx, span, chain, row, &reply);
    }
    let passed_limits = progress.started_at.is_some();
    if passed_limits && id.is_none() {
        counters.notifications.add(1);
    }
    // A notification gets no response, with one exception. If a limit refuses a notification that
    // is the only call of its request, the HTTP status of a response must report the refusal. In a
    // batch, a client could mistake such a response for the response to another call.
    let is_single = || request.body.trim_ascii_start().first() != Some(&b'[');
    let id = id.or_else(|| (!passed_limits && is_single()).then_some(&b"null"[..]))?;
    Some(CallReply { id, ..reply })
}

/// Adds the attributes of a call to its span. The name of an unknown method is omitted, because
/// clients choose it freely.
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
    if let Some(method) = row.and_then(|row_index| family.methods().nth(row_index)) {
        span.rename(method.name);
        span.set("rpc.method", method.name);
    }
    if let Some(status) = reply.cache_status {
        span.set("weir.cache", reply.tier.map_or(status.as_str(), CacheTier::hit));
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

/// Adds the record of a call to the access-log records of its request.
fn record_call(
    cx: &ThreadContext,
    request: &Request<'_>,
    progress: &Progress,
    method: &str,
    reply: &CallReply<'_>,
    duration: Duration,
) {
    let Some(call_records) = request.call_records else { return };
    let snapshot = &cx.snapshot;
    let passed_limits = progress.started_at.is_some();
    let record_index = if passed_limits { progress.record_index } else { call_records.begin() };
    call_records.finish(record_index, || {
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
            duration,
            upstream_time: used_upstream.then_some(duration),
        }
    });
}
