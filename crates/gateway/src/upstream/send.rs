//! One attempt of one call at one upstream.
//!
//! An attempt leases a connection, sends the call with an id of the gateway, reads the response,
//! validates it and classifies it (`policy/classify.rs`). `fetch.rs` decides about further
//! attempts.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use wire::call::{call_bytes, write_call};
use wire::method::Repeat;
use wire::quantity::Decimal;
use wire::response::{Outcome, Response, parse_response};

use crate::call::failure::{Failure, Kind, Sent, describe};
use crate::call::request::UpstreamRequest;
use crate::call::response::{Judgement, Payload};
use crate::metrics::label::AttemptOutcome;
use crate::policy::classify::{Blame, CallOutcome, Fault, Verdict, classify};
use crate::policy::complete::Opinion;
use crate::trace::context::{ActiveSpan, TraceContext};
use crate::trace::span::SpanKind;
use crate::upstream::http1::HttpResponse;
use crate::upstream::multiplexed_connection::{CallFailure, MultiplexedConnection};
use crate::upstream::multiplexed_pool::{MultiplexedPool, NoConnection};
use crate::upstream::overload;
use crate::upstream::post::{Body, PostError, post};
use crate::upstream::thread::UpstreamContext;

/// Maximum nesting of responses: the maximum of the wire crate. A trace can nest 1024 calls, and
/// each adds a few levels.
pub(crate) const DEPTH_MAX: usize = wire::json::DEPTH_CEILING;

/// The recorded latency of a failed attempt is its duration plus this factor times the upstream's
/// average latency.
const FAILED_LATENCY_FACTOR: u32 = 4;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) upstream: usize,
    pub(crate) verdict: Verdict,
    /// The result or error of the upstream; `None` if there is none to send to a client.
    pub(crate) payload: Option<Payload>,
    /// The error for the client if no attempt has a payload.
    pub(crate) failure: Failure,
    /// True if the attempt failed because a reused connection was closed without a response.
    pub(crate) stale_connection: bool,
    /// Why the response may be incomplete; `None` if nothing indicates it.
    pub(crate) opinion: Option<Opinion>,
    /// The decision whether the response may be cached. `fetch.rs` sets it after the attempt.
    pub(crate) judgement: Option<Judgement>,
}

impl Attempt {
    /// Returns an attempt without a payload.
    fn failed(upstream: usize, verdict: Verdict, failure: Failure) -> Attempt {
        let (payload, stale_connection, opinion, judgement) = (None, false, None, None);
        Attempt { upstream, verdict, payload, failure, stale_connection, opinion, judgement }
    }
}

/// Runs one attempt, at the latest until `deadline`. Dropping the future closes its HTTP/1.1
/// connection.
pub(crate) async fn run_attempt(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    request: &UpstreamRequest<'_>,
    deadline: Instant,
    fresh: bool,
) -> Attempt {
    cx.attempt_started(upstream);
    let epoch = overload::epoch(cx, request);
    let began = cx.now();
    let mut guard = AttemptGuard { cx, upstream, began, observed: None };
    let mut span = begin_span(cx, upstream, request);
    let sent = SentCall {
        request,
        trace: span.as_ref().map(|span| span.context()).or(request.trace.as_ref()),
    };
    let exchanged = exchange(cx, upstream, sent, deadline, fresh).await;
    cx.tick();
    let attempt = match exchanged {
        Ok((id, response)) => {
            cx.upstreams[upstream].record_response(cx.now());
            classify_response(upstream, request, &id, response)
        }
        Err(error) => failed_attempt(upstream, error),
    };
    let outcome = match attempt.verdict {
        Verdict::UpstreamFault(_) => AttemptOutcome::Failed,
        Verdict::RateLimited { .. } => AttemptOutcome::RateLimited,
        _ => AttemptOutcome::Ok,
    };
    let elapsed = cx.now().saturating_sub(began);
    cx.counters.upstreams[upstream].record_attempt(outcome, elapsed);
    if let Some(span) = &mut span {
        describe_attempt(cx, span, &attempt, outcome);
    }
    if attempt.verdict.is_response() {
        overload::record_response(cx, request, epoch, elapsed);
    }
    guard.observed = Some(match attempt.verdict {
        // An upstream that fails fast must not look fast. It must not lose all calls either: only
        // the health check may take it out of rotation. So a failure counts as several times the
        // upstream's average latency.
        Verdict::UpstreamFault(fault)
            if fault.blame() == Blame::Always && !attempt.stale_connection =>
        {
            // The deadline of the attempt caps the latency. Otherwise consecutive failures would
            // multiply it without limit.
            let typical_latency = cx.upstreams[upstream].latency.get().estimate();
            let observed =
                typical_latency.saturating_mul(FAILED_LATENCY_FACTOR).saturating_add(elapsed);
            observed.min((deadline + elapsed).saturating_duration_since(cx.recent()))
        }
        // Other faults say nothing about the upstream's latency, so none is recorded.
        Verdict::UpstreamFault(_) => Duration::ZERO,
        _ => elapsed,
    });
    attempt
}

/// A call for an upstream, with the trace context that it is sent with.
#[derive(Clone, Copy)]
struct SentCall<'a> {
    request: &'a UpstreamRequest<'a>,
    /// The context of the attempt's span or, if the request is not sampled, of the client.
    trace: Option<&'a TraceContext>,
}

/// Begins the span of an attempt; `None` if the request is not sampled.
fn begin_span(
    cx: &UpstreamContext,
    upstream: usize,
    request: &UpstreamRequest<'_>,
) -> Option<Box<ActiveSpan>> {
    let name = request.method.map_or("attempt", |method| method.name);
    let mut span = request.trace.as_ref()?.begin(SpanKind::Client, name, || cx.random())?;
    let config = &cx.topology.config;
    span.set("rpc.system", "jsonrpc");
    if request.method.is_some() {
        span.set("rpc.method", name);
    }
    span.set("weir.chain", &config.chains[request.chain].name);
    span.set("weir.group", &config.groups[request.group].name);
    span.set("weir.upstream", &cx.topology.upstreams[upstream].config.name);
    Some(span)
}

/// Adds the outcome of an attempt to its span. A cancelled attempt has no outcome.
fn describe_attempt(
    cx: &UpstreamContext,
    span: &mut ActiveSpan,
    attempt: &Attempt,
    outcome: AttemptOutcome,
) {
    span.set("weir.outcome", outcome.as_str());
    let Verdict::UpstreamFault(fault) = attempt.verdict else { return };
    span.set("error.type", fault.name());
    // A payload is the upstream's text, which may hold a secret.
    span.fail(match attempt.payload {
        Some(_) => "the upstream responded with an error".to_owned(),
        None => describe(attempt.failure.kind, &cx.topology.config).1.to_owned(),
    });
}

/// An attempt in flight. If it is dropped because another upstream was faster, its duration so far
/// is recorded. Without this record, a slow upstream that always loses would keep its old, low
/// latency.
struct AttemptGuard<'a> {
    cx: &'a UpstreamContext,
    upstream: usize,
    began: Duration,
    /// The latency to record; zero records none. `None` until the attempt has ended.
    observed: Option<Duration>,
}

impl Drop for AttemptGuard<'_> {
    fn drop(&mut self) {
        let observed = self.observed.unwrap_or_else(|| {
            self.cx.tick();
            self.cx.now().saturating_sub(self.began)
        });
        if !observed.is_zero() {
            self.cx.upstreams[self.upstream].observe_latency(self.cx.now(), observed);
        }
        self.cx.attempt_ended(self.upstream);
    }
}

/// Sends the call over a multiplexed connection or over HTTP.
async fn exchange(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    sent: SentCall<'_>,
    deadline: Instant,
    fresh: bool,
) -> Result<(Decimal, HttpResponse), PostError> {
    let request = sent.request;
    let Some(pool) = &cx.upstreams[upstream].multiplexed else {
        return exchange_http(cx, upstream, sent, deadline, fresh).await;
    };
    let over_http = cx.topology.upstreams[upstream].config.http().is_some();
    if !pool.accepts(request) {
        if over_http {
            return Box::pin(exchange_http(cx, upstream, sent, deadline, fresh)).await;
        }
        return Err(PostError::new(upstream, Kind::CallTooLarge, Sent::No));
    }
    let connection = match pool.get(request, cx.recent()) {
        // After a lost connection (`fresh`), older multiplexed connections may be dead too, so HTTP
        // is safer.
        Some(_) if fresh && over_http => None,
        None if !over_http => match Box::pin(pool.wait(request, deadline)).await {
            Ok(connection) => Some(connection),
            Err(NoConnection) => {
                return Err(PostError::new(upstream, Kind::Connect, Sent::No));
            }
        },
        available => available,
    };
    let exchanged = match connection {
        Some(connection) => {
            exchange_multiplexed(cx, upstream, request, deadline, pool, &connection).await
        }
        None => None,
    };
    match exchanged {
        Some(exchanged) => exchanged,
        // Nothing was sent.
        None if over_http => Box::pin(exchange_http(cx, upstream, sent, deadline, fresh)).await,
        None => Err(PostError::new(upstream, Kind::Connect, Sent::No)),
    }
}

/// Sends the call over a multiplexed connection. Returns `None` if nothing was sent.
async fn exchange_multiplexed(
    cx: &UpstreamContext,
    upstream: usize,
    request: &UpstreamRequest<'_>,
    deadline: Instant,
    pool: &Rc<MultiplexedPool>,
    connection: &Rc<MultiplexedConnection>,
) -> Option<Result<(Decimal, HttpResponse), PostError>> {
    let _guard = pool.call_guard();
    let call = connection.call(&request.name, request.params.as_deref(), cx.recent(), deadline)?;
    cx.counters.upstreams[upstream].multiplexed_calls.add(1);
    match call.await {
        Ok((id, body)) => {
            pool.record_response(request, body.len());
            let bytes_max = cx.topology.config.groups[request.group].response_bytes_max;
            if body.len() > bytes_max {
                return Some(Err(PostError::new(upstream, Kind::TooLarge, Sent::Yes)));
            }
            let response = HttpResponse { status: 200, retry_after: None, body, reusable: true };
            Some(Ok((id, response)))
        }
        Err(failure) if failure.sent == Sent::No && failure.kind == Kind::Closed => None,
        Err(CallFailure { kind, sent, stale: stale_connection }) => Some(Err(PostError {
            failure: Failure::of_upstream(upstream, kind, sent),
            stale_connection,
        })),
    }
}

/// Sends the call over HTTP, in a batch with others if that is on.
async fn exchange_http(
    cx: &Rc<UpstreamContext>,
    upstream: usize,
    sent: SentCall<'_>,
    deadline: Instant,
    fresh: bool,
) -> Result<(Decimal, HttpResponse), PostError> {
    if let Some(batcher) = cx.upstreams[upstream].batcher.as_ref().filter(|_| !fresh) {
        // Boxed, so that the future of a call without a batch stays small.
        let batched = Box::pin(batcher.send(cx, upstream, sent.request, deadline)).await;
        if let Some(batched) = batched {
            return batched;
        }
    }
    let call = SingleCall { id: Decimal::new(cx.next_id()), sent };
    let bytes_max = cx.topology.config.groups[sent.request.group].response_bytes_max;
    let response = post(cx, upstream, &call, deadline, fresh, bytes_max).await?;
    Ok((call.id, response))
}

/// The body of a request with one call.
struct SingleCall<'a> {
    id: Decimal,
    sent: SentCall<'a>,
}

impl Body for SingleCall<'_> {
    fn bytes(&self) -> usize {
        let request = self.sent.request;
        call_bytes(self.id.as_bytes(), &request.name, request.params.as_deref())
    }

    fn write(&self, out: &mut Vec<u8>) {
        let request = self.sent.request;
        write_call(out, self.id.as_bytes(), &request.name, request.params.as_deref());
    }

    fn trace(&self) -> Option<&TraceContext> {
        self.sent.trace
    }
}

fn failed_attempt(upstream: usize, error: PostError) -> Attempt {
    let PostError { failure, stale_connection } = error;
    let fault = match failure.kind {
        Kind::Connect => Fault::Connect,
        Kind::Deadline => Fault::Timeout,
        Kind::Malformed => Fault::Malformed,
        Kind::TooLarge | Kind::CallTooLarge | Kind::Memory => Fault::Limit,
        _ => Fault::Closed,
    };
    let verdict = classify(&CallOutcome::Broken(fault));
    Attempt { stale_connection, ..Attempt::failed(upstream, verdict, failure) }
}

/// Parses and classifies the JSON-RPC response in an HTTP response.
fn classify_response(
    upstream: usize,
    request: &UpstreamRequest<'_>,
    id: &Decimal,
    http: HttpResponse,
) -> Attempt {
    let HttpResponse { status, retry_after, body, .. } = http;
    let response = parse_response(&body, DEPTH_MAX).ok();
    let response = response.filter(|response| has_id(response, id.as_bytes()));
    let Some(response) = response else {
        let verdict = classify(&CallOutcome::Http { status, retry_after });
        let kind = match status {
            200 => Kind::Malformed,
            429 => Kind::RateLimited,
            _ => Kind::Status(status),
        };
        let failure = Failure { retry_after, ..Failure::of_upstream(upstream, kind, Sent::Yes) };
        return Attempt::failed(upstream, verdict, failure);
    };
    let (reply, payload) = match &response.outcome {
        Outcome::Result(result) => (CallOutcome::Result, Payload::Result(body.slice_ref(result))),
        Outcome::Error { raw, code, message, .. } => {
            let broadcast = request.method.is_some_and(|m| m.repeat == Repeat::Broadcast);
            let reply = CallOutcome::Error { status, retry_after, code: *code, message, broadcast };
            (reply, Payload::Error(body.slice_ref(raw)))
        }
    };
    let verdict = classify(&reply);
    let kind = if matches!(verdict, Verdict::RateLimited { .. }) {
        Kind::RateLimited
    } else {
        Kind::Status(status)
    };
    let failure = Failure { retry_after, ..Failure::of_upstream(upstream, kind, Sent::Yes) };
    Attempt { payload: Some(payload), ..Attempt::failed(upstream, verdict, failure) }
}

/// Returns true if a response belongs to the call with this id. An error has the id `null` if the
/// upstream could not read the id (JSON-RPC 2.0, section 5).
pub(crate) fn has_id(response: &Response<'_>, expected: &[u8]) -> bool {
    response.id == expected
        || (response.id == b"null" && matches!(response.outcome, Outcome::Error { .. }))
}
