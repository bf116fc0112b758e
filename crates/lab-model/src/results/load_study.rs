//! The result of a study of load runs: `study.json` of `weir study load`. A round runs each variant
//! under each plan. The A/A control repeats the baseline, so its differences from the baseline are
//! noise.

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
    /// Why no further round was run.
    pub end: EndReason,
    /// Order, number and limits of the rounds.
    pub design: StudyDesign,
    /// The variants. The first one is the baseline.
    pub variants: Vec<VariantFacts>,
    /// One comparison for each plan or case.
    pub plans: Vec<PlanResult>,
    /// Rates, CPU, handshakes and access-log lines of each variant under each plan or case.
    #[serde(default)]
    pub counts: Vec<CountRow>,
    /// All rounds in order, without the warm-up rounds.
    pub rounds: Vec<RoundRow>,
    /// Drifts during the study: of the machine, and of the baseline under each plan.
    pub drifts: Vec<Drift>,
    /// The conclusions, as sentences.
    pub conclusions: Vec<String>,
    /// Doubts about the data, each with advice.
    pub warnings: Vec<String>,
}

named! {
    /// Why a study ended.
    pub enum EndReason {
        /// The confidence intervals are as narrow as required.
        Precision = "precision",
        /// The maximum number of rounds was run.
        RoundsMax = "rounds-max" | "the maximum number of rounds",
        /// A further round would exceed the time limit.
        TimeMax = "time-max" | "the time limit",
        /// Several consecutive rounds had a run that could not be made.
        Faults = "faults" | "runs that could not be made",
        /// The user stopped the study.
        Interrupted = "interrupted" | "an interrupt",
    }
}

named! {
    /// Order of the variants within the rounds.
    pub enum RunOrder {
        /// Forwards and backwards in turn: A B C, C B A.
        Abba = "abba" | "ABBA",
        /// Each variant takes each position equally often, and follows each other one equally often.
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
        /// Before each run; only the servers of one variant run at a time.
        Run = "run" | "before each run",
    }
}

/// Order, number and limits of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyDesign {
    /// Order of the variants within the rounds.
    pub order: RunOrder,
    /// Number of rounds after which each variant has had each position equally often.
    pub block: usize,
    /// When the servers of the variants are restarted.
    pub restart: Restart,
    /// Rounds before the first counted one.
    pub warm_up_rounds: usize,
    /// Smallest number of counted rounds.
    pub rounds_min: usize,
    /// Largest number of counted rounds.
    pub rounds_max: usize,
    /// Required half-width of the confidence intervals of [`StudyDesign::precision_of`], as a share
    /// of the baseline's value.
    pub precision: f64,
    /// The metric whose intervals decide if a further round is needed.
    pub precision_of: Metric,
    /// Time limit in seconds.
    pub time_max: f64,
}

/// One variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantFacts {
    /// Its name.
    pub name: String,
    /// Name of the variant that it repeats, for the A/A control.
    pub control_of: Option<String>,
    /// URL of its target with secrets masked; none if the plan's target is used.
    pub target: Option<String>,
    /// Its plans: file names.
    pub plans: Vec<String>,
    /// Values of the plans' variables.
    pub variables: Vec<(String, f64)>,
    /// Names of its servers that the study starts.
    pub servers: Vec<String>,
    /// SHA-256, in hexadecimal, of the servers' commands, files and environment variables. None
    /// without servers.
    pub servers_hash: Option<String>,
}

/// The comparison of all variants under one plan.
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
    /// The A/A control compared with the baseline; none without a control.
    pub control: Option<CompareResult>,
    /// Largest half-width of a confidence interval of [`StudyDesign::precision_of`], as a share of
    /// the baseline's value. None if an interval is missing.
    pub precision: Option<f64>,
}

/// One round: each variant under each plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundRow {
    /// Its number, from 1.
    pub round: usize,
    /// Start of its first run as RFC 3339.
    pub started: String,
    /// Its runs, in the order of time.
    pub runs: Vec<StudyRunRow>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StudyRunRow {
    /// The plan's name.
    pub plan: String,
    /// The variant's name.
    pub variant: String,
    /// Start in seconds since 1970.
    pub started_unix: f64,
    /// Duration with the start of servers, in seconds.
    pub seconds: f64,
    /// The verdict of the run; none if the run could not be made.
    pub outcome: Option<Outcome>,
    /// Why the run is not used.
    pub left_out: Option<String>,
    /// Median latency over all methods, in milliseconds.
    pub p50_ms: Option<f64>,
    /// Results per second over all methods.
    pub goodput: Option<f64>,
    /// Time of a fixed computation on this machine before the run, in milliseconds. It shows
    /// changes of the machine's speed.
    pub calibration_ms: f64,
    /// Counts of the run; none if the run could not be made.
    #[serde(default)]
    pub counts: Option<RunCounts>,
}

/// Counts of one run, with its warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunCounts {
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// HTTP requests that ended.
    pub requests: u64,
    /// HTTP requests with status 429.
    pub limited: u64,
    /// Successful calls per second, without warm-up.
    pub goodput: f64,
    /// Failed calls / calls, without warm-up. A 429 is not a failure.
    pub failed_share: f64,
    /// Median latency in milliseconds, without warm-up.
    pub p50_ms: f64,
    /// 95th percentile of the latency in milliseconds, without warm-up.
    pub p95_ms: f64,
    /// CPU seconds of the target's processes; none if they are unknown.
    pub server_cpu: Option<f64>,
    /// Full TLS handshakes.
    pub handshakes_full: u64,
    /// TLS handshakes that resumed a session.
    pub handshakes_resumed: u64,
    /// CPU limit of the variant's servers, if the case sets one.
    pub cpu_limit: Option<CpuLimit>,
    /// Requests in the server's access log; none without an access log.
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
        /// The CPU quota of a cgroup, as for the limit of a pod.
        Quota = "quota",
        /// CPU affinity: the servers run on some cores only. Used if no cgroup can be created.
        Affinity = "affinity" | "CPU affinity",
    }
}

/// Requests of the load generator in an access log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccessLogCounts {
    /// Lines of requests of the load generator.
    pub requests: u64,
    /// Requests of the load generator with status 429.
    pub limited: u64,
    /// For each second of the run: requests that the generator counted, requests in the log.
    pub seconds: Vec<(u64, u64)>,
}

impl AccessLogCounts {
    /// Returns the largest difference between the two counts of a second.
    pub fn second_difference_max(&self) -> u64 {
        self.seconds.iter().map(|(generator, log)| generator.abs_diff(*log)).max().unwrap_or(0)
    }
}

/// Counts of one variant under one plan or case: medians over its runs. Runs that the comparison
/// leaves out are included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CountRow {
    /// Name of the plan or case.
    pub plan: String,
    /// The variant's name.
    pub variant: String,
    /// Number of runs.
    pub runs: usize,
    /// The verdicts of the runs, each once.
    pub outcomes: Vec<Outcome>,
    /// HTTP requests per second.
    pub requests: f64,
    /// Successful calls per second.
    pub goodput: f64,
    /// HTTP requests with status 429 per second.
    pub limited: f64,
    /// Failed calls / calls.
    pub failed_share: f64,
    /// Median latency in milliseconds.
    pub p50_ms: f64,
    /// 95th percentile of the latency in milliseconds.
    pub p95_ms: f64,
    /// CPU milliseconds of the target's processes per HTTP request; none if they are unknown.
    pub cpu_ms_per_request: Option<f64>,
    /// Full TLS handshakes per second.
    pub handshakes_full: f64,
    /// Resumed TLS handshakes per second.
    pub handshakes_resumed: f64,
    /// CPU limit of the variant's servers.
    pub cpu_limit: Option<CpuLimit>,
    /// Access log compared with the generator's count; none without an access log.
    pub access_log: Option<AccessLogRow>,
}

/// An access log compared with the generator's count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AccessLogRow {
    /// Requests per second in the log: the median over the runs.
    pub requests: f64,
    /// Requests in the logs of all runs.
    pub total: u64,
    /// Requests that the generator counted in all runs.
    pub generator_total: u64,
    /// Requests with status 429 in the logs of all runs.
    pub limited: u64,
    /// Requests with status 429 that the generator counted in all runs.
    pub generator_limited: u64,
    /// Largest difference between the two counts of one second.
    pub second_difference_max: u64,
}

/// The drift of a value over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// The subject of the drift.
    pub subject: DriftSubject,
    /// The plan, for a drift of the baseline.
    pub plan: Option<String>,
    /// One value for each round, in milliseconds: the median of its runs.
    pub values: Vec<f64>,
    /// Change from the first third of the rounds to the last third, as a share of the first.
    pub change: f64,
    /// Difference between the largest and the smallest value, as a share of the smallest.
    pub spread: f64,
    /// Two-sided p-value of a trend (Mann–Kendall test); none with fewer than four rounds.
    pub p: Option<f64>,
}

named! {
    /// The subject of a drift.
    pub enum DriftSubject {
        /// The time of a fixed computation on the machine of the generator.
        Machine = "machine" | "time of a fixed computation on this machine",
        /// The median latency of the baseline.
        Baseline = "baseline" | "median latency of the baseline",
    }
}
