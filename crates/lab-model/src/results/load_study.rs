//! The result of a study of load runs: `study.json` of `weir study load`.
//!
//! A study compares variants, such as servers with different settings. The first variant is the
//! baseline. A round runs each variant once under each plan. A study can have cases instead of
//! plans. A case is a plan with values for settings of the servers. The A/A control is a variant
//! that repeats the baseline, so its differences from the baseline are noise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Outcome;
use super::compare::{CompareResult, Metric};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.study-load/1";

/// A study of load runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadStudyResult {
    /// [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// The name of the study.
    pub name: String,
    /// The question of the study, if it has one.
    pub question: Option<String>,
    /// Start of the first counted run as RFC 3339; empty if there is none.
    pub started: String,
    /// True if the study was interrupted.
    pub partial: bool,
    /// Reason why the study ended.
    pub end: EndReason,
    /// Order, number and limits of the rounds.
    pub design: StudyDesign,
    /// The variants. The first one is the baseline.
    pub variants: Vec<VariantFacts>,
    /// One comparison for each plan or case.
    pub plans: Vec<PlanResult>,
    /// Request rates, CPU time, TLS handshakes and access-log lines of each variant under each plan
    /// or case.
    #[serde(default)]
    pub counts: Vec<CountRow>,
    /// All rounds in order, without the warm-up rounds.
    pub rounds: Vec<RoundRow>,
    /// Drift of the machine's speed, and of the baseline's latency under each plan.
    pub drifts: Vec<Drift>,
    /// The conclusions, as sentences.
    pub conclusions: Vec<String>,
    /// Doubts about the data, each with advice.
    pub warnings: Vec<String>,
}

impl LoadStudyResult {
    /// Returns the verdict about all limits of ratios: broken if one is broken, otherwise "cannot
    /// tell" if one cannot be told. `None` if the study has no limit.
    pub fn ratio_verdict(&self) -> Option<RatioVerdict> {
        let verdicts = || self.plans.iter().flat_map(|plan| &plan.ratios).map(|row| row.verdict);
        let has = |verdict| verdicts().any(|other| other == verdict);
        verdicts().next().map(|_| match () {
            () if has(RatioVerdict::Broken) => RatioVerdict::Broken,
            () if has(RatioVerdict::CannotTell) => RatioVerdict::CannotTell,
            () => RatioVerdict::Kept,
        })
    }
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Why a study ended.
    pub enum EndReason {
        /// The confidence intervals are as narrow as required.
        Precision = "precision",
        /// The maximum number of rounds was run.
        RoundsMax = "rounds-max" | "the maximum number of rounds",
        /// A further round would exceed the time limit.
        TimeMax = "time-max" | "the time limit",
        /// In several consecutive rounds, at least one run failed to start or to finish.
        Faults = "faults" | "runs that could not be made",
        /// The user stopped the study.
        Interrupted = "interrupted" | "an interrupt",
    }
}

named! {
    /// Order of the variants within the rounds.
    pub enum RunOrder {
        /// Every second round has the reverse order: A B C, C B A.
        Abba = "abba" | "ABBA",
        /// Each variant takes each position equally often, and follows each other variant equally
        /// often.
        LatinSquare = "latin-square" | "Latin square",
    }
}

named! {
    /// When the servers of the variants are restarted.
    pub enum Restart {
        /// Never: the servers of all variants run during the whole study.
        Never = "never",
        /// Before each round.
        Round = "round" | "before each round",
        /// Before each run. Only the servers of one variant run at a time.
        Run = "run" | "before each run",
    }
}

/// Order, number and limits of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyDesign {
    /// Order of the variants within the rounds.
    pub order: RunOrder,
    /// Number of rounds after which each variant has run equally often at each position.
    pub block: usize,
    /// When the servers of the variants are restarted.
    pub restart: Restart,
    /// Number of warm-up rounds. They run first, and are not counted.
    pub warm_up_rounds: usize,
    /// Minimum number of counted rounds.
    pub rounds_min: usize,
    /// Maximum number of counted rounds.
    pub rounds_max: usize,
    /// The study may end when each confidence interval of the metric [`StudyDesign::precision_of`]
    /// has at most this half-width, as a share of the baseline's value.
    pub precision: f64,
    /// The metric whose confidence intervals decide if a further round is needed.
    pub precision_of: Metric,
    /// Time limit in seconds.
    pub time_max: f64,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantFacts {
    /// Its name.
    pub name: String,
    /// For the A/A control: the name of the variant that it repeats.
    pub control_of: Option<String>,
    /// URL of its target with secrets masked. None if it uses the plan's target.
    pub target: Option<String>,
    /// File names of its plans.
    pub plans: Vec<String>,
    /// Values of the plans' variables.
    pub variables: Vec<(String, f64)>,
    /// Names of the servers that the study starts for the variant.
    pub servers: Vec<String>,
    /// SHA-256, in hexadecimal, of the servers' commands, files and environment variables. None if
    /// the variant has no servers.
    pub servers_hash: Option<String>,
}

/// The comparison of all variants under one plan or case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanResult {
    /// The plan's name.
    pub plan: String,
    /// Number of rounds that were compared.
    pub rounds: usize,
    /// Rounds that were left out, each with the reason.
    pub left_out: Vec<String>,
    /// The variants compared with the baseline.
    pub comparison: CompareResult,
    /// The A/A control compared with the baseline. None if the study has no control.
    pub control: Option<CompareResult>,
    /// The ratios to the baseline for which the study file sets a limit.
    #[serde(default)]
    pub ratios: Vec<RatioRow>,
    /// The widest confidence interval of the metric [`StudyDesign::precision_of`]: its half-width,
    /// as a share of the baseline's value. None if an interval is missing.
    pub precision: Option<f64>,
}

/// The ratio of one metric of a variant to the baseline, with its limit. The metric covers all
/// methods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RatioRow {
    /// The variant's name.
    pub variant: String,
    /// The metric.
    pub metric: Metric,
    /// The baseline's value: the median over its runs. None if it is unknown.
    pub a: Option<f64>,
    /// The variant's value: the median over its runs. None if it is unknown.
    pub b: Option<f64>,
    /// Number of rounds in which both values are known. Only CPU time is known in rounds that the
    /// load generator limited.
    pub rounds: usize,
    /// The variant's value / the baseline's. For goodput, the baseline's value / the variant's, so
    /// a smaller ratio is always better.
    pub ratio: Option<f64>,
    /// 95 % confidence interval of the ratio. None if there are too few data.
    pub interval: Option<(f64, f64)>,
    /// The largest allowed ratio.
    pub ratio_max: f64,
    /// The verdict.
    pub verdict: RatioVerdict,
}

named! {
    /// The verdict about a ratio.
    pub enum RatioVerdict {
        /// The whole interval is at or below the limit.
        Kept = "kept",
        /// The whole interval is above the limit.
        Broken = "broken",
        /// The interval contains the limit, or is unknown.
        CannotTell = "cannot-tell" | "cannot tell",
    }
}

/// One round: a run of each variant under each plan or case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundRow {
    /// Number of the round, from 1.
    pub round: usize,
    /// Start of its first run as RFC 3339.
    pub started: String,
    /// Its runs, in the order of time.
    pub runs: Vec<StudyRunRow>,
}

/// One run: one variant under one plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyRunRow {
    /// The plan's name.
    pub plan: String,
    /// The variant's name.
    pub variant: String,
    /// Start in seconds since 1970.
    pub started_unix: f64,
    /// Duration in seconds, including the start of the servers.
    pub seconds: f64,
    /// The verdict of the run. None if the run failed to start or to finish.
    pub outcome: Option<Outcome>,
    /// Reason why the run is not used. None if it is used.
    pub left_out: Option<String>,
    /// Median latency over all methods, in milliseconds.
    pub p50_ms: Option<f64>,
    /// Successful calls per second over all methods.
    pub goodput: Option<f64>,
    /// Milliseconds that a fixed computation took on this machine before the run. They show changes
    /// of the machine's speed.
    pub calibration_ms: f64,
    /// Counts of the run. None if the run failed to start or to finish.
    #[serde(default)]
    pub counts: Option<RunCounts>,
}

/// Counts of one run. They include the warm-up, except where stated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunCounts {
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// Duration of the load without the warm-up, in seconds. 0 in files of older versions.
    #[serde(default)]
    pub measured_seconds: f64,
    /// Number of HTTP requests that ended.
    pub requests: u64,
    /// Number of calls with HTTP status 429.
    pub limited: u64,
    /// Successful calls per second, without warm-up.
    pub goodput: f64,
    /// Failed calls / calls, without warm-up. A 429 is not a failure.
    pub failed_share: f64,
    /// Median latency in milliseconds, without warm-up.
    pub p50_ms: f64,
    /// 95th percentile of the latency in milliseconds, without warm-up.
    pub p95_ms: f64,
    /// CPU seconds of the target's processes. None if they are unknown.
    pub server_cpu: Option<f64>,
    /// Number of full TLS handshakes, without warm-up.
    pub handshakes_full: u64,
    /// Number of TLS handshakes that resumed a session, without warm-up.
    pub handshakes_resumed: u64,
    /// CPU limit of the variant's servers, if the case sets one.
    pub cpu_limit: Option<CpuLimit>,
    /// Requests in the server's access log. None if there is no access log.
    pub access_log: Option<AccessLogCounts>,
}

/// A CPU limit of servers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuLimit {
    /// Number of CPUs.
    pub cpus: f64,
    /// How the limit is enforced.
    pub kind: CpuLimitKind,
}

named! {
    /// How a CPU limit is enforced.
    pub enum CpuLimitKind {
        /// By the CPU quota of a cgroup, in the same way as Kubernetes limits a pod.
        Quota = "quota",
        /// By CPU affinity: the servers run only on some of the cores. This is used if no cgroup
        /// can be created.
        Affinity = "affinity" | "CPU affinity",
    }
}

/// Requests of the load generator in a server's access log. Requests of other clients are not
/// counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccessLogCounts {
    /// Number of requests in the log.
    pub requests: u64,
    /// Number of requests with status 429 in the log.
    pub limited: u64,
    /// For each second of the run: the number of requests that the generator counted, and the
    /// number of requests in the log.
    pub seconds: Vec<(u64, u64)>,
}

impl AccessLogCounts {
    /// Returns the largest difference between the two counts of a second.
    pub fn second_difference_max(&self) -> u64 {
        self.seconds.iter().map(|(generator, log)| generator.abs_diff(*log)).max().unwrap_or(0)
    }
}

/// Counts of one variant under one plan or case. Each is the median over its runs, including the
/// runs that the comparison leaves out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CountRow {
    /// Name of the plan or case.
    pub plan: String,
    /// The variant's name.
    pub variant: String,
    /// Number of runs.
    pub runs: usize,
    /// The verdicts of the runs, without repetitions.
    pub outcomes: Vec<Outcome>,
    /// HTTP requests per second.
    pub requests: f64,
    /// Successful calls per second.
    pub goodput: f64,
    /// Calls with HTTP status 429 per second.
    pub limited: f64,
    /// Failed calls / calls.
    pub failed_share: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 95th percentile of the latency in milliseconds.
    pub p95_ms: f64,
    /// CPU milliseconds of the target's processes per HTTP request. None if they are unknown.
    pub cpu_ms_per_request: Option<f64>,
    /// Full TLS handshakes per second.
    pub handshakes_full: f64,
    /// Resumed TLS handshakes per second.
    pub handshakes_resumed: f64,
    /// CPU limit of the variant's servers.
    pub cpu_limit: Option<CpuLimit>,
    /// Counts of the access log and of the load generator. None if there is no access log.
    pub access_log: Option<AccessLogRow>,
}

/// Requests that a server's access log counts, and requests that the load generator counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccessLogRow {
    /// Requests per second in the log: the median over the runs.
    pub requests: f64,
    /// Number of requests in the logs of all runs.
    pub total: u64,
    /// Number of requests that the generator counted in all runs.
    pub generator_total: u64,
    /// Number of requests with status 429 in the logs of all runs.
    pub limited: u64,
    /// Number of requests with status 429 that the generator counted in all runs.
    pub generator_limited: u64,
    /// Largest difference between the two counts of one second.
    pub second_difference_max: u64,
}

/// The drift of a value over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// The subject of the drift.
    pub subject: DriftSubject,
    /// The plan under which the baseline drifted. None for a drift of the machine.
    pub plan: Option<String>,
    /// One value for each round, in milliseconds: the median over the runs of the round.
    pub values: Vec<f64>,
    /// Change from the first third of the rounds to the last third, as a share of the value in the
    /// first third.
    pub change: f64,
    /// Difference between the largest and the smallest value, as a share of the smallest.
    pub spread: f64,
    /// Two-sided p-value of a trend (Mann–Kendall test). None if there are fewer than four rounds.
    pub p: Option<f64>,
}

named! {
    /// The subject of a drift.
    pub enum DriftSubject {
        /// The time of a fixed computation on the load generator's machine.
        Machine = "machine" | "time of a fixed computation on this machine",
        /// The median latency of the baseline.
        Baseline = "baseline" | "median latency of the baseline",
    }
}
