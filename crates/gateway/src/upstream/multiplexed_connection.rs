//! One connection to an upstream that carries many calls at a time: a WebSocket or a local socket.
//!
//! Calls append their messages to one output buffer and wake the connection's own task, the driver.
//! The driver runs after the tasks that were already runnable, and writes the messages of all these
//! tasks together. The driver also reads the available bytes, and passes each response to its call.
//! The gateway assigns an id to each call, and the response repeats the id
//! (`multiplexed_connection/table.rs`). `multiplexed_connection/framing.rs` delimits messages.
//! `multiplexed_pool.rs` chooses a connection for a call and opens connections.

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
use wire::websocket::keys::Keys;

use crate::call::failure::{FailureKind, Sent};
use crate::io::wait::{self, Watchdog};
use crate::io::websocket::decoder::Event;
use crate::upstream::connector::Stream;
use crate::upstream::exchange::ExchangeError;

mod framing;
mod table;

#[cfg(test)]
mod tests;

use framing::{
    Encoder, Framing, FramingError, Recipient, find_recipient, find_recipient_in_prefix,
};
use table::{CallKey, Delivery, Table};

/// Maximum number of reads in one poll of the driver. The limit keeps an upstream that sends many
/// bytes from delaying clients.
const READS_PER_POLL: usize = 4;
/// Maximum bytes that one read appends to a long response.
const LONG_READ_BYTES: usize = 256 * 1024;
/// A connection with this many unsent bytes takes no more calls, because the upstream reads too
/// slowly.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Capacity to which the output buffer shrinks once all bytes are sent.
const OUT_CAPACITY_MAX: usize = 256 * 1024;

/// Receives each message that is not a response, such as a notification of a subscription.
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
    /// The upstream is pinged after this time without input. The pong has the same timeout.
    pub(crate) ping_interval: Duration,
    /// Called with each message that is not a response.
    pub(crate) on_notification: OnNotification,
}

/// The part of a connection that its calls and its driver share.
#[derive(Debug)]
pub(crate) struct MultiplexedConnection {
    encoder: Encoder,
    /// The calls in flight.
    table: RefCell<Table>,
    output: RefCell<OutputBuffer>,
    /// Wakes the driver; `None` before the driver first runs and after the connection has ended.
    driver_waker: RefCell<Option<Waker>>,
    /// True if the driver was woken and has not run yet.
    driver_woken: Cell<bool>,
    state: Cell<ConnectionState>,
    /// True if the close frame is the only unsent output.
    only_close_frame_left: Cell<bool>,
    /// True if the connection has received a response.
    pub(crate) has_carried_response: Cell<bool>,
    /// Time of the last read; updated only while no call is in flight.
    idle_since: Cell<Instant>,
}

/// The stage of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionState {
    /// The connection takes calls.
    Open,
    /// A call timed out, and no bytes were received after the call was sent. The connection takes
    /// no calls until bytes are received.
    Suspect,
    /// The connection takes no more calls and closes after the last call in flight.
    Retiring,
    Closed,
}

/// Output to send. Sent bytes stay in the buffer until all bytes were sent.
#[derive(Debug, Default)]
struct OutputBuffer {
    bytes: Vec<u8>,
    /// Number of `bytes` that were already sent.
    sent_bytes: usize,
    /// Number of sent bytes that were removed from the buffer.
    discarded_bytes: u64,
}

impl OutputBuffer {
    /// Returns the offset of the next byte to be appended, counted from the start of the
    /// connection.
    fn end_offset(&self) -> u64 {
        self.discarded_bytes + self.bytes.len() as u64
    }

    /// Returns the number of unsent bytes.
    fn unsent_bytes(&self) -> usize {
        self.bytes.len() - self.sent_bytes
    }

    /// Empties the buffer. Called when all bytes were sent.
    fn clear_sent(&mut self) {
        self.discarded_bytes = self.end_offset();
        self.sent_bytes = 0;
        self.bytes.clear();
        self.bytes.shrink_to(OUT_CAPACITY_MAX);
    }
}

impl MultiplexedConnection {
    /// Returns a connection over a stream, with its driver. `read_ahead` holds bytes of messages
    /// that were read together with the handshake. The stream is a WebSocket if `is_websocket` is
    /// true, else a local socket.
    pub(crate) fn new(
        stream: Stream,
        is_websocket: bool,
        read_ahead: Vec<u8>,
        settings: Settings,
    ) -> (Rc<MultiplexedConnection>, Driver) {
        let (now, bytes_max) = (Instant::now(), settings.response_bytes_max);
        let (encoder, framing) = if is_websocket {
            (Encoder::WebSocket(Keys::default()), Framing::websocket(bytes_max))
        } else {
            (Encoder::Values, Framing::values(bytes_max))
        };
        let connection = Rc::new(MultiplexedConnection {
            encoder,
            table: RefCell::default(),
            output: RefCell::default(),
            driver_waker: RefCell::new(None),
            driver_woken: Cell::new(false),
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
            needs_flush: false,
        };
        (connection, driver)
    }

    /// Returns the number of calls in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.borrow().waiting_calls
    }

    /// Returns true if the connection takes one more call. `calls_max` limits its calls in flight.
    pub(crate) fn can_take(&self, calls_max: usize) -> bool {
        self.state.get() == ConnectionState::Open
            && self.in_flight() < calls_max
            && self.output.borrow().unsent_bytes() < UNSENT_BYTES_MAX
    }

    /// Returns true if the connection is neither closed nor retiring.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), ConnectionState::Open | ConnectionState::Suspect)
    }

    /// Returns true if the connection has had no call for longer than `idle_timeout`.
    pub(crate) fn is_idle(&self, now: Instant, idle_timeout: Duration) -> bool {
        self.in_flight() == 0 && now.saturating_duration_since(self.idle_since.get()) > idle_timeout
    }

    /// Closes the connection once the calls in flight have ended.
    pub(crate) fn retire(&self) {
        if self.is_open() {
            self.state.set(ConnectionState::Retiring);
            self.wake();
        }
    }

    /// Sends a call with a deadline. Returns `None` if the connection is closed, if its table is
    /// full, or if the system has no randomness for the mask.
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
        let mut output = self.output.borrow_mut();
        let key = self.table.borrow_mut().insert(now, deadline, output.end_offset())?;
        let id = Decimal::new(key.id());
        let written = self.encoder.call(&mut output.bytes, id.as_bytes(), name, params);
        drop(output);
        let call = Call { connection: Rc::clone(self), key: Some(key) };
        // Nothing was written if the system has no randomness for the mask. Dropping `call` removes
        // the call from the table.
        if !written {
            return None;
        }
        self.wake();
        Some(call)
    }

    /// Wakes the driver, unless it was woken already.
    fn wake(&self) {
        if !self.driver_woken.replace(true)
            && let Some(waker) = &*self.driver_waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Returns a function that returns the error of a call. Its argument is the offset of the
    /// call's first byte in the output. A call whose first byte is unsent gets [`Sent::No`].
    /// `is_stale` is true if the upstream closed a connection that had carried a response.
    fn error_by_offset(
        &self,
        kind: FailureKind,
        is_stale: bool,
    ) -> impl Fn(u64) -> ExchangeError + use<> {
        let output = self.output.borrow();
        let sent_end = output.discarded_bytes + output.sent_bytes as u64;
        move |offset| {
            let sent = if offset >= sent_end { Sent::No } else { Sent::Maybe };
            ExchangeError { kind, sent, stale_connection: is_stale && sent == Sent::Maybe }
        }
    }

    /// Passes a message to its call, or to `on_notification`.
    fn dispatch(&self, event: Event<'_>, on_notification: &OnNotification) {
        let mut table = self.table.borrow_mut();
        let recipient = match &event {
            Event::Message(message) => find_recipient(message),
            Event::TooLarge(prefix) => find_recipient_in_prefix(prefix),
            // `process` handles pings and close frames, and pongs need no handling. Compression was
            // not negotiated with the upstream.
            Event::Compressed { .. } | Event::Ping(_) | Event::Pong | Event::Close(_) => return,
        };
        let id = match recipient {
            Recipient::Call(id) => Some(id),
            // If only one call is in flight, a response without an id belongs to this call.
            Recipient::Unaddressed => table.only_waiting_id(),
            Recipient::Notification | Recipient::Unknown => None,
        };
        let delivery = match (id, event) {
            (Some(id), Event::Message(message)) => table.complete(id, || Ok(message.into_bytes())),
            (Some(id), _) => {
                table.complete(id, || Err(ExchangeError::new(FailureKind::TooLarge, Sent::Yes)))
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

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { return Poll::Pending };
        let polled = self.connection.table.borrow_mut().poll(key, task.waker());
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

/// The task of a connection: reads and writes the stream until the connection ends.
pub(crate) struct Driver {
    connection: Rc<MultiplexedConnection>,
    stream: Stream,
    framing: Framing,
    /// Bytes of messages that were read together with the handshake; empty once processed.
    read_ahead: Vec<u8>,
    settings: Settings,
    /// The timer for the deadlines of calls and pings.
    watchdog: Watchdog,
    /// When bytes were last read.
    last_read: Instant,
    /// When the outstanding ping was sent; `None` if no pong is awaited.
    pinged_at: Option<Instant>,
    /// True if the stream may still buffer written bytes.
    needs_flush: bool,
}

impl Future for Driver {
    type Output = CloseReason;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<CloseReason> {
        let driver = self.get_mut();
        driver.connection.driver_woken.set(false);
        let mut driver_waker = driver.connection.driver_waker.borrow_mut();
        if !driver_waker.as_ref().is_some_and(|waker| waker.will_wake(task.waker())) {
            *driver_waker = Some(task.waker().clone());
        }
        drop(driver_waker);
        match driver.drive(task) {
            Ok(()) => Poll::Pending,
            Err(reason) => {
                driver.end(reason);
                if driver.connection.only_close_frame_left.get() {
                    // The close frame is sent only if the socket accepts it at once.
                    let _ = driver.write(task);
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
    fn drive(&mut self, task: &mut Context<'_>) -> Result<(), CloseReason> {
        let read_ahead = std::mem::take(&mut self.read_ahead);
        if !read_ahead.is_empty() {
            self.process(&read_ahead)?;
        }
        self.read(task)?;
        self.write(task)?;
        while self.check_deadlines(task)? {
            self.write(task)?;
        }
        let connection = &self.connection;
        if connection.in_flight() == 0 {
            connection.idle_since.set(self.last_read);
            let state = connection.state.get();
            // A suspect WebSocket is pinged. A local socket has no pings, so it is closed instead.
            let closes_as_suspect =
                state == ConnectionState::Suspect && !connection.encoder.has_pings();
            let must_close = state == ConnectionState::Retiring || closes_as_suspect;
            if must_close && connection.output.borrow().unsent_bytes() == 0 {
                return Err(CloseReason::Retired);
            }
        }
        Ok(())
    }

    /// Reads the available bytes, up to a limit, and processes their messages.
    fn read(&mut self, task: &mut Context<'_>) -> Result<(), CloseReason> {
        for _ in 0..READS_PER_POLL {
            match self.read_once(task)? {
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
        // More bytes may be available. Other tasks run before the next read.
        task.waker().wake_by_ref();
        Ok(())
    }

    /// Makes one read and processes its messages. Returns the number of bytes read; 0 at the end of
    /// the stream.
    fn read_once(
        &mut self,
        task: &mut Context<'_>,
    ) -> Result<Poll<io::Result<usize>>, CloseReason> {
        if let Some((body, missing)) = self.framing.direct_read_buffer() {
            let polled = poll_read_into(&mut self.stream, task, body, missing);
            if let Poll::Ready(Ok(bytes)) = polled {
                self.framing.record_direct_read(bytes);
                if bytes > 0 {
                    // The message may be complete now. The decoder then returns it without further
                    // bytes.
                    self.process(&[])?;
                }
            }
            return Ok(polled);
        }
        let mut processed = Ok(());
        // `poll_read` borrows the stream, so the closure borrows only other fields.
        let (connection, framing) = (&self.connection, &mut self.framing);
        let on_notification = &self.settings.on_notification;
        let polled = wait::poll_read(&mut self.stream, task, |bytes| {
            processed = process(connection, framing, on_notification, bytes);
            bytes.len()
        });
        processed?;
        Ok(polled.map_ok(Option::unwrap_or_default))
    }

    fn process(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        process(&self.connection, &mut self.framing, &self.settings.on_notification, bytes)
    }

    /// Writes and flushes as many bytes as the stream accepts.
    fn write(&mut self, task: &mut Context<'_>) -> Result<(), CloseReason> {
        let mut output = self.connection.output.borrow_mut();
        while output.unsent_bytes() > 0 {
            let sent_bytes = output.sent_bytes;
            match Pin::new(&mut self.stream).poll_write(task, &output.bytes[sent_bytes..]) {
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    output.sent_bytes += bytes;
                    self.needs_flush = true;
                }
                Poll::Ready(_) => return Err(CloseReason::Closed(None)),
                Poll::Pending => return Ok(()),
            }
        }
        if self.needs_flush {
            output.clear_sent();
            match Pin::new(&mut self.stream).poll_flush(task) {
                Poll::Ready(Ok(())) => self.needs_flush = false,
                Poll::Ready(Err(_)) => return Err(CloseReason::Closed(None)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Handles deadlines that have passed: fails overdue calls and pings a silent upstream. Returns
    /// true if a deadline has passed; the caller must then write, because a ping may be queued.
    fn check_deadlines(&mut self, task: &mut Context<'_>) -> Result<bool, CloseReason> {
        let has_pings = self.connection.encoder.has_pings();
        let interval = self.settings.ping_interval;
        // The time of the next ping, or the timeout of the outstanding pong.
        let ping_at = has_pings.then(|| self.pinged_at.unwrap_or(self.last_read) + interval);
        let call_deadline = self.connection.table.borrow().earliest_deadline;
        let next_deadline = [ping_at, call_deadline].into_iter().flatten().min();
        let Some(next_deadline) = next_deadline else { return Ok(false) };
        if self.watchdog.poll_passed(task, next_deadline).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        let mut wakers = Vec::new();
        let error = self.connection.error_by_offset(FailureKind::Deadline, false);
        let last_started = self.connection.table.borrow_mut().expire(now, error, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        // True if no bytes were received after an overdue call was sent.
        let is_silent = last_started.is_some_and(|last_started| last_started >= self.last_read);
        if is_silent && self.connection.state.get() == ConnectionState::Open {
            self.connection.state.set(ConnectionState::Suspect);
        }
        match self.pinged_at {
            Some(pinged_at) if now >= pinged_at + interval => return Err(CloseReason::Stalled),
            Some(_) => {}
            None if has_pings && (is_silent || now >= self.last_read + interval) => {
                let mut output = self.connection.output.borrow_mut();
                self.connection.encoder.control(&mut output.bytes, Opcode::Ping, b"");
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
        let kind = if reason == CloseReason::Malformed {
            FailureKind::Malformed
        } else {
            FailureKind::Closed
        };
        let is_stale =
            matches!(reason, CloseReason::Closed(_)) && connection.has_carried_response.get();
        let mut wakers = Vec::new();
        let error = connection.error_by_offset(kind, is_stale);
        connection.table.borrow_mut().fail_all(error, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        connection.driver_waker.replace(None);
    }
}

/// Splits bytes into messages, passes each message to its recipient, and answers control frames.
fn process(
    connection: &MultiplexedConnection,
    framing: &mut Framing,
    on_notification: &OnNotification,
    bytes: &[u8],
) -> Result<(), CloseReason> {
    let mut consumed_bytes = 0;
    loop {
        let (used_bytes, event) = match framing.next(&bytes[consumed_bytes..]) {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(?error, "an upstream sent a malformed message");
                if let FramingError::Frame(fault) = error {
                    close(connection, fault.close_code());
                }
                return Err(CloseReason::Malformed);
            }
        };
        consumed_bytes += used_bytes;
        match event {
            None => return Ok(()),
            Some(Event::Ping(payload)) => {
                let mut output = connection.output.borrow_mut();
                // An upstream that does not read gets no pong. RFC 6455, 5.5.3, requires a pong
                // only for the last ping.
                if output.unsent_bytes() < UNSENT_BYTES_MAX {
                    connection.encoder.control(&mut output.bytes, Opcode::Pong, &payload);
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

/// Appends a close frame if all earlier output was sent. Unsent calls must not be sent together
/// with a close frame.
fn close(connection: &MultiplexedConnection, code: u16) {
    let mut output = connection.output.borrow_mut();
    if output.unsent_bytes() == 0 {
        connection.encoder.control(&mut output.bytes, Opcode::Close, &code.to_be_bytes());
        connection.only_close_frame_left.set(true);
    }
}

/// Reads directly into the body of a message that lacks `missing` bytes. Returns the number of
/// bytes read.
fn poll_read_into(
    stream: &mut Stream,
    task: &mut Context<'_>,
    body: &mut BytesMut,
    missing: usize,
) -> Poll<io::Result<usize>> {
    let bytes_max = missing.min(LONG_READ_BYTES);
    body.reserve(bytes_max);
    let mut limited = body.limit(bytes_max);
    let read = std::pin::pin!(stream.read_buf(&mut limited));
    read.poll(task)
}
