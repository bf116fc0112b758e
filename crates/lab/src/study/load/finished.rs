//! A finished run of a study, as [`super::store`] reads it.

use lab_model::results::load_study::RunCounts;
use serde::{Deserialize, Serialize};

use crate::variant::Run;

/// How a run was made: `run.json` of its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Start in seconds since 1970. Servers that the run needs start after this time.
    pub started_unix: f64,
    /// Seconds that the run took, with the pause before it.
    pub seconds: f64,
    /// Milliseconds that a fixed computation took before the run; see `load/machine.rs`.
    pub calibration_ms: f64,
    /// Reason why the run failed. `None` if it succeeded.
    pub fault: Option<String>,
    /// Counts of the run. `None` if it failed.
    #[serde(default)]
    pub counts: Option<RunCounts>,
}

/// Identifies a run of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    /// Number of the round, from 0.
    pub round: usize,
    /// Index of the plan or case.
    pub plan: usize,
    /// Index of the variant.
    pub variant: usize,
}

/// A finished run.
#[derive(Clone, Debug)]
pub struct FinishedRun {
    /// Round, plan and variant of the run.
    pub id: RunId,
    /// Time and circumstances of the run.
    pub facts: RunFacts,
    /// Values of the run. `None` if the run failed.
    pub run: Option<Run>,
}
