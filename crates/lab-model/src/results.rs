//! Published results: one type per kind of result. A JSON Schema is derived from each type.
//!
//! A field may be added at any time, but is renamed or redefined only with a new `SCHEMA`.
//! Durations are in seconds, unless the name of the field has another unit. This file has the types
//! that several results share.

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
    /// Warm-up: recorded, but excluded from the verdict.
    pub warmup: f64,
    /// Engine threads.
    pub threads: usize,
    /// `1.1`, `2` or `websocket`.
    pub http: String,
    /// `reuse`, `close`, or the number of requests per connection.
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
    /// `ethereum`, `harmony` or `bitcoin`.
    pub family: String,
    /// Its version as it reports it (web3_clientVersion or the family's equivalent).
    pub client: Option<String>,
    /// Chain id, if the server reports it.
    pub chain_id: Option<String>,
    /// Newest block at the start.
    pub head_start: Option<u64>,
    /// Newest block at the end.
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
    /// Frequency governor, if there is one.
    pub governor: Option<String>,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// CPU limit of the cgroup in cores, if there is one.
    pub cpu_limit: Option<f64>,
    /// TCP congestion control.
    pub congestion: Option<String>,
    /// True if the target runs on this machine.
    pub target_local: bool,
}

/// The verdict on a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The outcome.
    pub outcome: Outcome,
    /// The reasons, most important first. Empty for a plain pass.
    pub reasons: Vec<String>,
}

named! {
    /// The outcome of a run.
    pub enum Outcome {
        /// All thresholds were met, and the numbers are valid.
        Pass = "pass" | "PASS",
        /// There were no thresholds, and the numbers are valid.
        Measured = "measured" | "MEASURED",
        /// A threshold was broken, and the numbers are valid.
        Fail = "fail" | "FAIL",
        /// The numbers are not valid.
        Invalid = "invalid" | "INVALID",
        /// The generator was the limit, so the target's limit is unknown.
        ClientLimited = "client-limited" | "CLIENT-LIMITED",
    }
}

/// A threshold and its outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdOutcome {
    /// As written: `latency{method:eth_call} p(99)<300`.
    pub text: String,
    /// The metric.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// The method, or none for all methods together.
    #[serde(default)]
    pub method: Option<String>,
    /// The unit of the observed value.
    #[serde(default)]
    pub unit: Option<Unit>,
    /// True if it was met.
    pub kept: bool,
    /// The observed value in the threshold's unit, or none without data.
    pub observed: Option<f64>,
    /// When it was first broken, since the start of the run.
    pub broken_at: Option<f64>,
    /// A note, such as missing data or how long the breach lasted.
    pub note: Option<String>,
}

/// The first bottleneck, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// The confidence, by the number of doubts.
    pub confidence: Confidence,
    /// The finding as a sentence.
    pub sentence: String,
    /// The evidence, one fact per line, with times and values.
    pub evidence: Vec<String>,
    /// When it began, since the start of the run.
    pub at: Option<f64>,
}

named! {
    /// The cause of a broken threshold.
    pub enum Cause {
        /// The load generator.
        Generator = "generator" | "The generator",
        /// Connects or TLS handshakes.
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
        /// No resource of the machine is saturated: a lock, a pool, a queue.
        Software = "software" | "Software: a lock, a pool or a queue",
        /// The data are not conclusive.
        Unknown = "unknown" | "Cannot tell",
    }
}

named! {
    /// The confidence in a finding.
    pub enum Confidence {
        /// One hint.
        Low = "low" | "low: one hint",
        /// Evidence with gaps.
        Medium = "medium" | "medium: evidence with gaps",
        /// Evidence agrees in time and direction.
        High = "high" | "high: evidence agrees in time and direction",
    }
}

named! {
    /// The verdict of a comparison.
    pub enum ComparisonVerdict {
        /// The other variant is better by more than the floor.
        Better = "better",
        /// The other variant is worse by more than the floor.
        Worse = "worse",
        /// Any difference is smaller than the floor, and there may be none.
        Same = "same",
        /// There is a difference, but it is smaller than the floor.
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
    /// The statistical basis of a verdict.
    pub enum Basis {
        /// Four or more runs per variant: ranks of the runs.
        Runs = "runs",
        /// Two or three runs per variant: their logarithms are assumed to be normally distributed.
        FewRuns = "few-runs" | "few runs",
        /// Runs in pairs: the first of one variant with the first of the other, and so on.
        PairedRuns = "paired-runs" | "pairs of runs",
        /// One run per variant: blocks of time within it. The variation between runs is unknown.
        WithinRun = "within-run" | "seconds of one run",
        /// One run per variant that is too short for blocks: the number of its calls.
        Calls = "calls" | "calls of one run",
        /// One value per variant, farther apart than any noise between runs.
        FarApart = "far-apart" | "values far apart",
        /// Only the values.
        ValuesOnly = "values-only" | "values only",
    }
}
