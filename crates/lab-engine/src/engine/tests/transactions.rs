//! Goal: each transaction is sent once, and each sender's transactions are sent one after another
//! in order. Method: a server records the calls, and delays, refuses or ignores some of them.
//!
//! The arguments of `open` are a plan, the number of iterations per second, the duration, the
//! number of workers, and the number of iterations that may wait for a worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_model::plan::transactions::Transactions;
use lab_model::plan::{Plan, RecordedRequest, Step};
use lab_model::record::Class;

use super::server::{Reply, Request, Server, http};
use super::{RunOutcome, SECOND, collect, open, plan, start};
use crate::engine::transactions::{StateCounts, TransactionLog, TransactionState};

/// Returns transactions in which several senders take turns. The n-th sender has `counts[n]`
/// transactions. The parameter of a call is `SENDER.NONCE`.
pub(super) fn transactions(counts: &[usize]) -> Transactions {
    let mut list = Transactions::default();
    let mut last = vec![None; counts.len()];
    for nonce in 0..counts.iter().copied().max().unwrap_or(0) {
        for sender in (0..counts.len()).filter(|&sender| nonce < counts[sender]) {
            let index = list.requests.len();
            let id = index + 1;
            let call = format!(r#"{{"id":{id},"method":"send","params":["{sender}.{nonce}"]}}"#);
            list.requests.push(RecordedRequest {
                method: 0,
                calls: 1,
                body: call.into_bytes().into(),
                id: id.to_string().into_bytes().into(),
            });
            list.hashes.push([index as u8; 32]);
            list.next.push(None);
            match last[sender].replace(index) {
                Some(before) => list.next[before] = Some(index as u32),
                None => list.first_of_senders.push(index as u32),
            }
        }
    }
    list
}

/// Makes a plan send transactions.
pub(super) fn sending(mut plan: Plan, list: Transactions) -> Plan {
    plan.scenarios[0].iterations_max = None;
    plan.scenarios[0].transactions = Some(list.len() as u64);
    plan.mixes[0].steps = vec![Step::Transactions(Arc::new(list))];
    plan
}

/// Returns the index of the sender and the nonce of a call.
fn sender_and_nonce(request: &Request) -> (usize, usize) {
    let (_, params) = request.body.split_once("[\"").unwrap();
    let (sender, nonce) = params.split_once('"').unwrap().0.split_once('.').unwrap();
    (sender.parse().unwrap(), nonce.parse().unwrap())
}

/// Checks that each transaction arrived once, in the order of its sender's nonces.
fn check_order(server: &Server, counts: &[usize]) {
    let mut next = vec![0; counts.len()];
    for request in server.requests() {
        let (sender, nonce) = sender_and_nonce(&request);
        assert_eq!(nonce, next[sender], "of sender {sender}: {:?}", server.bodies());
        next[sender] += 1;
    }
    assert_eq!(next, counts);
}

pub(super) fn run_with_log(plan: Plan, server: &Server) -> (RunOutcome, Arc<TransactionLog>) {
    let engine = start(plan, server).unwrap();
    let log = Arc::clone(engine.transactions().unwrap());
    (collect(engine), log)
}

#[test]
fn an_open_scenario_sends_each_once_and_ends() {
    for threads in [1, 2] {
        let server = Server::new(Request::ok);
        let counts = [30, 10, 1];
        let mut plan = open(plan(&server, 0), 200.0, SECOND * 60, 5, 100);
        plan.threads = threads;
        let (outcome, log) = run_with_log(sending(plan, transactions(&counts)), &server);
        check_order(&server, &counts);
        outcome.check_all(Class::Ok, 41);
        assert!(outcome.elapsed < SECOND * 30, "the scenario goes on without transactions");
        assert_eq!(log.count(), StateCounts { sent: 41, accepted: 41, refused: 0 });
        let iterations = outcome.totals.iterations[0];
        assert_eq!((iterations.scheduled, iterations.ended, iterations.dropped), (41, 41, 0));
    }
}

#[test]
fn a_closed_scenario_sends_each_once_and_ends() {
    for threads in [1, 2] {
        let server = Server::new(Request::ok);
        let counts = [30, 10, 1];
        let mut plan = plan(&server, 0);
        plan.threads = threads;
        plan.scenarios[0].workers_max = 7;
        (plan.scenarios[0].stages[0].from, plan.scenarios[0].stages[0].to) = (7.0, 7.0);
        let (outcome, log) = run_with_log(sending(plan, transactions(&counts)), &server);
        check_order(&server, &counts);
        outcome.check_all(Class::Ok, 41);
        assert!(outcome.elapsed < SECOND * 10, "the scenario goes on without transactions");
        assert_eq!(log.count().accepted, 41);
    }
}

#[test]
fn a_sender_waits_for_a_slow_response_and_others_do_not() {
    let wait = Duration::from_millis(400);
    let server = Server::new(move |request| match sender_and_nonce(request) {
        (0, 0) => Reply::At(
            request.at + wait,
            http(200, "", &request.response_with("\"result\":\"0x1\"")),
        ),
        _ => request.ok(),
    });
    let plan = open(plan(&server, 0), 100.0, SECOND * 60, 5, 100);
    let (outcome, _) = run_with_log(sending(plan, transactions(&[3, 20])), &server);
    check_order(&server, &[3, 20]);
    outcome.check_all(Class::Ok, 23);
    let requests = server.requests();
    let at = |transaction: (usize, usize)| {
        requests.iter().find(|request| sender_and_nonce(request) == transaction).unwrap().at
    };
    assert!(at((0, 1)) >= at((0, 0)) + wait, "sent before the response to the one before");
    assert!(at((1, 19)) < at((0, 0)) + wait, "another sender waited as well");
    // The slow response does not count as a delay of the generator.
    assert!(
        outcome.totals.scheduling_delay.max() < 200_000_000,
        "{:?}",
        outcome.totals.scheduling_delay.max()
    );
}

#[test]
fn refused_transactions_are_failed_calls_with_their_texts() {
    let server = Server::new(|request| match sender_and_nonce(request) {
        (0, nonce @ 1..=2) => {
            let error = format!(
                r#""error":{{"code":-32000,"message":"nonce too low: next nonce 9, tx nonce {nonce}"}}"#
            );
            Reply::body(200, "", &request.response_with(&error))
        }
        _ => request.ok(),
    });
    let plan = open(plan(&server, 0), 200.0, SECOND * 60, 5, 100);
    let (outcome, log) = run_with_log(sending(plan, transactions(&[5, 2])), &server);
    check_order(&server, &[5, 2]);
    assert_eq!((outcome.count(Class::RpcError), outcome.count(Class::Ok)), (2, 5));
    assert_eq!(log.count(), StateCounts { sent: 7, accepted: 5, refused: 2 });
    let expected = ("nonce too low: next nonce N, tx nonce N".to_owned(), 2);
    assert_eq!(log.messages(), [expected]);
}

#[test]
fn a_timeout_and_a_lost_connection_do_not_repeat_a_transaction() {
    let server = Server::new(|request| match sender_and_nonce(request) {
        (0, 0) => Reply::Silence,
        (1, 0) => Reply::Reset(Vec::new()),
        _ => request.ok(),
    });
    let mut plan = open(plan(&server, 0), 200.0, SECOND * 60, 5, 100);
    plan.target.timeout = Duration::from_millis(300);
    let (outcome, log) = run_with_log(sending(plan, transactions(&[2, 2])), &server);
    check_order(&server, &[2, 2]);
    let counts = [Class::Timeout, Class::Reset, Class::Ok].map(|class| outcome.count(class));
    assert_eq!(counts, [1, 1, 2]);
    assert_eq!(log.count(), StateCounts { sent: 4, accepted: 2, refused: 0 });
    assert_eq!((log.state(0).0, log.state(1).0), (TransactionState::Sent, TransactionState::Sent));
}

#[test]
fn transactions_that_cannot_be_sent_are_unsent() {
    let mut server = Server::new(Request::ok);
    // Nothing listens on the port of a dropped listener.
    server.address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for closed in [true, false] {
        let mut plan = plan(&server, 0);
        plan.scenarios[0].stages[0].duration = SECOND;
        if !closed {
            plan = open(plan, 20.0, SECOND, 5, 100);
        }
        let (outcome, log) = run_with_log(sending(plan, transactions(&[3])), &server);
        assert!(
            outcome.count(Class::Connect) > 3,
            "a transaction that was not sent is tried again"
        );
        assert_eq!(log.count(), StateCounts::default());
    }
}

#[test]
fn the_end_of_the_load_leaves_the_rest_unsent() {
    let server = Server::new(Request::ok);
    let plan = open(plan(&server, 0), 20.0, SECOND, 5, 100);
    let (outcome, log) = run_with_log(sending(plan, transactions(&[50, 50])), &server);
    outcome.check_all(Class::Ok, 20);
    assert_eq!(log.count().sent, 20);
}

#[test]
fn a_stop_counts_what_was_sent() {
    let server = Server::new(|_| Reply::Silence);
    let plan = open(plan(&server, 0), 100.0, SECOND * 60, 5, 100);
    let engine = start(sending(plan, transactions(&[5, 5])), &server).unwrap();
    let log = Arc::clone(engine.transactions().unwrap());
    let deadline = Instant::now() + SECOND * 20;
    while server.requests().len() < 2 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    engine.stop();
    collect(engine);
    assert_eq!((server.requests().len(), log.count().sent), (2, 2), "each sender waits");
}

#[test]
fn transactions_are_not_sent_to_the_reference() {
    let server = Server::new(Request::ok);
    let mut plan = sending(plan(&server, 0), transactions(&[5]));
    plan.reference = Some(lab_model::plan::Reference {
        url: plan.target.url.clone(),
        share: 1.0,
        ignore: Vec::new(),
        tolerance: 0.0,
        sets: Vec::new(),
    });
    let (outcome, _) = run_with_log(plan, &server);
    outcome.check_all(Class::Ok, 5);
    assert!(outcome.samples.is_empty());
}
