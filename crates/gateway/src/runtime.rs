//! Starts the gateway's threads, and stops them gracefully.
//!
//! One single-threaded runtime per serving thread, each with its own listening socket on the same
//! address (SO_REUSEPORT), so that the system spreads connections and nothing is handed over. One
//! more thread follows the nodes and serves the admin address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::Error;
use crate::nodes::dial::Dial;
use crate::nodes::watch as heads;
use crate::see::admin;
use crate::shared::Shared;
use crate::worker::Worker;

/// Connections that may wait to be accepted; Linux caps it at `net.core.somaxconn`, 4096 by
/// default.
const BACKLOG: i32 = 4096;
/// Pause after the system has no file descriptor for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often pools are swept and a drain is looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the start waits for the nodes to show their heads before it serves without.
const FIRST_HEADS_WAIT: Duration = Duration::from_secs(2);

/// A gateway that serves. Dropping it without [`Gateway::stop`] leaves its threads running.
#[derive(Debug)]
pub struct Gateway {
    /// Where clients connect; the port is the real one where 0 was asked for.
    pub listen: SocketAddr,
    /// Where metrics and status are served.
    pub admin: Option<SocketAddr>,
    phase: watch::Sender<Phase>,
    threads: Vec<JoinHandle<()>>,
    watcher: JoinHandle<()>,
}

/// How far a gateway's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    Serving,
    /// New connections are refused, begun requests end.
    Draining,
    Stopped,
}

impl Gateway {
    /// Binds the addresses, starts all threads, and returns once it can serve.
    ///
    /// # Errors
    /// [`Error::Listen`] when an address is taken or not ours; [`Error::Thread`] when the system
    /// gives no thread.
    pub fn start(config: Config) -> Result<Gateway, Error> {
        let first = listen(config.listen, true)?;
        let address = local(&first, config.listen)?;
        let mut sockets = vec![first];
        for _ in 1..config.threads {
            sockets.push(listen(address, false)?);
        }
        let admin_socket = config.admin.map(|admin| listen(admin, true)).transpose()?;
        let admin = match (&admin_socket, config.admin) {
            (Some(socket), Some(asked)) => Some(local(socket, asked)?),
            _ => None,
        };
        let shared = Shared::new(config, vec![Dial::Net]);
        let (phase, _) = watch::channel(Phase::Serving);
        let seed = random_seed();
        let ready = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (shared, phase) = (Arc::clone(&shared), phase.subscribe());
            let ready = Arc::clone(&ready);
            thread("weir-watch", move |runtime| {
                runtime.block_on(watch_nodes(shared, admin_socket, phase, ready));
            })?
        };
        wait_for_heads(&shared);
        let threads = sockets
            .into_iter()
            .enumerate()
            .map(|(index, socket)| {
                let (shared, phase) = (Arc::clone(&shared), phase.subscribe());
                thread(&format!("weir-{index}"), move |runtime| {
                    runtime.block_on(serve(shared, index, seed, socket, phase));
                })
            })
            .collect::<Result<_, _>>()?;
        ready.store(true, Ordering::Release);
        Ok(Gateway { listen: address, admin, phase, threads, watcher })
    }

    /// Stops gracefully: refuses new connections, lets begun requests end until the drain deadline,
    /// then closes what is left.
    pub fn stop(self) {
        self.phase.send_replace(Phase::Draining);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a serving thread ended in a panic");
            }
        }
        self.phase.send_replace(Phase::Stopped);
        if self.watcher.join().is_err() {
            tracing::error!("the watch thread ended in a panic");
        }
    }
}

/// Waits, within bounds, until each chain has shown a head, so that the first calls are not sent
/// blindly.
fn wait_for_heads(shared: &Shared) {
    let deadline = std::time::Instant::now() + FIRST_HEADS_WAIT;
    let seen = || shared.chains.iter().all(|chain| chain.view.load().head.is_some());
    while !seen() && std::time::Instant::now() < deadline {
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A seed that differs between processes; only the spreading of calls depends on it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn listen(address: SocketAddr, first: bool) -> Result<Socket, Error> {
    let bound = || -> io::Result<Socket> {
        if first && address.port() != 0 {
            // With SO_REUSEPORT a second gateway would silently take half of the connections, so
            // the address is tried without it first.
            let probe =
                Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            probe.set_reuse_address(true)?;
            probe.bind(&address.into())?;
            probe.listen(1)?;
        }
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    bound().map_err(|source| Error::Listen { address, source })
}

fn local(socket: &Socket, asked: SocketAddr) -> Result<SocketAddr, Error> {
    let address = socket.local_addr().map_err(|source| Error::Listen { address: asked, source })?;
    Ok(address.as_socket().unwrap_or(asked))
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

async fn watch_nodes(
    shared: Arc<Shared>,
    admin_socket: Option<Socket>,
    mut phase: watch::Receiver<Phase>,
    ready: Arc<AtomicBool>,
) {
    heads::start(&shared);
    if let Some(socket) = admin_socket {
        match TcpListener::from_std(socket.into()) {
            Ok(listener) => {
                let standing = admin::Standing { ready, phase: phase.clone() };
                tokio::task::spawn_local(admin::serve(listener, Arc::clone(&shared), standing));
            }
            Err(error) => tracing::error!(%error, "cannot serve the admin address"),
        }
    }
    // An error means that the gateway itself is gone, which is a stop too.
    let _gone = phase.wait_for(|phase| *phase == Phase::Stopped).await;
}

async fn serve(
    shared: Arc<Shared>,
    index: usize,
    seed: u64,
    socket: Socket,
    mut phase: watch::Receiver<Phase>,
) {
    let listener = match TcpListener::from_std(socket.into()) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve clients");
            return;
        }
    };
    let drain_deadline = shared.config.drain_deadline;
    let worker = Worker::new(shared, index, seed);
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            accepted = listener.accept() => accept(&worker, accepted).await,
            _ = sweep.tick() => worker.sweep(),
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
        }
    }
    drop(listener);
    worker.begin_drain();
    let deadline = Instant::now() + drain_deadline;
    while worker.connection_count() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = worker.connection_count();
    if left > 0 {
        tracing::warn!(left, "drain deadline passed; closing what is left");
    }
}

async fn accept(worker: &Rc<Worker>, accepted: io::Result<(tokio::net::TcpStream, SocketAddr)>) {
    match accepted {
        Ok((stream, peer)) => {
            let connections_max = worker.shared.config.front.connections_max;
            let share = connections_max.div_ceil(worker.shared.config.threads);
            if worker.connection_count() >= share {
                // Closing at once tells a client more than an answer that never comes.
                worker.counters.connections_refused.add(1);
                return;
            }
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "client left before it was served");
                return;
            }
            worker.accept(stream, peer.ip().to_canonical());
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
    use super::{Arc, Config, Dial, IpAddr, Rc, Shared, Worker, heads};
    use crate::nodes::dial::MemoryDial;
    use tokio::io::DuplexStream;

    /// Bytes that may be on their way in each direction of a stream in memory.
    const STREAM_BYTES: usize = 256 * 1024;

    /// The gateway. Must be made and used within a `tokio` local runtime.
    pub struct Simulation {
        worker: Rc<Worker>,
    }

    impl Simulation {
        /// Starts following the nodes; `dials` by node of the configuration.
        pub fn start(config: Config, dials: Vec<MemoryDial>, seed: u64) -> Simulation {
            let dials = dials.into_iter().map(Dial::Memory).collect();
            let shared = Shared::new(config, dials);
            heads::start(&shared);
            Simulation { worker: Worker::new(Arc::clone(&shared), 0, seed) }
        }

        /// Connects a client and gives its end of the stream.
        pub fn connect(&self, client: IpAddr) -> DuplexStream {
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            self.worker.accept(ours, client);
            theirs
        }

        /// The state as `/status` of the admin address shows it.
        pub fn status(&self) -> crate::see::status::Status {
            crate::see::status::Status::of(&self.worker.shared)
        }

        /// The served head of the first chain.
        pub fn head(&self) -> Option<u64> {
            self.worker.shared.chains[0].view.load().head.map(|head| head.number)
        }
    }

    impl std::fmt::Debug for Simulation {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Simulation").finish_non_exhaustive()
        }
    }
}
