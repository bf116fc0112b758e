//! The HTTP/2 connections of one thread to one upstream. Each connection carries many calls at a
//! time.
//!
//! The TLS handshake negotiates HTTP/2 (RFC 9113, 3.2). If an upstream declines HTTP/2, the gateway
//! uses HTTP/1.1, and offers HTTP/2 again after some minutes. The h2 crate handles framing, windows
//! and stream limits. This file chooses a connection for a call, opens connections, and maps the
//! failure of a stream to the error of its call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason};
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Request};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use wire::retry_after::parse_retry_after;

use crate::call::failure::{FailureKind, Sent};
use crate::config::Config;
use crate::config::upstream::Upstream;
use crate::io::buffers::create_body;
use crate::io::memory::{BudgetExhausted, Reservation};
use crate::metrics::counters::UpstreamCounters;
use crate::policy::memory::Purpose;
use crate::trace::context::TraceContext;
use crate::upstream::connector::{Connector, DialGuard, Stream};
use crate::upstream::exchange::{Body, ExchangeError, HttpResponse};
use crate::upstream::resources::ThreadResources;

#[cfg(test)]
mod tests;

/// Flow-control window of a connection and of each stream, in bytes. A link of 1 Gbit/s carries
/// 4 MiB in 34 ms, so a large response does not stall.
const WINDOW_BYTES: u32 = 4 << 20;
/// Maximum number of connections tried for a call that no upstream has processed: GOAWAY and
/// REFUSED_STREAM say so, and a retry is safe. A server that restarts may do so a few times.
const CONNECTIONS_TRIED_MAX: usize = 5;
/// If an upstream has declined HTTP/2, HTTP/2 is offered again after this time. The upstream's load
/// balancer may have been reconfigured.
const HTTP2_RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of streams until the upstream sends its own limit. RFC 9113, 6.5.2, recommends a
/// limit of at least 100.
const STREAMS_ASSUMED: usize = 100;
/// Initial capacity for a body of unknown length, in bytes.
const BODY_CAPACITY: usize = 4096;

/// One thread's HTTP/2 connections to an upstream.
pub(crate) struct Http2 {
    thread: Rc<ThreadResources>,
    connector: Connector,
    /// The configured upstream, but with a TLS client that offers HTTP/2.
    upstream: Upstream,
    /// The head of each request, without the length.
    head: Request<()>,
    /// Maximum number of open connections of this thread.
    connections_max: usize,
    connections: RefCell<Vec<Rc<H2Connection>>>,
    /// True while a connection is being opened.
    dialing: Cell<bool>,
    /// Number of failed attempts to open a connection since the last successful attempt.
    failures: Cell<u32>,
    /// Notified when a call ends or a connection is opened or closed.
    changed: Notify,
    /// When the upstream last declined HTTP/2; `None` if it never did.
    declined_at: Cell<Option<Instant>>,
    /// This thread's counters of the upstream.
    counts: Arc<UpstreamCounters>,
}

/// An HTTP/2 connection.
struct H2Connection {
    /// Sends requests over the connection.
    request_sender: SendRequest<Bytes>,
    /// Number of calls in flight.
    calls: Cell<usize>,
    /// When the last call of the connection ended, or when the connection was opened.
    last_used: Cell<Instant>,
}

/// The variable parts of a request, and the size limit of its response.
struct OutgoingRequest<'a> {
    body: Bytes,
    trace: Option<&'a TraceContext>,
    response_bytes_max: usize,
}

/// Why there is no connection for a call.
enum NoConnection {
    /// The upstream declines HTTP/2.
    Declined,
    /// No connection could be opened in time.
    Failed,
}

/// Why a stream has no response.
struct StreamError {
    kind: FailureKind,
    /// Whether the upstream may have processed the call.
    sent: Sent,
    /// True if the connection cannot be used any more.
    connection_lost: bool,
}

impl Http2 {
    /// Returns one thread's connections to an upstream; `None` if HTTP/2 is off.
    pub(crate) fn new(
        thread: &Rc<ThreadResources>,
        config: &Config,
        upstream: &Upstream,
        connector: &Connector,
        counts: &Arc<UpstreamCounters>,
    ) -> Option<Rc<Http2>> {
        let mut upstream = Some(upstream).filter(|upstream| upstream.http2)?.clone();
        let tls = upstream.tls.as_mut()?;
        let mut client = (*tls.client).clone();
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tls.client = Arc::new(client);
        Some(Rc::new(Http2 {
            thread: Rc::clone(thread),
            connector: connector.clone(),
            head: build_request_head(&upstream)?,
            connections_max: upstream.connections_max.div_ceil(config.server.threads),
            upstream,
            connections: RefCell::default(),
            dialing: Cell::new(false),
            failures: Cell::new(0),
            changed: Notify::new(),
            declined_at: Cell::new(None),
            counts: Arc::clone(counts),
        }))
    }

    /// Sends a body and reads the response by `deadline`. Returns `None` if the upstream declines
    /// HTTP/2.
    pub(crate) async fn post(
        self: &Rc<Http2>,
        body: &impl Body,
        deadline: Instant,
        response_bytes_max: usize,
    ) -> Option<Result<HttpResponse, ExchangeError>> {
        let mut bytes = Vec::with_capacity(body.bytes());
        body.write(&mut bytes);
        let (trace, body) = (body.trace(), Bytes::from(bytes));
        let request = OutgoingRequest { body, trace, response_bytes_max };
        let mut connections_tried = 0;
        loop {
            let connection = match self.acquire(deadline).await {
                Ok(connection) => connection,
                Err(NoConnection::Declined) => return None,
                Err(NoConnection::Failed) => {
                    return Some(Err(ExchangeError::new(FailureKind::Connect, Sent::No)));
                }
            };
            connections_tried += 1;
            let reservation = Reservation::new(&self.thread.memory, Purpose::Upstream);
            let exchange = self.exchange(&connection, &request, reservation);
            let error = match timeout_at(deadline, exchange).await {
                Ok(Ok(response)) => return Some(Ok(response)),
                Ok(Err(error)) => error,
                Err(_) => return Some(Err(ExchangeError::new(FailureKind::Deadline, Sent::Maybe))),
            };
            if error.connection_lost {
                self.remove(&connection);
            }
            if error.sent != Sent::No || connections_tried == CONNECTIONS_TRIED_MAX {
                return Some(Err(ExchangeError::new(error.kind, error.sent)));
            }
        }
    }

    /// Closes all connections after their calls.
    pub(crate) fn close(&self) {
        // Calls in flight keep their connections open.
        self.connections.borrow_mut().clear();
    }

    /// Returns a connection that can take a call. Opens a connection if necessary and possible, or
    /// waits until `deadline` for a free connection.
    async fn acquire(
        self: &Rc<Http2>,
        deadline: Instant,
    ) -> Result<Rc<H2Connection>, NoConnection> {
        let failures = self.failures.get();
        loop {
            let declined_at = self.declined_at.get();
            if declined_at.is_some_and(|declined_at| declined_at.elapsed() < HTTP2_RETRY_INTERVAL) {
                return Err(NoConnection::Declined);
            }
            let changed = self.changed.notified();
            if let Some(connection) = self.find_free() {
                return Ok(connection);
            }
            // While this call waited, another call has failed to open a connection.
            if self.failures.get() > failures {
                return Err(NoConnection::Failed);
            }
            if self.dialing.get() || self.connections.borrow().len() >= self.connections_max {
                timeout_at(deadline, changed).await.map_err(|_| NoConnection::Failed)?;
                continue;
            }
            let _dial_guard = DialGuard::new(&self.dialing, &self.changed);
            match timeout_at(deadline, self.open()).await {
                Ok(Ok(true)) => self.failures.set(0),
                Ok(Ok(false)) => {
                    tracing::info!(
                        upstream = &*self.upstream.name,
                        "the upstream declines HTTP/2; using HTTP/1.1"
                    );
                    self.declined_at.set(Some(Instant::now()));
                }
                Ok(Err(error)) => {
                    tracing::debug!(upstream = &*self.upstream.name, %error, "cannot connect");
                    self.failures.set(self.failures.get().wrapping_add(1));
                    return Err(NoConnection::Failed);
                }
                Err(_) => return Err(NoConnection::Failed),
            }
        }
    }

    /// Returns a connection that can take a call now.
    fn find_free(&self) -> Option<Rc<H2Connection>> {
        let is_free = |connection: &&Rc<H2Connection>| {
            let streams_max = connection.request_sender.current_max_send_streams();
            connection.calls.get() < self.upstream.calls_per_connection_max.min(streams_max)
        };
        self.connections.borrow().iter().find(is_free).cloned()
    }

    /// Opens a connection, adds it to the open connections and returns true. Returns false, and
    /// adds no connection, if the upstream declines HTTP/2.
    async fn open(self: &Rc<Http2>) -> io::Result<bool> {
        self.counts.connections_opened.add(1);
        let connect_timeout = self.upstream.connect_timeout;
        let stream = self.connector.connect(self.upstream.http(), connect_timeout).await?;
        let has_negotiated_http2 = match &stream {
            Stream::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
            Stream::Tcp(_) | Stream::Unix(_) | Stream::Memory(_) => false,
        };
        if !has_negotiated_http2 {
            return Ok(false);
        }
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_max_send_streams(STREAMS_ASSUMED)
            .enable_push(false);
        let opened = timeout(connect_timeout, builder.handshake(stream)).await;
        let opened = opened.map_err(|_| io::ErrorKind::TimedOut)?;
        let (request_sender, mut driver) = opened.map_err(io::Error::other)?;
        let pings = driver.ping_pong();
        let (calls, last_used) = (Cell::new(0), Cell::new(Instant::now()));
        let connection = Rc::new(H2Connection { request_sender, calls, last_used });
        let (http2, weak_connection) = (Rc::downgrade(self), Rc::downgrade(&connection));
        let (ping_interval, idle_timeout) =
            (self.upstream.ping_interval, self.upstream.idle_timeout);
        self.connections.borrow_mut().push(connection);
        tokio::task::spawn_local(async move {
            tokio::select! {
                // h2 itself reports a connection error to each call.
                _ended = driver => {}
                () = wait_until_dead_or_idle(
                    pings, weak_connection.clone(), ping_interval, idle_timeout
                ) => {}
            }
            if let (Some(http2), Some(connection)) = (http2.upgrade(), weak_connection.upgrade()) {
                http2.remove(&connection);
            }
        });
        Ok(true)
    }

    /// Removes a connection and notifies the waiting calls. The connection closes after its calls.
    fn remove(&self, connection: &Rc<H2Connection>) {
        self.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, connection));
        self.changed.notify_waiters();
    }

    /// Sends a request on a new stream and reads the response. `reservation` counts the buffered
    /// bytes of the response.
    async fn exchange(
        &self,
        connection: &H2Connection,
        request: &OutgoingRequest<'_>,
        mut reservation: Reservation,
    ) -> Result<HttpResponse, StreamError> {
        let response_bytes_max = request.response_bytes_max;
        let body = request.body.clone();
        connection.calls.update(|calls| calls + 1);
        let _call_guard = CallGuard { http2: self, connection };
        let not_sent =
            |_| StreamError { kind: FailureKind::Closed, sent: Sent::No, connection_lost: true };
        let mut request_sender = connection.request_sender.clone();
        poll_fn(|context| request_sender.poll_ready(context)).await.map_err(not_sent)?;
        let mut head = self.head.clone();
        head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if let Some(trace) = request.trace {
            add_trace_headers(head.headers_mut(), trace);
        }
        let (response, mut request_body) =
            request_sender.send_request(head, false).map_err(not_sent)?;
        self.counts.multiplexed_calls.add(1);
        request_body.send_data(body, true).map_err(|error| classify_error(&error, Sent::Maybe))?;
        let response = response.await.map_err(|error| classify_error(&error, Sent::Maybe))?;
        let (head, mut response_body) = response.into_parts();
        // The error for a response that arrived but cannot be used.
        let rejected = |kind| StreamError { kind, sent: Sent::Yes, connection_lost: false };
        let length = parse_length(&head.headers).map_err(rejected)?;
        if length.is_some_and(|length| length > response_bytes_max) {
            return Err(rejected(FailureKind::TooLarge));
        }
        let mut received = create_body(length.unwrap_or(BODY_CAPACITY));
        while let Some(chunk) = response_body.data().await {
            let chunk = chunk.map_err(|error| classify_error(&error, Sent::Yes))?;
            if received.len() + chunk.len() > response_bytes_max {
                return Err(rejected(FailureKind::TooLarge));
            }
            received.extend_from_slice(&chunk);
            reservation
                .set(received.capacity())
                .map_err(|BudgetExhausted| rejected(FailureKind::Memory))?;
            // The release fails only if the stream has ended. In that case the next read returns
            // the end of the body.
            let _released = response_body.flow_control().release_capacity(chunk.len());
        }
        let retry_after =
            head.headers.get(RETRY_AFTER).and_then(|value| parse_retry_after(value.as_bytes()));
        let (status, body) = (head.status.as_u16(), received.freeze());
        Ok(HttpResponse { status, retry_after, body, reusable: true })
    }
}

/// Adds the headers of a trace. Their values hold only printable ASCII, so both are valid header
/// values.
fn add_trace_headers(headers: &mut HeaderMap, trace: &TraceContext) {
    if let Ok(parent) = HeaderValue::from_bytes(&trace.parent().to_header()) {
        headers.insert("traceparent", parent);
    }
    if let Some(Ok(state)) = trace.state().map(HeaderValue::from_str) {
        headers.insert("tracestate", state);
    }
}

/// Waits until the upstream fails to answer a ping in time, or until the connection has been idle
/// for `idle_timeout`. Waits forever if the connection has no pings or was removed.
async fn wait_until_dead_or_idle(
    pings: Option<PingPong>,
    connection: Weak<H2Connection>,
    ping_interval: Duration,
    idle_timeout: Duration,
) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(ping_interval).await;
        let Some(connection) = connection.upgrade() else { break };
        if connection.calls.get() == 0 && connection.last_used.get().elapsed() >= idle_timeout {
            return;
        }
        // This reference would keep a removed connection open after its last call.
        drop(connection);
        if !matches!(timeout(ping_interval, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
    std::future::pending().await
}

/// Returns the error of a call whose stream or connection has ended. The error has `Sent::No` if
/// the upstream cannot have processed the stream, else `sent`.
fn classify_error(error: &h2::Error, sent: Sent) -> StreamError {
    // A GOAWAY frame names the last stream that the upstream may process (RFC 9113, 6.8). h2
    // reports a remote GOAWAY only to later streams, which the upstream has not processed. The
    // upstream has not processed refused streams either (8.7).
    let is_unprocessed = error.is_go_away() && error.is_remote();
    let is_refused = error.reason() == Some(Reason::REFUSED_STREAM) && error.is_remote();
    let sent = if is_unprocessed || is_refused { Sent::No } else { sent };
    StreamError { kind: FailureKind::Closed, sent, connection_lost: !error.is_reset() }
}

/// Returns the value of `Content-Length`; `None` if the header is absent.
///
/// # Errors
/// [`FailureKind::Malformed`] if the value is not a number or the body has a content coding.
fn parse_length(headers: &HeaderMap) -> Result<Option<usize>, FailureKind> {
    // The request offered no encoding, so an encoded body is unreadable.
    let encoding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(FailureKind::Malformed);
    }
    let Some(length) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = length.to_str().ok().and_then(|length| length.parse().ok());
    length.map(Some).ok_or(FailureKind::Malformed)
}

/// Returns the head of each request; `None` if the upstream has no HTTP address.
fn build_request_head(upstream: &Upstream) -> Option<Request<()>> {
    let (url, _) = upstream.http()?;
    let uri = format!("https://{}{}", url.authority(), url.target());
    let mut head = Request::post(uri).body(()).ok()?;
    let headers = head.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(CONTENT_TYPE, json.clone());
    headers.insert(ACCEPT, json);
    if let Some(authorization) = url.authorization() {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    for (name, value) in &upstream.headers {
        headers.append(name.clone(), value.clone());
    }
    Some(head)
}

/// When dropped, counts the end of a call on a connection and notifies the waiting calls.
struct CallGuard<'a> {
    http2: &'a Http2,
    connection: &'a H2Connection,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.connection.calls.update(|calls| calls - 1);
        self.connection.last_used.set(Instant::now());
        self.http2.changed.notify_waiters();
    }
}
