//! One HTTP/2 connection and the exchanges on it: the h2 crate, driven by the engine's own loop.
//!
//! h2 speaks to sockets through tokio's traits and to its user through wakers; neither needs a
//! runtime. Which worker uses which connection is decided in
//! `crates/lab-engine/src/engine/thread/carry.rs`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, Connection as Carried, ResponseFuture, SendRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use lab_model::plan::Target;
use lab_model::record::Traffic;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::EngineFault;
use super::body::{Body, Came};
use super::compose::{AGENT, authority};
use super::connection::{Connection, Got, PIECE_BYTES};
use super::reader;
use super::world::Socket;

/// What a server may send on one stream before it is read, and on all of them: enough that the
/// generator's window is not what is measured.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// A connection on which exchanges can begin.
pub(crate) struct Session<S> {
    sender: SendRequest<Bytes>,
    carried: Carried<Pipe<S>, Bytes>,
    moved: Arc<Mutex<Moved>>,
}

/// What has gone through the pipe of a connection, and what may.
#[derive(Default)]
struct Moved {
    traffic: Traffic,
    /// Bytes that may still be read in this turn.
    room: usize,
    /// Whether reading ended for want of room.
    more: bool,
}

/// How a connection is after its bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    /// It waits for its socket.
    Waits,
    /// It has more to read, in another turn.
    More,
    /// It has ended.
    Ended,
}

/// A request under way.
pub(crate) struct Exchange {
    response: ResponseFuture,
    head: Option<(u16, Option<Duration>)>,
    body: Option<RecvStream>,
    answer: Body,
}

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More has to come.
    More,
    /// The answer is whole.
    Whole {
        /// Its status.
        status: u16,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// The answer is longer than the plan allows.
    TooLong,
    /// The stream or its connection has ended.
    Broken,
}

impl<S: Socket> Session<S> {
    /// Begins to speak HTTP/2 on a new connection.
    ///
    /// # Errors
    /// If the connection is broken or does not take the first bytes.
    pub(crate) fn greet(connection: Connection<S>) -> Result<Session<S>, h2::Error> {
        let moved = Arc::<Mutex<Moved>>::default();
        let pipe = Pipe { connection, moved: Arc::clone(&moved) };
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        let mut greeting = Box::pin(builder.handshake(pipe));
        match greeting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done.map(|(sender, carried)| Session { sender, carried, moved }),
            // A fresh socket takes more than the few bytes of a greeting.
            Poll::Pending => Err(h2::Reason::INTERNAL_ERROR.into()),
        }
    }

    /// Whether further exchanges may begin: the server has not said that it is leaving.
    pub(crate) fn usable(&mut self) -> bool {
        let ready = self.sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        !matches!(ready, Poll::Ready(Err(_)))
    }

    /// Begins an exchange; it is sent by [`Session::drive`].
    ///
    /// # Errors
    /// If the connection has ended.
    pub(crate) fn ask(&mut self, head: &Request<()>, body: &[u8]) -> Result<Exchange, h2::Error> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = head.uri().clone();
        *request.headers_mut() = head.headers().clone();
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        // One that waits for its turn at the server's limit of streams keeps its sender waiting, so
        // that each exchange has its own.
        let (response, mut stream) = self.sender.clone().send_request(request, false)?;
        stream.send_data(Bytes::copy_from_slice(body), true)?;
        Ok(Exchange { response, head: None, body: None, answer: Body::default() })
    }

    /// Moves what can be moved now; of bytes to be read a piece.
    pub(crate) fn drive(&mut self, traffic: &mut Traffic) -> Driven {
        self.moved.lock().room = PIECE_BYTES;
        let ended = Pin::new(&mut self.carried).poll(&mut Context::from_waker(Waker::noop()));
        let mut moved = self.moved.lock();
        traffic.add(std::mem::take(&mut moved.traffic));
        match (ended, std::mem::take(&mut moved.more)) {
            (Poll::Ready(_), _) => Driven::Ended,
            (Poll::Pending, true) => Driven::More,
            (Poll::Pending, false) => Driven::Waits,
        }
    }
}

impl Exchange {
    /// To be said at the beginning: the answer will be compared.
    pub(crate) fn keep(&mut self) {
        self.answer.keep();
    }

    /// Takes what has come; `waker` is woken when there is more.
    pub(crate) fn advance(&mut self, waker: &Waker, bytes_max: usize) -> Progress {
        let mut context = Context::from_waker(waker);
        let body = match &mut self.body {
            Some(body) => body,
            None => match Pin::new(&mut self.response).poll(&mut context) {
                Poll::Pending => return Progress::More,
                Poll::Ready(Err(_)) => return Progress::Broken,
                Poll::Ready(Ok(answer)) => {
                    let wait = answer.headers().get(header::RETRY_AFTER);
                    let wait = wait.and_then(|value| reader::wait(value.as_bytes()));
                    self.head = Some((answer.status().as_u16(), wait));
                    self.body.insert(answer.into_body())
                }
            },
        };
        loop {
            match body.poll_data(&mut context) {
                Poll::Pending => return Progress::More,
                Poll::Ready(Some(Err(_))) => return Progress::Broken,
                Poll::Ready(Some(Ok(part))) => {
                    if self.answer.take(&part, bytes_max).is_err() {
                        return Progress::TooLong;
                    }
                    // The stream may have ended with this very part, and needs no window then.
                    let _ended = body.flow_control().release_capacity(part.len());
                }
                Poll::Ready(None) => {
                    let (status, retry_after) = self.head.unwrap_or_default();
                    return Progress::Whole { status, retry_after };
                }
            }
        }
    }

    /// What has come of the body.
    pub(crate) fn came(&self) -> Came<'_> {
        self.answer.came()
    }
}

/// The head of every request, without its length.
///
/// # Errors
/// If a header of the plan cannot be sent.
pub(crate) fn head(target: &Target) -> Result<Request<()>, EngineFault> {
    let mut host = authority(target);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    let mut own = HeaderMap::new();
    for (name, value) in &target.headers {
        let fault = || EngineFault::Header { name: name.clone() };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| fault())?;
        let value_of = HeaderValue::from_str(value).map_err(|_| fault())?;
        match key {
            header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION => {
                return Err(fault());
            }
            header::HOST => host.clone_from(value),
            _ => {
                own.append(key, value_of);
            }
        }
    }
    for key in own.keys() {
        headers.remove(key);
    }
    headers.extend(own);
    let scheme = if target.url.tls() { "https" } else { "http" };
    let mut request = Request::new(());
    *request.uri_mut() = format!("{scheme}://{host}{}", target.url.target())
        .parse()
        .map_err(|_| EngineFault::Header { name: "host".to_owned() })?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Notes which workers' exchanges have something to say.
pub(crate) struct Woken {
    worker: u32,
    list: Arc<Mutex<Vec<u32>>>,
}

impl Woken {
    /// The waker of one worker; it adds the worker to the list.
    pub(crate) fn waker(worker: u32, list: &Arc<Mutex<Vec<u32>>>) -> Waker {
        Arc::new(Woken { worker, list: Arc::clone(list) }).into()
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list.lock().push(self.worker);
    }
}

/// A connection as tokio's traits have it. Nothing is woken: the loop asks again when its socket has
/// an event.
struct Pipe<S> {
    connection: Connection<S>,
    moved: Arc<Mutex<Moved>>,
}

impl<S: Socket> AsyncRead for Pipe<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        let mut moved = pipe.moved.lock();
        if moved.room == 0 {
            moved.more = true;
            return Poll::Pending;
        }
        match pipe.connection.receive(into.initialize_unfilled(), &mut moved.traffic) {
            Got::Nothing => Poll::Pending,
            Got::End => Poll::Ready(Ok(())),
            Got::Bytes { count, .. } => {
                moved.room = moved.room.saturating_sub(count);
                into.advance(count);
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
        pipe.connection.send(bytes, &mut pipe.moved.lock().traffic)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        pipe.connection.flush(&mut pipe.moved.lock().traffic)?;
        if pipe.connection.sent_all() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let pipe = self.get_mut();
        pipe.connection.farewell(&mut pipe.moved.lock().traffic);
        Poll::Ready(Ok(()))
    }
}
