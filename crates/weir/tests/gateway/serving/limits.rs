//! Nodes that limit the rate of calls, and methods that a node does not support.

use std::time::{Duration, Instant};

use simnode::node::settings::{Fault, FaultRule};

use crate::support::scene::{
    READ, Scene, Served, account, ask, by, error, polled_often, polled_once, result,
};
use test_support::wait::{pause, wait_until};

/// `Retry-After` of the rate-limiting node.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Returns a fault that answers calls with 429 and [`RETRY_AFTER`].
fn rate_limit_fault(method: Option<&str>, times: Option<u64>) -> FaultRule {
    let fault = Fault::TooManyRequests { retry_after_s: RETRY_AFTER.as_secs() };
    FaultRule { method: method.map(str::to_owned), times, ..FaultRule::always(fault) }
}

#[test]
fn a_rate_limiting_node_is_paused_as_long_as_it_asks() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", polled_often("")),
    );
    a.fail(rate_limit_fault(Some(READ), Some(1)));
    let mut client = served.client();
    let mut number = 0;
    let mut answerer = || {
        number += 1;
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        result(&answer);
        by(&answer).to_owned()
    };
    let began = Instant::now();
    assert_eq!(answerer(), "b", "the rejected call was not retried at the other node");
    assert_eq!(served.upstream(0, "state"), "paused");
    let pause_left_seconds = served.upstream(0, "state_ends_seconds").as_f64().unwrap();
    assert!(
        pause_left_seconds > 1.0 && pause_left_seconds <= RETRY_AFTER.as_secs_f64(),
        "{pause_left_seconds}"
    );
    let mut calls_during_pause = 0;
    loop {
        let name = answerer();
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
    assert_eq!(served.attempts(0), 2, "a paused node was called");
    assert_eq!(
        (served.upstream(0, "ejections"), served.upstream(0, "rate_limited")),
        (0.into(), 1.into())
    );
}

#[test]
fn a_node_that_also_limits_polls_is_paused_and_not_ejected() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(
        &[&a, &b],
        &format!("[call]\nbalance = \"weighted\"\nhedge = false\n{}", polled_often("")),
    );
    // More polls fail than would eject a node (`health.failures_max` is 3).
    let requests_before = a.node.counters().requests;
    a.fail(rate_limit_fault(None, None));
    wait_until("the node is paused", || served.upstream(0, "state") == "paused");
    let mut client = served.client();
    let began = Instant::now();
    let mut number = 0;
    while began.elapsed() < RETRY_AFTER + RETRY_AFTER / 2 {
        number += 1;
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        result(&answer);
        assert_eq!(by(&answer), "b");
        pause(Duration::from_millis(10)); // Sleeps: the rate of the client.
    }
    assert_eq!(
        (served.upstream(0, "ejections"), served.upstream(0, "attempts")),
        (0.into(), 0.into())
    );
    // The pause applies to the gateway's polls too.
    let polls = a.node.counters().requests - requests_before;
    assert!((1..=8).contains(&polls), "{polls} polls of a paused node");
    a.set(|settings| settings.faults.clear());
    served.wait_for_candidates(&["a", "b"]);
}

#[test]
fn retry_after_names_the_end_of_the_pauses_if_all_nodes_are_paused() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(&[&a, &b], &polled_often(""));
    for node in [&a, &b] {
        node.fail(rate_limit_fault(Some(READ), None));
    }
    let mut client = served.client();
    for number in 0..3 {
        let answer = ask(&mut client, READ, &account(number, "0x10"));
        let (status, code, _) = error(&answer);
        assert_eq!((status, code), (429, -32005));
        let retry_after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=RETRY_AFTER.as_secs()).contains(&retry_after), "{retry_after}");
    }
    // The first call reached both; the later ones reached none.
    assert_eq!(served.attempts(0) + served.attempts(1), 2);
}

#[test]
fn an_unsupported_method_is_remembered_for_a_time() {
    const METHOD: &str = "eth_getBlockReceipts";
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    a.set(|settings| {
        settings.unsupported.insert(METHOD.to_owned());
    });
    let served = Served::before(
        &[&a, &b],
        &format!(
            "[call]\nbalance = \"weighted\"\nhedge = false\n\
             [health]\nunsupported_age_max = \"2s\"\n{}",
            polled_once("")
        ),
    );
    let before = a.calls();
    let mut client = served.client();
    let began = Instant::now();
    for block in 1..=10 {
        let answer = ask(&mut client, METHOD, &format!("[\"0x{block:x}\"]"));
        result(&answer);
        assert_eq!(by(&answer), "b");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "too slow to prove anything");
    assert_eq!(a.calls(), before + 1, "the node was called again for an unsupported method");
    // The node still gets calls of other methods.
    let others =
        (0..10).map(|number| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned());
    assert_eq!(others.filter(|name| name == "a").count(), 5);
    a.set(|settings| settings.unsupported.clear());
    wait_until("the node is called again", || {
        let block = 11 + began.elapsed().as_millis() as u64 % 800;
        by(&ask(&mut served.client(), METHOD, &format!("[\"0x{block:x}\"]"))) == "a"
    });
    assert!(began.elapsed() >= Duration::from_secs(2), "forgotten after {:?}", began.elapsed());
    assert_eq!(served.upstream(0, "ejections"), 0);
}
