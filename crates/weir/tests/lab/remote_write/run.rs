//! The progress of a run with known counts, as the exports receive it. No load is generated, so
//! every value that a test queries is known exactly.

use std::sync::Arc;
use std::time::Duration;

use lab::run::Progress;
use lab_model::plan::Plan;
use lab_model::record::{Class, Interval, Slot, Totals};
use lab_model::results::TargetFacts;
use lab_model::results::run::{HostSample, Second};
use lab_model::samples;

/// The values that a [`Progress`] borrows.
pub(crate) struct Run {
    plan: Arc<Plan>,
    elapsed: Duration,
    target: TargetFacts,
    second: Second,
    totals: Totals,
    host: Vec<HostSample>,
}

impl Run {
    /// Creates a run with two methods. The first has 9,000 results at 2 ms. The second has 2,900
    /// results at 40 ms, 50 JSON-RPC errors and 30 rate-limited calls at 3 ms, and 20 timeouts
    /// after 5 s.
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
        (iterations.scheduled, iterations.started, iterations.ended) = (12_020, 12_000, 12_000);
        iterations.dropped = 20;
        interval.iteration_time.record(2_000_000).expect("it fits");
        interval.traffic.bytes_sent = 1_200_000;
        let mut totals = Totals::new(1);
        totals.merge(&interval);
        let second = Second { workers_busy: 14, generator_busy: 0.3, ..Second::default() };
        let values = vec![("cpu_user".to_owned(), 0.7)];
        let host = vec![HostSample { at: 12.0, host: "generator".to_owned(), values }];
        let (plan, target) = (Arc::new(plan()), TargetFacts::default());
        Run { plan, elapsed: Duration::from_secs(12), target, second, totals, host }
    }

    /// Advances the elapsed time without new calls.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.elapsed += time;
    }

    pub(crate) fn progress(&self) -> Progress<'_> {
        Progress {
            elapsed: self.elapsed,
            duration: Duration::from_secs(60),
            plan: &self.plan,
            target: &self.target,
            second: &self.second,
            totals: &self.totals,
            host: &self.host,
            thresholds: &[],
        }
    }
}

/// Returns a plan with one open-loop stage of a minute.
fn plan() -> Plan {
    let mut plan = samples::open(1_000.0, 60, &["eth_blockNumber", "eth_getLogs"]);
    plan.name = "nightly".to_owned();
    plan.target.point_at("http://node:8545").unwrap();
    plan.scenarios[0].name = "main".to_owned();
    plan.scenarios[0].stages[0].name = "steady".to_owned();
    plan
}
