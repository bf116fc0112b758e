//! What a comparison ends with: `weir compare A B`, as text, Markdown and JSON.
//!
//! Arms are results of our own or of other tools (`foreign.rs`). Whether they may be compared is
//! decided in `rules/sameness.rs`, what a difference means in `rules/compare.rs`. Nothing here
//! measures.

pub mod arm;
mod find;
mod judge;
mod text;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use find::{arm_of, arms_at};
pub use judge::{Options, compare};
pub use text::{markdown, text};

/// Version of the shape below.
pub const SCHEMA: &str = "weir.compare/1";

/// One comparison, told whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompareResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// The first is what the others are compared with.
    pub arms: Vec<ArmRow>,
    /// What the arms do not have in common.
    pub mismatches: Vec<Mismatch>,
    /// Differences of every further arm to the first, by method and metric.
    pub differences: Vec<Difference>,
    /// Every arm's figures per core and per request; for arms from different machines.
    pub normalised: Vec<NormalRow>,
    /// What the whole comparison comes to, in one sentence per further arm.
    pub sentences: Vec<String>,
    /// Doubts, each with advice.
    pub warnings: Vec<String>,
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmRow {
    /// Its name.
    pub name: String,
    /// `weir`, `k6`, `vegeta` or `erigon`.
    pub tool: String,
    /// Runs that were used; runs are the unit of replication.
    pub runs: usize,
    /// Runs that were left out, with why.
    pub left_out: Vec<String>,
    /// Which target, plan and machine, in one line, as far as is known.
    pub described: String,
}

/// Something that the arms do not have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// What: `plan`, `seed`, `chain`, `head`, `machine`, …
    pub what: String,
    /// The first arm's.
    pub a: String,
    /// The other arm's.
    pub b: String,
    /// The other arm's name.
    pub arm: String,
    /// How grave it is.
    pub weight: Weight,
    /// What follows from it.
    pub why: String,
}

/// How grave a mismatch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// To know.
    Note,
    /// A difference may come from it.
    Warn,
    /// The numbers do not mean the same.
    Refuse,
}

/// One metric of one method, of the first arm and another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The other arm's name.
    pub arm: String,
    /// The method, `all`, or for other tools' results what they call it.
    pub method: String,
    /// The metric.
    pub metric: Metric,
    /// The first arm's value: the median over its runs, in the metric's unit.
    pub a: f64,
    /// The other arm's.
    pub b: f64,
    /// Runs, or blocks of time within the single run, of the first arm.
    pub a_count: usize,
    /// The same of the other arm.
    pub b_count: usize,
    /// Relative change from the first to the other, or the plain difference for shares.
    pub change: f64,
    /// 95 % interval of the change; none if there is too little to say.
    pub interval: Option<(f64, f64)>,
    /// Chance of such a difference between equal arms, corrected for the number of metrics (Holm).
    pub p: Option<f64>,
    /// A change smaller than this does not matter, in the unit of `change`.
    pub floor: f64,
    /// How it was judged.
    pub basis: Basis,
    /// In one word.
    pub verdict: Word,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean, from the planned send, in milliseconds.
    LatencyMean,
    /// Median, from the planned send, in milliseconds.
    LatencyP50,
    /// 95th percentile, from the planned send, in milliseconds.
    LatencyP95,
    /// 99th percentile, from the planned send, in milliseconds.
    LatencyP99,
    /// Mean, from the real send, in milliseconds.
    ServiceMean,
    /// Median, from the real send, in milliseconds.
    ServiceP50,
    /// 95th percentile, from the real send, in milliseconds.
    ServiceP95,
    /// 99th percentile, from the real send, in milliseconds.
    ServiceP99,
    /// Results per second.
    Goodput,
    /// Failed calls / calls.
    FailedShare,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Four runs or more of each arm: ranks of runs.
    Runs,
    /// Two or three runs of each arm: normal distribution of their logarithms taken for granted.
    FewRuns,
    /// Runs in pairs: the first of the one arm with the first of the other, and so on.
    PairedRuns,
    /// One run of an arm: blocks of time within it. How much runs differ from each other is not
    /// known.
    WithinRun,
    /// One run of an arm, too short for its seconds: the number of its calls.
    Calls,
    /// One value of each arm, farther apart than any noise between runs.
    FarApart,
    /// Nothing but the values.
    ValuesOnly,
}

/// In one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The other arm is better by more than the floor.
    Better,
    /// The other arm is worse by more than the floor.
    Worse,
    /// Any difference is smaller than the floor, and there may be none.
    Same,
    /// There is a difference, but it is smaller than the floor.
    Negligible,
    /// The data do not tell.
    CannotTell,
}

/// An arm's figures, brought to one core and one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NormalRow {
    /// The arm's name.
    pub arm: String,
    /// The generator's machine.
    pub machine: String,
    /// Cores that the target may use; none if that is not known, as of a target elsewhere.
    pub cores: Option<f64>,
    /// Results per second, all methods.
    pub goodput: Option<f64>,
    /// Results per second and core.
    pub goodput_per_core: Option<f64>,
    /// Median latency, all methods, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile, all methods, in milliseconds.
    pub p99_ms: Option<f64>,
    /// CPU milliseconds per request of the watched processes together.
    pub cpu_ms_per_request: Option<f64>,
}

#[cfg(test)]
pub(crate) mod tests;
