//! Plans of the planted cases: seven seconds in which the load grows from nothing.

use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{
    Capacity, Connections, HttpVersion, Late, Mix, Model, Plan, Reuse, Scenario, Stage, Step,
    Target, Template, Tls, Validity, Watch, Weighted,
};
use wire::method::FamilyName;

const TIME: Duration = Duration::from_secs(7);

/// 95 % within 100 ms, in each second.
pub(crate) fn slow() -> Threshold {
    threshold(Metric::Latency, Aggregation::Percentile(95.0), 100.0, "p(95)<100")
}

/// Every call within a second, in each second.
pub(crate) fn stuck() -> Threshold {
    threshold(Metric::Latency, Aggregation::Max, 1_000.0, "max<1000")
}

/// Less than 5 % answered 429, in each second.
pub(crate) fn limited() -> Threshold {
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

fn validity() -> Validity {
    Validity {
        delivered_share_min: 0.99,
        lateness_p99_max: Duration::from_millis(1),
        lateness_share_max: 0.05,
        waited_share_max: 0.1,
    }
}

/// A rate that grows to `rate` a second.
pub(crate) fn open(port: u16, rate: f64, threshold: Threshold) -> Plan {
    plan(port, Model::Open { late: Late::Queue { max: 10_000 } }, rate, 60, threshold)
}

/// Workers whose number grows to `workers`.
pub(crate) fn closed(port: u16, workers: usize, threshold: Threshold) -> Plan {
    plan(port, Model::Closed, workers as f64, workers, threshold)
}

fn plan(port: u16, model: Model, level: f64, workers: usize, threshold: Threshold) -> Plan {
    let template = Template { method: 0, params: Vec::new() };
    let step = Step::Choose(vec![Weighted { weight: 1.0, template }]);
    let stage = Stage { index: 0, name: "ramp".to_owned(), duration: TIME, from: 0.0, to: level };
    Plan {
        name: "planted".to_owned(),
        text: String::new(),
        target: target(port),
        connections: Connections {
            http: HttpVersion::Http1,
            reuse: Reuse::Always,
            tls: Tls::default(),
        },
        seed: 1,
        threads: 1,
        methods: vec!["eth_blockNumber".into()],
        mixes: vec![Mix { name: "one".to_owned(), steps: vec![step] }],
        scenarios: vec![Scenario {
            name: "ramp".to_owned(),
            start: Duration::ZERO,
            model,
            stages: vec![stage],
            mix: 0,
            workers_max: workers,
            pause: Duration::from_millis(if model == Model::Closed { 5 } else { 0 }),
            batch: None,
            iterations_max: None,
            grace: Duration::from_secs(1),
        }],
        thresholds: vec![threshold],
        warmup: Duration::ZERO,
        validity: validity(),
        reference: None,
        watch: Watch {
            interval: Duration::from_millis(100),
            pids: Vec::new(),
            node_exporter: None,
        },
        capacity: Capacity {
            rate_start: 1.0,
            rate_max: 1.0,
            precision: 1.0,
            probe: TIME,
            probe_warmup: Duration::ZERO,
            repeats: 1,
            drain: Duration::ZERO,
            soak: Duration::ZERO,
        },
        warnings: Vec::new(),
    }
}

fn target(port: u16) -> Target {
    let url = format!("http://127.0.0.1:{port}/");
    Target {
        shown: url.clone(),
        url,
        tls: false,
        host: "127.0.0.1".to_owned(),
        port,
        path: "/".to_owned(),
        family: Some(FamilyName::Ethereum),
        headers: Vec::new(),
        timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(2),
        answer_bytes_max: 1 << 20,
    }
}
