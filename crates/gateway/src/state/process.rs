//! State that outlives every reload: the outcomes of reloads and upgrades, the index, and the
//! control socket.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::cache::index::Index;

/// State of the process, besides the registry of the upstreams.
#[derive(Default)]
pub(crate) struct Process {
    reloads: Mutex<Reloads>,
    /// The reader of the index; empty without an index. Set before the threads start.
    pub(crate) index: OnceLock<Arc<dyn Index>>,
    /// The name of the control socket; empty without one. Set when the watch thread starts.
    pub(crate) control_socket: OnceLock<String>,
}

/// Outcomes of all reloads, and failed upgrades. An upgrade hands the sockets over to a new
/// process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reloads {
    /// Number of applied reloads.
    pub(crate) applied: u64,
    /// Number of refused reloads.
    pub(crate) refused: u64,
    /// The last reload; `None` before the first.
    pub(crate) last: Option<ReloadRecord>,
    /// Number of failed hand-overs to another process.
    pub(crate) upgrades_failed: u64,
    /// Reason of the last failed hand-over.
    pub(crate) upgrade_fault: Option<String>,
}

/// The time and outcome of a reload.
#[derive(Debug, Clone)]
pub(crate) struct ReloadRecord {
    pub(crate) ended_at: SystemTime,
    pub(crate) outcome: Outcome,
}

/// How a reload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The new configuration is in use. Lists the changed keys, and the changes that need a
    /// restart.
    Applied { changes: Vec<String> },
    /// The new configuration is invalid, and the old one stays in use. The reason holds no secret.
    Refused { reason: String },
}

impl Reloads {
    /// Returns the number of the current configuration; the process starts with 1.
    pub(crate) fn generation(&self) -> u64 {
        self.applied + 1
    }
}

impl Process {
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
    pub(crate) fn record_reload(&self, outcome: Outcome) {
        let mut reloads = self.reloads.lock();
        match &outcome {
            Outcome::Applied { .. } => reloads.applied += 1,
            Outcome::Refused { .. } => reloads.refused += 1,
        }
        reloads.last = Some(ReloadRecord { ended_at: SystemTime::now(), outcome });
    }
}
