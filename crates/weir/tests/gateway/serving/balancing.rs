//! Load balancing: weighted round robin, hashes, load, tiers and groups.

use std::collections::BTreeMap;

use crate::support::scene::{
    FINAL, READ, Scene, Served, SimNode, account, ask, ask_with, by, polled_often, polled_once,
    result, wait_for_quiet,
};
use test_support::wait::wait_until;

/// Every call reaches a node.
const UNCACHED: &str = "[cache]\nenabled = false\ncoalesce = false\n";

fn counts(names: &[String]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn weights_5_1_1_take_turns_as_in_nginx() {
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
    // Two gateways: replicas must agree.
    let gateways = [Served::before(&[&a, &b, &c], &text), Served::before(&[&a, &b, &c], &text)];
    let places = gateways.each_ref().map(|served| {
        let mut client = served.client();
        let mut place = |number| {
            let [first, second] =
                [0, 1].map(|_| by(&ask(&mut client, READ, &account(number, "0x10"))).to_owned());
            assert_eq!(first, second, "call {number} moved");
            first
        };
        (0..90).map(&mut place).collect::<Vec<String>>()
    });
    assert_eq!(places[0], places[1]);
    let counts = counts(&places[0]);
    assert!(counts.len() == 3 && counts.values().all(|count| *count >= 15), "{counts:?}");
}

#[test]
fn a_header_keeps_its_bearer_on_one_node() {
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
    let mut homes = Vec::new();
    for user in 0..30 {
        let line = format!("X-User: {user}");
        let mut place =
            |number| by(&ask_with(&mut client, &line, READ, &account(number, "0x10"))).to_owned();
        let home = place(0);
        for number in 1..4 {
            assert_eq!(place(number), home, "user {user} moved");
        }
        homes.push(home);
    }
    let counts = counts(&homes);
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
        let of = |place: usize| nodes[place].calls() - before[place];
        assert_eq!(of(fast) + of(slow), 200);
        assert!(of(fast) >= 160, "fast {} slow {}", of(fast), of(slow));
        assert!(of(slow) >= 1, "the slow one was never tried");
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
    // No client sees the change, even before it is noticed.
    all_by("backup", 20);
    served.wait_for_candidates(&["backup"]);
    let tried = served.attempts(0);
    all_by("backup", 30);
    assert_eq!(served.attempts(0), tried, "a node that is out was asked");
    primary.up();
    served.wait_for_candidates(&["primary"]);
    all_by("primary", 30);
    assert_eq!(served.attempts(1), 50);
    assert_eq!(served.upstream(0, "readmissions"), 1);
}

#[test]
fn heavy_methods_go_to_the_archive_alone() {
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
