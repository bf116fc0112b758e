//! Published counts and times of calls: one row for all calls, or one row per method.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Class;

/// Calls of one method, or all calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The method, or `all` for all methods together.
    pub method: String,
    /// Number of calls that ended, successfully or not.
    pub calls: u64,
    /// Number of calls of this row / number of all calls.
    pub share: f64,
    /// Calls per second, successful or not. Excludes calls that ended after their scenario. In a
    /// row of a stage, excludes calls that ended after the stage.
    #[serde(default)]
    pub rate: f64,
    /// Successful calls per second. Excludes the same calls as `rate`.
    pub goodput: f64,
    /// Failed calls / calls. A 429 is not a failure.
    pub failed_share: f64,
    /// Calls with HTTP status 429 / calls.
    pub limited_share: f64,
    /// Calls whose result is null / calls. `None` in the row of a stage.
    #[serde(default)]
    pub null_share: Option<f64>,
    /// Calls whose result has another JSON type than the method's results, or is null although
    /// those never are / calls. Methods that no method table has count none. `None` in the row of a
    /// stage.
    #[serde(default)]
    pub wrong_type_share: Option<f64>,
    /// Calls by class, which says how a call ended. Classes without calls are left out.
    pub classes: Vec<ClassRow>,
    /// Latency: time from a call's scheduled send to the end of its response, over all classes.
    pub latency: Quantiles,
    /// Lower bounds of the latency's quantiles: the latency without the delays that the load
    /// generator itself caused, because it was stopped or had no core. The true quantiles are
    /// between these and `latency`. None if the generator delayed no call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_least: Option<Quantiles>,
    /// Service time: time from a call's actual send to the end of its response, over all classes.
    pub service: Quantiles,
    /// Codes of JSON-RPC errors, each with its number of calls.
    pub codes: Vec<(i64, u64)>,
}

/// Calls of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassRow {
    /// The class: how the calls ended.
    pub class: Class,
    /// Number of calls.
    pub calls: u64,
    /// Latency: time from a call's scheduled send to the end of its response.
    pub latency: Quantiles,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Number of times. With fewer than 10,000, the 99th percentile is imprecise.
    pub count: u64,
    /// Mean.
    pub mean_ms: f64,
    /// Minimum.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// Maximum.
    pub max_ms: f64,
    /// 95 % confidence interval of the 99th percentile, by order statistics. It is valid if the
    /// times are independent of each other.
    pub p99_interval_ms: (f64, f64),
}
