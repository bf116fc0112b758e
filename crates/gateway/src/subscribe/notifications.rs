//! The notifications of one client connection that wait for the connection's task.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Waker};

use bytes::Bytes;

use crate::call::reply::Body;

/// The notifications of one connection.
#[derive(Debug)]
pub(crate) struct Notifications {
    /// Maximum bytes of queued notifications.
    queue_bytes_max: usize,
    queue: RefCell<Queue>,
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

/// The queued notifications.
#[derive(Debug, Default)]
struct Queue {
    notifications: VecDeque<Body>,
    /// Total bytes of the notifications.
    bytes: usize,
}

impl Notifications {
    pub(super) fn new(queue_bytes_max: usize) -> Notifications {
        Notifications {
            queue_bytes_max,
            queue: RefCell::default(),
            unannounced: Cell::new(0),
            waker: RefCell::new(None),
            close_reason: Cell::new(None),
        }
    }

    /// Holds all notifications until the ids of `count` more subscriptions are sent.
    pub(super) fn hold(&self, count: usize) {
        self.unannounced.set(self.unannounced.get() + count);
    }

    /// Records that the ids of `count` subscriptions are sent.
    pub(super) fn release(&self, count: usize) {
        self.unannounced.set(self.unannounced.get() - count);
    }

    /// Returns the bytes of the queued notifications.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.borrow().bytes
    }

    /// Queues a notification. `start` is the JSON text before `result`. If the queue becomes too
    /// large, the connection will be closed.
    pub(super) fn push(&self, start: Vec<u8>, result: Bytes) {
        if self.close_reason.get().is_some() {
            return;
        }
        let body = Body { start, middle: result, end: b"}}" };
        let mut queue = self.queue.borrow_mut();
        queue.bytes += body.len();
        queue.notifications.push_back(body);
        if queue.bytes > self.queue_bytes_max {
            *queue = Queue::default();
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
    /// sent yet. The waker of `task` is woken when the result may have changed.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn poll_next(&self, task: &Context<'_>) -> Result<Option<Body>, CloseReason> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|stored_waker| stored_waker.will_wake(task.waker())) {
            *waker = Some(task.waker().clone());
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
