//! Thresholds in k6's grammar.
//!
//! An expression is an aggregation, an operator and a number (`p(95)<300`, `rate<0.01`, `count>0`);
//! <https://grafana.com/docs/k6/latest/using-k6/thresholds/>. A selector is a metric with tags,
//! `latency{method:eth_call,stage:steady}`.

use std::time::Duration;

use crate::metrics::{Kind, Metric, Selector, Unit};

pub mod parse;

/// One threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// Selects the samples.
    pub selector: Selector,
    /// Aggregation of the samples.
    pub aggregation: Aggregation,
    /// Comparison with the limit.
    pub operator: Operator,
    /// Limit: milliseconds for times, a share for rates, a count for counters.
    pub limit: f64,
    /// Length of the windows that are judged one by one; `None` judges the whole run.
    pub window: Option<Duration>,
    /// A breach counts only if it lasts this long. Zero counts every breach.
    pub sustained: Duration,
    /// True if a breach aborts the run (k6: abortOnFail).
    pub abort: bool,
    /// A breach before this time does not abort the run (k6: delayAbortEval).
    pub abort_delay: Duration,
    /// True if missing data is a failure, which is the default.
    pub no_data_fails: bool,
    /// The selector and the expression as written.
    pub text: String,
}

/// How samples are aggregated to one number.
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
    /// Count.
    Count,
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
    /// Returns the unit of the limit and of the observed value.
    pub fn unit(&self) -> Unit {
        unit(self.selector.metric, self.aggregation)
    }
}

/// Returns the unit of a metric's aggregated samples.
pub fn unit(metric: Metric, aggregation: Aggregation) -> Unit {
    match (metric.kind(), aggregation) {
        (Kind::Times, _) => Unit::Milliseconds,
        (Kind::Share, _) => Unit::Share,
        (Kind::Counter, Aggregation::Rate) => Unit::PerSecond,
        (Kind::Counter, _) => Unit::Count,
    }
}
