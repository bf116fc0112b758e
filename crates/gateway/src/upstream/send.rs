//! One attempt of one call at one upstream.
//!
//! An attempt takes a connection and sends the call with an id that the gateway assigns. Then it
//! reads, validates and classifies the response (`policy/classify.rs`). `fetch.rs` decides about
//! further attempts. Four types describe what can go wrong:
//!
//! - [`ExchangeError`]: why no response was read.
//! - [`Verdict`]: the class of the response or error. The verdict decides whether the call ends.
//! - [`Fault`]: how the upstream failed, a part of the verdict. [`Fault::health_impact`] decides
//!   whether the fault counts against the upstream's health.
//! - [`Failure`]: the error that the client receives if no upstream responds.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use wire::call::{call_bytes, write_call};
use wire::node_error::{MethodKind, NodeError};
use wire::quantity::Decimal;
use wire::response::Outcome;

use crate::call::failure::{Failure, FailureKind, Sent, describe};
use crate::call::{CacheDecision, Payload, UpstreamRequest};
use crate::metrics::label::AttemptOutcome;
use crate::policy::classify::{CallOutcome, Fault, HealthImpact, Verdict, classify};
use crate::policy::complete::DoubtedResponse;
use crate::trace::context::{ActiveSpan, TraceContext};
use crate::trace::span::SpanKind;
use crate::upstream::exchange::{Body, DEPTH_MAX, ExchangeError, HttpResponse, parse_response_to};
use crate::upstream::multiplexed_connection::MultiplexedConnection;
use crate::upstream::multiplexed_pool::{MultiplexedPool, NoConnection};
use crate::upstream::thread::Upstreams;

/// The recorded latency of a failed attempt is its duration plus this factor times the upstream's
/// average latency.
const FAILED_LATENCY_FACTOR: u32 = 4;

/// The outcome of an attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Index of the upstream in the configuration.
    pub(crate) upstream: usize,
    /// The class of the response or error.
    pub(crate) verdict: Verdict,
    /// The result or error of the upstream; `None` if the upstream sent no JSON-RPC response.
    pub(crate) payload: Option<Payload>,
    /// The error for the client if no attempt has a payload.
    pub(crate) failure: Failure,
    /// True if the attempt failed because a reused connection was closed without a response.
    pub(crate) stale_connection: bool,
    /// Why the response may be incomplete; `None` if nothing indicates that. `attempts.rs` sets
    /// this field.
    pub(crate) doubted_response: Option<DoubtedResponse>,
    /// The decision whether the response may be cached; `None` if the attempt failed or the method
    /// is never cached. `attempts.rs` sets this field.
    pub(crate) cache_decision: Option<Box<CacheDecision>>,
}

/// Runs one attempt until `deadline` at the latest. If `new_connection` is true, opens a connection
/// instead of reusing an idle connection. Dropping the future closes its HTTP/1.1 connection.
pub(crate) async fn run_attempt(
    upstreams: &Upstreams,
    upstream: usize,
    request: &UpstreamRequest<'_>,
    deadline: Instant,
    new_connection: bool,
) -> Attempt {
    upstreams.attempt_started(upstream);
    // The epoch identifies the concurrency limit that applies at the start of the attempt.
    let epoch = upstreams.permits.epoch(request);
    let began = upstreams.now();
    let mut guard = AttemptGuard { upstreams, upstream, began, latency: None };
    let mut span = begin_span(upstreams, upstream, request);
    let trace = span.as_ref().map(|span| span.context()).or(request.trace.as_ref());
    let call = OutgoingCall { upstreams, upstream, request, trace, deadline, new_connection };
    let exchanged = call.exchange().await;
    upstreams.tick();
    let attempt = match exchanged {
        Ok((id, response)) => {
            upstreams.local[upstream].record_response(upstreams.now());
            classify_response(upstream, request, &id, response)
        }
        Err(error) => classify_error(upstream, error),
    };
    let outcome = match attempt.verdict {
        Verdict::UpstreamFault(_) => AttemptOutcome::Failed,
        Verdict::RateLimited { .. } => AttemptOutcome::RateLimited,
        _ => AttemptOutcome::Ok,
    };
    let elapsed = upstreams.now().saturating_sub(began);
    let counters = &upstreams.counters.upstreams[upstream];
    counters.record_attempt(outcome, elapsed);
    if let Some(span) = &mut span {
        counters.latency.set_exemplar(elapsed, span.context().trace_id());
        describe_attempt(upstreams, span, &attempt, outcome);
    }
    if attempt.verdict.is_response() || attempt.verdict == Verdict::UnknownError {
        upstreams.permits.record_response(request, epoch, elapsed);
    }
    guard.latency = Some(match attempt.verdict {
        // The balancer must not prefer an upstream that fails fast. The balancer must not avoid
        // this upstream completely either, because only the health check may take it out of
        // rotation. So a failure counts as several times the upstream's average latency.
        Verdict::UpstreamFault(fault)
            if fault.health_impact() == HealthImpact::Always && !attempt.stale_connection =>
        {
            let average = upstreams.local[upstream].latency.get().estimate();
            let penalized = average.saturating_mul(FAILED_LATENCY_FACTOR).saturating_add(elapsed);
            // The timeout of the attempt caps the latency. Without a cap, consecutive failures
            // would multiply the average latency without limit.
            penalized.min((deadline + elapsed).saturating_duration_since(upstreams.instant()))
        }
        // Other faults and unknown errors do not show the upstream's latency, so no latency is
        // recorded.
        Verdict::UpstreamFault(_) | Verdict::UnknownError => Duration::ZERO,
        // An upstream that does not have something responds faster than one that has it, so a
        // negative response does not count as speed.
        _ if is_negative(&attempt)
            && elapsed < upstreams.local[upstream].latency.get().estimate() =>
        {
            Duration::ZERO
        }
        _ => elapsed,
    });
    attempt
}

/// Returns true if the upstream has responded that something does not exist.
fn is_negative(attempt: &Attempt) -> bool {
    matches!(&attempt.payload, Some(Payload::Result(result)) if matches!(&**result, b"null" | b"[]"))
}

/// Begins the trace span of an attempt; `None` if the request is not sampled.
fn begin_span(
    upstreams: &Upstreams,
    upstream: usize,
    request: &UpstreamRequest<'_>,
) -> Option<Box<ActiveSpan>> {
    let name = request.method_row.map_or("attempt", |method| method.name);
    let mut span = request.trace.as_ref()?.begin(SpanKind::Client, name, || upstreams.random())?;
    let config = &upstreams.topology.config;
    span.set("rpc.system", "jsonrpc");
    if request.method_row.is_some() {
        span.set("rpc.method", name);
    }
    span.set("weir.chain", &config.chains[request.chain].name);
    span.set("weir.group", &config.groups[request.group].name);
    span.set("weir.upstream", &upstreams.topology.upstreams[upstream].config.name);
    Some(span)
}

/// Adds the outcome of an attempt to its span. A cancelled attempt has no outcome.
fn describe_attempt(
    upstreams: &Upstreams,
    span: &mut ActiveSpan,
    attempt: &Attempt,
    outcome: AttemptOutcome,
) {
    span.set("weir.outcome", outcome.as_str());
    let Verdict::UpstreamFault(fault) = attempt.verdict else { return };
    span.set("error.type", fault.as_str());
    // The payload is omitted, because the upstream's text may contain a secret.
    span.fail(match attempt.payload {
        Some(_) => "the upstream responded with an error".to_owned(),
        None => describe(attempt.failure.kind, &upstreams.topology.config).message.to_owned(),
    });
}

/// Records the latency and the end of an attempt when it is dropped. If another upstream was
/// faster, the attempt is dropped early, and its duration so far is recorded. Without this record,
/// a slow upstream that loses every race would keep its old, low latency.
struct AttemptGuard<'a> {
    upstreams: &'a Upstreams,
    upstream: usize,
    /// When the attempt began.
    began: Duration,
    /// The latency to record; zero means that no latency is recorded. `None` until the attempt has
    /// ended.
    latency: Option<Duration>,
}

impl Drop for AttemptGuard<'_> {
    fn drop(&mut self) {
        let latency = self.latency.unwrap_or_else(|| {
            self.upstreams.tick();
            self.upstreams.now().saturating_sub(self.began)
        });
        if !latency.is_zero() {
            self.upstreams.local[self.upstream].observe_latency(self.upstreams.now(), latency);
        }
        self.upstreams.attempt_ended(self.upstream);
    }
}

/// A call that is sent to one upstream.
struct OutgoingCall<'a> {
    upstreams: &'a Upstreams,
    upstream: usize,
    request: &'a UpstreamRequest<'a>,
    /// The trace context to send: the context of the attempt's span, or the client's context if the
    /// request is not sampled. `None` if the request has no trace.
    trace: Option<&'a TraceContext>,
    deadline: Instant,
    /// True if the call must not reuse an idle connection.
    new_connection: bool,
}

impl OutgoingCall<'_> {
    /// Sends the call over a multiplexed connection or over HTTP. Returns the response and the id
    /// that the call was sent with.
    async fn exchange(&self) -> Result<(Decimal, HttpResponse), ExchangeError> {
        let not_connected = ExchangeError::new(FailureKind::Connect, Sent::No);
        let (upstreams, request) = (self.upstreams, self.request);
        let Some(pool) = &upstreams.local[self.upstream].multiplexed else {
            return self.exchange_http().await;
        };
        let has_http = upstreams.topology.upstreams[self.upstream].config.http().is_some();
        if !pool.accepts(request) {
            if has_http {
                return Box::pin(self.exchange_http()).await;
            }
            return Err(ExchangeError::new(FailureKind::CallTooLarge, Sent::No));
        }
        let connection = match pool.get(request, upstreams.instant()) {
            // One connection was lost already. The multiplexed connections may be dead too, so the
            // call goes over a new HTTP connection.
            Some(_) if self.new_connection && has_http => None,
            None if !has_http => match Box::pin(pool.wait(request, self.deadline)).await {
                Ok(connection) => Some(connection),
                Err(NoConnection) => return Err(not_connected),
            },
            available => available,
        };
        if let Some(connection) = connection
            && let Some(exchanged) = self.exchange_multiplexed(pool, &connection).await
        {
            return exchanged;
        }
        // Nothing was sent yet, so the call can still go over HTTP.
        if has_http { Box::pin(self.exchange_http()).await } else { Err(not_connected) }
    }

    /// Sends the call over a multiplexed connection. Returns `None` if nothing was sent, so that
    /// the caller may send the call in another way.
    async fn exchange_multiplexed(
        &self,
        pool: &MultiplexedPool,
        connection: &Rc<MultiplexedConnection>,
    ) -> Option<Result<(Decimal, HttpResponse), ExchangeError>> {
        let (upstreams, request) = (self.upstreams, self.request);
        let _call_guard = pool.call_guard();
        let params = request.params.as_deref();
        let call =
            connection.call(&request.method_name, params, upstreams.instant(), self.deadline)?;
        upstreams.counters.upstreams[self.upstream].multiplexed_calls.add(1);
        match call.await {
            Ok((id, body)) => {
                pool.record_response(request, body.len());
                if body.len() > upstreams.topology.config.groups[request.group].response_bytes_max {
                    return Some(Err(ExchangeError::new(FailureKind::TooLarge, Sent::Yes)));
                }
                Some(Ok((id, HttpResponse::from_message(body))))
            }
            Err(error) if error.sent == Sent::No && error.kind == FailureKind::Closed => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Sends the call over HTTP. If the batcher accepts the call, it is sent in a batch, else
    /// alone.
    async fn exchange_http(&self) -> Result<(Decimal, HttpResponse), ExchangeError> {
        let (upstreams, upstream, deadline) = (self.upstreams, self.upstream, self.deadline);
        let local = &upstreams.local[upstream];
        let bytes_max = upstreams.topology.config.groups[self.request.group].response_bytes_max;
        if let Some(batcher) = local.batcher.as_ref().filter(|_| !self.new_connection) {
            // Boxed, so that the future of a call without a batch stays small.
            let batched = Box::pin(batcher.send(self.request, deadline, bytes_max)).await;
            if let Some(batched) = batched {
                return batched;
            }
        }
        let body = SingleCall { id: Decimal::new(upstreams.thread.next_id()), call: self };
        let response = local.http.post(&body, deadline, self.new_connection, bytes_max).await?;
        Ok((body.id, response))
    }
}

/// The body of a request with one call.
struct SingleCall<'a> {
    id: Decimal,
    call: &'a OutgoingCall<'a>,
}

impl Body for SingleCall<'_> {
    fn bytes(&self) -> usize {
        let request = self.call.request;
        call_bytes(self.id.as_bytes(), &request.method_name, request.params.as_deref())
    }

    fn write(&self, out: &mut Vec<u8>) {
        let request = self.call.request;
        write_call(out, self.id.as_bytes(), &request.method_name, request.params.as_deref());
    }

    fn trace(&self) -> Option<&TraceContext> {
        self.call.trace
    }
}

/// Returns the outcome of an attempt without a response.
fn classify_error(upstream: usize, error: ExchangeError) -> Attempt {
    let fault = match error.kind {
        FailureKind::Connect => Fault::Connect,
        FailureKind::Deadline => Fault::Timeout,
        FailureKind::Malformed => Fault::Malformed,
        FailureKind::TooLarge | FailureKind::CallTooLarge | FailureKind::Memory => Fault::Limit,
        _ => Fault::Closed,
    };
    Attempt {
        upstream,
        verdict: classify(&CallOutcome::Broken(fault)),
        payload: None,
        failure: Failure { kind: error.kind, sent: error.sent, retry_after: None },
        stale_connection: error.stale_connection,
        doubted_response: None,
        cache_decision: None,
    }
}

/// Parses the JSON-RPC response in an HTTP response, and returns the outcome of the attempt.
fn classify_response(
    upstream: usize,
    request: &UpstreamRequest<'_>,
    id: &Decimal,
    http: HttpResponse,
) -> Attempt {
    let HttpResponse { status, retry_after, body, .. } = http;
    let response = parse_response_to(id, &body, DEPTH_MAX);
    let (outcome, payload) = match response.as_ref().map(|response| &response.outcome) {
        Some(Outcome::Result(result)) => {
            (CallOutcome::Result, Some(Payload::Result(body.slice_ref(result))))
        }
        Some(Outcome::Error { raw, code, message, data }) => {
            let (code, method) = (*code, MethodKind::new(&request.method_name, request.repeat()));
            let has_hex_data = data.is_some_and(|data| data.starts_with(b"\"0x"));
            let error = NodeError { status, code, message, has_hex_data, method };
            (CallOutcome::Error { error, retry_after }, Some(Payload::Error(body.slice_ref(raw))))
        }
        None => (CallOutcome::Http { status, retry_after }, None),
    };
    let verdict = classify(&outcome);
    let kind = match (&payload, verdict, status) {
        (None, _, 200) => FailureKind::Malformed,
        (None, _, 429) | (Some(_), Verdict::RateLimited { .. }, _) => FailureKind::RateLimited,
        _ => FailureKind::Status(status),
    };
    Attempt {
        upstream,
        verdict,
        payload,
        failure: Failure { kind, sent: Sent::Yes, retry_after },
        stale_connection: false,
        doubted_response: None,
        cache_decision: None,
    }
}
