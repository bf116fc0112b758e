//! A client's WebSocket, from the upgrade request to its close (RFC 6455).
//!
//! Each message is a separate request and is processed like one over HTTP, with the credentials of
//! the upgrade request. Keys, limits and rules are checked for each message, so a revoked key stops
//! working on an open connection. Responses are sent as they complete, in any order. The socket is
//! not read while its client does not read; if its queue exceeds the limit anyway, the connection
//! is closed.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::access::caller;
use crate::access::caller::Wanted;
use crate::call::reply::Body;
use crate::config::downstream::Downstream;
use crate::downstream::answer::Message;
use crate::downstream::compress::{DECODE_INLINE_BYTES_MAX, INLINE_BYTES_MAX, unpack_apart};
use crate::downstream::exchange::{RequestOrigin, respond};
use crate::downstream::head::{Coding, Head, Media, Upgrade, Verb};
use crate::downstream::http1::Standing;
use crate::downstream::log;
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::io::memory::Hold;
use crate::io::wait;
use crate::io::wait::Watchdog;
use crate::io::websocket::frame::{Decoder, Event, Fault, Op, Role};
use crate::io::websocket::{deflate, handshake};
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;
use crate::subscribe::subscriber::{Asking, Parting, Subscriber};

mod out;
#[cfg(test)]
mod tests;

use out::Out;

const PROTOCOL: &str = "WebSocket";
/// While more bytes than this wait to be written, nothing is read.
const OUT_BYTES_PAUSE: usize = 1 << 20;
/// While messages of more bytes than this are in flight, nothing is read.
const RUNNING_BYTES_PAUSE: usize = 4 << 20;
/// How long a client may take to receive a close frame and to answer it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// Close codes (RFC 6455, section 7.4.1).
const GOING_AWAY: u16 = 1001;
const POLICY: u16 = 1008;
const AGAIN_LATER: u16 = 1013;
/// How long an access check remains valid for notifications.
const ADMITTED_FOR: Duration = Duration::from_secs(1);

/// The response to an upgrade request with an unsupported version.
pub(crate) const OTHER_VERSION: &[u8] = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
    Connection: close, Upgrade\r\nSec-WebSocket-Version: 13\r\nContent-Length: 0\r\n\r\n";

/// Builds the response that accepts the upgrade. Returns `None` if the request's key is invalid.
pub(crate) fn accepted(upgrade: &Upgrade, packing: bool) -> Option<Vec<u8>> {
    let key = upgrade.key.as_deref()?;
    STANDARD.decode(key).ok().filter(|key| key.len() == 16)?;
    let accept = handshake::accept(key.as_bytes());
    let mut head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n"
    );
    if packing {
        head.push_str(&format!("Sec-WebSocket-Extensions: {}\r\n", deflate::ACCEPTED));
    }
    head.push_str("\r\n");
    Some(head.into_bytes())
}

/// Returns true if a web page of this origin may open a WebSocket. Only browsers send an origin.
pub(crate) fn may_open(downstream: &Downstream, origin: Option<&str>) -> bool {
    origin.is_none_or(|origin| downstream.cors_origins.admits(origin))
}

/// A connection that was just upgraded to a WebSocket.
pub(crate) struct Opened<S> {
    pub(crate) thread: Rc<Thread>,
    pub(crate) stream: S,
    pub(crate) watchdog: Watchdog,
    /// Bytes that were read behind the upgrade request.
    pub(crate) rest: Vec<u8>,
    pub(crate) peer: Peer,
    pub(crate) standing: Rc<Standing>,
}

/// Serves the WebSocket until it closes.
pub(crate) async fn serve<S>(opened: Opened<S>, bounds: Bounds, head: &Head) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut socket = Socket::new(opened, bounds, head);
    let thread = Rc::clone(&socket.thread);
    thread.context().counters.websocket_opened();
    let ended = std::future::poll_fn(|cx| socket.poll(cx)).await;
    thread.context().counters.websockets_open.subtract_one();
    ended?;
    socket.stream.shutdown().await
}

/// The settings at the upgrade. A reload applies to later connections only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    message_bytes_max: usize,
    /// The minimum size of a compressed message; `None` if compression was not negotiated.
    packing: Option<usize>,
    calls_max: usize,
    queue_bytes_max: usize,
    subscriptions_max: usize,
    ping: Duration,
    write_timeout: Duration,
}

impl Bounds {
    pub(crate) fn of(downstream: &Downstream, packing: bool) -> Bounds {
        Bounds {
            packing: packing.then_some(downstream.compression_bytes_min),
            message_bytes_max: downstream.body_bytes_max,
            calls_max: downstream.websocket_messages_max,
            queue_bytes_max: downstream.websocket_queue_bytes_max,
            subscriptions_max: downstream.websocket_subscriptions_max,
            ping: downstream.websocket_ping,
            write_timeout: downstream.write_timeout,
        }
    }
}

/// The state of the close handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// A close frame is queued or sent.
    Closing {
        /// When the connection is dropped; `None` while frames before the close frame are being
        /// written.
        until: Option<Instant>,
        /// True if the client has sent a close frame too.
        heard: bool,
    },
}

/// A task for one message. It owns the message's bytes and its new subscriptions.
type Running = LocalBoxFuture<'static, Done>;

/// The output of a task.
enum Done {
    Answered(Answered),
    /// A large message was decompressed; it took `bytes` in compressed form.
    Unpacked {
        said: Said,
        bytes: usize,
    },
}

struct Answered {
    cx: Rc<ThreadContext>,
    message: Message,
    /// The compressed body, which replaces that of the message.
    packed: Option<Vec<u8>>,
    bytes: usize,
    _asking: Asking,
}

struct Socket<S> {
    thread: Rc<Thread>,
    stream: S,
    watchdog: Watchdog,
    peer: Rc<Peer>,
    standing: Rc<Standing>,
    /// The head for each message, as if it had arrived by POST.
    head: Rc<Head>,
    /// The fields that were parsed from the upgrade request.
    wanted: Arc<Wanted>,
    bounds: Bounds,
    phase: Phase,
    decoder: Decoder,
    /// True if the client violated the protocol, so its input cannot be parsed any more.
    deaf: bool,
    /// Bytes that were read but not decoded yet, because a limit was reached.
    unread: Vec<u8>,
    /// The tasks for the messages in flight.
    running: FuturesUnordered<Running>,
    /// Total bytes of the messages in flight.
    running_bytes: usize,
    subscriber: Rc<Subscriber>,
    /// The memory reservation for all buffers.
    hold: Hold,
    /// When the subscriber's credentials are next re-checked.
    admitted_until: Instant,
    out: Out,
    /// When the connection counts as silent.
    silent_at: Instant,
    /// True if a ping was sent since the last input.
    pinged: bool,
}

impl<S> Drop for Socket<S> {
    fn drop(&mut self) {
        self.subscriber.end();
    }
}

impl<S> Socket<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn new(opened: Opened<S>, bounds: Bounds, head: &Head) -> Socket<S> {
        let Opened { thread, stream, watchdog, rest, peer, standing } = opened;
        let Bounds { subscriptions_max, queue_bytes_max, .. } = bounds;
        let subscriber = Subscriber::new(&thread.subscriptions, subscriptions_max, queue_bytes_max);
        let head = Head {
            verb: Verb::Post,
            media: Media::Json,
            coding: Coding::Identity,
            upgrade: None,
            ..head.clone()
        };
        let wanted = Arc::clone(&thread.context().snapshot.wanted);
        let budget = Arc::clone(&thread.context().snapshot.registry.memory);
        let hold = Hold::of(&budget, Purpose::Response, &standing.account);
        Socket {
            thread,
            stream,
            watchdog,
            peer: Rc::new(peer),
            standing,
            head: Rc::new(head),
            wanted,
            bounds,
            phase: Phase::Open,
            decoder: match bounds.packing {
                Some(_) => Decoder::unpacking(Role::Server, bounds.message_bytes_max),
                None => Decoder::new(Role::Server, bounds.message_bytes_max),
            },
            deaf: false,
            unread: rest,
            running: FuturesUnordered::new(),
            running_bytes: 0,
            subscriber,
            hold,
            admitted_until: Instant::now() + ADMITTED_FOR,
            out: Out::default(),
            silent_at: Instant::now() + bounds.ping,
            pinged: false,
        }
    }

    /// Makes all possible progress. Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut moved = self.poll_answers(cx);
            moved |= self.take_notices(cx);
            moved |= self.take();
            let leaving = self.standing.is_leaving(cx) || self.thread.state.draining();
            match self.poll_read(cx, leaving) {
                Poll::Ready(Ok(0)) if !self.is_closing() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(0)) => {
                    self.end_hearing();
                    moved = true;
                }
                Poll::Ready(Ok(_)) => moved = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
            self.standing.set_busy(!self.running.is_empty());
            if leaving && self.phase == Phase::Open && self.running.is_empty() {
                self.close(GOING_AWAY, "the gateway is stopping");
                moved = true;
            }
            match self.out.poll(&mut self.stream, cx) {
                Poll::Ready(Ok(wrote)) => moved |= wrote,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
            match &mut self.phase {
                Phase::Closing { heard: true, .. } if self.out.is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                Phase::Closing { until: until @ None, .. } if self.out.is_empty() => {
                    *until = Some(Instant::now() + CLOSE_PATIENCE);
                }
                Phase::Closing { .. } | Phase::Open => {}
            }
            moved |= self.count();
            if moved {
                continue;
            }
            std::task::ready!(self.watchdog.poll_passed(cx, self.deadline()));
            if self.is_over() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Updates the memory reservation. Returns true if the connection begins to close because the
    /// budget is used up.
    fn count(&mut self) -> bool {
        let incoming = self.unread.capacity() + self.decoder.bytes_held();
        let outgoing = self.out.bytes + self.subscriber.queued_bytes();
        let counted = self.hold.set(incoming + outgoing + self.running_bytes);
        self.hold.set_waiting(self.out.stuck.is_some() || self.decoder.bytes_held() > 0);
        if counted.is_ok() || self.is_closing() {
            return false;
        }
        self.unread = Vec::new();
        self.deaf = true;
        self.out.forget();
        self.close(AGAIN_LATER, "the gateway has no memory left: connect anew");
        true
    }

    /// Queues the responses of finished tasks.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(answered)) = self.running.poll_next_unpin(cx) {
            // The guard in `_asking` holds back notifications until the end of this iteration,
            // after the response that announces the subscription.
            any = true;
            let Answered { cx, mut message, packed, bytes, _asking } = match answered {
                Done::Answered(answered) => answered,
                Done::Unpacked { said, bytes } => {
                    self.running_bytes -= bytes;
                    self.hear(said);
                    continue;
                }
            };
            self.running_bytes -= bytes;
            if let Some(record) = message.record.take() {
                log::log(&cx, *record, &message);
            }
            match packed {
                Some(packed) => self.put(|out| out.packed(packed)),
                None => self.say(message.body),
            }
        }
        any
    }

    /// Queues notifications, behind the responses that announced their subscriptions.
    fn take_notices(&mut self, cx: &Context<'_>) -> bool {
        let mut any = false;
        while self.phase == Phase::Open {
            match self.subscriber.take(cx) {
                Ok(None) => break,
                Ok(Some(body)) if self.may_hear() => self.tell(body),
                Ok(Some(_)) => self.close(POLICY, "what let you subscribe holds no more"),
                Err(Parting::Unread) => self.close_unread(),
                Err(Parting::Missed) => {
                    self.close(AGAIN_LATER, "blocks were missed: subscribe anew")
                }
            }
            any = true;
        }
        any
    }

    /// Queues a notification, compressed on this thread if it is short enough.
    fn tell(&mut self, mut body: Body) {
        let wanted = self.bounds.packing.is_some_and(|min| body.len() >= min);
        if wanted && body.len() <= INLINE_BYTES_MAX {
            let whole = std::mem::take(&mut body).join();
            match deflate::pack(&whole) {
                Some(packed) => return self.put(|out| out.packed(packed)),
                None => body = Body::whole(whole),
            }
        }
        self.say(body);
    }

    /// Returns true if the subscriber is still authorized; the check is repeated once per
    /// [`ADMITTED_FOR`].
    fn may_hear(&mut self) -> bool {
        let now = Instant::now();
        if now < self.admitted_until {
            return true;
        }
        self.admitted_until = now + ADMITTED_FOR;
        let cx = self.thread.context();
        let grant = match &cx.snapshot.gate {
            None => None,
            Some(gate) => {
                let client = self.peer.client(&self.head, &cx.snapshot.config.downstream);
                let certificate = self.peer.certificate.as_deref();
                let presented = self.head.presented(client, certificate);
                let config = &cx.snapshot.config;
                match caller::admit(config, gate, cx.tokens.as_ref(), &presented) {
                    Ok(admitted) => admitted.caller.grant,
                    Err(_) => return false,
                }
            }
        };
        self.subscriber.may_hear(&cx, grant.as_deref())
    }

    /// Returns true if the upgrade request's head has the fields that the current configuration
    /// needs.
    fn knows_its_head(&mut self) -> bool {
        let cx = self.thread.context();
        let wanted = &cx.snapshot.wanted;
        if Arc::ptr_eq(wanted, &self.wanted) {
            return true;
        }
        let same = **wanted == *self.wanted;
        if same {
            self.wanted = Arc::clone(wanted);
        }
        same
    }

    /// Returns true if no limit prevents another message.
    fn has_room(&self) -> bool {
        self.phase == Phase::Open
            && self.running.len() < self.bounds.calls_max
            && self.running_bytes < RUNNING_BYTES_PAUSE
            && self.out.bytes < OUT_BYTES_PAUSE
    }

    /// Decodes the bytes that were read, until a limit is reached. Returns true if any were
    /// decoded.
    fn take(&mut self) -> bool {
        let mut at = 0;
        while at < self.unread.len() && !self.deaf && (self.has_room() || self.is_closing()) {
            let (used, said) = match self.decoder.next(&self.unread[at..]) {
                Ok((used, event)) => (used, event.map(Said::of)),
                Err(fault) => {
                    self.deaf = true;
                    self.close(fault.code(), &fault.to_string());
                    break;
                }
            };
            at += used;
            if let Some(said) = said {
                self.hear(said);
            }
        }
        if self.deaf || at == self.unread.len() {
            at = self.unread.len();
            self.unread = Vec::new();
        } else {
            self.unread.drain(..at);
        }
        at > 0
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Close(code) => {
                let echo = code.map(u16::to_be_bytes);
                if self.phase == Phase::Open {
                    self.out.control(Op::Close, echo.as_ref().map_or(&[], |code| &code[..]));
                }
                // The client has closed, so it reads no response.
                self.running.clear();
                self.subscriber.end();
                self.end_hearing();
            }
            _ if self.is_closing() => {}
            Said::Message(_) if !self.knows_its_head() => {
                self.close(
                    AGAIN_LATER,
                    "the configuration looks at other headers now: connect anew",
                );
            }
            Said::Message(body) => {
                let (thread, head) = (Rc::clone(&self.thread), Rc::clone(&self.head));
                let (peer, asking) = (Rc::clone(&self.peer), Asking::of(&self.subscriber));
                let account = Rc::clone(&self.standing.account);
                let packing = self.bounds.packing;
                self.running_bytes += body.len();
                self.running.push(Box::pin(async move {
                    let (cx, waiting) = (thread.context(), Cell::new(0));
                    let subscriptions = &thread.subscriptions;
                    let origin =
                        RequestOrigin::of(&peer, PROTOCOL, &waiting, &account, subscriptions);
                    let origin = origin.with_notifications(&asking);
                    let mut message = respond(&cx, &head, &body, &origin).await;
                    let packed = packed(&mut message.body, packing).await;
                    let bytes = body.len();
                    Done::Answered(Answered { cx, message, packed, bytes, _asking: asking })
                }));
            }
            Said::Packed { payload, text } => {
                let bytes_max = self.bounds.message_bytes_max;
                if payload.len() <= DECODE_INLINE_BYTES_MAX {
                    match unpack(&payload, text, bytes_max.min(INLINE_BYTES_MAX)) {
                        Said::TooLarge if bytes_max > INLINE_BYTES_MAX => {}
                        said => return self.hear(said),
                    }
                }
                let bytes = payload.len();
                self.running_bytes += bytes;
                self.running.push(Box::pin(async move {
                    let said = unpack_apart(move || unpack(&payload, text, bytes_max)).await;
                    Done::Unpacked { said: said.unwrap_or(Said::Fault(Fault::Packing)), bytes }
                }));
            }
            Said::Fault(fault) => {
                self.deaf = true;
                self.close(fault.code(), &fault.to_string());
            }
            Said::TooLarge => {
                let message = Message::refuse_size(self.bounds.message_bytes_max);
                self.thread.context().counters.refused(message.status);
                self.say(message.body);
            }
            Said::Ping(payload) => self.out.control(Op::Pong, &payload),
            Said::Pong => {}
        }
    }

    /// Queues a text message. An empty body, the response to a JSON-RPC notification, is not sent.
    fn say(&mut self, body: Body) {
        if body.len() > 0 {
            self.put(|out| out.text(body));
        }
    }

    fn put(&mut self, put: impl FnOnce(&mut Out)) {
        if self.is_closing() {
            return;
        }
        if self.out.bytes > self.bounds.queue_bytes_max {
            self.close_unread();
            return;
        }
        put(&mut self.out);
    }

    fn close_unread(&mut self) {
        self.out.forget();
        self.close(POLICY, "what is sent is not read");
        if let Phase::Closing { until, .. } = &mut self.phase {
            *until = Some(Instant::now() + CLOSE_PATIENCE);
        }
    }

    /// The client sends nothing more.
    fn end_hearing(&mut self) {
        self.phase = Phase::Closing { until: Some(Instant::now() + CLOSE_PATIENCE), heard: true };
    }

    fn is_closing(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Starts the close handshake, once.
    fn close(&mut self, code: u16, reason: &str) {
        if self.is_closing() {
            return;
        }
        self.running.clear();
        self.subscriber.end();
        let payload = [&code.to_be_bytes()[..], reason.as_bytes()].concat();
        self.out.control(Op::Close, &payload);
        self.phase = Phase::Closing { until: None, heard: false };
    }

    /// Reads if the state and the limits allow it. Returns the number of bytes, 0 at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>, leaving: bool) -> Poll<io::Result<usize>> {
        let listens = match self.phase {
            Phase::Open => !leaving && self.has_room(),
            Phase::Closing { heard, .. } => !heard,
        };
        if !listens {
            return Poll::Pending;
        }
        let unread = &mut self.unread;
        let read = wait::poll_read(&mut self.stream, cx, |bytes| unread.extend_from_slice(bytes));
        if let Poll::Ready(Ok(_)) = read {
            self.silent_at = Instant::now() + self.bounds.ping;
            self.pinged = false;
        }
        read
    }

    /// When the next timeout is due if nothing else happens.
    fn deadline(&self) -> Instant {
        let stuck = self.out.stuck.map(|since| since + self.bounds.write_timeout);
        let due = match self.phase {
            Phase::Closing { until, .. } => until,
            // A client that is not read from cannot answer a ping.
            Phase::Open => self.has_room().then_some(self.silent_at),
        };
        let far = Instant::now() + self.bounds.write_timeout.max(self.bounds.ping);
        [stuck, due].into_iter().flatten().min().unwrap_or(far)
    }

    /// Handles a passed deadline. Returns true if the connection must be dropped.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if self.out.stuck.is_some_and(|since| now >= since + self.bounds.write_timeout) {
            return true;
        }
        match self.phase {
            Phase::Closing { until, .. } => until.is_some_and(|until| now >= until),
            Phase::Open if !self.has_room() || now < self.silent_at => false,
            Phase::Open if self.pinged => true,
            Phase::Open => {
                self.out.control(Op::Ping, b"");
                self.pinged = true;
                self.silent_at = now + self.bounds.ping;
                false
            }
        }
    }
}

/// A decoded event that owns its bytes.
enum Said {
    Message(Bytes),
    Packed { payload: Bytes, text: bool },
    Fault(Fault),
    TooLarge,
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>),
}

impl Said {
    fn of(event: Event<'_>) -> Said {
        match event {
            Event::Message(payload) => Said::Message(payload.into_bytes()),
            Event::Packed { payload, text } => Said::Packed { payload, text },
            Event::TooLarge(_) => Said::TooLarge,
            Event::Ping(payload) => Said::Ping(payload.to_vec()),
            Event::Pong => Said::Pong,
            Event::Close(code) => Said::Close(code),
        }
    }
}

/// Decompresses a message.
fn unpack(payload: &[u8], text: bool, bytes_max: usize) -> Said {
    match deflate::unpack(payload, bytes_max) {
        Ok(message) if text && std::str::from_utf8(&message).is_err() => Said::Fault(Fault::Utf8),
        Ok(message) => Said::Message(message.into()),
        Err(deflate::Fault::TooLarge) => Said::TooLarge,
        Err(deflate::Fault::Invalid) => Said::Fault(Fault::Packing),
    }
}

/// Compresses a response if it is large enough, on another thread if it is long. A compressed body
/// is taken from `body`.
async fn packed(body: &mut Body, packing: Option<usize>) -> Option<Vec<u8>> {
    packing.filter(|min| body.len() >= *min)?;
    let whole = Arc::new(std::mem::take(body).join());
    let packed = if whole.len() <= INLINE_BYTES_MAX {
        deflate::pack(&whole)
    } else {
        let theirs = Arc::clone(&whole);
        tokio::task::spawn_blocking(move || deflate::pack(&theirs)).await.ok().flatten()
    };
    if packed.is_none() {
        *body = Body::whole(Arc::unwrap_or_clone(whole));
    }
    packed
}
