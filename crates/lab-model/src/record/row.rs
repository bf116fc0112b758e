//! Published counts: a row for all calls, or for those of a method.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Class;

/// Calls of one method, or all calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// Method, or `all`.
    pub method: String,
    /// Calls that ended, successfully or not.
    pub calls: u64,
    /// Share of all calls.
    pub share: f64,
    /// Calls per second that ended under load, successfully or not.
    #[serde(default)]
    pub rate: f64,
    /// Results per second under load (goodput).
    pub goodput: f64,
    /// Failed calls / calls. A 429 is not a failure.
    pub failed_share: f64,
    /// HTTP 429 / calls.
    pub limited_share: f64,
    /// By class. Classes without calls are left out.
    pub classes: Vec<ClassRow>,
    /// Latency from the planned send, over all classes.
    pub latency: Quantiles,
    /// Time from the real send, over all classes.
    pub service: Quantiles,
    /// Codes of JSON-RPC errors with their counts.
    pub codes: Vec<(i64, u64)>,
}

/// Calls of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassRow {
    /// The class.
    pub class: Class,
    /// Calls.
    pub calls: u64,
    /// Latency from the planned send.
    pub latency: Quantiles,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Number of samples. Below 10,000, a p99 is imprecise.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Smallest.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90 %.
    pub p90_ms: f64,
    /// 95 %.
    pub p95_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// 99.9 %.
    pub p999_ms: f64,
    /// Largest.
    pub max_ms: f64,
    /// 95 % confidence interval of the p99 by order statistics, if requests are independent.
    pub p99_interval_ms: (f64, f64),
}
