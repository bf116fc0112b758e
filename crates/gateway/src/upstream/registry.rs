//! The state that all configurations of one process share: the clock, the unique numbers of chains
//! and upstreams, and the memory budget. A *topology* is the upstreams of one configuration. The
//! registry also lists the topologies in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::refusals::Refusals;
use crate::io::memory::Budget;
use crate::policy::availability::ReportedAvailability;
use crate::upstream::topology::Topology;

/// State that outlives every reload.
pub(crate) struct Registry {
    /// The start of the process, from which all policies count time.
    pub(crate) started: Instant,
    /// The topologies in use. Locked briefly, and never on the path of a call.
    in_use: Mutex<Vec<Weak<Topology>>>,
    /// The last number that `next_number` returned.
    last_number: AtomicU64,
    /// Notified when any upstream is suspected (it does not respond) or ejected (it has failed).
    /// Calls that wait for a response of this upstream may then start another attempt.
    pub(crate) lost_upstream: Notify,
    /// The memory budget for all bodies, responses and queues.
    pub(crate) memory: Arc<Budget>,
    /// The refused methods.
    pub(crate) refusals: Refusals,
    /// What the log reports about the primary of Redis and about its replicas.
    pub(crate) redis: [Mutex<ReportedAvailability>; 2],
}

impl Registry {
    pub(crate) fn new() -> Arc<Registry> {
        Arc::new(Registry {
            started: Instant::now(),
            in_use: Mutex::default(),
            last_number: AtomicU64::new(0),
            lost_upstream: Notify::new(),
            memory: Arc::default(),
            refusals: Refusals::default(),
            redis: Default::default(),
        })
    }

    /// Returns the time since the process started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Adds a topology and removes unused topologies.
    pub(super) fn add(&self, topology: &Arc<Topology>) {
        let mut in_use = self.in_use.lock();
        in_use.retain(|topology| topology.strong_count() > 0);
        in_use.push(Arc::downgrade(topology));
    }

    /// Returns the topologies in use: the newest topology, and older topologies that calls in
    /// flight still use.
    pub(super) fn in_use(&self) -> Vec<Arc<Topology>> {
        self.in_use.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns a new unique number, which is never 0. The number identifies an upstream, or a chain
    /// that takes the name of another chain.
    pub(super) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }
}
