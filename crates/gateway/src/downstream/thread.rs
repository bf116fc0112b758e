//! The client connections of one serving thread. Connections stay open through reloads. A *context*
//! is the state of a thread under one configuration (`state/context.rs`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::downstream::http1::ConnectionState;
use crate::downstream::parsed_heads::ParsedHeads;
use crate::downstream::peer::Peer;
use crate::downstream::{accept, http1};
use crate::io::memory;
use crate::limits::clients::ConnectionGuard;
use crate::policy::client::AddressSource;
use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;
use crate::state::thread::ThreadState;
use crate::subscribe::Subscriptions;
use crate::subscribe::feeds::Feeds;

/// The listening address that a client connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// `server.listen`, without TLS.
    Plaintext,
    /// `server.listen_tls`.
    Tls,
}

/// A serving thread.
pub(crate) struct Thread {
    /// The thread's current context, and whether a graceful stop has begun.
    pub(crate) state: Rc<ThreadState>,
    /// The state of each open connection, by the connection's id.
    connections: RefCell<BTreeMap<u64, Rc<ConnectionState>>>,
    /// The id of the next connection.
    next_id: Cell<u64>,
    /// The subscriptions and filters of this thread's clients.
    pub(crate) subscriptions: Rc<Subscriptions>,
    /// The cache of parsed heads.
    pub(super) heads: ParsedHeads,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl Thread {
    /// Creates a serving thread. `index` is less than `config.server.threads`. `seed` is the seed
    /// of random numbers, and `feeds` notify subscribers of new blocks. All threads share both.
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        index: usize,
        seed: u64,
        feeds: &Arc<Feeds>,
    ) -> Rc<Thread> {
        let state = ThreadState::new(snapshot, index, seed);
        Rc::new(Thread {
            subscriptions: Subscriptions::new(&state, feeds),
            heads: ParsedHeads::default(),
            connections: RefCell::default(),
            next_id: Cell::new(0),
            state,
        })
    }

    /// Returns the context for a request that starts now.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        self.state.context()
    }

    /// Serves a client over a plaintext stream in its own task.
    pub(crate) fn accept<S>(self: &Rc<Thread>, stream: S, client: IpAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let peer = Peer::new(client);
        self.spawn(client, |state| http1::serve(Rc::clone(self), stream, peer, state));
    }

    /// Serves a client that connected to a listening address.
    pub(crate) fn accept_tcp(
        self: &Rc<Thread>,
        tcp: TcpStream,
        client: IpAddr,
        address: ListenAddress,
    ) {
        let cx = self.context();
        let config = &cx.snapshot.config;
        match (address, &config.listen_tls) {
            (ListenAddress::Plaintext, _)
                if config.downstream.client_address == AddressSource::ProxyProtocol =>
            {
                self.spawn(client, |state| {
                    accept::serve_proxied(Rc::clone(self), tcp, client, state)
                });
            }
            (ListenAddress::Plaintext, _) => self.accept(tcp, client),
            (ListenAddress::Tls, Some(listen)) => {
                let listen = Arc::clone(listen);
                self.spawn(client, |state| {
                    accept::serve_tls(Rc::clone(self), tcp, client, listen, state)
                });
            }
            // This cannot happen, because a reload never removes the settings of an open TLS
            // address.
            (ListenAddress::Tls, None) => {}
        }
    }

    /// Serves a connection in a separate task, unless the client has reached its connection limit.
    /// Connections from trusted proxies carry many clients and are not limited.
    fn spawn<F>(self: &Rc<Thread>, client: IpAddr, serve: impl FnOnce(Rc<ConnectionState>) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let cx = self.context();
        let is_trusted_proxy = cx.snapshot.config.downstream.trusted_proxies.contains(client);
        let connection_guard = match &cx.snapshot.clients {
            Some(clients) if !is_trusted_proxy => match clients.open(client) {
                // The connection is closed at once. A client notices that sooner than a connection
                // that never responds.
                None => return cx.counters.connections_refused.add(1),
                connection_guard => connection_guard,
            },
            _ => None,
        };
        drop(cx);
        let state = Rc::new(ConnectionState::default());
        let id = self.next_id.replace(self.next_id.get() + 1);
        let thread = Rc::clone(self);
        let account = Rc::clone(&state.account);
        let serving = serve(Rc::clone(&state));
        self.context().counters.record_connection_opened();
        self.connections.borrow_mut().insert(id, state);
        let task = tokio::task::spawn_local(async move {
            let _close_guard = CloseGuard { thread, id, _connection_guard: connection_guard };
            serving.await;
        });
        account.set_task(task.abort_handle());
    }

    /// Closes the connections of the slowest clients whenever the memory budget is exceeded. Never
    /// returns.
    pub(crate) async fn relieve_memory(self: Rc<Thread>) {
        let (budget, threads) = {
            let snapshot = &self.context().snapshot;
            (Arc::clone(&snapshot.registry.memory), snapshot.config.server.threads)
        };
        loop {
            budget.wait_until_exceeded().await;
            let accounts: Vec<_> = {
                let connections = self.connections.borrow();
                connections.values().map(|state| Rc::clone(&state.account)).collect()
            };
            // Each thread frees its share of the excess, rounded up.
            memory::close_slowest(&budget, &accounts, budget.bytes_to_free().div_ceil(threads));
            tokio::time::sleep(memory::RELIEF_INTERVAL).await;
        }
    }

    /// Returns the number of open client connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.borrow().len()
    }

    /// Closes the connections that wait for a request. The other connections close after their
    /// response.
    pub(crate) fn close_idle(&self) {
        for connection in self.connections.borrow().values() {
            connection.close_if_idle();
        }
    }
}

/// A guard that the task of a connection holds. When the task ends or is aborted, the guard removes
/// the connection from the open connections and counts it as closed.
struct CloseGuard {
    thread: Rc<Thread>,
    id: u64,
    /// Counts the connection towards the client's limit; `None` if the client is not limited.
    _connection_guard: Option<ConnectionGuard>,
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.thread.connections.borrow_mut().remove(&self.id);
        self.thread.context().counters.record_connection_closed();
    }
}
