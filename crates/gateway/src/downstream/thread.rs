//! The client connections of one serving thread. They stay open through reloads.

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::downstream::http1::Standing;
use crate::downstream::parsed_heads::ParsedHeads;
use crate::downstream::peer::Peer;
use crate::downstream::{arrive, http1};
use crate::io::memory;
use crate::limits::clients::ConnectionGuard;
use crate::policy::client::AddressSource;
use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;
use crate::state::thread::ThreadState;
use crate::subscribe::Subscriptions;
use crate::subscribe::feeds::Feeds;

/// Which of the addresses a client has connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// `server.listen`.
    Clear,
    /// `server.listen_tls`.
    Tls,
}

/// A serving thread.
pub(crate) struct Thread {
    pub(crate) state: Rc<ThreadState>,
    connections: RefCell<Connections>,
    /// The subscriptions and filters of its clients.
    pub(crate) subscriptions: Rc<Subscriptions>,
    /// The heads of requests that were parsed under the present configuration.
    pub(super) heads: ParsedHeads,
}

#[derive(Default)]
struct Connections {
    open: Vec<Option<Rc<Standing>>>,
    free: Vec<usize>,
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl Thread {
    /// The thread with this index of `config.server.threads`.
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
            state,
        })
    }

    /// The context of a request that begins now.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        self.state.context()
    }

    /// From here on requests begin with this configuration.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        self.state.reload(snapshot);
    }

    /// Serves a client in a task of its own.
    pub(crate) fn accept<S>(self: &Rc<Thread>, stream: S, client: IpAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let peer = Peer::new(client);
        self.begin(client, |standing| http1::serve(Rc::clone(self), stream, peer, standing));
    }

    /// Serves a client that has connected to one of the addresses.
    pub(crate) fn accept_tcp(self: &Rc<Thread>, tcp: TcpStream, client: IpAddr, door: Door) {
        let cx = self.context();
        let config = &cx.snapshot.config;
        match (door, &config.listen_tls) {
            (Door::Clear, _)
                if config.downstream.client_address == AddressSource::ProxyProtocol =>
            {
                self.begin(client, |standing| {
                    arrive::serve_proxied(Rc::clone(self), tcp, client, standing)
                });
            }
            (Door::Clear, _) => self.accept(tcp, client),
            (Door::Tls, Some(listen)) => {
                let listen = Arc::clone(listen);
                self.begin(client, |standing| {
                    arrive::serve_tls(Rc::clone(self), tcp, client, listen, standing)
                });
            }
            // There is no such address without its settings: a reload leaves both or neither.
            (Door::Tls, None) => {}
        }
    }

    /// Runs what serves one connection in a task of its own, unless its client has as many as it
    /// may. Those of a trusted proxy are of many clients, and are not counted.
    fn begin<F>(self: &Rc<Thread>, client: IpAddr, serve: impl FnOnce(Rc<Standing>) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let cx = self.context();
        let trusted = cx.snapshot.config.downstream.trusted_proxies.contains(client);
        let seat = match &cx.snapshot.clients {
            Some(clients) if !trusted => match clients.open(client) {
                // Closing at once tells a client more than an answer that never comes.
                None => return cx.counters.connections_refused.add(1),
                seat => seat,
            },
            _ => None,
        };
        drop(cx);
        let standing = Rc::new(Standing::default());
        let slot = self.connections.borrow_mut().reserve();
        let thread = Rc::clone(self);
        let account = Rc::clone(&standing.account);
        let served = serve(Rc::clone(&standing));
        self.context().counters.connection_opened();
        self.connections.borrow_mut().open[slot] = Some(standing);
        let task = tokio::task::spawn_local(async move {
            let _closed = Closed { thread, slot, _seat: seat };
            served.await;
        });
        account.serve_by(task.abort_handle());
    }

    /// Closes the connections of the slowest clients whenever too many bytes are held, without end.
    pub(crate) async fn relieve(self: Rc<Thread>) {
        let (budget, threads) = {
            let snapshot = &self.context().snapshot;
            (Arc::clone(&snapshot.registry.memory), snapshot.config.server.threads)
        };
        loop {
            budget.exceeded().await;
            let accounts: Vec<_> = {
                let connections = self.connections.borrow();
                let open = connections.open.iter().flatten();
                open.map(|standing| Rc::clone(&standing.account)).collect()
            };
            memory::close_slowest(&budget, &accounts, budget.excess().div_ceil(threads));
            tokio::time::sleep(memory::RELIEF_EVERY).await;
        }
    }

    /// Open client connections.
    pub(crate) fn connection_count(&self) -> usize {
        let connections = self.connections.borrow();
        connections.open.len() - connections.free.len()
    }

    /// Begins a graceful stop: connections close after the response to their next request.
    pub(crate) fn begin_drain(&self) {
        self.state.begin_drain();
    }

    /// Closes the connections that wait for a request, unless one has just come.
    pub(crate) fn close_idle(&self) {
        for open in self.connections.borrow().open.iter().flatten() {
            open.leave_if_idle();
        }
    }
}

impl Connections {
    fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        })
    }
}

struct Closed {
    thread: Rc<Thread>,
    slot: usize,
    /// Among the connections of its client, where these are limited.
    _seat: Option<ConnectionGuard>,
}

impl Drop for Closed {
    fn drop(&mut self) {
        let mut connections = self.thread.connections.borrow_mut();
        connections.open[self.slot] = None;
        connections.free.push(self.slot);
        self.thread.context().counters.connection_closed();
    }
}
