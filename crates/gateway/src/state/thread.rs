//! The state of one serving thread across configurations: the current context, and the graceful
//! stop.
//!
//! A reload replaces the context (`state/context.rs`). A request in flight keeps its context.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;

/// A serving thread.
pub(crate) struct ThreadState {
    /// The context that new requests use.
    context: RefCell<Rc<ThreadContext>>,
    /// True if a graceful stop has begun.
    is_draining: Cell<bool>,
    /// Notified when a graceful stop begins.
    drain_begun: Notify,
}

impl std::fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadState").field("index", &self.context().index).finish_non_exhaustive()
    }
}

impl ThreadState {
    /// Returns the state of a thread. `index` is less than `config.server.threads`. `seed` is the
    /// seed of random numbers, which all threads share.
    pub(crate) fn new(snapshot: Arc<Snapshot>, index: usize, seed: u64) -> Rc<ThreadState> {
        Rc::new(ThreadState {
            context: RefCell::new(ThreadContext::new(snapshot, index, seed)),
            is_draining: Cell::new(false),
            drain_begun: Notify::new(),
        })
    }

    /// Returns the context of a new request.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        Rc::clone(&self.context.borrow())
    }

    /// Uses this snapshot for all new requests.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        let context = self.context().reload(snapshot);
        self.context.replace(context);
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
}
