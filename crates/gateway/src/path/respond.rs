//! Turns the outcome of a call into its response, the counters and the access-log record.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use wire::call::{Call, Rejection};

use super::Request;
use crate::access_log::record::CallRecord;
use crate::call::cache_status::CacheStatus;
use crate::call::failure::Failure;
use crate::call::reply::{CallReply, Content, code_of};
use crate::call::response::{Payload, UpstreamResponse};
use crate::state::context::ThreadContext;

/// Maximum bytes of a method's name in the log.
const METHOD_BYTES_MAX: usize = 256;

/// The state of a call in flight, for counters and the access log.
#[derive(Default)]
pub(super) struct Progress {
    /// When the call passed the limits; `None` if a limit refused it or it cannot be parsed.
    pub(super) began: Option<Duration>,
    /// The index of its record in the request.
    pub(super) record: usize,
    /// The chain and the index of the method's row, after routing.
    pub(super) routed: Option<(usize, Option<usize>)>,
}

/// Why a call ended before it was resolved.
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
    item: Result<Call<'a>, Rejection<'a>>,
    progress: &Progress,
    served: Result<(UpstreamResponse, CacheStatus), Stop>,
) -> Option<CallReply<'a>> {
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
    let tier = served.as_ref().ok().and_then(|(fetched, _)| fetched.tier);
    let (content, status, upstream) = match served {
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
            (Content::Payload(fetched.payload), Some(status), fetched.upstream)
        }
        Err(Stop::Failed(failure)) => (Content::Payload(Payload::Failed(failure)), None, None),
        Err(Stop::Unreadable) => {
            counters.calls_refused.add(1);
            let refusal = refusal.expect("a call that cannot be read has a refusal");
            (Content::Refused(refusal), None, None)
        }
    };
    let response =
        CallReply { id: b"null", payload: content, cache_status: status, tier, upstream };
    record(cx, request, chain, progress, &name, &response, took);
    if progress.began.is_some() && id.is_none() {
        counters.notifications.add(1);
    }
    // If a limit refuses a single notification, the client receives a response, because the HTTP
    // status must report the refusal. In a batch, a client could assign that response to another
    // call.
    let alone = || request.body.trim_ascii_start().first() != Some(&b'[');
    let id = id.or_else(|| (progress.began.is_none() && alone()).then_some(&b"null"[..]))?;
    Some(CallReply { id, ..response })
}

/// Records the response to a call for the access log.
fn record(
    cx: &ThreadContext,
    request: &Request<'_>,
    chain: usize,
    progress: &Progress,
    method: &str,
    response: &CallReply<'_>,
    took: Duration,
) {
    let Some(calls) = request.calls else { return };
    let snapshot = &cx.snapshot;
    let place = if progress.began.is_some() { progress.record } else { calls.begin() };
    calls.finish(place, || {
        let upstream_used = !matches!(response.cache_status, None | Some(CacheStatus::Hit));
        CallRecord {
            method: method[..method.floor_char_boundary(METHOD_BYTES_MAX)].into(),
            chain: Arc::clone(&snapshot.chains[chain].name),
            error: code_of(&response.payload, &snapshot.config),
            cache: response.cache_status,
            upstream: response
                .upstream
                .map(|upstream| Arc::clone(&snapshot.upstreams[upstream].config.name)),
            bytes: response.payload.bytes(),
            took,
            upstream_time: upstream_used.then_some(took),
        }
    });
}
