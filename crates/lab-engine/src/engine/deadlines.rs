//! Deadlines of workers, in queues. All workers of a queue have the same timeout, so the first
//! worker of a queue is always the next to expire.
//!
//! Setting and removing a deadline takes constant time. The memory depends only on the number of
//! workers. A worker has at most one deadline.

/// Marks the end of a queue.
const NO_WORKER: u32 = u32::MAX;
/// Marks a worker without a deadline.
const NO_QUEUE: u16 = u16::MAX;

/// A worker's deadline, as an element of a doubly linked list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: u16,
    previous: u32,
    next: u32,
    until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    timeout: u64,
}

/// All queues of a thread. Times are nanoseconds since the start of the run.
#[derive(Debug)]
pub(crate) struct Deadlines {
    entries: Vec<Entry>,
    queues: Vec<Queue>,
}

impl Deadlines {
    /// Creates one queue for each of `timeouts`, in nanoseconds.
    pub(crate) fn new(workers: usize, timeouts: &[u64]) -> Deadlines {
        let unset = Entry { queue: NO_QUEUE, previous: NO_WORKER, next: NO_WORKER, until: 0 };
        let queue = |&timeout: &u64| Queue { first: NO_WORKER, last: NO_WORKER, timeout };
        Deadlines { entries: vec![unset; workers], queues: timeouts.iter().map(queue).collect() }
    }

    /// Sets the worker's deadline to `now` plus the queue's timeout. `now` must not decrease.
    pub(crate) fn set(&mut self, queue: usize, worker: u32, now: u64) {
        self.remove(worker);
        let Queue { last, timeout, .. } = self.queues[queue];
        self.entries[worker as usize] = Entry {
            queue: queue as u16,
            previous: last,
            next: NO_WORKER,
            until: now.saturating_add(timeout),
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

    /// If the deadline of a queue's first worker has passed, removes the worker and returns it with
    /// its deadline.
    pub(crate) fn take_expired(&mut self, queue: usize, now: u64) -> Option<(u32, u64)> {
        let until = self.until(queue)?;
        let first = self.queues[queue].first;
        (until <= now).then(|| {
            self.remove(first);
            (first, until)
        })
    }

    /// Returns true if the worker has a deadline.
    pub(crate) fn is_set(&self, worker: u32) -> bool {
        self.entries[worker as usize].queue != NO_QUEUE
    }

    /// Returns the first deadline of a queue.
    pub(crate) fn until(&self, queue: usize) -> Option<u64> {
        let first = self.queues[queue].first;
        (first != NO_WORKER).then(|| self.entries[first as usize].until)
    }
}

#[cfg(test)]
mod tests;
