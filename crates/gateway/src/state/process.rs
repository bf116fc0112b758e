//! State that outlives every reload: the outcomes of reloads, the index, and the control socket.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::cache::index::Index;

/// State of the process, besides the registry of the upstreams.
#[derive(Default)]
pub(crate) struct Process {
    reloads: Mutex<Reloads>,
    /// The reader of the index; empty without an index.
    index: OnceLock<Arc<dyn Index>>,
    /// The name of the control socket; empty without one.
    control_socket: OnceLock<String>,
}

/// Outcomes of all reloads.
#[derive(Debug, Clone)]
pub(crate) struct Reloads {
    /// Number of the current configuration; the process starts with 1.
    pub(crate) generation: u64,
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

impl Default for Reloads {
    fn default() -> Reloads {
        Reloads {
            generation: 1,
            applied: 0,
            refused: 0,
            last: None,
            upgrades_failed: 0,
            upgrade_fault: None,
        }
    }
}

impl Process {
    /// Returns the reader of the index.
    pub(crate) fn index(&self) -> Option<&Arc<dyn Index>> {
        self.index.get()
    }

    /// Sets the reader of the index, before anything is served.
    pub(crate) fn set_index(&self, index: Arc<dyn Index>) {
        // The index is set once, before the threads start.
        let _set = self.index.set(index);
    }

    /// Returns the name of the control socket.
    pub(crate) fn control_socket(&self) -> Option<&str> {
        self.control_socket.get().map(String::as_str)
    }

    /// Sets the name of the control socket, before any status is read.
    pub(crate) fn set_control_socket(&self, name: String) {
        // The name is set once, when the watch thread starts.
        let _set = self.control_socket.set(name);
    }

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
            Outcome::Applied { .. } => {
                reloads.applied += 1;
                reloads.generation += 1;
            }
            Outcome::Refused { .. } => reloads.refused += 1,
        }
        reloads.last = Some(ReloadRecord { ended_at: SystemTime::now(), outcome });
    }
}
