//! Starts the gateway's threads, brings new configurations to them, and stops them gracefully.
//!
//! One single-threaded runtime per serving thread, each with its own listening socket on the same
//! address (SO_REUSEPORT; `runtime/sockets.rs`), so that the system spreads connections. One more
//! thread follows the upstreams and serves the admin address.

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

use crate::access_log::write::Writer;
use crate::admin;
use crate::admin::Phase;
use crate::cache::index::Index;
use crate::cache::redis::news::News;
use crate::config::Config;
use crate::downstream::thread::{Door, Thread};
use crate::io::random::random_seed;
use crate::runtime::error::Error;
use crate::runtime::quota::Keeper;
use crate::state::process::Outcome;
use crate::state::snapshot::Snapshot;
use crate::subscribe::feeds::Feeds;
use crate::upstream::dial::Dial;
use crate::upstream::watch::Watch;

pub(crate) mod error;
pub(crate) mod quota;
mod sockets;
#[cfg(test)]
mod tests;

pub use sockets::Sockets;

/// Pause after the system has no file descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often pools are swept and a drain is looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the start waits for the upstreams to show their heads before it serves without.
const FIRST_HEADS_WAIT: Duration = Duration::from_secs(2);
/// How long a reload waits for all threads to have taken it. They do between two events.
const TAKEN_WAIT: Duration = Duration::from_secs(2);
/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A gateway that serves. Dropping it without [`Gateway::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Gateway {
    /// Where clients connect; the port is the real one where 0 was asked for. It is
    /// [`Gateway::listen_tls`] where clients are served over TLS only.
    pub listen: SocketAddr,
    /// Where clients connect over TLS.
    pub listen_tls: Option<SocketAddr>,
    /// Where metrics and status are served.
    pub admin: Option<SocketAddr>,
    /// The listening sockets once more, to hand them over to the process that takes its place.
    sockets: Sockets,
    phase: watch::Sender<Phase>,
    /// What requests begin with, and what the watch thread follows.
    served: watch::Sender<Numbered>,
    followed: watch::Sender<Numbered>,
    /// Which snapshot each serving thread has taken.
    taken: Arc<[AtomicU64]>,
    threads: Vec<JoinHandle<()>>,
    watcher: JoinHandle<()>,
    /// The writers of the access log: the present one last. One that a reload has replaced ends by
    /// itself once no request uses its configuration any more. The lock is for reloads, which are
    /// rare.
    access_log: Mutex<Vec<Writer>>,
}

/// One configuration with its state; the number counts them.
#[derive(Clone)]
struct Numbered {
    number: u64,
    snapshot: Arc<Snapshot>,
}

impl std::fmt::Debug for Numbered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbered").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Binds the addresses, starts all threads, and returns once it can serve.
    ///
    /// # Errors
    /// [`Error::Listen`] when an address is taken or not ours; [`Error::Thread`] when the system
    /// gives no thread.
    pub fn start(config: Config) -> Result<Gateway, Error> {
        Gateway::start_on(config, Sockets::default(), None)
    }

    /// The same on the sockets of the process whose place it takes, and with an index as a further
    /// tier of the cache. Sockets of addresses that this configuration does not have are closed.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_on(
        config: Config,
        inherited: Sockets,
        index: Option<Arc<dyn Index>>,
    ) -> Result<Gateway, Error> {
        let bound = sockets::bind(&config, inherited)?;
        let (listen, listen_tls, admin) = (bound.listen, bound.listen_tls, bound.admin_address);
        let snapshot = Snapshot::new(config, Vec::new());
        if let Some(index) = index {
            snapshot.process.with_index(index);
        }
        let access_log = match &snapshot.access_log {
            Some(queues) => {
                let writer = Writer::start(Arc::clone(queues));
                vec![writer.map_err(|source| Error::AccessLog { source })?]
            }
            None => Vec::new(),
        };
        if let (Some(quotas), Some(own)) = (&snapshot.quotas, &snapshot.config.quota)
            && !quota::write(&quotas.ledger, &own.file)
        {
            return Err(Error::Quotas { file: own.file.clone() });
        }
        let (phase, _) = watch::channel(Phase::Serving);
        let numbered = Numbered { number: 0, snapshot: Arc::clone(&snapshot) };
        let (followed, _) = watch::channel(numbered.clone());
        let (served, _) = watch::channel(numbered);
        let taken: Arc<[AtomicU64]> = bound.clients.iter().map(|_| AtomicU64::new(0)).collect();
        let (seed, feeds) = (random_seed(), Arc::<Feeds>::default());
        let ready = Arc::new(AtomicBool::new(false));
        let watcher = {
            let task = WatchTask {
                snapshots: followed.subscribe(),
                phase: phase.subscribe(),
                ready: Arc::clone(&ready),
                admin: bound.admin,
            };
            thread("weir-watch", move |runtime| runtime.block_on(task.run()))?
        };
        wait_for_heads(&snapshot);
        let start = |(index, sockets): (usize, Vec<(Door, Socket)>)| {
            let task = ServeTask {
                snapshots: served.subscribe(),
                taken: Arc::clone(&taken),
                phase: phase.subscribe(),
                index,
                seed,
                feeds: Arc::clone(&feeds),
                sockets,
            };
            thread(&format!("weir-{index}"), move |runtime| runtime.block_on(task.run()))
        };
        let threads = bound.clients.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        ready.store(true, Ordering::Release);
        let sockets = bound.kept;
        let access_log = Mutex::new(access_log);
        Ok(Gateway {
            listen,
            listen_tls,
            admin,
            sockets,
            phase,
            followed,
            served,
            taken,
            threads,
            watcher,
            access_log,
        })
    }

    /// Brings a new configuration into use, whole, for all requests that begin from now on, and
    /// says what it changed. Requests that have begun end under the one that they began with.
    /// Returns once every thread uses it.
    ///
    /// Calls of this function must not overlap.
    pub fn reload(&self, config: Config) -> Vec<Change> {
        let Numbered { number, snapshot: before } = self.served.borrow().clone();
        let changes = before.config.changes_to(&config);
        let snapshot = before.reload(config);
        self.follow_access_log(&before, &snapshot);
        let numbered = Numbered { number: number + 1, snapshot: Arc::clone(&snapshot) };
        // In this order: once the former upstreams are not followed any more, a head may be served
        // that none of them is known to have reached, and nobody may begin to ask them for it.
        self.served.send_replace(numbered.clone());
        let is_taken = |thread: &AtomicU64| thread.load(Ordering::Acquire) > number;
        wait_until(TAKEN_WAIT, || self.taken.iter().all(is_taken));
        self.followed.send_replace(numbered);
        wait_for_heads(&snapshot);
        let told = changes.iter().map(ToString::to_string).collect();
        snapshot.process.reloaded(Outcome::Applied { changes: told });
        changes
    }

    /// Has another access log written, if the new configuration has another.
    fn follow_access_log(&self, before: &Snapshot, after: &Snapshot) {
        let same = match (&before.access_log, &after.access_log) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let mut writers = self.access_log.lock();
        writers.retain(|writer| !writer.has_ended());
        let Some(queues) = after.access_log.as_ref().filter(|_| !same) else { return };
        match Writer::start_anyway(Arc::clone(queues)) {
            Ok(writer) => writers.push(writer),
            Err(error) => tracing::error!(%error, "the access log has no thread to write it"),
        }
    }

    /// Notes, for status and metrics, why there is no new configuration. The one in use stays. The
    /// reason is shown: it may hold no secret.
    pub fn refuse_reload(&self, why: &str) {
        let outcome = Outcome::Refused { why: why.to_owned() };
        self.served.borrow().snapshot.process.reloaded(outcome);
    }

    /// Notes, for the status, that another process could not take this one's place.
    pub fn refuse_upgrade(&self, why: &str) {
        self.served.borrow().snapshot.process.upgrade_failed(why);
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.served.borrow().snapshot.config)
    }

    /// The listening sockets, for the process that is to take this one's place.
    ///
    /// # Errors
    /// When the system gives no further descriptors.
    pub fn sockets(&self) -> io::Result<Sockets> {
        self.sockets.try_clone()
    }

    /// Stops gracefully: tells that it is not ready, waits for `drain_delay`, takes no new
    /// connections, lets begun requests end until the drain deadline, then closes what is left.
    pub fn stop(self) {
        let delay = self.config().server.drain_delay;
        if !delay.is_zero() {
            self.phase.send_replace(Phase::Leaving);
            wait_until(delay, || false);
        }
        self.end(Phase::Draining);
    }

    /// Stops gracefully after another process has begun to serve the same sockets: what waits in
    /// them is the other's.
    pub fn stop_replaced(self) {
        self.end(Phase::Replaced);
    }

    fn end(self, phase: Phase) {
        // While a copy is open, the system would go on taking connections that nobody serves.
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
        for writer in self.access_log.into_inner() {
            writer.stop();
        }
    }
}

/// Waits, within bounds, until each chain has shown a head and has an upstream that is fit, so that
/// the first calls are not sent blindly.
fn wait_for_heads(snapshot: &Snapshot) {
    let fit = |chain: usize| {
        snapshot.chains[chain].view.load().head.is_some() && snapshot.any_healthy(chain)
    };
    wait_until(FIRST_HEADS_WAIT, || (0..snapshot.chains.len()).all(fit));
}

/// Waits until something holds, but no longer than `limit`.
fn wait_until(limit: Duration, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + limit;
    while !holds() {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left.min(LOOK_EVERY));
    }
}

fn thread(
    name: &str,
    body: impl FnOnce(LocalRuntime) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let fail = |source| Error::Thread { source };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // The runtime cannot move between threads, so it is built on its own.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => body(runtime),
                Err(error) => tracing::error!(%error, "cannot start an event loop"),
            }
        })
        .map_err(fail)
}

/// The thread that follows upstreams and serves the admin address.
struct WatchTask {
    snapshots: watch::Receiver<Numbered>,
    phase: watch::Receiver<Phase>,
    ready: Arc<AtomicBool>,
    admin: Option<Socket>,
}

impl WatchTask {
    async fn run(mut self) {
        let mut watch = Watch::default();
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
        watch.follow(&snapshot.topology, &snapshot.on_event());
        // Ends with this function, and is replaced with each configuration.
        let mut _news = News::start(&snapshot.topology, snapshot.redis.as_ref());
        let mut keeper = Keeper::start(&snapshot);
        let (tell, told) = watch::channel(snapshot);
        let mut admin = self.admin.take().and_then(|socket| {
            let listener = TcpListener::from_std(socket.into());
            let listener = listener
                .inspect_err(|error| tracing::error!(%error, "cannot serve the admin address"))
                .ok()?;
            let lifecycle =
                admin::Lifecycle { ready: self.ready.clone(), phase: self.phase.clone() };
            Some(tokio::task::spawn_local(admin::serve(listener, told, lifecycle)))
        });
        loop {
            tokio::select! {
                changed = self.snapshots.changed() => {
                    if changed.is_err() {
                        // The gateway itself is gone, which is a stop too.
                        return;
                    }
                    let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
                    watch.follow(&snapshot.topology, &snapshot.on_event());
                    _news = News::start(&snapshot.topology, snapshot.redis.as_ref());
                    keeper = Keeper::start(&snapshot);
                    tell.send_replace(snapshot);
                }
                changed = self.phase.changed() => {
                    let phase = *self.phase.borrow_and_update();
                    if changed.is_err() || phase == Phase::Stopped {
                        if let Some(keeper) = keeper {
                            keeper.finish().await;
                        }
                        return;
                    }
                    // From here on the other process tells how things stand.
                    if phase == Phase::Replaced && let Some(admin) = admin.take() {
                        admin.abort();
                    }
                }
            }
        }
    }
}

/// A serving thread.
struct ServeTask {
    snapshots: watch::Receiver<Numbered>,
    taken: Arc<[AtomicU64]>,
    phase: watch::Receiver<Phase>,
    index: usize,
    seed: u64,
    feeds: Arc<Feeds>,
    /// One for each address, but for a process that took over more sockets than it has threads.
    sockets: Vec<(Door, Socket)>,
}

impl ServeTask {
    async fn run(mut self) {
        let listeners = self.sockets.drain(..).map(|(door, socket)| {
            TcpListener::from_std(socket.into()).map(|listener| (door, listener))
        });
        let listeners: Vec<(Door, TcpListener)> = match listeners.collect() {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::error!(%error, "cannot serve clients");
                return;
            }
        };
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
        let thread = Thread::new(snapshot, self.index, self.seed, &self.feeds);
        tokio::task::spawn_local(Rc::clone(&thread).relieve());
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        let turn = Cell::new(0);
        loop {
            tokio::select! {
                (door, accepted) = next_connection(&listeners, &turn) => accept(&thread, accepted, door).await,
                _ = sweep.tick() => thread.context().sweep(),
                Ok(()) = self.snapshots.changed() => {}
                _ = self.phase.changed() => {}
            }
            if self.phase.borrow_and_update().is_draining() {
                break;
            }
            self.take_newest(&thread);
        }
        if *self.phase.borrow() == Phase::Draining {
            accept_rest(&thread, &listeners).await;
        }
        drop(listeners);
        drain(&thread).await;
    }

    /// Requests begin with the newest snapshot from here on, if there is a newer one.
    fn take_newest(&mut self, thread: &Thread) {
        let number = self.taken[self.index].load(Ordering::Relaxed);
        let numbered = self.snapshots.borrow_and_update().clone();
        if numbered.number == number {
            return;
        }
        thread.reload(numbered.snapshot);
        self.taken[self.index].store(numbered.number, Ordering::Release);
    }
}

/// Lets what has begun come to its end.
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
    let left = thread.connection_count();
    if left > 0 {
        tracing::warn!(left, "drain deadline passed; closing what is left");
    }
}

type Accepted = io::Result<(TcpStream, SocketAddr)>;

/// The next connection, the listeners taking turns: a flood at one must not shut out the others.
async fn next_connection(
    listeners: &[(Door, TcpListener)],
    turn: &Cell<usize>,
) -> (Door, Accepted) {
    std::future::poll_fn(|cx| {
        for step in 0..listeners.len() {
            let at = (turn.get() + step) % listeners.len();
            let (door, listener) = &listeners[at];
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                turn.set(at + 1);
                return Poll::Ready((*door, accepted));
            }
        }
        Poll::Pending
    })
    .await
}

/// Takes the connections that the system has accepted for us already: closing their socket would
/// reset them.
async fn accept_rest(thread: &Rc<Thread>, listeners: &[(Door, TcpListener)]) {
    for (door, listener) in listeners {
        while let Some(accepted @ Ok(_)) = listener.accept().now_or_never() {
            accept(thread, accepted, *door).await;
        }
    }
}

async fn accept(thread: &Rc<Thread>, accepted: Accepted, door: Door) {
    match accepted {
        Ok((stream, peer)) => {
            let cx = thread.context();
            let config = &cx.snapshot.config;
            let share = config.downstream.connections_max.div_ceil(config.server.threads);
            if thread.connection_count() >= share {
                // Closing at once tells a client more than an answer that never comes.
                cx.counters.connections_refused.add(1);
                return;
            }
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "client left before it was served");
                return;
            }
            thread.accept_tcp(stream, peer.ip().to_canonical(), door);
        }
        Err(error) => {
            // Out of descriptors or a client that left already; neither may spin.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// A gateway on the caller's own runtime, for simulations in virtual time: no threads, no sockets.
pub mod simulated {
    use super::{Arc, Config, Dial, IpAddr, Rc, Snapshot, Thread, Watch};
    use crate::upstream::dial::MemoryDial;
    use tokio::io::DuplexStream;

    /// Bytes that may be on their way in each direction of a stream in memory.
    const STREAM_BYTES: usize = 256 * 1024;

    /// The gateway. Must be made and used within a `tokio` local runtime.
    pub struct Simulation {
        thread: Rc<Thread>,
        _watch: Watch,
    }

    impl Simulation {
        /// Starts following the upstreams; `dials` by upstream of the configuration.
        pub fn start(config: Config, dials: Vec<MemoryDial>, seed: u64) -> Simulation {
            let dials = dials.into_iter().map(Dial::Memory).collect();
            let snapshot = Snapshot::new(config, dials);
            let mut watch = Watch::default();
            watch.follow(&snapshot.topology, &snapshot.on_event());
            Simulation { thread: Thread::new(snapshot, 0, seed, &Arc::default()), _watch: watch }
        }

        /// Connects a client and gives its end of the stream.
        pub fn connect(&self, client: IpAddr) -> DuplexStream {
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            self.thread.accept(ours, client);
            theirs
        }

        /// The state as `/status` of the admin address shows it.
        pub fn status(&self) -> crate::admin::status::Status {
            crate::admin::status::Status::of(&self.thread.context().snapshot)
        }

        /// The served head of the first chain.
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
