//! What outlives every reload: how the reloads ended, and the index.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::cache::index::Index;

/// What all configurations of one process have in common, beside the registry of the upstreams.
#[derive(Default)]
pub(crate) struct Process {
    reloads: Mutex<Reloads>,
    /// The reader of the index, where there is one.
    index: OnceLock<Arc<dyn Index>>,
}

/// What came of the reloads so far.
#[derive(Debug, Clone)]
pub(crate) struct Reloads {
    /// Counts configurations from 1, the one it was started with.
    pub(crate) generation: u64,
    pub(crate) applied: u64,
    pub(crate) refused: u64,
    /// The last one; none before the first.
    pub(crate) last: Option<Reloaded>,
    /// Attempts to hand over to another process that failed, and why the last one did.
    pub(crate) upgrades_failed: u64,
    pub(crate) upgrade_fault: Option<String>,
}

/// One reload.
#[derive(Debug, Clone)]
pub(crate) struct Reloaded {
    pub(crate) at: SystemTime,
    pub(crate) outcome: Outcome,
}

/// How a reload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The new configuration is in use; what it changed and what of that waits for a restart.
    Applied { changes: Vec<String> },
    /// It is faulty, and the old one stays in use. The reasons show no secret.
    Refused { why: String },
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
    /// The reader of the index.
    pub(crate) fn index(&self) -> Option<&Arc<dyn Index>> {
        self.index.get()
    }

    /// Sets the reader of the index, before anything is served.
    pub(crate) fn with_index(&self, index: Arc<dyn Index>) {
        // Only the first counts: it is set before the threads start.
        let _set = self.index.set(index);
    }

    pub(crate) fn reloads(&self) -> Reloads {
        self.reloads.lock().clone()
    }

    /// Notes that another process could not take this one's place.
    pub(crate) fn upgrade_failed(&self, why: &str) {
        let mut reloads = self.reloads.lock();
        reloads.upgrades_failed += 1;
        reloads.upgrade_fault = Some(why.to_owned());
    }

    /// Notes how a reload ended.
    pub(crate) fn reloaded(&self, outcome: Outcome) {
        let mut reloads = self.reloads.lock();
        match &outcome {
            Outcome::Applied { .. } => {
                reloads.applied += 1;
                reloads.generation += 1;
            }
            Outcome::Refused { .. } => reloads.refused += 1,
        }
        reloads.last = Some(Reloaded { at: SystemTime::now(), outcome });
    }
}
