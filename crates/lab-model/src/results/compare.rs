//! The result of a comparison, as `weir compare --json` prints it. A variant is a set of runs under
//! the same conditions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Basis, ComparisonVerdict};
use crate::named::named;

/// Version of this format.
pub const SCHEMA: &str = "weir.compare/1";

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CompareResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the program.
    pub weir: String,
    /// The variants. The first one is the baseline.
    pub variants: Vec<VariantRow>,
    /// Settings that differ between the variants.
    pub mismatches: Vec<Mismatch>,
    /// Differences between each other variant and the baseline, by method and metric.
    pub differences: Vec<Difference>,
    /// Values per core and per request, for variants that ran on different machines.
    pub normalised: Vec<NormalRow>,
    /// The conclusions: one sentence for each variant except the baseline.
    pub conclusions: Vec<String>,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

/// One variant of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantRow {
    /// Its name.
    pub name: String,
    /// The tool that made the runs: `weir`, `k6`, `vegeta` or `erigon`.
    pub tool: String,
    /// Number of runs that were used. The statistics compare runs, not single requests.
    pub runs: usize,
    /// Runs that were left out, each with the reason.
    pub left_out: Vec<String>,
    /// Target, plan and machine in one line, as far as they are known.
    pub described: String,
}

/// A setting that differs between the baseline and another variant, or between two runs of one
/// variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// The setting: `plan`, `seed`, `chain`, `head`, `machine`, …
    pub what: String,
    /// Value of the baseline, or of the first run.
    pub a: String,
    /// Value of the other variant, or of the other run.
    pub b: String,
    /// The other variant's name, or the names of the two runs.
    pub variant: String,
    /// The severity.
    pub weight: Weight,
    /// The consequence of the mismatch.
    pub why: String,
}

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// Severity of a mismatch.
    pub enum Weight {
        /// The mismatch is only for information.
        Note = "note",
        /// The mismatch may cause a difference of the values.
        Warn = "warn",
        /// The values are not comparable because of the mismatch.
        Refuse = "refuse",
    }
}

/// One metric of one method, compared between the baseline and another variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The other variant's name.
    pub variant: String,
    /// The method, or `all` for all methods together. Results of other tools have the tool's own
    /// name instead.
    pub method: String,
    /// The metric.
    pub metric: Metric,
    /// The baseline's value: the median over its runs, in the metric's unit.
    pub a: f64,
    /// The other variant's value: the median over its runs, in the metric's unit.
    pub b: f64,
    /// Number of the baseline's runs, or of the blocks of time within its single run.
    pub a_count: usize,
    /// Number of the other variant's runs, or of the blocks of time within its single run.
    pub b_count: usize,
    /// Relative change from `a` to `b`. For a metric that is a share, the difference `b - a`.
    pub change: f64,
    /// 95 % confidence interval of the change. None if there are too few data.
    pub interval: Option<(f64, f64)>,
    /// p-value: the probability of such a difference if the variants are equal. It is corrected for
    /// the number of metrics (Holm). None if there are too few data.
    pub p: Option<f64>,
    /// Floor: the smallest change that matters, in the unit of `change`.
    pub floor: f64,
    /// The data on which the verdict is based.
    pub basis: Basis,
    /// The verdict.
    pub verdict: ComparisonVerdict,
}

named! {
    /// A compared metric. Latency is the time from a call's scheduled send to the end of its
    /// response. Service time starts at the actual send.
    pub enum Metric {
        /// Mean latency in milliseconds.
        LatencyMean = "latency_mean" | "latency mean, ms",
        /// Median latency in milliseconds.
        LatencyP50 = "latency_p50" | "latency p50, ms",
        /// 95th percentile of the latency in milliseconds.
        LatencyP95 = "latency_p95" | "latency p95, ms",
        /// 99th percentile of the latency in milliseconds.
        LatencyP99 = "latency_p99" | "latency p99, ms",
        /// Mean service time in milliseconds.
        ServiceMean = "service_mean" | "service mean, ms",
        /// Median service time in milliseconds.
        ServiceP50 = "service_p50" | "service p50, ms",
        /// 95th percentile of the service time in milliseconds.
        ServiceP95 = "service_p95" | "service p95, ms",
        /// 99th percentile of the service time in milliseconds.
        ServiceP99 = "service_p99" | "service p99, ms",
        /// Successful calls per second.
        Goodput = "goodput" | "results/s",
        /// Failed calls / calls.
        FailedShare = "failed_share" | "failed, %",
        /// CPU milliseconds of the target's processes per HTTP request.
        CpuPerRequest = "cpu_ms_per_request" | "CPU ms/request",
    }
}

impl Metric {
    /// Returns true if the metric is a share. Shares are compared by difference, not by ratio.
    pub fn is_share(self) -> bool {
        self == Metric::FailedShare
    }

    /// Returns true if a higher value is better.
    pub fn more_is_better(self) -> bool {
        self == Metric::Goodput
    }
}

/// A variant's values per core and per request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NormalRow {
    /// The variant's name.
    pub variant: String,
    /// The load generator's machine.
    pub machine: String,
    /// Number of cores that the target may use. None if it is unknown, for example because the
    /// target is remote.
    pub cores: Option<f64>,
    /// Successful calls per second, over all methods.
    pub goodput: Option<f64>,
    /// Successful calls per second, divided by the number of cores.
    pub goodput_per_core: Option<f64>,
    /// Median latency over all methods, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency over all methods, in milliseconds.
    pub p99_ms: Option<f64>,
    /// CPU milliseconds per request, summed over the watched processes.
    pub cpu_ms_per_request: Option<f64>,
}
