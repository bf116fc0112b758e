//! HTTP requests of one thread to one upstream. A request goes over HTTP/2 if HTTP/2 is on and the
//! upstream supports it, else over a pooled HTTP/1.1 connection.
//!
//! This file does not interpret bodies. `send.rs` and `batcher.rs` write the body of the request
//! and parse the body of the response.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use wire::quantity::write_decimal;

use crate::call::failure::{FailureKind, Sent};
use crate::config::Config;
use crate::config::upstream::Upstream;
use crate::io::memory::Reservation;
use crate::metrics::counters::UpstreamCounters;
use crate::policy::memory::Purpose;
use crate::trace::context::TraceContext;
use crate::upstream::connector::Connector;
use crate::upstream::exchange::{Body, ExchangeError, HttpResponse};
use crate::upstream::http1::{Connection, ParsedHeads, new_parsed_heads};
use crate::upstream::http2::Http2;
use crate::upstream::request_head::build_call_head;
use crate::upstream::resources::ThreadResources;

/// Sends the HTTP requests of one thread to one upstream.
pub(crate) struct HttpClient {
    thread: Rc<ThreadResources>,
    connector: Connector,
    upstream: Upstream,
    /// The request line and headers of each call over HTTP/1.1. They end with `Content-Length: `.
    call_head: Vec<u8>,
    /// HTTP/2 connections; `None` if HTTP/2 is off.
    http2: Option<Rc<Http2>>,
    /// HTTP/1.1 connections.
    pool: Pool,
    /// This thread's counters of the upstream.
    counts: Arc<UpstreamCounters>,
}

impl HttpClient {
    pub(crate) fn new(
        thread: &Rc<ThreadResources>,
        config: &Config,
        upstream: &Upstream,
        connector: &Connector,
        counts: &Arc<UpstreamCounters>,
    ) -> HttpClient {
        let connections_max = upstream.connections_max.div_ceil(config.server.threads);
        HttpClient {
            thread: Rc::clone(thread),
            connector: connector.clone(),
            upstream: upstream.clone(),
            call_head: build_call_head(upstream),
            http2: Http2::new(thread, config, upstream, connector, counts),
            pool: Pool::new(connections_max, upstream.idle_timeout),
            counts: Arc::clone(counts),
        }
    }

    /// Sends a body to the upstream and reads the response by `deadline`. If `new_connection` is
    /// true and the request goes over HTTP/1.1, opens a new connection instead of reusing an idle
    /// one. A response body of more than `response_bytes_max` bytes is an error.
    ///
    /// # Errors
    /// An [`ExchangeError`] if no complete response was read.
    pub(crate) async fn post(
        &self,
        body: &impl Body,
        deadline: Instant,
        new_connection: bool,
        response_bytes_max: usize,
    ) -> Result<HttpResponse, ExchangeError> {
        if let Some(http2) = &self.http2 {
            // Boxed, so that the future of a call over HTTP/1.1 stays small.
            let posted = Box::pin(http2.post(body, deadline, response_bytes_max)).await;
            if let Some(posted) = posted {
                return posted;
            }
        }
        let (thread, pool) = (&*self.thread, &self.pool);
        let not_connected = ExchangeError::new(FailureKind::Connect, Sent::No);
        let _permit = pool.acquire(deadline).await.ok_or(not_connected)?;
        let reused = if new_connection { None } else { pool.reuse(thread.clock.instant()) };
        let mut connection = match reused {
            Some(connection) => connection,
            None => {
                self.counts.connections_opened.add(1);
                // Boxed, because most calls reuse a connection and their future should stay small.
                let upstream = &self.upstream;
                let connecting = self.connector.connect(upstream.http(), upstream.connect_timeout);
                match Box::pin(timeout_at(deadline, connecting)).await {
                    Ok(Ok(stream)) => Connection::new(stream, Rc::clone(&pool.heads)),
                    Ok(Err(error)) => {
                        tracing::debug!(upstream = &*upstream.name, %error, "cannot connect");
                        return Err(not_connected);
                    }
                    Err(_) => return Err(not_connected),
                }
            }
        };
        let mut request = thread.buffers.take();
        // `call_head` ends with `Content-Length: `.
        request.extend_from_slice(&self.call_head);
        write_decimal(&mut request, body.bytes() as u64);
        if let Some(trace) = body.trace() {
            write_trace_headers(&mut request, trace);
        }
        request.extend_from_slice(b"\r\n\r\n");
        body.write(&mut request);
        let mut reservation = Reservation::new(&thread.memory, Purpose::Upstream);
        let exchanged =
            connection.exchange(&request, deadline, response_bytes_max, &mut reservation).await;
        thread.buffers.put_back(request);
        let response = exchanged?;
        if response.reusable && self.upstream.keep_alive {
            pool.keep(connection, thread.clock.instant());
        }
        Ok(response)
    }

    /// Closes idle connections now, and connections in use after their calls. Called after a reload
    /// has removed or changed the upstream.
    pub(crate) fn close(&self) {
        self.pool.close();
        if let Some(http2) = &self.http2 {
            http2.close();
        }
    }

    /// Returns true after [`HttpClient::close`].
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.pool.closed.get()
    }

    /// Closes all idle HTTP/1.1 connections.
    pub(crate) fn close_idle(&self) {
        self.pool.close_idle();
    }

    /// Closes HTTP/1.1 connections that have been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        self.pool.sweep(now);
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

/// The HTTP/1.1 connections of one thread to one upstream. The most recently used connection is
/// reused first, so that the other connections expire when the load falls.
#[derive(Debug)]
struct Pool {
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
    fn new(connections_max: usize, idle_timeout: Duration) -> Pool {
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

    /// Closes idle connections now, and connections in use after their call.
    fn close(&self) {
        self.closed.set(true);
        self.close_idle();
    }

    /// Closes connections that have been idle for too long.
    fn sweep(&self, now: Instant) {
        self.idle
            .borrow_mut()
            .retain(|connection| now.duration_since(connection.idle_since) <= self.idle_timeout);
    }

    /// Closes all idle connections.
    fn close_idle(&self) {
        self.idle.borrow_mut().clear();
    }
}
