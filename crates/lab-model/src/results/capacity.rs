//! The result of a capacity search: `capacity.json`.
//!
//! Durations are seconds, instants are seconds since the start of the search, rates are iterations
//! per second summed over all scenarios.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Finding, Fingerprint, Outcome, PlanFacts, Quantiles, TargetFacts, ThresholdOutcome};
use crate::named::named;

/// Version of the shape below.
pub const SCHEMA: &str = "weir.capacity/1";

/// One capacity search, told whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Start, as RFC 3339 in UTC.
    pub started: String,
    /// Start, in seconds since 1970.
    pub started_unix: f64,
    /// How long the search took.
    pub duration: f64,
    /// Whether it was ended before its answer; everything in it is then of a part.
    pub partial: bool,
    /// What was asked.
    pub plan: PlanFacts,
    /// Who was asked.
    pub target: TargetFacts,
    /// The machine that asked.
    pub fingerprint: Fingerprint,
    /// How it searched.
    pub settings: SearchFacts,
    /// What every probe had to keep, as written.
    pub objectives: Vec<String>,
    /// Whether the objectives are ours, because the plan has none; the text says why these.
    pub objectives_by_default: Option<String>,
    /// What it found.
    pub answer: Answer,
    /// What broke first, at the lowest failing rate.
    pub binding: Option<Binding>,
    /// What saturated first, at the lowest failing rate.
    pub bottleneck: Option<Finding>,
    /// What a request costs the watched processes, at the highest passing rate.
    pub costs: Vec<ProcessCost>,
    /// All probes, in the order of time.
    pub probes: Vec<ProbeRow>,
    /// Universal scalability law fitted to the probes; descriptive only, never the verdict.
    pub scaling: Option<Scaling>,
    /// Doubts, each with advice.
    pub warnings: Vec<String>,
}

/// How a search went about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchFacts {
    /// First rate that was tried.
    pub rate_start: f64,
    /// Never above this rate.
    pub rate_max: f64,
    /// Relative width of the interval at which it ends.
    pub precision: f64,
    /// Time of one probe, warm-up included.
    pub probe: f64,
    /// The part of a probe that is not judged.
    pub probe_warmup: f64,
    /// Probes at each side of the boundary; a majority decides.
    pub repeats: usize,
    /// Wait between probes.
    pub drain: f64,
    /// Time of the last run at the highest pass; zero for none.
    pub soak: f64,
    /// Rate of the probes that look whether the target is as it was at the start.
    pub rate_baseline: f64,
}

named! {
    /// Why a search ended.
    pub enum End {
        /// The boundary lies between a passing and a failing rate, as close as was asked.
        Converged = "converged",
        /// Even the largest rate that was allowed passed.
        RateMax = "rate-max",
        /// The generator was the limit before the target was: the capacity is at least what passed.
        ClientLimited = "client-limited",
        /// Probes above the highest pass gave no numbers to believe.
        Invalid = "invalid",
        /// Even the lowest rate failed.
        NothingPassed = "nothing-passed",
        /// The limit of probes was reached before the boundary was close enough.
        ProbesMax = "probes-max",
        /// It was stopped, or the target could not be reached any more.
        Stopped = "stopped",
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Why it ended.
    pub end: End,
    /// The answer in one sentence.
    pub sentence: String,
    /// Highest rate that passed, below every rate that failed.
    pub highest_pass: Option<f64>,
    /// Lowest rate that failed.
    pub lowest_fail: Option<f64>,
    /// Whether the capacity is only known from below.
    pub at_least: bool,
    /// False if a rate passed above one that failed: the boundary is not sharp, or the target
    /// changed under the search.
    pub monotone: bool,
    /// How it breaks there.
    pub boundary: Boundary,
    /// Whether the highest pass held for the time of the soak; none if there was no soak.
    pub soak_held: Option<bool>,
    /// If the target did not come back to how it answered at the start: what was seen.
    pub degraded: Option<String>,
}

named! {
    /// How objectives break at the boundary.
    pub enum Boundary {
        /// Far within the objectives on one side and far outside on the other: no warning before it.
        Cliff = "cliff",
        /// Objectives are approached step by step.
        Gradual = "gradual",
        /// Not both sides are known.
        Unknown = "unknown",
    }
}

/// What broke first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// The objective, as written, or what was judged beside objectives.
    pub objective: String,
    /// The method that breaks it, if it is one.
    pub method: Option<String>,
    /// What was observed, in the objective's unit.
    pub observed: Option<f64>,
    /// What is allowed, in the objective's unit.
    pub limit: Option<f64>,
    /// The rate at which it broke.
    pub rate: f64,
    /// Index into [`CapacityResult::probes`].
    pub probe: usize,
}

/// What a request costs a watched process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessCost {
    /// The process, as host samples name it.
    pub process: String,
    /// CPU milliseconds per HTTP request.
    pub cpu_ms_per_request: f64,
    /// Index into [`CapacityResult::probes`] of the probe that it was measured in.
    pub probe: usize,
}

named! {
    /// What a probe was for.
    pub enum Kind {
        /// At a low rate, to see whether the target is as it was at the start. Never pass or fail.
        Baseline = "baseline",
        /// Up from the first rate, or down from it, until the boundary is between two rates.
        Climb = "climb",
        /// Between the highest pass and the lowest fail.
        Bisect = "bisect",
        /// Again at a side of the boundary.
        Repeat = "repeat",
        /// Long, at the highest pass.
        Soak = "soak",
    }
}

named! {
    /// What became of a probe.
    pub enum Judged {
        /// Everything was kept.
        Pass = "pass",
        /// Something was broken.
        Fail = "fail" | "FAIL",
        /// The generator was the limit; counts as neither.
        ClientLimited = "client-limited",
        /// The numbers may not be believed; counts as neither.
        Invalid = "invalid",
    }
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeRow {
    /// What it was for.
    pub kind: Kind,
    /// What was asked for.
    pub rate: f64,
    /// Start since the start of the search.
    pub at: f64,
    /// How long it took, warm-up included.
    pub duration: f64,
    /// Wait before it.
    pub drained: f64,
    /// What became of it.
    pub judged: Judged,
    /// What the run alone said.
    pub outcome: Outcome,
    /// Why it is judged so, most important first; empty for a plain pass.
    pub reasons: Vec<String>,
    /// How far within the nearest limit (above 0) or outside (below 0), as a share of the limit.
    pub margin: Option<f64>,
    /// Iterations per second that ended in the judged part.
    pub rate_ended: f64,
    /// Begun / due iterations in the judged part.
    pub delivered_share: f64,
    /// Iterations per second by which those under way and waiting grew.
    pub backlog_growth: f64,
    /// Mean number of iterations under way: workers that were in one.
    pub under_way: f64,
    /// Mean number of iterations that waited for a worker.
    pub waiting: f64,
    /// Calls per second that ended.
    pub calls_per_second: f64,
    /// Results per second.
    pub goodput: f64,
    /// Failed calls / calls.
    pub failed_share: f64,
    /// HTTP 429 / calls.
    pub limited_share: f64,
    /// From the planned send, all methods and classes together.
    pub latency: Quantiles,
    /// From the real send, all methods and classes together.
    pub service: Quantiles,
    /// 99th percentile of the generator's lateness.
    pub lateness_p99_ms: f64,
    /// Objectives and what came of them.
    pub thresholds: Vec<ThresholdOutcome>,
    /// What saturated first in it, if anything.
    pub bottleneck: Option<Finding>,
    /// Folder of its run beside `capacity.json`; none if it was not kept.
    pub folder: Option<String>,
}

/// The universal scalability law (Gunther, Guerrilla Capacity Planning, 2007):
/// X(N) = λN ÷ (1 + σ(N−1) + κN(N−1)), with N the measured mean number of iterations under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scaling {
    /// λ: iterations per second of one alone.
    pub lambda: f64,
    /// σ: contention, the share that is serial.
    pub sigma: f64,
    /// κ: the price of coherency between each two.
    pub kappa: f64,
    /// Where X is largest; none if it grows without end.
    pub peak_under_way: Option<f64>,
    /// X there.
    pub peak_rate: Option<f64>,
    /// Share of the variance that the fit explains.
    pub r_squared: f64,
    /// Number of probes it was fitted to.
    pub points: usize,
}
