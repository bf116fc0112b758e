//! Goal: the load has the planned number of requests, times and bytes, and latencies are measured
//! from the scheduled time. Method: known counts, and a server that stalls at a known time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lab_model::plan::{
    Batch, Draw, Mix, Model, Piece, Plan, RecordedRequest, Reference, Scenario, Step, Template,
    WeightedCall,
};
use lab_model::record::{Slot, Times};

use super::server::{Reply, Request, Server, http};
use super::{Class, Ran, SECOND, facts, open, plan, run};

#[test]
fn closed_iterations_are_exact_over_threads() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 997);
    plan.threads = 3;
    plan.scenarios[0].workers_max = 8;
    (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (8.0, 8.0);
    let ran = run(plan, &server);
    ran.check_all(Class::Ok, 997);
    assert_eq!(server.seen().len(), 997);
    // Fewer where a thread found all iterations begun by the others.
    assert!((1..=8).contains(&server.connections()), "{}", server.connections());
}

#[test]
fn open_iterations_are_exact_over_threads() {
    let server = Server::new(Request::ok);
    let mut plan = open(plan(&server, 0), 500.0, SECOND, 20, 1000);
    plan.threads = 3;
    let ran = run(plan, &server);
    ran.check_all(Class::Ok, 500);
    let iterations = ran.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.ended), (500, 500));
    assert_eq!(ran.totals.scheduling_delay.len(), 500);
}

#[test]
fn more_threads_than_workers_lose_nothing() {
    let server = Server::new(Request::ok);
    let mut plan = open(plan(&server, 0), 200.0, SECOND, 1, 1000);
    plan.threads = 3;
    run(plan, &server).check_all(Class::Ok, 200);
}

/// Returns a server that stops responding for a second, 0.5 s after the first request.
fn stalling() -> Server {
    let first = parking_lot::Mutex::new(None);
    Server::new(move |asked| {
        let started = *first.lock().get_or_insert_with(Instant::now);
        let (from, to) = (started + SECOND / 2, started + SECOND * 3 / 2);
        let answer = http(200, "", &asked.answer("\"result\":1"));
        if asked.at >= from && asked.at < to { Reply::At(to, answer) } else { Reply::Bytes(answer) }
    })
}

fn above(times: &Times, nanos: u64) -> u64 {
    times.len() - times.count_between(0, nanos)
}

fn check_stall(queue_max: usize, workers: usize) {
    let server = stalling();
    // So few that a slow machine, too, has caught up with them within milliseconds of the stall.
    let ran = run(open(plan(&server, 0), 100.0, SECOND * 2, workers, queue_max), &server);
    ran.check_all(Class::Ok, 200);
    let latency = ran.totals.latency(|_| true);
    // Due in the stall, more than 100 ms before its end: 0.9 s at 100/s; and in the time that the
    // server of a busy machine takes to catch up with the 150 that are due by then.
    let mut sent: Vec<Instant> = server.seen().iter().map(|request| request.at).collect();
    sent.sort_unstable();
    let caught_up = (sent[149] - sent[0]).saturating_sub(SECOND * 3 / 2);
    let more = (caught_up.as_secs_f64() * 100.0).ceil() as u64;
    let count = above(&latency, 100_000_000);
    assert!((88..=92 + more).contains(&count), "{count}, {caught_up:?}");
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
    let server = stalling();
    let ran = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, 0), &server);
    let iterations = ran.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.started), (800, ran.count(Class::Ok)));
    assert_eq!(iterations.dropped, 800 - iterations.started);
    assert!((392..=420).contains(&iterations.dropped), "{}", iterations.dropped);
}

/// Returns a server that responds after this time.
fn slow(time: Duration) -> Server {
    Server::new(move |asked| {
        Reply::At(asked.at + time, http(200, "", &asked.answer("\"result\":1")))
    })
}

#[test]
fn a_worker_starts_no_iteration_that_was_scheduled_before_it_was_idle() {
    let server = slow(SECOND / 10);
    let ran = run(open(plan(&server, 0), 100.0, SECOND * 2, 1, 0), &server);
    let iterations = ran.totals.iterations[0];
    assert_eq!(iterations.started + iterations.dropped, 200, "{iterations:?}");
    // A worker that is free after somewhat more than 100 ms waits for the call that is due at 110
    // ms. One that took the call of 100 ms would begin 20 times.
    assert!((11..=19).contains(&iterations.started), "{iterations:?}");
    let latency = ran.totals.latency(|_| true).min();
    // Measured from when it was due: a call that was taken 10 ms late would take 110 ms.
    assert!((100_000_000..110_000_000).contains(&latency), "{latency} ns");
}

#[test]
fn iterations_after_the_end_are_counted_separately() {
    let server = slow(SECOND / 50);
    let mut plan = open(plan(&server, 0), 200.0, SECOND, 1, 1000);
    plan.scenarios[0].grace = SECOND * 30;
    let ran = run(plan, &server);
    let iterations = ran.totals.iterations[0];
    assert_eq!((iterations.scheduled, iterations.started, iterations.ended), (200, 200, 200));
    // At most 50 of them in the second that they were planned for.
    assert!((150..200).contains(&iterations.started_after_end), "{iterations:?}");
    let late = ran.totals.count_after_end(|slot| slot.class == Class::Ok);
    assert!(
        late >= iterations.started_after_end && late == iterations.ended_after_end,
        "{late} {iterations:?}"
    );
    assert_eq!(ran.totals.latency(|_| true).len(), 200);
}

#[test]
fn iterations_in_time_are_not_counted_after_the_end() {
    let server = Server::new(Request::ok);
    let ran = run(open(plan(&server, 0), 200.0, SECOND, 20, 1000), &server);
    assert_eq!(ran.totals.iterations[0].started_after_end, 0);
    let late = ran.totals.count_after_end(|_| true);
    assert!(late <= 2, "{late}: only what was sent in the last moment ends after the end");
}

#[test]
fn the_queue_is_bounded() {
    let server = stalling();
    let queue_max = 100;
    let ran = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, queue_max), &server);
    let dropped = ran.totals.iterations[0].dropped;
    assert!((292..=320).contains(&dropped), "{dropped}");
}

#[test]
fn a_slow_server_adds_no_scheduling_delay() {
    let server = stalling();
    let queue_max = 1000;
    let ran = run(open(plan(&server, 0), 400.0, SECOND * 2, 3, queue_max), &server);
    assert_eq!(ran.totals.scheduling_delay.len(), 800);
    assert!(ran.totals.scheduling_delay.value_at_quantile(0.9) < 20_000_000);
}

#[test]
fn calls_are_interrupted_after_the_grace_time() {
    let server = Server::new(|asked| {
        let answer = http(200, "", &asked.answer("\"result\":1"));
        Reply::At(asked.at + SECOND / 2, answer)
    });
    let mut short = open(plan(&server, 0), 10.0, SECOND, 20, 0);
    short.scenarios[0].grace = Duration::from_millis(250);
    let ran = run(short, &server);
    let iterations = ran.totals.iterations[0];
    // Due at 0, 0.1, … 0.9 s; over at 1.25 s: those due after 0.75 s are cut.
    assert_eq!((iterations.started, iterations.ended, iterations.interrupted), (10, 8, 2));
    assert!(ran.took < Duration::from_millis(1500));
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
    let ran = run(paused, &server);
    // Each worker begins at 0, 100, … ms and a little later each time.
    assert!((90..=100).contains(&ran.count(Class::Ok)), "{}", ran.count(Class::Ok));
    assert!(ran.totals.idle > SECOND / 2, "{:?}", ran.totals.idle);
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
    for request in server.seen() {
        first.entry(request.connection).or_insert(request.at);
    }
    // The fourth comes when the scenario ends.
    let times: Vec<Instant> = first.into_values().collect();
    assert!((3..=4).contains(&times.len()), "{}", times.len());
    let between = times[1] - times[0];
    assert!((200..=300).contains(&between.as_millis()), "{between:?}");
}

fn call(method: usize, weight: f64, params: Vec<Piece>) -> WeightedCall {
    WeightedCall { weight, template: Template { method, params } }
}

fn text(text: &str) -> Piece {
    Piece::Text(text.as_bytes().into())
}

/// Returns a plan of two steps: a fixed call, then one of two calls.
fn mixed(server: &Server, iterations: u64) -> Plan {
    let mut plan = plan(server, iterations);
    plan.methods = vec!["head".into(), "logs".into(), "block".into()];
    let logs = Draw::LogRange { blocks: 10, behind: (0, 100) };
    let number = Draw::BlockBehind { behind: (5, 5) };
    plan.mixes[0] = Mix {
        name: "mixed".to_owned(),
        steps: vec![
            Step::Choose(vec![call(0, 1.0, Vec::new())]),
            Step::Choose(vec![
                call(1, 3.0, vec![text("[{"), Piece::Draw(logs), text("}]")]),
                call(2, 1.0, vec![text("["), Piece::Draw(number), text(",false]")]),
            ]),
        ],
    };
    plan
}

fn by_method(ran: &Ran) -> Vec<u64> {
    let count = |method| ran.totals.count(|slot: Slot| slot.method == method);
    (0..3).map(count).collect()
}

#[test]
fn an_iteration_makes_its_steps_in_order() {
    let server = Server::new(Request::ok);
    let ran = run(mixed(&server, 400), &server);
    ran_counts(&ran);
    let bodies = server.bodies();
    assert_eq!(bodies.len(), 800);
    for pair in bodies.chunks(2) {
        assert!(pair[0].contains(r#""method":"head"}"#), "{}", pair[0]);
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

fn ran_counts(ran: &Ran) {
    let counts = by_method(ran);
    assert_eq!((counts[0], counts[1] + counts[2]), (400, 400));
    assert!((250..350).contains(&counts[1]), "{counts:?}");
    assert_eq!(ran.totals.iteration_time.len(), 400);
}

#[test]
fn a_seed_sends_the_same_bytes_again() {
    let bodies = |seed| {
        let server = Server::new(Request::ok);
        let mut plan = mixed(&server, 100);
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
        let mut plan = open(mixed(&server, 0), 200.0, SECOND, 20, 1000);
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
        let mut plan = mixed(&server, 300);
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

/// Responds to each call of a batch in reverse order, except to the call `skip`.
fn answer_batch(asked: &Request, skip: Option<usize>) -> Reply {
    let calls: Vec<serde_json::Value> = serde_json::from_str(&asked.body).unwrap();
    let answers: Vec<String> = calls
        .iter()
        .enumerate()
        .rev()
        .filter(|(nth, _)| Some(*nth) != skip)
        .map(|(_, call)| format!(r#"{{"id":{},"result":1}}"#, call["id"]))
        .collect();
    Reply::body(200, "", &format!("[{}]", answers.join(",")))
}

#[test]
fn batches_are_counted_by_call() {
    let server = Server::new(|asked| answer_batch(asked, Some(1)));
    let mut batched = plan(&server, 10);
    batched.scenarios[0].batch = Some(Batch { probability: 1.0, size: 4 });
    let ran = run(batched, &server);
    assert_eq!((ran.count(Class::Ok), ran.count(Class::Malformed)), (30, 10));
    assert_eq!(ran.totals.traffic.requests, 10);
}

#[test]
fn some_calls_become_batches() {
    let server = Server::new(|asked| {
        if asked.body.starts_with('[') { answer_batch(asked, None) } else { asked.ok() }
    });
    let mut batched = plan(&server, 1000);
    batched.scenarios[0].batch = Some(Batch { probability: 0.25, size: 3 });
    let ran = run(batched, &server);
    let batches = server.bodies().iter().filter(|body| body.starts_with('[')).count() as u64;
    assert!((200..300).contains(&batches), "{batches}");
    ran.check_all(Class::Ok, 1000 + 2 * batches);
}

#[test]
fn recorded_bodies_are_sent_unchanged_and_in_order() {
    let server = Server::new(|asked| match asked.body.trim_start().as_bytes()[0] {
        b'[' => answer_batch(asked, None),
        _ => asked.ok(),
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
    let ran = run(replayed, &server);
    ran.check_all(Class::Ok, 9);
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
    let ran = run(sampled, &server);
    assert_eq!(ran.samples.len(), 50);
    for (sample, body) in ran.samples.iter().zip(server.bodies()) {
        assert_eq!(sample.request, body.as_bytes());
        assert!(String::from_utf8_lossy(&sample.answer).contains("\"result\":\"0x1\""));
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
    let ran = run(sampled, &server);
    assert!(ran.samples.len() <= 500);
    ran.check_all(Class::Ok, 500);
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
    let ran = run(both, &server);
    let counts: Vec<u64> = ran.totals.iterations.iter().take(2).map(|count| count.ended).collect();
    assert_eq!(counts, [100, 30]);
}

#[test]
fn every_thread_hands_over_each_second() {
    let server = Server::new(Request::ok);
    let mut two = open(plan(&server, 0), 100.0, SECOND * 5 / 2, 5, 0);
    two.threads = 2;
    let ran = run(two, &server);
    // Two whole seconds and the rest.
    assert_eq!(ran.intervals, 6);
    assert!(ran.totals.cpu > Duration::ZERO);
}

#[test]
fn nothing_is_sent_before_the_origin() {
    let server = Server::new(Request::ok);
    let origin = Instant::now() + Duration::from_millis(300);
    let plan = std::sync::Arc::new(plan(&server, 3));
    let chain = std::sync::Arc::new(facts());
    let engine = super::Engine::start(plan, chain, vec![server.address], origin).unwrap();
    super::collect(engine).check_all(Class::Ok, 3);
    assert!(server.seen().iter().all(|asked| asked.at >= origin));
}

#[test]
fn missing_values_of_the_chain_are_reported_at_the_start() {
    let server = Server::new(Request::ok);
    let mut plan = plan(&server, 1);
    let hash = vec![text("["), Piece::Draw(Draw::TransactionHash), text("]")];
    plan.mixes[0].steps = vec![Step::Choose(vec![call(0, 1.0, hash)])];
    let mut chain = facts();
    chain.transaction_hashes.clear();
    let fault = super::Engine::start(
        std::sync::Arc::new(plan),
        std::sync::Arc::new(chain),
        vec![server.address],
        Instant::now(),
    );
    let said = fault.err().unwrap().to_string();
    assert_eq!(said, "mix \"one\" needs transaction hashes, but there are none");
}
