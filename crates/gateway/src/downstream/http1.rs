//! One HTTP/1.1 client connection, from its first byte to its close.
//!
//! The connection reads requests in sequence, passes each body to `path.rs`, and writes the
//! responses in the same order. An idle connection holds no buffer. `head.rs` parses heads,
//! `io/chunked.rs` parses chunked bodies, and `answer.rs` formats responses. A connection can
//! switch to HTTP/2 (`http2.rs`) or to a WebSocket (`websocket.rs`).

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::access_log::pending::PendingRecord;
use crate::config::downstream::Downstream;
use crate::downstream::answer::{HeadOptions, Message};
use crate::downstream::exchange::RequestOrigin;
use crate::downstream::head::{Coding, Head, Length, Verb};
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::downstream::{answer, compress, exchange, http2, log, websocket};
use crate::io::chunked::Chunked;
use crate::io::memory::{Account, Full, Reservation};
use crate::io::wait;
use crate::io::wait::{ReadOutcome, Watchdog};
use crate::io::websocket::deflate;
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;
use crate::upstream::overload;

/// Time for which the rest of a refused request is read and dropped, so that the client receives
/// the refusal instead of a reset (nginx's `lingering_timeout`).
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes that are read and dropped after a refusal.
const LINGER_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of a payload that is copied behind the head. A larger payload is sent from its own
/// buffer.
pub(super) const COPY_BYTES_MAX: usize = 32 * 1024;
/// Maximum bytes of the buffer that an idle connection keeps. A larger buffer is freed.
const IDLE_BUFFER_BYTES_MAX: usize = 1024;
/// Maximum bytes that are read ahead while a limit delays a request. Then the socket is not read
/// until the response is written.
const READ_AHEAD_BYTES_MAX: usize = 64 * 1024;
/// The preface of an HTTP/2 client with prior knowledge (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const PROTOCOL: &str = "HTTP/1.1";

/// The part of a connection's state that a graceful stop reads.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// True from the first byte of a request until its response is written.
    pub(super) busy: Cell<bool>,
    /// True if a graceful stop has begun.
    closing: Cell<bool>,
    /// Wakes the connection's task while it waits for a request.
    waker: RefCell<Option<Waker>>,
    /// The connection's account in the memory budget.
    pub(crate) account: Rc<Account>,
}

impl ConnectionState {
    /// Closes the connection unless a request has begun.
    pub(crate) fn close_if_idle(&self) {
        self.closing.set(true);
        if !self.busy.get()
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Returns true if the connection must close instead of waiting for input. Registers the task
    /// for the wakeup.
    pub(super) fn must_close(&self, cx: &Context<'_>) -> bool {
        let mut waker = self.waker.borrow_mut();
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        self.closing.get()
    }
}

/// Serves one client until it disconnects, violates the protocol, or the thread drains.
pub(crate) async fn serve<S>(thread: Rc<Thread>, stream: S, peer: Peer, state: Rc<ConnectionState>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let logged_peer = peer.clone();
    let budget = Arc::clone(&thread.context().snapshot.registry.memory);
    let connection = Connection {
        stream,
        reservation: Reservation::for_connection(&budget, Purpose::Request, &state.account),
        watchdog: Watchdog::default(),
        buf: Vec::new(),
        read_ahead: Vec::new(),
        peer,
        state,
        thread,
    };
    // A disconnect is normal, so it is only traced.
    if let Err(error) = connection.run().await {
        let client = logged_peer.address;
        tracing::trace!(%client, subject = logged_peer.subject(), %error, "client connection ended");
    }
}

struct Connection<S> {
    stream: S,
    watchdog: Watchdog,
    /// The memory reservation for request bytes.
    reservation: Reservation,
    /// Bytes that were read and belong to requests without a response.
    buf: Vec<u8>,
    /// Bytes that were read while a limit delayed a request; they follow `buf`.
    read_ahead: Vec<u8>,
    peer: Peer,
    state: Rc<ConnectionState>,
    thread: Rc<Thread>,
}

/// Why no request could be read.
enum Stop {
    /// Close the connection without a response.
    Close,
    /// Send this response, then close. More of the request can be in transit.
    Refuse(Box<Message>),
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        Stop::Close
    }
}

fn refuse(message: Message) -> Stop {
    Stop::Refuse(Box::new(message))
}

impl<S> Connection<S>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    async fn run(mut self) -> io::Result<()> {
        let mut requests = 0u64;
        let mut is_first = true;
        loop {
            if self.buf.is_empty() && !self.wait_for_request(is_first).await? {
                return Ok(());
            }
            self.state.busy.set(true);
            // One configuration applies to the whole request, even if a reload happens meanwhile.
            let cx = self.thread.context();
            let head = match self.read_next_head(&cx, is_first).await {
                Ok(Some(head)) => head,
                Ok(None) => {
                    // An HTTP/2 connection closes its own streams when a stop begins.
                    drop(cx);
                    let unread = std::mem::take(&mut self.buf);
                    let account = Rc::clone(&self.state.account);
                    let served = http2::serve(self.thread, self.stream, unread, self.peer, account);
                    return Box::pin(served).await;
                }
                Err(stop) => return Box::pin(self.stop(&cx, stop)).await,
            };
            is_first = false;
            if head.upgrade.is_some() && cx.snapshot.config.downstream.websocket {
                return Box::pin(self.upgrade(cx, head)).await;
            }
            let body = match self.read_body(&cx, &head).await {
                Ok(body) => body,
                Err(stop) => return Box::pin(self.stop(&cx, stop)).await,
            };
            let downstream = &cx.snapshot.config.downstream;
            let delays = cx.snapshot.limits.as_ref().is_some_and(|limits| limits.delays);
            let mut message = if delays || overload::is_any_crowded(&cx.upstream) {
                match Box::pin(self.respond_while_connected(&cx, &head, &body)).await {
                    Some(message) => message,
                    None => return Ok(()),
                }
            } else {
                let (bytes, waiting) = (body.bytes(&self.buf), Cell::new(0));
                exchange::respond(&cx, &head, bytes, &self.origin(&waiting)).await
            };
            if exchange::should_compress(&cx, &head, &message) {
                message = Box::pin(compress::encode(message, head.accept)).await;
            }
            // A stop can have begun during the request.
            requests += 1;
            let accepts_more =
                requests < downstream.keep_alive_requests_max && !self.thread.state.is_draining();
            let keep_alive = head.keep_alive && accepts_more;
            let written = self.write(&cx, Some(&*head), &message, keep_alive).await;
            log::log_message(&cx, &mut message);
            written?;
            if !keep_alive {
                return self.stream.shutdown().await;
            }
            self.drop_request(body.range.end);
            drop((body, message));
            // A smaller reservation cannot fail. Only pipelined requests enlarge it, and their
            // bytes are limited.
            let _counted = self.reservation.set(self.buf.capacity() + self.read_ahead.capacity());
            if !self.read_ahead.is_empty() {
                self.buf.append(&mut self.read_ahead);
            }
        }
    }

    /// Returns the origin of this connection's requests.
    fn origin<'a>(&'a self, waiting: &'a Cell<usize>) -> RequestOrigin<'a> {
        let (account, subscriptions) = (&self.state.account, &self.thread.subscriptions);
        let subscribe_context = SubscribeContext { subscriptions, guard: None };
        RequestOrigin { peer: &self.peer, protocol: PROTOCOL, waiting, account, subscribe_context }
    }

    /// Switches to a WebSocket if the client is allowed to open one.
    async fn upgrade(mut self, cx: Rc<ThreadContext>, head: Rc<Head>) -> io::Result<()> {
        let upgrade = head.upgrade.clone().unwrap_or_default();
        let downstream = &cx.snapshot.config.downstream;
        if !upgrade.version_known {
            self.write_raw(&cx, websocket::UNSUPPORTED_VERSION_RESPONSE).await?;
            return self.stream.shutdown().await;
        }
        let compresses =
            downstream.websocket_compression && deflate::is_offered(&upgrade.extensions);
        let accept_response = websocket::build_accept_response(&upgrade, compresses);
        let accept_response = accept_response.filter(|_| head.length == Length::None);
        // The access rules are those of a GET request.
        let waiting = Cell::new(0);
        let mut message = exchange::respond(&cx, &head, b"", &self.origin(&waiting)).await;
        // Only browsers send an origin: that of the web page.
        let refusal = match &head.origin {
            _ if message.status != 200 => None,
            Some(origin) if !downstream.cors_origins.admits(origin) => {
                Some(Message::refuse(403, "this origin is not allowed"))
            }
            _ if accept_response.is_none() => Some(Message::refuse(400, "bad WebSocket request")),
            _ => None,
        };
        if let Some(refusal) = refusal {
            let record = message.record.take();
            message = Message { record, ..exchange::refuse(&cx, refusal) };
        }
        let (Some(accept_response), 200) = (&accept_response, message.status) else {
            return self.close_with(&cx, message).await;
        };
        self.write_raw(&cx, accept_response).await?;
        message.status = 101;
        log::log_message(&cx, &mut message);
        let (unread, settings) =
            (self.buf.split_off(head.bytes), websocket::Settings::of(downstream, compresses));
        // Each message uses the configuration that is current when it arrives.
        drop(cx);
        let opened = websocket::UpgradedConnection {
            thread: self.thread,
            stream: self.stream,
            watchdog: self.watchdog,
            unread,
            peer: self.peer,
            state: self.state,
        };
        websocket::serve(opened, settings, &head).await
    }

    /// Serves a request. Returns `None` if the connection must close: the client disconnects while
    /// a limit delays the request (as in nginx), or there is no memory for bytes that it sends
    /// meanwhile.
    async fn respond_while_connected(
        &mut self,
        cx: &Rc<ThreadContext>,
        head: &Head,
        body: &StoredBody,
    ) -> Option<Message> {
        let Connection { stream, reservation, buf, read_ahead, peer, state, thread, .. } = self;
        let (account, waiting) = (&state.account, &Cell::new(0));
        let subscribe_context =
            SubscribeContext { subscriptions: &thread.subscriptions, guard: None };
        let protocol = PROTOCOL;
        let origin = RequestOrigin { peer, protocol, waiting, account, subscribe_context };
        let (bytes, buffer_bytes) = (body.bytes(buf), buf.capacity());
        let mut responding = pin!(exchange::respond(cx, head, bytes, &origin));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(message) = responding.as_mut().poll(cx) {
                return Poll::Ready(Some(message));
            }
            // Pipelined requests prove that the client is connected. Their bytes are stored in
            // `read_ahead`.
            while waiting.get() > 0 && read_ahead.len() < READ_AHEAD_BYTES_MAX {
                match wait::poll_read(stream, cx, |bytes| read_ahead.extend_from_slice(bytes)) {
                    Poll::Ready(Ok(Some(()))) => {
                        if reservation.set(buffer_bytes + read_ahead.capacity()).is_err() {
                            return Poll::Ready(None);
                        }
                    }
                    Poll::Ready(Ok(None) | Err(_)) => return Poll::Ready(None),
                    Poll::Pending => break,
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the first bytes of a request without holding a configuration. Returns false if the
    /// connection must close.
    async fn wait_for_request(&mut self, is_first: bool) -> io::Result<bool> {
        self.state.busy.set(false);
        let deadline = {
            let cx = self.thread.context();
            let downstream = &cx.snapshot.config.downstream;
            // For the first request, the header timeout starts when the client connects. Between
            // requests the idle timeout applies until the next request begins.
            if is_first {
                cx.tick() + downstream.header_timeout
            } else {
                cx.recent() + downstream.idle_timeout
            }
        };
        let Connection { stream, watchdog, buf, state, .. } = self;
        let mut fill = pin!(wait::fill(stream, watchdog, deadline, |bytes| {
            buf.extend_from_slice(bytes);
        }));
        let filled = std::future::poll_fn(|cx| match fill.as_mut().poll(cx) {
            Poll::Pending if state.must_close(cx) => Poll::Ready(Ok(ReadOutcome::Late)),
            filled => filled,
        });
        Ok(matches!(filled.await?, ReadOutcome::Bytes(())))
    }

    /// Reads until the current head is complete. Returns `None` if the client speaks HTTP/2.
    async fn read_next_head(
        &mut self,
        cx: &Rc<ThreadContext>,
        is_first: bool,
    ) -> Result<Option<Rc<Head>>, Stop> {
        let mut deadline = None;
        loop {
            if is_first && is_preface(&self.buf) {
                if self.buf.len() >= HTTP2_PREFACE.len() {
                    return Ok(None);
                }
            } else {
                match self.thread.heads.read(cx, &self.buf) {
                    Ok(Some(head)) => return Ok(Some(head)),
                    Ok(None) => {}
                    Err(fault) => return Err(refuse(Message::refuse_head(fault))),
                }
            }
            let header_timeout = cx.snapshot.config.downstream.header_timeout;
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + header_timeout);
            match self.fill(deadline).await? {
                ReadOutcome::Bytes(()) => self.reserve(0)?,
                ReadOutcome::End => return Err(Stop::Close),
                ReadOutcome::Late => {
                    return Err(refuse(Message::refuse(408, "request head took too long")));
                }
            }
        }
    }

    async fn fill(&mut self, deadline: Instant) -> io::Result<ReadOutcome<()>> {
        let buf = &mut self.buf;
        wait::fill(&mut self.stream, &mut self.watchdog, deadline, |bytes| {
            buf.extend_from_slice(bytes);
        })
        .await
    }

    async fn read_body(&mut self, cx: &ThreadContext, head: &Head) -> Result<StoredBody, Stop> {
        let downstream = &cx.snapshot.config.downstream;
        let body_bytes_max = downstream.body_bytes_max;
        if let Length::Fixed(length) = head.length {
            if length > body_bytes_max as u64 {
                return Err(refuse(Message::refuse_size(body_bytes_max)));
            }
            let budget = &cx.snapshot.registry.memory;
            if !budget.has_room(Purpose::Request, length as usize) {
                budget.count_refusal(Purpose::Request);
                return Err(refuse(Message::refuse_memory()));
            }
        }
        // A client that has already sent a part of the body does not wait for the interim response.
        if head.expect_continue && head.length != Length::None && self.buf.len() == head.bytes {
            self.write_raw(cx, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let start = head.bytes;
        let mut stored_body = StoredBody { range: start..start, decoded: None };
        match head.length {
            Length::None => {}
            Length::Fixed(length) => {
                stored_body.range.end += length as usize;
                self.fill_to(stored_body.range.end, downstream.body_timeout).await?;
            }
            Length::Chunked => {
                stored_body.decoded = Some(self.read_chunks(start, downstream).await?);
            }
        }
        self.reservation.set_waiting(false);
        if head.coding != Coding::Identity {
            let received = stored_body.decoded.take();
            let encoded = received.unwrap_or_else(|| self.buf[stored_body.range.clone()].to_vec());
            let decoded = exchange::decode_body(head, encoded, body_bytes_max).await;
            let decoded = decoded.map_err(refuse)?;
            self.reserve(decoded.capacity())?;
            stored_body.decoded = Some(decoded);
        }
        Ok(stored_body)
    }

    /// Reads until the buffer has `bytes` bytes.
    async fn fill_to(&mut self, bytes: usize, timeout: Duration) -> Result<(), Stop> {
        let mut deadline = None;
        while self.buf.len() < bytes {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
            self.fill_body(deadline).await?;
            self.reserve(0)?;
        }
        Ok(())
    }

    /// Reads a chunked body, which begins at `start` in the buffer, and removes it from the buffer.
    async fn read_chunks(
        &mut self,
        start: usize,
        downstream: &Downstream,
    ) -> Result<Vec<u8>, Stop> {
        let body_bytes_max = downstream.body_bytes_max;
        let mut chunked = Chunked::new(body_bytes_max);
        let deadline = Instant::now() + downstream.body_timeout;
        loop {
            let used = chunked
                .feed(&self.buf[start..])
                .map_err(|fault| refuse(Message::refuse_chunks(fault, body_bytes_max)))?;
            // Decoded bytes are dropped at once, so that memory holds the body only once.
            self.buf.drain(start..start + used);
            self.reserve(chunked.bytes_held())?;
            if chunked.is_done() {
                return Ok(chunked.into_body());
            }
            self.fill_body(deadline).await?;
        }
    }

    /// Reserves memory for the request, plus `body_bytes` bytes of a separate body.
    fn reserve(&mut self, body_bytes: usize) -> Result<(), Stop> {
        let reserved = self.reservation.set(self.buf.capacity() + body_bytes);
        reserved.map_err(|Full| refuse(Message::refuse_memory()))
    }

    async fn fill_body(&mut self, deadline: Instant) -> Result<(), Stop> {
        match self.fill(deadline).await? {
            ReadOutcome::Bytes(()) => Ok(()),
            ReadOutcome::End => Err(Stop::Close),
            ReadOutcome::Late => Err(refuse(Message::refuse(408, "request body took too long"))),
        }
    }

    /// Writes bytes that are a whole HTTP message.
    async fn write_raw(&mut self, cx: &ThreadContext, bytes: &[u8]) -> io::Result<()> {
        let timeout = cx.snapshot.config.downstream.write_timeout;
        wait::write(&mut self.stream, &mut self.watchdog, timeout, [bytes, b"", b""]).await
    }

    /// Writes a response. Without `head`, the request's head was refused.
    async fn write(
        &mut self,
        cx: &ThreadContext,
        head: Option<&Head>,
        message: &Message,
        keep_alive: bool,
    ) -> io::Result<()> {
        let config = &cx.snapshot.config;
        let mut out = cx.upstream.buffers.take();
        let date = cx.date();
        let options = HeadOptions {
            config,
            origin: head.and_then(|head| head.origin.as_deref()),
            keep_alive,
            confirm_keep_alive: head.is_some_and(|head| head.confirm_keep_alive),
            date: &date,
        };
        answer::write_head(&mut out, message, options);
        let body = &message.body;
        // The head and a small payload share one buffer, because one copy is cheaper than a
        // vectored write.
        let parts = if head.is_some_and(|head| head.verb == Verb::Head) {
            [&out[..], b"", b""]
        } else if body.middle.len() <= COPY_BYTES_MAX {
            out.reserve(body.len());
            out.extend_from_slice(&body.start);
            out.extend_from_slice(&body.middle);
            out.extend_from_slice(body.end);
            [&out[..], b"", b""]
        } else {
            out.extend_from_slice(&body.start);
            [&out[..], &body.middle[..], body.end]
        };
        let timeout = config.downstream.write_timeout;
        let written = wait::write(&mut self.stream, &mut self.watchdog, timeout, parts).await;
        cx.upstream.buffers.give(out);
        written
    }

    /// Drops the served request from the buffer.
    fn drop_request(&mut self, end: usize) {
        if end < self.buf.len() {
            self.buf.drain(..end);
        } else if self.buf.capacity() > IDLE_BUFFER_BYTES_MAX {
            self.buf = Vec::new();
        } else {
            self.buf.clear();
        }
    }

    /// Sends the refusal, if there is one, and closes the connection.
    async fn stop(self, cx: &ThreadContext, stop: Stop) -> io::Result<()> {
        let Stop::Refuse(mut message) = stop else { return Ok(()) };
        cx.counters.record_refusal(message.status);
        if cx.snapshot.access_log.is_some() {
            let record = PendingRecord::without_head(self.peer.address, PROTOCOL);
            message.record = Some(Box::new(record));
        }
        self.close_with(cx, *message).await
    }

    /// Sends the last response of the connection. A client that still sends would otherwise lose
    /// it, so the bytes that arrive within a limit are read before the connection closes.
    async fn close_with(mut self, cx: &ThreadContext, mut message: Message) -> io::Result<()> {
        self.buf = Vec::new();
        let _freed = self.reservation.set(0);
        log::log_message(cx, &mut message);
        self.write(cx, None, &message, false).await?;
        self.stream.shutdown().await?;
        let deadline = Instant::now() + LINGER_TIMEOUT;
        let mut dropped = 0;
        while dropped < LINGER_BYTES_MAX {
            let filled =
                wait::fill(&mut self.stream, &mut self.watchdog, deadline, <[u8]>::len).await?;
            match filled {
                ReadOutcome::Bytes(bytes) => dropped += bytes,
                ReadOutcome::End | ReadOutcome::Late => break,
            }
        }
        Ok(())
    }
}

/// A complete request body.
struct StoredBody {
    /// The range of the received body in the connection's buffer. It is empty for a chunked body,
    /// which is removed from the buffer.
    range: Range<usize>,
    /// The body without its chunks and content coding; `None` if the received body has neither.
    decoded: Option<Vec<u8>>,
}

impl StoredBody {
    fn bytes<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        self.decoded.as_deref().unwrap_or(&buf[self.range.clone()])
    }
}

fn is_preface(buf: &[u8]) -> bool {
    let compared = buf.len().min(HTTP2_PREFACE.len());
    buf[..compared] == HTTP2_PREFACE[..compared]
}
