//! The result of a capacity search: `capacity.json`. A probe is a short run of the search at one
//! rate.
//!
//! Durations are in seconds, and times of events in seconds since the start of the search. Rates
//! are in iterations per second over all scenarios.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Finding, Fingerprint, Outcome, PlanFacts, Quantiles, TargetFacts, ThresholdOutcome};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.capacity/1";

/// A capacity search.
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
    /// Duration of the search.
    pub duration: f64,
    /// True if the search was stopped early. Its results are partial then.
    pub partial: bool,
    /// The plan.
    pub plan: PlanFacts,
    /// The server under load.
    pub target: TargetFacts,
    /// The machine of the load generator.
    pub fingerprint: Fingerprint,
    /// Settings of the search.
    pub settings: SearchFacts,
    /// The thresholds of every probe, as written.
    pub thresholds: Vec<String>,
    /// Set if the plan has no thresholds: explains the default ones.
    pub thresholds_by_default: Option<String>,
    /// The answer.
    pub answer: Answer,
    /// The threshold that broke first, at the lowest failing rate.
    pub binding: Option<Binding>,
    /// The first bottleneck, at the lowest failing rate.
    pub bottleneck: Option<Finding>,
    /// Cost per request of the watched processes, at the highest passing rate.
    pub costs: Vec<ProcessCost>,
    /// All probes in order of time.
    pub probes: Vec<ProbeRow>,
    /// The universal scalability law fitted to the probes. It is descriptive, and never part of the
    /// verdict.
    pub scaling: Option<Scaling>,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

/// Settings of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchFacts {
    /// Rate of the first probe.
    pub rate_start: f64,
    /// The highest allowed rate.
    pub rate_max: f64,
    /// Relative width of the interval at which the search ends.
    pub precision: f64,
    /// Duration of a probe, warm-up included.
    pub probe: f64,
    /// The part of a probe that is excluded from the verdict.
    pub probe_warmup: f64,
    /// Probes on each side of the boundary. The majority decides.
    pub repeats: usize,
    /// Pause between probes.
    pub drain: f64,
    /// Duration of the last run at the highest pass; zero for none.
    pub soak: f64,
    /// Rate of the probes that check whether the target has changed since the start.
    pub rate_baseline: f64,
}

named! {
    /// Why a search ended.
    pub enum EndReason {
        /// The boundary is between a passing and a failing rate, at the requested precision.
        Converged = "converged",
        /// The highest allowed rate passed.
        RateMax = "rate-max",
        /// The generator was the limit. The capacity is at least the highest pass.
        ClientLimited = "client-limited",
        /// Probes above the highest pass had no valid numbers.
        Invalid = "invalid",
        /// The lowest rate failed.
        NothingPassed = "nothing-passed",
        /// The search reached its limit of probes.
        ProbesMax = "probes-max",
        /// The search was stopped, or the target became unreachable.
        Stopped = "stopped",
    }
}

/// The answer of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Reason why the search ended.
    pub end: EndReason,
    /// The answer as a sentence.
    pub sentence: String,
    /// Highest passing rate below all failing rates.
    pub highest_pass: Option<f64>,
    /// Lowest failing rate.
    pub lowest_fail: Option<f64>,
    /// True if the capacity is only a lower bound.
    pub at_least: bool,
    /// False if a rate passed above one that failed: the boundary is not sharp, or the target
    /// changed during the search.
    pub monotone: bool,
    /// How thresholds break at the boundary.
    pub boundary: Boundary,
    /// True if the highest pass held for the duration of the soak; none without a soak.
    pub soak_held: Option<bool>,
    /// Describes how the target differs from its state at the start, if it did not recover.
    pub degraded: Option<String>,
}

named! {
    /// How thresholds break at the boundary.
    pub enum Boundary {
        /// Far within the thresholds on one side and far outside on the other, without warning.
        Cliff = "cliff",
        /// Thresholds are approached gradually.
        Gradual = "gradual",
        /// One of the two sides is unknown.
        Unknown = "unknown",
    }
}

/// The first breach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// The threshold as written, or another criterion of the verdict.
    pub threshold: String,
    /// The method, if a single one breaks it.
    pub method: Option<String>,
    /// The observed value in the threshold's unit.
    pub observed: Option<f64>,
    /// The limit in the threshold's unit.
    pub limit: Option<f64>,
    /// The rate at which it broke.
    pub rate: f64,
    /// Index into [`CapacityResult::probes`].
    pub probe: usize,
}

/// Cost per request of a watched process.
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
    /// The purpose of a probe.
    pub enum Kind {
        /// At a low rate, to check whether the target has changed since the start. It never passes
        /// or fails.
        Baseline = "baseline",
        /// Raises or lowers the rate until the boundary is between two rates.
        Climb = "climb",
        /// Between the highest pass and the lowest failure.
        Bisect = "bisect",
        /// Repeats one side of the boundary.
        Repeat = "repeat",
        /// A long run at the highest pass.
        Soak = "soak",
    }
}

named! {
    /// The outcome of a probe.
    pub enum ProbeOutcome {
        /// All thresholds were met.
        Pass = "pass",
        /// A threshold was broken.
        Fail = "fail" | "FAIL",
        /// The generator was the limit. Neither pass nor failure.
        ClientLimited = "client-limited",
        /// The numbers are not valid. Neither pass nor failure.
        Invalid = "invalid",
    }
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeRow {
    /// Purpose of the probe.
    pub kind: Kind,
    /// The requested rate.
    pub rate: f64,
    /// Start of the probe, in seconds since the start of the search.
    pub at: f64,
    /// Duration, warm-up included.
    pub duration: f64,
    /// Pause before the probe.
    pub drained: f64,
    /// The outcome.
    pub outcome: ProbeOutcome,
    /// The verdict on the run alone.
    pub run_verdict: Outcome,
    /// The reasons, most important first. Empty for a plain pass.
    pub reasons: Vec<String>,
    /// Distance to the nearest limit as a share of the limit: above 0 within it, below 0 outside.
    pub margin: Option<f64>,
    /// Iterations per second that ended after the warm-up.
    pub rate_ended: f64,
    /// Started / scheduled iterations after the warm-up.
    pub delivered_share: f64,
    /// Growth of iterations in flight and queued iterations, per second.
    pub backlog_growth: f64,
    /// Mean number of busy workers.
    pub in_flight: f64,
    /// Mean number of queued iterations.
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
    /// 99th percentile of the generator's scheduling delay.
    pub scheduling_delay_p99_ms: f64,
    /// Thresholds and their outcomes.
    pub thresholds: Vec<ThresholdOutcome>,
    /// The first bottleneck, if any.
    pub bottleneck: Option<Finding>,
    /// Folder of its run beside `capacity.json`, or none if the run was not saved.
    pub folder: Option<String>,
}

/// The universal scalability law (Gunther, Guerrilla Capacity Planning, 2007):
/// X(N) = λN ÷ (1 + σ(N−1) + κN(N−1)), with N the measured mean number of iterations in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scaling {
    /// λ: iterations per second at N = 1.
    pub lambda: f64,
    /// σ: contention, the share that is serial.
    pub sigma: f64,
    /// κ: coherency, the cost of each pair.
    pub kappa: f64,
    /// N at the maximum of X, or none if X grows without limit.
    pub peak_in_flight: Option<f64>,
    /// X at its maximum.
    pub peak_rate: Option<f64>,
    /// Share of the variance that the fit explains.
    pub r_squared: f64,
    /// Number of probes it was fitted to.
    pub points: usize,
}
