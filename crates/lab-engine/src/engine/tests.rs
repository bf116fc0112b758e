//! Goal: the counts of the engine are right. Method: small servers in this process that fail in
//! known ways, and the expected sums.

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

use super::{Engine, EngineFault, Next, Sample};
use crate::chain::ChainFacts;
use server::Server;

const SECOND: Duration = Duration::from_secs(1);

/// A closed plan of one worker that makes `iterations` calls of one method without parameters.
fn plan(server: &Server, iterations: u64) -> Plan {
    let mut plan = samples::closed(1, 0, 20, &["eth_blockNumber"]);
    plan.seed = 7;
    plan.mixes[0].name = "one".to_owned();
    let url = format!("http://localhost:{}/rpc", server.address.port());
    plan.target.point_at(&url).unwrap();
    plan.target.timeout = Duration::from_secs(5);
    plan.scenarios[0].iterations_max = Some(iterations);
    plan.scenarios[0].grace = SECOND;
    plan
}

/// Changes a plan to an open plan with this rate.
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

fn facts() -> ChainFacts {
    ChainFacts {
        head: 1000,
        decimal: false,
        block_hashes: vec!["0xb1".into(), "0xb2".into()],
        transaction_hashes: vec!["0xt1".into()],
        addresses: vec!["0xa1".into(), "0xa2".into(), "0xa3".into()],
    }
}

/// Results of a run.
struct Ran {
    totals: Totals,
    samples: Vec<Sample>,
    intervals: usize,
    took: Duration,
}

impl Ran {
    fn count(&self, class: Class) -> u64 {
        self.totals.count(|slot| slot.class == class)
    }

    /// Checks that all calls are of this class, and their number.
    fn check_all(&self, class: Class, count: u64) {
        let counts: Vec<(Class, u64)> =
            self.totals.cells.iter().map(|(slot, cell)| (slot.class, cell.service.len())).collect();
        assert_eq!(counts, [(class, count)]);
    }
}

fn start(plan: Plan, server: &Server) -> Result<Engine, EngineFault> {
    Engine::start(Arc::new(plan), Arc::new(facts()), vec![server.address], Instant::now())
}

fn run(plan: Plan, server: &Server) -> Ran {
    let engine = start(plan, server).unwrap();
    collect(engine)
}

fn collect(mut engine: Engine) -> Ran {
    let began = Instant::now();
    let mut ran =
        Ran { totals: Totals::new(8), samples: Vec::new(), intervals: 0, took: Duration::ZERO };
    loop {
        match engine.next(Duration::from_secs(30)) {
            Next::Interval(interval) => {
                ran.totals.merge(&interval);
                ran.intervals += 1;
                engine.give_back(interval);
            }
            Next::Nothing => panic!("no interval in 30 s"),
            Next::Ended => break,
        }
        ran.samples.extend(engine.samples().try_iter());
    }
    engine.finish().unwrap();
    ran.took = began.elapsed();
    ran
}
