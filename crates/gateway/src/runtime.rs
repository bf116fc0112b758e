//! Starts the gateway's threads, reloads their configuration, and stops them gracefully.
//!
//! Each serving thread (`runtime/serve.rs`) has a single-threaded runtime and its own listening
//! socket. All these sockets listen on the same address (SO_REUSEPORT; `runtime/sockets.rs`), so
//! the system distributes connections among the threads. The watch thread (`runtime/watch.rs`)
//! polls the upstreams and serves the admin and health addresses.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use settings::diff::Change;
use socket2::Socket;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch::{Sender, channel};

use crate::access_log::write as access_log_writer;
use crate::admin::Phase;
use crate::admin::status::Status;
use crate::cache::index::Index;
use crate::config::Config;
use crate::downstream::accept::ListenAddress;
use crate::io::background::BackgroundThread;
use crate::io::random::random_seed;
use crate::process::ReloadOutcome;
use crate::runtime::error::Error;
use crate::state::snapshot::Snapshot;
use crate::subscribe::feeds::Feeds;
use crate::trace::export as span_exporter;

pub(crate) mod error;
pub(crate) mod quota;
mod serve;
pub mod simulated;
mod sockets;
mod watch;

use serve::ServeTask;
pub use sockets::Sockets;
use watch::WatchTask;

/// Longest wait for the first head (newest block) of each chain, at start and after a reload.
const FIRST_HEADS_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait until all threads use a new configuration. A thread switches between two events of
/// its loop.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which [`wait_until`] checks its condition.
const WAIT_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running gateway. If it is dropped without [`Gateway::stop`], its threads continue to run.
#[derive(Debug)]
pub struct Gateway {
    /// Address for clients, with the actual port if port 0 was configured. If clients are served
    /// over TLS only, the address equals [`Gateway::listen_tls`].
    pub listen: SocketAddr,
    /// Address for clients over TLS; `None` if TLS is off.
    pub listen_tls: Option<SocketAddr>,
    /// Address of metrics and status; `None` if it is off.
    pub admin: Option<SocketAddr>,
    /// Address of health, readiness and metrics; `None` if it is off.
    pub health: Option<SocketAddr>,
    /// Copies of the listening sockets, for the process that replaces this one.
    sockets: Sockets,
    /// Publishes the phase of the gateway, from serving to stopped.
    phase: Sender<Phase>,
    /// The snapshot that serving threads use for new requests.
    serving_snapshot: Sender<NumberedSnapshot>,
    /// The snapshot whose upstreams the watch thread polls.
    watched_snapshot: Sender<NumberedSnapshot>,
    /// For each serving thread, the number of the snapshot that it uses.
    adopted_numbers: Arc<[AtomicU64]>,
    /// The serving threads.
    threads: Vec<JoinHandle<()>>,
    /// The watch thread.
    watcher: JoinHandle<()>,
    /// The threads that write access logs and export spans. A reload can replace such a thread. The
    /// old thread ends once no request uses its configuration. Only reloads and the stop lock the
    /// list.
    background: Mutex<Vec<BackgroundThread>>,
}

/// A snapshot with its sequence number. A snapshot is the state of one configuration, which all
/// threads share.
#[derive(Clone)]
struct NumberedSnapshot {
    /// 0 at the start. Each reload adds 1.
    number: u64,
    snapshot: Arc<Snapshot>,
}

impl std::fmt::Debug for NumberedSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NumberedSnapshot").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Binds the addresses, starts all threads, and returns once the gateway can serve.
    ///
    /// # Errors
    /// - [`Error::Listen`] if an address cannot be bound.
    /// - [`Error::Thread`] if a thread cannot be started.
    /// - [`Error::AccessLog`] or [`Error::Quotas`] if the file cannot be written.
    pub fn start(config: Config) -> Result<Gateway, Error> {
        Gateway::start_on(config, Sockets::default(), None)
    }

    /// Starts a gateway that takes over the `inherited` listening sockets of another process.
    /// Inherited sockets whose address is not configured are closed. `index` is a further cache
    /// tier; `None` without an index.
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
            let _set = snapshot.index.set(index);
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
            && !quota::write_ledger(&quotas.ledger, &quota.file)
        {
            return Err(Error::Quotas { file: quota.file.clone() });
        }
        let (phase, _) = channel(Phase::Serving);
        let numbered = NumberedSnapshot { number: 0, snapshot: Arc::clone(&snapshot) };
        let (watched_snapshot, _) = channel(numbered.clone());
        let (serving_snapshot, _) = channel(numbered);
        let adopted_numbers: Arc<[AtomicU64]> =
            bound.clients.iter().map(|_| AtomicU64::new(0)).collect();
        let (seed, feeds) = (random_seed(), Arc::<Feeds>::default());
        let ready = Arc::new(AtomicBool::new(false));
        let watcher = {
            let task = WatchTask {
                snapshots: watched_snapshot.subscribe(),
                phase: phase.subscribe(),
                ready: Arc::clone(&ready),
                admin: bound.admin,
                health: bound.health,
            };
            spawn_thread("weir-watch", move |runtime| runtime.block_on(task.run()))?
        };
        wait_for_heads(&snapshot);
        let start_thread = |(index, sockets): (usize, Vec<(ListenAddress, Socket)>)| {
            let task = ServeTask {
                snapshots: serving_snapshot.subscribe(),
                adopted_numbers: Arc::clone(&adopted_numbers),
                phase: phase.subscribe(),
                index,
                seed,
                feeds: Arc::clone(&feeds),
                sockets,
            };
            spawn_thread(&format!("weir-{index}"), move |runtime| runtime.block_on(task.run()))
        };
        let threads = bound.clients.into_iter().enumerate().map(start_thread);
        let threads = threads.collect::<Result<_, _>>()?;
        ready.store(true, Ordering::Release);
        let sockets = bound.copies;
        Ok(Gateway {
            listen,
            listen_tls,
            admin,
            health,
            sockets,
            phase,
            watched_snapshot,
            serving_snapshot,
            adopted_numbers,
            threads,
            watcher,
            background: Mutex::new(background),
        })
    }

    /// Returns why upstreams make the gateway not ready, in words; empty if each chain has a head
    /// and a usable upstream.
    pub fn unready_reasons(&self) -> Vec<String> {
        Status::of(&self.serving_snapshot.borrow().snapshot).unready_reasons()
    }

    /// Applies a new configuration to all new requests and returns the changes. Requests in flight
    /// keep their configuration. Returns once every thread uses the new configuration and each
    /// chain has a head, or after a timeout of a few seconds.
    ///
    /// Calls of this function must not overlap.
    pub fn reload(&self, config: Config) -> Vec<Change> {
        let NumberedSnapshot { number, snapshot: previous } =
            self.serving_snapshot.borrow().clone();
        let changes = previous.config.changes_to(&config);
        let snapshot = previous.reload(config);
        if let Some(queues) = find_new(&previous.access_log, &snapshot.access_log) {
            match access_log_writer::start_anyway(Arc::clone(queues)) {
                Ok(writer) => self.add_background(writer),
                Err(error) => tracing::error!(%error, "the access log has no thread to write it"),
            }
        }
        if let Some(queues) = find_new(&previous.spans, &snapshot.spans) {
            match span_exporter::start(Arc::clone(queues)) {
                Ok(exporter) => self.add_background(exporter),
                Err(error) => tracing::error!(%error, "spans have no thread to send them"),
            }
        }
        let numbered = NumberedSnapshot { number: number + 1, snapshot: Arc::clone(&snapshot) };
        // The serving threads switch to the new snapshot before the watch thread does. Once the
        // watch thread has switched, it no longer polls the former upstreams, so their known heads
        // become outdated. New calls must not use these heads.
        self.serving_snapshot.send_replace(numbered.clone());
        let is_newer = |adopted: &AtomicU64| adopted.load(Ordering::Acquire) > number;
        wait_until(ADOPT_TIMEOUT, || self.adopted_numbers.iter().all(is_newer));
        self.watched_snapshot.send_replace(numbered);
        wait_for_heads(&snapshot);
        let changed_keys = changes.iter().map(ToString::to_string).collect();
        snapshot.process.record_reload(ReloadOutcome::Applied { changes: changed_keys });
        changes
    }

    /// Adds a background thread, and removes the threads that have ended.
    fn add_background(&self, thread: BackgroundThread) {
        let mut background = self.background.lock();
        background.retain(|thread| !thread.has_ended());
        background.push(thread);
    }

    /// Records a refused reload for status and metrics. `reason` is public, so it must not contain
    /// a secret.
    pub fn refuse_reload(&self, reason: &str) {
        let outcome = ReloadOutcome::Refused { reason: reason.to_owned() };
        self.serving_snapshot.borrow().snapshot.process.record_reload(outcome);
    }

    /// Records a failed hand-over to another process, for status and metrics.
    pub fn refuse_upgrade(&self, reason: &str) {
        self.serving_snapshot.borrow().snapshot.process.record_failed_upgrade(reason);
    }

    /// Returns the configuration in use.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.serving_snapshot.borrow().snapshot.config)
    }

    /// Returns copies of the listening sockets, for the process that replaces this one.
    ///
    /// # Errors
    /// If the system has no file descriptor left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        self.sockets.try_clone()
    }

    /// Stops gracefully, in these steps: reports that the gateway is not ready, waits for
    /// `drain_delay`, and stops accepting connections. Then waits for requests in flight, at most
    /// until the drain deadline, and closes the remaining connections.
    pub fn stop(self) {
        let delay = self.config().server.drain_delay;
        if !delay.is_zero() {
            self.phase.send_replace(Phase::Leaving);
            wait_until(delay, || false);
        }
        self.end(Phase::Draining);
    }

    /// Stops gracefully after another process has begun to serve the same sockets. The other
    /// process accepts the connections in the backlogs of the sockets.
    pub fn stop_replaced(self) {
        self.end(Phase::Replaced);
    }

    /// Ends all threads and waits for them. `phase` is the phase in which requests in flight
    /// complete.
    fn end(self, phase: Phase) {
        // If these copies stayed open, the system would accept connections that no process serves.
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

/// Returns the queues `next` if a reload has created them. Returns `None` if the reload has kept or
/// removed the `previous` queues.
fn find_new<'a, T>(previous: &Option<Arc<T>>, next: &'a Option<Arc<T>>) -> Option<&'a Arc<T>> {
    let is_previous =
        |queues: &Arc<T>| previous.as_ref().is_some_and(|previous| Arc::ptr_eq(previous, queues));
    next.as_ref().filter(|queues| !is_previous(queues))
}

/// Waits until each chain has a head and a healthy upstream, at most for [`FIRST_HEADS_TIMEOUT`].
/// So the first calls go to an upstream whose state is known.
fn wait_for_heads(snapshot: &Snapshot) {
    let has_healthy_head = |chain: usize| {
        snapshot.chains[chain].view.load().head.is_some() && snapshot.any_healthy(chain)
    };
    wait_until(FIRST_HEADS_TIMEOUT, || (0..snapshot.chains.len()).all(has_healthy_head));
}

/// Waits until `condition` returns true, at most for `limit`.
fn wait_until(limit: Duration, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return;
        }
        std::thread::park_timeout(remaining.min(WAIT_POLL_INTERVAL));
    }
}

/// Starts a thread with a single-threaded runtime, which `body` receives.
fn spawn_thread(
    name: &str,
    body: impl FnOnce(LocalRuntime) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // A local runtime cannot move between threads, so the new thread builds it.
            match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => body(runtime),
                Err(error) => tracing::error!(%error, "cannot start an event loop"),
            }
        })
        .map_err(|source| Error::Thread { source })
}
