//! One HTTP request to an upstream and its response. The request goes over HTTP/2 if HTTP/2 is on
//! and the upstream supports it, else over a pooled HTTP/1.1 connection.
//!
//! This file does not interpret bodies. `send.rs` and `batcher.rs` write the body of the request
//! and parse the body of the response. `cx.instant()` is the cached time of the thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use wire::quantity::write_decimal;

use crate::call::failure::{FailureKind, Sent};
use crate::io::memory::Reservation;
use crate::policy::memory::Purpose;
use crate::trace::context::TraceContext;
use crate::upstream::http1::{Connection, ParsedHeads, new_parsed_heads};
use crate::upstream::thread::UpstreamContext;

/// The body of a request.
pub(crate) trait Body {
    /// Returns the length of the body in bytes.
    fn bytes(&self) -> usize;
    /// Appends the body to `out`.
    fn write(&self, out: &mut Vec<u8>);
    /// Returns the trace context for the headers. `None` if the request has no trace. Also `None`
    /// for a batch, because its calls may belong to several traces.
    fn trace(&self) -> Option<&TraceContext> {
        None
    }
}

/// A complete HTTP response of an upstream.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The time in the `Retry-After` header, if any.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
    /// True if the connection may carry another call.
    pub(crate) reusable: bool,
}

impl HttpResponse {
    /// Wraps a response that came over a WebSocket or a local socket.
    pub(crate) fn from_message(body: Bytes) -> HttpResponse {
        HttpResponse { status: 200, retry_after: None, body, reusable: true }
    }
}

/// Why a call or a batch has no response from the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExchangeError {
    pub(crate) kind: FailureKind,
    /// Whether the upstream may have received the call.
    pub(crate) sent: Sent,
    /// True if the upstream closed a reused connection before the first byte of this response.
    pub(crate) stale_connection: bool,
}

impl ExchangeError {
    pub(crate) fn new(kind: FailureKind, sent: Sent) -> ExchangeError {
        ExchangeError { kind, sent, stale_connection: false }
    }
}

/// Sends a body to the upstream with this index in the configuration, and reads the response by
/// `deadline`. If `new_connection` is true and the request goes over HTTP/1.1, opens a new
/// connection instead of reusing an idle one. A response body of more than `response_bytes_max`
/// bytes is an error.
///
/// # Errors
/// An [`ExchangeError`] if no complete response was read.
pub(crate) async fn post(
    cx: &UpstreamContext,
    upstream: usize,
    body: &impl Body,
    deadline: Instant,
    new_connection: bool,
    response_bytes_max: usize,
) -> Result<HttpResponse, ExchangeError> {
    if let Some(http2) = &cx.upstreams[upstream].http2 {
        // Boxed, so that the future of a call over HTTP/1.1 stays small.
        let posted = Box::pin(http2.post(cx, body, deadline, response_bytes_max)).await;
        if let Some(posted) = posted {
            return posted;
        }
    }
    let state = &cx.topology.upstreams[upstream];
    let pool = &cx.upstreams[upstream].pool;
    let not_connected = ExchangeError::new(FailureKind::Connect, Sent::No);
    let _permit = pool.acquire(deadline).await.ok_or(not_connected)?;
    let reused = if new_connection { None } else { pool.reuse(cx.instant()) };
    let mut connection = match reused {
        Some(connection) => connection,
        None => {
            cx.counters.upstreams[upstream].connections_opened.add(1);
            // Boxed, because most calls reuse a connection and their future should stay small.
            let config = &state.config;
            let connecting = state.connector.connect(config.http(), config.connect_timeout);
            match Box::pin(timeout_at(deadline, connecting)).await {
                Ok(Ok(stream)) => Connection::new(stream, Rc::clone(&pool.heads)),
                Ok(Err(error)) => {
                    tracing::debug!(upstream = &*state.config.name, %error, "cannot connect");
                    return Err(not_connected);
                }
                Err(_) => return Err(not_connected),
            }
        }
    };
    let mut request = cx.buffers.take();
    // `call_head` ends with `Content-Length: `.
    request.extend_from_slice(&state.call_head);
    write_decimal(&mut request, body.bytes() as u64);
    if let Some(trace) = body.trace() {
        write_trace_headers(&mut request, trace);
    }
    request.extend_from_slice(b"\r\n\r\n");
    body.write(&mut request);
    let mut reservation = Reservation::new(&cx.topology.registry.memory, Purpose::Upstream);
    let exchanged =
        connection.exchange(&request, deadline, response_bytes_max, &mut reservation).await;
    cx.buffers.put_back(request);
    let response = exchanged?;
    if response.reusable && state.config.keep_alive {
        pool.keep(connection, cx.instant());
    }
    Ok(response)
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

/// The HTTP/1.1 connections of one thread to one upstream. The most recently used connection is
/// reused first, so that the other connections expire when the load falls.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: RefCell<Vec<Connection>>,
    /// Idle connections close after this time.
    idle_timeout: Duration,
    /// Each connection that carries a call holds one permit; idle connections hold none. Idle
    /// connections are reused before new ones are opened, so the permits also limit the number of
    /// open connections.
    permits: Semaphore,
    /// Cache of parsed response heads, which all connections share.
    heads: Rc<ParsedHeads>,
    /// True after [`Pool::close`]. Connections then close after their call.
    closed: Cell<bool>,
}

impl Pool {
    pub(crate) fn new(connections_max: usize, idle_timeout: Duration) -> Pool {
        Pool {
            idle: RefCell::default(),
            idle_timeout,
            permits: Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS)),
            heads: new_parsed_heads(),
            closed: Cell::new(false),
        }
    }

    /// Acquires the permit for one connection. Returns `None` if `deadline` passes first.
    async fn acquire(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(permit);
        }
        Box::pin(timeout_at(deadline, self.permits.acquire())).await.ok()?.ok()
    }

    /// Takes an idle connection that is still usable, if there is one.
    fn reuse(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut connection) = idle.pop() {
            if now.duration_since(connection.idle_since) > self.idle_timeout {
                // The remaining connections have been idle for even longer.
                idle.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next call.
    fn keep(&self, mut connection: Connection, now: Instant) {
        if !self.closed.get() {
            connection.idle_since = now;
            self.idle.borrow_mut().push(connection);
        }
    }

    /// Returns true after [`Pool::close`].
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes idle connections now, and connections in use after their call. Called after a reload
    /// has removed or changed the upstream.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.close_idle();
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle
            .borrow_mut()
            .retain(|connection| now.duration_since(connection.idle_since) <= self.idle_timeout);
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        self.idle.borrow_mut().clear();
    }
}
