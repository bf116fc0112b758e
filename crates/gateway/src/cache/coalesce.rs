//! Equal calls that are under way at the same time share one call to an upstream.
//!
//! The shared call runs as a task of its own, so that the client that caused it may leave without
//! harm to those who joined. Everyone waits with their own deadline: who joined late and has time
//! left when the one who began has none asks again. An outcome is shared only with those who were
//! waiting when it came: afterwards the entry is gone. A call that is shed takes those with it that
//! joined it, but for those of a better class: they ask again.
//! One table per thread: a call may run once per thread, which costs less than a lock for each.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::call::failure::{Failure, Kind};
use crate::call::response::UpstreamResponse;
use crate::policy::overload::Class;

/// Calls under way that can be joined, per thread. Beyond it calls run alone; with the bounds on
/// connections and batches this is reached only by a flood of distinct calls.
const FLIGHTS_MAX: usize = 65_536;

/// The calls of one thread that others may join.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: Rc<Table>,
}

type Table = RefCell<HashMap<Rc<[u8]>, Rc<Flight>, foldhash::fast::RandomState>>;

/// One shared call.
#[derive(Debug)]
pub(crate) struct Flight {
    /// When the one who began it gives up.
    deadline: Instant,
    /// As what it waits for a place.
    class: Class,
    outcome: RefCell<Option<UpstreamResponse>>,
    landed: Notify,
    /// Those who wait for it, and who is told when the last one leaves.
    waiters: Cell<usize>,
    left: Notify,
}

/// The duty to end a flight. Should its holder end without an outcome, those who wait are told that
/// the call failed, and the entry is removed all the same.
#[derive(Debug)]
pub(crate) struct Landing {
    table: Rc<Table>,
    key: Rc<[u8]>,
    flight: Rc<Flight>,
    outcome: Option<UpstreamResponse>,
}

impl Landing {
    /// The flight, to wait for like everyone else.
    pub(crate) fn flight(&self) -> Rc<Flight> {
        Rc::clone(&self.flight)
    }

    /// The key it was begun with.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Ends the flight with what came out.
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

/// What to do with a call.
#[derive(Debug)]
pub(crate) enum Boarding {
    /// Somebody is asking the same already.
    Join(Rc<Flight>),
    /// Nobody is: ask, then [`Landing::land`].
    Lead(Landing),
    /// The table is full: ask alone.
    Alone,
}

impl Flights {
    /// Joins the flight of `key`, or begins it as one of a class, to be ended by `deadline`.
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

    /// Calls under way that can be joined.
    pub(crate) fn len(&self) -> usize {
        self.under_way.borrow().len()
    }
}

impl Flight {
    /// Whether it can have failed for want of time alone, so that a caller with time left should
    /// ask again.
    pub(crate) fn is_out_of_time(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Whether it waited for a place as one of a worse class than this.
    pub(crate) fn is_worse_than(&self, class: Class) -> bool {
        self.class > class
    }

    /// Ends when nobody waits for it any more.
    pub(crate) async fn abandoned(&self) {
        loop {
            self.left.notified().await;
            if self.waiters.get() == 0 {
                return;
            }
        }
    }

    /// Waits for the outcome; `None` when `deadline` passes first.
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

/// One who waits for a flight, until this is dropped.
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
