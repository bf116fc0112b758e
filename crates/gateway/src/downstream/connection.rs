//! The state of a client connection that other tasks of its thread can access.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::io::memory::Account;

/// The part of a connection's state that other tasks of the thread can access. A graceful stop and
/// the memory budget use it.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// True from the first byte of a request until its response is written.
    pub(super) busy: Cell<bool>,
    /// True if a graceful stop has begun.
    is_stopping: Cell<bool>,
    /// Wakes the connection's task while it waits for a request.
    waker: RefCell<Option<Waker>>,
    /// The connection's account in the memory budget.
    pub(crate) account: Rc<Account>,
}

impl ConnectionState {
    /// Closes the connection if no request is in progress. Otherwise the connection closes after
    /// the response.
    pub(crate) fn close_if_idle(&self) {
        self.is_stopping.set(true);
        if !self.busy.get()
            && let Some(waker) = self.waker.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Returns true if a graceful stop has begun, so that the connection must close instead of
    /// waiting for input. If not, `task` will be woken when a stop begins.
    pub(super) fn must_close(&self, task: &Context<'_>) -> bool {
        let mut waker = self.waker.borrow_mut();
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(task.waker())) {
            *waker = Some(task.waker().clone());
        }
        self.is_stopping.get()
    }
}
