//! Deadlines of workers (k6: VUs), in one queue per timeout. All workers of a queue have the same
//! timeout, so the first worker of a queue is always the next to expire.
//!
//! Setting and removing a deadline takes constant time. A worker has at most one deadline, so the
//! memory depends only on the number of workers. Times are nanoseconds since the start of the run.

/// A stop extends deadlines if it takes at least the timeout divided by this.
const EXTENSION_PARTS: u64 = 10;
/// Id that marks the end of a queue.
const NO_WORKER: u32 = u32::MAX;
/// Index that marks a worker without a deadline.
const NO_QUEUE: u16 = u16::MAX;

/// A worker's deadline. The entries of a queue form a doubly linked list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index of the queue, or [`NO_QUEUE`].
    queue: u16,
    /// Worker before this one in the queue, or [`NO_WORKER`].
    previous: u32,
    /// Worker after this one in the queue, or [`NO_WORKER`].
    next: u32,
    expires_at: u64,
    /// Time by which [`Deadlines::extend`] has extended the deadline.
    extended_ns: u64,
}

/// A queue of workers in the order of their deadlines.
#[derive(Clone, Copy, Debug)]
struct Queue {
    /// First worker, or [`NO_WORKER`] if the queue is empty.
    first: u32,
    /// Last worker, or [`NO_WORKER`] if the queue is empty.
    last: u32,
    /// Timeout of all workers in the queue.
    timeout_ns: u64,
}

/// All queues of a thread.
#[derive(Debug)]
pub(crate) struct Deadlines {
    /// The index is the worker id.
    entries: Vec<Entry>,
    queues: Vec<Queue>,
}

impl Deadlines {
    /// Creates one queue per timeout, in the order of `timeouts_ns`.
    pub(crate) fn new(workers: usize, timeouts_ns: &[u64]) -> Deadlines {
        let unset = Entry {
            queue: NO_QUEUE,
            previous: NO_WORKER,
            next: NO_WORKER,
            expires_at: 0,
            extended_ns: 0,
        };
        let queue = |&timeout_ns: &u64| Queue { first: NO_WORKER, last: NO_WORKER, timeout_ns };
        Deadlines { entries: vec![unset; workers], queues: timeouts_ns.iter().map(queue).collect() }
    }

    /// Sets the worker's deadline to `now` plus the queue's timeout. `now` must not decrease from
    /// call to call.
    pub(crate) fn set(&mut self, queue: usize, worker: u32, now: u64) {
        self.remove(worker);
        let Queue { last, timeout_ns, .. } = self.queues[queue];
        self.entries[worker as usize] = Entry {
            queue: queue as u16,
            previous: last,
            next: NO_WORKER,
            expires_at: now.saturating_add(timeout_ns),
            extended_ns: 0,
        };
        if last == NO_WORKER {
            self.queues[queue].first = worker;
        } else {
            self.entries[last as usize].next = worker;
        }
        self.queues[queue].last = worker;
    }

    /// Removes the worker's deadline, if it has one.
    pub(crate) fn remove(&mut self, worker: u32) {
        let Entry { queue, previous, next, .. } = self.entries[worker as usize];
        if queue == NO_QUEUE {
            return;
        }
        let queue = &mut self.queues[usize::from(queue)];
        if previous == NO_WORKER {
            queue.first = next;
        } else {
            self.entries[previous as usize].next = next;
        }
        if next == NO_WORKER {
            queue.last = previous;
        } else {
            self.entries[next as usize].previous = previous;
        }
        self.entries[worker as usize].queue = NO_QUEUE;
    }

    /// Extends the deadlines of a queue by a time in which the thread was stopped, which is not a
    /// delay of the server. Does nothing if the stop is short compared with the timeout.
    pub(crate) fn extend(&mut self, queue: usize, stopped_ns: u64, now: u64) {
        let Queue { first, timeout_ns, .. } = self.queues[queue];
        if stopped_ns < timeout_ns / EXTENSION_PARTS {
            return;
        }
        let mut worker = first;
        while worker != NO_WORKER {
            let entry = &mut self.entries[worker as usize];
            // A deadline that was set in the stop is extended by less.
            let latest_ns = now.saturating_add(timeout_ns).saturating_sub(entry.expires_at);
            let extension_ns = stopped_ns.min(latest_ns);
            entry.expires_at += extension_ns;
            entry.extended_ns += extension_ns;
            worker = entry.next;
        }
    }

    /// Removes the first worker of a queue and returns it with its deadline, without extensions.
    /// Returns `None` if no deadline of the queue has passed.
    pub(crate) fn take_expired(&mut self, queue: usize, now: u64) -> Option<(u32, u64)> {
        let expires_at = self.earliest(queue)?;
        let first = self.queues[queue].first;
        (expires_at <= now).then(|| {
            self.remove(first);
            (first, expires_at - self.entries[first as usize].extended_ns)
        })
    }

    /// Returns true if the worker has a deadline.
    pub(crate) fn is_set(&self, worker: u32) -> bool {
        self.entries[worker as usize].queue != NO_QUEUE
    }

    /// Returns the earliest deadline of a queue, or `None` if the queue is empty.
    pub(crate) fn earliest(&self, queue: usize) -> Option<u64> {
        let first = self.queues[queue].first;
        (first != NO_WORKER).then(|| self.entries[first as usize].expires_at)
    }
}

#[cfg(test)]
mod tests;
