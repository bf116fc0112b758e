//! What one thread's transports to all upstreams share: the clock, random numbers, buffers, ids of
//! calls, and the memory budget.
//!
//! A thread has one [`ThreadResources`] for its whole life. Reloads keep it. Nothing in it is
//! locked.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::io::buffers::Buffers;
use crate::io::clock::Clock;
use crate::io::memory::Budget;
use crate::io::random::Random;
use crate::process::Process;

/// The resources of one thread.
pub(crate) struct ThreadResources {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    /// Reusable buffers for requests and responses.
    pub(crate) buffers: Buffers,
    /// The memory budget of the process.
    pub(crate) memory: Arc<Budget>,
    /// The next id of a call to an upstream.
    next_id: Cell<u64>,
}

impl ThreadResources {
    pub(crate) fn new(process: &Process, random: Random) -> Rc<ThreadResources> {
        Rc::new(ThreadResources {
            clock: Clock::new(process.started),
            random,
            buffers: Buffers::default(),
            memory: Arc::clone(&process.memory),
            next_id: Cell::new(1),
        })
    }

    /// Returns a new id for a call to an upstream. The upstream receives this id instead of the
    /// client's id.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }
}
