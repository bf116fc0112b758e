//! The result of a run: `result.json`. The histograms of the run are in `latency.hlog` in the same
//! folder.
//!
//! Reports, comparisons, exports and the capacity search read only this result. Times of events are
//! in seconds since the start of the run.
//!
//! A scenario schedules iterations, and each iteration sends one or more calls. A stage is a part
//! of a scenario in which the load is constant or changes linearly. A worker runs one iteration at
//! a time. The class of a call says how it ended. The reference is a second server whose responses
//! count as right.

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
    /// True if the run was stopped early, so that its results are partial.
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
    /// Findings about the target that no threshold covers.
    #[serde(default)]
    pub findings: Vec<String>,
    /// Warnings: doubts about the run first, advice about the plan last.
    pub warnings: Vec<String>,
    /// Methods whose p99 a warning calls uncertain, because they have few calls.
    #[serde(default)]
    pub few_calls: Vec<String>,
    /// All calls together, without warm-up.
    pub overall: Row,
    /// Calls by method, without warm-up.
    pub methods: Vec<Row>,
    /// Calls and iterations by stage, warm-up included.
    pub stages: Vec<StageRow>,
    /// Time series, warm-up included.
    pub series: Vec<Second>,
    /// Facts about the load generator.
    pub generator: Generator,
    /// Connections, TLS handshakes, bytes and HTTP statuses.
    pub wire: WireFacts,
    /// Samples of the metrics of the hosts.
    pub host: Vec<HostSample>,
    /// Facts about the hosts, and totals over the run.
    #[serde(default)]
    pub watched: HostFacts,
    /// The first bottleneck. None if nothing failed.
    pub bottleneck: Option<Finding>,
    /// Comparison of responses with those of the reference. None if the plan has no reference.
    #[serde(default)]
    pub compared: Option<Compared>,
    /// Subscriptions of the plan.
    #[serde(default)]
    pub subscriptions: Vec<SubscriptionRow>,
    /// Signed transactions of the plan, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions: Option<TransactionsRow>,
}

/// Comparison of sampled responses of the target with those of the reference. If two responses
/// differ, both servers are called a second time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The reference's URL with secrets masked.
    pub reference: String,
    /// Number of calls that were compared.
    pub compared: u64,
    /// Number of wrong responses of the target. A response is wrong if the servers' second
    /// responses differ too, or if no new block can explain the first difference.
    pub wrong: u64,
    /// Number of differences that a new block may explain: the servers' first responses differed,
    /// and their second responses did not.
    pub moved: u64,
    /// Number of calls without a response from the reference.
    pub unanswered: u64,
    /// Number of sampled calls that were not compared because the reference was slower than the
    /// run.
    pub skipped: u64,
    /// By method: its name, the number of compared calls, and the number of wrong responses.
    pub methods: Vec<(String, u64, u64)>,
    /// The first few wrong responses of each method.
    pub examples: Vec<Difference>,
}

/// A response that differs from the reference's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The method.
    pub method: String,
    /// The request, truncated if long.
    pub request: String,
    /// JSON pointer of the first value that differs.
    pub pointer: String,
    /// The target's value at the pointer, truncated if long.
    pub target: String,
    /// The reference's value at the pointer, truncated if long.
    pub reference: String,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageRow {
    /// Name of the scenario.
    pub scenario: String,
    /// Name of the stage.
    pub stage: String,
    /// `open`: the level of load is iterations per second. `closed`: it is the number of workers.
    pub model: String,
    /// Start of the stage, in seconds since the start of the run.
    pub from: f64,
    /// End of the stage, in seconds since the start of the run.
    pub to: f64,
    /// Level of load at the start of the stage.
    pub level_from: f64,
    /// Level of load at the end of the stage.
    pub level_to: f64,
    /// Counts of the iterations that were scheduled in the stage.
    pub iterations: Iterations,
    /// Started iterations per second.
    pub rate_started: f64,
    /// All calls of the stage.
    pub overall: Row,
    /// Calls of the stage by method.
    pub methods: Vec<Row>,
}

/// One point of the time series: one second, or several seconds in a long run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Second {
    /// End of the second, in seconds since the start of the run.
    pub at: f64,
    /// Number of iterations that were scheduled in this second.
    pub scheduled: u64,
    /// Number of iterations that started.
    pub started: u64,
    /// Number of iterations that were dropped.
    pub dropped: u64,
    /// Number of HTTP requests that ended.
    pub requests: u64,
    /// 99th percentile of the scheduling delay: how late the generator sent requests.
    pub scheduling_delay_p99_ms: f64,
    /// Share of the time, 0 to 1, in which the load generator's threads were neither idle nor
    /// waiting.
    pub generator_busy: f64,
    /// Longest time within the second, in milliseconds, in which a thread of the load generator did
    /// not run although it should have. 0 if it is shorter than 1 ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generator_gap_ms: f64,
    /// Number of calls in flight at the end of the second.
    pub in_flight: u64,
    /// Number of busy workers at the end of the second.
    pub workers_busy: u64,
    /// Number of queued iterations at the end of the second.
    pub waiting: u64,
    /// Calls by method. Methods without calls are left out.
    pub methods: Vec<MethodSecond>,
}

/// Calls of one method that ended in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MethodSecond {
    /// The method.
    pub method: String,
    /// The stage to which most of the calls belong, as an index into [`RunResult::stages`].
    pub stage: usize,
    /// Number of calls by class. Classes without calls are left out.
    pub classes: Vec<(Class, u64)>,
    /// Median latency.
    pub p50_ms: f64,
    /// 95th percentile of the latency.
    pub p95_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
    /// Largest latency.
    pub max_ms: f64,
    /// Largest latency without the delays that the load generator itself caused. None if it delayed
    /// no call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_least_ms: Option<f64>,
}

/// Returns true if a number is 0, so that the JSON need not contain it.
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Second {
    /// Returns the number of calls in the classes that `is_counted` selects.
    pub fn count(&self, is_counted: impl Fn(Class) -> bool) -> u64 {
        self.methods.iter().map(|method| method.count(&is_counted)).sum()
    }
}

impl MethodSecond {
    /// Returns the number of calls in the classes that `is_counted` selects.
    pub fn count(&self, is_counted: impl Fn(Class) -> bool) -> u64 {
        self.classes.iter().filter(|(class, _)| is_counted(*class)).map(|(_, calls)| calls).sum()
    }
}

/// Facts about the load generator, without the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// Counts of iterations.
    pub iterations: Iterations,
    /// Started / scheduled iterations.
    pub delivered_share: f64,
    /// Scheduling delay: how late the generator itself sent requests.
    pub scheduling_delay: Quantiles,
    /// Largest busy share ([`Second::generator_busy`]) of any second, 0 to 1.
    pub busy_max: f64,
    /// CPU seconds of the load generator's threads.
    pub cpu: f64,
    /// CPU microseconds of the load generator's threads per HTTP request.
    pub cpu_us_per_request: f64,
    /// Seconds for which the load generator's threads were ready to run, but had no core.
    pub run_delay: f64,
    /// Gaps: times of at least 1 ms in which a thread of the load generator did not run although it
    /// should have, because it was stopped or had no core.
    #[serde(default)]
    pub gaps: Quantiles,
    /// Sum of the gaps, in seconds over all threads.
    #[serde(default)]
    pub gap_time: f64,
    /// Largest share of a latency percentile that the load generator may have caused, 0 to 1. A
    /// percentile of which it may have caused more is marked.
    #[serde(default)]
    pub share_max: f64,
    /// The same as a time in milliseconds. A percentile is marked only if both limits are exceeded.
    #[serde(default)]
    pub delay_max_ms: f64,
    /// Time from an iteration's scheduled start to its end.
    pub iteration_time: Quantiles,
}

/// Connections, TLS handshakes, bytes and HTTP statuses, without the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WireFacts {
    /// Counts of connections and bytes.
    pub traffic: Traffic,
    /// Time of TCP connects.
    pub connect: Quantiles,
    /// Time of full TLS handshakes.
    pub handshake_full: Quantiles,
    /// Time of resumed TLS handshakes.
    pub handshake_resumed: Quantiles,
    /// Resumed / all TLS handshakes. None if there was no handshake.
    pub resumption: Option<f64>,
    /// Time to open WebSockets, after the TCP connect and the TLS handshake.
    #[serde(default)]
    pub upgrade: Quantiles,
    /// Number of HTTP requests by status.
    pub statuses: Vec<(u16, u64)>,
    /// Number of the server's WebSocket close frames by code. 1005 stands for a frame without a
    /// code.
    #[serde(default)]
    pub close_codes: Vec<(u16, u64)>,
    /// Values of Retry-After headers in responses with status 429.
    pub retry_after: Quantiles,
}

/// One sample of a host's metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostSample {
    /// Seconds since the start of the run.
    pub at: f64,
    /// `generator` for the host of the load generator, or `target` for the host that a
    /// node-exporter reports.
    pub host: String,
    /// Names of metrics (`cpu_user`, `psi_io_some`, `process.geth.cpu`, …) with their values,
    /// sorted by name. docs/host-metrics.md lists the names and units.
    pub values: Vec<(String, f64)>,
}

/// Facts about the hosts, and totals over the run. "This host" is the host of the load generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// True if the target's address belongs to this host.
    pub target_local: bool,
    /// True if a node-exporter reported metrics of the target's host.
    pub exporter: bool,
    /// Logical cores of this host.
    pub cores: f64,
    /// Number of cores that the target's processes may use, by CPU affinity and cgroup quota. None
    /// if no process of the target was found.
    pub target_cores: Option<f64>,
    /// Watched processes. The load generator is the first one.
    pub processes: Vec<ProcessFacts>,
    /// Servers to which the target is connected. The server for which the target waited most comes
    /// first.
    #[serde(default)]
    pub upstreams: Vec<UpstreamFacts>,
    /// One sentence about each kind of value that could not be read. The analysis cannot use these
    /// values.
    pub missing: Vec<String>,
    /// Share of one core that the watching itself used.
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

/// A watched process, or several processes with the same name and role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessFacts {
    /// Name in the metrics `process.NAME.…` and `cgroup.NAME.…`.
    pub name: String,
    /// Reason why it is watched.
    pub role: ProcessRole,
    /// Ids of the processes that were alive at the end. If none was alive, the ids of all of them.
    pub pids: Vec<u32>,
    /// User and system CPU seconds since the start of the run.
    pub cpu: f64,
    /// CPU milliseconds per HTTP request of the run. None if the run sent no request.
    pub cpu_ms_per_request: Option<f64>,
    /// Largest resident memory in bytes.
    pub memory_bytes_max: f64,
    /// True if one of the processes started or ended while it was watched.
    pub restarted: bool,
}

/// A server to which the target is connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpstreamFacts {
    /// Address and port.
    pub address: String,
    /// Name of the process that listens at the address, if it is on the host of the load generator.
    pub process: Option<String>,
    /// Mean number of connections on which the target waited for a response.
    pub waiting: f64,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Why a process is watched.
    pub enum ProcessRole {
        /// It is the load generator.
        Generator = "generator",
        /// It listens at the target's address, or is a child of a process that listens there.
        Target = "target",
        /// It is a server to which the target is connected.
        Upstream = "upstream" | "behind the target",
        /// The plan names it.
        Watched = "watched",
    }
}
