//! Starts the gateway's threads, reloads their configuration, and stops them gracefully.
//!
//! Each serving thread has a single-threaded runtime and its own listening socket on the same
//! address (SO_REUSEPORT; `runtime/sockets.rs`), so that the system distributes connections. One
//! more thread polls the upstreams and serves the admin and health addresses.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use settings::diff::Change;
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::access_log::write as access_log_writer;
use crate::admin;
use crate::admin::control::ControlSocket;
use crate::admin::{Pages, Phase};
use crate::cache::index::Index;
use crate::cache::redis::heartbeat::Heartbeat;
use crate::cache::redis::invalidation_bus::InvalidationBus;
use crate::config::Config;
use crate::downstream::thread::{ListenAddress, Thread};
use crate::io::background::BackgroundThread;
use crate::io::random::random_seed;
use crate::runtime::error::Error;
use crate::runtime::quota::QuotaSync;
use crate::state::process::Outcome;
use crate::state::snapshot::Snapshot;
use crate::subscribe::feeds::Feeds;
use crate::trace::export as span_exporter;
use crate::upstream::connector::Connector;
use crate::upstream::watch::Watcher;

pub(crate) mod error;
pub(crate) mod quota;
mod sockets;
#[cfg(test)]
mod tests;

pub use sockets::Sockets;

/// Pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which idle connections are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the wait for the first heads, at start and after a reload.
const FIRST_HEADS_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of the wait until all threads use a new configuration. A thread switches between two
/// events of its loop.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a wait checks its condition.
const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A gateway that serves. Dropping it without [`Gateway::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Gateway {
    /// Address for clients, with the actual port if port 0 was configured. If clients are served
    /// over TLS only, the address equals [`Gateway::listen_tls`].
    pub listen: SocketAddr,
    /// Address for clients over TLS.
    pub listen_tls: Option<SocketAddr>,
    /// Address of metrics and status.
    pub admin: Option<SocketAddr>,
    /// Address of health, readiness and metrics.
    pub health: Option<SocketAddr>,
    /// Copies of the listening sockets, for the process that replaces this one.
    sockets: Sockets,
    phase: watch::Sender<Phase>,
    /// The snapshot that serving threads use for new requests.
    served: watch::Sender<NumberedSnapshot>,
    /// The snapshot whose upstreams the watch thread polls.
    followed: watch::Sender<NumberedSnapshot>,
    /// Number of the snapshot that each serving thread uses.
    adopted: Arc<[AtomicU64]>,
    threads: Vec<JoinHandle<()>>,
    watcher: JoinHandle<()>,
    /// The writers of access logs and the exporters of spans. A replaced one ends once no request
    /// uses its configuration any more. Only reloads and the stop lock the list.
    background: Mutex<Vec<BackgroundThread>>,
}

/// A snapshot with its sequence number.
#[derive(Clone)]
struct NumberedSnapshot {
    number: u64,
    snapshot: Arc<Snapshot>,
}

impl std::fmt::Debug for NumberedSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NumberedSnapshot").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Binds the addresses, starts all threads, and returns once it can serve.
    ///
    /// # Errors
    /// [`Error::Listen`] if an address cannot be bound; [`Error::Thread`] if a thread cannot be
    /// started; [`Error::AccessLog`] and [`Error::Quotas`] if their file cannot be written.
    pub fn start(config: Config) -> Result<Gateway, Error> {
        Gateway::start_on(config, Sockets::default(), None)
    }

    /// Starts a gateway that takes over the sockets of another process. The gateway closes
    /// inherited sockets whose address is not configured. It uses `index` as another cache tier.
    ///
    /// # Errors
    /// The same errors as [`Gateway::start`].
    pub fn start_on(
        config: Config,
        inherited: Sockets,
        index: Option<Arc<dyn Index>>,
    ) -> Result<Gateway, Error> {
        let bound = sockets::bind(&config, inherited)?;
        let (listen, listen_tls) = (bound.listen, bound.listen_tls);
        let (admin, health) = (bound.admin_address, bound.health_address);
        let snapshot = Snapshot::new(config, Vec::new());
        if let Some(index) = index {
            snapshot.process.set_index(index);
        }
        let mut background = Vec::new();
        if let Some(queues) = &snapshot.access_log {
            let writer = access_log_writer::start(Arc::clone(queues));
            background.push(writer.map_err(|source| Error::AccessLog { source })?);
        }
        if let Some(queues) = &snapshot.spans {
            let exporter = span_exporter::start(Arc::clone(queues));
            background.push(exporter.map_err(|source| Error::Thread { source })?);
        }
        if let (Some(quotas), Some(quota)) = (&snapshot.quotas, &snapshot.config.quota)
            && !quota::write(&quotas.ledger, &quota.file)
        {
            return Err(Error::Quotas { file: quota.file.clone() });
        }
        let (phase, _) = watch::channel(Phase::Serving);
        let numbered = NumberedSnapshot { number: 0, snapshot: Arc::clone(&snapshot) };
        let (followed, _) = watch::channel(numbered.clone());
        let (served, _) = watch::channel(numbered);
        let adopted: Arc<[AtomicU64]> = bound.clients.iter().map(|_| AtomicU64::new(0)).collect();
        let (seed, feeds) = (random_seed(), Arc::<Feeds>::default());
        let ready = Arc::new(AtomicBool::new(false));
        let watcher = {
            let task = WatchTask {
                snapshots: followed.subscribe(),
                phase: phase.subscribe(),
                ready: Arc::clone(&ready),
                admin: bound.admin,
                health: bound.health,
            };
            spawn_thread("weir-watch", move |runtime| runtime.block_on(task.run()))?
        };
        wait_for_heads(&snapshot);
        let start = |(index, sockets): (usize, Vec<(ListenAddress, Socket)>)| {
            let task = ServeTask {
                snapshots: served.subscribe(),
                adopted: Arc::clone(&adopted),
                phase: phase.subscribe(),
                index,
                seed,
                feeds: Arc::clone(&feeds),
                sockets,
            };
            spawn_thread(&format!("weir-{index}"), move |runtime| runtime.block_on(task.run()))
        };
        let threads = bound.clients.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        ready.store(true, Ordering::Release);
        let sockets = bound.copies;
        Ok(Gateway {
            listen,
            listen_tls,
            admin,
            health,
            sockets,
            phase,
            followed,
            served,
            adopted,
            threads,
            watcher,
            background: Mutex::new(background),
        })
    }

    /// Applies a new configuration to all new requests and returns the changes. Requests in flight
    /// keep their configuration. Returns once every thread uses the new one.
    ///
    /// Calls of this function must not overlap.
    pub fn reload(&self, config: Config) -> Vec<Change> {
        let NumberedSnapshot { number, snapshot: previous } = self.served.borrow().clone();
        let changes = previous.config.changes_to(&config);
        let snapshot = previous.reload(config);
        self.follow_access_log(&previous, &snapshot);
        self.follow_tracing(&previous, &snapshot);
        let numbered = NumberedSnapshot { number: number + 1, snapshot: Arc::clone(&snapshot) };
        // The serving threads switch before the watch thread. Once the watch thread stops polling
        // the former upstreams, their known heads become outdated, and new calls must not use these
        // heads.
        self.served.send_replace(numbered.clone());
        let is_adopted = |thread: &AtomicU64| thread.load(Ordering::Acquire) > number;
        wait_until(ADOPT_TIMEOUT, || self.adopted.iter().all(is_adopted));
        self.followed.send_replace(numbered);
        wait_for_heads(&snapshot);
        let changed_keys = changes.iter().map(ToString::to_string).collect();
        snapshot.process.record_reload(Outcome::Applied { changes: changed_keys });
        changes
    }

    /// Starts a writer if the next snapshot has another access log.
    fn follow_access_log(&self, previous: &Snapshot, next: &Snapshot) {
        let is_unchanged = match (&previous.access_log, &next.access_log) {
            (Some(previous), Some(next)) => Arc::ptr_eq(previous, next),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let Some(queues) = next.access_log.as_ref().filter(|_| !is_unchanged) else { return };
        match access_log_writer::start_anyway(Arc::clone(queues)) {
            Ok(writer) => self.add_background(writer),
            Err(error) => tracing::error!(%error, "the access log has no thread to write it"),
        }
    }

    /// Starts an exporter if the next snapshot has other settings of tracing.
    fn follow_tracing(&self, previous: &Snapshot, next: &Snapshot) {
        let Some(queues) = &next.spans else { return };
        if previous.spans.as_ref().is_some_and(|previous| Arc::ptr_eq(previous, queues)) {
            return;
        }
        match span_exporter::start(Arc::clone(queues)) {
            Ok(exporter) => self.add_background(exporter),
            Err(error) => tracing::error!(%error, "spans have no thread to send them"),
        }
    }

    /// Adds a thread, and removes those that have ended.
    fn add_background(&self, thread: BackgroundThread) {
        let mut background = self.background.lock();
        background.retain(|thread| !thread.has_ended());
        background.push(thread);
    }

    /// Records a refused reload for status and metrics. The reason is public, so it must not hold a
    /// secret.
    pub fn refuse_reload(&self, reason: &str) {
        let outcome = Outcome::Refused { reason: reason.to_owned() };
        self.served.borrow().snapshot.process.record_reload(outcome);
    }

    /// Records a failed hand-over to another process, for status and metrics.
    pub fn refuse_upgrade(&self, reason: &str) {
        self.served.borrow().snapshot.process.record_failed_upgrade(reason);
    }

    /// Returns the configuration in use.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.served.borrow().snapshot.config)
    }

    /// Returns copies of the listening sockets, for the process that replaces this one.
    ///
    /// # Errors
    /// If the system has no file descriptor left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        self.sockets.try_clone()
    }

    /// Stops gracefully. Reports that it is not ready, waits for `drain_delay`, stops accepting
    /// connections, waits for requests in flight until the drain deadline, then closes the
    /// remaining connections.
    pub fn stop(self) {
        let delay = self.config().server.drain_delay;
        if !delay.is_zero() {
            self.phase.send_replace(Phase::Leaving);
            wait_until(delay, || false);
        }
        self.end(Phase::Draining);
    }

    /// Stops gracefully after another process has begun to serve the same sockets. The other
    /// process accepts the connections in their backlogs.
    pub fn stop_replaced(self) {
        self.end(Phase::Replaced);
    }

    fn end(self, phase: Phase) {
        // While a copy is open, the system would accept connections that no process serves.
        drop(self.sockets);
        self.phase.send_replace(phase);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a serving thread ended in a panic");
            }
        }
        self.phase.send_replace(Phase::Stopped);
        if self.watcher.join().is_err() {
            tracing::error!("the watch thread ended in a panic");
        }
        self.background.into_inner().into_iter().for_each(BackgroundThread::stop);
    }
}

/// Waits until each chain has a head and a healthy upstream, at most for [`FIRST_HEADS_TIMEOUT`],
/// so that the first calls go to an upstream with a known state.
fn wait_for_heads(snapshot: &Snapshot) {
    let has_healthy_head = |chain: usize| {
        snapshot.chains[chain].view.load().head.is_some() && snapshot.any_healthy(chain)
    };
    wait_until(FIRST_HEADS_TIMEOUT, || (0..snapshot.chains.len()).all(has_healthy_head));
}

/// Waits until `condition` returns true, at most for `limit`.
fn wait_until(limit: Duration, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + limit;
    while !condition() {
        let remaining = deadline.saturating_duration_since(std::time::Instant::now());
        if remaining.is_zero() {
            return;
        }
        std::thread::park_timeout(remaining.min(WAIT_POLL_INTERVAL));
    }
}

fn spawn_thread(
    name: &str,
    body: impl FnOnce(LocalRuntime) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let thread_error = |source| Error::Thread { source };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // A local runtime cannot move between threads, so its own thread builds it.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => body(runtime),
                Err(error) => tracing::error!(%error, "cannot start an event loop"),
            }
        })
        .map_err(thread_error)
}

/// The thread that polls upstreams and serves the admin and health addresses.
struct WatchTask {
    snapshots: watch::Receiver<NumberedSnapshot>,
    phase: watch::Receiver<Phase>,
    ready: Arc<AtomicBool>,
    admin: Option<Socket>,
    health: Option<Socket>,
}

impl WatchTask {
    async fn run(mut self) {
        let mut watch = Watcher::default();
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
        watch.follow(&snapshot.topology, &snapshot.on_event());
        // Each new configuration replaces the bus. The bus ends when this function returns.
        let mut _bus = InvalidationBus::start(&snapshot.topology, snapshot.redis.as_ref());
        let mut quota_sync = QuotaSync::start(&snapshot);
        let mut heartbeat = Heartbeat::start(&snapshot.topology, &snapshot.gateways);
        // The name of the socket is published at the admin address.
        let control_socket = self.admin.as_ref().and_then(|_| ControlSocket::open());
        if let Some(control_socket) = &control_socket {
            snapshot.process.set_control_socket(control_socket.name().to_owned());
        }
        let (publish, published) = watch::channel(snapshot);
        let sockets = [(Pages::Admin, self.admin.take()), (Pages::Health, self.health.take())];
        let sockets = sockets.into_iter().filter_map(|(pages, socket)| Some((pages, socket?)));
        let start = |(pages, socket): (Pages, Socket)| {
            let listener = TcpListener::from_std(socket.into())
                .inspect_err(|error| tracing::error!(%error, ?pages, "cannot serve an address"))
                .ok()?;
            let lifecycle =
                admin::Lifecycle { ready: self.ready.clone(), phase: self.phase.clone() };
            let serve = admin::serve(pages, listener, published.clone(), lifecycle);
            Some(tokio::task::spawn_local(serve))
        };
        let mut page_tasks: Vec<_> = sockets.filter_map(start).collect();
        if let Some(control_socket) = control_socket {
            page_tasks.push(tokio::task::spawn_local(control_socket.serve(published.clone())));
        }
        loop {
            tokio::select! {
                changed = self.snapshots.changed() => {
                    if changed.is_err() {
                        // The gateway was dropped, so the thread stops too.
                        return;
                    }
                    let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
                    watch.follow(&snapshot.topology, &snapshot.on_event());
                    _bus = InvalidationBus::start(&snapshot.topology, snapshot.redis.as_ref());
                    quota_sync = QuotaSync::start(&snapshot);
                    if let Some(heartbeat) = heartbeat.take() {
                        heartbeat.replace(&snapshot.config);
                    }
                    heartbeat = Heartbeat::start(&snapshot.topology, &snapshot.gateways);
                    publish.send_replace(snapshot);
                }
                changed = self.phase.changed() => {
                    let phase = *self.phase.borrow_and_update();
                    if changed.is_err() || phase == Phase::Stopped {
                        if let Some(quota_sync) = quota_sync {
                            quota_sync.finish().await;
                        }
                        if let Some(heartbeat) = heartbeat {
                            heartbeat.leave().await;
                        }
                        return;
                    }
                    // The other process serves status and metrics from now on.
                    if phase == Phase::Replaced {
                        page_tasks.drain(..).for_each(|task| task.abort());
                    }
                }
            }
        }
    }
}

/// A serving thread.
struct ServeTask {
    snapshots: watch::Receiver<NumberedSnapshot>,
    /// Number of the snapshot that each serving thread uses.
    adopted: Arc<[AtomicU64]>,
    phase: watch::Receiver<Phase>,
    index: usize,
    /// Seed of the threads' random numbers.
    seed: u64,
    feeds: Arc<Feeds>,
    /// At least one socket per address. There are more if the process inherited more sockets than
    /// it has threads.
    sockets: Vec<(ListenAddress, Socket)>,
}

impl ServeTask {
    async fn run(mut self) {
        let listeners = self.sockets.drain(..).map(|(listen_address, socket)| {
            TcpListener::from_std(socket.into()).map(|listener| (listen_address, listener))
        });
        let listeners: Vec<(ListenAddress, TcpListener)> = match listeners.collect() {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::error!(%error, "cannot serve clients");
                return;
            }
        };
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
        let thread = Thread::new(snapshot, self.index, self.seed, &self.feeds);
        tokio::task::spawn_local(Rc::clone(&thread).relieve_memory());
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        let next_listener = Cell::new(0);
        loop {
            tokio::select! {
                (listen_address, accepted) = next_connection(&listeners, &next_listener) => accept(&thread, accepted, listen_address).await,
                _ = sweep.tick() => thread.context().sweep(),
                Ok(()) = self.snapshots.changed() => {}
                _ = self.phase.changed() => {}
            }
            if self.phase.borrow_and_update().is_draining() {
                break;
            }
            self.adopt_newest(&thread);
        }
        // After a replacement the other process accepts the connections in the backlogs.
        if *self.phase.borrow() == Phase::Draining {
            accept_backlog(&thread, &listeners).await;
        }
        drop(listeners);
        drain(&thread).await;
    }

    /// Uses the newest snapshot for new requests.
    fn adopt_newest(&mut self, thread: &Thread) {
        let number = self.adopted[self.index].load(Ordering::Relaxed);
        let numbered = self.snapshots.borrow_and_update().clone();
        if numbered.number == number {
            return;
        }
        thread.reload(numbered.snapshot);
        self.adopted[self.index].store(numbered.number, Ordering::Release);
    }
}

/// Waits for open connections to end, until the drain deadline.
async fn drain(thread: &Thread) {
    thread.begin_drain();
    let (linger, deadline) = {
        let cx = thread.context();
        let config = &cx.snapshot.config;
        let now = Instant::now();
        (
            now + config.server.drain_linger.min(config.server.drain_deadline),
            now + config.server.drain_deadline,
        )
    };
    let mut lingers = true;
    while thread.connection_count() > 0 && Instant::now() < deadline {
        if lingers && Instant::now() >= linger {
            lingers = false;
            thread.close_idle();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let open_connections = thread.connection_count();
    if open_connections > 0 {
        tracing::warn!(
            left = open_connections,
            "drain deadline passed; closing the remaining connections"
        );
    }
}

type Accepted = io::Result<(TcpStream, SocketAddr)>;

/// Accepts the next connection. The listeners take turns, so that a flood at one does not block the
/// others.
async fn next_connection(
    listeners: &[(ListenAddress, TcpListener)],
    next_listener: &Cell<usize>,
) -> (ListenAddress, Accepted) {
    std::future::poll_fn(|cx| {
        for offset in 0..listeners.len() {
            let index = (next_listener.get() + offset) % listeners.len();
            let (listen_address, listener) = &listeners[index];
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                next_listener.set(index + 1);
                return Poll::Ready((*listen_address, accepted));
            }
        }
        Poll::Pending
    })
    .await
}

/// Accepts the connections in the backlogs. Closing the sockets would reset these connections.
async fn accept_backlog(thread: &Rc<Thread>, listeners: &[(ListenAddress, TcpListener)]) {
    for (listen_address, listener) in listeners {
        while let Some(accepted @ Ok(_)) = listener.accept().now_or_never() {
            accept(thread, accepted, *listen_address).await;
        }
    }
}

async fn accept(thread: &Rc<Thread>, accepted: Accepted, listen_address: ListenAddress) {
    match accepted {
        Ok((stream, peer)) => {
            let cx = thread.context();
            let config = &cx.snapshot.config;
            let connections_max = config.downstream.connections_max.div_ceil(config.server.threads);
            if thread.connection_count() >= connections_max {
                // A client can handle a closed connection better than a response that never comes.
                cx.counters.connections_refused.add(1);
                return;
            }
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "client left before it was served");
                return;
            }
            thread.accept_tcp(stream, peer.ip().to_canonical(), listen_address);
        }
        Err(error) => {
            // The pause keeps a lack of file descriptors from becoming a busy loop.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// A gateway on the caller's own runtime, for simulations in virtual time: no threads, no sockets.
pub mod simulated {
    use super::{Arc, Config, Connector, IpAddr, Rc, Snapshot, Thread, Watcher};
    use crate::upstream::connector::MemoryConnector;
    use tokio::io::DuplexStream;

    /// Buffer of each direction of a stream in memory, in bytes.
    const STREAM_BYTES: usize = 256 * 1024;

    /// The gateway. Must be made and used within a `tokio` local runtime.
    pub struct Simulation {
        thread: Rc<Thread>,
        _watch: Watcher,
    }

    impl Simulation {
        /// Starts polling the upstreams. `connectors` holds one connector per upstream, in the
        /// order of the configuration.
        pub fn start(config: Config, connectors: Vec<MemoryConnector>, seed: u64) -> Simulation {
            let connectors = connectors.into_iter().map(Connector::Memory).collect();
            let snapshot = Snapshot::new(config, connectors);
            let mut watch = Watcher::default();
            watch.follow(&snapshot.topology, &snapshot.on_event());
            Simulation { thread: Thread::new(snapshot, 0, seed, &Arc::default()), _watch: watch }
        }

        /// Connects a client and returns its end of the stream.
        pub fn connect(&self, client: IpAddr) -> DuplexStream {
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            self.thread.accept(ours, client);
            theirs
        }

        /// Returns the state that `/status` of the admin address prints.
        pub fn status(&self) -> crate::admin::status::Status {
            crate::admin::status::Status::of(&self.thread.context().snapshot)
        }

        /// Returns the height of the served head of the first chain.
        pub fn head(&self) -> Option<u64> {
            self.thread.context().snapshot.chains[0].view.load().head.map(|head| head.number)
        }
    }

    impl std::fmt::Debug for Simulation {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Simulation").finish_non_exhaustive()
        }
    }
}
