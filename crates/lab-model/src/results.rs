//! Published results: one type per kind of result. A JSON Schema is derived from each type.
//!
//! A new version of Weir may add a field. It renames or redefines a field only together with a new
//! value of the result's `SCHEMA`. Durations and times are in seconds, unless the name of the field
//! ends with another unit. This file has the types that several results share.
//!
//! A comparison has two or more variants. A variant is a set of runs under the same conditions.

pub mod capacity;
pub mod compare;
pub mod equal;
pub mod load_study;
pub mod run;
pub mod schema;
pub mod study;
pub mod subscription;
pub mod transactions;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metrics::{Metric, Unit};
use crate::named::named;
pub use crate::record::Quantiles;

/// The plan of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFacts {
    /// The plan's name.
    pub name: String,
    /// The text of the plan, without secrets.
    pub text: String,
    /// SHA-256 of the text in hexadecimal. Equal plans have equal hashes.
    pub hash: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Length of the warm-up in seconds. Calls of the warm-up are recorded, but excluded from the
    /// verdict.
    pub warmup: f64,
    /// Number of threads that generate the load.
    pub threads: usize,
    /// Protocol of the calls: HTTP `1.1`, HTTP `2`, or `websocket`.
    pub http: String,
    /// Reuse of connections: `reuse` (until the server closes the connection), `close` (one request
    /// per connection), or the number of requests per connection.
    pub connections: String,
    /// True if the target's certificate was not checked.
    #[serde(default)]
    pub insecure: bool,
}

impl PlanFacts {
    /// Returns the protocol of the calls.
    pub fn protocol(&self) -> String {
        match &*self.http {
            "websocket" => "WebSocket".to_owned(),
            version => format!("HTTP/{version}"),
        }
    }
}

/// The server under load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetFacts {
    /// Its URL with secrets masked.
    pub url: String,
    /// Family of the server's methods: `ethereum`, `harmony` or `bitcoin`.
    pub family: String,
    /// Client version that the server reports (`web3_clientVersion` or the equivalent of the
    /// family).
    pub client: Option<String>,
    /// Chain id, if the server reports it.
    pub chain_id: Option<String>,
    /// Number of the server's newest block at the start of the run.
    pub head_start: Option<u64>,
    /// Number of the server's newest block at the end of the run.
    pub head_end: Option<u64>,
}

/// The machine of the load generator. Results are comparable if these values are equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fingerprint {
    /// Host name.
    pub host: String,
    /// CPU model.
    pub cpu: String,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// CPU frequency governor, if there is one.
    pub governor: Option<String>,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// CPU limit of the cgroup in cores, if there is one.
    pub cpu_limit: Option<f64>,
    /// TCP congestion control algorithm.
    pub congestion: Option<String>,
    /// True if the target runs on this machine.
    pub target_local: bool,
}

/// The verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The reasons, most important first. Empty for a pass without a remark.
    pub reasons: Vec<String>,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// The outcome of a run. The numbers are valid if they describe the target. They are not valid
    /// if there are no data, if the load generator sent requests too late, or if the user stopped
    /// the run before anything failed.
    pub enum Outcome {
        /// All thresholds were met, no other failure was found, and the numbers are valid.
        Pass = "pass" | "PASS",
        /// The plan has no thresholds, no failure was found, and the numbers are valid.
        Measured = "measured" | "MEASURED",
        /// A threshold was broken, or another failure was found, such as a method whose calls
        /// failed for a long time. The load generator cannot have caused the failure.
        Fail = "fail" | "FAIL",
        /// The numbers are not valid.
        Invalid = "invalid" | "INVALID",
        /// The load generator was the limit, so the target's limit is unknown.
        ClientLimited = "client-limited" | "CLIENT-LIMITED",
    }
}

/// A threshold and its outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdOutcome {
    /// The threshold as written in the plan, such as `latency{method:eth_call} p(99)<300`.
    pub text: String,
    /// The metric. None for a threshold of a subscription.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// The method. None if the threshold is about all methods together.
    #[serde(default)]
    pub method: Option<String>,
    /// Unit of the observed value.
    #[serde(default)]
    pub unit: Option<Unit>,
    /// True if the threshold was met.
    pub kept: bool,
    /// The observed value. None if the run has no data for it.
    pub observed: Option<f64>,
    /// Time at which the threshold was first broken, in seconds since the start of the run. None if
    /// it was not broken, or if the run has no data for it.
    pub broken_at: Option<f64>,
    /// A note: for example, that data are missing, or how long the breach lasted.
    pub note: Option<String>,
}

/// The first bottleneck, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// The confidence in the cause. Doubts lower it.
    pub confidence: Confidence,
    /// The finding as a sentence.
    pub sentence: String,
    /// The evidence: one fact per entry, with times and values.
    pub evidence: Vec<String>,
    /// Time at which the bottleneck began, in seconds since the start of the run. None if it is
    /// unknown.
    pub at: Option<f64>,
}

named! {
    /// The cause of a broken threshold.
    pub enum Cause {
        /// The load generator.
        Generator = "generator" | "The generator",
        /// TCP connects or TLS handshakes.
        Connection = "connection" | "Connections or TLS handshakes",
        /// The server's rate limit.
        RateLimit = "rate-limit" | "The server's rate limit",
        /// A server behind the target.
        Upstream = "upstream" | "A server behind the target",
        /// CPU of the target's host.
        Cpu = "cpu" | "CPU of the target's host",
        /// A CPU quota (cgroup) of the target.
        CpuQuota = "cpu-quota" | "The target's CPU quota",
        /// Memory.
        Memory = "memory" | "Memory",
        /// Disk.
        Disk = "disk" | "Disk",
        /// Network.
        Network = "network" | "Network",
        /// One thread of the target at its limit.
        Thread = "thread" | "One thread of the target",
        /// The target's software: a lock, a pool or a queue. No resource of the machine is
        /// saturated.
        Software = "software" | "Software: a lock, a pool or a queue",
        /// The data are not conclusive.
        Unknown = "unknown" | "Cannot tell",
    }
}

named! {
    /// The confidence in a finding.
    pub enum Confidence {
        /// The evidence is a single hint.
        Low = "low" | "low: one hint",
        /// The evidence has gaps.
        Medium = "medium" | "medium: evidence with gaps",
        /// The pieces of evidence agree in time and direction.
        High = "high" | "high: evidence agrees in time and direction",
    }
}

named! {
    /// The verdict of a comparison of two variants. The floor is the smallest difference that
    /// matters.
    pub enum ComparisonVerdict {
        /// The other variant is better by more than the floor.
        Better = "better",
        /// The other variant is worse by more than the floor.
        Worse = "worse",
        /// The difference is smaller than the floor, and may be zero.
        Same = "same",
        /// The difference is smaller than the floor, but is not zero.
        Negligible = "negligible",
        /// The data are not conclusive.
        CannotTell = "cannot-tell" | "cannot tell",
    }
}

impl ComparisonVerdict {
    /// Returns true if the variants differ by more than the floor.
    pub fn is_different(self) -> bool {
        matches!(self, ComparisonVerdict::Better | ComparisonVerdict::Worse)
    }
}

named! {
    /// The data on which a verdict is based.
    pub enum Basis {
        /// Four or more runs per variant. The ranks of their values are compared.
        Runs = "runs",
        /// Two or three runs per variant. The logarithms of their values are assumed to be normally
        /// distributed.
        FewRuns = "few-runs" | "few runs",
        /// Pairs of runs: the first runs of both variants, their second runs, and so on.
        PairedRuns = "paired-runs" | "pairs of runs",
        /// Blocks of time within the single run of each variant. The variation between runs is
        /// unknown.
        WithinRun = "within-run" | "seconds of one run",
        /// The number of calls in the single run of each variant. The run is too short for blocks
        /// of time.
        Calls = "calls" | "calls of one run",
        /// Too few runs for a test. All values of one variant differ from all values of the other by
        /// more than noise between runs can explain.
        FarApart = "far-apart" | "values far apart",
        /// A total over all methods, or a rate, while the methods' shares of the calls differ. Its
        /// difference says nothing about the variants.
        MixDiffers = "mix-differs" | "the mix of methods differs",
        /// One value per variant, without a statistical test.
        ValuesOnly = "values-only" | "values only",
    }
}
