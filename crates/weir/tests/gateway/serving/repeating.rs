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

const IN_TURN: &str = "[call]\nbalance = \"weighted\"\nhedge = false\n";

#[test]
fn a_transaction_that_the_first_node_took_silently_is_a_success() {
    let scene = Scene::set();
    // Of one world, so that both have the same pool.
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
    // A client that sends it again gets what any node says to that.
    let mut direct = test_support::raw::Client::connect(&b.address.to_string());
    let theirs = error(&direct.call("/", &body("eth_sendRawTransaction", &params)));
    assert_eq!((theirs.1, theirs.2.as_str()), (-32000, "already known"));
    let again = ask(&mut client, "eth_sendRawTransaction", &params);
    assert_eq!((by(&again), line.met()), ("b", 1));
    assert_eq!(error(&again), theirs);
}

#[test]
fn a_transaction_that_the_only_node_took_silently_is_a_success() {
    let scene = Scene::set();
    let [a] = scene.nodes(["a"]);
    let line = Line::before(&a, "eth_sendRawTransaction", Instead::CutOnce);
    let served = Served::start(&format!("{IN_TURN}{}{}", polled_once(""), line.entry("")));
    served.wait_for_candidates(&["a"]);
    let (params, hash) = transaction();
    let mut client = served.client();
    // Over a connection that was good before, so that its end may have been at any time.
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
        let (a_before, b_before) = (a.node.tally(), b.calls());
        let answer = ask(&mut served.client(), method, &account(1, "0x10"));
        // A poll follows at once, since the node may be dead: only the call itself is a fault.
        let asked = a.node.tally().faults - a_before.faults;
        if method == READ {
            // What is only read is asked elsewhere.
            result(&answer);
            assert_eq!((by(&answer), asked, b.calls() - b_before), ("b", 1, 1));
        } else {
            let due = "upstream closed the connection before it responded";
            assert_eq!(error(&answer), (502, -32603, due.to_owned()));
            assert_eq!((by(&answer), asked, b.calls() - b_before), ("a", 1, 0));
        }
    }
}

#[test]
fn a_method_that_was_never_sent_goes_to_another_node() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = Served::before(&[&a, &b], &format!("{IN_TURN}{}", polled_once("")));
    a.down();
    // Nothing of it reached the first node, so even this may be asked elsewhere.
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
    let one = client.call("/", notify(1).as_bytes());
    assert_eq!((one.status, one.text(), node.calls() - before), (200, "", 1));
    let two = client.call("/", format!("[{},{}]", notify(2), notify(3)).as_bytes());
    assert_eq!((two.status, two.text(), node.calls() - before), (200, "", 3));
    let mixed = format!(
        "[{},{},{}]",
        notify(4),
        String::from_utf8(body("eth_chainId", "[]")).unwrap(),
        notify(5)
    );
    let mixed = client.call("/", mixed.as_bytes());
    let due =
        format!(r#"[{{"jsonrpc":"2.0","id":7,"result":{}}}]"#, node.result("eth_chainId", "[]"));
    assert_eq!(mixed.text(), due);
    // Four of them reach the node beside the direct call, and so does what has an id.
    assert_eq!(node.calls() - before, 5 + 2);
    assert_eq!(served.count("/totals/notifications"), 5);
}

/// A gateway whose hedges wait 100 ms, before nodes that take turns and are never taken out.
fn hedging(nodes: &[&SimNode], attempt_deadline: &str) -> Served {
    let text = format!(
        "[call]\nbalance = \"weighted\"\nhedge_delay_min = \"100ms\"\nretry_rate_min = 1000\n\
         attempt_deadline = \"{attempt_deadline}\"\n\
         [health]\nfailures_max = 1000\nwindow_calls_min = 100000\n{}",
        polled_once("")
    );
    Served::before(nodes, &text)
}

/// Asks so many different things and gives the slowest's time.
fn slowest(served: &Served, from: u64, calls: u64) -> Duration {
    let mut client = served.client();
    let one = |number| {
        let began = Instant::now();
        result(&ask(&mut client, READ, &account(number, "0x10")));
        began.elapsed()
    };
    (from..from + calls).map(one).max().unwrap()
}

#[test]
fn hedges_bound_the_tail_of_a_node_that_stalls_now_and_then() {
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
    // Without hedges each would have cost the attempt's ten seconds.
    assert!(slowest >= Duration::from_millis(100), "no call stalled");
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    assert_eq!(a.node.tally().faults, 8);
    assert!(served.count("/totals/hedges_won") >= 8);
    let hedges = served.count("/totals/hedges");
    assert!((8..=300 / 20).contains(&hedges), "{hedges} hedges of 300 calls, allowed are 5 %");
    // A call that was outrun counts for nothing against its node, and is not a repeat.
    assert_eq!((served.upstream(0, "failed"), served.count("/totals/retries")), (0.into(), 0));
}

#[test]
fn a_node_that_always_stalls_costs_few_calls_any_time() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let served = hedging(&[&a, &b], "10s");
    slowest(&served, 0, 100);
    a.fail(FaultRule { method: Some(READ.to_owned()), ..FaultRule::always(Fault::Hang) });
    let slowest = slowest(&served, 100, 100);
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let (hedges, retries) = (served.count("/totals/hedges"), served.count("/totals/retries"));
    assert!((5..=10).contains(&hedges), "{hedges} hedges of 200 calls, allowed are 5 %");
    // Calls that the budget does not hedge suspect the node. A poll clears it of the first
    // suspicion; the second ejects it, and no call goes there any more.
    assert!((2..=3).contains(&retries), "{retries} calls began again elsewhere");
    assert_eq!(a.node.tally().faults, hedges + retries);
}
