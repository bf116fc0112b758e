//! Builds minimal plans, counts and points of time series for tests of the analysis. The values are
//! not realistic. In an open scenario, iterations start by the clock. In a closed scenario, a
//! worker starts its next iteration when its previous one has ended. The class of a call says how
//! the call ended.

use std::time::Duration;

use settings::url::NodeUrl;

use crate::plan::{
    Capacity, Connections, HttpVersion, Inclusion, Mix, Model, Plan, Reuse, Scenario, Stage, Step,
    Target, Template, Tls, Validity, Watch, WeightedCall,
};
use crate::record::{Class, Interval, Iterations, Slot, Totals};
use crate::results::run::{MethodSecond, Second};

/// Returns a plan with one open scenario at the constant rate of `rate` iterations per second. Each
/// iteration sends one call. Its method is chosen at random, and all methods have the same weight.
pub fn open(rate: f64, seconds: u64, methods: &[&str]) -> Plan {
    let calls = (0..methods.len()).map(|method| WeightedCall {
        weight: 1.0,
        template: Template { method, params: Vec::new() },
    });
    let mix = Mix { name: "mix".to_owned(), steps: vec![Step::Choose(calls.collect())] };
    let mut plan = Plan {
        name: "sample".to_owned(),
        text: String::new(),
        target: target(),
        connections: Connections {
            http: HttpVersion::Http1,
            reuse: Reuse::Always,
            tls: Tls::default(),
        },
        seed: 1,
        threads: 1,
        methods: methods.iter().map(|method| (*method).into()).collect(),
        mixes: vec![mix],
        scenarios: vec![Scenario {
            name: "load".to_owned(),
            start: Duration::ZERO,
            model: Model::Open,
            stages: Vec::new(),
            mix: 0,
            workers_max: 100,
            queue_max: 0,
            pause: Duration::ZERO,
            batch: None,
            iterations_max: None,
            transactions: None,
            grace: Duration::from_secs(30),
        }],
        subscriptions: Vec::new(),
        thresholds: Vec::new(),
        warmup: Duration::ZERO,
        validity: Validity {
            delivered_share_min: 0.99,
            scheduling_delay_p99_max: Duration::from_millis(1),
            scheduling_delay_share_max: 0.05,
            waited_share_max: 0.1,
            generator_share_max: 0.1,
        },
        reference: None,
        watch: Watch { interval: Duration::from_secs(1), pids: Vec::new(), node_exporter: None },
        inclusion: Inclusion { interval: Duration::from_millis(10), wait: Duration::from_secs(5) },
        capacity: capacity(),
        warnings: Vec::new(),
    };
    stage(&mut plan, 0, seconds, rate, rate);
    plan
}

/// Returns a plan with one closed scenario. Each of its workers pauses after each iteration.
pub fn closed(workers: usize, pause_ms: u64, seconds: u64, methods: &[&str]) -> Plan {
    // The level of a closed scenario is its number of workers.
    let mut plan = open(workers as f64, seconds, methods);
    let scenario = &mut plan.scenarios[0];
    (scenario.model, scenario.workers_max) = (Model::Closed, workers);
    scenario.pause = Duration::from_millis(pause_ms);
    plan
}

/// Adds a stage to the scenario with the index `scenario`. `from` and `to` are the levels at its
/// start and end: iterations per second, or workers.
pub fn stage(plan: &mut Plan, scenario: usize, seconds: u64, from: f64, to: f64) {
    let index = plan.stages().count();
    let duration = Duration::from_secs(seconds);
    let stage = Stage { index, name: format!("stage {index}"), duration, from, to };
    plan.scenarios[scenario].stages.push(stage);
}

fn target() -> Target {
    Target {
        url: NodeUrl::parse_http("http://127.0.0.1:1/").expect("the URL is valid"),
        family: None,
        headers: Vec::new(),
        timeout: Duration::from_secs(15),
        connect_timeout: Duration::from_secs(5),
        response_bytes_max: 1 << 20,
    }
}

fn capacity() -> Capacity {
    Capacity {
        rate_start: 100.0,
        rate_max: 1e6,
        precision: 0.05,
        probe: Duration::from_secs(10),
        probe_warmup: Duration::from_secs(2),
        repeats: 3,
        drain: Duration::from_secs(1),
        soak: Duration::ZERO,
    }
}

/// Returns the counts of one thread. Each entry of `calls` has the index of a stage, the index of a
/// method, a class, the number of calls, and their latency in milliseconds. `iterations` are the
/// iterations of the first stage.
pub fn counted(
    plan: &Plan,
    calls: &[(u16, u16, Class, u64, u64)],
    iterations: Iterations,
) -> Totals {
    let stages = plan.stages().count();
    let mut interval = Interval::new(0, stages, plan.methods.len());
    for &(stage, method, class, count, latency_ms) in calls {
        let slot = Slot { stage, method, class };
        let latency_ns = latency_ms * 1_000_000;
        (0..count).for_each(|_| interval.record(slot, latency_ns, latency_ns));
        interval.traffic.requests += count;
    }
    interval.iterations[0] = iterations;
    let mut totals = Totals::new(stages);
    totals.merge(&interval);
    totals
}

/// Returns one second of a time series, with calls of one method. The second ends at `end`, in
/// seconds since the start of the run. `classes` has the number of calls by class.
pub fn second(end: u64, started: u64, method: &str, classes: &[(Class, u64)]) -> Second {
    Second {
        at: end as f64,
        started,
        scheduled: started,
        methods: vec![MethodSecond {
            method: method.to_owned(),
            classes: classes.to_vec(),
            ..MethodSecond::default()
        }],
        ..Second::default()
    }
}
