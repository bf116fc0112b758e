//! One serving thread: the context that its next request gets, and whether a graceful stop has
//! begun.
//!
//! A reload replaces the context (`context.rs`); a request in flight keeps the one that it began
//! with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;

/// A serving thread.
pub(crate) struct ThreadState {
    context: RefCell<Rc<ThreadContext>>,
    draining: Cell<bool>,
    drain: Notify,
}

impl std::fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadState").field("index", &self.context().index).finish_non_exhaustive()
    }
}

impl ThreadState {
    /// The thread with this index of `config.server.threads`.
    pub(crate) fn new(snapshot: Arc<Snapshot>, index: usize, seed: u64) -> Rc<ThreadState> {
        Rc::new(ThreadState {
            context: RefCell::new(ThreadContext::new(snapshot, index, seed)),
            draining: Cell::new(false),
            drain: Notify::new(),
        })
    }

    /// The context of a request that begins now.
    pub(crate) fn context(&self) -> Rc<ThreadContext> {
        Rc::clone(&self.context.borrow())
    }

    /// From here on requests begin with this configuration.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        let context = self.context().reload(snapshot);
        self.context.replace(context);
    }

    /// Returns true if a graceful stop has begun.
    pub(crate) fn draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for a graceful stop to begin.
    pub(crate) async fn drain_begun(&self) {
        let begun = self.drain.notified();
        if !self.draining.get() {
            begun.await;
        }
    }

    /// Begins a graceful stop: connections close after the response to their next request.
    pub(crate) fn begin_drain(&self) {
        self.draining.set(true);
        self.drain.notify_waiters();
    }
}
