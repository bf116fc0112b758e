//! One HTTP/1.1 client connection, from its first byte to its close.
//!
//! The connection reads one request at a time, serves the request (`exchange.rs`) and writes the
//! response. Then it serves the next request. An idle connection holds at most a small buffer.
//! `head.rs` parses heads (request line and headers), `io/chunked.rs` parses chunked bodies, and
//! `answer.rs` formats responses. A connection can switch to HTTP/2 (`http2.rs`) or to a WebSocket
//! (`websocket.rs`).

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::access_log::pending::PendingRecord;
use crate::call::reply::COPY_BYTES_MAX;
use crate::config::downstream::Downstream;
use crate::downstream::answer::{ClientResponse, HeadOptions};
use crate::downstream::connection::ConnectionState;
use crate::downstream::exchange::RequestOrigin;
use crate::downstream::head::{BodyLength, ContentCoding, Head, HttpMethod};
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::downstream::{answer, compress, exchange, http2, log, websocket};
use crate::io::chunked::Chunked;
use crate::io::memory::{BudgetExhausted, Reservation};
use crate::io::wait;
use crate::io::wait::{ReadOutcome, Watchdog};
use crate::io::websocket::deflate;
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;

/// After a refusal, further bytes of the request are read and dropped for this time. Without these
/// reads, the client would receive a reset instead of the refusal (nginx's `lingering_timeout`).
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes that are read and dropped after a refusal.
const LINGER_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of the buffer that an idle connection keeps. A larger buffer is freed.
const IDLE_BUFFER_BYTES_MAX: usize = 1024;
/// Maximum bytes that are read ahead while a limit delays a request. At this maximum, the socket is
/// not read again until the response is written.
const READ_AHEAD_BYTES_MAX: usize = 64 * 1024;
/// The preface of an HTTP/2 client with prior knowledge (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Name of the protocol in logs and traces.
const PROTOCOL: &str = "HTTP/1.1";

/// Serves one client until the client disconnects or violates the protocol, or the gateway stops.
pub(crate) async fn serve<S>(thread: Rc<Thread>, stream: S, peer: Peer, state: Rc<ConnectionState>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let logged_peer = peer.clone();
    let budget = Arc::clone(&thread.context().snapshot.process.memory);
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
    // Disconnects of clients are normal, so they are logged only at the lowest level.
    if let Err(error) = connection.run().await {
        let client = logged_peer.address;
        tracing::trace!(%client, subject = logged_peer.subject(), %error, "client connection ended");
    }
}

struct Connection<S> {
    stream: S,
    /// The timer for the deadlines of reads and writes.
    watchdog: Watchdog,
    /// The memory reservation for request bytes.
    reservation: Reservation,
    /// Received bytes of the current request and, if the client pipelines, of further requests.
    buf: Vec<u8>,
    /// Bytes that were read while a limit delayed a request; they follow `buf`.
    read_ahead: Vec<u8>,
    peer: Peer,
    state: Rc<ConnectionState>,
    thread: Rc<Thread>,
}

/// Why no complete request could be read.
enum ReadFailure {
    /// The client has disconnected, or the socket failed.
    Disconnected,
    /// The request is refused with this response. The client may still send the rest of the
    /// request.
    Refused(Box<ClientResponse>),
}

impl From<io::Error> for ReadFailure {
    fn from(_: io::Error) -> ReadFailure {
        ReadFailure::Disconnected
    }
}

fn refuse(response: ClientResponse) -> ReadFailure {
    ReadFailure::Refused(Box::new(response))
}

impl<S> Connection<S>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    /// Serves the requests of the connection until it closes.
    async fn run(mut self) -> io::Result<()> {
        let mut served_requests = 0u64;
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
                    // The client speaks HTTP/2. Only the memory account of the state is passed on,
                    // because an HTTP/2 connection closes its own streams when a stop begins.
                    drop(cx);
                    let read_ahead = std::mem::take(&mut self.buf);
                    let account = Rc::clone(&self.state.account);
                    let served =
                        http2::serve(self.thread, self.stream, read_ahead, self.peer, account);
                    return Box::pin(served).await;
                }
                Err(failure) => return Box::pin(self.end_with(&cx, failure)).await,
            };
            is_first = false;
            if head.upgrade.is_some() && cx.snapshot.config.downstream.websocket {
                return Box::pin(self.upgrade(cx, head)).await;
            }
            let body = match self.read_body(&cx, &head).await {
                Ok(body) => body,
                Err(failure) => return Box::pin(self.end_with(&cx, failure)).await,
            };
            let downstream = &cx.snapshot.config.downstream;
            let limits_delay = cx.snapshot.limits.as_ref().is_some_and(|limits| limits.delays);
            let mut response = if limits_delay || cx.upstreams.permits.is_any_crowded() {
                match Box::pin(self.respond_while_connected(&cx, &head, &body)).await {
                    Some(response) => response,
                    None => return Ok(()),
                }
            } else {
                let (bytes, waiting) = (body.bytes(&self.buf), Cell::new(0));
                exchange::respond(&cx, &head, bytes, &self.origin(&waiting)).await
            };
            if exchange::should_compress(&cx, &head, &response) {
                response = Box::pin(compress::encode(response, head.accepted_codings)).await;
            }
            // A graceful stop may have begun during the request.
            served_requests += 1;
            let accepts_more =
                served_requests < downstream.keep_alive_requests_max && !self.thread.is_draining();
            let keep_alive = head.keep_alive && accepts_more;
            let written = self.write(&cx, Some(&*head), &response, keep_alive).await;
            log::log_request(&cx, &mut response);
            written?;
            if !keep_alive {
                return self.stream.shutdown().await;
            }
            self.drop_request(body.range.end);
            // The result is ignored. A smaller reservation cannot fail. Only the bytes of pipelined
            // requests make the reservation larger, and these bytes are limited.
            let _reserved = self.reservation.set(self.buf.capacity() + self.read_ahead.capacity());
            if !self.read_ahead.is_empty() {
                self.buf.append(&mut self.read_ahead);
            }
        }
    }

    /// Returns the properties of the connection that are needed to serve a request. `waiting`
    /// counts the request's calls that wait, either for a request limit or for a permit to call an
    /// upstream.
    fn origin<'a>(&'a self, waiting: &'a Cell<usize>) -> RequestOrigin<'a> {
        let (account, subscriptions) = (&self.state.account, &self.thread.subscriptions);
        let subscribe_context = SubscribeContext { subscriptions, guard: None };
        RequestOrigin { peer: &self.peer, protocol: PROTOCOL, waiting, account, subscribe_context }
    }

    /// Switches to a WebSocket if the client may open one; otherwise refuses the upgrade.
    async fn upgrade(mut self, cx: Rc<ThreadContext>, head: Rc<Head>) -> io::Result<()> {
        let upgrade = head.upgrade.clone().unwrap_or_default();
        let downstream = &cx.snapshot.config.downstream;
        if !upgrade.version_known {
            self.write_raw(&cx, websocket::UNSUPPORTED_VERSION_RESPONSE).await?;
            return self.stream.shutdown().await;
        }
        let compresses =
            downstream.websocket_compression && deflate::is_offered(&upgrade.extensions);
        // `None` if the upgrade request is malformed or has a body.
        let accept_response = websocket::build_accept_response(&upgrade, compresses);
        let accept_response = accept_response.filter(|_| head.body_length == BodyLength::None);
        // The access rules of a GET request apply, so the upgrade request is served like a GET
        // request.
        let waiting = Cell::new(0);
        let mut response = exchange::respond(&cx, &head, b"", &self.origin(&waiting)).await;
        // Only browsers send an `Origin` header. It names the web page that opens the WebSocket.
        let refusal = match &head.origin {
            _ if response.status != 200 => None,
            Some(origin) if !downstream.cors_origins.admits(origin) => {
                Some(ClientResponse::refuse(403, "this origin is not allowed"))
            }
            _ if accept_response.is_none() => {
                Some(ClientResponse::refuse(400, "bad WebSocket request"))
            }
            _ => None,
        };
        if let Some(refusal) = refusal {
            let record = response.record.take();
            response = exchange::refuse(&cx, refusal);
            response.record = record;
        }
        let (Some(accept_response), 200) = (&accept_response, response.status) else {
            return self.close_with(&cx, response).await;
        };
        self.write_raw(&cx, accept_response).await?;
        response.status = 101;
        log::log_request(&cx, &mut response);
        let read_ahead = self.buf.split_off(head.bytes);
        let settings = websocket::Settings::of(downstream, compresses);
        // The configuration is released, because each WebSocket message uses the configuration that
        // is current when the message arrives.
        drop(cx);
        let opened = websocket::UpgradedConnection {
            thread: self.thread,
            stream: self.stream,
            watchdog: self.watchdog,
            read_ahead,
            peer: self.peer,
            state: self.state,
        };
        websocket::serve(opened, settings, &head).await
    }

    /// Serves a request. While a limit delays the request, reads ahead to notice a disconnect.
    /// Returns `None` if the connection must close. The connection must close if the client has
    /// disconnected (nginx does the same), or if the memory budget has no room for the bytes read
    /// ahead.
    async fn respond_while_connected(
        &mut self,
        cx: &Rc<ThreadContext>,
        head: &Head,
        body: &StoredBody,
    ) -> Option<ClientResponse> {
        let Connection { stream, reservation, buf, read_ahead, peer, state, thread, .. } = self;
        let (account, waiting) = (&state.account, &Cell::new(0));
        let subscribe_context =
            SubscribeContext { subscriptions: &thread.subscriptions, guard: None };
        let protocol = PROTOCOL;
        let origin = RequestOrigin { peer, protocol, waiting, account, subscribe_context };
        let (bytes, buffer_bytes) = (body.bytes(buf), buf.capacity());
        let mut responding = pin!(exchange::respond(cx, head, bytes, &origin));
        std::future::poll_fn(|task| {
            if let Poll::Ready(response) = responding.as_mut().poll(task) {
                return Poll::Ready(Some(response));
            }
            // Only a read reveals a disconnect. Bytes of pipelined requests are stored in
            // `read_ahead`.
            while waiting.get() > 0 && read_ahead.len() < READ_AHEAD_BYTES_MAX {
                match wait::poll_read(stream, task, |bytes| read_ahead.extend_from_slice(bytes)) {
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

    /// Waits for the first bytes of a request, without keeping a configuration in use. Returns
    /// false if the connection must close.
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
                cx.instant() + downstream.idle_timeout
            }
        };
        let Connection { stream, watchdog, buf, state, .. } = self;
        let mut fill = pin!(wait::fill(stream, watchdog, deadline, |bytes| {
            buf.extend_from_slice(bytes);
        }));
        // A graceful stop ends the wait like a timeout.
        let filled = std::future::poll_fn(|cx| match fill.as_mut().poll(cx) {
            Poll::Pending if state.must_close(cx) => Poll::Ready(Ok(ReadOutcome::TimedOut)),
            filled => filled,
        });
        Ok(matches!(filled.await?, ReadOutcome::Bytes(())))
    }

    /// Reads until the current head is complete. Returns `None` if the client speaks HTTP/2.
    async fn read_next_head(
        &mut self,
        cx: &Rc<ThreadContext>,
        is_first: bool,
    ) -> Result<Option<Rc<Head>>, ReadFailure> {
        let mut deadline = None;
        loop {
            if is_first && may_be_preface(&self.buf) {
                if self.buf.len() >= HTTP2_PREFACE.len() {
                    return Ok(None);
                }
            } else {
                match self.thread.heads.read(cx, &self.buf) {
                    Ok(Some(head)) => return Ok(Some(head)),
                    // The head is incomplete.
                    Ok(None) => {}
                    Err(fault) => return Err(refuse(ClientResponse::refuse_head(fault))),
                }
            }
            let header_timeout = cx.snapshot.config.downstream.header_timeout;
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + header_timeout);
            match self.fill(deadline).await? {
                ReadOutcome::Bytes(()) => self.reserve(0)?,
                ReadOutcome::End => return Err(ReadFailure::Disconnected),
                ReadOutcome::TimedOut => {
                    return Err(refuse(ClientResponse::refuse(408, "request head took too long")));
                }
            }
        }
    }

    /// Reads once into the buffer.
    async fn fill(&mut self, deadline: Instant) -> io::Result<ReadOutcome<()>> {
        let buf = &mut self.buf;
        wait::fill(&mut self.stream, &mut self.watchdog, deadline, |bytes| {
            buf.extend_from_slice(bytes);
        })
        .await
    }

    /// Reads the body of a request and removes its content coding.
    async fn read_body(
        &mut self,
        cx: &ThreadContext,
        head: &Head,
    ) -> Result<StoredBody, ReadFailure> {
        let downstream = &cx.snapshot.config.downstream;
        let body_bytes_max = downstream.body_bytes_max;
        if let BodyLength::Fixed(length) = head.body_length {
            if length > body_bytes_max as u64 {
                return Err(refuse(ClientResponse::refuse_size(body_bytes_max)));
            }
            let budget = &cx.snapshot.process.memory;
            if !budget.has_room(Purpose::Request, length as usize) {
                budget.count_refusal(Purpose::Request);
                return Err(refuse(ClientResponse::refuse_memory()));
            }
        }
        // If a part of the body has arrived, the client does not wait for this interim response.
        if head.expect_continue
            && head.body_length != BodyLength::None
            && self.buf.len() == head.bytes
        {
            self.write_raw(cx, b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let body_start = head.bytes;
        let mut stored_body = StoredBody { range: body_start..body_start, decoded: None };
        match head.body_length {
            BodyLength::None => {}
            BodyLength::Fixed(length) => {
                stored_body.range.end += length as usize;
                self.fill_to(stored_body.range.end, downstream.body_timeout).await?;
            }
            BodyLength::Chunked => {
                stored_body.decoded = Some(self.read_chunks(body_start, downstream).await?);
            }
        }
        self.reservation.set_waiting(false);
        if head.content_coding != ContentCoding::Identity {
            let joined_chunks = stored_body.decoded.take();
            let encoded =
                joined_chunks.unwrap_or_else(|| self.buf[stored_body.range.clone()].to_vec());
            let decoded = exchange::decode_body(head, encoded, body_bytes_max).await;
            let decoded = decoded.map_err(refuse)?;
            self.reserve(decoded.capacity())?;
            stored_body.decoded = Some(decoded);
        }
        Ok(stored_body)
    }

    /// Reads until the buffer has `bytes` bytes.
    async fn fill_to(&mut self, bytes: usize, timeout: Duration) -> Result<(), ReadFailure> {
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
    ) -> Result<Vec<u8>, ReadFailure> {
        let body_bytes_max = downstream.body_bytes_max;
        let mut chunked = Chunked::new(body_bytes_max);
        let deadline = Instant::now() + downstream.body_timeout;
        loop {
            let used = chunked
                .feed(&self.buf[start..])
                .map_err(|fault| refuse(ClientResponse::refuse_chunks(fault, body_bytes_max)))?;
            // The decoder has copied these bytes. They are dropped at once, so that memory holds
            // the body only once.
            self.buf.drain(start..start + used);
            self.reserve(chunked.bytes_held())?;
            if chunked.is_done() {
                return Ok(chunked.into_body());
            }
            self.fill_body(deadline).await?;
        }
    }

    /// Reserves memory for the request, plus `body_bytes` bytes of a separate body.
    fn reserve(&mut self, body_bytes: usize) -> Result<(), ReadFailure> {
        let reserved = self.reservation.set(self.buf.capacity() + body_bytes);
        reserved.map_err(|BudgetExhausted| refuse(ClientResponse::refuse_memory()))
    }

    /// Reads once into the buffer while a body is incomplete.
    async fn fill_body(&mut self, deadline: Instant) -> Result<(), ReadFailure> {
        match self.fill(deadline).await? {
            ReadOutcome::Bytes(()) => Ok(()),
            ReadOutcome::End => Err(ReadFailure::Disconnected),
            ReadOutcome::TimedOut => {
                Err(refuse(ClientResponse::refuse(408, "request body took too long")))
            }
        }
    }

    /// Writes a complete HTTP message.
    async fn write_raw(&mut self, cx: &ThreadContext, bytes: &[u8]) -> io::Result<()> {
        let timeout = cx.snapshot.config.downstream.write_timeout;
        wait::write(&mut self.stream, &mut self.watchdog, timeout, [bytes, b"", b""]).await
    }

    /// Writes a response. `head` is the head of the request; `None` if the request was refused.
    async fn write(
        &mut self,
        cx: &ThreadContext,
        head: Option<&Head>,
        response: &ClientResponse,
        keep_alive: bool,
    ) -> io::Result<()> {
        let config = &cx.snapshot.config;
        let mut out = cx.upstreams.thread.buffers.take();
        let date = cx.date();
        let options = HeadOptions {
            config,
            origin: head.and_then(|head| head.origin.as_deref()),
            keep_alive,
            confirm_keep_alive: head.is_some_and(|head| head.confirm_keep_alive),
            date: &date,
        };
        answer::write_head(&mut out, response, options);
        let body = &response.body;
        // The head and a small payload share one buffer, because one copy is cheaper than a
        // vectored write.
        let parts = if head.is_some_and(|head| head.http_method == HttpMethod::Head) {
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
        cx.upstreams.thread.buffers.put_back(out);
        written
    }

    /// Removes the served request, which ends at `request_end`, from the buffer.
    fn drop_request(&mut self, request_end: usize) {
        if request_end < self.buf.len() {
            self.buf.drain(..request_end);
        } else if self.buf.capacity() > IDLE_BUFFER_BYTES_MAX {
            self.buf = Vec::new();
        } else {
            self.buf.clear();
        }
    }

    /// Ends the connection after a failed read. Sends the refusal, if there is one.
    async fn end_with(self, cx: &ThreadContext, failure: ReadFailure) -> io::Result<()> {
        let ReadFailure::Refused(mut response) = failure else { return Ok(()) };
        cx.counters.record_refusal(response.status);
        if cx.snapshot.access_log.is_some() {
            let record = PendingRecord::without_head(self.peer.address, PROTOCOL);
            response.record = Some(Box::new(record));
        }
        self.close_with(cx, *response).await
    }

    /// Sends the last response of the connection. Then reads and drops the bytes that the client
    /// still sends, up to a limit, and closes the connection. Without these reads, the client would
    /// receive a reset instead of the response.
    async fn close_with(
        mut self,
        cx: &ThreadContext,
        mut response: ClientResponse,
    ) -> io::Result<()> {
        self.buf = Vec::new();
        let _freed = self.reservation.set(0);
        log::log_request(cx, &mut response);
        self.write(cx, None, &response, false).await?;
        self.stream.shutdown().await?;
        let deadline = Instant::now() + LINGER_TIMEOUT;
        let mut dropped_bytes = 0;
        while dropped_bytes < LINGER_BYTES_MAX {
            let filled =
                wait::fill(&mut self.stream, &mut self.watchdog, deadline, <[u8]>::len).await?;
            match filled {
                ReadOutcome::Bytes(bytes) => dropped_bytes += bytes,
                ReadOutcome::End | ReadOutcome::TimedOut => break,
            }
        }
        Ok(())
    }
}

/// A complete request body.
struct StoredBody {
    /// The range of the received body in the connection's buffer. The range is empty for a chunked
    /// body, which is removed from the buffer.
    range: Range<usize>,
    /// The body after the chunked and the content coding were removed. Replaces the body in the
    /// buffer. `None` if the received body has neither coding.
    decoded: Option<Vec<u8>>,
}

impl StoredBody {
    /// Returns the body without a chunked or content coding.
    fn bytes<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        self.decoded.as_deref().unwrap_or(&buf[self.range.clone()])
    }
}

/// Returns true if `buf` begins with the HTTP/2 preface, or may do so once more bytes arrive.
fn may_be_preface(buf: &[u8]) -> bool {
    let compared = buf.len().min(HTTP2_PREFACE.len());
    buf[..compared] == HTTP2_PREFACE[..compared]
}
