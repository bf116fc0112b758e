//! One HTTP request to an upstream and its response: over HTTP/2 if HTTP/2 is on and the upstream
//! supports it, else over HTTP/1.1.
//!
//! This file knows HTTP and bytes. `send.rs` and `batcher.rs` write the body and interpret the
//! response.

use tokio::time::Instant;
use wire::quantity::write_decimal;

use crate::call::failure::{Failure, Kind, Sent};
use crate::io::memory::Reservation;
use crate::policy::memory::Purpose;
use crate::trace::context::TraceContext;
use crate::upstream::connector::AddressKind;
use crate::upstream::http1::{Connection, ExchangeFault, ExchangeFaultKind, HttpResponse};
use crate::upstream::thread::UpstreamContext;

/// The body of a request.
pub(crate) trait Body {
    /// Returns the length of the body in bytes.
    fn bytes(&self) -> usize;
    /// Appends the body to `out`.
    fn write(&self, out: &mut Vec<u8>);
    /// Returns the trace context for the headers. A batch of calls of several traces has none.
    fn trace(&self) -> Option<&TraceContext> {
        None
    }
}

/// An exchange without a response.
#[derive(Debug, Clone)]
pub(crate) struct PostError {
    pub(crate) failure: Failure,
    /// True if the exchange failed because a connection that had carried calls before was closed
    /// without a response.
    pub(crate) stale_connection: bool,
}

impl PostError {
    pub(crate) fn new(upstream: usize, kind: Kind, sent: Sent) -> PostError {
        PostError { failure: Failure::of_upstream(upstream, kind, sent), stale_connection: false }
    }
}

/// Sends a body to an upstream and reads the response by `deadline`. Opens a new connection if
/// `fresh` is true. A body of more than `response_bytes_max` bytes is an error.
///
/// # Errors
/// A [`PostError`] if no complete response was read.
pub(crate) async fn post(
    cx: &UpstreamContext,
    upstream: usize,
    body: &impl Body,
    deadline: Instant,
    fresh: bool,
    response_bytes_max: usize,
) -> Result<HttpResponse, PostError> {
    if let Some(http2) = &cx.upstreams[upstream].http2 {
        // Boxed, so that the future of a call over HTTP/1.1 stays small.
        let posted = Box::pin(http2.post(cx, upstream, body, deadline, response_bytes_max)).await;
        if let Some(posted) = posted {
            return posted;
        }
    }
    let state = &cx.topology.upstreams[upstream];
    let pool = &cx.upstreams[upstream].pool;
    let refused = || PostError::new(upstream, Kind::Connect, Sent::No);
    let _lease = pool.lease(deadline).await.ok_or_else(refused)?;
    let reused = if fresh { None } else { pool.reuse(cx.recent()) };
    let mut connection = match reused {
        Some(connection) => connection,
        None => {
            cx.counters.upstreams[upstream].connections_opened.add(1);
            // Boxed, because most calls reuse a connection and their future should stay small.
            let connecting = state.connector.connect(&state.config, AddressKind::Http);
            match Box::pin(tokio::time::timeout_at(deadline, connecting)).await {
                Ok(Ok(stream)) => Connection::new(stream, pool.heads()),
                Ok(Err(error)) => {
                    tracing::debug!(upstream = &*state.config.name, %error, "cannot connect");
                    return Err(refused());
                }
                Err(_) => return Err(refused()),
            }
        }
    };
    let was_used = connection.used;
    let mut request = cx.buffers.take();
    request.extend_from_slice(&state.request_head);
    write_decimal(&mut request, body.bytes() as u64);
    if let Some(trace) = body.trace() {
        write_trace_headers(&mut request, trace);
    }
    request.extend_from_slice(b"\r\n\r\n");
    body.write(&mut request);
    let mut hold = Reservation::new(&cx.topology.registry.memory, Purpose::Upstream);
    let exchanged = connection.exchange(&request, deadline, response_bytes_max, &mut hold).await;
    cx.buffers.give(request);
    match exchanged {
        Ok(response) => {
            if response.reusable && state.config.keep_alive {
                pool.keep(connection, cx.recent());
            }
            Ok(response)
        }
        Err(fault) => Err(post_error(upstream, fault, was_used)),
    }
}

/// Appends the headers of a trace, each with a line break before it.
fn write_trace_headers(out: &mut Vec<u8>, trace: &TraceContext) {
    out.extend_from_slice(b"\r\ntraceparent: ");
    out.extend_from_slice(&trace.parent().to_header());
    if let Some(state) = trace.state() {
        out.extend_from_slice(b"\r\ntracestate: ");
        out.extend_from_slice(state.as_bytes());
    }
}

fn post_error(upstream: usize, fault: ExchangeFault, was_used: bool) -> PostError {
    let kind = match fault.kind {
        ExchangeFaultKind::Late => Kind::Deadline,
        ExchangeFaultKind::Closed | ExchangeFaultKind::Io(_) => Kind::Closed,
        ExchangeFaultKind::Malformed => Kind::Malformed,
        ExchangeFaultKind::TooLarge => Kind::TooLarge,
        ExchangeFaultKind::Memory => Kind::Memory,
    };
    let sent = if fault.response_started { Sent::Yes } else { Sent::Maybe };
    let stale_connection = was_used && !fault.response_started && kind == Kind::Closed;
    PostError { failure: Failure::of_upstream(upstream, kind, sent), stale_connection }
}
