//! One HTTP/2 connection and its exchanges: requests with their responses, one stream each.
//!
//! The h2 crate implements the protocol. The engine's loop polls h2 without a tokio runtime. This
//! works because h2 needs only tokio's IO traits and wakers.
//! `crates/lab-engine/src/engine/thread/h2_pool.rs` assigns workers to connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, Connection as H2Connection, ResponseFuture, SendRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use lab_model::plan::Target;
use lab_model::record::Traffic;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wire::retry_after::parse_retry_after;

use super::EngineFault;
use super::body::{Body, ReceivedBody};
use super::compose::{AGENT, host_header};
use super::connection::{Connection, PIECE_BYTES, ReadResult};
use super::world::Socket;

/// Flow-control window of a stream, in bytes. A large window does not limit the throughput.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Flow-control window of a connection, in bytes: enough for 16 full stream windows.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// An HTTP/2 connection.
pub(crate) struct Session<S> {
    /// Opens streams.
    sender: SendRequest<Bytes>,
    /// Reads and writes frames when it is polled.
    h2: H2Connection<Pipe<S>, Bytes>,
    /// Shared with the [`Pipe`], which h2 owns.
    pipe_state: Arc<Mutex<PipeState>>,
}

/// Counters of a connection's socket, and its read limit.
#[derive(Default)]
struct PipeState {
    /// Traffic since the last call of [`Session::drive`].
    traffic: Traffic,
    /// Number of bytes that may still be read in the current call of [`Session::drive`].
    read_budget: usize,
    /// True if the budget was used up, so that more data may be available.
    has_more: bool,
}

/// State of a connection after [`Session::drive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveResult {
    /// The socket has no more data for now.
    Idle,
    /// The socket may have more data, which the next call must read.
    More,
    /// The connection has ended.
    Ended,
}

/// A request in flight.
pub(crate) struct Exchange {
    response: ResponseFuture,
    /// Status and Retry-After; `None` until the response's header section has arrived.
    head: Option<(u16, Option<Duration>)>,
    /// Source of the body; `None` until the response's header section has arrived.
    body: Option<RecvStream>,
    /// The part of the body that has arrived.
    received: Body,
}

/// Progress of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The response is incomplete.
    Incomplete,
    /// The response is complete.
    Complete {
        status: u16,
        /// Value of Retry-After; `None` if it is absent or invalid.
        retry_after: Option<Duration>,
    },
    /// The body exceeds the plan's limit.
    TooLong,
    /// The stream or the connection has ended.
    Broken,
    /// The server has not processed the request, so it can be sent again.
    Unprocessed,
}

impl<S: Socket> Session<S> {
    /// Starts HTTP/2 on a new connection.
    ///
    /// # Errors
    /// Fails if the connection is broken or does not accept the connection preface.
    pub(crate) fn handshake(connection: Connection<S>) -> Result<Session<S>, h2::Error> {
        let pipe_state = Arc::<Mutex<PipeState>>::default();
        let pipe = Pipe { connection, pipe_state: Arc::clone(&pipe_state) };
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .enable_push(false);
        let mut handshake = Box::pin(builder.handshake(pipe));
        match handshake.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.map(|(sender, h2)| Session { sender, h2, pipe_state }),
            // This does not happen, because a new socket accepts the few bytes of the preface.
            Poll::Pending => Err(h2::Reason::INTERNAL_ERROR.into()),
        }
    }

    /// Returns false if the connection has ended or the server sent GOAWAY.
    pub(crate) fn is_usable(&mut self) -> bool {
        let ready = self.sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        !matches!(ready, Poll::Ready(Err(_)))
    }

    /// Opens a stream. [`Session::drive`] sends the request.
    ///
    /// # Errors
    /// Fails if the connection has ended.
    pub(crate) fn send_request(
        &mut self,
        head: &Request<()>,
        body: &[u8],
    ) -> Result<Exchange, h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = head.uri().clone();
        *request.headers_mut() = head.headers().clone();
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        // A request above the server's limit of streams blocks further requests on the same
        // `SendRequest`. So each exchange uses a clone.
        let has_no_body = false;
        let (response, mut stream) = self.sender.clone().send_request(request, has_no_body)?;
        let is_last = true;
        stream.send_data(Bytes::copy_from_slice(body), is_last)?;
        Ok(Exchange { response, head: None, body: None, received: Body::default() })
    }

    /// Sends all pending data and reads up to [`PIECE_BYTES`].
    pub(crate) fn drive(&mut self, traffic: &mut Traffic) -> DriveResult {
        self.pipe_state.lock().read_budget = PIECE_BYTES;
        let ended = Pin::new(&mut self.h2).poll(&mut Context::from_waker(Waker::noop()));
        let mut pipe_state = self.pipe_state.lock();
        traffic.add(std::mem::take(&mut pipe_state.traffic));
        match (ended, std::mem::take(&mut pipe_state.has_more)) {
            (Poll::Ready(_), _) => DriveResult::Ended,
            (Poll::Pending, true) => DriveResult::More,
            (Poll::Pending, false) => DriveResult::Idle,
        }
    }
}

impl Exchange {
    /// Makes the exchange store the response body for the comparison with the reference node. Must
    /// be called before the response arrives.
    pub(crate) fn store_body(&mut self) {
        self.received.store();
    }

    /// Reads the available part of the response. h2 calls `waker` when more data arrives.
    pub(crate) fn advance(&mut self, waker: &Waker, body_bytes_max: usize) -> Progress {
        let mut context = Context::from_waker(waker);
        let body = match &mut self.body {
            Some(body) => body,
            None => match Pin::new(&mut self.response).poll(&mut context) {
                Poll::Pending => return Progress::Incomplete,
                Poll::Ready(Err(error)) if is_unprocessed(&error) => {
                    return Progress::Unprocessed;
                }
                Poll::Ready(Err(_)) => return Progress::Broken,
                Poll::Ready(Ok(response)) => {
                    let value = response.headers().get(header::RETRY_AFTER);
                    let retry_after = value.and_then(|value| parse_retry_after(value.as_bytes()));
                    self.head = Some((response.status().as_u16(), retry_after));
                    self.body.insert(response.into_body())
                }
            },
        };
        loop {
            match body.poll_data(&mut context) {
                Poll::Pending => return Progress::Incomplete,
                Poll::Ready(Some(Err(_))) => return Progress::Broken,
                Poll::Ready(Some(Ok(piece))) => {
                    if self.received.append(&piece, body_bytes_max).is_err() {
                        return Progress::TooLong;
                    }
                    // The release fails if the stream has ended. Then no window is needed any more.
                    let _ignored = body.flow_control().release_capacity(piece.len());
                }
                Poll::Ready(None) => {
                    let (status, retry_after) = self.head.unwrap_or_default();
                    return Progress::Complete { status, retry_after };
                }
            }
        }
    }

    /// Returns the part of the body that has arrived so far.
    pub(crate) fn received(&self) -> ReceivedBody<'_> {
        self.received.received()
    }
}

/// Returns true if the server has not processed the stream. A GOAWAY frame names the last stream that
/// the server may process (RFC 9113, 6.8), and h2 reports a remote GOAWAY only to later streams. The
/// server has not processed a refused stream either (8.7).
fn is_unprocessed(error: &h2::Error) -> bool {
    let is_refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (error.is_go_away() || is_refused)
}

/// Returns a request with the URI and the header fields of every request, except Content-Length.
///
/// # Errors
/// Fails if a header of the plan cannot be sent.
pub(crate) fn build_head(target: &Target) -> Result<Request<()>, EngineFault> {
    let mut host = host_header(target);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    let mut plan_headers = HeaderMap::new();
    for (name, value) in &target.headers {
        let fault = || EngineFault::Header { name: name.clone() };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| fault())?;
        let parsed_value = HeaderValue::from_str(value).map_err(|_| fault())?;
        match key {
            header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION => {
                return Err(fault());
            }
            header::HOST => host.clone_from(value),
            _ => {
                plan_headers.append(key, parsed_value);
            }
        }
    }
    // The plan's headers replace the defaults.
    for key in plan_headers.keys() {
        headers.remove(key);
    }
    headers.extend(plan_headers);
    let scheme = if target.url.tls() { "https" } else { "http" };
    let mut request = Request::new(());
    *request.uri_mut() = format!("{scheme}://{host}{}", target.url.target())
        .parse()
        .map_err(|_| EngineFault::Header { name: "host".to_owned() })?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The waker of one worker, which appends the worker's id to a list.
pub(crate) struct WorkerWaker {
    worker_id: u32,
    /// Workers whose exchange can advance.
    woken: Arc<Mutex<Vec<u32>>>,
}

impl WorkerWaker {
    /// Creates the waker.
    pub(crate) fn waker(worker_id: u32, woken: &Arc<Mutex<Vec<u32>>>) -> Waker {
        Arc::new(WorkerWaker { worker_id, woken: Arc::clone(woken) }).into()
    }
}

impl Wake for WorkerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.lock().push(self.worker_id);
    }
}

/// Adapts a connection to tokio's IO traits for h2. The adapter ignores wakers, because the loop
/// polls again after each socket event.
struct Pipe<S> {
    connection: Connection<S>,
    pipe_state: Arc<Mutex<PipeState>>,
}

impl<S: Socket> AsyncRead for Pipe<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        let mut pipe_state = pipe.pipe_state.lock();
        if pipe_state.read_budget == 0 {
            pipe_state.has_more = true;
            return Poll::Pending;
        }
        match pipe.connection.receive(buffer.initialize_unfilled(), &mut pipe_state.traffic) {
            ReadResult::Nothing => Poll::Pending,
            ReadResult::End => Poll::Ready(Ok(())),
            ReadResult::Bytes { count, .. } => {
                pipe_state.read_budget = pipe_state.read_budget.saturating_sub(count);
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl<S: Socket> AsyncWrite for Pipe<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let pipe = self.get_mut();
        if Pin::new(&mut *pipe).poll_flush(context)?.is_pending() {
            return Poll::Pending;
        }
        pipe.connection.send(bytes, &mut pipe.pipe_state.lock().traffic)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        pipe.connection.flush(&mut pipe.pipe_state.lock().traffic)?;
        if pipe.connection.sent_all() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        pipe.connection.close_notify(&mut pipe.pipe_state.lock().traffic);
        Poll::Ready(Ok(()))
    }
}
