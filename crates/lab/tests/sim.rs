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

use lab::run::{self, Finished};
use lab_engine::engine::Engine;
use lab_engine::engine::simulated::{FaultRates, Network, ServerCounts};
use lab_model::plan::{Batch, Model, Plan, Reuse};
use lab_model::record::Class;
use lab_model::results::Outcome;
use lab_model::samples;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Number of seeds that the test tries.
const SEEDS: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_millis(100);
/// Calls per request, if the plan sends batches.
const BATCH_CALLS: u64 = 3;
const BATCH: Batch = Batch { probability: 1.0, size: BATCH_CALLS as usize };

/// Runs a plan in a network.
fn replay(plan: &Arc<Plan>, network: &Network) -> Finished {
    let engine = Engine::simulated(Arc::clone(plan), &Arc::default(), network);
    run::replay(plan, engine.expect("the plan can be run")).expect("the run ends")
}

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
    let finished = replay(&shared, &network);
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

/// Time for which the generator is stopped.
const STOP: Duration = Duration::from_secs(2);
const NO_FAULTS: FaultRates = FaultRates { connect: 0, request: 0, stall: 0 };

/// The generator is stopped for 2 s, in each model. The target responds as before, in less than 60 ms.
/// The result never blames the target, and never calls the latencies valid.
#[test]
fn a_stopped_generator_is_not_the_targets_fault() {
    let run_stopped = |mut plan: Plan, at_ms: u64| {
        (plan.target.timeout, plan.target.connect_timeout) = (TIMEOUT, TIMEOUT);
        let network = Network::new(1, TIMEOUT, NO_FAULTS);
        network.pause_client(Duration::from_millis(at_ms), None, STOP);
        replay(&Arc::new(plan), &network).result
    };
    for at_ms in [3_300, 4_000, 7_900] {
        let closed = run_stopped(samples::closed(4, 1, 10, &["eth_call"]), at_ms);
        let unpaced = run_stopped(samples::closed(1, 0, 10, &["eth_call"]), at_ms);
        let open = run_stopped(samples::open(100.0, 10, &["eth_call"]), at_ms);
        let mut few_workers = samples::open(100.0, 10, &["eth_call"]);
        few_workers.scenarios[0].workers_max = 2;
        let few_workers = run_stopped(few_workers, at_ms);
        for (name, result) in
            [("closed", closed), ("unpaced", unpaced), ("open", open), ("few workers", few_workers)]
        {
            let told = [&result.verdict.reasons[..], &result.warnings, &result.findings].concat();
            let text = format!("{name} at {at_ms} ms: {:?} {told:#?}", result.verdict.outcome);
            assert!(
                told.iter().any(|told| told.contains("the generator itself stood still")),
                "{text}"
            );
            for blame in ["the target stalled", "did not keep up", "the target changed"] {
                assert!(!told.iter().any(|told| told.contains(blame)), "{text}");
            }
            let outcome = result.verdict.outcome;
            assert_eq!(result.overall.failed_share, 0.0, "{text}");
            let (latency, least) = (result.overall.latency, result.overall.latency_least.unwrap());
            assert!(latency.max_ms > 1_900.0 && least.max_ms < 60.0, "{text} {least:?}");
            // A fifth of the calls of an open load waited for the generator. With few workers, these
            // iterations were dropped.
            assert_eq!(name == "open", latency.p95_ms > 1_000.0, "{text}");
            let expected = match name {
                "open" | "few workers" => Outcome::Invalid,
                _ => Outcome::ClientLimited,
            };
            assert_eq!(outcome, expected, "{text}");
        }
    }
}

/// The generator is stopped between any two readings of its clock, in each model, or while more
/// responses wait than one look at the sockets returns. No call keeps the stop in its least latency,
/// and no response counts as late.
#[test]
fn a_stop_at_any_point_is_in_no_least_latency() {
    let check = |name: &str, mut plan: Plan, readings: Option<u64>| {
        (plan.target.timeout, plan.target.connect_timeout) = (TIMEOUT, TIMEOUT);
        let network = Network::new(1, TIMEOUT, NO_FAULTS);
        network.pause_client(Duration::from_millis(300), readings, STOP);
        let result = replay(&Arc::new(plan), &network).result;
        let (gaps, least) = (result.generator.gaps, result.overall.latency_least);
        let text = format!("{name}, {readings:?}: {gaps:?} {least:?}");
        assert!(gaps.max_ms > 1_990.0, "{text}");
        assert!(least.is_some_and(|least| least.max_ms < 100.0), "{text}");
        assert_eq!(result.overall.failed_share, 0.0, "{text}");
    };
    for readings in 0..100 {
        check("closed", samples::closed(2, 1, 3, &["eth_call"]), Some(readings));
        check("open", samples::open(100.0, 3, &["eth_call"]), Some(readings));
    }
    for readings in [None, Some(0), Some(1_000)] {
        check("many workers", samples::closed(1_000, 100, 3, &["eth_call"]), readings);
    }
}

#[test]
fn a_disagreement_is_found() {
    let (plan, finished, mut counts) = run(3);
    assert!(disagreements(&plan, &finished, &counts).is_empty());
    *counts.calls.entry(Class::Ok).or_default() += 1;
    counts.received += 1;
    assert_eq!(disagreements(&plan, &finished, &counts).len(), 2);
}
