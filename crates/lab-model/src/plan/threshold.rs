//! Thresholds in k6's grammar.
//!
//! Grammar of an expression: aggregation, operator, number (`p(95)<300`, `rate<0.01`, `count>0`);
//! <https://grafana.com/docs/k6/latest/using-k6/thresholds/>. What it is said of is chosen by a
//! metric with tags, `latency{method:eth_call,stage:steady}`.

use std::time::Duration;

use crate::metrics::{Kind, Metric, Selector, Unit};

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

impl Threshold {
    /// The unit of its limit and of what is observed.
    pub fn unit(&self) -> Unit {
        unit(self.selector.metric, self.aggregation)
    }
}

/// The unit of a metric's samples, aggregated.
pub fn unit(metric: Metric, aggregation: Aggregation) -> Unit {
    match (metric.kind(), aggregation) {
        (Kind::Times, _) => Unit::Milliseconds,
        (Kind::Share, _) => Unit::Share,
        (Kind::Counter, Aggregation::Rate) => Unit::PerSecond,
        (Kind::Counter, _) => Unit::Count,
    }
}
