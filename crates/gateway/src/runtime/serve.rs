//! A serving thread: accepts connections, adopts new configurations, and drains at a stop. A
//! *snapshot* is the state of one configuration that all threads share (`state/snapshot.rs`).

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use super::NumberedSnapshot;
use crate::admin::Phase;
use crate::downstream::accept::ListenAddress;
use crate::downstream::thread::Thread;
use crate::subscribe::feeds::Feeds;

#[cfg(test)]
mod tests;

/// Pause after a failed accept. Accepting usually fails for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval at which idle connections to upstreams are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a graceful stop checks whether connections are still open.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A serving thread.
pub(super) struct ServeTask {
    /// Receives the newest snapshot.
    pub(super) snapshots: watch::Receiver<NumberedSnapshot>,
    /// For each serving thread, the number of the snapshot that it uses.
    pub(super) adopted_numbers: Arc<[AtomicU64]>,
    /// Receives the phase of the gateway's life.
    pub(super) phase: watch::Receiver<Phase>,
    /// Index of this thread among the serving threads.
    pub(super) index: usize,
    /// Seed of the random numbers of all threads.
    pub(super) seed: u64,
    /// The subscription feeds of all chains, which all threads share.
    pub(super) feeds: Arc<Feeds>,
    /// The listening sockets of this thread: at least one per address. A thread has more sockets if
    /// the process inherited more sockets than there are threads.
    pub(super) sockets: Vec<(ListenAddress, Socket)>,
}

impl ServeTask {
    /// Serves clients until a graceful stop begins, and then drains.
    pub(super) async fn run(mut self) {
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
                (listen_address, accepted) = next_connection(&listeners, &next_listener) => {
                    accept(&thread, accepted, listen_address).await;
                }
                _ = sweep.tick() => thread.context().sweep(),
                Ok(()) = self.snapshots.changed() => {}
                _ = self.phase.changed() => {}
            }
            if self.phase.borrow_and_update().is_draining() {
                break;
            }
            self.adopt_newest(&thread);
        }
        // If another process has taken over the sockets, the phase is not `Draining`, and that
        // process accepts the backlogs.
        if *self.phase.borrow() == Phase::Draining {
            accept_backlog(&thread, &listeners).await;
        }
        drop(listeners);
        drain(&thread).await;
    }

    /// Uses the newest snapshot for new requests.
    fn adopt_newest(&mut self, thread: &Thread) {
        let adopted_number = self.adopted_numbers[self.index].load(Ordering::Relaxed);
        let newest = self.snapshots.borrow_and_update().clone();
        if newest.number == adopted_number {
            return;
        }
        thread.reload(newest.snapshot);
        self.adopted_numbers[self.index].store(newest.number, Ordering::Release);
    }
}

/// Waits for open connections to end, at most until `server.drain_deadline` has passed. Closes idle
/// connections once `server.drain_linger` has passed.
async fn drain(thread: &Thread) {
    thread.begin_drain();
    let (close_idle_at, deadline) = {
        let cx = thread.context();
        let config = &cx.snapshot.config;
        let now = Instant::now();
        (
            now + config.server.drain_linger.min(config.server.drain_deadline),
            now + config.server.drain_deadline,
        )
    };
    let mut has_closed_idle = false;
    while thread.connection_count() > 0 && Instant::now() < deadline {
        if !has_closed_idle && Instant::now() >= close_idle_at {
            has_closed_idle = true;
            thread.close_idle();
        }
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
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

/// Accepts the next connection. The listeners take turns, so a flood at one listener does not block
/// the others.
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

/// Serves an accepted connection, or closes it if the thread has too many connections. Pauses if
/// accepting failed.
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
            // Without the pause, a lack of file descriptors would cause a busy loop.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}
