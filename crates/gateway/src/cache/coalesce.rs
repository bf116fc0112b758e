//! Coalesces equal calls: calls in flight at the same time share one upstream call.
//!
//! The shared call runs in its own task, so the client that started it (the leader) can disconnect
//! without affecting the waiters. Each waiter has its own deadline: one that outlives the leader's
//! deadline retries. A response is shared only with the waiters at its arrival; then the entry is
//! removed. If the shared call is shed, its waiters fail too, except those of a better priority
//! class, which retry.
//!
//! Each thread has its own table. A call can run once per thread, which costs less than a lock on
//! every call.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::failure::{Failure, Kind};
use crate::call::response::UpstreamResponse;
use crate::policy::overload::Class;

/// Maximum calls in the table of one thread. Calls beyond it are not coalesced. Because connections
/// and batches are limited, only a flood of distinct calls reaches this limit.
const FLIGHTS_MAX: usize = 65_536;

/// The calls in flight on one thread.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: Rc<Table>,
}

type Table = RefCell<HashMap<Rc<[u8]>, Rc<Flight>, foldhash::fast::RandomState>>;

/// One shared call.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The leader's deadline.
    deadline: Instant,
    /// The priority class in which the call waits for a permit.
    class: Class,
    outcome: RefCell<Option<UpstreamResponse>>,
    landed: Notify,
    /// The number of waiters.
    waiters: Cell<usize>,
    /// Notified when the last waiter leaves.
    left: Notify,
}

/// The leader's completion guard. If it is dropped without a response, the waiters receive a
/// failure; the entry is removed in any case.
#[derive(Debug)]
pub(crate) struct Landing {
    table: Rc<Table>,
    key: Rc<[u8]>,
    flight: Rc<Flight>,
    outcome: Option<UpstreamResponse>,
}

impl Landing {
    /// Returns the call, so that the leader's client can wait for it too.
    pub(crate) fn flight(&self) -> Rc<Flight> {
        Rc::clone(&self.flight)
    }

    /// Returns the key of the call.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Completes the call with its response.
    pub(crate) fn land(mut self, outcome: UpstreamResponse) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        let outcome =
            outcome.unwrap_or_else(|| UpstreamResponse::failed(Failure::ours(Kind::Stopping)));
        self.table.borrow_mut().remove(&self.key);
        *self.flight.outcome.borrow_mut() = Some(outcome);
        self.flight.landed.notify_waiters();
    }
}

/// How a call is coalesced.
#[derive(Debug)]
pub(crate) enum Boarding {
    /// An equal call is in flight: wait for it.
    Join(Rc<Flight>),
    /// No equal call is in flight: run it, then complete the guard.
    Lead(Landing),
    /// The table is full: run the call alone.
    Alone,
}

impl Flights {
    /// Joins the call of `key` in flight, or starts one with this deadline and class.
    pub(crate) fn board(&self, key: &[u8], deadline: Instant, class: Class) -> Boarding {
        let mut under_way = self.under_way.borrow_mut();
        if let Some(flight) = under_way.get(key) {
            return Boarding::Join(Rc::clone(flight));
        }
        if under_way.len() >= FLIGHTS_MAX {
            return Boarding::Alone;
        }
        let (outcome, landed) = Default::default();
        let (waiters, left) = Default::default();
        let flight = Flight { deadline, class, outcome, landed, waiters, left };
        let flight = Rc::new(flight);
        let key: Rc<[u8]> = key.into();
        under_way.insert(Rc::clone(&key), Rc::clone(&flight));
        drop(under_way);
        let table = Rc::clone(&self.under_way);
        Boarding::Lead(Landing { table, key, flight, outcome: None })
    }

    /// The number of calls in flight that can be joined.
    pub(crate) fn len(&self) -> usize {
        self.under_way.borrow().len()
    }
}

impl Flight {
    /// Returns true if the leader's deadline has passed, so that a waiter with time left should
    /// retry.
    pub(crate) fn is_out_of_time(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Returns true if the call waited for a permit in a worse class than `class`.
    pub(crate) fn is_worse_than(&self, class: Class) -> bool {
        self.class > class
    }

    /// Completes when no waiter is left.
    pub(crate) async fn abandoned(&self) {
        loop {
            self.left.notified().await;
            if self.waiters.get() == 0 {
                return;
            }
        }
    }

    /// Waits for the response. Returns `None` if `deadline` passes first.
    pub(crate) async fn wait(&self, deadline: Instant) -> Option<UpstreamResponse> {
        let _waiter = Waiter::of(self);
        let landed = self.landed.notified();
        if let Some(outcome) = self.outcome.borrow().as_ref() {
            return Some(outcome.clone());
        }
        tokio::time::timeout_at(deadline, landed).await.ok()?;
        self.outcome.borrow().clone()
    }
}

/// Counts a waiter until it is dropped.
struct Waiter<'a>(&'a Flight);

impl Waiter<'_> {
    fn of(flight: &Flight) -> Waiter<'_> {
        flight.waiters.update(|waiters| waiters + 1);
        Waiter(flight)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.update(|waiters| waiters - 1);
        if self.0.waiters.get() == 0 {
            self.0.left.notify_one();
        }
    }
}
