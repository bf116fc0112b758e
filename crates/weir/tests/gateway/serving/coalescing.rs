//! Concurrent equal calls share one call to a node. Each client keeps its own deadline.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use simnode::node::settings::{ErrorKind, Fault, FaultRule};

use crate::support::scene::{
    READ, Scene, Served, account, ask, error, mark, polled_once, result, send,
};
use test_support::wait::wait_until;

/// Latency that lets fifty clients send their calls before the first response.
const SLOW_MS: f64 = 700.0;
const CLIENTS: usize = 50;

/// Sends one call from many connections at the same time. Returns the cache status, HTTP status and
/// body of each response.
fn all_at_once(served: &Served, params: &str) -> Vec<(String, u16, String)> {
    let together = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| served.client()).collect();
        let ask_one = |mut client| {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                let answer = ask(&mut client, READ, params);
                (mark(&answer).to_owned(), answer.status, answer.text().to_owned())
            })
        };
        let asked: Vec<_> = clients.into_iter().map(ask_one).collect();
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Counts the responses by cache status.
fn marks(responses: &[(String, u16, String)]) -> BTreeMap<&str, usize> {
    let mut marks = BTreeMap::new();
    for (mark, ..) in responses {
        *marks.entry(mark.as_str()).or_default() += 1;
    }
    marks
}

#[test]
fn fifty_equal_calls_reach_the_node_once() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, SLOW_MS);
    let served = Served::before(&[&node], &polled_once(""));
    let before = node.calls();
    let responses = all_at_once(&served, &account(1, "0x10"));
    assert_eq!(node.calls(), before + 1);
    assert_eq!(marks(&responses), BTreeMap::from([("coalesced", CLIENTS - 1), ("miss", 1)]));
    assert!(
        responses.iter().all(|response| (response.1, &response.2) == (200, &responses[0].2)),
        "{responses:?}"
    );
    // The gauge is updated once a second.
    wait_until("no coalesced call is in flight", || served.count("/totals/coalesced_calls") == 0);
}

#[test]
fn without_coalescing_each_call_reaches_the_node() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, SLOW_MS);
    let served = Served::before(&[&node], &polled_once("[cache]\ncoalesce = false"));
    let before = node.calls();
    all_at_once(&served, &account(1, "0x10"));
    assert_eq!(node.calls(), before + CLIENTS as u64);
}

#[test]
fn a_leader_that_leaves_harms_no_follower() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, SLOW_MS);
    let served = Served::before(&[&node], &polled_once(""));
    let before = node.calls();
    let params = account(1, "0x10");
    let mut leader = served.client();
    send(&mut leader, READ, &params);
    wait_until("the leader has asked", || node.calls() == before + 1);
    let mut follower = served.client();
    send(&mut follower, READ, &params);
    wait_until("the follower has joined", || served.count("/totals/requests") == 2);
    drop(leader);
    let answer = follower.read_response().unwrap();
    assert_eq!(mark(&answer), "coalesced");
    assert_eq!(node.calls(), before + 1);
    assert_eq!(result(&answer), node.result(READ, &params));
    // The response was cached although the call's first client had disconnected.
    assert_eq!(mark(&ask(&mut follower, READ, &params)), "hit");
}

#[test]
fn a_follower_has_a_deadline_of_its_own() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    // The node never answers the first call, and answers each later one at once.
    node.fail(FaultRule {
        method: Some(READ.to_owned()),
        times: Some(1),
        ..FaultRule::always(Fault::Hang)
    });
    let deadline = Duration::from_millis(1500);
    let text = format!(
        "[call]\ndeadline = \"1500ms\"\nattempt_deadline = \"1500ms\"\n{}",
        polled_once("")
    );
    let served = Served::before(&[&node], &text);
    let params = account(1, "0x10");
    let asked = Instant::now();
    let mut leader = served.client();
    send(&mut leader, READ, &params);
    wait_until("half of the leader's time is over", || asked.elapsed() >= deadline / 2);
    let joined = Instant::now();
    let mut follower = served.client();
    send(&mut follower, READ, &params);
    let late = leader.read_response().unwrap();
    assert_eq!(error(&late), (504, -32002, "no upstream responded in time".to_owned()));
    assert!(asked.elapsed() >= deadline, "the leader failed before its deadline");
    // The leader's deadline has passed, the follower's has not: it gets a response in time.
    let answer = follower.read_response().unwrap();
    result(&answer);
    assert!(joined.elapsed() < deadline, "after {:?}", joined.elapsed());
}

#[test]
fn an_error_is_shared_with_waiting_calls_and_not_cached() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, SLOW_MS);
    node.fail(FaultRule {
        method: Some(READ.to_owned()),
        times: Some(1),
        ..FaultRule::always(Fault::Error { error: ErrorKind::ExecutionTimeout })
    });
    let served = Served::before(&[&node], &polled_once(""));
    let before = node.calls();
    let params = account(1, "0x10");
    let responses = all_at_once(&served, &params);
    assert_eq!(node.calls(), before + 1);
    assert!(responses[0].2.contains("execution aborted"), "{}", responses[0].2);
    assert!(responses.iter().all(|response| response.2 == responses[0].2), "{responses:?}");
    let answer = ask(&mut served.client(), READ, &params);
    assert_eq!(mark(&answer), "miss");
    result(&answer);
    assert_eq!(node.calls(), before + 2);
}
