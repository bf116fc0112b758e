//! Published results: a shape for each kind, with a JSON Schema made from it.
//!
//! A field is never renamed or given another meaning without a new `SCHEMA`; fields may be added.
//! Durations are seconds unless a name says otherwise. What several results share is here.

pub mod capacity;
pub mod compare;
pub mod run;
pub mod schema;
pub mod study;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metrics::{Metric, Unit};
use crate::named::named;
pub use crate::record::Quantiles;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFacts {
    /// The plan's name.
    pub name: String,
    /// The plan as it was written.
    pub text: String,
    /// SHA-256 of the text, in hexadecimal: equal plans have equal hashes.
    pub hash: String,
    /// Seed of all randomness.
    pub seed: u64,
    /// Excluded from judgement.
    pub warmup: f64,
    /// Engine threads.
    pub threads: usize,
    /// `1.1` or `2`.
    pub http: String,
    /// `reuse`, `close`, or the number of requests per connection.
    pub connections: String,
    /// True if the target's certificate was not checked.
    #[serde(default)]
    pub insecure: bool,
}

/// Who was asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetFacts {
    /// Its URL with secrets masked.
    pub url: String,
    /// `ethereum`, `harmony` or `bitcoin`.
    pub family: String,
    /// What it says it is (web3_clientVersion or the family's like), if it says.
    pub client: Option<String>,
    /// Chain id, if it says.
    pub chain_id: Option<String>,
    /// Head at the start.
    pub head_start: Option<u64>,
    /// Head at the end.
    pub head_end: Option<u64>,
}

/// The machine that asked. Two results are comparable in what is equal here.
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
    /// Whether the target runs on this machine.
    pub target_local: bool,
}

/// What may be said of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// In one word.
    pub outcome: Outcome,
    /// Why, most important first; empty for a plain pass.
    pub reasons: Vec<String>,
}

named! {
    /// In one word.
    pub enum Outcome {
        /// Every objective was kept, and the numbers may be believed.
        Pass = "pass" | "PASS",
        /// There were no objectives, and the numbers may be believed.
        Measured = "measured" | "MEASURED",
        /// An objective was broken, and the numbers may be believed.
        Fail = "fail" | "FAIL",
        /// The numbers may not be believed.
        Invalid = "invalid" | "INVALID",
        /// The generator was the limit: what the target holds was not learnt.
        ClientLimited = "client-limited" | "CLIENT-LIMITED",
    }
}

/// An objective and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdOutcome {
    /// As written: `latency{method:eth_call} p(99)<300`.
    pub text: String,
    /// The metric that it is about.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// The method that it is about; none for all methods together.
    #[serde(default)]
    pub method: Option<String>,
    /// The unit of the observed value.
    #[serde(default)]
    pub unit: Option<Unit>,
    /// Whether it was kept.
    pub kept: bool,
    /// The observed value in the threshold's unit; none for no data.
    pub observed: Option<f64>,
    /// When it was first broken.
    pub broken_at: Option<f64>,
    /// What to know beside it: no data, sustained for.
    pub note: Option<String>,
}

/// What saturated first, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// How sure: from the share of evidence that agrees.
    pub confidence: Confidence,
    /// In one sentence.
    pub sentence: String,
    /// What it rests on, one fact a line, with times and values.
    pub evidence: Vec<String>,
    /// When it began, since the start of the run.
    pub at: Option<f64>,
}

named! {
    /// A cause of a broken objective.
    pub enum Cause {
        /// The generator.
        Generator = "generator" | "The generator",
        /// Making connections, or TLS handshakes.
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
        /// Nothing of the machine is saturated: a lock, a pool, a queue.
        Software = "software" | "Software: a lock, a pool or a queue",
        /// The data do not tell.
        Unknown = "unknown" | "Cannot tell",
    }
}

named! {
    /// How sure a finding is.
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
    /// In one word.
    pub enum Word {
        /// The other arm is better by more than the floor.
        Better = "better",
        /// The other arm is worse by more than the floor.
        Worse = "worse",
        /// Any difference is smaller than the floor, and there may be none.
        Same = "same",
        /// There is a difference, but it is smaller than the floor.
        Negligible = "negligible",
        /// The data do not tell.
        CannotTell = "cannot-tell" | "cannot tell",
    }
}

named! {
    /// What a verdict rests on.
    pub enum Basis {
        /// Four runs or more of each arm: ranks of runs.
        Runs = "runs",
        /// Two or three runs of each arm: normal distribution of their logarithms taken for granted.
        FewRuns = "few-runs" | "few runs",
        /// Runs in pairs: the first of the one arm with the first of the other, and so on.
        PairedRuns = "paired-runs" | "pairs of runs",
        /// One run of an arm: blocks of time within it. How much runs differ from each other is not
        /// known.
        WithinRun = "within-run" | "seconds of one run",
        /// One run of an arm, too short for its seconds: the number of its calls.
        Calls = "calls" | "calls of one run",
        /// One value of each arm, farther apart than any noise between runs.
        FarApart = "far-apart" | "values far apart",
        /// Nothing but the values.
        ValuesOnly = "values-only" | "values only",
    }
}
