//! State of the process that reloads do not replace: the outcomes of reloads and upgrades, the
//! index, and the control socket.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::cache::index::Index;

/// State of the process. The registry of the upstreams (`upstream/registry.rs`) belongs to the
/// process too, but is not a part of this state.
#[derive(Default)]
pub(crate) struct ProcessState {
    reloads: Mutex<Reloads>,
    /// The reader of the index, set before the threads start. Empty without an index.
    pub(crate) index: OnceLock<Arc<dyn Index>>,
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

impl ProcessState {
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
