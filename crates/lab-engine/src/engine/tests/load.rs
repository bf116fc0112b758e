//! Goal: the engine sends the planned requests at the planned times, and latencies count from the
//! scheduled time of a call. Method: plans with known counts, and a server that stalls at a known
//! time.
//!
//! The arguments of `open` are a plan, the number of iterations per second, the duration, the
//! number of workers, and the number of iterations that may wait for a worker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lab_model::plan::{
    Batch, Draw, Mix, Model, Piece, Plan, RecordedRequest, Reference, Scenario, Step, Template,
    WeightedCall,
};
use lab_model::record::{Slot, Times};

use super::server::{Reply, Request, Server, http};
use super::{Class, RunOutcome, SECOND, chain_facts, open, plan, run};
use crate::engine::SAMPLES_MAX;

#[test]
fn closed_iterations_are_exact_over_threads() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 997);
    plan.threads = 3;
    plan.scenarios[0].workers_max = 8;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (8.0, 8.0);
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 997);
    assert_eq!(server.requests().len(), 997);
    // A thread opens no connection if the other threads have started all iterations.
    assert!((1..=8).contains(&server.connections()), "{}", server.connections());
}

#[test]
fn open_iterations_are_exact_over_threads() {
    let server = Server::new(Request::ok);
    let mut plan = open(plan(&server, 0), 500.0, SECOND, 20, 1000);
    plan.threads = 3;
    let outcome = run(plan, &server);
    outcome.check_all(Class::Ok, 500);
    let iterations = outcome.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.ended), (500, 500));
    assert_eq!(outcome.totals.scheduling_delay.len(), 500);
}

#[test]
fn more_threads_than_workers_lose_nothing() {
    let server = Server::new(Request::ok);
    let mut plan = open(plan(&server, 0), 200.0, SECOND, 1, 1000);
    plan.threads = 3;
    run(plan, &server).check_all(Class::Ok, 200);
}

/// Returns a server that stops responding for a second, 0.5 s after the first request.
fn stalling_server() -> Server {
    let first = parking_lot::Mutex::new(None);
    Server::new(move |request| {
        let started = *first.lock().get_or_insert_with(Instant::now);
        let (from, to) = (started + SECOND / 2, started + SECOND * 3 / 2);
        let response = http(200, "", &request.response_with("\"result\":1"));
        if request.at >= from && request.at < to {
            Reply::At(to, response)
        } else {
            Reply::Bytes(response)
        }
    })
}

fn count_above(times: &Times, nanos: u64) -> u64 {
    times.len() - times.count_between(0, nanos)
}

fn check_stall(queue_max: usize, workers: usize) {
    let server = stalling_server();
    // At this low rate, even a slow machine catches up within milliseconds after the stall.
    let outcome = run(open(plan(&server, 0), 100.0, SECOND * 2, workers, queue_max), &server);
    outcome.check_all(Class::Ok, 200);
    let latency = outcome.totals.latency(|_| true);
    // Each call that is scheduled in the first 0.9 s of the stall takes more than 100 ms. At 100
    // calls per second, these are 90 calls. After the stall, the server has to catch up with the
    // 150 calls that were scheduled so far. On a busy machine this takes longer, and the calls that
    // are scheduled meanwhile are slow too.
    let mut received: Vec<Instant> = server.requests().iter().map(|request| request.at).collect();
    received.sort_unstable();
    let catch_up_time = (received[149] - received[0]).saturating_sub(SECOND * 3 / 2);
    let more_calls = (catch_up_time.as_secs_f64() * 100.0).ceil() as u64;
    let count = count_above(&latency, 100_000_000);
    assert!((88..=92 + more_calls).contains(&count), "{count}, {catch_up_time:?}");
    let max = latency.max() as f64 / 1e9;
    assert!((0.98..=1.02).contains(&max), "{max}");
}

#[test]
fn a_stall_delays_every_call_scheduled_in_it() {
    check_stall(0, 500);
}

#[test]
fn a_stall_delays_iterations_that_wait_for_a_worker() {
    check_stall(1000, 3);
}

#[test]
fn iterations_without_a_worker_are_dropped() {
    let server = stalling_server();
    let outcome = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, 0), &server);
    let iterations = outcome.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.started), (800, outcome.count(Class::Ok)));
    assert_eq!(iterations.dropped, 800 - iterations.started);
    // The stall of one second drops nearly all of the 400 iterations that are scheduled in it.
    assert!((392..=420).contains(&iterations.dropped), "{}", iterations.dropped);
}

/// Returns a server that responds after this time.
fn slow_server(time: Duration) -> Server {
    Server::new(move |request| {
        Reply::At(request.at + time, http(200, "", &request.response_with("\"result\":1")))
    })
}

#[test]
fn a_worker_starts_no_iteration_that_was_scheduled_before_it_was_idle() {
    let server = slow_server(SECOND / 10);
    let outcome = run(open(plan(&server, 0), 100.0, SECOND * 2, 1, 0), &server);
    let iterations = outcome.totals.iterations[0];
    assert_eq!(iterations.started + iterations.dropped, 200, "{iterations:?}");
    // The worker becomes free after slightly more than 100 ms and waits for the call that is
    // scheduled at 110 ms. If it took the call that was scheduled at 100 ms, it would start 20
    // iterations.
    assert!((11..=19).contains(&iterations.started), "{iterations:?}");
    let latency = outcome.totals.latency(|_| true).min();
    // The latency counts from the scheduled time: a call that started 10 ms late would take 110 ms.
    assert!((100_000_000..110_000_000).contains(&latency), "{latency} ns");
}

#[test]
fn queued_iterations_are_dropped_at_the_end() {
    let server = slow_server(SECOND / 50);
    let mut plan = open(plan(&server, 0), 200.0, SECOND, 1, 1000);
    plan.scenarios[0].grace = SECOND * 30;
    let outcome = run(plan, &server);
    let iterations = outcome.totals.iterations[0];
    assert_eq!(iterations.scheduled, 200);
    // At most 50 iterations fit into the planned second, and one ends after it.
    assert!(iterations.started <= 51, "{iterations:?}");
    assert_eq!(iterations.started + iterations.dropped, 200, "{iterations:?}");
    assert_eq!((iterations.started_after_end, iterations.ended), (0, iterations.started));
    let late = outcome.totals.count_after_end(|slot| slot.class == Class::Ok);
    assert!(late <= 1 && late == iterations.ended_after_end, "{late} {iterations:?}");
}

#[test]
fn iterations_in_time_are_not_counted_after_the_end() {
    let server = Server::new(Request::ok);
    let outcome = run(open(plan(&server, 0), 200.0, SECOND, 20, 1000), &server);
    assert_eq!(outcome.totals.iterations[0].started_after_end, 0);
    let late = outcome.totals.count_after_end(|_| true);
    assert!(late <= 2, "{late}: only what was sent in the last moment ends after the end");
}

#[test]
fn the_queue_is_bounded() {
    let server = stalling_server();
    let queue_max = 100;
    let outcome = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, queue_max), &server);
    let dropped = outcome.totals.iterations[0].dropped;
    // Of the 400 iterations that are scheduled in the stall, the queue holds 100.
    assert!((292..=320).contains(&dropped), "{dropped}");
}

#[test]
fn a_slow_server_adds_no_scheduling_delay() {
    let server = stalling_server();
    let queue_max = 1000;
    let outcome = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, queue_max), &server);
    assert_eq!(outcome.totals.scheduling_delay.len(), 800);
    assert!(outcome.totals.scheduling_delay.value_at_quantile(0.9) < 20_000_000);
}

#[test]
fn calls_are_interrupted_after_the_grace_time() {
    let server = Server::new(|request| {
        let response = http(200, "", &request.response_with("\"result\":1"));
        Reply::At(request.at + SECOND / 2, response)
    });
    let mut short = open(plan(&server, 0), 10.0, SECOND, 20, 0);
    short.scenarios[0].grace = Duration::from_millis(250);
    let outcome = run(short, &server);
    let iterations = outcome.totals.iterations[0];
    // Iterations start at 0, 0.1, … 0.9 s and take 0.5 s. The grace period ends at 1.25 s. So the
    // iterations that start after 0.75 s are interrupted.
    assert_eq!((iterations.started, iterations.ended, iterations.interrupted), (10, 8, 2));
    assert!(outcome.elapsed < Duration::from_millis(1500));
}

#[test]
fn workers_pause_between_iterations() {
    let server = Server::new(Request::ok);
    let mut paused = plan(&server, 0);
    let scenario = &mut paused.scenarios[0];
    scenario.iterations_max = None;
    scenario.workers_max = 10;
    scenario.pause = Duration::from_millis(100);
    scenario.stages[0].duration = SECOND;
    (scenario.stages[0].from, scenario.stages[0].to) = (10.0, 10.0);
    let outcome = run(paused, &server);
    // Each worker starts at 0, 100, … ms, and slightly later each time.
    assert!((90..=100).contains(&outcome.count(Class::Ok)), "{}", outcome.count(Class::Ok));
    assert!(outcome.totals.idle > SECOND / 2, "{:?}", outcome.totals.idle);
}

#[test]
fn workers_come_and_go() {
    let server = Server::new(Request::ok);
    let mut ramped = plan(&server, 0);
    let scenario = &mut ramped.scenarios[0];
    scenario.iterations_max = None;
    scenario.workers_max = 4;
    scenario.pause = Duration::from_millis(10);
    scenario.stages[0].duration = SECOND;
    (scenario.stages[0].from, scenario.stages[0].to) = (0.0, 4.0);
    run(ramped, &server);
    let mut first: BTreeMap<usize, Instant> = BTreeMap::new();
    for request in server.requests() {
        first.entry(request.connection).or_insert(request.at);
    }
    // The fourth worker becomes active when the scenario ends, and may send nothing.
    let times: Vec<Instant> = first.into_values().collect();
    assert!((3..=4).contains(&times.len()), "{}", times.len());
    let between = times[1] - times[0];
    assert!((200..=300).contains(&between.as_millis()), "{between:?}");
}

fn weighted_call(method: usize, weight: f64, params: Vec<Piece>) -> WeightedCall {
    WeightedCall { weight, template: Template { method, params } }
}

fn constant_text(text: &str) -> Piece {
    Piece::Text(text.as_bytes().into())
}

/// Returns a plan whose iterations have two steps: always the same call, and then one of two calls.
fn two_step_plan(server: &Server, iterations: u64) -> Plan {
    let mut plan = plan(server, iterations);
    plan.methods = vec!["head".into(), "logs".into(), "block".into()];
    let logs = Draw::LogRange { blocks: 10, behind: (0, 100) };
    let number = Draw::BlockBehind { behind: (5, 5) };
    plan.mixes[0] = Mix {
        name: "mixed".to_owned(),
        steps: vec![
            Step::Choose(vec![weighted_call(0, 1.0, Vec::new())]),
            Step::Choose(vec![
                weighted_call(
                    1,
                    3.0,
                    vec![constant_text("[{"), Piece::Draw(logs), constant_text("}]")],
                ),
                weighted_call(
                    2,
                    1.0,
                    vec![constant_text("["), Piece::Draw(number), constant_text(",false]")],
                ),
            ]),
        ],
    };
    plan
}

fn count_by_method(outcome: &RunOutcome) -> Vec<u64> {
    let count = |method| outcome.totals.count(|slot: Slot| slot.method == method);
    (0..3).map(count).collect()
}

#[test]
fn an_iteration_makes_its_steps_in_order() {
    let server = Server::new(Request::ok);
    let outcome = run(two_step_plan(&server, 400), &server);
    check_counts(&outcome);
    let bodies = server.bodies();
    assert_eq!(bodies.len(), 800);
    for pair in bodies.chunks(2) {
        assert!(pair[0].contains(r#""method":"head"}"#), "{}", pair[0]);
        // The chain's newest block is 1000, and 0x3e3 is block 995.
        let drawn = pair[1].contains(r#""method":"logs","params":[{"fromBlock":"0x"#)
            || pair[1].contains(r#""method":"block","params":["0x3e3",false]}"#);
        assert!(drawn, "{}", pair[1]);
    }
    let ids: std::collections::BTreeSet<&str> = bodies
        .iter()
        .map(|body| body.split(['"', ':', ',']).find(|part| part.parse::<u64>().is_ok()).unwrap())
        .collect();
    assert_eq!(ids.len(), 800);
}

fn check_counts(outcome: &RunOutcome) {
    let counts = count_by_method(outcome);
    assert_eq!((counts[0], counts[1] + counts[2]), (400, 400));
    assert!((250..350).contains(&counts[1]), "{counts:?}");
    assert_eq!(outcome.totals.iteration_time.len(), 400);
}

#[test]
fn a_seed_sends_the_same_bytes_again() {
    let bodies = |seed| {
        let server = Server::new(Request::ok);
        let mut plan = two_step_plan(&server, 100);
        plan.seed = seed;
        run(plan, &server);
        server.bodies()
    };
    let first = bodies(1);
    assert_eq!(first, bodies(1));
    assert_ne!(first, bodies(2));
}

#[test]
fn a_seed_sends_the_same_calls_on_any_number_of_threads() {
    let bodies = |threads| {
        let server = Server::new(Request::ok);
        let mut plan = open(two_step_plan(&server, 0), 200.0, SECOND, 20, 1000);
        plan.threads = threads;
        run(plan, &server);
        let mut bodies = server.bodies();
        bodies.sort_unstable();
        bodies
    };
    assert_eq!(bodies(1), bodies(3));
}

#[test]
fn a_seed_sends_the_same_calls_whichever_thread_starts_them() {
    let bodies = |threads, workers| {
        let server = Server::new(Request::ok);
        let mut plan = two_step_plan(&server, 300);
        plan.threads = threads;
        plan.scenarios[0].workers_max = workers;
        let level = workers as f64;
        (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (level, level);
        run(plan, &server);
        let mut bodies = server.bodies();
        bodies.sort_unstable();
        bodies
    };
    let alone = bodies(1, 1);
    assert_eq!(alone, bodies(3, 8));
    assert_eq!(alone, bodies(3, 1), "two threads have nobody to work");
}

/// Responds to the calls of a batch in reverse order, except to the call with the index `skip`.
fn respond_to_batch(request: &Request, skip: Option<usize>) -> Reply {
    let calls: Vec<serde_json::Value> = serde_json::from_str(&request.body).unwrap();
    let responses: Vec<String> = calls
        .iter()
        .enumerate()
        .rev()
        .filter(|(nth, _)| Some(*nth) != skip)
        .map(|(_, call)| format!(r#"{{"id":{},"result":1}}"#, call["id"]))
        .collect();
    Reply::body(200, "", &format!("[{}]", responses.join(",")))
}

#[test]
fn batches_are_counted_by_call() {
    let server = Server::new(|request| respond_to_batch(request, Some(1)));
    let mut batched = plan(&server, 10);
    batched.scenarios[0].batch = Some(Batch { probability: 1.0, size: 4 });
    let outcome = run(batched, &server);
    assert_eq!((outcome.count(Class::Ok), outcome.count(Class::Malformed)), (30, 10));
    assert_eq!(outcome.totals.traffic.requests, 10);
}

#[test]
fn some_calls_become_batches() {
    let server = Server::new(|request| {
        if request.body.starts_with('[') { respond_to_batch(request, None) } else { request.ok() }
    });
    let mut batched = plan(&server, 1000);
    batched.scenarios[0].batch = Some(Batch { probability: 0.25, size: 3 });
    let outcome = run(batched, &server);
    let batches = server.bodies().iter().filter(|body| body.starts_with('[')).count() as u64;
    assert!((200..300).contains(&batches), "{batches}");
    outcome.check_all(Class::Ok, 1000 + 2 * batches);
}

#[test]
fn recorded_bodies_are_sent_unchanged_and_in_order() {
    let server = Server::new(|request| match request.body.trim_start().as_bytes()[0] {
        b'[' => respond_to_batch(request, None),
        _ => request.ok(),
    });
    let texts =
        [r#"{"id":"a","method":"x"}"#, r#" { "method":"y", "id":5} "#, r#"[{"id":1},{"id":2}]"#];
    let recorded = |(nth, text): (usize, &&str)| RecordedRequest {
        method: 0,
        calls: if nth == 2 { 2 } else { 1 },
        body: text.as_bytes().into(),
        id: [b"\"a\"".as_slice(), b"5", b""][nth].into(),
    };
    let mut replayed = plan(&server, 7);
    replayed.mixes[0].steps = vec![Step::Replay(texts.iter().enumerate().map(recorded).collect())];
    let outcome = run(replayed, &server);
    outcome.check_all(Class::Ok, 9);
    let expected: Vec<&str> = texts.iter().cycle().take(7).copied().collect();
    assert_eq!(server.bodies(), expected);
}

#[test]
fn samples_contain_request_and_response() {
    let server = Server::new(Request::ok);
    let mut sampled = plan(&server, 50);
    sampled.reference = Some(Reference {
        url: plan(&server, 1).target.url,
        share: 1.0,
        ignore: Vec::new(),
        tolerance: 0.0,
        sets: Vec::new(),
    });
    let outcome = run(sampled, &server);
    assert_eq!(outcome.samples.len(), 50);
    for (sample, body) in outcome.samples.iter().zip(server.bodies()) {
        assert_eq!(sample.request, body.as_bytes());
        assert!(String::from_utf8_lossy(&sample.response).contains("\"result\":\"0x1\""));
    }
}

#[test]
fn samples_are_skipped_when_the_channel_is_full() {
    let server = Server::new(Request::ok);
    let mut sampled = plan(&server, 500);
    sampled.reference = Some(Reference {
        url: plan(&server, 1).target.url,
        share: 1.0,
        ignore: Vec::new(),
        tolerance: 0.0,
        sets: Vec::new(),
    });
    let outcome = run(sampled, &server);
    // The test reads samples only between intervals, and the run lasts a few intervals at most.
    assert!((SAMPLES_MAX..500).contains(&outcome.samples.len()), "{}", outcome.samples.len());
    outcome.check_all(Class::Ok, 500);
}

#[test]
fn scenarios_run_side_by_side_from_their_starts() {
    let server = Server::new(Request::ok);
    let mut both = open(plan(&server, 0), 100.0, SECOND, 5, 100);
    let mut later: Scenario = both.scenarios[0].clone();
    later.start = Duration::from_millis(500);
    later.model = Model::Closed;
    later.iterations_max = Some(30);
    later.stages[0].index = 1;
    (later.stages[0].from, later.stages[0].to) = (2.0, 2.0);
    both.scenarios.push(later);
    let outcome = run(both, &server);
    let counts: Vec<u64> =
        outcome.totals.iterations.iter().take(2).map(|count| count.ended).collect();
    assert_eq!(counts, [100, 30]);
}

#[test]
fn every_thread_hands_over_each_second() {
    let server = Server::new(Request::ok);
    let mut two = open(plan(&server, 0), 100.0, SECOND * 5 / 2, 5, 0);
    two.threads = 2;
    let outcome = run(two, &server);
    // Each thread hands over two whole seconds and a shorter one.
    assert_eq!(outcome.intervals, 6);
    assert!(outcome.totals.cpu > Duration::ZERO);
}

#[test]
fn nothing_is_sent_before_the_origin() {
    let server = Server::new(Request::ok);
    let origin = Instant::now() + Duration::from_millis(300);
    let plan = std::sync::Arc::new(plan(&server, 3));
    let chain = std::sync::Arc::new(chain_facts());
    let engine = super::Engine::start(plan, chain, vec![server.address], origin).unwrap();
    super::collect(engine).check_all(Class::Ok, 3);
    assert!(server.requests().iter().all(|request| request.at >= origin));
}

#[test]
fn missing_values_of_the_chain_are_reported_at_the_start() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 1);
    let hash = vec![constant_text("["), Piece::Draw(Draw::TransactionHash), constant_text("]")];
    plan.mixes[0].steps = vec![Step::Choose(vec![weighted_call(0, 1.0, hash)])];
    let mut chain = chain_facts();
    chain.transaction_hashes.clear();
    let fault = super::Engine::start(
        std::sync::Arc::new(plan),
        std::sync::Arc::new(chain),
        vec![server.address],
        Instant::now(),
    );
    let message = fault.err().unwrap().to_string();
    assert_eq!(message, "mix \"one\" needs transaction hashes, but there are none");
}
