//! Load balancing: weighted round robin, by a hash, by load, backups and groups.

use std::collections::BTreeMap;

use crate::support::harness::{
    FINALIZED_BLOCK, GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, ask_with_header,
    balance_params, chain_polled_often, chain_polled_once, result, upstream_of, wait_until_idle,
};
use test_support::raw::Client;
use test_support::wait::wait_until;

/// Turns off the cache and coalescing, so that every call reaches a node.
const UNCACHED: &str = "[cache]\nenabled = false\ncoalesce = false\n";

/// Reads an account's balance and returns the name of the upstream that responded.
fn upstream_of_read(client: &mut Client, account: u64) -> String {
    upstream_of(&ask(client, GET_BALANCE, &balance_params(account, "0x10"))).to_owned()
}

/// Counts how often each name occurs.
fn counts(names: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn weights_5_1_1_give_the_order_of_nginx() {
    let runtime = NodeRuntime::start();
    let [a, b, c] = runtime.nodes(["a", "b", "c"]);
    let gateway = TestGateway::start(&format!(
        "{UNCACHED}[call]\nbalance = \"weighted\"\nhedge = false\n{}{}{}{}",
        chain_polled_once(""),
        a.to_toml("weight = 5"),
        b.to_toml(""),
        c.to_toml("")
    ));
    gateway.wait_for_candidates(&["a", "b", "c"]);
    wait_until_idle(&[&a, &b, &c]);
    let before = [&a, &b, &c].map(SimNode::calls);
    let mut client = gateway.client();
    let order: Vec<String> =
        (0..70).map(|account| upstream_of_read(&mut client, account)).collect();
    // The order of nginx's commit 52327e0627f4 ("smooth weighted round-robin balancing").
    assert_eq!(order, ["a", "a", "b", "a", "c", "a", "a"].repeat(10));
    let after = [&a, &b, &c].map(SimNode::calls);
    let reached: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(reached, [50, 10, 10]);
}

#[test]
fn equal_calls_go_to_one_node_and_different_ones_to_all() {
    let runtime = NodeRuntime::start();
    let [a, b, c] = runtime.nodes(["a", "b", "c"]);
    let call = "[call]\nbalance = \"hash\"\nhedge = false\n";
    let text = format!("{UNCACHED}{call}{}", chain_polled_once(""));
    // Two gateways must choose the same nodes.
    let gateways = [(); 2].map(|()| TestGateway::in_front_of(&[&a, &b, &c], &text));
    let nodes_by_gateway = gateways.each_ref().map(|gateway| {
        let mut client = gateway.client();
        let mut node_of = |account| {
            let [first, second] = [(); 2].map(|()| upstream_of_read(&mut client, account));
            assert_eq!(first, second, "call {account} moved");
            first
        };
        (0..90).map(&mut node_of).collect::<Vec<String>>()
    });
    assert_eq!(nodes_by_gateway[0], nodes_by_gateway[1]);
    let counts = counts(&nodes_by_gateway[0]);
    assert!(counts.len() == 3 && counts.values().all(|count| *count >= 15), "{counts:?}");
}

#[test]
fn a_header_as_hash_key_keeps_a_user_on_one_node() {
    let runtime = NodeRuntime::start();
    let [a, b, c] = runtime.nodes(["a", "b", "c"]);
    let gateway = TestGateway::in_front_of(
        &[&a, &b, &c],
        &format!(
            "{UNCACHED}[call]\nbalance = \"hash\"\nhash_key = \"header:x-user\"\nhedge = false\n{}",
            chain_polled_once("")
        ),
    );
    let mut client = gateway.client();
    let mut first_nodes = Vec::new();
    for user in 0..30 {
        let header = format!("X-User: {user}");
        let mut node_of = |account| {
            let params = balance_params(account, "0x10");
            let answer = ask_with_header(&mut client, &header, GET_BALANCE, &params);
            upstream_of(&answer).to_owned()
        };
        let first_node = node_of(0);
        for account in 1..4 {
            assert_eq!(node_of(account), first_node, "user {user} moved");
        }
        first_nodes.push(first_node);
    }
    let counts = counts(&first_nodes);
    assert!(counts.len() == 3 && counts.values().all(|count| *count >= 4), "{counts:?}");
}

#[test]
fn the_faster_of_two_nodes_gets_most_calls() {
    for (fast, slow) in [(0, 1), (1, 0)] {
        let runtime = NodeRuntime::start();
        let nodes = runtime.nodes(["a", "b"]);
        nodes[fast].set_latency(GET_BALANCE, 5.0);
        nodes[slow].set_latency(GET_BALANCE, 100.0);
        let gateway = TestGateway::in_front_of(
            &[&nodes[0], &nodes[1]],
            &format!("{UNCACHED}[call]\nhedge = false\n{}", chain_polled_once("")),
        );
        let before = nodes.each_ref().map(SimNode::calls);
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let mut client = gateway.client();
                scope.spawn(move || {
                    for number in 0..25 {
                        let params = balance_params(worker * 100 + number, "0x10");
                        result(&ask(&mut client, GET_BALANCE, &params));
                    }
                });
            }
        });
        let calls_of = |index: usize| nodes[index].calls() - before[index];
        assert_eq!(calls_of(fast) + calls_of(slow), 200);
        assert!(calls_of(fast) >= 160, "fast {} slow {}", calls_of(fast), calls_of(slow));
        assert!(calls_of(slow) >= 1, "the slow node was never tried");
    }
}

#[test]
fn a_backup_serves_only_while_the_primary_is_down() {
    let runtime = NodeRuntime::start();
    let [primary, backup] = runtime.nodes(["primary", "backup"]);
    let gateway = TestGateway::start(&format!(
        "{UNCACHED}[health]\nbackoff_min = \"100ms\"\n{}{}{}",
        chain_polled_often(""),
        primary.to_toml(""),
        backup.to_toml("backup = true")
    ));
    gateway.wait_for_candidates(&["primary"]);
    wait_until("both heads are seen", || !gateway.upstream(1, "head").is_null());
    let mut client = gateway.client();
    let mut account = 0;
    let mut assert_served_by = |name: &str, calls: u64| {
        for _ in 0..calls {
            account += 1;
            let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "0x10"));
            result(&answer);
            assert_eq!(upstream_of(&answer), name, "call {account}");
        }
    };
    assert_served_by("primary", 30);
    assert_eq!(gateway.attempts(1), 0);
    primary.stop_listening();
    // No call fails, even before the gateway notices that the node is down.
    assert_served_by("backup", 20);
    gateway.wait_for_candidates(&["backup"]);
    let attempts_before = gateway.attempts(0);
    assert_served_by("backup", 30);
    assert_eq!(gateway.attempts(0), attempts_before, "an ejected node was called");
    primary.listen_again();
    gateway.wait_for_candidates(&["primary"]);
    assert_served_by("primary", 30);
    assert_eq!(gateway.attempts(1), 50);
    assert_eq!(gateway.upstream(0, "readmissions"), 1);
}

#[test]
fn methods_of_a_group_go_only_to_its_nodes() {
    let runtime = NodeRuntime::start();
    let [full, archive] = runtime.nodes(["full", "archive"]);
    let gateway = TestGateway::start(&format!(
        "{UNCACHED}[call]\nbalance = \"weighted\"\n{}{}{}\
         [[group]]\nname = \"heavy\"\nupstreams = [\"archive\"]\n\
         methods = [\"eth_getLogs\", \"debug_*\"]\n",
        chain_polled_once(""),
        full.to_toml(""),
        archive.to_toml("")
    ));
    gateway.wait_for_candidates(&["full", "archive"]);
    wait_until_idle(&[&full, &archive]);
    let (full_before, archive_before) = (full.calls(), archive.calls());
    let mut client = gateway.client();
    for block in 1..=10 {
        let filter =
            format!(r#"[{{"fromBlock":"0x{block:x}","toBlock":"0x{FINALIZED_BLOCK:x}"}}]"#);
        for (method, params) in
            [("eth_getLogs", filter), ("debug_traceBlockByNumber", balance_params(block, "0x1"))]
        {
            assert_eq!(upstream_of(&ask(&mut client, method, &params)), "archive", "{method}");
        }
    }
    assert_eq!(full.calls(), full_before);
    // The node does not serve traces, and is not called again after it has said so three times.
    assert_eq!(archive.calls(), archive_before + 13);
    let others: Vec<String> =
        (0..10).map(|account| upstream_of_read(&mut client, account)).collect();
    assert_eq!(counts(&others), BTreeMap::from([("archive", 5), ("full", 5)]));
}
