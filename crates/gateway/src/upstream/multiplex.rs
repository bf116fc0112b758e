//! The trunks of one thread to one upstream: which one a call takes, when one is opened, and when
//! the way is left alone for a while.
//!
//! Calls with large answers have trunks of their own, so that small answers need not wait behind
//! them. A call never waits for a connection where the upstream has an HTTP address as well: it
//! goes there at once. What a trunk does is `trunk.rs`.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::call::call_bytes;

use crate::call::request::UpstreamRequest;
use crate::config::Config;
use crate::config::upstream::Upstream;
use crate::io::websocket::handshake::{Refusal, UpgradeRequest};
use crate::metrics::counters::UpstreamCounters;
use crate::upstream::dial::{Dial, Way};
use crate::upstream::stream::Stream;
use crate::upstream::trunk::{Loss, Notice, Settings, Trunk};

#[cfg(test)]
mod tests;

/// First rest after failures in a row.
const REST_MIN: Duration = Duration::from_millis(50);
/// Longest rest where the upstream has no other address: its health decides about the rest.
const REST_ALONE_MAX: Duration = Duration::from_secs(1);
/// Longest rest where calls go over HTTP meanwhile.
const REST_MAX: Duration = Duration::from_secs(10);

/// The longest id that a call is sent under (`trunk/table.rs`).
const LONGEST_ID: &[u8] = b"281474976710655";

/// Methods of this weight and above are taken to have large answers.
pub(crate) const LARGE_WEIGHT: u32 = 10;
/// An answer of so many bytes is large: several reads, while small ones are many to a read.
const LARGE_BYTES: usize = 64 * 1024;
/// A large answer lets its method's calls be taken for large ones, until so many were small.
const LARGE_REMEMBERED: u8 = 32;

/// Trunks to one upstream, by the size of answers.
#[derive(Debug)]
pub(crate) struct Multiplex {
    dial: Dial,
    upstream: Upstream,
    response_bytes_max: usize,
    connections_max: usize,
    lanes: [Lane; 2],
    /// Failures in a row, and until when none is tried.
    course: Cell<Course>,
    /// Calls that wait for a trunk.
    waiters: Cell<usize>,
    changed: Notify,
    /// By place of the method, the last one for all unknown: how often it is still to be taken for
    /// one with large answers.
    large: RefCell<Vec<u8>>,
    counts: Arc<UpstreamCounters>,
    closed: Cell<bool>,
}

/// Trunks for answers of one size.
#[derive(Debug, Default)]
struct Lane {
    trunks: RefCell<Vec<Rc<Trunk>>>,
    dialing: Cell<bool>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Course {
    failures: u32,
    rest_until: Option<Instant>,
}

/// Why there is no trunk for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoTrunk;

impl Multiplex {
    /// One thread's trunks to an upstream; none where it has only an HTTP address.
    pub(crate) fn new(
        config: &Config,
        upstream: &Upstream,
        dial: &Dial,
        methods: usize,
        counts: &Arc<UpstreamCounters>,
    ) -> Option<Rc<Multiplex>> {
        upstream.multiplexed()?;
        Some(Rc::new(Multiplex {
            dial: dial.clone(),
            upstream: upstream.clone(),
            response_bytes_max: response_bytes_max(config),
            connections_max: upstream.connections_max.div_ceil(config.server.threads),
            lanes: Default::default(),
            course: Cell::default(),
            waiters: Cell::new(0),
            changed: Notify::new(),
            large: RefCell::new(vec![0; methods + 1]),
            counts: Arc::clone(counts),
            closed: Cell::new(false),
        }))
    }

    /// Whether answers of other sizes are wanted than those that this takes.
    pub(crate) fn fits(&self, config: &Config) -> bool {
        self.response_bytes_max == response_bytes_max(config)
    }

    /// Whether the call is short enough to go over any.
    pub(crate) fn takes(&self, ask: &UpstreamRequest<'_>) -> bool {
        let bytes_max = self.upstream.message_bytes_max.unwrap_or(usize::MAX);
        call_bytes(LONGEST_ID, &ask.name, ask.params.as_deref()) <= bytes_max
    }

    /// A trunk that takes the call now, if there is one. Otherwise one is on its way, if that makes
    /// sense.
    pub(crate) fn trunk(
        self: &Rc<Multiplex>,
        ask: &UpstreamRequest<'_>,
        now: Instant,
    ) -> Option<Rc<Trunk>> {
        let lane = usize::from(self.is_large(ask));
        let found = self.free(lane);
        if found.is_none() {
            self.dial(lane, now);
        }
        found
    }

    /// The same, waiting for one until `deadline`: for upstreams that have no other address.
    ///
    /// # Errors
    /// If there is none by then, or none can be opened.
    pub(crate) async fn wait(
        self: &Rc<Multiplex>,
        ask: &UpstreamRequest<'_>,
        deadline: Instant,
    ) -> Result<Rc<Trunk>, NoTrunk> {
        let lane = usize::from(self.is_large(ask));
        let _waiting = Waiting::begin(&self.waiters);
        let failures = self.course.get().failures;
        loop {
            let changed = self.changed.notified();
            if let Some(trunk) = self.free(lane) {
                return Ok(trunk);
            }
            let has_failed = self.course.get().failures > failures;
            if has_failed || (!self.dial(lane, Instant::now()) && self.lanes[lane].open() == 0) {
                return Err(NoTrunk);
            }
            tokio::time::timeout_at(deadline, changed).await.map_err(|_| NoTrunk)?;
        }
    }

    /// A call is to begin: when the guard is dropped, who waits for room may look, however the call
    /// ended.
    pub(crate) fn leaving(&self) -> Leaving<'_> {
        Leaving(self)
    }

    /// A call was answered with so many bytes.
    pub(crate) fn answered(&self, ask: &UpstreamRequest<'_>, bytes: usize) {
        if self.course.get().failures > 0 {
            self.course.set(Course::default());
        }
        let mut large = self.large.borrow_mut();
        let unknown = large.len() - 1;
        let known = &mut large[ask.row.unwrap_or(unknown)];
        *known = if bytes >= LARGE_BYTES { LARGE_REMEMBERED } else { known.saturating_sub(1) };
    }

    /// Whether a call's answer is expected to be large.
    fn is_large(&self, ask: &UpstreamRequest<'_>) -> bool {
        let large = self.large.borrow();
        large[ask.row.unwrap_or(large.len() - 1)] > 0
            || ask.method.is_some_and(|method| method.weight >= LARGE_WEIGHT)
    }

    fn free(&self, lane: usize) -> Option<Rc<Trunk>> {
        let calls_max = self.upstream.calls_per_connection_max;
        let trunks = self.lanes[lane].trunks.borrow();
        trunks.iter().find(|trunk| trunk.has_room(calls_max)).cloned()
    }

    /// Opens one more trunk, if that is allowed now; whether one is on its way.
    fn dial(self: &Rc<Multiplex>, lane: usize, now: Instant) -> bool {
        let own = &self.lanes[lane];
        if own.dialing.get() {
            return true;
        }
        let open = self.lanes.iter().map(Lane::open).sum::<usize>();
        // A lane without any may open its first: the bound on both together is at least one each.
        let full = open >= self.connections_max && own.open() > 0;
        let resting = self.course.get().rest_until.is_some_and(|until| now < until);
        if self.closed.get() || full || resting {
            return false;
        }
        own.dialing.set(true);
        self.counts.connections_opened.add(1);
        tokio::task::spawn_local(Rc::clone(self).run(lane));
        true
    }

    /// Opens a trunk and drives it to its end.
    async fn run(self: Rc<Multiplex>, lane: usize) {
        let _dialing = Dialing { multiplex: &self, lane };
        let opened = open(&self.dial, &self.upstream).await;
        let (stream, websocket, read) = match opened {
            Ok(opened) => opened,
            Err(fault) => {
                tracing::debug!(upstream = &*self.upstream.name, %fault, "no connection for many calls");
                self.failed();
                return;
            }
        };
        let settings = Settings {
            response_bytes_max: self.response_bytes_max,
            ping_interval: self.upstream.ping_interval,
            notice: ignored(),
        };
        let (trunk, driver) = Trunk::new(stream, websocket, read, settings);
        if self.closed.get() {
            trunk.retire();
        }
        self.lanes[lane].trunks.borrow_mut().push(Rc::clone(&trunk));
        drop(_dialing);
        let _open = Open { multiplex: &self, lane, trunk: &trunk };
        self.counts.multiplexed_open.add(1);
        let loss = driver.await;
        tracing::debug!(
            upstream = &*self.upstream.name,
            ?loss,
            "a connection for many calls has ended"
        );
        if loss != Loss::Retired {
            self.counts.multiplexed_lost.add(1);
            self.failed();
        }
    }

    /// Leaves the way alone for a while, longer with each failure in a row. Where there is no other
    /// way, one failure is none: upstreams are restarted.
    fn failed(&self) {
        let failures = self.course.get().failures.saturating_add(1);
        let alone = self.upstream.http().is_none();
        let doublings = failures.saturating_sub(if alone { 2 } else { 1 });
        let max = if alone { REST_ALONE_MAX } else { REST_MAX };
        let rest = REST_MIN.saturating_mul(1_u32 << doublings.min(16)).min(max);
        let rests = !alone || failures > 1;
        let rest_until = rests.then(|| Instant::now() + rest);
        self.course.set(Course { failures, rest_until });
    }

    /// Closes what was idle for too long, but for the first of each lane.
    pub(crate) fn sweep(&self, now: Instant) {
        for lane in &self.lanes {
            let trunks = lane.trunks.borrow();
            let more = trunks.iter().filter(|trunk| trunk.is_open()).skip(1);
            more.filter(|trunk| trunk.is_idle(now, self.upstream.idle_timeout))
                .for_each(|trunk| trunk.retire());
        }
    }

    /// Closes all trunks after their calls.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for lane in &self.lanes {
            lane.trunks.borrow().iter().for_each(|trunk| trunk.retire());
        }
    }
}

impl Lane {
    fn open(&self) -> usize {
        self.trunks.borrow().iter().filter(|trunk| trunk.is_open()).count()
    }
}

/// A trunk on its way, until this is dropped.
struct Dialing<'a> {
    multiplex: &'a Multiplex,
    lane: usize,
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        self.multiplex.lanes[self.lane].dialing.set(false);
        self.multiplex.changed.notify_waiters();
    }
}

/// A trunk among the others, until this is dropped.
struct Open<'a> {
    multiplex: &'a Multiplex,
    lane: usize,
    trunk: &'a Rc<Trunk>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let lane = &self.multiplex.lanes[self.lane];
        lane.trunks.borrow_mut().retain(|own| !Rc::ptr_eq(own, self.trunk));
        self.multiplex.counts.multiplexed_open.subtract_one();
        self.multiplex.changed.notify_waiters();
    }
}

/// Counts a call that waits, until it is dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn begin(waiters: &'a Cell<usize>) -> Waiting<'a> {
        waiters.set(waiters.get() + 1);
        Waiting(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Nobody has subscribed to anything.
pub(crate) fn ignored() -> Notice {
    Rc::new(|_| {})
}

/// The longest answer that any group takes: which group a call is of, a connection does not know.
fn response_bytes_max(config: &Config) -> usize {
    config.groups.iter().map(|group| group.response_bytes_max).max().unwrap_or(0)
}

/// A stream that carries many calls, whether it is a WebSocket, and what was read behind the
/// handshake.
pub(crate) type Opened = (Stream, bool, Vec<u8>);

/// Opens one to the upstream, within its connect timeout.
///
/// # Errors
/// What the system or TLS says, or why the upstream does not open a WebSocket.
pub(crate) async fn open(dial: &Dial, upstream: &Upstream) -> io::Result<Opened> {
    let Some((url, _)) = upstream.multiplexed() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let opening = async {
        let mut stream = dial.connect(upstream, Way::Multiplexed).await?;
        if !url.is_websocket() {
            return Ok((stream, false, Vec::new()));
        }
        let opening = UpgradeRequest::new().ok_or_else(|| io::Error::other("no randomness"))?;
        let mut head = request_head(upstream);
        opening.write(&mut head);
        stream.write_all(&head).await?;
        stream.flush().await?;
        let mut read = Vec::with_capacity(1024);
        loop {
            if stream.read_buf(&mut read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match opening.check_response(&read) {
                Ok(None) => {}
                Ok(Some(head_bytes)) => {
                    read.drain(..head_bytes);
                    return Ok((stream, true, read));
                }
                Err(Refusal::Status { status, .. }) => {
                    let message = format!("the upstream answers {status} in place of a websocket");
                    return Err(io::Error::other(message));
                }
                Err(Refusal::Malformed) => {
                    return Err(io::Error::other(
                        "the upstream does not answer as a websocket does",
                    ));
                }
            }
        }
    };
    let opened = tokio::time::timeout(upstream.connect_timeout, opening).await;
    opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The request for a WebSocket, up to the headers of the handshake.
fn request_head(upstream: &Upstream) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let Some((url, _)) = upstream.multiplexed() else { return head };
    let mut line = |parts: &[&[u8]]| {
        parts.iter().for_each(|part| head.extend_from_slice(part));
        head.extend_from_slice(b"\r\n");
    };
    line(&[b"GET ", url.target().as_bytes(), b" HTTP/1.1"]);
    line(&[b"Host: ", url.authority().as_bytes()]);
    if let Some(authorization) = url.authorization() {
        line(&[b"Authorization: ", authorization.as_bytes()]);
    }
    for (name, value) in &upstream.headers {
        let own = *name == http::header::AUTHORIZATION && url.authorization().is_some();
        if !own {
            line(&[name.as_str().as_bytes(), b": ", value.as_bytes()]);
        }
    }
    head
}

/// A call over one of the connections; it is dropped after the call.
pub(crate) struct Leaving<'a>(&'a Multiplex);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // All of them: the first may wait for a connection of the other kind.
        if self.0.waiters.get() > 0 {
            self.0.changed.notify_waiters();
        }
    }
}
