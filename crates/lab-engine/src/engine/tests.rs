//! Goal: the counts of the engine are right. Method: small servers in this process respond or fail
//! in known ways, and the tests compare the engine's counts with the expected sums.

mod classes;
mod connections;
mod http2;
mod load;
mod long;
mod server;
mod tls;
mod transactions;
mod websocket;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_model::plan::{HttpVersion, Model, Plan, Reuse};
use lab_model::record::{Class, Totals};
use lab_model::samples;

use super::{Engine, EngineEvent, EngineFault, Sample};
use crate::chain::ChainFacts;
use server::Server;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a plan with a closed scenario: one worker makes `iterations` calls of one method without
/// parameters.
fn plan(server: &Server, iterations: u64) -> Plan {
    let (workers, pause_ms, seconds) = (1, 0, 20);
    let mut plan = samples::closed(workers, pause_ms, seconds, &["eth_blockNumber"]);
    plan.seed = 7;
    plan.mixes[0].name = "one".to_owned();
    let url = format!("http://localhost:{}/rpc", server.address.port());
    plan.target.point_at(&url).unwrap();
    plan.target.timeout = Duration::from_secs(5);
    plan.scenarios[0].iterations_max = Some(iterations);
    plan.scenarios[0].grace = SECOND;
    plan
}

/// Makes the scenario of a plan an open scenario with the constant `rate` of iterations per second.
/// Up to `queue_max` iterations wait for one of `workers_max` workers. The plan's number of
/// iterations no longer applies.
fn open(
    mut plan: Plan,
    rate: f64,
    duration: Duration,
    workers_max: usize,
    queue_max: usize,
) -> Plan {
    let scenario = &mut plan.scenarios[0];
    scenario.model = Model::Open;
    scenario.queue_max = queue_max;
    scenario.workers_max = workers_max;
    scenario.iterations_max = None;
    scenario.stages[0].duration = duration;
    (scenario.stages[0].from, scenario.stages[0].to) = (rate, rate);
    plan
}

fn chain_facts() -> ChainFacts {
    ChainFacts {
        head: 1000,
        has_decimal_numbers: false,
        block_hashes: vec!["0xb1".into(), "0xb2".into()],
        transaction_hashes: vec!["0xt1".into()],
        addresses: vec!["0xa1".into(), "0xa2".into(), "0xa3".into()],
    }
}

/// The counts and samples of a run.
struct RunOutcome {
    totals: Totals,
    samples: Vec<Sample>,
    /// Number of intervals that the threads handed over.
    intervals: usize,
    elapsed: Duration,
}

impl RunOutcome {
    fn count(&self, class: Class) -> u64 {
        self.totals.count(|slot| slot.class == class)
    }

    /// Checks that there are `count` calls, and that all of them are of this class.
    fn check_all(&self, class: Class, count: u64) {
        let counts: Vec<(Class, u64)> =
            self.totals.cells.iter().map(|(slot, cell)| (slot.class, cell.service.len())).collect();
        assert_eq!(counts, [(class, count)]);
    }
}

fn start(plan: Plan, server: &Server) -> Result<Engine, EngineFault> {
    Engine::start(Arc::new(plan), Arc::new(chain_facts()), vec![server.address], Instant::now())
}

fn run(plan: Plan, server: &Server) -> RunOutcome {
    let engine = start(plan, server).unwrap();
    collect(engine)
}

fn collect(mut engine: Engine) -> RunOutcome {
    let started = Instant::now();
    let mut outcome = RunOutcome {
        totals: Totals::new(8),
        samples: Vec::new(),
        intervals: 0,
        elapsed: Duration::ZERO,
    };
    loop {
        match engine.next(Duration::from_secs(30)) {
            EngineEvent::Interval(interval) => {
                outcome.totals.merge(&interval);
                outcome.intervals += 1;
                engine.give_back(interval);
            }
            EngineEvent::Nothing => panic!("no interval in 30 s"),
            EngineEvent::Ended => break,
        }
        outcome.samples.extend(engine.samples().try_iter());
    }
    engine.finish().unwrap();
    outcome.elapsed = started.elapsed();
    outcome
}
