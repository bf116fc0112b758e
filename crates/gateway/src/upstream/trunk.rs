//! One connection to an upstream that carries many calls at a time: a WebSocket or a local socket.
//!
//! Calls that are under way on one thread write their messages into one buffer; the trunk's own
//! task, the driver, is woken once and writes them together after the tasks that were ready before
//! it. It reads as much as there is at once and hands each answer to who waits for it by its
//! private id (`trunk/table.rs`). How messages are delimited is `trunk/framing.rs`; which trunk a
//! call takes, and when one is opened, is `multiplex.rs`.

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

use crate::call::failure::Kind;
use crate::io::wait;
use crate::io::wait::Watchdog;
use crate::io::websocket::frame::{Event, Op};
use crate::io::websocket::keys::Keys;
use crate::policy::retry::Sent;
use crate::upstream::stream::Stream;

mod framing;
mod table;

#[cfg(test)]
mod tests;

use framing::{Framing, Unreadable, Whose, Writing, whose, whose_head};
use table::{Ended, Key, Table};

/// Reads in one turn of the driver, so that an upstream with much to say does not keep clients
/// waiting.
const READS_PER_TURN: usize = 4;
/// Most bytes of a long answer that one read takes.
const LONG_READ_BYTES: usize = 256 * 1024;
/// Bytes that wait to be sent, from which on a trunk takes no more calls: the upstream does not
/// read.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// A buffer that grew larger than this is not kept.
const OUT_BYTES_KEPT: usize = 256 * 1024;

/// Told of each message that is no answer: the place for subscriptions.
pub(crate) type Notice = Rc<dyn Fn(&[u8])>;

/// A call that has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) kind: Kind,
    pub(crate) sent: Sent,
    /// The upstream closed a connection that had carried answers before.
    pub(crate) stale: bool,
}

/// Why a trunk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The upstream closed it, perhaps with a code.
    Closed(Option<u16>),
    /// The upstream did not answer a ping.
    Stalled,
    /// What the upstream sent cannot be read.
    Malformed,
    /// We closed it.
    Retired,
}

/// What a trunk is made with.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Bytes of the longest answer that is wanted.
    pub(crate) response_bytes_max: usize,
    /// How long nothing may be heard before the upstream is pinged, and how long it may take to
    /// answer.
    pub(crate) ping_interval: Duration,
    pub(crate) notice: Notice,
}

/// One connection, as its calls see it.
#[derive(Debug)]
pub(crate) struct Trunk {
    writing: Writing,
    table: RefCell<Table>,
    out: RefCell<Outgoing>,
    driver: RefCell<Option<Waker>>,
    /// The driver was woken and has not run yet.
    woken: Cell<bool>,
    standing: Cell<Standing>,
    /// All that is left to be sent is a close frame.
    farewell: Cell<bool>,
    /// An answer has come over it.
    pub(crate) carried: Cell<bool>,
    /// When nothing was under way on it any more.
    idle_since: Cell<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    /// A call got no answer in time, and nothing else was heard since.
    Doubted,
    /// It takes no more calls and closes after the last one.
    Retiring,
    Gone,
}

/// What is to be sent.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// How many of them were sent.
    sent: usize,
    /// Bytes that went before them.
    before: u64,
}

impl Outgoing {
    /// Where in all that was to be sent the next byte stands.
    fn end(&self) -> u64 {
        self.before + self.bytes.len() as u64
    }

    fn sent_end(&self) -> u64 {
        self.before + self.sent as u64
    }

    fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn all_sent(&mut self) {
        self.before = self.end();
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(OUT_BYTES_KEPT);
    }
}

impl Trunk {
    /// A trunk over a stream, with what drives it; `read` was read behind the handshake. It is a
    /// WebSocket, or a local socket.
    pub(crate) fn new(
        stream: Stream,
        websocket: bool,
        read: Vec<u8>,
        settings: Settings,
    ) -> (Rc<Trunk>, Driver) {
        let now = Instant::now();
        let bytes_max = settings.response_bytes_max;
        let (writing, framing) = if websocket {
            (Writing::WebSocket(Keys::default()), Framing::websocket(bytes_max))
        } else {
            (Writing::Values, Framing::values(bytes_max))
        };
        let trunk = Rc::new(Trunk {
            writing,
            table: RefCell::default(),
            out: RefCell::default(),
            driver: RefCell::new(None),
            woken: Cell::new(false),
            standing: Cell::new(Standing::Open),
            farewell: Cell::new(false),
            carried: Cell::new(false),
            idle_since: Cell::new(now),
        });
        let driver = Driver {
            trunk: Rc::clone(&trunk),
            stream,
            framing,
            read,
            settings,
            watchdog: Watchdog::default(),
            heard: now,
            pinged: None,
            flushing: false,
        };
        (trunk, driver)
    }

    /// Calls under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.borrow().waiting()
    }

    /// Whether it may take one more call of so many at a time.
    pub(crate) fn has_room(&self, calls_max: usize) -> bool {
        self.standing.get() == Standing::Open
            && self.in_flight() < calls_max
            && self.out.borrow().unsent() < UNSENT_BYTES_MAX
    }

    /// Whether it counts among the open ones.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.standing.get(), Standing::Open | Standing::Doubted)
    }

    /// Whether nothing was under way on it for so long.
    pub(crate) fn is_idle(&self, now: Instant, idle_max: Duration) -> bool {
        self.in_flight() == 0 && now.saturating_duration_since(self.idle_since.get()) > idle_max
    }

    /// Closes it after the calls that are under way.
    pub(crate) fn retire(&self) {
        if self.is_open() {
            self.standing.set(Standing::Retiring);
            self.wake();
        }
    }

    /// Sends a call that is to be answered by `deadline`; none if it can take no more.
    pub(crate) fn call(
        self: &Rc<Trunk>,
        name: &str,
        params: Option<&[u8]>,
        now: Instant,
        deadline: Instant,
    ) -> Option<Call> {
        if self.standing.get() == Standing::Gone {
            return None;
        }
        let mut out = self.out.borrow_mut();
        let key = self.table.borrow_mut().enter(now, deadline, out.end())?;
        let id = Decimal::new(key.id());
        let written = self.writing.call(&mut out.bytes, id.as_bytes(), name, params);
        drop(out);
        let call = Call { trunk: Rc::clone(self), key: Some(key) };
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

    /// Why a call has no answer, by where it stands in what was to be sent.
    fn lost(&self, kind: Kind, stale: bool) -> impl Fn(u64) -> Lost + use<> {
        let sent_end = self.out.borrow().sent_end();
        move |start| {
            let sent = if start >= sent_end { Sent::No } else { Sent::Maybe };
            Lost { kind, sent, stale: stale && sent == Sent::Maybe }
        }
    }

    /// Hands a message to who waits for it.
    fn dispatch(&self, event: Event<'_>, notice: &Notice) {
        let mut table = self.table.borrow_mut();
        let owner = match &event {
            Event::Message(message) => whose(message),
            Event::TooLarge(head) => whose_head(head),
            // Nothing of the kind was agreed on with upstreams.
            Event::Compressed { .. } | Event::Ping(_) | Event::Pong | Event::Close(_) => return,
        };
        let id = match owner {
            Whose::Call(id) => Some(id),
            // Who asked alone is answered; of several nobody can say whose it is.
            Whose::Nobody => table.only(),
            Whose::Notice | Whose::Stray => None,
        };
        let ended = match (id, event) {
            (Some(id), Event::Message(message)) => table.end(id, || Ok(message.into_bytes())),
            (Some(id), _) => {
                let lost = Lost { kind: Kind::TooLarge, sent: Sent::Yes, stale: false };
                table.end(id, || Err(lost))
            }
            (None, Event::Message(message)) if owner == Whose::Notice => {
                drop(table);
                return notice(&message);
            }
            (None, _) => Ended::Unknown,
        };
        drop(table);
        match ended {
            Ended::Waited(waker) => {
                self.carried.set(true);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Ended::Late => {}
            Ended::Unknown => {
                tracing::debug!(?owner, "an upstream answers a call that was not made")
            }
        }
    }
}

/// A call under way; dropping it gives up its answer.
#[derive(Debug)]
pub(crate) struct Call {
    trunk: Rc<Trunk>,
    /// None once it has ended.
    key: Option<Key>,
}

impl Future for Call {
    type Output = Result<(Decimal, Bytes), Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { return Poll::Pending };
        let polled = self.trunk.table.borrow_mut().poll(key, cx.waker());
        polled.map(|outcome| {
            self.key = None;
            outcome.map(|answer| (Decimal::new(key.id()), answer))
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.trunk.table.borrow_mut().abandon(key);
        }
    }
}

/// The task of a trunk: it alone reads and writes the stream, until the trunk ends.
pub(crate) struct Driver {
    trunk: Rc<Trunk>,
    stream: Stream,
    framing: Framing,
    /// What came behind the handshake.
    read: Vec<u8>,
    settings: Settings,
    watchdog: Watchdog,
    /// When something was last heard.
    heard: Instant,
    /// When the ping was sent that is not answered yet.
    pinged: Option<Instant>,
    /// All bytes are with the stream, which may still hold some.
    flushing: bool,
}

impl Future for Driver {
    type Output = Loss;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        let driver = self.get_mut();
        driver.trunk.woken.set(false);
        driver.register(cx.waker());
        match driver.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(loss) => {
                driver.end(loss);
                if driver.trunk.farewell.get() {
                    // As far as the socket takes it at once.
                    let _ = driver.write(cx);
                }
                Poll::Ready(loss)
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end(Loss::Retired);
    }
}

impl Driver {
    fn register(&self, waker: &Waker) {
        let mut own = self.trunk.driver.borrow_mut();
        if !own.as_ref().is_some_and(|own| own.will_wake(waker)) {
            *own = Some(waker.clone());
        }
    }

    /// Reads, writes and looks at the clock once.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Loss> {
        let read = std::mem::take(&mut self.read);
        if !read.is_empty() {
            self.take(&read)?;
        }
        self.read(cx)?;
        self.write(cx)?;
        while self.watch(cx)? {
            self.write(cx)?;
        }
        let trunk = &self.trunk;
        if trunk.in_flight() == 0 {
            trunk.idle_since.set(self.heard);
            let doubted = trunk.standing.get() == Standing::Doubted && !trunk.writing.has_pings();
            if (trunk.standing.get() == Standing::Retiring || doubted)
                && trunk.out.borrow().unsent() == 0
            {
                return Err(Loss::Retired);
            }
        }
        Ok(())
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Loss> {
        for _ in 0..READS_PER_TURN {
            let read = match self.framing.gap() {
                Some((body, left)) => {
                    let read = poll_read_into(&mut self.stream, cx, body, left);
                    if let Poll::Ready(Ok(bytes)) = read {
                        self.framing.filled(bytes);
                        if bytes > 0 {
                            self.take(&[])?;
                        }
                    }
                    read
                }
                None => {
                    let mut taken = Ok(());
                    // Apart from the stream, whose bytes the rest of the driver reads.
                    let (trunk, framing) = (&self.trunk, &mut self.framing);
                    let notice = &self.settings.notice;
                    let read = wait::poll_read(&mut self.stream, cx, |bytes| {
                        taken = take(trunk, framing, notice, bytes);
                    });
                    taken?;
                    read
                }
            };
            match read {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    self.heard = Instant::now();
                    self.pinged = None;
                    if self.trunk.standing.get() == Standing::Doubted {
                        self.trunk.standing.set(Standing::Open);
                    }
                }
                Poll::Ready(Ok(_) | Err(_)) => return Err(Loss::Closed(None)),
            }
        }
        // There may be more, after the others' turn.
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Loss> {
        take(&self.trunk, &mut self.framing, &self.settings.notice, bytes)
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Loss> {
        let mut out = self.trunk.out.borrow_mut();
        while out.unsent() > 0 {
            let sent = out.sent;
            match Pin::new(&mut self.stream).poll_write(cx, &out.bytes[sent..]) {
                Poll::Ready(Ok(bytes)) if bytes > 0 => {
                    out.sent += bytes;
                    self.flushing = true;
                }
                Poll::Ready(_) => return Err(Loss::Closed(None)),
                Poll::Pending => return Ok(()),
            }
        }
        if self.flushing {
            out.all_sent();
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushing = false,
                Poll::Ready(Err(_)) => return Err(Loss::Closed(None)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Looks whether a deadline has passed; whether there is something to be written for that.
    fn watch(&mut self, cx: &mut Context<'_>) -> Result<bool, Loss> {
        let pings = self.trunk.writing.has_pings();
        let interval = self.settings.ping_interval;
        let beat = pings.then(|| self.pinged.unwrap_or(self.heard) + interval);
        let earliest = self.trunk.table.borrow().earliest();
        let Some(next) = [beat, earliest].into_iter().flatten().min() else { return Ok(false) };
        if self.watchdog.poll_passed(cx, next).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        let mut woken = Vec::new();
        let lost = self.trunk.lost(Kind::Deadline, false);
        let begun = self.trunk.table.borrow_mut().expire(now, lost, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        // Not a word since a call that is overdue was sent.
        let silent = begun.is_some_and(|begun| begun >= self.heard);
        if silent && self.trunk.standing.get() == Standing::Open {
            self.trunk.standing.set(Standing::Doubted);
        }
        match self.pinged {
            Some(pinged) if now >= pinged + interval => return Err(Loss::Stalled),
            Some(_) => {}
            None if pings && (silent || now >= self.heard + interval) => {
                let mut out = self.trunk.out.borrow_mut();
                self.trunk.writing.control(&mut out.bytes, Op::Ping, b"");
                self.pinged = Some(now);
            }
            None => {}
        }
        Ok(true)
    }

    fn end(&mut self, loss: Loss) {
        let trunk = &self.trunk;
        if trunk.standing.replace(Standing::Gone) == Standing::Gone {
            return;
        }
        let kind = if loss == Loss::Malformed { Kind::Malformed } else { Kind::Closed };
        let stale = matches!(loss, Loss::Closed(_)) && trunk.carried.get();
        let mut woken = Vec::new();
        let lost = trunk.lost(kind, stale);
        trunk.table.borrow_mut().fail(lost, &mut woken);
        woken.into_iter().for_each(Waker::wake);
        trunk.driver.replace(None);
    }
}

/// Takes apart what was read, and hands it out.
fn take(trunk: &Trunk, framing: &mut Framing, notice: &Notice, bytes: &[u8]) -> Result<(), Loss> {
    let mut at = 0;
    loop {
        let (used, event) = match framing.next(&bytes[at..]) {
            Ok(next) => next,
            Err(unreadable) => {
                tracing::debug!(?unreadable, "what an upstream sent cannot be read");
                if let Unreadable::Frame(fault) = unreadable {
                    close(trunk, fault.code());
                }
                return Err(Loss::Malformed);
            }
        };
        at += used;
        match event {
            None => return Ok(()),
            Some(Event::Ping(payload)) => {
                let mut out = trunk.out.borrow_mut();
                // Who does not read need not be answered, and only the last ping has to be.
                if out.unsent() < UNSENT_BYTES_MAX {
                    trunk.writing.control(&mut out.bytes, Op::Pong, payload);
                }
            }
            Some(Event::Close(code)) => {
                close(trunk, code.unwrap_or(1000));
                return Err(Loss::Closed(code));
            }
            Some(event) => trunk.dispatch(event, notice),
        }
    }
}

/// Prepares a goodbye, unless calls wait to be sent, which would go with it.
fn close(trunk: &Trunk, code: u16) {
    let mut out = trunk.out.borrow_mut();
    if out.unsent() == 0 {
        trunk.writing.control(&mut out.bytes, Op::Close, &code.to_be_bytes());
        trunk.farewell.set(true);
    }
}

/// Reads straight into a message of which `left` bytes are missing; how many came.
fn poll_read_into(
    stream: &mut Stream,
    cx: &mut Context<'_>,
    body: &mut BytesMut,
    left: usize,
) -> Poll<io::Result<usize>> {
    let room = left.min(LONG_READ_BYTES);
    body.reserve(room);
    let mut limited = body.limit(room);
    let read = std::pin::pin!(stream.read_buf(&mut limited));
    read.poll(cx)
}
