//! Which calls are retried, and which must not be.

use std::time::{Duration, Instant};

use simnode::node::settings::{Fault, FaultRule};

use crate::support::line::{Instead, Line};
use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, body, by, error, polled_once, result,
    wait_for_quiet,
};

/// A signed transaction of `testdata/execution-apis`, and the hash that geth gives for it.
const TRANSACTION: &str = include_str!(
    "../../../../../testdata/execution-apis/eth_sendRawTransaction/send-legacy-transaction.io"
);

/// Parameters and result of [`TRANSACTION`].
fn transaction() -> (String, String) {
    let after = |mark: &str| {
        let line = TRANSACTION.lines().find_map(|line| line.strip_prefix(mark)).unwrap();
        serde_json::from_str::<serde_json::Value>(line).unwrap()
    };
    (after(">> ")["params"].to_string(), after("<< ")["result"].to_string())
}

/// Nodes get calls in turn, without hedging.
const IN_TURN: &str = "[call]\nbalance = \"weighted\"\nhedge = false\n";

#[test]
fn a_transaction_that_the_first_node_accepted_without_response_is_a_success() {
    let scene = Scene::set();
    // Both nodes share one world, and so one transaction pool.
    let [a, b] = scene.nodes(["a", "b"]);
    let line = Line::before(&a, "eth_sendRawTransaction", Instead::Cut);
    let served =
        Served::start(&format!("{IN_TURN}{}{}{}", polled_once(""), line.entry(""), b.entry("")));
    served.wait_for_candidates(&["a", "b"]);
    wait_for_quiet(&[&a, &b]);
    let (params, hash) = transaction();
    let b_before = b.calls();
    let mut client = served.client();
    let answer = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((result(&answer), by(&answer)), (hash, "b"));
    assert_eq!((line.met(), b.calls() - b_before), (1, 1));
    // If the client itself sends the transaction again, it gets the node's error.
    let mut direct = test_support::raw::Client::connect(&b.address.to_string());
    let theirs = error(&direct.call("/", &body("eth_sendRawTransaction", &params)));
    assert_eq!((theirs.1, theirs.2.as_str()), (-32000, "already known"));
    let again = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((by(&again), line.met()), ("b", 1));
    assert_eq!(error(&again), theirs);
}

#[test]
fn a_transaction_that_the_only_node_accepted_without_response_is_a_success() {
    let scene = Scene::set();
    let [a] = scene.nodes(["a"]);
    let line = Line::before(&a, "eth_sendRawTransaction", Instead::CutOnce);
    let served = Served::start(&format!("{IN_TURN}{}{}", polled_once(""), line.entry("")));
    served.wait_for_candidates(&["a"]);
    let (params, hash) = transaction();
    let mut client = served.client();
    // Reuse a connection, which the node may have closed at any time.
    result(&ask(&mut client, READ, &account(1, "0x10")));
    let answer = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((result(&answer), line.met()), (hash, 2));
}

#[test]
fn an_unknown_method_that_may_have_been_sent_is_not_repeated() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    for method in ["weir_doSomething", READ] {
        a.fail(FaultRule { method: Some(method.to_owned()), ..FaultRule::always(Fault::Close) });
        let served = Served::before(&[&a, &b], &format!("{IN_TURN}{}", polled_once("")));
        let (a_before, b_before) = (a.node.counters(), b.calls());
        let answer = ask(&mut served.client(), method, &account(1, "0x10"));
        // The gateway polls the node at once, but the fault applies only to calls.
        let faulty_calls = a.node.counters().faults - a_before.faults;
        if method == READ {
            // A read is retried at another node.
            result(&answer);
            assert_eq!((by(&answer), faulty_calls, b.calls() - b_before), ("b", 1, 1));
        } else {
            let expected = "upstream closed the connection before it responded";
            assert_eq!(error(&answer), (502, -32603, expected.to_owned()));
            assert_eq!((by(&answer), faulty_calls, b.calls() - b_before), ("a", 1, 0));
        }
    }
}

#[test]
fn a_method_that_was_never_sent_goes_to_another_node() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(&[&a, &b], &format!("{IN_TURN}{}", polled_once("")));
    a.down();
    // Nothing was sent to the first node, so the call may go to another one.
    let answer = ask(&mut served.client(), "weir_doSomething", "[]");
    assert_eq!((by(&answer), error(&answer).1), ("b", -32601));
}

#[test]
fn notifications_are_forwarded_and_answered_with_nothing() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once(""));
    let mut client = served.client();
    let notify = |number| format!(r#"{{"method":"{READ}","params":{}}}"#, account(number, "0x10"));
    let before = node.calls();
    let single = client.call("/", notify(1).as_bytes());
    assert_eq!((single.status, single.text(), node.calls() - before), (200, "", 1));
    let batch = client.call("/", format!("[{},{}]", notify(2), notify(3)).as_bytes());
    assert_eq!((batch.status, batch.text(), node.calls() - before), (200, "", 3));
    let mixed = format!(
        "[{},{},{}]",
        notify(4),
        String::from_utf8(body("eth_chainId", "[]")).unwrap(),
        notify(5)
    );
    let mixed = client.call("/", mixed.as_bytes());
    let expected =
        format!(r#"[{{"jsonrpc":"2.0","id":7,"result":{}}}]"#, node.result("eth_chainId", "[]"));
    assert_eq!(mixed.text(), expected);
    // The node received five notifications, the call with an id, and the direct call.
    assert_eq!(node.calls() - before, 5 + 2);
    assert_eq!(served.count("/totals/notifications"), 5);
}

/// Starts a gateway that hedges after 100 ms and never ejects nodes, which get calls in turn.
fn hedging(nodes: &[&SimNode], attempt_deadline: &str) -> Served {
    let text = format!(
        "[call]\nbalance = \"weighted\"\nhedge_delay_min = \"100ms\"\nretry_rate_min = 1000\n\
         attempt_deadline = \"{attempt_deadline}\"\n\
         [health]\nfailures_max = 1000\nwindow_calls_min = 100000\n{}",
        polled_once("")
    );
    Served::before(nodes, &text)
}

/// Sends different calls one after the other and returns the longest latency.
fn slowest(served: &Served, from: u64, calls: u64) -> Duration {
    let mut client = served.client();
    let latency = |number| {
        let began = Instant::now();
        result(&ask(&mut client, READ, &account(number, "0x10")));
        began.elapsed()
    };
    (from..from + calls).map(latency).max().unwrap()
}

#[test]
fn hedges_bound_the_latency_of_a_node_that_sometimes_stalls() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = hedging(&[&a, &b], "10s");
    slowest(&served, 0, 200);
    assert_eq!(served.count("/totals/hedges"), 0);
    let stalls = FaultRule {
        method: Some(READ.to_owned()),
        times: Some(8),
        ..FaultRule::always(Fault::Hang)
    };
    a.fail(stalls);
    let slowest = slowest(&served, 200, 100);
    // Without hedges, each stalled call would take the attempt's deadline of ten seconds.
    assert!(slowest >= Duration::from_millis(100), "no call stalled");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    assert_eq!(a.node.counters().faults, 8);
    assert!(served.count("/totals/hedges_won") >= 8);
    let hedges = served.count("/totals/hedges");
    assert!((8..=300 / 20).contains(&hedges), "{hedges} hedges of 300 calls, allowed are 5 %");
    // A call that its hedge overtook counts neither as failed nor as retried.
    assert_eq!((served.upstream(0, "failed"), served.count("/totals/retries")), (0.into(), 0));
}

#[test]
fn a_node_that_always_stalls_delays_few_calls() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = hedging(&[&a, &b], "10s");
    slowest(&served, 0, 100);
    a.fail(FaultRule { method: Some(READ.to_owned()), ..FaultRule::always(Fault::Hang) });
    let slowest = slowest(&served, 100, 100);
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let (hedges, retries) = (served.count("/totals/hedges"), served.count("/totals/retries"));
    assert!((5..=10).contains(&hedges), "{hedges} hedges of 200 calls, allowed are 5 %");
    // A call without a hedge makes the node suspect. A poll clears the first suspicion; the second
    // one ejects the node.
    assert!((2..=3).contains(&retries), "{retries} calls were retried elsewhere");
    assert_eq!(a.node.counters().faults, hedges + retries);
}
