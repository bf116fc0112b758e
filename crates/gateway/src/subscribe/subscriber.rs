//! The queue of notifications of one client connection, and its subscriptions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use aws_lc_rs::rand;
use bytes::Bytes;

use super::Subscriptions;
use super::fan::{Fan, Wanted};
use crate::call::reply::Body;
use crate::policy::access::Grant;
use crate::state::context::ThreadContext;

/// A connection that can receive notifications.
#[derive(Debug)]
pub(crate) struct Subscriber {
    subscriptions: Rc<Subscriptions>,
    subscriptions_max: usize,
    queue_bytes_max: usize,
    own: RefCell<Vec<Subscription>>,
    inbox: RefCell<Inbox>,
    /// Number of subscriptions whose id was not sent to the client yet.
    untold: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    parted: Cell<Option<Parting>>,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parting {
    /// The queue exceeds its limit.
    Unread,
    /// Events were missed.
    Missed,
}

#[derive(Debug)]
struct Subscription {
    id: Rc<str>,
    fan: Rc<Fan>,
    /// The subscriber's number in the fan.
    number: u64,
}

/// The queued notifications.
#[derive(Debug, Default)]
struct Inbox {
    notices: VecDeque<Body>,
    bytes: usize,
}

impl Subscriber {
    pub(crate) fn new(
        subscriptions: &Rc<Subscriptions>,
        subscriptions_max: usize,
        queue_bytes_max: usize,
    ) -> Rc<Subscriber> {
        Rc::new(Subscriber {
            subscriptions: Rc::clone(subscriptions),
            subscriptions_max,
            queue_bytes_max,
            own: RefCell::default(),
            inbox: RefCell::default(),
            untold: Cell::new(0),
            waker: RefCell::new(None),
            parted: Cell::new(None),
        })
    }

    pub(super) fn subscriptions(&self) -> &Rc<Subscriptions> {
        &self.subscriptions
    }

    /// Returns true if another subscription is allowed.
    pub(super) fn has_room(&self) -> bool {
        self.own.borrow().len() < self.subscriptions_max
    }

    /// Starts a subscription and returns its unpredictable id. Returns `None` if the system has no
    /// randomness.
    pub(super) fn join(
        self: &Rc<Subscriber>,
        fan: &Rc<Fan>,
        namespace: &str,
        wanted: Wanted,
    ) -> Option<Rc<str>> {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).ok()?;
        let id: Rc<str> = format!("0x{:032x}", u128::from_be_bytes(bytes)).into();
        let number = fan.join(Rc::clone(self), Rc::clone(&id), namespace, wanted);
        let subscription = Subscription { id: Rc::clone(&id), fan: Rc::clone(fan), number };
        self.own.borrow_mut().push(subscription);
        Some(id)
    }

    /// Ends a subscription. Returns false if it does not exist.
    pub(super) fn leave(&self, id: &[u8]) -> bool {
        let mut subscriptions = self.own.borrow_mut();
        let Some(at) = subscriptions.iter().position(|own| own.id.as_bytes() == id) else {
            return false;
        };
        let Subscription { fan, number, .. } = subscriptions.swap_remove(at);
        drop(subscriptions);
        fan.leave(number);
        true
    }

    /// Returns true if a caller with this grant may still have all the subscriptions.
    pub(crate) fn may_hear(&self, cx: &ThreadContext, grant: Option<&Grant>) -> bool {
        let subscriptions = self.own.borrow();
        let mut all = subscriptions.iter();
        all.all(|Subscription { fan, number, .. }| fan.may_tell(*number, cx, grant))
    }

    /// Bytes of the queued notifications.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.inbox.borrow().bytes
    }

    /// Ends all subscriptions.
    pub(crate) fn end(&self) {
        for Subscription { fan, number, .. } in self.own.take() {
            fan.leave(number);
        }
    }

    /// Queues a notification.
    pub(super) fn tell(&self, start: Vec<u8>, said: Bytes) {
        if self.parted.get().is_some() {
            return;
        }
        let body = Body { start, middle: said, end: b"}}" };
        let mut inbox = self.inbox.borrow_mut();
        inbox.bytes += body.len();
        inbox.notices.push_back(body);
        if inbox.bytes > self.queue_bytes_max {
            *inbox = Inbox::default();
            self.parted.set(Some(Parting::Unread));
        }
        drop(inbox);
        self.wake();
    }

    /// Closes the connection, because events were missed.
    pub(super) fn part(&self) {
        self.parted.set(Some(self.parted.get().unwrap_or(Parting::Missed)));
        self.wake();
    }

    /// Takes the next notification. The connection's task is woken when there are more.
    pub(crate) fn take(&self, cx: &Context<'_>) -> Result<Option<Body>, Parting> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|own| own.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        if let Some(parting) = self.parted.get() {
            return Err(parting);
        }
        // The client cannot assign a notification before it knows the subscription's id.
        if self.untold.get() > 0 {
            return Ok(None);
        }
        let mut inbox = self.inbox.borrow_mut();
        let Some(body) = inbox.notices.pop_front() else { return Ok(None) };
        inbox.bytes -= body.len();
        if inbox.notices.is_empty() {
            inbox.notices.shrink_to(0);
        }
        Ok(Some(body))
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// One message of a client that can subscribe, until its response is queued. Notifications wait
/// until then.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(super) subscriber: Rc<Subscriber>,
    /// Number of subscriptions that this message started.
    begun: Cell<usize>,
}

impl Asking {
    pub(crate) fn of(subscriber: &Rc<Subscriber>) -> Asking {
        Asking { subscriber: Rc::clone(subscriber), begun: Cell::new(0) }
    }

    /// Records a subscription whose id was not sent to the client yet.
    pub(super) fn joined(&self) {
        self.begun.set(self.begun.get() + 1);
        self.subscriber.untold.set(self.subscriber.untold.get() + 1);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.subscriber.untold.set(self.subscriber.untold.get() - self.begun.get());
    }
}
