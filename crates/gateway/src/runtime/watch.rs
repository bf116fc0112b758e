//! The watch thread: polls upstreams and serves the admin and health addresses.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use socket2::Socket;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::NumberedSnapshot;
use super::quota::QuotaSync;
use crate::admin::control::ControlSocket;
use crate::admin::{self, Pages, Phase};
use crate::cache::redis::heartbeat::Heartbeat;
use crate::cache::redis::invalidation_bus::InvalidationBus;
use crate::upstream::watch::Watcher;

/// The task of the watch thread.
pub(super) struct WatchTask {
    /// Receives the newest snapshot, which is the shared state of a configuration.
    pub(super) snapshots: watch::Receiver<NumberedSnapshot>,
    /// Receives the phase of the gateway's life.
    pub(super) phase: watch::Receiver<Phase>,
    /// True once every serving thread has started.
    pub(super) ready: Arc<AtomicBool>,
    /// The socket of the admin address; `None` if it is off.
    pub(super) admin: Option<Socket>,
    /// The socket of the health address; `None` if it is off.
    pub(super) health: Option<Socket>,
}

impl WatchTask {
    /// Polls the upstreams and serves the pages until the gateway has stopped.
    pub(super) async fn run(mut self) {
        let mut watch = Watcher::default();
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update().snapshot);
        watch.set_topology(&snapshot.topology, &snapshot.on_event());
        // The invalidation bus exchanges messages with other gateways over Redis. It runs as long
        // as this variable lives. A new configuration replaces the bus.
        let mut _bus = InvalidationBus::start(&snapshot.topology, snapshot.redis.as_ref());
        let mut quota_sync = QuotaSync::start(&snapshot);
        let mut heartbeat = Heartbeat::start(&snapshot.topology, &snapshot.gateways);
        // The pages of the admin address publish the name of the control socket. Without an admin
        // address nobody could find the control socket, so it is not opened.
        let control_socket = self.admin.as_ref().and_then(|_| ControlSocket::open());
        if let Some(control_socket) = &control_socket {
            let name = control_socket.name().to_owned();
            let _set = snapshot.process.control_socket.set(name);
        }
        let (publish, published) = watch::channel(snapshot);
        let sockets = [(Pages::Admin, self.admin.take()), (Pages::Health, self.health.take())];
        let sockets = sockets.into_iter().filter_map(|(pages, socket)| Some((pages, socket?)));
        let start_pages = |(pages, socket): (Pages, Socket)| {
            let listener = TcpListener::from_std(socket.into())
                .inspect_err(|error| tracing::error!(%error, ?pages, "cannot serve an address"))
                .ok()?;
            let lifecycle =
                admin::Lifecycle { ready: self.ready.clone(), phase: self.phase.clone() };
            let serve = admin::serve(pages, listener, published.clone(), lifecycle);
            Some(tokio::task::spawn_local(serve))
        };
        let mut page_tasks: Vec<_> = sockets.filter_map(start_pages).collect();
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
                    watch.set_topology(&snapshot.topology, &snapshot.on_event());
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
                    // The process that replaces this one serves status and metrics from now on.
                    if phase == Phase::Replaced {
                        page_tasks.drain(..).for_each(|task| task.abort());
                    }
                }
            }
        }
    }
}
