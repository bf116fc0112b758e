//! The state of one serving thread: the context of its next request, and its graceful stop.
//!
//! A reload replaces the context (`context.rs`); a request in flight keeps its context.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;

/// A serving thread.
pub(crate) struct ThreadState {
    /// The context of the next request.
    context: RefCell<Rc<ThreadContext>>,
    /// True if a graceful stop has begun.
    draining: Cell<bool>,
    /// Notified when a graceful stop begins.
    drain: Notify,
}

impl std::fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadState").field("index", &self.context().index).finish_non_exhaustive()
    }
}

impl ThreadState {
    /// Returns the thread with this index, below `config.server.threads`.
    pub(crate) fn new(snapshot: Arc<Snapshot>, index: usize, seed: u64) -> Rc<ThreadState> {
        Rc::new(ThreadState {
            context: RefCell::new(ThreadContext::new(snapshot, index, seed)),
            draining: Cell::new(false),
            drain: Notify::new(),
        })
    }

    /// Returns the context of a new request.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        Rc::clone(&self.context.borrow())
    }

    /// Uses this configuration for all new requests.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        let context = self.context().reload(snapshot);
        self.context.replace(context);
    }

    /// Returns true if a graceful stop has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for a graceful stop to begin.
    pub(crate) async fn wait_for_drain(&self) {
        let notified = self.drain.notified();
        if !self.draining.get() {
            notified.await;
        }
    }

    /// Begins a graceful stop: connections close after the response to their next request.
    pub(crate) fn begin_drain(&self) {
        self.draining.set(true);
        self.drain.notify_waiters();
    }
}
