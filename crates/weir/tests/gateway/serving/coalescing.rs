//! Coalescing: concurrent equal calls share one call to a node. The first of them is the leader,
//! and the others are followers. Each client keeps its own deadline.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use simnode::node::settings::{ErrorKind, Fault, FaultRule};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask, balance_params, cache_status, chain_polled_once,
    error, result, send,
};
use test_support::wait::wait_until;

/// Latency of the node in milliseconds. Fifty clients can send their calls in this time.
const SLOW_MS: f64 = 700.0;
const CLIENTS: usize = 50;

/// Sends the same call on many connections at the same time. Returns the cache status, HTTP status
/// and body of each response.
fn ask_concurrently(gateway: &TestGateway, params: &str) -> Vec<(String, u16, String)> {
    let barrier = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| gateway.client()).collect();
        let ask_one = |mut client| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let answer = ask(&mut client, GET_BALANCE, params);
                (cache_status(&answer).to_owned(), answer.status, answer.text().to_owned())
            })
        };
        let threads: Vec<_> = clients.into_iter().map(ask_one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Counts the responses by cache status.
fn count_by_cache_status(responses: &[(String, u16, String)]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (cache_status, ..) in responses {
        *counts.entry(cache_status.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn fifty_equal_calls_reach_the_node_once() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, SLOW_MS);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let before = node.calls();
    let responses = ask_concurrently(&gateway, &balance_params(1, "0x10"));
    assert_eq!(node.calls(), before + 1);
    let counts = count_by_cache_status(&responses);
    assert_eq!(counts, BTreeMap::from([("coalesced", CLIENTS - 1), ("miss", 1)]));
    assert!(
        responses.iter().all(|response| (response.1, &response.2) == (200, &responses[0].2)),
        "{responses:?}"
    );
    // The gateway updates this number once a second.
    wait_until("no coalesced call is in flight", || {
        gateway.status_u64("/totals/coalesced_calls") == 0
    });
}

#[test]
fn without_coalescing_each_call_reaches_the_node() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, SLOW_MS);
    let text = chain_polled_once("[cache]\ncoalesce = false");
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let before = node.calls();
    ask_concurrently(&gateway, &balance_params(1, "0x10"));
    assert_eq!(node.calls(), before + CLIENTS as u64);
}

#[test]
fn a_leader_that_leaves_harms_no_follower() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, SLOW_MS);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let before = node.calls();
    let params = balance_params(1, "0x10");
    let mut leader = gateway.client();
    send(&mut leader, GET_BALANCE, &params);
    wait_until("the leader has asked", || node.calls() == before + 1);
    let mut follower = gateway.client();
    send(&mut follower, GET_BALANCE, &params);
    wait_until("the follower has joined", || gateway.status_u64("/totals/requests") == 2);
    drop(leader);
    let answer = follower.read_response().unwrap();
    assert_eq!(cache_status(&answer), "coalesced");
    assert_eq!(node.calls(), before + 1);
    assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
    // The gateway has cached the response, although the leader had disconnected.
    assert_eq!(cache_status(&ask(&mut follower, GET_BALANCE, &params)), "hit");
}

#[test]
fn a_follower_has_a_deadline_of_its_own() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    // The node never answers the first call, and answers each later one at once.
    node.set_fault(FaultRule {
        method: Some(GET_BALANCE.to_owned()),
        times: Some(1),
        ..FaultRule::always(Fault::Hang)
    });
    let deadline = Duration::from_millis(1500);
    let text = format!(
        "[call]\ndeadline = \"1500ms\"\nattempt_deadline = \"1500ms\"\n{}",
        chain_polled_once("")
    );
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let params = balance_params(1, "0x10");
    let asked = Instant::now();
    let mut leader = gateway.client();
    send(&mut leader, GET_BALANCE, &params);
    wait_until("half of the leader's time is over", || asked.elapsed() >= deadline / 2);
    let joined = Instant::now();
    let mut follower = gateway.client();
    send(&mut follower, GET_BALANCE, &params);
    let late = leader.read_response().unwrap();
    assert_eq!(error(&late), (504, -32002, "no upstream responded in time".to_owned()));
    assert!(asked.elapsed() >= deadline, "the leader failed before its deadline");
    // The follower's deadline has not passed yet. So the gateway sends the call again, and the
    // follower gets a response in time.
    let answer = follower.read_response().unwrap();
    result(&answer);
    assert!(joined.elapsed() < deadline, "after {:?}", joined.elapsed());
}

#[test]
fn an_error_is_shared_with_waiting_calls_and_not_cached() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, SLOW_MS);
    node.set_fault(FaultRule {
        method: Some(GET_BALANCE.to_owned()),
        times: Some(1),
        ..FaultRule::always(Fault::Error { error: ErrorKind::ExecutionTimeout })
    });
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let before = node.calls();
    let params = balance_params(1, "0x10");
    let responses = ask_concurrently(&gateway, &params);
    assert_eq!(node.calls(), before + 1);
    assert!(responses[0].2.contains("execution aborted"), "{}", responses[0].2);
    assert!(responses.iter().all(|response| response.2 == responses[0].2), "{responses:?}");
    let answer = ask(&mut gateway.client(), GET_BALANCE, &params);
    assert_eq!(cache_status(&answer), "miss");
    result(&answer);
    assert_eq!(node.calls(), before + 2);
}
