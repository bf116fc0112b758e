//! Effects of a reload, and the handling of connections at shutdown.

use std::time::{Duration, Instant};

use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, by, entry, mark, polled_often, polled_once, result,
    send,
};
use test_support::raw::{Client, post};
use test_support::wait::{pause, wait_until};

/// Disables cache and coalescing, so that every call reaches a node.
const NO_CACHE: &str = "[cache]\nenabled = false\ncoalesce = false\n";

/// Returns a configuration with these nodes.
fn text(nodes: &[&SimNode], more: &str) -> String {
    format!("{more}\n{}", nodes.iter().map(|node| node.entry("")).collect::<String>())
}

#[test]
fn a_new_node_is_used_and_a_removed_one_gets_no_more_calls() {
    let scene = Scene::set();
    let [old, both, new] = scene.nodes(["old", "both", "new"]);
    let more = format!("{NO_CACHE}{}", polled_often(""));
    let served = Served::before(&[&old, &both], &more);
    let mut client = served.client();
    for number in 0..20 {
        result(&ask(&mut client, READ, &account(number, "latest")));
    }
    let keys = served.reload(&text(&[&both, &new], &more));
    assert_eq!(keys, ["upstream.old.url", "upstream.new.url"]);
    served.wait_for_candidates(&["both", "new"]);
    let before = old.calls();
    let mut by_new = 0;
    for number in 0..100 {
        // The client keeps its connection.
        by_new += u32::from(by(&ask(&mut client, READ, &account(number, "latest"))) == "new");
    }
    assert!(by_new > 10, "{by_new} of 100 calls went to the new node");
    pause(Duration::from_millis(200)); // Sleeps: four poll intervals.
    assert_eq!(old.calls(), before, "the removed node must be neither called nor polled");
}

#[test]
fn replacing_the_only_node_fails_no_call() {
    let scene = Scene::set();
    let nodes = scene.nodes(["a", "b", "c", "d"]);
    let more = format!("{NO_CACHE}{}", polled_often(""));
    let served = Served::before(&[&nodes[0]], &more);
    let mut client = served.client();
    for turn in 1..12 {
        let node = &nodes[turn % 4];
        served.reload(&text(&[node], &more));
        let answer = ask(&mut client, READ, &account(turn as u64, "latest"));
        result(&answer);
        assert_eq!(by(&answer), node.name);
    }
}

#[test]
fn entries_outlive_a_reload_and_name_their_node() {
    let scene = Scene::set();
    let [first, second] = scene.nodes(["first", "second"]);
    let served = Served::before(&[&first], &polled_once(""));
    let mut client = served.client();
    let params = account(1, "0x10");
    let answer = ask(&mut client, READ, &params);
    assert_eq!((mark(&answer), by(&answer)), ("miss", "first"));
    // Another node gets the first node's index.
    served.reload(&text(&[&second, &first], &polled_once("")));
    let again = ask(&mut client, READ, &params);
    assert_eq!((mark(&again), by(&again)), ("hit", "first"));
    assert_eq!(result(&again), result(&answer));
    served.reload(&text(&[&second], &polled_once("")));
    let orphaned = ask(&mut client, READ, &params);
    assert_eq!((mark(&orphaned), result(&orphaned)), ("hit", result(&answer)));
    assert_eq!(orphaned.header("x-weir-upstream"), None, "the node is not configured any more");
}

#[test]
fn a_chain_with_another_id_starts_without_entries() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let id: u64 = {
        let text = node.result("eth_chainId", "[]");
        u64::from_str_radix(text.trim_matches('"').trim_start_matches("0x"), 16).unwrap()
    };
    let served = Served::before(&[&node], &polled_once(""));
    let mut client = served.client();
    let params = account(1, "0x10");
    ask(&mut client, READ, &params);
    assert_eq!(mark(&ask(&mut client, READ, &params)), "hit");
    served.reload(&text(&[&node], &polled_once(&format!("id = {id}"))));
    served.wait_for_candidates(&["node"]);
    assert_eq!(mark(&ask(&mut client, READ, &params)), "miss");
}

#[test]
fn a_request_keeps_the_configuration_that_it_started_with() {
    let scene = Scene::set();
    let [slow, quick] = scene.nodes(["slow", "quick"]);
    slow.slow(READ, 600.0);
    let more = format!("{NO_CACHE}{}", polled_often(""));
    let served = Served::before(&[&slow], &more);
    let mut client = served.client();
    send(&mut client, READ, &account(1, "latest"));
    wait_until("the call is at the node", || served.count("/totals/in_flight") == 1);
    served.reload(&text(&[&quick], &format!("[downstream]\nanswer_headers = false\n{more}")));
    let answer = client.read_response().unwrap();
    result(&answer);
    assert_eq!(by(&answer), "slow", "the node and the headers are those of the old configuration");
    let next = ask(&mut client, READ, &account(1, "latest"));
    result(&next);
    assert_eq!(next.header("x-weir-upstream"), None);
}

#[test]
fn counters_never_decrease() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let more = format!("{NO_CACHE}{}", polled_often(""));
    let served = Served::before(&[&a, &b], &more);
    let mut client = served.client();
    // `None` if the node is not configured at the moment.
    let count = |served: &Served, name: &str| -> Option<f64> {
        let text = served.look("/metrics");
        let line = text.text().lines().find(|line| line.starts_with(name))?;
        Some(line.rsplit_once(' ')?.1.parse().unwrap())
    };
    let series = [
        "weir_requests_total",
        "weir_connections_accepted_total",
        "weir_calls_total{chain=\"sim\",method=\"eth_getBalance\",cache=\"bypass\"}",
        "weir_upstream_attempts_total{chain=\"sim\",upstream=\"a\",outcome=\"ok\"}",
        "weir_call_duration_seconds_count{chain=\"sim\",method=\"eth_getBalance\"}",
        "weir_reloads_total{outcome=\"applied\"}",
    ];
    let mut before = vec![0.0; series.len()];
    let mut total = 0;
    for turn in 0..4 {
        for number in 0..20 {
            result(&ask(&mut client, READ, &account(number, "latest")));
        }
        let now = series.iter().zip(&before).map(|(name, before)| {
            let now = count(&served, name).unwrap_or(*before);
            assert!(now >= *before, "{name}: {now} after {before}");
            now
        });
        let now = now.collect();
        let calls = served.count("/totals/calls");
        assert!(calls >= total + 20, "{calls} after {total}");
        (before, total) = (now, calls);
        // Configure no node `a`, then `a` with another URL, then the original `a`.
        let other = entry("a", &b.url(), "");
        let nodes = match turn {
            0 => b.entry(""),
            1 => other + &b.entry(""),
            _ => b.entry("") + &a.entry(""),
        };
        served.reload(&format!("{more}\n{nodes}"));
    }
    assert!(before[3] > 0.0, "the node that came and went was called");
    assert_eq!(count(&served, "weir_config_generation"), Some(5.0));
}

#[test]
fn a_shorter_poll_interval_holds_at_once() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let served = Served::before(&[&node], &polled_once(""));
    let before = node.calls();
    served.reload(&text(&[&node], &polled_often("")));
    wait_until("the node is polled", || node.calls() > before + 3);
}

#[test]
fn a_stop_answers_one_more_request_of_each_idle_connection() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let linger = "[server]\ndrain_linger = \"10s\"\ndrain_deadline = \"20s\"\n";
    let text = format!("{}\n{}", polled_often(""), node.entry(""));
    let served = Served::with_server(linger, &text);
    served.wait_for_candidates(&["node"]);
    let mut clients: Vec<Client> = (0..4).map(|_| served.client()).collect();
    for client in &mut clients[..3] {
        result(&ask(client, READ, &account(1, "latest")));
    }
    let address = served.address.clone();
    let stopping = std::thread::spawn(move || served.stop());
    wait_until("no connection is taken", || std::net::TcpStream::connect(&address).is_err());
    for client in &mut clients {
        let answer = ask(client, READ, &account(1, "latest"));
        result(&answer);
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.is_closed());
    }
    assert!(
        stopping.join().unwrap() < Duration::from_secs(10),
        "the stop waits although no connection is open"
    );
}

#[test]
fn a_stop_closes_idle_connections_after_the_linger_and_all_at_the_deadline() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    node.slow(READ, 20_000.0);
    let server = "[server]\ndrain_linger = \"200ms\"\ndrain_deadline = \"1s\"\n";
    let served = Served::with_server(server, &format!("{}\n{}", polled_often(""), node.entry("")));
    served.wait_for_candidates(&["node"]);
    let mut idle = served.client();
    let mut busy = served.client();
    busy.send(&post("/", &crate::support::scene::body(READ, &account(1, "latest"))));
    wait_until("the call is at the node", || served.count("/totals/in_flight") == 1);
    let began = Instant::now();
    let stopping = std::thread::spawn(move || served.stop());
    assert!(idle.is_closed());
    let lingered = began.elapsed();
    assert!(lingered >= Duration::from_millis(200), "closed after {lingered:?}");
    assert!(lingered < Duration::from_millis(900), "closed after {lingered:?}, at the deadline");
    assert!(busy.is_closed(), "the deadline closes busy connections");
    let took = stopping.join().unwrap();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn readiness_ends_before_the_stop_begins() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let server = "[server]\ndrain_delay = \"1500ms\"\n";
    let served = Served::with_server(server, &format!("{}\n{}", polled_often(""), node.entry("")));
    served.wait_for_candidates(&["node"]);
    assert_eq!(served.look("/readyz").status, 200);
    let (address, admin) = (served.address.clone(), served.admin.clone());
    let stopping = std::thread::spawn(move || served.stop());
    let ready = || {
        let mut client = Client::connect(&admin);
        client.send(b"GET /readyz HTTP/1.1\r\nHost: admin\r\n\r\n");
        client.read_response().unwrap().status
    };
    wait_until("the gateway is not ready", || ready() == 503);
    // The gateway still serves as usual.
    let mut client = Client::connect(&address);
    let answer = ask(&mut client, READ, &account(1, "latest"));
    result(&answer);
    assert_eq!(answer.header("connection"), None);
    drop(client);
    assert!(stopping.join().unwrap() >= Duration::from_millis(1500));
}
