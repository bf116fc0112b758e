//! Coalesces equal calls: equal calls in flight at the same time share one upstream call.
//!
//! The shared call runs in its own task. So the client that started the call (the leader) can
//! disconnect without effect on the other clients (the waiters). Each waiter has its own deadline.
//! If the leader's deadline ends before the waiter's deadline, the waiter retries. When the
//! response arrives, all current waiters receive it, and the table no longer holds the call. If
//! overload control rejects the shared call, waiters of a higher priority class than the leader's
//! class retry. The other waiters receive the failure.
//!
//! Each thread has its own table, so two threads may run equal calls. A duplicate call costs less
//! than a lock on every call.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::UpstreamResponse;
use crate::call::failure::{Failure, FailureKind};
use crate::policy::overload::Class;

/// Maximum number of calls in the table of one thread. Further calls are not coalesced. Because
/// connections and batches are limited, only a flood of distinct calls reaches this limit.
const CALLS_MAX: usize = 65_536;

/// The calls in flight on one thread.
#[derive(Debug, Default)]
pub(crate) struct InFlightCalls {
    table: Rc<Table>,
}

type Table = RefCell<HashMap<Rc<[u8]>, Rc<InFlightCall>, foldhash::fast::RandomState>>;

/// A shared call.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    /// The leader's deadline.
    deadline: Instant,
    /// The priority class of the leader. While upstreams are overloaded, the call waits in this
    /// class until it may be sent.
    class: Class,
    /// `None` until the call completes.
    response: RefCell<Option<UpstreamResponse>>,
    /// Notified when the response is set.
    completed: Notify,
    /// Number of clients that wait for the response, including the leader.
    waiters: Cell<usize>,
    /// Notified when the last waiter leaves.
    abandoned: Notify,
}

/// The completion guard of a shared call. Dropping the guard removes the call from the table and
/// wakes the waiters. If the leader has not set a response by then, the waiters receive a failure.
#[derive(Debug)]
pub(crate) struct LeaderGuard {
    table: Rc<Table>,
    /// Key of the call in the table.
    pub(crate) key: Rc<[u8]>,
    /// The shared call.
    pub(crate) call: Rc<InFlightCall>,
    /// `None` until [`LeaderGuard::complete`].
    response: Option<UpstreamResponse>,
}

impl LeaderGuard {
    /// Sets the response. The guard is then dropped, which delivers the response to all waiters.
    pub(crate) fn complete(mut self, response: UpstreamResponse) {
        self.response = Some(response);
    }
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        let response = self.response.take();
        let response = response.unwrap_or_else(|| {
            UpstreamResponse::from_failure(Failure::ours(FailureKind::Stopping))
        });
        self.table.borrow_mut().remove(&self.key);
        *self.call.response.borrow_mut() = Some(response);
        self.call.completed.notify_waiters();
    }
}

/// The role of a call in coalescing.
#[derive(Debug)]
pub(crate) enum Coalescing {
    /// An equal call is in flight: wait for it.
    Wait(Rc<InFlightCall>),
    /// No equal call is in flight: run the call, then complete the guard.
    Lead(LeaderGuard),
    /// The table is full: run the call alone.
    Alone,
}

impl InFlightCalls {
    /// Joins the call in flight with this key. If there is no such call, adds one with this
    /// deadline and class.
    pub(crate) fn join_or_lead(&self, key: &[u8], deadline: Instant, class: Class) -> Coalescing {
        let mut table = self.table.borrow_mut();
        if let Some(call) = table.get(key) {
            return Coalescing::Wait(Rc::clone(call));
        }
        if table.len() >= CALLS_MAX {
            return Coalescing::Alone;
        }
        let call = Rc::new(InFlightCall {
            deadline,
            class,
            response: RefCell::new(None),
            completed: Notify::new(),
            waiters: Cell::new(0),
            abandoned: Notify::new(),
        });
        let key: Rc<[u8]> = key.into();
        table.insert(Rc::clone(&key), Rc::clone(&call));
        drop(table);
        let table = Rc::clone(&self.table);
        Coalescing::Lead(LeaderGuard { table, key, call, response: None })
    }

    /// Returns the number of calls in flight that can be joined.
    pub(crate) fn len(&self) -> usize {
        self.table.borrow().len()
    }
}

impl InFlightCall {
    /// Returns true if the leader's deadline has passed. A waiter whose own deadline has not passed
    /// should then retry.
    pub(crate) fn is_past_deadline(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Returns true if the shared call has a lower priority class than `class`.
    pub(crate) fn has_lower_class_than(&self, class: Class) -> bool {
        // `Class` is ordered from the highest to the lowest class.
        self.class > class
    }

    /// Waits until the last waiter has left.
    pub(crate) async fn wait_until_abandoned(&self) {
        loop {
            self.abandoned.notified().await;
            if self.waiters.get() == 0 {
                return;
            }
        }
    }

    /// Waits for the response. Returns `None` if `deadline` passes first.
    pub(crate) async fn wait(&self, deadline: Instant) -> Option<UpstreamResponse> {
        let _waiter = Waiter::count(self);
        let completed = self.completed.notified();
        if let Some(response) = self.response.borrow().as_ref() {
            return Some(response.clone());
        }
        tokio::time::timeout_at(deadline, completed).await.ok()?;
        self.response.borrow().clone()
    }
}

/// Counts a waiter until it is dropped.
struct Waiter<'a>(&'a InFlightCall);

impl Waiter<'_> {
    fn count(call: &InFlightCall) -> Waiter<'_> {
        call.waiters.update(|waiters| waiters + 1);
        Waiter(call)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.update(|waiters| waiters - 1);
        if self.0.waiters.get() == 0 {
            self.0.abandoned.notify_one();
        }
    }
}
