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
    /// Differences of every other variant from the first, by method and metric.
    pub differences: Vec<Difference>,
    /// Values per core and per request, for variants from different machines.
    pub normalised: Vec<NormalRow>,
    /// The conclusion, one sentence per other variant.
    pub conclusions: Vec<String>,
    /// Warnings, each with advice.
    pub warnings: Vec<String>,
}

/// One variant of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VariantRow {
    /// Its name.
    pub name: String,
    /// `weir`, `k6`, `vegeta` or `erigon`.
    pub tool: String,
    /// Runs that were used. Runs are the unit of replication.
    pub runs: usize,
    /// Runs that were left out, each with the reason.
    pub left_out: Vec<String>,
    /// Target, plan and machine in one line, as far as known.
    pub described: String,
}

/// A setting that differs between the variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// The setting: `plan`, `seed`, `chain`, `head`, `machine`, …
    pub what: String,
    /// Value of the first variant.
    pub a: String,
    /// Value of the other variant.
    pub b: String,
    /// The other variant's name.
    pub variant: String,
    /// The severity.
    pub weight: Weight,
    /// The consequence.
    pub why: String,
}

named! {
    /// Severity of a mismatch.
    pub enum Weight {
        /// For information.
        Note = "note",
        /// It may cause a difference.
        Warn = "warn",
        /// The values are not comparable.
        Refuse = "refuse",
    }
}

/// One metric of one method, of the first variant and another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The other variant's name.
    pub variant: String,
    /// The method, `all`, or for other tools' results what they call it.
    pub method: String,
    /// The metric.
    pub metric: Metric,
    /// The first variant's value: the median over its runs, in the metric's unit.
    pub a: f64,
    /// The other variant's value.
    pub b: f64,
    /// Runs, or blocks of time within the single run, of the first variant.
    pub a_count: usize,
    /// Runs or blocks of the other variant.
    pub b_count: usize,
    /// Relative change from the first to the other, or the plain difference for shares.
    pub change: f64,
    /// 95 % interval of the change; none if there are too few data.
    pub interval: Option<(f64, f64)>,
    /// Probability of such a difference between equal variants, corrected for the number of metrics
    /// (Holm).
    pub p: Option<f64>,
    /// Smallest relevant change, in the unit of `change`.
    pub floor: f64,
    /// The statistical basis.
    pub basis: Basis,
    /// The verdict.
    pub verdict: ComparisonVerdict,
}

named! {
    /// A compared metric.
    pub enum Metric {
        /// Mean, from the planned send, in milliseconds.
        LatencyMean = "latency_mean" | "latency mean, ms",
        /// Median, from the planned send, in milliseconds.
        LatencyP50 = "latency_p50" | "latency p50, ms",
        /// 95th percentile, from the planned send, in milliseconds.
        LatencyP95 = "latency_p95" | "latency p95, ms",
        /// 99th percentile, from the planned send, in milliseconds.
        LatencyP99 = "latency_p99" | "latency p99, ms",
        /// Mean, from the real send, in milliseconds.
        ServiceMean = "service_mean" | "service mean, ms",
        /// Median, from the real send, in milliseconds.
        ServiceP50 = "service_p50" | "service p50, ms",
        /// 95th percentile, from the real send, in milliseconds.
        ServiceP95 = "service_p95" | "service p95, ms",
        /// 99th percentile, from the real send, in milliseconds.
        ServiceP99 = "service_p99" | "service p99, ms",
        /// Results per second.
        Goodput = "goodput" | "results/s",
        /// Failed calls / calls.
        FailedShare = "failed_share" | "failed, %",
    }
}

impl Metric {
    /// Returns true for shares, which are compared by difference instead of by ratio.
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
    /// The generator's machine.
    pub machine: String,
    /// Cores that the target may use; none if unknown, as for a remote target.
    pub cores: Option<f64>,
    /// Results per second, all methods.
    pub goodput: Option<f64>,
    /// Results per second and core.
    pub goodput_per_core: Option<f64>,
    /// Median latency, all methods, in milliseconds.
    pub p50_ms: Option<f64>,
    /// 99th percentile, all methods, in milliseconds.
    pub p99_ms: Option<f64>,
    /// CPU milliseconds per request of the watched processes together.
    pub cpu_ms_per_request: Option<f64>,
}
