//! The result of a run: `result.json`. The histograms of the run are in `latency.hlog` in the same
//! folder.
//!
//! Reports, comparisons, exports and the capacity search read only this result. Times of events are
//! in seconds since the start of the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::subscription::SubscriptionRow;
use super::transactions::TransactionsRow;
use super::{Finding, Fingerprint, PlanFacts, Quantiles, TargetFacts, ThresholdOutcome, Verdict};
use crate::named::named;
use crate::record::{Class, Iterations, Traffic};
pub use crate::record::{ClassRow, Row};

/// Version of this format.
pub const SCHEMA: &str = "weir.run/1";

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// Start, as RFC 3339 in UTC.
    pub started: String,
    /// Start, in seconds since 1970.
    pub started_unix: f64,
    /// Duration of the measurement.
    pub duration: f64,
    /// True if the run was stopped early. Its results are partial then.
    pub partial: bool,
    /// The plan.
    pub plan: PlanFacts,
    /// The server under load.
    pub target: TargetFacts,
    /// The machine of the load generator.
    pub fingerprint: Fingerprint,
    /// The verdict.
    pub verdict: Verdict,
    /// Thresholds and their outcomes.
    pub thresholds: Vec<ThresholdOutcome>,
    /// Further findings about the target, besides the thresholds.
    #[serde(default)]
    pub findings: Vec<String>,
    /// Warnings: doubts about the run first, advice about the plan last.
    pub warnings: Vec<String>,
    /// All calls together, without warm-up.
    pub overall: Row,
    /// By method, without warm-up.
    pub methods: Vec<Row>,
    /// By stage.
    pub stages: Vec<StageRow>,
    /// By second.
    pub series: Vec<Second>,
    /// Facts about the load generator.
    pub generator: Generator,
    /// Connections, handshakes, bytes, statuses.
    pub wire: WireFacts,
    /// Samples of hosts.
    pub host: Vec<HostSample>,
    /// Facts about hosts, and totals over the run.
    #[serde(default)]
    pub watched: HostFacts,
    /// The first bottleneck, if a threshold failed or a search ended.
    pub bottleneck: Option<Finding>,
    /// Responses compared with those of a reference, if the plan has one.
    #[serde(default)]
    pub compared: Option<Compared>,
    /// Subscriptions of the plan.
    #[serde(default)]
    pub subscriptions: Vec<SubscriptionRow>,
    /// Signed transactions of the plan, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions: Option<TransactionsRow>,
}

/// Responses compared with those of a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The reference's URL with secrets masked.
    pub reference: String,
    /// Calls that were compared.
    pub compared: u64,
    /// Responses that differed again when both servers were called again, or that a moving chain
    /// cannot explain.
    pub wrong: u64,
    /// Responses that differed at first but not when both servers were called again, as the chain
    /// may have moved in between.
    pub moved: u64,
    /// Calls without a response from the reference.
    pub unanswered: u64,
    /// Sampled calls that were not compared because the reference was slower than the run.
    pub skipped: u64,
    /// By method: its name, the number of compared calls, and the number of wrong responses.
    pub methods: Vec<(String, u64, u64)>,
    /// The first few differences of each method.
    pub examples: Vec<Difference>,
}

/// A response that differs from the reference's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Method.
    pub method: String,
    /// The request, truncated if long.
    pub request: String,
    /// JSON pointer of the first value that differs.
    pub pointer: String,
    /// The target's value there, truncated if long.
    pub target: String,
    /// The reference's value there, truncated if long.
    pub reference: String,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRow {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the stage.
    pub stage: String,
    /// `open` (level is iterations per second) or `closed` (level is workers).
    pub model: String,
    /// Start since the start of the run.
    pub from: f64,
    /// End since the start of the run.
    pub to: f64,
    /// Level at its start.
    pub level_from: f64,
    /// Level at its end.
    pub level_to: f64,
    /// Iterations scheduled, started, ended, dropped, interrupted.
    pub iterations: Iterations,
    /// Iterations started per second.
    pub rate_started: f64,
    /// All calls of the stage.
    pub overall: Row,
    /// By method.
    pub methods: Vec<Row>,
}

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Second {
    /// End of the second since the start of the run.
    pub at: f64,
    /// Iterations scheduled.
    pub scheduled: u64,
    /// Iterations started.
    pub started: u64,
    /// Iterations dropped.
    pub dropped: u64,
    /// HTTP requests ended.
    pub requests: u64,
    /// 99th percentile of the scheduling delay.
    pub scheduling_delay_p99_ms: f64,
    /// Share of the engine threads' time that was neither idle nor waiting, 0 to 1.
    pub generator_busy: f64,
    /// Calls in flight at its end.
    pub in_flight: u64,
    /// Busy workers at its end.
    pub workers_busy: u64,
    /// Queued iterations at its end.
    pub waiting: u64,
    /// By method; methods without calls are left out.
    pub methods: Vec<MethodSecond>,
}

/// One method in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodSecond {
    /// The method.
    pub method: String,
    /// Stage that most of its calls belong to, as an index into [`RunResult::stages`].
    pub stage: usize,
    /// Calls by class; classes without calls are left out.
    pub classes: Vec<(Class, u64)>,
    /// Median latency.
    pub p50_ms: f64,
    /// 95th percentile of the latency.
    pub p95_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
    /// Largest latency.
    pub max_ms: f64,
}

impl Second {
    /// Counts the calls of the classes that `is_counted` selects.
    pub fn count(&self, is_counted: impl Fn(Class) -> bool) -> u64 {
        self.methods.iter().map(|method| method.count(&is_counted)).sum()
    }
}

impl MethodSecond {
    /// Counts the calls of the classes that `is_counted` selects.
    pub fn count(&self, is_counted: impl Fn(Class) -> bool) -> u64 {
        self.classes.iter().filter(|(class, _)| is_counted(*class)).map(|(_, calls)| calls).sum()
    }
}

/// Facts about the load generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// Iterations of the run.
    pub iterations: Iterations,
    /// Started / scheduled.
    pub delivered_share: f64,
    /// Scheduling delay of sends, caused by the generator.
    pub scheduling_delay: Quantiles,
    /// Largest busy share of any second, 0 to 1.
    pub busy_max: f64,
    /// CPU seconds of the engine threads.
    pub cpu: f64,
    /// CPU microseconds of the engine threads per HTTP request.
    pub cpu_us_per_request: f64,
    /// Seconds that the engine threads were runnable without a core.
    pub run_delay: f64,
    /// Times of iterations, from the scheduled time to the end.
    pub iteration_time: Quantiles,
}

/// Connections, handshakes, bytes, statuses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WireFacts {
    /// Counts.
    pub traffic: Traffic,
    /// TCP connect times.
    pub connect: Quantiles,
    /// Times of full TLS handshakes.
    pub handshake_full: Quantiles,
    /// Times of resumed TLS handshakes.
    pub handshake_resumed: Quantiles,
    /// Resumed / all handshakes; none without TLS.
    pub resumption: Option<f64>,
    /// Times to open WebSockets, after TCP and TLS.
    #[serde(default)]
    pub upgrade: Quantiles,
    /// HTTP requests by status.
    pub statuses: Vec<(u16, u64)>,
    /// Close frames of the server by code; 1005 stands for none.
    #[serde(default)]
    pub close_codes: Vec<(u16, u64)>,
    /// Retry-After of responses with status 429.
    pub retry_after: Quantiles,
}

/// One sample of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostSample {
    /// Seconds since the start of the run.
    pub at: f64,
    /// `generator` (this host) or `target` (by node-exporter).
    pub host: String,
    /// Metric names (`cpu_user`, `psi_io_some`, `process.geth.cpu`, …) with their values, sorted by
    /// name; the names and units are listed in docs/measuring.md.
    pub values: Vec<(String, f64)>,
}

/// Facts about hosts, and totals over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// True if the target's address is one of this host's.
    pub target_local: bool,
    /// True if a node-exporter reported the target's host.
    pub exporter: bool,
    /// Logical cores of this host.
    pub cores: f64,
    /// Cores that the target's processes may use, by affinity and cgroup quota; none if no process
    /// of the target was found.
    pub target_cores: Option<f64>,
    /// Watched processes, this one first.
    pub processes: Vec<ProcessFacts>,
    /// Servers that the target is connected to, the one that it waited for most first.
    #[serde(default)]
    pub upstreams: Vec<UpstreamFacts>,
    /// Values that could not be read, one sentence each. A rule that needs one cannot decide.
    pub missing: Vec<String>,
    /// Share of one core that watching used.
    pub cost: f64,
}

impl HostFacts {
    /// Sets [`ProcessFacts::cpu_ms_per_request`] for this number of HTTP requests.
    pub fn set_cpu_per_request(&mut self, requests: u64) {
        for process in &mut self.processes {
            #[expect(clippy::cast_precision_loss)]
            let cpu_ms = process.cpu * 1_000.0 / requests as f64;
            process.cpu_ms_per_request = (requests > 0).then_some(cpu_ms);
        }
    }
}

/// A watched process, or several with the same name and role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFacts {
    /// Name in the metrics `process.NAME.…` and `cgroup.NAME.…`.
    pub name: String,
    /// Reason why it is watched.
    pub role: ProcessRole,
    /// Process ids, without those that have ended unless all have.
    pub pids: Vec<u32>,
    /// CPU seconds, user and system, from the start of the run.
    pub cpu: f64,
    /// CPU milliseconds per HTTP request of the run.
    pub cpu_ms_per_request: Option<f64>,
    /// Largest resident memory.
    pub memory_bytes_max: f64,
    /// True if one of them started or ended while it was watched.
    pub restarted: bool,
}

/// A server that the target is connected to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpstreamFacts {
    /// Address and port.
    pub address: String,
    /// The process that listens there, if it is on this host.
    pub process: Option<String>,
    /// Mean number of connections on which the target waited for a response.
    pub waiting: f64,
}

named! {
    /// Why a process is watched.
    pub enum ProcessRole {
        /// This process, the load generator.
        Generator = "generator",
        /// The listener of the target's address, or a child of it.
        Target = "target",
        /// A server that the target is connected to.
        Upstream = "upstream" | "behind the target",
        /// A process that the plan names.
        Watched = "watched",
    }
}
