//! A client's WebSocket, from the upgrade request to its close (RFC 6455).
//!
//! The gateway serves each message like a separate HTTP request with the credentials of the upgrade
//! request. It checks keys, limits and rules for each message, so a revoked key stops working on an
//! open connection. Responses are sent as they complete, in any order. While a client does not read
//! its responses, the gateway does not read further messages of the client. Responses in flight and
//! notifications can still fill the output queue. If the queue exceeds its limit, the gateway
//! closes the connection.

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
use wire::websocket::handshake;
use wire::websocket::{Opcode, ProtocolError, Role};

use crate::access::caller;
use crate::access::caller::HeadFields;
use crate::call::reply::Body;
use crate::config::downstream::Downstream;
use crate::downstream::answer::ClientResponse;
use crate::downstream::compress::{
    DECODE_INLINE_BYTES_MAX, INLINE_BYTES_MAX, decompress_off_thread, try_compress,
};
use crate::downstream::connection::ConnectionState;
use crate::downstream::exchange::{RequestOrigin, respond};
use crate::downstream::head::{ContentCoding, Head, HttpMethod, MediaType, Upgrade};
use crate::downstream::log;
use crate::downstream::peer::Peer;
use crate::downstream::thread::Thread;
use crate::io::memory::Reservation;
use crate::io::wait;
use crate::io::wait::Watchdog;
use crate::io::websocket::decoder::{Decoder, Event, Payload};
use crate::io::websocket::deflate;
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;
use crate::subscribe::SubscribeContext;
use crate::subscribe::notifications::CloseReason;
use crate::subscribe::subscriber::{MessageGuard, Subscriber};

mod output_queue;
#[cfg(test)]
mod tests;

use output_queue::OutputQueue;

/// Name of the protocol in logs and traces.
const PROTOCOL: &str = "WebSocket";
/// The gateway stops reading while the output queue has this many bytes or more.
const OUTPUT_BYTES_PAUSE: usize = 1 << 20;
/// The gateway stops reading while the messages in flight have this many bytes or more in total.
const TASK_BYTES_PAUSE: usize = 4 << 20;
/// Time within which a client must answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Close code of a service that restarts (IANA WebSocket close code registry). Clients reconnect
/// after it; web3.py 7.11 does not after 1000 and 1001 (ApeWorX/web3.py#3689).
const SERVICE_RESTART: u16 = 1012;
/// Close code for a violation of a policy (RFC 6455, section 7.4.1).
const POLICY_VIOLATION: u16 = 1008;
/// Close code for a temporary condition (IANA's registry of WebSocket close codes).
const TRY_AGAIN_LATER: u16 = 1013;
/// Shortest interval between two checks of the subscriber's credentials. Only notifications trigger
/// these checks.
const CREDENTIAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The response to an upgrade request with an unsupported version.
pub(crate) const UNSUPPORTED_VERSION_RESPONSE: &[u8] =
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
    Connection: close, Upgrade\r\nSec-WebSocket-Version: 13\r\nContent-Length: 0\r\n\r\n";

/// Builds the response that accepts the upgrade. Returns `None` if the request's key is missing or
/// invalid. `compresses` is true if messages may be compressed.
pub(crate) fn build_accept_response(upgrade: &Upgrade, compresses: bool) -> Option<Vec<u8>> {
    let key = upgrade.key.as_deref()?;
    STANDARD.decode(key).ok().filter(|key| key.len() == 16)?;
    let accept = handshake::compute_accept(key.as_bytes());
    let mut head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n"
    );
    if compresses {
        head.push_str(&format!("Sec-WebSocket-Extensions: {}\r\n", deflate::ACCEPTED));
    }
    head.push_str("\r\n");
    Some(head.into_bytes())
}

/// A connection that was just upgraded to a WebSocket.
pub(crate) struct UpgradedConnection<S> {
    pub(crate) thread: Rc<Thread>,
    pub(crate) stream: S,
    pub(crate) watchdog: Watchdog,
    /// Bytes that were read after the upgrade request.
    pub(crate) read_ahead: Vec<u8>,
    pub(crate) peer: Peer,
    pub(crate) state: Rc<ConnectionState>,
}

/// Serves the WebSocket until it closes.
pub(crate) async fn serve<S>(
    opened: UpgradedConnection<S>,
    settings: Settings,
    head: &Head,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut socket = Socket::new(opened, settings, head);
    let thread = Rc::clone(&socket.thread);
    thread.context().counters.record_websocket_opened();
    let ended = std::future::poll_fn(|task| socket.poll(task)).await;
    thread.context().counters.websockets_open.subtract_one();
    ended?;
    socket.stream.shutdown().await
}

/// The settings at the time of the upgrade. A reload does not change the settings of open
/// connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Maximum length of a client's message in bytes.
    message_bytes_max: usize,
    /// The minimum size of a compressed message; `None` if compression was not negotiated.
    compress_bytes_min: Option<usize>,
    /// Maximum number of messages in flight.
    messages_max: usize,
    /// Maximum bytes of the output queue. If the queue is longer, the connection is closed.
    queue_bytes_max: usize,
    /// Maximum number of subscriptions of a client.
    subscriptions_max: usize,
    /// Time without input after which the gateway pings a client. It is also the timeout of the
    /// pong.
    ping_interval: Duration,
    /// Time after which a blocked write ends the connection.
    write_timeout: Duration,
}

impl Settings {
    /// Returns the settings of a new WebSocket. `compresses` is true if compression was negotiated.
    pub(crate) fn of(downstream: &Downstream, compresses: bool) -> Settings {
        Settings {
            compress_bytes_min: compresses.then_some(downstream.compression_bytes_min),
            message_bytes_max: downstream.body_bytes_max,
            messages_max: downstream.websocket_messages_max,
            queue_bytes_max: downstream.websocket_queue_bytes_max,
            subscriptions_max: downstream.websocket_subscriptions_max,
            ping_interval: downstream.websocket_ping,
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
        /// When the connection is dropped; `None` while the close frame is still queued.
        drop_at: Option<Instant>,
        /// True if the client has sent a close frame too, or its input has ended.
        peer_closed: bool,
    },
}

/// A task that decompresses or serves one message. The task owns the message's bytes.
type MessageTask = LocalBoxFuture<'static, TaskOutput>;

/// The output of a task.
enum TaskOutput {
    Finished(FinishedMessage),
    /// A large message was decompressed.
    Decompressed {
        /// The message, or the violation of the protocol.
        event: DecodedEvent,
        /// Length of the compressed message in bytes.
        compressed_bytes: usize,
    },
}

/// The response to a message of the client.
struct FinishedMessage {
    /// The context that served the message.
    cx: Rc<ThreadContext>,
    response: ClientResponse,
    /// The compressed body, sent instead of the response's body. `None` if the response is not
    /// compressed.
    compressed_body: Option<Vec<u8>>,
    /// Length of the client's message in bytes.
    request_bytes: usize,
    /// Delays the notifications of new subscriptions until the response is queued.
    _guard: MessageGuard,
}

/// An open WebSocket.
struct Socket<S> {
    thread: Rc<Thread>,
    stream: S,
    /// The timer for all timeouts.
    watchdog: Watchdog,
    peer: Rc<Peer>,
    state: Rc<ConnectionState>,
    /// The head for each message: the head of the upgrade request, changed to a POST.
    head: Rc<Head>,
    /// The optional parts of the upgrade request's head that the gateway has parsed.
    head_fields: Arc<HeadFields>,
    settings: Settings,
    phase: Phase,
    decoder: Decoder,
    /// True if further input is dropped, because the client violated the protocol or the memory
    /// budget was used up.
    drops_input: bool,
    /// Bytes that were read but not decoded yet, for example because a limit was reached.
    undecoded: Vec<u8>,
    /// The tasks for the messages in flight.
    tasks: FuturesUnordered<MessageTask>,
    /// Total length of the messages in flight, in bytes.
    task_bytes: usize,
    /// The client's subscriptions and their queued notifications.
    subscriber: Rc<Subscriber>,
    /// The memory reservation for all buffers.
    reservation: Reservation,
    /// When the subscriber's credentials must be checked again.
    credential_check_at: Instant,
    output: OutputQueue,
    /// When a silent client is pinged. A client that has not answered the last ping is disconnected
    /// instead.
    ping_at: Instant,
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
    fn new(opened: UpgradedConnection<S>, settings: Settings, head: &Head) -> Socket<S> {
        let UpgradedConnection { thread, stream, watchdog, read_ahead, peer, state } = opened;
        let Settings { subscriptions_max, queue_bytes_max, .. } = settings;
        let subscriber = Subscriber::new(&thread.subscriptions, subscriptions_max, queue_bytes_max);
        let head = Head {
            http_method: HttpMethod::Post,
            media_type: MediaType::Json,
            content_coding: ContentCoding::Identity,
            upgrade: None,
            // Each message begins a separate trace.
            trace: None,
            ..head.clone()
        };
        let head_fields = Arc::clone(&thread.context().snapshot.head_fields);
        let budget = Arc::clone(&thread.context().snapshot.process.memory);
        let reservation = Reservation::for_connection(&budget, Purpose::Response, &state.account);
        Socket {
            thread,
            stream,
            watchdog,
            peer: Rc::new(peer),
            state,
            head: Rc::new(head),
            head_fields,
            settings,
            phase: Phase::Open,
            decoder: Decoder::new(
                Role::Server,
                settings.message_bytes_max,
                settings.compress_bytes_min.is_some(),
            ),
            drops_input: false,
            undecoded: read_ahead,
            tasks: FuturesUnordered::new(),
            task_bytes: 0,
            subscriber,
            reservation,
            credential_check_at: Instant::now() + CREDENTIAL_CHECK_INTERVAL,
            output: OutputQueue::default(),
            ping_at: Instant::now() + settings.ping_interval,
            pinged: false,
        }
    }

    /// Reads, serves and writes messages as far as possible without waiting. Returns `Ready` when
    /// the connection has ended.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // Each step may enable another step, so the loop repeats until no step makes progress.
            let mut made_progress = self.queue_responses(task);
            made_progress |= self.queue_notifications(task);
            made_progress |= self.decode_input();
            let must_close = self.state.must_close(task) || self.thread.is_draining();
            match self.poll_read(task, must_close) {
                // The client has disconnected without a close frame.
                Poll::Ready(Ok(None)) if !self.is_closing() => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(None)) => {
                    self.end_input();
                    made_progress = true;
                }
                Poll::Ready(Ok(Some(()))) => made_progress = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
            self.state.busy.set(!self.tasks.is_empty());
            if must_close && self.phase == Phase::Open && self.tasks.is_empty() {
                self.close(SERVICE_RESTART, "the gateway is stopping");
                made_progress = true;
            }
            match self.output.poll_write(&mut self.stream, task) {
                Poll::Ready(Ok(has_written)) => made_progress |= has_written,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
            match &mut self.phase {
                Phase::Closing { peer_closed: true, .. } if self.output.is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                Phase::Closing { drop_at: drop_at @ None, .. } if self.output.is_empty() => {
                    *drop_at = Some(Instant::now() + CLOSE_TIMEOUT);
                }
                Phase::Closing { .. } | Phase::Open => {}
            }
            made_progress |= self.reserve();
            if made_progress {
                continue;
            }
            std::task::ready!(self.watchdog.poll_passed(task, self.deadline()));
            if self.on_deadline() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Updates the memory reservation. If the budget is used up, starts to close the connection and
    /// returns true.
    fn reserve(&mut self) -> bool {
        let input_bytes = self.undecoded.capacity() + self.decoder.bytes_held();
        let output_bytes = self.output.queued_bytes + self.subscriber.notifications.queued_bytes();
        let reserved = self.reservation.set(input_bytes + output_bytes + self.task_bytes);
        self.reservation
            .set_waiting(self.output.blocked_since.is_some() || self.decoder.bytes_held() > 0);
        if reserved.is_ok() || self.is_closing() {
            return false;
        }
        self.undecoded = Vec::new();
        self.drops_input = true;
        self.output.drop_unsent();
        self.close(TRY_AGAIN_LATER, "gateway memory limit reached: reconnect later");
        true
    }

    /// Queues the responses of finished tasks. Returns true if a task has finished.
    fn queue_responses(&mut self, task: &mut Context<'_>) -> bool {
        let mut made_progress = false;
        while let Poll::Ready(Some(finished)) = self.tasks.poll_next_unpin(task) {
            made_progress = true;
            let finished = match finished {
                TaskOutput::Finished(finished) => finished,
                TaskOutput::Decompressed { event, compressed_bytes } => {
                    self.task_bytes -= compressed_bytes;
                    self.handle(event);
                    continue;
                }
            };
            // `_guard` delays the notifications of the subscriptions that this response announces.
            // It is dropped at the end of this iteration, when the response is queued.
            let FinishedMessage {
                cx: message_cx,
                mut response,
                compressed_body,
                request_bytes,
                _guard,
            } = finished;
            self.task_bytes -= request_bytes;
            log::log_request(&message_cx, &mut response);
            match compressed_body {
                Some(compressed) => self.enqueue(|output| output.push_compressed(compressed)),
                None => self.queue_text(response.body),
            }
        }
        made_progress
    }

    /// Queues notifications, behind the responses that announced their subscriptions. Returns true
    /// if a notification was queued or the connection begins to close.
    fn queue_notifications(&mut self, task: &Context<'_>) -> bool {
        let mut made_progress = false;
        while self.phase == Phase::Open {
            match self.subscriber.notifications.poll_next(task) {
                Ok(None) => break,
                Ok(Some(body)) if self.is_still_permitted() => self.queue_notification(body),
                Ok(Some(_)) => {
                    self.close(POLICY_VIOLATION, "subscription is not permitted any more")
                }
                Err(CloseReason::QueueFull) => self.close_slow(),
                Err(CloseReason::EventsMissed) => {
                    self.close(TRY_AGAIN_LATER, "blocks were missed: subscribe again")
                }
            }
            made_progress = true;
        }
        made_progress
    }

    /// Queues a notification, compressed on this thread if it is short enough.
    fn queue_notification(&mut self, mut body: Body) {
        let is_compressible = self.settings.compress_bytes_min.is_some_and(|min| body.len() >= min);
        if is_compressible && body.len() <= INLINE_BYTES_MAX {
            let joined = std::mem::take(&mut body).join();
            match deflate::compress(&joined) {
                Some(compressed) => {
                    return self.enqueue(|output| output.push_compressed(compressed));
                }
                None => body = Body::from_bytes(joined),
            }
        }
        self.queue_text(body);
    }

    /// Returns true if the client may still receive notifications. Checks the credentials at most
    /// once per [`CREDENTIAL_CHECK_INTERVAL`].
    fn is_still_permitted(&mut self) -> bool {
        let now = Instant::now();
        if now < self.credential_check_at {
            return true;
        }
        self.credential_check_at = now + CREDENTIAL_CHECK_INTERVAL;
        let cx = self.thread.context();
        // A grant holds the rights of an API key or token. `grant` is `None` for a client without a
        // key or token.
        let grant = match &cx.snapshot.key_index {
            None => None,
            Some(key_index) => {
                let client = self.peer.client_address(&self.head, &cx.snapshot.config.downstream);
                let certificate = self.peer.certificate.as_deref();
                let identity = self.head.identity(client, certificate);
                let config = &cx.snapshot.config;
                match caller::authenticate(config, key_index, cx.tokens.as_ref(), &identity) {
                    Ok(authenticated) => authenticated.caller.grant,
                    Err(_) => return false,
                }
            }
        };
        self.subscriber.is_permitted(&cx, grant.as_deref())
    }

    /// Returns true if the parsed head of the upgrade request has the optional parts that the
    /// current configuration selects.
    fn has_current_fields(&mut self) -> bool {
        let cx = self.thread.context();
        let current = &cx.snapshot.head_fields;
        if Arc::ptr_eq(current, &self.head_fields) {
            return true;
        }
        let is_same = **current == *self.head_fields;
        if is_same {
            self.head_fields = Arc::clone(current);
        }
        is_same
    }

    /// Returns true if the connection is open and the limits allow another message.
    fn accepts_messages(&self) -> bool {
        self.phase == Phase::Open
            && self.tasks.len() < self.settings.messages_max
            && self.task_bytes < TASK_BYTES_PAUSE
            && self.output.queued_bytes < OUTPUT_BYTES_PAUSE
    }

    /// Decodes the bytes that were read, until a limit is reached. Returns true if bytes were
    /// decoded or dropped.
    fn decode_input(&mut self) -> bool {
        let mut consumed_bytes = 0;
        while consumed_bytes < self.undecoded.len()
            && !self.drops_input
            && (self.accepts_messages() || self.is_closing())
        {
            let (used_bytes, event) = match self.decoder.next(&self.undecoded[consumed_bytes..]) {
                Ok((used_bytes, event)) => (used_bytes, event.map(|event| Ok(event.into_owned()))),
                Err(error) => (0, Some(Err(error))),
            };
            consumed_bytes += used_bytes;
            if let Some(event) = event {
                self.handle(event);
            }
        }
        if self.drops_input || consumed_bytes == self.undecoded.len() {
            consumed_bytes = self.undecoded.len();
            self.undecoded = Vec::new();
        } else {
            self.undecoded.drain(..consumed_bytes);
        }
        consumed_bytes > 0
    }

    /// Handles a decoded event. While the connection closes, handles only close frames and protocol
    /// violations.
    fn handle(&mut self, event: DecodedEvent) {
        match event {
            Ok(Event::Close(code)) => {
                if self.phase == Phase::Open {
                    let echo = code.map_or(Vec::new(), |code| code.to_be_bytes().to_vec());
                    self.output.push_control(Opcode::Close, &echo);
                }
                // The client has sent a close frame, so it reads no more responses.
                self.tasks.clear();
                self.subscriber.end();
                self.end_input();
            }
            Err(error) => {
                self.drops_input = true;
                self.close(error.close_code(), &error.to_string());
            }
            _ if self.is_closing() => {}
            Ok(Event::Message(_)) if !self.has_current_fields() => {
                self.close(TRY_AGAIN_LATER, "configuration changed: reconnect");
            }
            Ok(Event::Message(payload)) => self.serve_message(payload.into_bytes()),
            Ok(Event::Compressed { payload, is_text }) => {
                let bytes_max = self.settings.message_bytes_max;
                if payload.len() <= DECODE_INLINE_BYTES_MAX {
                    match decompress(&payload, is_text, bytes_max.min(INLINE_BYTES_MAX)) {
                        // The decompressed message exceeds the limit of this thread, but perhaps
                        // not the limit of a message. So another thread decompresses it again.
                        Ok(Event::TooLarge(_)) if bytes_max > INLINE_BYTES_MAX => {}
                        event => return self.handle(event),
                    }
                }
                let compressed_bytes = payload.len();
                self.task_bytes += compressed_bytes;
                self.tasks.push(Box::pin(async move {
                    let event =
                        decompress_off_thread(move || decompress(&payload, is_text, bytes_max))
                            .await;
                    let event = event.unwrap_or(Err(ProtocolError::Compression));
                    TaskOutput::Decompressed { event, compressed_bytes }
                }));
            }
            Ok(Event::TooLarge(_)) => {
                let response = ClientResponse::refuse_size(self.settings.message_bytes_max);
                self.thread.context().counters.record_refusal(response.status);
                self.queue_text(response.body);
            }
            Ok(Event::Ping(payload)) => self.output.push_control(Opcode::Pong, &payload),
            Ok(Event::Pong) => {}
        }
    }

    /// Starts the task that serves a message.
    fn serve_message(&mut self, body: Bytes) {
        let (thread, head) = (Rc::clone(&self.thread), Rc::clone(&self.head));
        let (peer, guard) = (Rc::clone(&self.peer), MessageGuard::of(&self.subscriber));
        let account = Rc::clone(&self.state.account);
        let compress_bytes_min = self.settings.compress_bytes_min;
        self.task_bytes += body.len();
        self.tasks.push(Box::pin(async move {
            let (cx, waiting) = (thread.context(), Cell::new(0));
            let subscriptions = &*thread.subscriptions;
            let origin = RequestOrigin {
                peer: &peer,
                protocol: PROTOCOL,
                waiting: &waiting,
                account: &account,
                subscribe_context: SubscribeContext { subscriptions, guard: Some(&guard) },
            };
            let mut response = respond(&cx, &head, &body, &origin).await;
            let compressed_body = compress_body(&mut response.body, compress_bytes_min).await;
            TaskOutput::Finished(FinishedMessage {
                cx,
                response,
                compressed_body,
                request_bytes: body.len(),
                _guard: guard,
            })
        }));
    }

    /// Queues a text message. The response to a JSON-RPC notification has an empty body and is not
    /// sent.
    fn queue_text(&mut self, body: Body) {
        if body.len() > 0 {
            self.enqueue(|output| output.push_text(body));
        }
    }

    /// Adds a message to the output queue. Closes the connection instead if the queue is too long.
    fn enqueue(&mut self, push: impl FnOnce(&mut OutputQueue)) {
        if self.is_closing() {
            return;
        }
        if self.output.queued_bytes > self.settings.queue_bytes_max {
            self.close_slow();
            return;
        }
        push(&mut self.output);
    }

    /// Starts to close the connection of a client that does not read.
    fn close_slow(&mut self) {
        self.output.drop_unsent();
        self.close(POLICY_VIOLATION, "client does not read");
        if let Phase::Closing { drop_at, .. } = &mut self.phase {
            *drop_at = Some(Instant::now() + CLOSE_TIMEOUT);
        }
    }

    /// Handles the end of the client's input. The connection is dropped once all output is written,
    /// or after a timeout.
    fn end_input(&mut self) {
        self.phase =
            Phase::Closing { drop_at: Some(Instant::now() + CLOSE_TIMEOUT), peer_closed: true };
    }

    /// Returns true if the close handshake has started or the input has ended.
    fn is_closing(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Starts the close handshake, unless it has started.
    fn close(&mut self, code: u16, reason: &str) {
        if self.is_closing() {
            return;
        }
        self.tasks.clear();
        self.subscriber.end();
        let payload = [&code.to_be_bytes()[..], reason.as_bytes()].concat();
        self.output.push_control(Opcode::Close, &payload);
        self.phase = Phase::Closing { drop_at: None, peer_closed: false };
    }

    /// Reads once if the state and the limits allow it, else returns `Pending`. Returns `Some(())`
    /// if bytes were read, and `None` at the end of the stream.
    fn poll_read(
        &mut self,
        task: &mut Context<'_>,
        must_close: bool,
    ) -> Poll<io::Result<Option<()>>> {
        let may_read = match self.phase {
            Phase::Open => !must_close && self.accepts_messages(),
            Phase::Closing { peer_closed, .. } => !peer_closed,
        };
        if !may_read {
            return Poll::Pending;
        }
        let undecoded = &mut self.undecoded;
        let polled =
            wait::poll_read(&mut self.stream, task, |bytes| undecoded.extend_from_slice(bytes));
        if let Poll::Ready(Ok(_)) = polled {
            self.ping_at = Instant::now() + self.settings.ping_interval;
            self.pinged = false;
        }
        polled
    }

    /// Returns when the next timeout is due.
    fn deadline(&self) -> Instant {
        let write_deadline =
            self.output.blocked_since.map(|since| since + self.settings.write_timeout);
        let phase_deadline = match self.phase {
            Phase::Closing { drop_at, .. } => drop_at,
            // While the gateway does not read, it cannot receive the answer to a ping.
            Phase::Open => self.accepts_messages().then_some(self.ping_at),
        };
        // If no timeout is pending, any time in the future is suitable.
        let far_deadline =
            Instant::now() + self.settings.write_timeout.max(self.settings.ping_interval);
        [write_deadline, phase_deadline].into_iter().flatten().min().unwrap_or(far_deadline)
    }

    /// Handles a passed deadline. Returns true if the connection must be dropped.
    fn on_deadline(&mut self) -> bool {
        let now = Instant::now();
        if self.output.blocked_since.is_some_and(|since| now >= since + self.settings.write_timeout)
        {
            return true;
        }
        match self.phase {
            Phase::Closing { drop_at, .. } => drop_at.is_some_and(|drop_at| now >= drop_at),
            Phase::Open if !self.accepts_messages() || now < self.ping_at => false,
            Phase::Open if self.pinged => true,
            Phase::Open => {
                self.output.push_control(Opcode::Ping, b"");
                self.pinged = true;
                self.ping_at = now + self.settings.ping_interval;
                false
            }
        }
    }
}

/// An event that owns its bytes, or a violation of the protocol.
type DecodedEvent = Result<Event<'static>, ProtocolError>;

/// Decompresses a message of at most `bytes_max` bytes, and checks that a text is UTF-8.
fn decompress(payload: &[u8], is_text: bool, bytes_max: usize) -> DecodedEvent {
    match deflate::decompress(payload, bytes_max) {
        Ok(message) if is_text && std::str::from_utf8(&message).is_err() => {
            Err(ProtocolError::Utf8)
        }
        Ok(message) => Ok(Event::Message(Payload::Owned(message.into()))),
        Err(deflate::Fault::TooLarge) => Ok(Event::TooLarge(Bytes::new())),
        Err(deflate::Fault::Invalid) => Err(ProtocolError::Compression),
    }
}

/// Compresses a response body of at least `compress_bytes_min` bytes. If compression succeeds,
/// `body` becomes empty. Returns `None` if the body is not compressed.
async fn compress_body(body: &mut Body, compress_bytes_min: Option<usize>) -> Option<Vec<u8>> {
    compress_bytes_min.filter(|min| body.len() >= *min)?;
    let compressed = try_compress(std::mem::take(body).join(), deflate::compress).await;
    compressed.map_err(|joined| *body = Body::from_bytes(joined)).ok()
}
