//! One run from its first step to its last: the only place that knows the order of the lab's steps.
//!
//! It decides nothing itself: what is sent when is the engine's, what numbers mean is the rules'.
//! Whoever shows or writes something gets [`Progress`] each second and [`Finished`] at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::plan::Plan;
use crate::record::Totals;
use crate::result::{HostSample, RunResult, Second, TargetFacts, ThresholdOutcome};

/// Asks a run to end early, from another thread or from a signal's handler. The run then ends in
/// order: calls under way are cut, and what was measured is kept and marked as a part.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Not asked yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks; more than once is as good as once.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A run as it stands at the end of one of its seconds.
pub struct Progress<'a> {
    /// Time since the start of the run.
    pub at: Duration,
    /// Time that the plan takes, without the grace for calls under way.
    pub of: Duration,
    /// The plan, for names of methods and stages.
    pub plan: &'a Plan,
    /// Who is loaded, as found at the start.
    pub target: &'a TargetFacts,
    /// The second that has just ended.
    pub second: &'a Second,
    /// Everything since the start of the run, warm-up included.
    pub totals: &'a Totals,
    /// What was watched on hosts since the last call of this kind.
    pub host: &'a [HostSample],
    /// Objectives as they stand.
    pub thresholds: &'a [ThresholdOutcome],
}

/// What a run leaves.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Everything told.
    pub result: RunResult,
    /// Everything counted, warm-up left out.
    pub totals: Totals,
}
