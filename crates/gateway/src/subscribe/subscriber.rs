//! The subscriptions of one client connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use aws_lc_rs::rand;

use super::fan::{FanOut, Subscriptions};
use super::notifications::Notifications;
use super::selection::LogSelection;
use crate::policy::access::Grant;
use crate::state::context::ThreadContext;

/// A connection that can receive notifications.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// The subscriptions and filters of this thread.
    pub(super) subscriptions: Rc<Subscriptions>,
    /// Maximum number of subscriptions of the connection.
    subscriptions_max: usize,
    /// The connection's subscriptions.
    active: RefCell<Vec<Subscription>>,
    /// The notifications that wait for the connection's task.
    pub(crate) notifications: Rc<Notifications>,
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

impl Subscriber {
    pub(crate) fn new(
        subscriptions: &Rc<Subscriptions>,
        subscriptions_max: usize,
        queue_bytes_max: usize,
    ) -> Rc<Subscriber> {
        Rc::new(Subscriber {
            subscriptions: Rc::clone(subscriptions),
            subscriptions_max,
            active: RefCell::default(),
            notifications: Rc::new(Notifications::new(queue_bytes_max)),
        })
    }

    /// Returns true if another subscription is allowed.
    pub(super) fn can_subscribe(&self) -> bool {
        self.active.borrow().len() < self.subscriptions_max
    }

    /// Starts a subscription and returns its unpredictable id. Returns `None` if the system has no
    /// randomness.
    pub(super) fn subscribe(
        &self,
        fan: &Rc<FanOut>,
        namespace: &str,
        selection: Option<LogSelection>,
    ) -> Option<Rc<str>> {
        let mut id_bytes = [0; 16];
        rand::fill(&mut id_bytes).ok()?;
        let id: Rc<str> = format!("0x{:032x}", u128::from_be_bytes(id_bytes)).into();
        let number = fan.add(Rc::clone(&self.notifications), Rc::clone(&id), namespace, selection);
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

    /// Ends all subscriptions.
    pub(crate) fn end(&self) {
        for Subscription { fan, number, .. } in self.active.take() {
            fan.remove(number);
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
        self.subscriber.notifications.hold(1);
    }
}

impl Drop for MessageGuard {
    fn drop(&mut self) {
        self.subscriber.notifications.release(self.started.get());
    }
}
