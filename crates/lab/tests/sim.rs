//! Goal: the counters of a load run match the events of the run under every fault, and a run
//! replays from its seed.
//!
//! Method: whole load runs in virtual time against a simulated server
//! (`lab_engine::engine::simulated`). One seed determines the plan, the faults and all delays. The
//! server counts the outcome of each request, and the result must have the same counts. The same
//! seed must give the same result, byte for byte.
//!
//! `WEIR_SIM_SEED` replaces the seeds by one, and prints its result: `cargo xtask sim lab SEED`.

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

/// Number of seeds that the test tries.
const SEEDS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_millis(100);
/// Calls per request, if the plan sends batches.
const BATCH_CALLS: u64 = 3;
const BATCH: Batch = Batch { probability: 1.0, size: BATCH_CALLS as usize };

/// Runs the plan of a seed; returns the plan, its result, and the server's counts.
fn run(seed: u64) -> (Plan, Finished, ServerCounts) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let plan = random_plan(&mut rng);
    let fault_rates = FaultRates {
        connect: *pick(&mut rng, &[0, 20, 200]),
        request: *pick(&mut rng, &[0, 50, 500]),
        stall: *pick(&mut rng, &[0, 5]),
    };
    let network = Network::new(seed, TIMEOUT, fault_rates);
    let shared = Arc::new(plan.clone());
    let finished = replay(&shared, &network, &mut |_| {}).expect("the plan can be run");
    (plan, finished, network.counts())
}

fn pick<'a, T>(rng: &mut SmallRng, choices: &'a [T]) -> &'a T {
    &choices[rng.random_range(0..choices.len())]
}

fn random_plan(rng: &mut SmallRng) -> Plan {
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
        // An iteration of two steps sends two requests, one after the other.
        let first_step = plan.mixes[0].steps[0].clone();
        plan.mixes[0].steps.push(first_step);
    }
    let is_closed = plan.scenarios[0].model == Model::Closed;
    let scenario = &mut plan.scenarios[0];
    scenario.workers_max = workers;
    scenario.batch = *pick(rng, &[None, None, Some(BATCH)]);
    if is_closed && scenario.pause.is_zero() {
        // Workers without a pause would make many thousands of calls per virtual second.
        scenario.iterations_max = Some(rng.random_range(1..=500));
    }
    if !is_closed {
        scenario.queue_max = *pick(rng, &[0, 50]);
    }
    plan
}

/// Differences between the counters of a result and the server's counts; empty if they agree.
fn disagreements(plan: &Plan, finished: &Finished, counts: &ServerCounts) -> Vec<String> {
    let mut differences = Vec::new();
    let mut compare = |counter: &str, reported: u64, expected: u64| {
        if reported != expected {
            differences.push(format!("{counter}: reported {reported}, expected {expected}"));
        }
    };
    let totals = &finished.totals;
    // A slot is a combination of stage, method and class. Its cell has the histograms of its calls.
    let mut reported_calls = BTreeMap::<Class, u64>::new();
    for (slot, cell) in &totals.cells {
        *reported_calls.entry(slot.class).or_default() += cell.latency.len();
    }
    let calls_per_request = plan.scenarios[0].batch.map_or(1, |_| BATCH_CALLS);
    for class in Class::ALL {
        let expected = match class {
            Class::Connect => counts.unconnected * calls_per_request,
            _ => counts.calls.get(&class).copied().unwrap_or_default(),
        };
        let reported = reported_calls.get(&class).copied().unwrap_or_default();
        compare(class.as_str(), reported, expected);
    }
    let traffic = &totals.traffic;
    compare("connections", traffic.connections, counts.connections);
    compare("bytes sent", traffic.bytes_sent, counts.received);
    compare("bytes received", traffic.bytes_received, counts.sent);
    let iterations = totals.iterations.iter();
    let sum = |count: fn(&lab_model::record::Iterations) -> u64| {
        iterations.clone().map(count).sum::<u64>()
    };
    let started = sum(|counts| counts.started);
    let ended = sum(|counts| counts.ended);
    let interrupted = sum(|counts| counts.interrupted);
    compare(
        "iterations scheduled",
        sum(|counts| counts.scheduled),
        started + sum(|counts| counts.dropped),
    );
    compare("iterations started", started, ended + interrupted);
    compare("iterations interrupted", interrupted, 0);
    let calls: u64 = reported_calls.values().sum();
    let steps = plan.mixes[0].steps.len() as u64;
    compare("calls", calls, ended * steps * calls_per_request);
    let overall = &finished.result.overall;
    compare("calls of the result", overall.calls, calls);
    // The timeout is 100 ms; the event loop may notice a deadline up to 10 ms late.
    compare("service time beyond the timeout", u64::from(overall.service.max_ms > 110.0), 0);
    compare(
        "service time above latency",
        u64::from(overall.service.max_ms > overall.latency.max_ms),
        0,
    );
    differences
}

fn to_json(finished: &Finished) -> String {
    serde_json::to_string_pretty(&finished.result).expect("a result is JSON")
}

#[test]
fn counters_match_the_simulated_events() {
    if let Some(seed) = std::env::var("WEIR_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let (plan, finished, counts) = run(seed);
        println!("{}", to_json(&finished));
        let differences = disagreements(&plan, &finished, &counts);
        assert!(differences.is_empty(), "seed {seed}: {differences:#?}");
        return;
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut classes = BTreeMap::<Class, u64>::new();
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|first_seed| scope.spawn(move || check_seeds(first_seed as u64..SEEDS, threads)))
            .collect();
        for (class, calls) in running.into_iter().flat_map(|thread| thread.join().unwrap()) {
            *classes.entry(class).or_default() += calls;
        }
    });
    println!("{classes:?}");
    let absent = Class::ALL.into_iter().filter(|class| !classes.contains_key(class));
    // The simulated network has neither TLS nor WebSockets, and the plans have no reference node
    // whose responses could differ.
    let expected = [Class::Tls, Class::Upgrade, Class::Closed, Class::WrongAnswer];
    assert_eq!(absent.collect::<Vec<_>>(), expected, "{classes:?}");
}

/// Checks every `step`th seed of a range and returns the calls per class.
fn check_seeds(seeds: Range<u64>, step: usize) -> BTreeMap<Class, u64> {
    let mut classes = BTreeMap::new();
    for seed in seeds.step_by(step) {
        let (plan, finished, counts) = run(seed);
        let differences = disagreements(&plan, &finished, &counts);
        assert!(
            differences.is_empty(),
            "cargo xtask sim lab {seed}\n{differences:#?}\n{counts:?}\n{:?}\n{:?}",
            plan.scenarios[0],
            finished.totals.iterations
        );
        counts.calls.iter().for_each(|(class, calls)| *classes.entry(*class).or_default() += calls);
        *classes.entry(Class::Connect).or_default() += counts.unconnected;
    }
    classes
}

#[test]
fn the_same_seed_gives_the_same_result_byte_for_byte() {
    for seed in 0..20 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(to_json(&first.1), to_json(&second.1), "seed {seed}");
        assert_eq!(first.2, second.2, "seed {seed}");
    }
    assert_ne!(to_json(&run(1).1), to_json(&run(2).1));
}

#[test]
fn a_disagreement_is_found() {
    let (plan, finished, mut counts) = run(3);
    assert!(disagreements(&plan, &finished, &counts).is_empty());
    *counts.calls.entry(Class::Ok).or_default() += 1;
    counts.received += 1;
    assert_eq!(disagreements(&plan, &finished, &counts).len(), 2);
}
