//! Questions that wait for a reader.
//!
//! A reader that rested last is woken first: what it has read is still near. With all of them woken
//! in turn, each would keep the same pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gateway::index::{Found, Question};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

#[cfg(test)]
mod tests;

/// Questions that may wait; more are left to the nodes.
const WAITING_MAX: usize = 1024;

/// A question and who waits for the answer: one that is dropped says that there is nothing.
pub(super) struct Job {
    pub question: Question,
    pub answer: oneshot::Sender<Found>,
}

/// Between those who ask and those who read. `T` is a [`Job`] but in tests.
pub(super) struct Queue<T = Job> {
    inner: Mutex<Inner<T>>,
    /// For those who cannot read at present.
    closing: Condvar,
}

struct Inner<T> {
    waiting: VecDeque<T>,
    /// Readers with nothing to do, the one that rested last at the end.
    resting: Vec<Arc<Condvar>>,
    /// Readers that can read.
    ready: usize,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        let inner =
            Inner { waiting: VecDeque::new(), resting: Vec::new(), ready: 0, closed: false };
        Queue { inner: Mutex::new(inner), closing: Condvar::new() }
    }
}

impl<T> Queue<T> {
    /// Puts a question in; drops it if nobody can read, or too many wait.
    pub(super) fn put(&self, job: T) {
        let mut inner = self.inner.lock();
        if inner.ready == 0 || inner.closed || inner.waiting.len() == WAITING_MAX {
            return;
        }
        inner.waiting.push_back(job);
        let woken = inner.resting.pop();
        drop(inner);
        if let Some(woken) = woken {
            woken.notify_one();
        }
    }

    /// The next question, once there is one; none if there will be no more.
    pub(super) fn next(&self) -> Option<T> {
        let mut inner = self.inner.lock();
        let mut own = None;
        loop {
            if let Some(job) = inner.waiting.pop_front() {
                return Some(job);
            }
            if inner.closed {
                return None;
            }
            let own = own.get_or_insert_with(|| Arc::new(Condvar::new()));
            inner.resting.push(Arc::clone(own));
            own.wait(&mut inner);
        }
    }

    /// The next question if one waits.
    pub(super) fn waiting(&self) -> Option<T> {
        self.inner.lock().waiting.pop_front()
    }

    /// One more can read.
    pub(super) fn join(&self) {
        self.inner.lock().ready += 1;
    }

    /// One can read no more. The last of them leaves nobody waiting.
    pub(super) fn leave(&self) {
        let mut inner = self.inner.lock();
        inner.ready -= 1;
        if inner.ready == 0 {
            inner.waiting.clear();
        }
    }

    /// Nobody asks any more; what waits is still answered.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let resting = std::mem::take(&mut inner.resting);
        drop(inner);
        for reader in resting {
            reader.notify_one();
        }
        self.closing.notify_all();
    }

    /// Waits so long; whether it was closed meanwhile.
    pub(super) fn closes_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut inner = self.inner.lock();
        self.closing.wait_while_until(&mut inner, |inner| !inner.closed, until);
        inner.closed
    }
}
