//! One HTTP/2 client connection, over TLS or in clear text with prior knowledge (RFC 9113, sections
//! 3.2 and 3.3).
//!
//! hyper implements the protocol. This module converts each request to the same [`Head`] as
//! HTTP/1.1 and serves it by the same function.

use crate::state::context::ThreadContext;
use crate::subscribe::Subscriptions;
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

use crate::access::caller::{Extra, Wanted};
use crate::access_log::pending::PendingRecord;
use crate::config::downstream::Downstream;
use crate::downstream::answer::{Message, Shape};
use crate::downstream::exchange::{self, RequestOrigin};
use crate::downstream::frames::Frames;
use crate::downstream::head::{Accept, Coding, Head, Length, Media, Verb};
use crate::downstream::peer::{Peer, Said};
use crate::downstream::thread::Thread;
use crate::downstream::unread::{Answer, Unread};
use crate::downstream::{answer, frames, head, log};
use crate::io::memory::{Account, Full, Hold};
use crate::policy::memory::Purpose;

/// Maximum concurrent streams of a connection, as nginx's `http2_max_concurrent_streams`.
const STREAMS_MAX: u32 = 128;

const PROTOCOL: &str = "HTTP/2.0";

/// Serves a connection whose first bytes, `read`, were read already.
///
/// Each request uses the configuration at its own start. The connection keeps the limits of the
/// configuration at its start.
pub(crate) async fn serve<S>(
    thread: Rc<Thread>,
    stream: S,
    read: Vec<u8>,
    peer: Peer,
    account: Rc<Account>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let blocked = Rc::new(Cell::new(None));
    let mut client = Frames::of_client();
    client.feed(&read);
    let own = Frames::default();
    let rewound = Rewound { read, at: 0, stream, blocked: Rc::clone(&blocked), client, own };
    let unread = Rc::new(Unread::default());
    let asked = Asked::new();
    let service = hyper::service::service_fn(|request| {
        let (cx, unread, peer) = (thread.context(), Rc::clone(&unread), peer.clone());
        let (account, subscriptions) = (Rc::clone(&account), Rc::clone(&thread.subscriptions));
        let under_way = asked.begin();
        async move {
            let response = respond(&cx, &unread, request, &peer, &account, &subscriptions).await;
            drop(under_way);
            Ok::<_, Infallible>(response)
        }
    });
    let (patience, idle_timeout) = {
        let downstream = &thread.context().snapshot.config.downstream;
        (downstream.write_timeout, downstream.idle_timeout)
    };
    let connection = builder(&thread.context().snapshot.config.downstream)
        .serve_connection(TokioIo::new(rewound), service);
    tokio::pin!(connection);
    let mut looks = tokio::time::interval(patience.min(idle_timeout) / 2);
    let mut draining = false;
    // When the client was sent GOAWAY because it was idle.
    let mut leaving: Option<Instant> = None;
    loop {
        tokio::select! {
            done = connection.as_mut() => return done.map_err(io::Error::other),
            () = thread.state.drain_begun(), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => {
                let since: Option<Instant> = blocked.get();
                let is_blocked = since.is_some_and(|since| since.elapsed() > patience);
                if is_blocked || unread.is_stuck(patience) {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let is_idle = unread.is_empty() && asked.is_idle_for(idle_timeout);
                match leaving {
                    None if is_idle && !draining => {
                        leaving = Some(Instant::now());
                        connection.as_mut().graceful_shutdown();
                    }
                    Some(since) if is_idle && since.elapsed() > patience => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Counts the active requests of one connection. PING and SETTINGS frames do not extend the idle
/// timeout.
struct Asked {
    under_way: Cell<usize>,
    /// When the last request ended, or the connection started.
    last: Cell<Instant>,
}

impl Asked {
    fn new() -> Rc<Asked> {
        Rc::new(Asked { under_way: Cell::new(0), last: Cell::new(Instant::now()) })
    }

    /// Counts a request until the guard is dropped, also if its stream is reset.
    fn begin(self: &Rc<Asked>) -> UnderWay {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(Rc::clone(self))
    }

    fn is_idle_for(&self, time: Duration) -> bool {
        self.under_way.get() == 0 && self.last.get().elapsed() > time
    }
}

struct UnderWay(Rc<Asked>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.last.set(Instant::now());
    }
}

fn builder(downstream: &Downstream) -> hyper::server::conn::http2::Builder<LocalExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(downstream.header_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(downstream.idle_timeout))
        .keep_alive_timeout(downstream.header_timeout);
    builder
}

async fn respond(
    cx: &Rc<ThreadContext>,
    unread: &Rc<Unread>,
    request: http::Request<Incoming>,
    peer: &Peer,
    account: &Rc<Account>,
    subscriptions: &Subscriptions,
) -> http::Response<Answer> {
    let downstream = &cx.snapshot.config.downstream;
    let (parts, body) = request.into_parts();
    let head = head_of(&parts, &cx.snapshot.wanted, Said::by(downstream));
    let client = peer.client(&head, downstream);
    let body_bytes_max = downstream.body_bytes_max;
    let waiting = Cell::new(0);
    let origin = RequestOrigin::of(peer, PROTOCOL, &waiting, account, subscriptions);
    let budget = &cx.snapshot.registry.memory;
    let mut hold = Hold::of(budget, Purpose::Request, account);
    let read = tokio::time::timeout(downstream.body_timeout, read(body, body_bytes_max, &mut hold));
    let body = match read.await {
        Err(_) => Err(Message::refuse(408, "request body took too long")),
        Ok(Err(message)) => Err(message),
        Ok(Ok(body)) => {
            hold.set_waiting(false);
            exchange::decoded(&head, body, body_bytes_max).await
        }
    };
    let message = match body {
        Ok(body) => exchange::respond(cx, &head, &body, &origin).await,
        Err(message) => exchange::refuse(cx, message),
    };
    drop(hold);
    let mut message = exchange::compressed(cx, &head, message).await;
    if cx.snapshot.access_log.is_some() {
        let record = message.record.take();
        let record = record.unwrap_or_else(|| Box::new(PendingRecord::bare(client, PROTOCOL)));
        log::log(cx, *record, &message);
    }
    response(cx, unread, &head, message)
}

/// Reads a request body and reserves memory for it.
async fn read(mut body: Incoming, bytes_max: usize, hold: &mut Hold) -> Result<Vec<u8>, Message> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Message::refuse(400, "request body was cut off"));
        };
        let Ok(piece) = frame.into_data() else { continue };
        if whole.len() + piece.len() > bytes_max {
            return Err(Message::refuse_size(bytes_max));
        }
        whole.extend_from_slice(&piece);
        hold.set(whole.capacity()).map_err(|Full| Message::refuse_memory())?;
    }
    Ok(whole)
}

fn response(
    cx: &ThreadContext,
    unread: &Rc<Unread>,
    head: &Head,
    message: Message,
) -> http::Response<Answer> {
    let date = cx.date();
    let shape = Shape {
        config: &cx.snapshot.config,
        origin: head.origin.as_deref(),
        keep_alive: true,
        tell_keep_alive: false,
        date: &date,
    };
    let mut response = http::Response::new(());
    *response.status_mut() = http::StatusCode::from_u16(message.status)
        .unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    answer::each_header(&message, shape, |name, value| {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    });
    let body = if head.verb == Verb::Head { Bytes::new() } else { message.body.join().into() };
    response.map(|()| unread.answer(body, message.hold))
}

fn head_of(parts: &http::request::Parts, wanted: &Wanted, said: Option<Said<'_>>) -> Head {
    let extra = wanted.extra.as_ref().map(|wanted| {
        let mut extra = Extra::new(wanted);
        for (name, value) in &parts.headers {
            extra.note(name.as_str(), value.as_bytes(), wanted);
        }
        // The `:authority` pseudo-header replaces `host` (RFC 9113, section 8.3.1).
        let named = || parts.headers.get("host").and_then(|host| host.to_str().ok());
        let host = parts.uri.authority().map(http::uri::Authority::as_str).or_else(named);
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        extra.note_target(host.unwrap_or(""), target, wanted);
        Arc::new(extra)
    });
    let value = |name: &str| parts.headers.get(name).map(http::HeaderValue::as_bytes);
    Head {
        verb: match parts.method {
            http::Method::POST => Verb::Post,
            http::Method::GET => Verb::Get,
            http::Method::HEAD => Verb::Head,
            http::Method::OPTIONS => Verb::Options,
            _ => Verb::Other,
        },
        path: head::path(parts.uri.path()),
        length: Length::None,
        keep_alive: true,
        tell_keep_alive: false,
        expect_continue: false,
        media: value("content-type").map_or(Media::Absent, head::media),
        accept: value("accept-encoding").map_or(Accept::default(), head::accept),
        coding: value("content-encoding").map_or(Coding::Identity, head::coding),
        origin: value("origin").and_then(|origin| std::str::from_utf8(origin).ok()).map(Box::from),
        hash_header: wanted.hash_header.as_deref().and_then(value).map(Box::from),
        limit_headers: wanted
            .limits
            .iter()
            .map(|name| value(name.as_str()).map(SmallVec::from_slice))
            .collect(),
        forwarded: said.and_then(|said| {
            let values = parts.headers.get_all(said.header());
            said.client(values.iter().map(http::HeaderValue::as_bytes))
        }),
        extra,
        upgrade: None,
        bytes: 0,
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

/// A stream that replays bytes read earlier and detects two abuses: floods of frames without
/// requests, and clients that do not read. A client that floods PING or SETTINGS frames and never
/// reads the responses would otherwise keep its connection forever.
struct Rewound<S> {
    read: Vec<u8>,
    at: usize,
    stream: S,
    blocked: Rc<Cell<Option<Instant>>>,
    client: Frames,
    own: Frames,
}

impl<S> Rewound<S> {
    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        let since = match &polled {
            Poll::Ready(_) => None,
            Poll::Pending => Some(self.blocked.get().unwrap_or_else(Instant::now)),
        };
        self.blocked.set(since);
        polled
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.at < this.read.len() {
            let bytes = buf.remaining().min(this.read.len() - this.at);
            buf.put_slice(&this.read[this.at..this.at + bytes]);
            this.at += bytes;
            if this.at == this.read.len() {
                this.read = Vec::new();
                this.at = 0;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.client.feed(&buf.filled()[before..]);
        if frames::is_flood(&this.client, &this.own) {
            return Poll::Ready(Err(io::Error::other("a flood of frames without requests")));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(bytes)) = polled {
            this.own.feed(&buf[..bytes]);
        }
        this.note(polled)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.note(polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
