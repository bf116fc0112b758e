//! The subscriptions of one client connection, and the queue of its notifications.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use aws_lc_rs::rand;
use bytes::Bytes;

use super::fan::FanOut;
use super::{LogSelection, Subscriptions};
use crate::call::reply::Body;
use crate::policy::access::Grant;
use crate::state::context::ThreadContext;

/// A connection that can receive notifications.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// The subscriptions and filters of this thread.
    pub(super) subscriptions: Rc<Subscriptions>,
    /// Maximum number of subscriptions of the connection.
    subscriptions_max: usize,
    /// Maximum bytes of queued notifications.
    queue_bytes_max: usize,
    /// The connection's subscriptions.
    active: RefCell<Vec<Subscription>>,
    /// The notifications that wait for the connection's task.
    queue: RefCell<NotificationQueue>,
    /// Number of subscriptions whose id has not been sent to the client yet.
    unannounced: Cell<usize>,
    /// Wakes the connection's task; `None` until the task first polls.
    waker: RefCell<Option<Waker>>,
    /// Reason to close the connection; `None` while it may stay open.
    close_reason: Cell<Option<CloseReason>>,
}

/// Why a connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The queued notifications exceed their limit, because the client reads too slowly.
    QueueFull,
    /// The gateway has missed events of a subscription.
    EventsMissed,
}

/// A subscription of the connection.
#[derive(Debug)]
struct Subscription {
    id: Rc<str>,
    /// The fan that delivers the notifications.
    fan: Rc<FanOut>,
    /// Number of the subscription within the fan.
    number: u64,
}

/// The queued notifications.
#[derive(Debug, Default)]
struct NotificationQueue {
    notifications: VecDeque<Body>,
    /// Total bytes of the notifications.
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
            active: RefCell::default(),
            queue: RefCell::default(),
            unannounced: Cell::new(0),
            waker: RefCell::new(None),
            close_reason: Cell::new(None),
        })
    }

    /// Returns true if another subscription is allowed.
    pub(super) fn can_subscribe(&self) -> bool {
        self.active.borrow().len() < self.subscriptions_max
    }

    /// Starts a subscription and returns its unpredictable id. Returns `None` if the system has no
    /// randomness.
    pub(super) fn subscribe(
        self: &Rc<Subscriber>,
        fan: &Rc<FanOut>,
        namespace: &str,
        selection: Option<LogSelection>,
    ) -> Option<Rc<str>> {
        let mut id_bytes = [0; 16];
        rand::fill(&mut id_bytes).ok()?;
        let id: Rc<str> = format!("0x{:032x}", u128::from_be_bytes(id_bytes)).into();
        let number = fan.add(Rc::clone(self), Rc::clone(&id), namespace, selection);
        let subscription = Subscription { id: Rc::clone(&id), fan: Rc::clone(fan), number };
        self.active.borrow_mut().push(subscription);
        Some(id)
    }

    /// Ends a subscription. Returns false if it does not exist.
    pub(super) fn unsubscribe(&self, id: &[u8]) -> bool {
        let mut active = self.active.borrow_mut();
        let index = active.iter().position(|subscription| subscription.id.as_bytes() == id);
        let Some(index) = index else { return false };
        let Subscription { fan, number, .. } = active.swap_remove(index);
        drop(active);
        fan.remove(number);
        true
    }

    /// Returns true if a caller with this grant may still have all subscriptions of the connection.
    /// A grant holds the rights of an API key or token; `None` stands for a caller without a key or
    /// token.
    pub(crate) fn is_permitted(&self, cx: &ThreadContext, grant: Option<&Grant>) -> bool {
        let active = self.active.borrow();
        active
            .iter()
            .all(|subscription| subscription.fan.is_permitted(subscription.number, cx, grant))
    }

    /// Returns the bytes of the queued notifications.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.borrow().bytes
    }

    /// Ends all subscriptions.
    pub(crate) fn end(&self) {
        for Subscription { fan, number, .. } in self.active.take() {
            fan.remove(number);
        }
    }

    /// Queues a notification. `start` is the JSON text before `result`. If the queue becomes too
    /// large, the connection will be closed.
    pub(super) fn notify(&self, start: Vec<u8>, result: Bytes) {
        if self.close_reason.get().is_some() {
            return;
        }
        let body = Body { start, middle: result, end: b"}}" };
        let mut queue = self.queue.borrow_mut();
        queue.bytes += body.len();
        queue.notifications.push_back(body);
        if queue.bytes > self.queue_bytes_max {
            *queue = NotificationQueue::default();
            self.close_reason.set(Some(CloseReason::QueueFull));
        }
        drop(queue);
        self.wake();
    }

    /// Requests that the connection is closed, because the gateway has missed events.
    pub(super) fn close_after_missed_events(&self) {
        self.close_reason.set(Some(self.close_reason.get().unwrap_or(CloseReason::EventsMissed)));
        self.wake();
    }

    /// Takes the next notification. Returns `None` if no notification is queued, or if none may be
    /// sent yet. The waker of `cx` is woken when the result may have changed.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn poll_notification(&self, cx: &Context<'_>) -> Result<Option<Body>, CloseReason> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|stored_waker| stored_waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        if let Some(reason) = self.close_reason.get() {
            return Err(reason);
        }
        // Until a client knows the subscription's id, it cannot tell to which subscription a
        // notification belongs.
        if self.unannounced.get() > 0 {
            return Ok(None);
        }
        let mut queue = self.queue.borrow_mut();
        let Some(body) = queue.notifications.pop_front() else { return Ok(None) };
        queue.bytes -= body.len();
        if queue.notifications.is_empty() {
            queue.notifications.shrink_to(0);
        }
        Ok(Some(body))
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Exists while one message of a client is served. It is dropped once the response to the message
/// is queued. If the message starts subscriptions, the connection's notifications wait until then.
#[derive(Debug)]
pub(crate) struct MessageGuard {
    pub(super) subscriber: Rc<Subscriber>,
    /// Number of subscriptions that this message started.
    started: Cell<usize>,
}

impl MessageGuard {
    pub(crate) fn of(subscriber: &Rc<Subscriber>) -> MessageGuard {
        MessageGuard { subscriber: Rc::clone(subscriber), started: Cell::new(0) }
    }

    /// Counts a new subscription. Its id has not been sent to the client yet.
    pub(super) fn count_subscription(&self) {
        self.started.set(self.started.get() + 1);
        self.subscriber.unannounced.set(self.subscriber.unannounced.get() + 1);
    }
}

impl Drop for MessageGuard {
    fn drop(&mut self) {
        self.subscriber.unannounced.set(self.subscriber.unannounced.get() - self.started.get());
    }
}
