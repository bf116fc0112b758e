//! One serving thread: its current context, its open client connections, and its graceful stop.
//! Connections stay open through reloads. A *context* is the state of a thread under one
//! configuration (`state/context.rs`). `accept.rs` adds connections.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::downstream::connection::ConnectionState;
use crate::downstream::parsed_heads::ParsedHeads;
use crate::io::memory;
use crate::state::context::{CurrentContext, ThreadContext};
use crate::state::snapshot::Snapshot;
use crate::subscribe::fan::Subscriptions;
use crate::subscribe::feeds::Feeds;

/// A serving thread.
pub(crate) struct Thread {
    current_context: Rc<CurrentContext>,
    /// True if a graceful stop has begun.
    is_draining: Cell<bool>,
    /// Notified when a graceful stop begins.
    drain_begun: Notify,
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
        f.debug_struct("Thread").field("context", &self.current_context).finish_non_exhaustive()
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
        let current_context = CurrentContext::new(snapshot, index, seed);
        Rc::new(Thread {
            subscriptions: Subscriptions::new(&current_context, feeds),
            heads: ParsedHeads::default(),
            is_draining: Cell::new(false),
            drain_begun: Notify::new(),
            connections: RefCell::default(),
            next_id: Cell::new(0),
            current_context,
        })
    }

    /// Returns the context for a request that starts now.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        self.current_context.get()
    }

    /// Uses this snapshot for all new requests.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        self.current_context.reload(snapshot);
    }

    /// Returns true if a graceful stop has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Waits for a graceful stop to begin.
    pub(crate) async fn wait_for_drain(&self) {
        let notified = self.drain_begun.notified();
        if !self.is_draining.get() {
            notified.await;
        }
    }

    /// Begins a graceful stop. Each connection then closes after the response to its next request.
    pub(crate) fn begin_drain(&self) {
        self.is_draining.set(true);
        self.drain_begun.notify_waiters();
    }

    /// Adds an open connection and returns its id.
    pub(super) fn add_connection(&self, state: Rc<ConnectionState>) -> u64 {
        let id = self.next_id.replace(self.next_id.get() + 1);
        self.connections.borrow_mut().insert(id, state);
        id
    }

    /// Removes a connection that has ended.
    pub(super) fn remove_connection(&self, id: u64) {
        self.connections.borrow_mut().remove(&id);
    }

    /// Closes the connections of the slowest clients whenever the memory budget is exceeded. Never
    /// returns.
    pub(crate) async fn relieve_memory(self: Rc<Thread>) {
        let (budget, threads) = {
            let snapshot = &self.context().snapshot;
            (Arc::clone(&snapshot.process.memory), snapshot.config.server.threads)
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
