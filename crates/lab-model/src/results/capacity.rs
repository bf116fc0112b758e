//! The result of a capacity search: `capacity.json`. The search looks for the highest rate that
//! meets the thresholds. A probe is a run at one rate. The boundary lies between the highest rate
//! that passed and the lowest rate that failed.
//!
//! The verdict of a probe's run and two further conditions determine the probe's outcome: pass,
//! fail, or neither. Nearly all probes are short. The soak is a long probe at the highest passing
//! rate. A baseline is a probe at a low rate, which checks whether the target has recovered from
//! overload.
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
    /// True if the search was stopped early, so that its results are partial.
    pub partial: bool,
    /// The plan.
    pub plan: PlanFacts,
    /// The server under load.
    pub target: TargetFacts,
    /// The machine of the load generator.
    pub fingerprint: Fingerprint,
    /// Settings of the search.
    pub settings: SearchFacts,
    /// The thresholds of every probe, as written in the plan.
    pub thresholds: Vec<String>,
    /// Explanation of the default thresholds. None if the plan has its own thresholds.
    pub thresholds_by_default: Option<String>,
    /// The answer.
    pub answer: Answer,
    /// The limit that was broken at the lowest failing rate. None if no rate failed.
    pub binding: Option<Binding>,
    /// The first bottleneck at the lowest failing rate.
    pub bottleneck: Option<Finding>,
    /// CPU cost per request of the watched processes at the highest passing rate.
    pub costs: Vec<ProcessCost>,
    /// All probes in order of time.
    pub probes: Vec<ProbeRow>,
    /// The universal scalability law, fitted to the probes. It only describes the data, and has no
    /// effect on the answer.
    pub scaling: Option<Scaling>,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

/// Settings of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchFacts {
    /// Rate of the first probe.
    pub rate_start: f64,
    /// The highest rate that the search may try.
    pub rate_max: f64,
    /// The search ends when (lowest failing rate - highest passing rate) / highest passing rate is
    /// at most this.
    pub precision: f64,
    /// Duration of a probe, warm-up included.
    pub probe: f64,
    /// Warm-up at the start of each probe. It is excluded from the verdict.
    pub probe_warmup: f64,
    /// Number of probes at each of the two rates next to the boundary. The majority decides.
    pub repeats: usize,
    /// Pause between probes.
    pub drain: f64,
    /// Duration of the soak, which comes after the other probes. Zero if the search has no soak.
    pub soak: f64,
    /// Rate of the baselines.
    pub rate_baseline: f64,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Why a search ended.
    pub enum EndReason {
        /// The passing rate and the failing rate next to the boundary are as close as requested.
        Converged = "converged",
        /// The highest allowed rate passed.
        RateMax = "rate-max",
        /// The load generator was the limit. The capacity is at least the highest passing rate.
        ClientLimited = "client-limited",
        /// Probes above the highest passing rate had no valid numbers.
        Invalid = "invalid",
        /// No rate passed, down to the lowest rate that the search tries.
        NothingPassed = "nothing-passed",
        /// The search reached its maximum number of probes.
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
    /// Highest passing rate that is below all failing rates. None if there is no such rate.
    pub highest_pass: Option<f64>,
    /// Lowest failing rate. None if no rate failed.
    pub lowest_fail: Option<f64>,
    /// True if no rate failed, so that the highest passing rate is only a lower bound of the
    /// capacity.
    pub at_least: bool,
    /// False if a rate passed although a lower rate failed. Then the boundary is not sharp, or the
    /// target changed during the search.
    pub monotone: bool,
    /// How thresholds break at the boundary.
    pub boundary: Boundary,
    /// True if the last soak passed, and false if it failed. If a soak fails, the search tries
    /// another one at a lower rate. None if no soak ran, or if the last soak neither passed nor
    /// failed.
    pub soak_held: Option<bool>,
    /// Describes how the target's baselines became worse, if it did not recover from an overload.
    /// None if it recovered from every overload, or if there was none.
    pub degraded: Option<String>,
}

named! {
    /// How thresholds break at the boundary.
    pub enum Boundary {
        /// Suddenly: values are far within the thresholds at the passing rate, and far outside at
        /// the failing rate.
        Cliff = "cliff",
        /// Gradually: values approach the thresholds as the rate rises.
        Gradual = "gradual",
        /// Unknown: the passing and the failing rate are too far apart, or data about one of them
        /// are missing.
        Unknown = "unknown",
    }
}

/// The limit that was broken at the lowest failing rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Binding {
    /// The threshold as written in the plan, or another criterion of the verdict.
    pub threshold: String,
    /// The method that broke the limit, if it was a single one.
    pub method: Option<String>,
    /// The observed value in the threshold's unit.
    pub observed: Option<f64>,
    /// The allowed value in the threshold's unit.
    pub limit: Option<f64>,
    /// The rate at which the limit was broken.
    pub rate: f64,
    /// The probe in which the limit was broken, as an index into [`CapacityResult::probes`].
    pub probe: usize,
}

/// CPU cost per request of a watched process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessCost {
    /// Name of the process, as in the metrics of the host.
    pub process: String,
    /// CPU milliseconds per HTTP request.
    pub cpu_ms_per_request: f64,
    /// The probe in which the cost was measured, as an index into [`CapacityResult::probes`].
    pub probe: usize,
}

named! {
    /// The purpose of a probe.
    pub enum Kind {
        /// A probe at a low rate, which checks whether the target has recovered. Its outcome does
        /// not count for the capacity.
        Baseline = "baseline",
        /// A probe at twice or half the previous rate, until one rate has passed and another one
        /// has failed.
        Climb = "climb",
        /// A probe between the highest passing rate and the lowest failing rate.
        Bisect = "bisect",
        /// A repeated probe at one of the two rates next to the boundary.
        Repeat = "repeat",
        /// A long probe at the highest passing rate. If it fails, further soaks have lower rates.
        Soak = "soak",
    }
}

named! {
    /// The outcome of a probe.
    pub enum ProbeOutcome {
        /// The run is valid and did not fail, enough iterations started, and the backlog did not
        /// grow.
        Pass = "pass",
        /// The verdict of the run is a failure, too few iterations started, or the backlog grew.
        Fail = "fail" | "FAIL",
        /// The load generator was the limit, so the probe neither passed nor failed.
        ClientLimited = "client-limited",
        /// The numbers are not valid, or there are too few calls for a percentile. The probe
        /// neither passed nor failed.
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
    /// The verdict of the probe's run. A probe passes only under two further conditions: enough
    /// iterations start, and the backlog does not grow.
    pub run_verdict: Outcome,
    /// The reasons for the outcome, most important first. Empty for a pass without a remark.
    pub reasons: Vec<String>,
    /// Distance to the nearest limit, as a share of the limit and at most 1. It is positive within
    /// the limit and negative outside. None if the probe neither passed nor failed.
    pub margin: Option<f64>,
    /// Iterations per second that ended after the warm-up.
    pub rate_ended: f64,
    /// Started / scheduled iterations after the warm-up.
    pub delivered_share: f64,
    /// Growth of the backlog, in iterations per second. The backlog is the number of iterations in
    /// flight or queued.
    pub backlog_growth: f64,
    /// Mean number of iterations in flight, which is the number of busy workers.
    pub in_flight: f64,
    /// Mean number of queued iterations.
    pub waiting: f64,
    /// Calls per second that ended.
    pub calls_per_second: f64,
    /// Successful calls per second.
    pub goodput: f64,
    /// Failed calls / calls.
    pub failed_share: f64,
    /// Calls with HTTP status 429 / calls.
    pub limited_share: f64,
    /// Time from a call's scheduled send to the end of its response, over all methods and classes.
    pub latency: Quantiles,
    /// Time from a call's actual send to the end of its response, over all methods and classes.
    pub service: Quantiles,
    /// 99th percentile of the generator's scheduling delay: how late it sent requests.
    pub scheduling_delay_p99_ms: f64,
    /// Thresholds and their outcomes.
    pub thresholds: Vec<ThresholdOutcome>,
    /// The first bottleneck, if one was found.
    pub bottleneck: Option<Finding>,
    /// Folder of the probe's run, relative to the folder of `capacity.json`. None if the run was
    /// not saved.
    pub folder: Option<String>,
}

impl ProbeRow {
    /// Returns true if more than 1 % of the calls failed or were rejected with status 429, so that
    /// the rate of the results is notably below the rate of the calls.
    pub fn has_few_results(&self) -> bool {
        self.failed_share + self.limited_share > 0.01
    }
}

/// The universal scalability law (Gunther, Guerrilla Capacity Planning, 2007):
/// X(N) = λN ÷ (1 + σ(N−1) + κN(N−1)). X is the rate in iterations per second. N is the mean number
/// of iterations in flight, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scaling {
    /// λ: iterations per second at N = 1.
    pub lambda: f64,
    /// σ, contention: the share of the work that cannot run in parallel.
    pub sigma: f64,
    /// κ, coherency: the cost that each pair of iterations in flight adds.
    pub kappa: f64,
    /// N at the maximum of X. None if X grows without limit.
    pub peak_in_flight: Option<f64>,
    /// The maximum of X. None if X grows without limit.
    pub peak_rate: Option<f64>,
    /// R²: the share of the variance that the fit explains.
    pub r_squared: f64,
    /// Number of probes to which the law was fitted.
    pub points: usize,
}
