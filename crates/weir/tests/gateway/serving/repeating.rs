//! Which calls the gateway retries, and which it must not retry.

use std::time::{Duration, Instant};

use simnode::node::settings::{Fault, FaultRule};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, body, chain_polled_once,
    error, result, upstream_of, wait_until_idle,
};
use crate::support::tampering_proxy::{Tampering, TamperingProxy};

/// A test case of `testdata/execution-apis`: a call with a signed transaction, and geth's response
/// with the transaction's hash.
const TRANSACTION: &str = include_str!(
    "../../../../../testdata/execution-apis/eth_sendRawTransaction/send-legacy-transaction.io"
);

/// Parameters and result of [`TRANSACTION`].
fn transaction() -> (String, String) {
    let parse_line = |prefix: &str| {
        let line = TRANSACTION.lines().find_map(|line| line.strip_prefix(prefix)).unwrap();
        serde_json::from_str::<serde_json::Value>(line).unwrap()
    };
    (parse_line(">> ")["params"].to_string(), parse_line("<< ")["result"].to_string())
}

/// The gateway sends calls to the nodes in turn, and does not hedge.
const ROUND_ROBIN: &str = "[call]\nbalance = \"weighted\"\nhedge = false\n";

#[test]
fn a_transaction_that_the_first_node_accepted_without_response_is_a_success() {
    let runtime = NodeRuntime::start();
    // Both nodes belong to one simulated chain, so they share a transaction pool.
    let [a, b] = runtime.nodes(["a", "b"]);
    let proxy = TamperingProxy::in_front_of(&a, "eth_sendRawTransaction", Tampering::DropResponse);
    let upstreams = [proxy.to_toml(""), b.to_toml("")].concat();
    let gateway = TestGateway::start(&format!("{ROUND_ROBIN}{}{upstreams}", chain_polled_once("")));
    gateway.wait_for_candidates(&["a", "b"]);
    wait_until_idle(&[&a, &b]);
    let (params, hash) = transaction();
    let b_before = b.calls();
    let mut client = gateway.client();
    let answer = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((result(&answer), upstream_of(&answer)), (hash, "b"));
    assert_eq!((proxy.matching_calls(), b.calls() - b_before), (1, 1));
    // If the client itself sends the transaction again, it gets the node's error.
    let mut direct = test_support::raw::Client::connect(&b.address.to_string());
    let node_error = error(&direct.call("/", &body("eth_sendRawTransaction", &params)));
    assert_eq!((node_error.1, node_error.2.as_str()), (-32000, "already known"));
    let again = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((upstream_of(&again), proxy.matching_calls()), ("b", 1));
    assert_eq!(error(&again), node_error);
}

#[test]
fn a_transaction_that_the_only_node_accepted_without_response_is_a_success() {
    let runtime = NodeRuntime::start();
    let [a] = runtime.nodes(["a"]);
    let tampering = Tampering::DropFirstResponse;
    let proxy = TamperingProxy::in_front_of(&a, "eth_sendRawTransaction", tampering);
    let text = format!("{ROUND_ROBIN}{}{}", chain_polled_once(""), proxy.to_toml(""));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_candidates(&["a"]);
    let (params, hash) = transaction();
    let mut client = gateway.client();
    // The gateway then reuses the connection of this call. It must allow for a connection that the
    // node has closed.
    result(&ask(&mut client, GET_BALANCE, &balance_params(1, "0x10")));
    let answer = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((result(&answer), proxy.matching_calls()), (hash, 2));
}

#[test]
fn an_unknown_method_that_may_have_been_sent_is_not_repeated() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    for method in ["weir_doSomething", GET_BALANCE] {
        let faulty_method = Some(method.to_owned());
        a.set_fault(FaultRule { method: faulty_method, ..FaultRule::always(Fault::Close) });
        let text = format!("{ROUND_ROBIN}{}", chain_polled_once(""));
        let gateway = TestGateway::in_front_of(&[&a, &b], &text);
        let (a_before, b_before) = (a.node.counters(), b.calls());
        let answer = ask(&mut gateway.client(), method, &balance_params(1, "0x10"));
        // After the failure, the gateway polls the node at once. The fault does not apply to polls.
        let faulty_calls = a.node.counters().faults - a_before.faults;
        if method == GET_BALANCE {
            // A read is retried at another node.
            result(&answer);
            assert_eq!((upstream_of(&answer), faulty_calls, b.calls() - b_before), ("b", 1, 1));
        } else {
            let expected = "upstream closed the connection before it responded";
            assert_eq!(error(&answer), (502, -32603, expected.to_owned()));
            assert_eq!((upstream_of(&answer), faulty_calls, b.calls() - b_before), ("a", 1, 0));
        }
    }
}

#[test]
fn a_method_that_was_never_sent_goes_to_another_node() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let text = format!("{ROUND_ROBIN}{}", chain_polled_once(""));
    let gateway = TestGateway::in_front_of(&[&a, &b], &text);
    a.stop_listening();
    // The gateway could not send the call to the first node. So it may send the call to another.
    let answer = ask(&mut gateway.client(), "weir_doSomething", "[]");
    assert_eq!((upstream_of(&answer), error(&answer).1), ("b", -32601));
}

#[test]
fn notifications_are_forwarded_and_answered_with_nothing() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    let notification = |account| {
        let params = balance_params(account, "0x10");
        format!(r#"{{"method":"{GET_BALANCE}","params":{params}}}"#)
    };
    let before = node.calls();
    let single = client.call("/", notification(1).as_bytes());
    assert_eq!((single.status, single.text(), node.calls() - before), (200, "", 1));
    let batch = client.call("/", format!("[{},{}]", notification(2), notification(3)).as_bytes());
    assert_eq!((batch.status, batch.text(), node.calls() - before), (200, "", 3));
    let mixed = format!(
        "[{},{},{}]",
        notification(4),
        String::from_utf8(body("eth_chainId", "[]")).unwrap(),
        notification(5)
    );
    let mixed = client.call("/", mixed.as_bytes());
    let expected =
        format!(r#"[{{"jsonrpc":"2.0","id":7,"result":{}}}]"#, node.call("eth_chainId", "[]"));
    assert_eq!(mixed.text(), expected);
    // The node received five notifications, the call with an id, and the direct call.
    assert_eq!(node.calls() - before, 5 + 2);
    assert_eq!(gateway.status_u64("/totals/notifications"), 5);
}

/// Starts a gateway that sends calls to the nodes in turn. It sends a hedge, which is a second
/// attempt at another node, if a call takes longer than 100 ms. It never ejects nodes.
fn start_hedging_gateway(nodes: &[&SimNode], attempt_deadline: &str) -> TestGateway {
    let text = format!(
        "[call]\nbalance = \"weighted\"\nhedge_delay_min = \"100ms\"\nretry_rate_min = 1000\n\
         attempt_deadline = \"{attempt_deadline}\"\n\
         [health]\nfailures_max = 1000\nwindow_calls_min = 100000\n{}",
        chain_polled_once("")
    );
    TestGateway::in_front_of(nodes, &text)
}

/// Sends different calls one after the other and returns the longest latency.
fn longest_latency(gateway: &TestGateway, from: u64, calls: u64) -> Duration {
    let mut client = gateway.client();
    let latency = |account| {
        let began = Instant::now();
        result(&ask(&mut client, GET_BALANCE, &balance_params(account, "0x10")));
        began.elapsed()
    };
    (from..from + calls).map(latency).max().unwrap()
}

#[test]
fn hedges_bound_the_latency_of_a_node_that_sometimes_stalls() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let gateway = start_hedging_gateway(&[&a, &b], "10s");
    longest_latency(&gateway, 0, 200);
    assert_eq!(gateway.status_u64("/totals/hedges"), 0);
    let stalls = FaultRule {
        method: Some(GET_BALANCE.to_owned()),
        times: Some(8),
        ..FaultRule::always(Fault::Hang)
    };
    a.set_fault(stalls);
    let slowest = longest_latency(&gateway, 200, 100);
    // Without hedges, each stalled call would take ten seconds, the deadline of an attempt.
    assert!(slowest >= Duration::from_millis(100), "no call stalled");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    assert_eq!(a.node.counters().faults, 8);
    assert!(gateway.status_u64("/totals/hedges_won") >= 8);
    let hedges = gateway.status_u64("/totals/hedges");
    assert!((8..=300 / 20).contains(&hedges), "{hedges} hedges of 300 calls, allowed are 5 %");
    // A call whose hedge was faster counts neither as failed nor as retried.
    let retries = gateway.status_u64("/totals/retries");
    assert_eq!((gateway.upstream(0, "failed"), retries), (0.into(), 0));
}

#[test]
fn a_node_that_always_stalls_delays_few_calls() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let gateway = start_hedging_gateway(&[&a, &b], "10s");
    longest_latency(&gateway, 0, 100);
    let method = Some(GET_BALANCE.to_owned());
    a.set_fault(FaultRule { method, ..FaultRule::always(Fault::Hang) });
    let slowest = longest_latency(&gateway, 100, 100);
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let hedges = gateway.status_u64("/totals/hedges");
    let retries = gateway.status_u64("/totals/retries");
    assert!((5..=10).contains(&hedges), "{hedges} hedges of 200 calls, allowed are 5 %");
    // A call that stalls without a hedge makes the gateway suspect the node. A successful poll
    // clears the first suspicion. The second suspicion ejects the node.
    assert!((2..=3).contains(&retries), "{retries} calls were retried elsewhere");
    assert_eq!(a.node.counters().faults, hedges + retries);
}
