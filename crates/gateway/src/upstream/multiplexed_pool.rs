//! The multiplexed connections of one thread to one upstream. This file chooses the connection for
//! a call, opens connections, and backs off after failures.
//!
//! A multiplexed connection is a WebSocket or a local socket. Calls with large responses use
//! separate connections, so that small responses do not wait behind large ones. If the upstream has
//! an HTTP address too, a call never waits for a connection but goes over HTTP at once.
//! `multiplexed_connection.rs` implements one connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use settings::url::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use wire::call::call_bytes;
use wire::websocket::handshake::{Refusal, UpgradeRequest};

use crate::call::{CountGuard, UpstreamRequest};
use crate::config::Config;
use crate::config::upstream::Upstream;
use crate::metrics::counters::UpstreamCounters;
use crate::upstream::connector::{Connector, DialGuard, Stream};
use crate::upstream::multiplexed_connection::{
    CloseReason, Driver, MultiplexedConnection, OnNotification, Settings,
};
use crate::upstream::request_head::build_request_head;

#[cfg(test)]
mod tests;

/// Initial backoff. Each further consecutive failure doubles the backoff.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest backoff if the upstream has no other address. Health checks handle longer outages.
const BACKOFF_WITHOUT_HTTP_MAX: Duration = Duration::from_secs(1);
/// Longest backoff if calls can go over HTTP during the backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The longest id of a call: 2^48 - 1 (`multiplexed_connection/table.rs`).
const ID_LONGEST: &[u8] = b"281474976710655";

/// Methods of at least this weight are expected to have large responses. The weight is the relative
/// cost of a method.
pub(crate) const LARGE_WEIGHT: u32 = 10;
/// Minimum bytes of a large response. A large response needs several reads, while one read returns
/// many small responses.
const LARGE_BYTES: usize = 64 * 1024;
/// After a large response, the gateway expects further large responses of the same method. The
/// expectation ends after this many consecutive small responses of the method.
const LARGE_DECAY: u8 = 32;

/// Multiplexed connections to one upstream, by the size of responses.
pub(crate) struct MultiplexedPool {
    connector: Connector,
    upstream: Upstream,
    /// Maximum bytes of a response. Groups have different limits; the largest applies.
    response_bytes_max: usize,
    /// Maximum number of open connections of this thread.
    connections_max: usize,
    /// The connections for small responses (index 0) and for large responses (index 1).
    size_classes: [SizeClass; 2],
    /// The consecutive failures and the backoff after them.
    failures: Cell<Failures>,
    /// Number of calls that wait for a connection.
    waiters: Cell<usize>,
    /// Notified when a connection is opened or closed, or when a call ends.
    changed: Notify,
    /// For each method, the number of consecutive small responses after which the gateway no longer
    /// expects large responses; 0 if it expects small responses. The index is the method's row in
    /// the method table. The last element is for all unknown methods.
    small_responses_left: RefCell<Vec<u8>>,
    /// This thread's counters of the upstream.
    counts: Arc<UpstreamCounters>,
    /// True after [`MultiplexedPool::close`].
    closed: Cell<bool>,
}

/// Connections for responses of one size.
#[derive(Default)]
struct SizeClass {
    connections: RefCell<Vec<Rc<MultiplexedConnection>>>,
    /// True while a connection is being opened.
    dialing: Cell<bool>,
}

/// Failures to open or keep connections.
#[derive(Clone, Copy, Default)]
struct Failures {
    /// Number of failures since the last response.
    consecutive: u32,
    /// No connection is opened before this time; `None` if there is no backoff.
    backoff_until: Option<Instant>,
}

/// The error if no connection for a call is available in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoConnection;

impl MultiplexedPool {
    /// Returns one thread's pool for an upstream; `None` if the upstream has only an HTTP address.
    /// `method_count` is the number of rows in the chain's method table.
    pub(crate) fn new(
        config: &Config,
        upstream: &Upstream,
        connector: &Connector,
        method_count: usize,
        counts: &Arc<UpstreamCounters>,
    ) -> Option<Rc<MultiplexedPool>> {
        upstream.multiplexed()?;
        Some(Rc::new(MultiplexedPool {
            connector: connector.clone(),
            upstream: upstream.clone(),
            response_bytes_max: response_bytes_max(config),
            connections_max: upstream.connections_max.div_ceil(config.server.threads),
            size_classes: Default::default(),
            failures: Cell::default(),
            waiters: Cell::new(0),
            changed: Notify::new(),
            small_responses_left: RefCell::new(vec![0; method_count + 1]),
            counts: Arc::clone(counts),
            closed: Cell::new(false),
        }))
    }

    /// Returns true if the pool has the response size limit of `config`.
    pub(crate) fn has_settings_of(&self, config: &Config) -> bool {
        self.response_bytes_max == response_bytes_max(config)
    }

    /// Returns true if the call is short enough for the upstream's `message_bytes_max`.
    pub(crate) fn accepts(&self, request: &UpstreamRequest<'_>) -> bool {
        let bytes_max = self.upstream.message_bytes_max.unwrap_or(usize::MAX);
        call_bytes(ID_LONGEST, &request.method_name, request.params.as_deref()) <= bytes_max
    }

    /// Returns a connection that can take the call now. If there is none, returns `None`, and
    /// starts to open a connection if the limits and the backoff allow that.
    pub(crate) fn get(
        self: &Rc<MultiplexedPool>,
        request: &UpstreamRequest<'_>,
        now: Instant,
    ) -> Option<Rc<MultiplexedConnection>> {
        let class = self.class_of(request);
        let connection = self.find_free(class);
        if connection.is_none() {
            self.start_dial(class, now);
        }
        connection
    }

    /// Waits until `deadline` for a connection. Used if the upstream has no other address.
    ///
    /// # Errors
    /// [`NoConnection`] if the deadline passes or no connection can be opened.
    pub(crate) async fn wait(
        self: &Rc<MultiplexedPool>,
        request: &UpstreamRequest<'_>,
        deadline: Instant,
    ) -> Result<Rc<MultiplexedConnection>, NoConnection> {
        let class = self.class_of(request);
        let _waiting = CountGuard::new(&self.waiters);
        let failures = self.failures.get().consecutive;
        loop {
            let changed = self.changed.notified();
            if let Some(connection) = self.find_free(class) {
                return Ok(connection);
            }
            // The wait is hopeless if a connection has failed since the wait began. It is also
            // hopeless if no connection is open and no connection may be opened.
            let has_failed = self.failures.get().consecutive > failures;
            let is_hopeless = has_failed
                || (!self.start_dial(class, Instant::now())
                    && self.size_classes[class].open_count() == 0);
            if is_hopeless {
                return Err(NoConnection);
            }
            tokio::time::timeout_at(deadline, changed).await.map_err(|_| NoConnection)?;
        }
    }

    /// Returns a guard to hold during one call. When it is dropped, the waiting calls check again
    /// for a free connection.
    pub(crate) fn call_guard(&self) -> CallGuard<'_> {
        CallGuard(self)
    }

    /// Records the size of a response and clears the failures, because the connection works.
    pub(crate) fn record_response(&self, request: &UpstreamRequest<'_>, bytes: usize) {
        if self.failures.get().consecutive > 0 {
            self.failures.set(Failures::default());
        }
        let mut by_method = self.small_responses_left.borrow_mut();
        let unknown_methods_row = by_method.len() - 1;
        let small_left = &mut by_method[request.row_index.unwrap_or(unknown_methods_row)];
        *small_left = if bytes >= LARGE_BYTES { LARGE_DECAY } else { small_left.saturating_sub(1) };
    }

    /// Returns the index of the call's size class: 1 if the call is expected to have a large
    /// response, else 0.
    fn class_of(&self, request: &UpstreamRequest<'_>) -> usize {
        let by_method = self.small_responses_left.borrow();
        let unknown_methods_row = by_method.len() - 1;
        let small_left = by_method[request.row_index.unwrap_or(unknown_methods_row)];
        usize::from(small_left > 0 || request.weight() >= LARGE_WEIGHT)
    }

    /// Returns a connection of the size class with this index, if one can take a call now.
    fn find_free(&self, class: usize) -> Option<Rc<MultiplexedConnection>> {
        let calls_max = self.upstream.calls_per_connection_max;
        let connections = self.size_classes[class].connections.borrow();
        connections.iter().find(|connection| connection.can_take(calls_max)).cloned()
    }

    /// Starts to open one more connection if the limits and the backoff allow that. Returns true if
    /// a connection is being opened.
    fn start_dial(self: &Rc<MultiplexedPool>, class: usize, now: Instant) -> bool {
        let size_class = &self.size_classes[class];
        if size_class.dialing.get() {
            return true;
        }
        let open_connections = self.size_classes.iter().map(SizeClass::open_count).sum::<usize>();
        // A size class without a connection may always open a connection, even beyond the limit for
        // both size classes.
        let is_full = open_connections >= self.connections_max && size_class.open_count() > 0;
        let is_backing_off = self.failures.get().backoff_until.is_some_and(|until| now < until);
        if self.closed.get() || is_full || is_backing_off {
            return false;
        }
        size_class.dialing.set(true);
        self.counts.connections_opened.add(1);
        tokio::task::spawn_local(Rc::clone(self).open_and_drive(class));
        true
    }

    /// Opens a connection and runs its driver until the connection ends.
    async fn open_and_drive(self: Rc<MultiplexedPool>, class: usize) {
        let dial_guard = DialGuard::new(&self.size_classes[class].dialing, &self.changed);
        let bytes_max = self.response_bytes_max;
        let opened = open(&self.connector, &self.upstream, bytes_max, Rc::new(|_| {})).await;
        let (connection, driver) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(upstream = &*self.upstream.name, %error, "cannot open a multiplexed connection");
                self.record_failure();
                return;
            }
        };
        if self.closed.get() {
            connection.retire();
        }
        self.size_classes[class].connections.borrow_mut().push(Rc::clone(&connection));
        drop(dial_guard);
        let _open_guard = OpenGuard { pool: &self, class, connection: &connection };
        self.counts.multiplexed_open.add(1);
        let reason = driver.await;
        tracing::debug!(
            upstream = &*self.upstream.name,
            ?reason,
            "a multiplexed connection has ended"
        );
        if reason != CloseReason::Retired {
            self.counts.multiplexed_lost.add(1);
            self.record_failure();
        }
    }

    /// Records a failure and starts a backoff, which doubles with each consecutive failure. If the
    /// upstream has no other address, the first failure starts no backoff, because the upstream may
    /// just have restarted.
    fn record_failure(&self) {
        let failures = self.failures.get().consecutive.saturating_add(1);
        let has_no_http = self.upstream.http().is_none();
        // The number of the failure that starts the first backoff. Only later failures double the
        // backoff.
        let first_backoff_failure = if has_no_http { 2 } else { 1 };
        let doublings = failures.saturating_sub(first_backoff_failure);
        let backoff_max = if has_no_http { BACKOFF_WITHOUT_HTTP_MAX } else { BACKOFF_MAX };
        // The exponent is capped, so that the shift cannot overflow.
        let backoff = BACKOFF_MIN.saturating_mul(1_u32 << doublings.min(16)).min(backoff_max);
        let backs_off = failures >= first_backoff_failure;
        let backoff_until = backs_off.then(|| Instant::now() + backoff);
        self.failures.set(Failures { consecutive: failures, backoff_until });
    }

    /// Closes connections that have been idle for too long, except the first open connection of
    /// each size class.
    pub(crate) fn sweep(&self, now: Instant) {
        for class in &self.size_classes {
            let connections = class.connections.borrow();
            let surplus = connections.iter().filter(|connection| connection.is_open()).skip(1);
            surplus
                .filter(|connection| connection.is_idle(now, self.upstream.idle_timeout))
                .for_each(|connection| connection.retire());
        }
    }

    /// Closes all connections after their calls.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for class in &self.size_classes {
            class.connections.borrow().iter().for_each(|connection| connection.retire());
        }
    }
}

impl SizeClass {
    fn open_count(&self) -> usize {
        self.connections.borrow().iter().filter(|connection| connection.is_open()).count()
    }
}

/// Removes a connection from the pool when it is dropped.
struct OpenGuard<'a> {
    pool: &'a MultiplexedPool,
    /// Index of the connection's size class.
    class: usize,
    connection: &'a Rc<MultiplexedConnection>,
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        let class = &self.pool.size_classes[self.class];
        class.connections.borrow_mut().retain(|other| !Rc::ptr_eq(other, self.connection));
        self.pool.counts.multiplexed_open.subtract_one();
        self.pool.changed.notify_waiters();
    }
}

/// Returns the largest response limit among the groups. Calls of all groups share the connections.
fn response_bytes_max(config: &Config) -> usize {
    config.groups.iter().map(|group| group.response_bytes_max).max().unwrap_or(0)
}

/// Opens a multiplexed connection within the upstream's connect timeout. The caller must run the
/// returned driver.
///
/// # Errors
/// Errors of the system or of TLS, or the refusal of the WebSocket handshake.
pub(crate) async fn open(
    connector: &Connector,
    upstream: &Upstream,
    response_bytes_max: usize,
    on_notification: OnNotification,
) -> io::Result<(Rc<MultiplexedConnection>, Driver)> {
    let (url, _) = upstream.multiplexed().ok_or(io::ErrorKind::Unsupported)?;
    let is_websocket = url.transport() == Transport::WebSocket;
    let opening = async {
        let mut stream =
            connector.connect(upstream.multiplexed(), upstream.connect_timeout).await?;
        let read_ahead = if is_websocket {
            upgrade(&mut stream, build_request_head("GET", url, "", upstream)).await?
        } else {
            Vec::new()
        };
        io::Result::Ok((stream, read_ahead))
    };
    let opened = tokio::time::timeout(upstream.connect_timeout, opening).await;
    let (stream, read_ahead) = opened.map_err(|_| io::ErrorKind::TimedOut)??;
    let ping_interval = upstream.ping_interval;
    let settings = Settings { response_bytes_max, ping_interval, on_notification };
    Ok(MultiplexedConnection::new(stream, is_websocket, read_ahead, settings))
}

/// Performs the WebSocket handshake. `head` holds the request line and the headers that precede the
/// WebSocket headers. Returns the bytes of messages that were read together with the response.
async fn upgrade(stream: &mut Stream, mut head: Vec<u8>) -> io::Result<Vec<u8>> {
    let handshake = UpgradeRequest::random();
    handshake.write(&mut head);
    stream.write_all(&head).await?;
    stream.flush().await?;
    let mut read_ahead = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut read_ahead).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match handshake.check_response(&read_ahead) {
            Ok(None) => {}
            Ok(Some(head_bytes)) => {
                read_ahead.drain(..head_bytes);
                return Ok(read_ahead);
            }
            Err(Refusal::Status { status, .. }) => {
                let message = format!("the WebSocket handshake got status {status}");
                return Err(io::Error::other(message));
            }
            Err(Refusal::Malformed) => {
                let message = "the response to the WebSocket handshake is malformed";
                return Err(io::Error::other(message));
            }
        }
    }
}

/// Held during a call. When it is dropped, the waiting calls check again for a free connection.
pub(crate) struct CallGuard<'a>(&'a MultiplexedPool);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        // All waiting calls are notified, because the first may need a connection of the other size
        // class.
        if self.0.waiters.get() > 0 {
            self.0.changed.notify_waiters();
        }
    }
}
