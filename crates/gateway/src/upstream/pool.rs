//! The idle connections of one thread to one upstream, and the bound on how many are open.
//!
//! Two connections are interchangeable when they lead to the same upstream from the same thread.
//! The last one used is used first, so that a falling load lets the others grow old and close.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::upstream::http1::{Connection, KnownHeads, known_heads};

/// Connections of one thread to one upstream.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: RefCell<Vec<Connection>>,
    idle_max: Duration,
    /// One permit for each connection that may carry a call at the same time. An idle connection
    /// holds none, and is always taken before a new one is made, so that this bounds the open ones.
    free: Semaphore,
    heads: Rc<KnownHeads>,
    /// Whether connections end with the call that they carry.
    closed: Cell<bool>,
}

/// The right to use one connection; giving it back is dropping it.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Rc<Pool>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.free.add_permits(1);
    }
}

impl Pool {
    pub(crate) fn new(connections_max: usize, idle_max: Duration) -> Rc<Pool> {
        let free = Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS));
        Rc::new(Pool {
            idle: RefCell::default(),
            idle_max,
            free,
            heads: known_heads(),
            closed: Cell::new(false),
        })
    }

    /// What the heads of this upstream's answers have said to this thread.
    pub(crate) fn heads(&self) -> Rc<KnownHeads> {
        Rc::clone(&self.heads)
    }

    /// Takes the right to a connection, waiting for one until `deadline`; `None` when none came.
    pub(crate) async fn lease(self: &Rc<Pool>, deadline: Instant) -> Option<Lease> {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let free = self.free.acquire();
                Box::pin(tokio::time::timeout_at(deadline, free)).await.ok()?.ok()?
            }
        };
        permit.forget();
        Some(Lease { pool: Rc::clone(self) })
    }

    /// An idle connection that is still good, if there is one.
    pub(crate) fn reuse(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut connection) = idle.pop() {
            if now.duration_since(connection.idle_since) > self.idle_max {
                // Those below it are older still.
                idle.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next call.
    pub(crate) fn keep(&self, mut connection: Connection, now: Instant) {
        if self.closed.get() {
            return;
        }
        connection.idle_since = now;
        self.idle.borrow_mut().push(connection);
    }

    /// Whether connections end with their call.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes all idle connections, and those in use after their call: the upstream is not
    /// configured any more, or otherwise.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.clear();
    }

    /// Closes what has been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle
            .borrow_mut()
            .retain(|connection| now.duration_since(connection.idle_since) <= self.idle_max);
    }

    /// Closes all idle connections: the upstream has just dropped one, so the others are suspect.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }
}
