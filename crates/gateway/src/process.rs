//! The state of the process, which all configurations share and no reload replaces: the start of
//! the clock, the memory budget, the unique numbers of chains and upstreams, and the outcomes of
//! reloads and upgrades.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::refusals::Refusals;
use crate::io::memory::Budget;
use crate::policy::availability::ReportedAvailability;

/// State that outlives every reload.
pub(crate) struct Process {
    /// The start of the process, from which all policies count time.
    pub(crate) started: Instant,
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
    reloads: Mutex<Reloads>,
    /// The name of the control socket, set when the watch thread (`runtime/watch.rs`) starts. Empty
    /// without such a socket.
    pub(crate) control_socket: OnceLock<String>,
}

/// Outcomes of reloads and upgrades. An *upgrade* hands the listening sockets over to a new
/// process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reloads {
    /// Number of applied reloads.
    pub(crate) applied: u64,
    /// Number of reloads that were refused because the new configuration is invalid.
    pub(crate) refused: u64,
    /// The last reload; `None` before the first.
    pub(crate) last: Option<ReloadRecord>,
    /// Number of failed hand-overs to another process.
    pub(crate) upgrades_failed: u64,
    /// Reason of the last failed hand-over; `None` before the first failure.
    pub(crate) upgrade_fault: Option<String>,
}

/// The time and outcome of a reload.
#[derive(Debug, Clone)]
pub(crate) struct ReloadRecord {
    /// When the reload ended.
    pub(crate) ended_at: SystemTime,
    pub(crate) outcome: ReloadOutcome,
}

/// How a reload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReloadOutcome {
    /// The new configuration is in use. `changes` lists the changed keys, including keys that only
    /// a restart applies.
    Applied { changes: Vec<String> },
    /// The new configuration is invalid, and the old one stays in use. The reason holds no secret.
    Refused { reason: String },
}

impl Reloads {
    /// Returns the number of the current configuration: 1 at the start, and one more after each
    /// applied reload.
    pub(crate) fn generation(&self) -> u64 {
        self.applied + 1
    }
}

impl Process {
    pub(crate) fn new() -> Arc<Process> {
        Arc::new(Process {
            started: Instant::now(),
            last_number: AtomicU64::new(0),
            lost_upstream: Notify::new(),
            memory: Arc::default(),
            refusals: Refusals::default(),
            redis: Default::default(),
            reloads: Mutex::default(),
            control_socket: OnceLock::new(),
        })
    }

    /// Returns the time since the process started.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns a new unique number, which is never 0. The number identifies an upstream, or a chain
    /// that takes the name of another chain.
    pub(crate) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns a copy of the outcomes.
    pub(crate) fn reloads(&self) -> Reloads {
        self.reloads.lock().clone()
    }

    /// Records a failed hand-over to another process.
    pub(crate) fn record_failed_upgrade(&self, reason: &str) {
        let mut reloads = self.reloads.lock();
        reloads.upgrades_failed += 1;
        reloads.upgrade_fault = Some(reason.to_owned());
    }

    /// Records the outcome of a reload.
    pub(crate) fn record_reload(&self, outcome: ReloadOutcome) {
        let mut reloads = self.reloads.lock();
        match &outcome {
            ReloadOutcome::Applied { .. } => reloads.applied += 1,
            ReloadOutcome::Refused { .. } => reloads.refused += 1,
        }
        reloads.last = Some(ReloadRecord { ended_at: SystemTime::now(), outcome });
    }
}
