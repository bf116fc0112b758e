//! The state of a small run after twelve seconds, for tests of the screen and of exports.

use std::sync::Arc;
use std::time::Duration;

use lab_model::metrics::host::host;
use lab_model::plan::Plan;
use lab_model::record::{Class, Interval, Slot, Totals};
use lab_model::results::run::{HostSample, MethodSecond, Second};
use lab_model::results::{TargetFacts, ThresholdOutcome};
use lab_model::samples;

use crate::run::Progress;

/// The data that a [`Progress`] borrows.
pub(crate) struct Scene {
    pub(crate) plan: Arc<Plan>,
    pub(crate) elapsed: Duration,
    pub(crate) target: TargetFacts,
    pub(crate) second: Second,
    pub(crate) totals: Totals,
    pub(crate) host: Vec<HostSample>,
    pub(crate) thresholds: Vec<ThresholdOutcome>,
}

/// Names of the methods; the last one is never called.
pub(crate) const METHODS: [&str; 3] = ["eth_blockNumber", "eth_getLogs", "eth_call"];

impl Scene {
    /// Creates a run of a minute with two stages. After twelve seconds it has 12,000 calls, of
    /// which 70 failed and 30 were limited.
    pub(crate) fn new() -> Scene {
        // The counts of thread 0 in a plan with two stages.
        let mut interval = Interval::new(0, 2, METHODS.len());
        let mut record = |stage, method, class, count: u64, ms: f64| {
            for index in 0..count {
                // The latencies rise evenly from `ms` to 1.1 × `ms`, so their quantiles differ.
                let nanos = (ms * 1e6 * (1.0 + 0.1 * index as f64 / count as f64)) as u64;
                interval.record(Slot { stage, method, class }, nanos, nanos / 2);
            }
        };
        // Stage, method, class, number of calls, shortest latency in milliseconds.
        record(0, 0, Class::Ok, 5_000, 1.0);
        record(1, 0, Class::Ok, 4_000, 2.0);
        record(1, 1, Class::Ok, 2_900, 40.0);
        record(1, 1, Class::Timeout, 20, 5_000.0);
        record(1, 1, Class::RpcError, 50, 3.0);
        record(1, 1, Class::Limited, 30, 1.0);
        interval.record_code(1, -32_005);
        for code in [-32_000; 49] {
            interval.record_code(1, code);
        }
        for index in 0..12_000 {
            interval.scheduling_delay.saturating_record(20_000 + index);
            interval.iteration_time.saturating_record(2_000_000);
        }
        for stage in &mut interval.iterations {
            (stage.scheduled, stage.started, stage.ended, stage.dropped) =
                (6_010, 6_000, 5_990, 10);
        }
        interval.traffic.requests = 12_000;
        interval.traffic.connections = 50;
        interval.traffic.bytes_sent = 1_200_000;
        interval.traffic.bytes_received = 9_600_000;
        interval.statuses.insert(200, 11_950);
        interval.statuses.insert(429, 30);
        interval.connect_time.saturating_record(150_000);
        interval.cpu = Duration::from_millis(1_500);
        let mut totals = Totals::new(2);
        totals.merge(&interval);
        let plan = Arc::new(plan());
        let target =
            TargetFacts { client: Some("Geth/v1.16.9".to_owned()), ..TargetFacts::default() };
        let elapsed = Duration::from_secs(12);
        let (host, thresholds) = (host(), thresholds());
        Scene { plan, elapsed, target, second: second(), totals, host, thresholds }
    }

    pub(crate) fn progress(&self) -> Progress<'_> {
        Progress {
            elapsed: self.elapsed,
            duration: self.plan.duration(),
            plan: &self.plan,
            target: &self.target,
            second: &self.second,
            totals: &self.totals,
            host: &self.host,
            thresholds: &self.thresholds,
        }
    }
}

fn second() -> Second {
    let method = |method: usize, classes: &[(Class, u64)], p99_ms: f64| MethodSecond {
        method: METHODS[method].to_owned(),
        stage: 1,
        classes: classes.to_vec(),
        p50_ms: p99_ms / 4.0,
        p95_ms: p99_ms / 2.0,
        p99_ms,
        max_ms: p99_ms * 2.0,
        max_least_ms: None,
    };
    Second {
        at: 12.0,
        scheduled: 1_000,
        started: 998,
        dropped: 2,
        requests: 997,
        scheduling_delay_p99_ms: 0.031,
        generator_busy: 0.34,
        generator_gap_ms: 0.0,
        in_flight: 12,
        workers_busy: 14,
        waiting: 0,
        methods: vec![
            method(0, &[(Class::Ok, 700)], 2.2),
            method(1, &[(Class::Ok, 280), (Class::Timeout, 4), (Class::Limited, 13)], 480.0),
        ],
    }
}

/// Returns a sample of the generator's host. `host!` looks up a declared host metric by its name.
fn host() -> Vec<HostSample> {
    let values = [
        (host!("cpu_user").name, 0.71),
        (host!("memory_available_bytes").name, 4e9),
        (host!("psi_cpu_some").name, 0.12),
    ];
    let values = values.map(|(name, value)| (name.to_owned(), value)).to_vec();
    vec![HostSample { at: 12.0, host: "generator".to_owned(), values }]
}

fn thresholds() -> Vec<ThresholdOutcome> {
    let outcome = |text: &str, kept, observed, broken_at| ThresholdOutcome {
        text: text.to_owned(),
        kept,
        observed,
        broken_at,
        ..ThresholdOutcome::default()
    };
    vec![
        outcome("failed rate<0.01", true, Some(0.005_83), None),
        outcome("latency{method:eth_getLogs} p(99)<300", false, Some(480.25), Some(9.0)),
        outcome("latency{method:eth_call} p(99)<300", false, None, None),
    ]
}

/// Creates a plan of a minute: 10 s at 500/s, then 50 s from 500/s to 2,000/s.
fn plan() -> Plan {
    let mut plan = samples::open(500.0, 10, &METHODS);
    samples::stage(&mut plan, 0, 50, 500.0, 2_000.0);
    plan.name = "nightly".to_owned();
    plan.target.point_at("http://node:8545/key").unwrap();
    let scenario = &mut plan.scenarios[0];
    scenario.name = "main".to_owned();
    scenario.stages[0].name = "steady".to_owned();
    scenario.stages[1].name = "climb".to_owned();
    scenario.grace = Duration::from_secs(5);
    plan
}
