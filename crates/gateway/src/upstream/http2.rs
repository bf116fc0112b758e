//! The HTTP/2 connections of one thread to one upstream: many calls at a time on each.
//!
//! HTTP/2 is agreed on in the TLS handshake (RFC 9113, 3.2); an upstream that does not want it gets
//! HTTP/1.1, and is asked again after a while. Framing, windows and stream limits are h2's; here is
//! which connection a call takes, when one is opened, and what its loss says about the call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason};
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Request};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::call::failure::{Kind, Sent};
use crate::config::Config;
use crate::config::upstream::Upstream;
use crate::io::memory::{Full, Reservation};
use crate::metrics::counters::UpstreamCounters;
use crate::policy::memory::Purpose;
use crate::upstream::dial::{Dial, Way};
use crate::upstream::http1::{HttpAnswer, retry_after};
use crate::upstream::post::{Body, Broken};
use crate::upstream::stream::Stream;
use crate::upstream::thread::UpstreamContext;

#[cfg(test)]
mod tests;

/// Bytes of answers that an upstream may have sent before we have taken any, on a connection and on
/// each of its streams: what a link of 1 Gbit/s carries in 30 ms, so that a large answer flows.
const WINDOW_BYTES: u32 = 4 << 20;
/// Connections that are tried for one call, if none has taken it: the second may have been made
/// before the first one's end was known.
const TRIES: usize = 2;
/// How long an upstream that wanted HTTP/1.1 gets it: what stands before it may be set up anew.
const DECLINE_KEPT: Duration = Duration::from_secs(600);
/// Calls on a connection whose upstream has not said yet how many it takes: no upstream should take
/// fewer (RFC 9113, 6.5.2).
const STREAMS_UNTOLD: usize = 100;
/// Room for the first piece of an answer whose length is not told.
const BODY_ROOM: usize = 4096;

/// One thread's HTTP/2 connections to an upstream.
pub(crate) struct Http2 {
    dial: Dial,
    /// As configured, but with a TLS client that offers HTTP/2.
    upstream: Upstream,
    /// All of a request but its length.
    head: Request<()>,
    connections_max: usize,
    lines: RefCell<Vec<Rc<Line>>>,
    dialing: Cell<bool>,
    /// Connections in a row that could not be made.
    failures: Cell<u32>,
    /// A call has ended, a connection was made or lost.
    changed: Notify,
    /// When the upstream last wanted HTTP/1.1.
    declined: Cell<Option<Instant>>,
    counts: Arc<UpstreamCounters>,
}

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2").field("upstream", &self.upstream.name).finish_non_exhaustive()
    }
}

/// One connection.
struct Line {
    requests: SendRequest<Bytes>,
    calls: Cell<usize>,
    used: Cell<Instant>,
}

/// Why there is no connection for a call.
enum NoLine {
    /// The upstream wants HTTP/1.1.
    Declined,
    /// None could be made in time.
    Failed,
}

/// How an exchange failed.
struct Fault {
    kind: Kind,
    sent: Sent,
    /// Whether the connection is of no use any more.
    lost: bool,
}

impl Http2 {
    /// One thread's connections to an upstream; none where HTTP/2 is not asked for.
    pub(crate) fn new(
        config: &Config,
        upstream: &Upstream,
        dial: &Dial,
        counts: &Arc<UpstreamCounters>,
    ) -> Option<Rc<Http2>> {
        let mut upstream = Some(upstream).filter(|upstream| upstream.http2)?.clone();
        let tls = upstream.tls.as_mut()?;
        let mut client = (*tls.client).clone();
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tls.client = Arc::new(client);
        Some(Rc::new(Http2 {
            dial: dial.clone(),
            head: request_head(&upstream)?,
            connections_max: upstream.connections_max.div_ceil(config.server.threads),
            upstream,
            lines: RefCell::default(),
            dialing: Cell::new(false),
            failures: Cell::new(0),
            changed: Notify::new(),
            declined: Cell::new(None),
            counts: Arc::clone(counts),
        }))
    }

    /// Sends a body and reads the answer, by `deadline`. None where the upstream wants HTTP/1.1.
    pub(crate) async fn post(
        self: &Rc<Http2>,
        cx: &UpstreamContext,
        upstream: usize,
        body: &impl Body,
        deadline: Instant,
        response_bytes_max: usize,
    ) -> Option<Result<HttpAnswer, Broken>> {
        let mut bytes = Vec::with_capacity(body.bytes());
        body.write(&mut bytes);
        let body = Bytes::from(bytes);
        let mut tries = 0;
        loop {
            let line = match self.line(deadline).await {
                Ok(line) => line,
                Err(NoLine::Declined) => return None,
                Err(NoLine::Failed) => {
                    return Some(Err(Broken::new(upstream, Kind::Connect, Sent::No)));
                }
            };
            tries += 1;
            let hold = Reservation::new(&cx.topology.registry.memory, Purpose::Upstream);
            let exchange = self.exchange(&line, body.clone(), response_bytes_max, hold);
            let fault = match timeout_at(deadline, exchange).await {
                Ok(Ok(answer)) => return Some(Ok(answer)),
                Ok(Err(fault)) => fault,
                Err(_) => Fault { kind: Kind::Deadline, sent: Sent::Maybe, lost: false },
            };
            if fault.lost {
                self.drop_line(&line);
            }
            if fault.sent != Sent::No || tries == TRIES {
                return Some(Err(Broken::new(upstream, fault.kind, fault.sent)));
            }
        }
    }

    /// Opens no more connections and ends those that are open, in use or not, after their calls.
    pub(crate) fn close(&self) {
        // Calls under way hold theirs.
        self.lines.borrow_mut().clear();
    }

    /// A connection that takes a call now, or once one is there.
    async fn line(self: &Rc<Http2>, deadline: Instant) -> Result<Rc<Line>, NoLine> {
        let failures = self.failures.get();
        loop {
            if self.declined.get().is_some_and(|at| at.elapsed() < DECLINE_KEPT) {
                return Err(NoLine::Declined);
            }
            let changed = self.changed.notified();
            if let Some(line) = self.free() {
                return Ok(line);
            }
            if self.failures.get() > failures {
                return Err(NoLine::Failed);
            }
            if self.dialing.get() || self.lines.borrow().len() >= self.connections_max {
                timeout_at(deadline, changed).await.map_err(|_| NoLine::Failed)?;
                continue;
            }
            let _dialing = Dialing::begin(self);
            match timeout_at(deadline, self.open()).await {
                Ok(Ok(true)) => self.failures.set(0),
                Ok(Ok(false)) => {
                    tracing::info!(
                        upstream = &*self.upstream.name,
                        "the upstream wants HTTP/1.1, not HTTP/2"
                    );
                    self.declined.set(Some(Instant::now()));
                }
                Ok(Err(error)) => {
                    tracing::debug!(upstream = &*self.upstream.name, %error, "cannot connect");
                    self.failures.set(self.failures.get().wrapping_add(1));
                    return Err(NoLine::Failed);
                }
                Err(_) => return Err(NoLine::Failed),
            }
        }
    }

    fn free(&self) -> Option<Rc<Line>> {
        let has_room = |line: &&Rc<Line>| {
            let streams_max = line.requests.current_max_send_streams();
            line.calls.get() < self.upstream.calls_per_connection_max.min(streams_max)
        };
        self.lines.borrow().iter().find(has_room).cloned()
    }

    /// Makes a connection; false if the upstream wants HTTP/1.1.
    async fn open(self: &Rc<Http2>) -> io::Result<bool> {
        self.counts.connections_opened.add(1);
        let stream = self.dial.connect(&self.upstream, Way::Http).await?;
        if !speaks_http2(&stream) {
            return Ok(false);
        }
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_max_send_streams(STREAMS_UNTOLD)
            .enable_push(false);
        let opened = timeout(self.upstream.connect_timeout, builder.handshake(stream)).await;
        let (requests, mut connection) =
            opened.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io_error)?;
        let pings = connection.ping_pong();
        let line = Rc::new(Line { requests, calls: Cell::new(0), used: Cell::new(Instant::now()) });
        let (http2, weak) = (Rc::downgrade(self), Rc::downgrade(&line));
        let (ping_interval, idle_timeout) =
            (self.upstream.ping_interval, self.upstream.idle_timeout);
        self.lines.borrow_mut().push(line);
        tokio::task::spawn_local(async move {
            tokio::select! {
                // Its calls hear of it by themselves.
                _ended = connection => {}
                () = silence(pings, weak.clone(), ping_interval, idle_timeout) => {}
            }
            if let (Some(http2), Some(line)) = (http2.upgrade(), weak.upgrade()) {
                http2.drop_line(&line);
            }
        });
        Ok(true)
    }

    fn drop_line(&self, line: &Rc<Line>) {
        self.lines.borrow_mut().retain(|own| !Rc::ptr_eq(own, line));
        self.changed.notify_waiters();
    }

    async fn exchange(
        &self,
        line: &Line,
        body: Bytes,
        response_bytes_max: usize,
        mut hold: Reservation,
    ) -> Result<HttpAnswer, Fault> {
        let _under_way = UnderWay::begin(self, line);
        let unsent = |_| Fault { kind: Kind::Closed, sent: Sent::No, lost: true };
        let mut requests = line.requests.clone();
        poll_fn(|context| requests.poll_ready(context)).await.map_err(unsent)?;
        let mut head = self.head.clone();
        head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        let (response, mut sending) = requests.send_request(head, false).map_err(unsent)?;
        self.counts.multiplexed_calls.add(1);
        sending.send_data(body, true).map_err(|error| fault_of(&error, Sent::Maybe))?;
        let response = response.await.map_err(|error| fault_of(&error, Sent::Maybe))?;
        let (head, mut incoming) = response.into_parts();
        let faulty = |kind| Fault { kind, sent: Sent::Yes, lost: false };
        let length = length_of(&head.headers).map_err(faulty)?;
        if length.is_some_and(|length| length > response_bytes_max) {
            return Err(faulty(Kind::TooLarge));
        }
        // Memory is used as bytes come, not by what the head announces.
        let mut answer = BytesMut::with_capacity(length.unwrap_or(BODY_ROOM));
        while let Some(piece) = incoming.data().await {
            let piece = piece.map_err(|error| fault_of(&error, Sent::Yes))?;
            if answer.len() + piece.len() > response_bytes_max {
                return Err(faulty(Kind::TooLarge));
            }
            answer.extend_from_slice(&piece);
            let bytes = if length.is_some() { answer.len() } else { answer.capacity() };
            hold.set(bytes).map_err(|Full| faulty(Kind::Memory))?;
            // It fails only where the stream has ended, which the next piece tells.
            let _released = incoming.flow_control().release_capacity(piece.len());
        }
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|v| retry_after(v.as_bytes()));
        let (status, body) = (head.status.as_u16(), answer.freeze());
        Ok(HttpAnswer { status, retry_after, body, reusable: true })
    }
}

/// Ends when the upstream has not answered a ping in time, or nothing was asked of it for long.
async fn silence(
    pings: Option<PingPong>,
    line: Weak<Line>,
    ping_interval: Duration,
    idle_timeout: Duration,
) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(ping_interval).await;
        let Some(line) = line.upgrade() else { break };
        if line.calls.get() == 0 && line.used.get().elapsed() >= idle_timeout {
            return;
        }
        // Not held, so that a connection that is let go ends with its last call.
        drop(line);
        if !matches!(timeout(ping_interval, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
    }
    std::future::pending().await
}

/// Whether that was agreed on.
fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        Stream::Tcp(_) | Stream::Unix(_) | Stream::Memory(_) => false,
    }
}

/// What the end of a stream or of its connection says about a call of which so much was sent.
fn fault_of(error: &h2::Error, sent: Sent) -> Fault {
    // Streams above the last one that the upstream names in its farewell were not looked at (RFC
    // 9113,
    // 6.8), and neither were those that it refuses (8.7): only such hear of it here.
    let left = error.is_go_away() && error.is_remote();
    let refused = error.reason() == Some(Reason::REFUSED_STREAM) && error.is_remote();
    let sent = if left || refused { Sent::No } else { sent };
    Fault { kind: Kind::Closed, sent, lost: !error.is_reset() }
}

/// The length that an answer says that its body has.
fn length_of(headers: &HeaderMap) -> Result<Option<usize>, Kind> {
    // None was offered, so an encoded body cannot be read by anyone.
    let encoding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes);
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(Kind::Malformed);
    }
    let Some(length) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let length = length.to_str().ok().and_then(|length| length.parse().ok());
    length.map(Some).ok_or(Kind::Malformed)
}

fn request_head(upstream: &Upstream) -> Option<Request<()>> {
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

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into());
    }
    io::Error::other(error)
}

/// A call on a connection.
struct UnderWay<'a> {
    http2: &'a Http2,
    line: &'a Line,
}

impl<'a> UnderWay<'a> {
    fn begin(http2: &'a Http2, line: &'a Line) -> UnderWay<'a> {
        line.calls.set(line.calls.get() + 1);
        UnderWay { http2, line }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.line.calls.set(self.line.calls.get() - 1);
        self.line.used.set(Instant::now());
        self.http2.changed.notify_waiters();
    }
}

/// A connection that is being made.
struct Dialing<'a>(&'a Http2);

impl<'a> Dialing<'a> {
    fn begin(http2: &'a Http2) -> Dialing<'a> {
        http2.dialing.set(true);
        Dialing(http2)
    }
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        self.0.dialing.set(false);
        self.0.changed.notify_waiters();
    }
}
