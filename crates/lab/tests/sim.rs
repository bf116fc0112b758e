//! Goal: what a run counts is what happened, whatever happens; and a run replays from its seed.
//!
//! Method: whole load runs in virtual time against a made-up server
//! (`lab_engine::engine::simulated`), plan, faults and all delays from one seed. The server writes
//! down what becomes of each request; the result must say the same. The same seed must give the
//! same result, byte for byte.
//!
//! `WEIR_SIM_SEED` runs one other seed and prints its result: `cargo xtask sim lab SEED`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lab::run::{Finished, replay};
use lab_engine::engine::simulated::{FaultRates, Network, ServerCounts};
use lab_model::plan::{Batch, Model, Plan, Reuse};
use lab_model::record::Class;
use lab_model::samples;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Seeds of an ordinary run.
const SEEDS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_millis(100);
/// Calls of each request of a plan that sends batches.
const CALLS: u64 = 3;
const BATCH: Batch = Batch { probability: 1.0, size: CALLS as usize };

/// A run of a seed: its plan, its result, and what the server has done.
fn run(seed: u64) -> (Plan, Finished, ServerCounts) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let plan = plan(&mut rng);
    let trouble = FaultRates {
        connect: *pick(&mut rng, &[0, 20, 200]),
        request: *pick(&mut rng, &[0, 50, 500]),
        stall: *pick(&mut rng, &[0, 5]),
    };
    let network = Network::new(seed, TIMEOUT, trouble);
    let shared = Arc::new(plan.clone());
    let finished = replay(&shared, &network, &mut |_| {}).expect("the plan can be run");
    (plan, finished, network.counts())
}

fn pick<'a, T>(rng: &mut SmallRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

fn plan(rng: &mut SmallRng) -> Plan {
    let methods = &["eth_call", "eth_blockNumber", "eth_getLogs"][..rng.random_range(1..=3)];
    let workers = rng.random_range(1..=20);
    let mut plan = if rng.random_bool(0.5) {
        samples::open(rng.random_range(20.0..800.0), 2, methods)
    } else {
        samples::closed(workers, *pick(rng, &[0, 1, 20]), 1, methods)
    };
    plan.seed = rng.random();
    (plan.target.timeout, plan.target.connect_timeout) = (TIMEOUT, TIMEOUT);
    plan.connections.reuse =
        *pick(rng, &[Reuse::Always, Reuse::Always, Reuse::Never, Reuse::Requests(7)]);
    if rng.random_bool(0.3) {
        // Two requests one after another, as a plan's steps are.
        let first = plan.mixes[0].steps[0].clone();
        plan.mixes[0].steps.push(first);
    }
    let closed = plan.scenarios[0].model == Model::Closed;
    let scenario = &mut plan.scenarios[0];
    scenario.workers_max = workers;
    scenario.batch = *pick(rng, &[None, None, Some(BATCH)]);
    if closed && scenario.pause.is_zero() {
        // Else a second of it would be many thousands of calls.
        scenario.iterations_max = Some(rng.random_range(1..=500));
    }
    if !closed {
        scenario.queue_max = *pick(rng, &[0, 50]);
    }
    plan
}

/// What the result says and the server knows otherwise; empty if they agree.
fn disagreements(plan: &Plan, finished: &Finished, account: &ServerCounts) -> Vec<String> {
    let mut found = Vec::new();
    let mut same = |what: &str, told: u64, known: u64| {
        if told != known {
            found.push(format!("{what}: told {told}, known {known}"));
        }
    };
    let totals = &finished.totals;
    let mut told = BTreeMap::<Class, u64>::new();
    for (slot, cell) in &totals.cells {
        *told.entry(slot.class).or_default() += cell.latency.len();
    }
    let each = plan.scenarios[0].batch.map_or(1, |_| CALLS);
    for class in Class::ALL {
        let known = match class {
            Class::Connect => account.unconnected * each,
            _ => account.calls.get(&class).copied().unwrap_or_default(),
        };
        same(class.as_str(), told.get(&class).copied().unwrap_or_default(), known);
    }
    let traffic = &totals.traffic;
    same("connections", traffic.connections, account.connections);
    same("bytes sent", traffic.bytes_sent, account.received);
    same("bytes received", traffic.bytes_received, account.sent);
    let all = totals.iterations.iter();
    let sum = |of: fn(&lab_model::record::Iterations) -> u64| all.clone().map(of).sum::<u64>();
    same("iterations scheduled", sum(|one| one.scheduled), sum(|one| one.started + one.dropped));
    same("iterations started", sum(|one| one.started), sum(|one| one.ended + one.interrupted));
    same("iterations interrupted", sum(|one| one.interrupted), 0);
    let calls: u64 = told.values().sum();
    let steps = plan.mixes[0].steps.len() as u64;
    same("calls", calls, sum(|one| one.ended) * steps * each);
    let row = &finished.result.overall;
    same("calls of the result", row.calls, calls);
    // A timeout is counted at its deadline, later only by what the loop was late.
    same("service time beyond the timeout", u64::from(row.service.max_ms > 110.0), 0);
    same("service time above latency", u64::from(row.service.max_ms > row.latency.max_ms), 0);
    found
}

fn json(finished: &Finished) -> String {
    serde_json::to_string_pretty(&finished.result).expect("a result is JSON")
}

#[test]
fn counters_match_the_simulated_events() {
    if let Some(seed) = std::env::var("WEIR_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (plan, finished, account) = run(seed);
        println!("{}", json(&finished));
        let found = disagreements(&plan, &finished, &account);
        assert!(found.is_empty(), "seed {seed}: {found:#?}");
        return;
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut classes = BTreeMap::<Class, u64>::new();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || check(first as u64..SEEDS, threads)))
            .collect();
        for (class, calls) in running.into_iter().flat_map(|one| one.join().unwrap()) {
            *classes.entry(class).or_default() += calls;
        }
    });
    println!("{classes:?}");
    let never = Class::ALL.into_iter().filter(|class| !classes.contains_key(class));
    // The simulated network has neither TLS nor WebSockets, and there is no reference.
    let expected = [Class::Tls, Class::Upgrade, Class::Closed, Class::WrongAnswer];
    assert_eq!(never.collect::<Vec<_>>(), expected, "{classes:?}");
}

/// Checks each `step`th of these seeds and returns the calls per class.
fn check(seeds: Range<u64>, step: usize) -> BTreeMap<Class, u64> {
    let mut classes = BTreeMap::new();
    for seed in seeds.step_by(step) {
        let (plan, finished, account) = run(seed);
        let found = disagreements(&plan, &finished, &account);
        assert!(
            found.is_empty(),
            "cargo xtask sim lab {seed}\n{found:#?}\n{account:?}\n{:?}\n{:?}",
            plan.scenarios[0],
            finished.totals.iterations
        );
        account
            .calls
            .iter()
            .for_each(|(class, calls)| *classes.entry(*class).or_default() += calls);
        *classes.entry(Class::Connect).or_default() += account.unconnected;
    }
    classes
}

#[test]
fn the_same_seed_gives_the_same_result_byte_for_byte() {
    for seed in 0..20 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(json(&first.1), json(&second.1), "seed {seed}");
        assert_eq!(first.2, second.2, "seed {seed}");
    }
    assert_ne!(json(&run(1).1), json(&run(2).1));
}

#[test]
fn a_disagreement_is_found() {
    let (plan, finished, mut account) = run(3);
    assert!(disagreements(&plan, &finished, &account).is_empty());
    *account.calls.entry(Class::Ok).or_default() += 1;
    account.received += 1;
    assert_eq!(disagreements(&plan, &finished, &account).len(), 2);
}
