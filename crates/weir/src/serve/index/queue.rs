//! Queue of lookups for the reader threads.
//!
//! The reader that became idle last is woken first (LIFO), because its page cache is warm. With a
//! round robin, every reader would cache the same pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::index::{IndexQuery, IndexResult};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// Capacity of the queue; further lookups go to the upstreams.
const QUEUE_MAX: usize = 1024;

/// A lookup and the sender of its result. If the queue drops the sender, the caller gets no result
/// and calls an upstream.
pub(super) struct Job {
    pub query: IndexQuery,
    pub sender: oneshot::Sender<IndexResult>,
}

/// Connects callers and readers. `T` is a [`Job`] except in tests.
pub(super) struct Queue<T = Job> {
    inner: Mutex<Inner<T>>,
    /// Wakes readers in [`Queue::wait_closed`] when the queue closes.
    closing: Condvar,
}

/// The state of the queue, under one lock.
struct Inner<T> {
    queued: VecDeque<T>,
    /// Wakeups of the idle readers, in the order in which the readers became idle.
    idle: Vec<Arc<Condvar>>,
    /// Number of readers that have the index open.
    ready: usize,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        let inner = Inner { queued: VecDeque::new(), idle: Vec::new(), ready: 0, closed: false };
        Queue { inner: Mutex::new(inner), closing: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// Enqueues a lookup. Drops it if no reader is ready or the queue is full.
    pub(super) fn put(&self, job: T) {
        let mut inner = self.inner.lock();
        if inner.ready == 0 || inner.closed || inner.queued.len() == QUEUE_MAX {
            return;
        }
        inner.queued.push_back(job);
        let reader = inner.idle.pop();
        drop(inner);
        if let Some(reader) = reader {
            reader.notify_one();
        }
    }

    /// Blocks until a lookup is queued and returns it; `None` once the queue is closed and empty.
    pub(super) fn next(&self) -> Option<T> {
        let mut inner = self.inner.lock();
        let mut wakeup = None;
        loop {
            if let Some(job) = inner.queued.pop_front() {
                return Some(job);
            }
            if inner.closed {
                return None;
            }
            let wakeup = wakeup.get_or_insert_with(|| Arc::new(Condvar::new()));
            inner.idle.push(Arc::clone(wakeup));
            wakeup.wait(&mut inner);
        }
    }

    /// Returns the next lookup if one is queued.
    pub(super) fn try_next(&self) -> Option<T> {
        self.inner.lock().queued.pop_front()
    }

    /// Registers a reader that has the index open.
    pub(super) fn add_reader(&self) {
        self.inner.lock().ready += 1;
    }

    /// Deregisters a reader. If no reader remains, drops all queued lookups.
    pub(super) fn remove_reader(&self) {
        let mut inner = self.inner.lock();
        inner.ready -= 1;
        if inner.ready == 0 {
            inner.queued.clear();
        }
    }

    /// Rejects further lookups. Readers still serve the queued lookups.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let idle = std::mem::take(&mut inner.idle);
        drop(inner);
        for reader in idle {
            reader.notify_one();
        }
        self.closing.notify_all();
    }

    /// Waits up to `timeout` until the queue is closed. Returns true if it is closed.
    pub(super) fn wait_closed(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut inner = self.inner.lock();
        self.closing.wait_while_until(&mut inner, |inner| !inner.closed, deadline);
        inner.closed
    }
}
