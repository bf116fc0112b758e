//! Nodes that limit the rate of calls, and methods that a node does not support.

use std::time::{Duration, Instant};

use simnode::node::settings::{Fault, FaultRule};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, ask, balance_params, chain_polled_often,
    chain_polled_once, error, result, upstream_of,
};
use test_support::wait::{pause, wait_until};

/// The header `Retry-After` in the responses of a node that limits the rate.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Returns a fault that answers calls with 429 and [`RETRY_AFTER`].
fn rate_limit_fault(method: Option<&str>, times: Option<u64>) -> FaultRule {
    let fault = Fault::TooManyRequests { retry_after_s: RETRY_AFTER.as_secs() };
    FaultRule { method: method.map(str::to_owned), times, ..FaultRule::always(fault) }
}

#[test]
fn a_rate_limiting_node_is_paused_as_long_as_it_asks() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let gateway = TestGateway::in_front_of(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", chain_polled_often("")),
    );
    a.set_fault(rate_limit_fault(Some(GET_BALANCE), Some(1)));
    let mut client = gateway.client();
    let mut account = 0;
    let mut next_upstream = || {
        account += 1;
        let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "0x10"));
        result(&answer);
        upstream_of(&answer).to_owned()
    };
    let began = Instant::now();
    assert_eq!(next_upstream(), "b", "the rejected call was not retried at the other node");
    assert_eq!(gateway.upstream(0, "state"), "paused");
    let pause_left_seconds = gateway.upstream(0, "state_ends_seconds").as_f64().unwrap();
    assert!(
        pause_left_seconds > 1.0 && pause_left_seconds <= RETRY_AFTER.as_secs_f64(),
        "{pause_left_seconds}"
    );
    let mut calls_during_pause = 0;
    loop {
        let name = next_upstream();
        if name == "a" {
            break;
        }
        calls_during_pause += 1;
        pause(Duration::from_millis(2)); // Sleeps: the rate of the client.
        assert!(began.elapsed() < 5 * RETRY_AFTER, "the pause never ended");
    }
    assert!(
        began.elapsed() >= RETRY_AFTER - Duration::from_millis(20),
        "after {:?}",
        began.elapsed()
    );
    assert!(calls_during_pause > 100, "only {calls_during_pause} calls during the pause");
    assert_eq!(gateway.attempts(0), 2, "a paused node was called");
    assert_eq!(
        (gateway.upstream(0, "ejections"), gateway.upstream(0, "rate_limited")),
        (0.into(), 1.into())
    );
}

#[test]
fn a_node_that_also_limits_polls_is_paused_and_not_ejected() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let gateway = TestGateway::in_front_of(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", chain_polled_often("")),
    );
    // More polls fail than the three after which a node is ejected (`health.failures_max`).
    let requests_before = a.node.counters().requests;
    a.set_fault(rate_limit_fault(None, None));
    wait_until("the node is paused", || gateway.upstream(0, "state") == "paused");
    let mut client = gateway.client();
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < RETRY_AFTER + RETRY_AFTER / 2 {
        number += 1;
        let answer = ask(&mut client, GET_BALANCE, &balance_params(number, "0x10"));
        result(&answer);
        assert_eq!(upstream_of(&answer), "b");
        pause(Duration::from_millis(10)); // Sleeps: the rate of the client.
    }
    assert_eq!(
        (gateway.upstream(0, "ejections"), gateway.upstream(0, "attempts")),
        (0.into(), 0.into())
    );
    // The pause also applies to the gateway's polls of the node.
    let polls = a.node.counters().requests - requests_before;
    assert!((1..=8).contains(&polls), "{polls} polls of a paused node");
    a.set(|settings| settings.faults.clear());
    gateway.wait_for_candidates(&["a", "b"]);
}

#[test]
fn retry_after_names_the_end_of_the_pauses_if_all_nodes_are_paused() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let gateway = TestGateway::in_front_of(&[&a, &b], &chain_polled_often(""));
    for node in [&a, &b] {
        node.set_fault(rate_limit_fault(Some(GET_BALANCE), None));
    }
    let mut client = gateway.client();
    for number in 0..3 {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(number, "0x10"));
        let (status, code, _) = error(&answer);
        assert_eq!((status, code), (429, -32005));
        let retry_after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=RETRY_AFTER.as_secs()).contains(&retry_after), "{retry_after}");
    }
    // The first call reached both nodes. The later calls reached none.
    assert_eq!(gateway.attempts(0) + gateway.attempts(1), 2);
}

#[test]
fn an_unsupported_method_is_remembered_for_a_time() {
    const METHOD: &str = "eth_getBlockReceipts";
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    a.set(|settings| {
        settings.unsupported.insert(METHOD.to_owned());
    });
    let gateway = TestGateway::in_front_of(
        &[&a, &b],
        &format!(
            "[call]\nbalance = \"weighted\"\nhedge = false\n\
             [health]\nunsupported_age_max = \"2s\"\n{}",
            chain_polled_once("")
        ),
    );
    let before = a.calls();
    let mut client = gateway.client();
    let began = Instant::now();
    for block in 1..=10 {
        let answer = ask(&mut client, METHOD, &format!("[\"0x{block:x}\"]"));
        result(&answer);
        assert_eq!(upstream_of(&answer), "b");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "too slow to prove anything");
    assert_eq!(a.calls(), before + 1, "the node was called again for an unsupported method");
    // The node still gets calls of other methods.
    let others = (0..10).map(|account| {
        let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "0x10"));
        upstream_of(&answer).to_owned()
    });
    assert_eq!(others.filter(|name| name == "a").count(), 5);
    a.set(|settings| settings.unsupported.clear());
    wait_until("the node is called again", || {
        let block = 11 + began.elapsed().as_millis() as u64 % 800;
        upstream_of(&ask(&mut gateway.client(), METHOD, &format!("[\"0x{block:x}\"]"))) == "a"
    });
    assert!(began.elapsed() >= Duration::from_secs(2), "forgotten after {:?}", began.elapsed());
    assert_eq!(gateway.upstream(0, "ejections"), 0);
}
