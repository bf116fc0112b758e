//! The idle HTTP/1.1 connections of one thread to one upstream, and the limit of open ones.
//!
//! The most recently used connection is reused first, so that the other connections expire when the
//! load falls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::upstream::http1::{Connection, ParsedHeads, new_parsed_heads};

/// Connections of one thread to one upstream.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: RefCell<Vec<Connection>>,
    /// Idle connections close after this time.
    idle_timeout: Duration,
    /// One permit for each connection with a call. An idle connection holds no permit. An idle
    /// connection is always reused before a new one is opened, so the permits limit the open
    /// connections.
    permits: Semaphore,
    heads: Rc<ParsedHeads>,
    /// True if connections close after their call.
    closed: Cell<bool>,
}

/// Permit for one connection, released when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Rc<Pool>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.permits.add_permits(1);
    }
}

impl Pool {
    pub(crate) fn new(connections_max: usize, idle_timeout: Duration) -> Rc<Pool> {
        let permits = Semaphore::new(connections_max.clamp(1, Semaphore::MAX_PERMITS));
        Rc::new(Pool {
            idle: RefCell::default(),
            idle_timeout,
            permits,
            heads: new_parsed_heads(),
            closed: Cell::new(false),
        })
    }

    /// Returns the cache of parsed heads of this upstream.
    pub(crate) fn heads(&self) -> Rc<ParsedHeads> {
        Rc::clone(&self.heads)
    }

    /// Acquires a permit, waiting until `deadline`. Returns `None` if the deadline passes.
    pub(crate) async fn lease(self: &Rc<Pool>, deadline: Instant) -> Option<Lease> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let acquire = self.permits.acquire();
                Box::pin(tokio::time::timeout_at(deadline, acquire)).await.ok()?.ok()?
            }
        };
        permit.forget();
        Some(Lease { pool: Rc::clone(self) })
    }

    /// Takes an idle connection that is still usable.
    pub(crate) fn reuse(&self, now: Instant) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut connection) = idle.pop() {
            if now.duration_since(connection.idle_since) > self.idle_timeout {
                // The remaining connections have been idle for even longer.
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

    /// Returns true if connections close after their call.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Closes idle connections now, and connections in use after their call. Called after a reload
    /// has removed or changed the upstream.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.clear();
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self, now: Instant) {
        self.idle
            .borrow_mut()
            .retain(|connection| now.duration_since(connection.idle_since) <= self.idle_timeout);
    }

    /// Closes all idle connections, because the upstream has just dropped one.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }
}
