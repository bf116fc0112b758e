//! Thresholds in k6's grammar (<https://grafana.com/docs/k6/latest/using-k6/thresholds/>).
//!
//! A threshold consists of a selector and an expression. The selector is a metric with tags, such
//! as `latency{method:eth_call,stage:steady}`. The tags choose the samples by method, stage or
//! scenario. The expression is an aggregation, an operator and a number, such as `p(95)<300`,
//! `rate<0.01` or `count>0`.

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
    /// Limit, in the unit that [`Threshold::unit`] returns.
    pub limit: f64,
    /// Length of a sliding window. The threshold is evaluated at each position of the window.
    /// `None` evaluates the whole run at once.
    pub window: Option<Duration>,
    /// A breach counts only if it lasts at least this long. With zero, every breach counts.
    pub sustained: Duration,
    /// True if a breach aborts the run (k6: abortOnFail).
    pub abort: bool,
    /// Earliest time at which a breach aborts the run, since the start of the run (k6:
    /// delayAbortEval).
    pub abort_delay: Duration,
    /// True if the threshold counts as broken when the run has no data for it. This is the default.
    pub no_data_fails: bool,
    /// The selector and the expression as written.
    pub text: String,
}

/// How samples are aggregated to one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// Mean.
    Avg,
    /// Smallest sample.
    Min,
    /// Largest sample.
    Max,
    /// Median.
    Med,
    /// Percentile, 0 to 100.
    Percentile(f64),
    /// The share if the metric is a share, or the count per second if the metric is a counter.
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
