//! What all configurations of one process have in common: its clock, which of them are still in use,
//! and how the last reload ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Shared;
use crate::index::Index;
use crate::memory::Budget;

/// What outlives every reload.
pub(crate) struct Lineage {
    /// Where the clock of all rules begins.
    pub(super) started: Instant,
    /// Locked for the time of a look; calls never come here.
    alive: Mutex<Vec<Weak<Shared>>>,
    chains: AtomicU64,
    nodes: AtomicU64,
    reloads: Mutex<Reloads>,
    /// Told when any node is suspected or taken out; calls that have waited long listen.
    pub(crate) lost_node: Notify,
    /// Who reads the index, where there is one.
    index: OnceLock<Arc<dyn Index>>,
    /// Bytes of all bodies, responses and queues.
    pub(crate) memory: Arc<Budget>,
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

impl Lineage {
    pub(super) fn new() -> Arc<Lineage> {
        let reloads = Reloads {
            generation: 1,
            applied: 0,
            refused: 0,
            last: None,
            upgrades_failed: 0,
            upgrade_fault: None,
        };
        Arc::new(Lineage {
            started: Instant::now(),
            alive: Mutex::default(),
            chains: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            reloads: Mutex::new(reloads),
            lost_node: Notify::new(),
            index: OnceLock::new(),
            memory: Arc::default(),
        })
    }

    /// Who reads the index.
    pub(crate) fn index(&self) -> Option<&Arc<dyn Index>> {
        self.index.get()
    }

    /// Hands over who reads the index, before anything is served.
    pub(crate) fn with_index(&self, index: Arc<dyn Index>) {
        // Only the first counts: it is told before the threads start.
        let _told = self.index.set(index);
    }

    /// A configuration comes into use.
    pub(super) fn joined(&self, shared: &Arc<Shared>) {
        let mut alive = self.alive.lock();
        alive.retain(|other| other.strong_count() > 0);
        alive.push(Arc::downgrade(shared));
    }

    /// The configurations that are in use: the newest, and those that calls under way began with.
    pub(super) fn in_use(&self) -> Vec<Arc<Shared>> {
        self.alive.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A number that no node had before; none has zero.
    pub(super) fn next_node(&self) -> u64 {
        self.nodes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number that no chain had before, for a chain that takes another one's name.
    pub(super) fn next_chain(&self) -> u64 {
        self.chains.fetch_add(1, Ordering::Relaxed) + 1
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
