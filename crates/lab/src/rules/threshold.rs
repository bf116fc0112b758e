//! Objectives in k6's grammar, and whether a run kept them.
//!
//! Grammar of an expression: aggregation, operator, number (`p(95)<300`, `rate<0.01`, `count>0`);
//! <https://grafana.com/docs/k6/latest/using-k6/thresholds/>. What it is said of is chosen by a
//! metric with tags, `latency{method:eth_call,stage:steady}`.

use std::time::Duration;

pub mod judge;
pub mod parse;

/// One objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// What it is said of.
    pub selector: Selector,
    /// How the samples become one number.
    pub aggregation: Aggregation,
    /// How the number is compared.
    pub operator: Operator,
    /// With what: milliseconds for times, a share for rates, a count for counters.
    pub limit: f64,
    /// Judged over each window of this length instead of the whole run.
    pub window: Option<Duration>,
    /// A breach counts only if it lasts this long; zero for at once.
    pub sustained: Duration,
    /// Whether the run ends when it is broken (k6: abortOnFail).
    pub abort: bool,
    /// Not judged for aborting before this (k6: delayAbortEval).
    pub abort_delay: Duration,
    /// Whether no data at all is a failure; true unless the plan says otherwise.
    pub no_data_fails: bool,
    /// As written.
    pub text: String,
}

/// What a threshold is said of.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    /// The metric.
    pub metric: Metric,
    /// Only calls of this method, as an index into the plan's methods.
    pub method: Option<usize>,
    /// Only calls due in this stage, as an index over all stages.
    pub stages: Option<Vec<usize>>,
}

/// A metric that thresholds know. k6's names are understood too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Latency from the planned send, all classes, in milliseconds (k6: http_req_duration).
    Latency,
    /// Time from the real send, in milliseconds.
    Service,
    /// Share of failed calls (k6: http_req_failed).
    Failed,
    /// Share of calls answered 429.
    Limited,
    /// Calls (k6: http_reqs); rate is per second.
    Calls,
    /// Results; rate is per second.
    Goodput,
    /// Iterations given up (k6: dropped_iterations).
    Dropped,
    /// Iterations ended (k6: iterations).
    Iterations,
    /// Time of iterations (k6: iteration_duration).
    IterationTime,
    /// Begun / due iterations.
    Delivered,
}

/// How samples become one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// Mean.
    Avg,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// Median.
    Med,
    /// Percentile, 0 to 100.
    Percentile(f64),
    /// Share, or count per second.
    Rate,
    /// Number.
    Count,
    /// The value itself (gauges).
    Value,
}

/// How a number is compared with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `==` or `===`
    Equal,
    /// `!=`
    NotEqual,
}
