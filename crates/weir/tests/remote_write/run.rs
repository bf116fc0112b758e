//! A run with known counts, as exports see it: no load is made, so that every value that is asked
//! for is known exactly.

use std::sync::Arc;
use std::time::Duration;

use lab::run::Progress;
use lab_model::plan::*;
use lab_model::record::{Class, Interval, Slot, Totals};
use lab_model::results::TargetFacts;
use lab_model::results::run::{HostSample, Second};

/// What a [`Progress`] borrows from.
pub(crate) struct Run {
    plan: Arc<Plan>,
    at: Duration,
    target: TargetFacts,
    second: Second,
    totals: Totals,
    host: Vec<HostSample>,
}

impl Run {
    /// 9,000 calls of one method at 2 ms; of another 2,900 at 40 ms, 50 JSON-RPC errors and 30
    /// refusals at 3 ms, and 20 timeouts of 5 s.
    pub(crate) fn new() -> Run {
        let mut interval = Interval::new(0, 1, 2);
        let mut record = |method, class, count: u64, ms: u64| {
            for _ in 0..count {
                let slot = Slot { stage: 0, method, class };
                interval.record(slot, ms * 1_000_000, ms * 1_000_000);
            }
        };
        record(0, Class::Ok, 9_000, 2);
        record(1, Class::Ok, 2_900, 40);
        record(1, Class::RpcError, 50, 3);
        record(1, Class::Limited, 30, 3);
        record(1, Class::Timeout, 20, 5_000);
        let iterations = &mut interval.iterations[0];
        (iterations.due, iterations.begun, iterations.ended) = (12_020, 12_000, 12_000);
        iterations.dropped = 20;
        interval.iteration_time.record(2_000_000).expect("it fits");
        interval.traffic.bytes_sent = 1_200_000;
        let mut totals = Totals::new(1);
        totals.merge(&interval);
        let second = Second { workers_busy: 14, generator_busy: 0.3, ..Second::default() };
        let values = vec![("cpu_user".to_owned(), 0.7)];
        let host = vec![HostSample { at: 12.0, host: "generator".to_owned(), values }];
        let (plan, target) = (Arc::new(plan()), TargetFacts::default());
        Run { plan, at: Duration::from_secs(12), target, second, totals, host }
    }

    /// Lets time pass in which nothing happens.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.at += time;
    }

    pub(crate) fn progress(&self) -> Progress<'_> {
        Progress {
            at: self.at,
            of: Duration::from_secs(60),
            plan: &self.plan,
            target: &self.target,
            second: &self.second,
            totals: &self.totals,
            host: &self.host,
            thresholds: &[],
        }
    }
}

/// One open stage of a minute.
fn plan() -> Plan {
    let stage = Stage {
        index: 0,
        name: "steady".to_owned(),
        duration: Duration::from_secs(60),
        from: 1_000.0,
        to: 1_000.0,
    };
    let scenario = Scenario {
        name: "main".to_owned(),
        start: Duration::ZERO,
        model: Model::Open { late: Late::Drop },
        stages: vec![stage],
        mix: 0,
        workers_max: 100,
        pause: Duration::ZERO,
        batch: None,
        iterations_max: None,
        grace: Duration::ZERO,
    };
    let connections =
        Connections { http: HttpVersion::Http1, reuse: Reuse::Always, tls: Tls::default() };
    Plan {
        name: "nightly".to_owned(),
        text: String::new(),
        target: target(),
        connections,
        seed: 1,
        threads: 1,
        methods: vec!["eth_blockNumber".into(), "eth_getLogs".into()],
        mixes: Vec::new(),
        scenarios: vec![scenario],
        thresholds: Vec::new(),
        warmup: Duration::ZERO,
        validity: Validity {
            delivered_share_min: 0.99,
            lateness_p99_max: Duration::from_millis(1),
            lateness_share_max: 0.05,
            waited_share_max: 0.1,
        },
        reference: None,
        watch: Watch { interval: Duration::from_secs(1), pids: Vec::new(), node_exporter: None },
        capacity: Capacity {
            rate_start: 1.0,
            rate_max: 1.0,
            precision: 0.1,
            probe: Duration::ZERO,
            probe_warmup: Duration::ZERO,
            repeats: 1,
            drain: Duration::ZERO,
            soak: Duration::ZERO,
        },
        warnings: Vec::new(),
    }
}

fn target() -> Target {
    Target {
        url: String::new(),
        shown: "http://node:8545".to_owned(),
        tls: false,
        host: "node".to_owned(),
        port: 8545,
        path: "/".to_owned(),
        family: None,
        headers: Vec::new(),
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        answer_bytes_max: 1 << 20,
    }
}
