//! Load plans of the planted cases. Each runs for seven seconds, and its load grows from zero.

use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{Model, Plan};
use lab_model::samples;
use wire::family::Family;

const RUN_TIME: Duration = Duration::from_secs(7);

/// In each second the 95th percentile of the latency must be below 100 ms.
pub(crate) fn p95_below_100_ms() -> Threshold {
    threshold(Metric::Latency, Aggregation::Percentile(95.0), 100.0, "p(95)<100")
}

/// In each second every latency must be below 1,000 ms.
pub(crate) fn max_below_1_s() -> Threshold {
    threshold(Metric::Latency, Aggregation::Max, 1_000.0, "max<1000")
}

/// In each second less than 5 % of the responses may have status 429.
pub(crate) fn limited_below_5_percent() -> Threshold {
    threshold(Metric::Limited, Aggregation::Rate, 0.05, "rate<0.05")
}

fn threshold(metric: Metric, aggregation: Aggregation, limit: f64, text: &str) -> Threshold {
    Threshold {
        selector: Selector { metric, method: None, stages: None },
        aggregation,
        operator: Operator::Less,
        limit,
        window: Some(Duration::from_secs(1)),
        sustained: Duration::ZERO,
        abort: false,
        abort_delay: Duration::ZERO,
        no_data_fails: false,
        text: text.to_owned(),
    }
}

/// A plan with an open model whose rate grows to `rate` iterations per second.
pub(crate) fn plan_open(port: u16, rate: f64, threshold: Threshold) -> Plan {
    plan_ramp(port, Model::Open, rate, 60, threshold)
}

/// A plan with a closed model whose number of workers grows to `workers`.
pub(crate) fn plan_closed(port: u16, workers: usize, threshold: Threshold) -> Plan {
    plan_ramp(port, Model::Closed, workers as f64, workers, threshold)
}

/// Builds the plan. `level` is the rate per second of an open model, the workers of a closed one.
fn plan_ramp(port: u16, model: Model, level: f64, workers: usize, threshold: Threshold) -> Plan {
    let mut plan = samples::open(level, RUN_TIME.as_secs(), &["eth_blockNumber"]);
    plan.target.point_at(&format!("http://127.0.0.1:{port}/")).unwrap();
    plan.target.family = Some(Family::Ethereum);
    plan.target.timeout = Duration::from_secs(2);
    plan.target.connect_timeout = Duration::from_secs(2);
    plan.thresholds = vec![threshold];
    plan.watch.interval = Duration::from_millis(100);
    let scenario = &mut plan.scenarios[0];
    scenario.name = "ramp".to_owned();
    scenario.model = model;
    scenario.workers_max = workers;
    scenario.queue_max = 10_000;
    scenario.pause = Duration::from_millis(if model == Model::Closed { 5 } else { 0 });
    scenario.grace = Duration::from_secs(1);
    scenario.stages[0].name = "ramp".to_owned();
    scenario.stages[0].from = 0.0;
    plan
}
