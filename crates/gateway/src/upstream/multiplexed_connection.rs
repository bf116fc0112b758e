//! One connection to an upstream that carries many calls at a time: a WebSocket or a local socket.
//!
//! The calls of one thread append their messages to one buffer. The connection's own task, the
//! driver, is woken only once. The driver runs after the tasks that were ready before it, and
//! writes all messages together. It reads as many bytes as are available and passes each response
//! to its call by a private id (`multiplexed_connection/table.rs`).
//! `multiplexed_connection/framing.rs` delimits messages. `multiplexed_pool.rs` chooses a
//! connection for a call and opens new ones.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::Instant;
use wire::quantity::Decimal;
use wire::websocket::Opcode;

use crate::call::failure::{Kind, Sent};
use crate::io::wait::{self, Watchdog};
use crate::io::websocket::decoder::Event;
use crate::io::websocket::keys::Keys;
use crate::upstream::connector::Stream;
use crate::upstream::post::ExchangeError;

mod framing;
mod table;

#[cfg(test)]
mod tests;

use framing::{Encoder, Framing, FramingError, Recipient, find_recipient, find_recipient_in_head};
use table::{CallKey, Delivery, Table};

/// Maximum number of reads in one poll of the driver. The limit keeps an upstream that sends many
/// bytes from delaying clients.
const READS_PER_POLL: usize = 4;
/// Upper limit of bytes that one read appends to a long response.
const LONG_READ_BYTES: usize = 256 * 1024;
/// Unsent bytes at which a connection takes no more calls, because the upstream does not read.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Capacity to which the output buffer shrinks once all is sent.
const OUT_CAPACITY_MAX: usize = 256 * 1024;

/// Receives each message that is not a response, such as notifications of subscriptions.
pub(crate) type OnNotification = Rc<dyn Fn(&[u8])>;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The upstream closed the connection; holds the code of its close frame.
    Closed(Option<u16>),
    /// The upstream did not answer a ping.
    Stalled,
    /// The upstream sent a malformed message.
    Malformed,
    /// The gateway closed the connection.
    Retired,
}

/// Settings of a connection.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Upper limit of the bytes of a response.
    pub(crate) response_bytes_max: usize,
    /// Time without a message before the upstream is pinged, and timeout of the pong.
    pub(crate) ping_interval: Duration,
    pub(crate) on_notification: OnNotification,
}

/// A connection, as its calls use it.
#[derive(Debug)]
pub(crate) struct MultiplexedConnection {
    encoder: Encoder,
    table: RefCell<Table>,
    out: RefCell<OutputBuffer>,
    /// Wakes the driver.
    driver: RefCell<Option<Waker>>,
    /// True if the driver was woken and has not run yet.
    woken: Cell<bool>,
    state: Cell<ConnectionState>,
    /// True if the close frame is the only unsent output.
    only_close_frame_left: Cell<bool>,
    /// True if the connection has received a response.
    pub(crate) has_carried_response: Cell<bool>,
    /// When its last call ended.
    idle_since: Cell<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    Open,
    /// A call timed out, and no bytes were received after it was sent.
    Suspect,
    /// The connection takes no more calls and closes after the last call in flight.
    Retiring,
    Closed,
}

/// The output buffer.
#[derive(Debug, Default)]
struct OutputBuffer {
    bytes: Vec<u8>,
    /// Number of `bytes` that were already sent.
    sent: usize,
    /// Number of sent bytes that were removed from the buffer.
    discarded: u64,
}

impl OutputBuffer {
    /// Returns the offset of the next byte to be appended, counted from the start of the
    /// connection.
    fn end(&self) -> u64 {
        self.discarded + self.bytes.len() as u64
    }

    fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn clear_sent(&mut self) {
        self.discarded = self.end();
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(OUT_CAPACITY_MAX);
    }
}

impl MultiplexedConnection {
    /// Returns a connection over a stream, with its driver. `read_ahead` holds bytes that were read
    /// after the handshake. The stream is a WebSocket if `websocket` is true, else a local socket.
    pub(crate) fn new(
        stream: Stream,
        websocket: bool,
        read_ahead: Vec<u8>,
        settings: Settings,
    ) -> (Rc<MultiplexedConnection>, Driver) {
        let (now, bytes_max) = (Instant::now(), settings.response_bytes_max);
        let (encoder, framing) = if websocket {
            (Encoder::WebSocket(Keys::default()), Framing::websocket(bytes_max))
        } else {
            (Encoder::Values, Framing::values(bytes_max))
        };
        let connection = Rc::new(MultiplexedConnection {
            encoder,
            table: RefCell::default(),
            out: RefCell::default(),
            driver: RefCell::new(None),
            woken: Cell::new(false),
            state: Cell::new(ConnectionState::Open),
            only_close_frame_left: Cell::new(false),
            has_carried_response: Cell::new(false),
            idle_since: Cell::new(now),
        });
        let driver = Driver {
            connection: Rc::clone(&connection),
            stream,
            framing,
            read_ahead,
            settings,
            watchdog: Watchdog::default(),
            last_read: now,
            pinged_at: None,
            flushing: false,
        };
        (connection, driver)
    }

    /// Returns the number of calls in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.borrow().waiting
    }

    /// Returns true if the connection can take one more call without exceeding `calls_max` calls in
    /// flight.
    pub(crate) fn can_take(&self, calls_max: usize) -> bool {
        self.state.get() == ConnectionState::Open
            && self.in_flight() < calls_max
            && self.out.borrow().unsent() < UNSENT_BYTES_MAX
    }

    /// Returns true unless the connection is closed or retiring.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), ConnectionState::Open | ConnectionState::Suspect)
    }

    /// Returns true if the connection has had no call for longer than `idle_timeout`.
    pub(crate) fn is_idle(&self, now: Instant, idle_timeout: Duration) -> bool {
        self.in_flight() == 0 && now.saturating_duration_since(self.idle_since.get()) > idle_timeout
    }

    /// Closes the connection after the calls in flight.
    pub(crate) fn retire(&self) {
        if self.is_open() {
            self.state.set(ConnectionState::Retiring);
            self.wake();
        }
    }

    /// Sends a call with a deadline. Returns `None` if the connection is closed or its table is
    /// full.
    pub(crate) fn call(
        self: &Rc<MultiplexedConnection>,
        name: &str,
        params: Option<&[u8]>,
        now: Instant,
        deadline: Instant,
    ) -> Option<Call> {
        if self.state.get() == ConnectionState::Closed {
            return None;
        }
        let mut out = self.out.borrow_mut();
        let key = self.table.borrow_mut().insert(now, deadline, out.end())?;
        let id = Decimal::new(key.id());
        let written = self.encoder.call(&mut out.bytes, id.as_bytes(), name, params);
        drop(out);
        let call = Call { connection: Rc::clone(self), key: Some(key) };
        // Without randomness for the mask nothing was written. Dropping `call` removes it from the
        // table.
        if !written {
            return None;
        }
        self.wake();
        Some(call)
    }

    fn wake(&self) {
        if !self.woken.replace(true)
            && let Some(driver) = &*self.driver.borrow()
        {
            driver.wake_by_ref();
        }
    }

    /// Returns a function from the offset of a call in the output to the error of the call.
    fn error_at(&self, kind: Kind, stale: bool) -> impl Fn(u64) -> ExchangeError + use<> {
        let out = self.out.borrow();
        let sent_end = out.discarded + out.sent as u64;
        move |offset| {
            let sent = if offset >= sent_end { Sent::No } else { Sent::Maybe };
            ExchangeError { kind, sent, stale_connection: stale && sent == Sent::Maybe }
        }
    }

    /// Passes a message to its call, or to `on_notification`.
    fn dispatch(&self, event: Event<'_>, on_notification: &OnNotification) {
        let mut table = self.table.borrow_mut();
        let recipient = match &event {
            Event::Message(message) => find_recipient(message),
            Event::TooLarge(head) => find_recipient_in_head(head),
            // `process` handles control frames. Compression was not negotiated with the upstream.
            Event::Compressed { .. } | Event::Ping(_) | Event::Pong | Event::Close(_) => return,
        };
        let id = match recipient {
            Recipient::Call(id) => Some(id),
            // A response without an id belongs to the call in flight if there is only one.
            Recipient::Unaddressed => table.only_id(),
            Recipient::Notification | Recipient::Unknown => None,
        };
        let delivery = match (id, event) {
            (Some(id), Event::Message(message)) => table.complete(id, || Ok(message.into_bytes())),
            (Some(id), _) => {
                table.complete(id, || Err(ExchangeError::new(Kind::TooLarge, Sent::Yes)))
            }
            (None, Event::Message(message)) if recipient == Recipient::Notification => {
                drop(table);
                return on_notification(&message);
            }
            (None, _) => Delivery::Unknown,
        };
        drop(table);
        match delivery {
            Delivery::Delivered(waker) => {
                self.has_carried_response.set(true);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Delivery::Late => {}
            Delivery::Unknown => {
                tracing::debug!(?recipient, "an upstream sent a response to an unknown call")
            }
        }
    }
}

/// A call in flight. Dropping it discards its response.
#[derive(Debug)]
pub(crate) struct Call {
    connection: Rc<MultiplexedConnection>,
    /// `None` once the call has ended.
    key: Option<CallKey>,
}

impl Future for Call {
    type Output = Result<(Decimal, Bytes), ExchangeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { return Poll::Pending };
        let polled = self.connection.table.borrow_mut().poll(key, cx.waker());
        polled.map(|outcome| {
            self.key = None;
            outcome.map(|response| (Decimal::new(key.id()), response))
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.connection.table.borrow_mut().abandon(key);
        }
    }
}

/// The task of a connection. Only the driver reads and writes the stream, until the connection
/// ends.
pub(crate) struct Driver {
    connection: Rc<MultiplexedConnection>,
    stream: Stream,
    framing: Framing,
    /// Bytes that were read after the handshake.
    read_ahead: Vec<u8>,
    settings: Settings,
    watchdog: Watchdog,
    /// When bytes were last read.
    last_read: Instant,
    /// When the outstanding ping was sent; `None` if no pong is awaited.
    pinged_at: Option<Instant>,
    /// True if the stream may still buffer written bytes.
    flushing: bool,
}

impl Future for Driver {
    type Output = CloseReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let driver = self.get_mut();
        driver.connection.woken.set(false);
        let mut registered = driver.connection.driver.borrow_mut();
        if !registered.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *registered = Some(cx.waker().clone());
        }
        drop(registered);
        match driver.drive(cx) {
            Ok(()) => Poll::Pending,
            Err(reason) => {
                driver.end(reason);
                if driver.connection.only_close_frame_left.get() {
                    // The close frame is sent only if the socket takes it at once.
                    let _ = driver.write(cx);
                }
                Poll::Ready(reason)
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end(CloseReason::Retired);
    }
}

impl Driver {
    /// Reads, writes and checks deadlines once.
    fn drive(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let read_ahead = std::mem::take(&mut self.read_ahead);
        if !read_ahead.is_empty() {
            self.process(&read_ahead)?;
        }
        self.read(cx)?;
        self.write(cx)?;
        while self.check_deadlines(cx)? {
            self.write(cx)?;
        }
        let connection = &self.connection;
        if connection.in_flight() == 0 {
            connection.idle_since.set(self.last_read);
            // A suspect WebSocket is pinged. A local socket has no pings, so a suspect one is
            // closed.
            let closes_as_suspect = connection.state.get() == ConnectionState::Suspect
                && !connection.encoder.has_pings();
            if (connection.state.get() == ConnectionState::Retiring || closes_as_suspect)
                && connection.out.borrow().unsent() == 0
            {
                return Err(CloseReason::Retired);
            }
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        for _ in 0..READS_PER_POLL {
            let polled = match self.framing.gap() {
                Some((body, missing)) => {
                    let polled = poll_read_into(&mut self.stream, cx, body, missing);
                    if let Poll::Ready(Ok(bytes)) = polled {
                        self.framing.filled(bytes);
                        if bytes > 0 {
                            // The decoder needs no further bytes to return a message that is
                            // complete now.
                            self.process(&[])?;
                        }
                    }
                    polled
                }
                None => {
                    let mut processed = Ok(());
                    // Borrows other fields than the stream, which `poll_read` borrows.
                    let (connection, framing) = (&self.connection, &mut self.framing);
                    let on_notification = &self.settings.on_notification;
                    let polled = wait::poll_read(&mut self.stream, cx, |bytes| {
                        processed = process(connection, framing, on_notification, bytes);
                        bytes.len()
                    });
                    processed?;
                    polled.map_ok(Option::unwrap_or_default)
                }
            };
            match polled {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.last_read = Instant::now();
                    self.pinged_at = None;
                    if self.connection.state.get() == ConnectionState::Suspect {
                        self.connection.state.set(ConnectionState::Open);
                    }
                }
                Poll::Ready(Ok(_) | Err(_)) => return Err(CloseReason::Closed(None)),
            }
        }
        // More bytes may be available; other tasks run first.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn process(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        process(&self.connection, &mut self.framing, &self.settings.on_notification, bytes)
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), CloseReason> {
        let mut out = self.connection.out.borrow_mut();
        while out.unsent() > 0 {
            let sent = out.sent;
            match Pin::new(&mut self.stream).poll_write(cx, &out.bytes[sent..]) {
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    out.sent += bytes;
                    self.flushing = true;
                }
                Poll::Ready(_) => return Err(CloseReason::Closed(None)),
                Poll::Pending => return Ok(()),
            }
        }
        if self.flushing {
            out.clear_sent();
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushing = false,
                Poll::Ready(Err(_)) => return Err(CloseReason::Closed(None)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Handles deadlines that have passed. Returns true if a deadline has passed, because a ping
    /// may then have to be written.
    fn check_deadlines(&mut self, cx: &mut Context<'_>) -> Result<bool, CloseReason> {
        let pings = self.connection.encoder.has_pings();
        let interval = self.settings.ping_interval;
        let ping_at = pings.then(|| self.pinged_at.unwrap_or(self.last_read) + interval);
        let earliest = self.connection.table.borrow().earliest_deadline;
        let Some(next) = [ping_at, earliest].into_iter().flatten().min() else { return Ok(false) };
        if self.watchdog.poll_passed(cx, next).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        let mut woken = Vec::new();
        let error = self.connection.error_at(Kind::Deadline, false);
        let last_started = self.connection.table.borrow_mut().expire(now, error, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        // No bytes were received after an overdue call was sent.
        let silent = last_started.is_some_and(|last_started| last_started >= self.last_read);
        if silent && self.connection.state.get() == ConnectionState::Open {
            self.connection.state.set(ConnectionState::Suspect);
        }
        match self.pinged_at {
            Some(pinged_at) if now >= pinged_at + interval => return Err(CloseReason::Stalled),
            Some(_) => {}
            None if pings && (silent || now >= self.last_read + interval) => {
                let mut out = self.connection.out.borrow_mut();
                self.connection.encoder.control(&mut out.bytes, Opcode::Ping, b"");
                self.pinged_at = Some(now);
            }
            None => {}
        }
        Ok(true)
    }

    /// Closes the connection and fails its calls.
    fn end(&mut self, reason: CloseReason) {
        let connection = &self.connection;
        if connection.state.replace(ConnectionState::Closed) == ConnectionState::Closed {
            return;
        }
        let kind = if reason == CloseReason::Malformed { Kind::Malformed } else { Kind::Closed };
        let stale =
            matches!(reason, CloseReason::Closed(_)) && connection.has_carried_response.get();
        let mut woken = Vec::new();
        let error = connection.error_at(kind, stale);
        connection.table.borrow_mut().fail(error, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        connection.driver.replace(None);
    }
}

/// Splits bytes into messages and passes each to its recipient.
fn process(
    connection: &MultiplexedConnection,
    framing: &mut Framing,
    on_notification: &OnNotification,
    bytes: &[u8],
) -> Result<(), CloseReason> {
    let mut consumed = 0;
    loop {
        let (used, event) = match framing.next(&bytes[consumed..]) {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(?error, "an upstream sent a malformed message");
                if let FramingError::Frame(fault) = error {
                    close(connection, fault.close_code());
                }
                return Err(CloseReason::Malformed);
            }
        };
        consumed += used;
        match event {
            None => return Ok(()),
            Some(Event::Ping(payload)) => {
                let mut out = connection.out.borrow_mut();
                // A peer that does not read gets no pong. RFC 6455, 5.5.3, requires one only for
                // the last ping.
                if out.unsent() < UNSENT_BYTES_MAX {
                    connection.encoder.control(&mut out.bytes, Opcode::Pong, &payload);
                }
            }
            Some(Event::Close(code)) => {
                close(connection, code.unwrap_or(1000));
                return Err(CloseReason::Closed(code));
            }
            Some(event) => connection.dispatch(event, on_notification),
        }
    }
}

/// Appends a close frame if no output is unsent, so that no call is sent together with it.
fn close(connection: &MultiplexedConnection, code: u16) {
    let mut out = connection.out.borrow_mut();
    if out.unsent() == 0 {
        connection.encoder.control(&mut out.bytes, Opcode::Close, &code.to_be_bytes());
        connection.only_close_frame_left.set(true);
    }
}

/// Reads directly into a message that lacks `missing` bytes. Returns the number of bytes read.
fn poll_read_into(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    body: &mut BytesMut,
    missing: usize,
) -> Poll<io::Result<usize>> {
    let bytes_max = missing.min(LONG_READ_BYTES);
    body.reserve(bytes_max);
    let mut limited = body.limit(bytes_max);
    let read = std::pin::pin!(stream.read_buf(&mut limited));
    read.poll(cx)
}
