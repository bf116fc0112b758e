//! One HTTP/2 client connection, over TLS or in clear text with prior knowledge (RFC 9113, sections
//! 3.2 and 3.3).
//!
//! hyper implements the protocol. This module converts the head of each request to a [`Head`].
//! `exchange.rs` then serves the request, as over HTTP/1.1.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::access::caller::{AccessValues, HeadFields};
use crate::access_log::pending::PendingRecord;
use crate::config::downstream::Downstream;
use crate::downstream::answer::{ClientResponse, HeadOptions};
use crate::downstream::exchange::{self, RequestOrigin};
use crate::downstream::forwarded_header::ForwardedHeader;
use crate::downstream::frames::FrameCounter;
use crate::downstream::head::{AcceptedCodings, ContentCoding, Head, HttpMethod, MediaType};
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::downstream::unread::{ResponseBody, UnfinishedResponses};
use crate::downstream::{answer, compress, frames, head, log};
use crate::io::memory::{Account, BudgetExhausted, Reservation};
use crate::policy::memory::Purpose;
use crate::policy::trace_context::TraceHeaders;
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;
use crate::subscribe::fan::Subscriptions;

/// Maximum concurrent streams of a connection, as nginx's `http2_max_concurrent_streams`.
const STREAMS_MAX: u32 = 128;

/// Name of the protocol in logs and traces.
const PROTOCOL: &str = "HTTP/2.0";

/// Serves a connection. `read_ahead` holds the bytes that were already read.
///
/// Each request uses the configuration that is current when the request starts. The connection
/// keeps its timeouts and its limits of streams and headers through reloads.
pub(crate) async fn serve<S>(
    thread: Rc<Thread>,
    stream: S,
    read_ahead: Vec<u8>,
    peer: Peer,
    account: Rc<Account>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let blocked_since = Rc::new(Cell::new(None));
    let mut client_frames = FrameCounter::of_client();
    client_frames.feed(&read_ahead);
    let server_frames = FrameCounter::default();
    let monitored_stream = MonitoredStream {
        read_ahead: read_ahead.into(),
        stream,
        blocked_since: Rc::clone(&blocked_since),
        client_frames,
        server_frames,
    };
    let unfinished_responses = Rc::new(UnfinishedResponses::default());
    let active_streams = ActiveStreams::new();
    let service = hyper::service::service_fn(|request| {
        let (cx, unfinished_responses, peer) =
            (thread.context(), Rc::clone(&unfinished_responses), peer.clone());
        let (account, subscriptions) = (Rc::clone(&account), Rc::clone(&thread.subscriptions));
        let active_stream = active_streams.begin();
        async move {
            let response =
                respond(&cx, &unfinished_responses, request, &peer, &account, &subscriptions).await;
            drop(active_stream);
            Ok::<_, Infallible>(response)
        }
    });
    let (write_timeout, idle_timeout) = {
        let downstream = &thread.context().snapshot.config.downstream;
        (downstream.write_timeout, downstream.idle_timeout)
    };
    let connection = configure_server(&thread.context().snapshot.config.downstream)
        .serve_connection(TokioIo::new(monitored_stream), service);
    tokio::pin!(connection);
    // The interval between checks is half of the shorter timeout, so a timeout is detected soon
    // after it has passed.
    let mut checks = tokio::time::interval(write_timeout.min(idle_timeout) / 2);
    let mut is_draining = false;
    // When the gateway sent GOAWAY to an idle client; `None` before that.
    let mut goaway_at: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = thread.wait_for_drain(), if !is_draining => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = checks.tick() => {
                let blocked_since: Option<Instant> = blocked_since.get();
                let is_blocked =
                    blocked_since.is_some_and(|since| since.elapsed() > write_timeout);
                if is_blocked || unfinished_responses.is_stalled(write_timeout) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let is_idle =
                    unfinished_responses.is_empty() && active_streams.is_idle_for(idle_timeout);
                match goaway_at {
                    None if is_idle && !is_draining => {
                        goaway_at = Some(Instant::now());
                        connection.as_mut().graceful_shutdown();
                    }
                    Some(sent_at) if is_idle && sent_at.elapsed() > write_timeout => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Counts the active requests of one connection, for the idle timeout. Only requests extend the
/// timeout, not PING or SETTINGS frames.
struct ActiveStreams {
    /// Number of active requests.
    count: Cell<usize>,
    /// When the last request ended, or the connection started.
    last_ended: Cell<Instant>,
}

impl ActiveStreams {
    fn new() -> Rc<ActiveStreams> {
        Rc::new(ActiveStreams { count: Cell::new(0), last_ended: Cell::new(Instant::now()) })
    }

    /// Counts a request until the returned guard is dropped. A reset of the stream drops the guard
    /// too.
    fn begin(self: &Rc<ActiveStreams>) -> ActiveStream {
        self.count.set(self.count.get() + 1);
        ActiveStream(Rc::clone(self))
    }

    fn is_idle_for(&self, idle_timeout: Duration) -> bool {
        self.count.get() == 0 && self.last_ended.get().elapsed() > idle_timeout
    }
}

/// Counts one active request until it is dropped.
struct ActiveStream(Rc<ActiveStreams>);

impl Drop for ActiveStream {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        self.0.last_ended.set(Instant::now());
    }
}

/// Returns hyper's settings for a connection.
fn configure_server(downstream: &Downstream) -> hyper::server::conn::http2::Builder<LocalExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(downstream.header_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(downstream.idle_timeout))
        .keep_alive_timeout(downstream.header_timeout);
    builder
}

/// Reads and serves one request, and logs it.
async fn respond(
    cx: &Rc<ThreadContext>,
    unfinished_responses: &Rc<UnfinishedResponses>,
    request: http::Request<Incoming>,
    peer: &Peer,
    account: &Rc<Account>,
    subscriptions: &Subscriptions,
) -> http::Response<ResponseBody> {
    let downstream = &cx.snapshot.config.downstream;
    let (parts, body) = request.into_parts();
    let head = convert_head(&parts, &cx.snapshot.head_fields, ForwardedHeader::of(downstream));
    let client = peer.client_address(&head, downstream);
    let body_bytes_max = downstream.body_bytes_max;
    let (protocol, waiting) = (PROTOCOL, &Cell::new(0));
    let subscribe_context = SubscribeContext { subscriptions, guard: None };
    let origin = RequestOrigin { peer, protocol, waiting, account, subscribe_context };
    let budget = &cx.snapshot.process.memory;
    let mut reservation = Reservation::for_connection(budget, Purpose::Request, account);
    let reading = read_body(body, body_bytes_max, &mut reservation);
    let body = match tokio::time::timeout(downstream.body_timeout, reading).await {
        Err(_) => Err(ClientResponse::refuse(408, "request body took too long")),
        Ok(Err(response)) => Err(response),
        Ok(Ok(body)) => {
            reservation.set_waiting(false);
            exchange::decode_body(&head, body, body_bytes_max).await
        }
    };
    let mut response = match body {
        Ok(body) => exchange::respond(cx, &head, &body, &origin).await,
        Err(response) => exchange::refuse(cx, response),
    };
    drop(reservation);
    if exchange::should_compress(cx, &head, &response) {
        response = Box::pin(compress::encode(response, head.accepted_codings)).await;
    }
    if cx.snapshot.access_log.is_some() {
        let without_head = || Box::new(PendingRecord::without_head(client, PROTOCOL));
        response.record.get_or_insert_with(without_head);
        log::log_request(cx, &mut response);
    }
    build_response(cx, unfinished_responses, &head, response)
}

/// Reads a request body and reserves memory for it. Refuses a body of more than `bytes_max` bytes.
async fn read_body(
    mut body: Incoming,
    bytes_max: usize,
    reservation: &mut Reservation,
) -> Result<Vec<u8>, ClientResponse> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(ClientResponse::refuse(400, "request body was cut off"));
        };
        // Trailers are ignored.
        let Ok(piece) = frame.into_data() else { continue };
        if bytes.len() + piece.len() > bytes_max {
            return Err(ClientResponse::refuse_size(bytes_max));
        }
        bytes.extend_from_slice(&piece);
        reservation
            .set(bytes.capacity())
            .map_err(|BudgetExhausted| ClientResponse::refuse_memory())?;
    }
    Ok(bytes)
}

/// Converts a response to hyper's form.
fn build_response(
    cx: &ThreadContext,
    unfinished_responses: &Rc<UnfinishedResponses>,
    head: &Head,
    response: ClientResponse,
) -> http::Response<ResponseBody> {
    let date = cx.date();
    let options = HeadOptions {
        config: &cx.snapshot.config,
        origin: head.origin.as_deref(),
        keep_alive: true,
        confirm_keep_alive: false,
        date: &date,
    };
    let mut http_response = http::Response::new(());
    *http_response.status_mut() = http::StatusCode::from_u16(response.status)
        .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    answer::for_each_header(&response, options, |name, value| {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(value)) {
            http_response.headers_mut().append(name, value);
        }
    });
    let body = if head.http_method == HttpMethod::Head {
        Bytes::new()
    } else {
        response.body.join().into()
    };
    http_response.map(|()| unfinished_responses.track(body, response.reservation))
}

/// Converts the head of an HTTP/2 request. `fields` selects the optional parts of the head to
/// store, and `forwarded_header` names the header with the client's address.
fn convert_head(
    parts: &http::request::Parts,
    fields: &HeadFields,
    forwarded_header: Option<ForwardedHeader<'_>>,
) -> Head {
    let access_values = fields.access_fields.as_ref().map(|access_fields| {
        let mut access_values = AccessValues::new(access_fields);
        for (name, value) in &parts.headers {
            access_values.add_header(name.as_str(), value.as_bytes(), access_fields);
        }
        // The `:authority` pseudo-header replaces `host` (RFC 9113, section 8.3.1).
        let host_header = || parts.headers.get("host").and_then(|host| host.to_str().ok());
        let host = parts.uri.authority().map(http::uri::Authority::as_str).or_else(host_header);
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        access_values.set_target(host.unwrap_or(""), target, access_fields);
        Arc::new(access_values)
    });
    let mut trace = TraceHeaders::default();
    let values =
        |name: &str| parts.headers.get_all(name).into_iter().map(http::HeaderValue::as_bytes);
    values("traceparent").for_each(|value| trace.add_parent(value));
    values("tracestate").for_each(|value| trace.add_state(value));
    let value = |name: &str| parts.headers.get(name).map(http::HeaderValue::as_bytes);
    Head {
        http_method: head::parse_http_method(parts.method.as_str()),
        path: head::parse_path(parts.uri.path()),
        keep_alive: true,
        media_type: value("content-type").map_or(MediaType::Absent, head::parse_media_type),
        accepted_codings: value("accept-encoding")
            .map_or(AcceptedCodings::default(), head::parse_accepted_codings),
        content_coding: value("content-encoding")
            .map_or(ContentCoding::Identity, head::parse_content_coding),
        origin: value("origin").and_then(|origin| std::str::from_utf8(origin).ok()).map(Box::from),
        hash_header: fields.hash_header.as_deref().and_then(value).map(Box::from),
        limit_headers: fields
            .limit_headers
            .iter()
            .map(|name| value(name.as_str()).map(SmallVec::from_slice))
            .collect(),
        forwarded_address: forwarded_header.and_then(|forwarded_header| {
            let values = parts.headers.get_all(forwarded_header.name);
            forwarded_header.find_client(values.iter().map(http::HeaderValue::as_bytes))
        }),
        access_values,
        trace: trace.finish(),
        ..Head::default()
    }
}

/// Runs hyper's tasks on the current thread's runtime.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// A stream that first returns the bytes that were read earlier. It detects floods of frames
/// without requests. It also records when the client stopped reading. Without these checks, a
/// client that floods PING or SETTINGS frames and never reads would keep its connection forever.
struct MonitoredStream<S> {
    /// Bytes that were read earlier and not returned yet.
    read_ahead: Bytes,
    stream: S,
    /// When the stream stopped accepting bytes; `None` while it accepts bytes.
    blocked_since: Rc<Cell<Option<Instant>>>,
    /// Counts the frames of the client.
    client_frames: FrameCounter,
    /// Counts the frames of the gateway.
    server_frames: FrameCounter,
}

impl<S> MonitoredStream<S> {
    /// Records whether a write waits for the stream.
    fn track<T>(&self, polled: Poll<T>) -> Poll<T> {
        let blocked_since = match &polled {
            Poll::Ready(_) => None,
            Poll::Pending => Some(self.blocked_since.get().unwrap_or_else(Instant::now)),
        };
        self.blocked_since.set(blocked_since);
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.read_ahead.is_empty() {
            let bytes = buf.remaining().min(this.read_ahead.len());
            buf.put_slice(&this.read_ahead.split_to(bytes));
            return Poll::Ready(Ok(()));
        }
        let filled_before = buf.filled().len();
        std::task::ready!(Pin::new(&mut this.stream).poll_read(task, buf))?;
        this.client_frames.feed(&buf.filled()[filled_before..]);
        if frames::is_flood(&this.client_frames, &this.server_frames) {
            return Poll::Ready(Err(io::Error::other("a flood of frames without requests")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(task, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            this.server_frames.feed(&buf[..bytes]);
        }
        this.track(polled)
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(task);
        this.track(polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(task)
    }
}
