//! Load balancing: weighted round robin, hashes, load, tiers and groups.

use std::collections::BTreeMap;

use crate::support::scene::{
    FINAL, READ, Scene, Served, SimNode, account, ask, ask_with, by, polled_often, polled_once,
    result, wait_for_quiet,
};
use test_support::wait::wait_until;

/// Disables cache and coalescing, so that every call reaches a node.
const UNCACHED: &str = "[cache]\nenabled = false\ncoalesce = false\n";

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
    let scene = Scene::set();
    let [a, b, c] = scene.nodes(["a", "b", "c"]);
    let served = Served::start(&format!(
        "{UNCACHED}[call]\nbalance = \"weighted\"\nhedge = false\n{}{}{}{}",
        polled_once(""),
        a.entry("weight = 5"),
        b.entry(""),
        c.entry("")
    ));
    served.wait_for_candidates(&["a", "b", "c"]);
    wait_for_quiet(&[&a, &b, &c]);
    let before = [&a, &b, &c].map(SimNode::calls);
    let mut client = served.client();
    let turns: Vec<String> = (0..70)
        .map(|number| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned())
        .collect();
    // The order of nginx's commit 52327e0627f4 ("smooth weighted round-robin balancing").
    assert_eq!(turns, ["a", "a", "b", "a", "c", "a", "a"].repeat(10));
    let after = [&a, &b, &c].map(SimNode::calls);
    let reached: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(reached, [50, 10, 10]);
}

#[test]
fn equal_calls_go_to_one_node_and_different_ones_to_all() {
    let scene = Scene::set();
    let [a, b, c] = scene.nodes(["a", "b", "c"]);
    let text = format!("{UNCACHED}[call]\nbalance = \"hash\"\nhedge = false\n{}", polled_once(""));
    // Two gateways must choose the same nodes.
    let gateways = [Served::before(&[&a, &b, &c], &text), Served::before(&[&a, &b, &c], &text)];
    let nodes_by_gateway = gateways.each_ref().map(|served| {
        let mut client = served.client();
        let mut node_of = |number| {
            let [first, second] =
                [0, 1].map(|_| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned());
            assert_eq!(first, second, "call {number} moved");
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
    let scene = Scene::set();
    let [a, b, c] = scene.nodes(["a", "b", "c"]);
    let served = Served::before(
        &[&a, &b, &c],
        &format!(
            "{UNCACHED}[call]\nbalance = \"hash\"\nhash_key = \"header:x-user\"\nhedge = false\n{}",
            polled_once("")
        ),
    );
    let mut client = served.client();
    let mut first_nodes = Vec::new();
    for user in 0..30 {
        let line = format!("X-User: {user}");
        let mut node_of =
            |number| by(&ask_with(&mut client, &line, READ, &account(number, "0x10"))).to_owned();
        let first_node = node_of(0);
        for number in 1..4 {
            assert_eq!(node_of(number), first_node, "user {user} moved");
        }
        first_nodes.push(first_node);
    }
    let counts = counts(&first_nodes);
    assert!(counts.len() == 3 && counts.values().all(|count| *count >= 4), "{counts:?}");
}

#[test]
fn the_faster_of_two_nodes_gets_most_calls() {
    for (fast, slow) in [(0, 1), (1, 0)] {
        let scene = Scene::set();
        let nodes = scene.nodes(["a", "b"]);
        nodes[fast].slow(READ, 5.0);
        nodes[slow].slow(READ, 100.0);
        let served = Served::before(
            &[&nodes[0], &nodes[1]],
            &format!("{UNCACHED}[call]\nhedge = false\n{}", polled_once("")),
        );
        let before = nodes.each_ref().map(SimNode::calls);
        std::thread::scope(|scope| {
            for worker in 0..8 {
                let mut client = served.client();
                scope.spawn(move || {
                    for number in 0..25 {
                        let params = account(worker * 100 + number, "0x10");
                        result(&ask(&mut client, READ, &params));
                    }
                });
            }
        });
        let calls_of = |place: usize| nodes[place].calls() - before[place];
        assert_eq!(calls_of(fast) + calls_of(slow), 200);
        assert!(calls_of(fast) >= 160, "fast {} slow {}", calls_of(fast), calls_of(slow));
        assert!(calls_of(slow) >= 1, "the slow node was never tried");
    }
}

#[test]
fn a_backup_serves_only_while_the_primary_is_down() {
    let scene = Scene::set();
    let [primary, backup] = scene.nodes(["primary", "backup"]);
    let served = Served::start(&format!(
        "{UNCACHED}[health]\nbackoff_min = \"100ms\"\n{}{}{}",
        polled_often(""),
        primary.entry(""),
        backup.entry("backup = true")
    ));
    served.wait_for_candidates(&["primary"]);
    wait_until("both heads are seen", || !served.upstream(1, "head").is_null());
    let mut client = served.client();
    let mut number = 0;
    let mut all_by = |name: &str, calls: u64| {
        for _ in 0..calls {
            number += 1;
            let answer = ask(&mut client, READ, &account(number, "0x10"));
            result(&answer);
            assert_eq!(by(&answer), name, "call {number}");
        }
    };
    all_by("primary", 30);
    assert_eq!(served.attempts(1), 0);
    primary.down();
    // No call fails, even before the gateway notices that the node is down.
    all_by("backup", 20);
    served.wait_for_candidates(&["backup"]);
    let attempts_before = served.attempts(0);
    all_by("backup", 30);
    assert_eq!(served.attempts(0), attempts_before, "an ejected node was called");
    primary.up();
    served.wait_for_candidates(&["primary"]);
    all_by("primary", 30);
    assert_eq!(served.attempts(1), 50);
    assert_eq!(served.upstream(0, "readmissions"), 1);
}

#[test]
fn methods_of_a_group_go_only_to_its_nodes() {
    let scene = Scene::set();
    let [full, archive] = scene.nodes(["full", "archive"]);
    let served = Served::start(&format!(
        "{UNCACHED}[call]\nbalance = \"weighted\"\n{}{}{}\
         [[group]]\nname = \"heavy\"\nupstreams = [\"archive\"]\n\
         methods = [\"eth_getLogs\", \"debug_*\"]\n",
        polled_once(""),
        full.entry(""),
        archive.entry("")
    ));
    served.wait_for_candidates(&["full", "archive"]);
    wait_for_quiet(&[&full, &archive]);
    let (full_before, archive_before) = (full.calls(), archive.calls());
    let mut client = served.client();
    for block in 1..=10 {
        let filter = format!(r#"[{{"fromBlock":"0x{block:x}","toBlock":"0x{FINAL:x}"}}]"#);
        for (method, params) in
            [("eth_getLogs", filter), ("debug_traceBlockByNumber", account(block, "0x1"))]
        {
            assert_eq!(by(&ask(&mut client, method, &params)), "archive", "{method}");
        }
    }
    assert_eq!(full.calls(), full_before);
    assert_eq!(archive.calls(), archive_before + 20);
    let others: Vec<String> = (0..10)
        .map(|number| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned())
        .collect();
    assert_eq!(counts(&others), BTreeMap::from([("archive", 5), ("full", 5)]));
}
