//! Effects of a reload, and what happens to connections when the gateway stops.

use std::time::{Duration, Instant};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, cache_status,
    chain_polled_often, chain_polled_once, result, send, upstream_of, upstream_toml,
};
use test_support::raw::Client;
use test_support::wait::{pause, wait_until};

/// Turns off the cache and coalescing, so that every call reaches a node.
const NO_CACHE: &str = "[cache]\nenabled = false\ncoalesce = false\n";

/// Returns a configuration with these nodes.
fn config(nodes: &[&SimNode], more: &str) -> String {
    format!("{more}\n{}", nodes.iter().map(|node| node.to_toml("")).collect::<String>())
}

#[test]
fn a_new_node_is_used_and_a_removed_one_gets_no_more_calls() {
    let runtime = NodeRuntime::start();
    let [old, both, new] = runtime.nodes(["old", "both", "new"]);
    let more = format!("{NO_CACHE}{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&old, &both], &more);
    let mut client = gateway.client();
    for number in 0..20 {
        result(&ask(&mut client, GET_BALANCE, &balance_params(number, "latest")));
    }
    let keys = gateway.reload(&config(&[&both, &new], &more));
    assert_eq!(keys, ["upstream.old.url", "upstream.new.url"]);
    gateway.wait_for_candidates(&["both", "new"]);
    let before = old.calls();
    let mut by_new = 0;
    for account in 0..100 {
        // The client keeps its connection.
        let answer = ask(&mut client, GET_BALANCE, &balance_params(account, "latest"));
        by_new += u32::from(upstream_of(&answer) == "new");
    }
    assert!(by_new > 10, "{by_new} of 100 calls went to the new node");
    pause(Duration::from_millis(200)); // Sleeps: four poll intervals.
    assert_eq!(old.calls(), before, "the removed node must be neither called nor polled");
}

#[test]
fn replacing_the_only_node_fails_no_call() {
    let runtime = NodeRuntime::start();
    let nodes = runtime.nodes(["a", "b", "c", "d"]);
    let more = format!("{NO_CACHE}{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&nodes[0]], &more);
    let mut client = gateway.client();
    for reload in 1..12 {
        let node = &nodes[reload % 4];
        gateway.reload(&config(&[node], &more));
        let answer = ask(&mut client, GET_BALANCE, &balance_params(reload as u64, "latest"));
        result(&answer);
        assert_eq!(upstream_of(&answer), node.name);
    }
}

#[test]
fn entries_outlive_a_reload_and_name_their_node() {
    let runtime = NodeRuntime::start();
    let [first, second] = runtime.nodes(["first", "second"]);
    let gateway = TestGateway::in_front_of(&[&first], &chain_polled_once(""));
    let mut client = gateway.client();
    let params = balance_params(1, "0x10");
    let answer = ask(&mut client, GET_BALANCE, &params);
    assert_eq!((cache_status(&answer), upstream_of(&answer)), ("miss", "first"));
    // After this reload, another node has the first position. The cache entry still names the node
    // from which its response came.
    gateway.reload(&config(&[&second, &first], &chain_polled_once("")));
    let again = ask(&mut client, GET_BALANCE, &params);
    assert_eq!((cache_status(&again), upstream_of(&again)), ("hit", "first"));
    assert_eq!(result(&again), result(&answer));
    gateway.reload(&config(&[&second], &chain_polled_once("")));
    let orphaned = ask(&mut client, GET_BALANCE, &params);
    assert_eq!((cache_status(&orphaned), result(&orphaned)), ("hit", result(&answer)));
    assert_eq!(orphaned.header("x-weir-upstream"), None, "the node is not configured any more");
}

#[test]
fn a_chain_with_another_id_starts_without_entries() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let id: u64 = {
        let text = node.call("eth_chainId", "[]");
        u64::from_str_radix(text.trim_matches('"').trim_start_matches("0x"), 16).unwrap()
    };
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let mut client = gateway.client();
    let params = balance_params(1, "0x10");
    ask(&mut client, GET_BALANCE, &params);
    assert_eq!(cache_status(&ask(&mut client, GET_BALANCE, &params)), "hit");
    gateway.reload(&config(&[&node], &chain_polled_once(&format!("id = {id}"))));
    gateway.wait_for_candidates(&["node"]);
    assert_eq!(cache_status(&ask(&mut client, GET_BALANCE, &params)), "miss");
}

#[test]
fn a_request_keeps_the_configuration_that_it_started_with() {
    let runtime = NodeRuntime::start();
    let [slow, quick] = runtime.nodes(["slow", "quick"]);
    slow.set_latency(GET_BALANCE, 600.0);
    let more = format!("{NO_CACHE}{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&slow], &more);
    let mut client = gateway.client();
    send(&mut client, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("the call is at the node", || gateway.status_u64("/totals/in_flight") == 1);
    gateway.reload(&config(&[&quick], &format!("[downstream]\nanswer_headers = false\n{more}")));
    let answer = client.read_response().unwrap();
    result(&answer);
    assert_eq!(
        upstream_of(&answer),
        "slow",
        "the node and the headers are those of the old configuration"
    );
    let next = ask(&mut client, GET_BALANCE, &balance_params(1, "latest"));
    result(&next);
    assert_eq!(next.header("x-weir-upstream"), None);
}

#[test]
fn counters_never_decrease() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let more = format!("{NO_CACHE}{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&a, &b], &more);
    let mut client = gateway.client();
    // Returns `None` if the metric is about a node that is not configured at the moment.
    let count = |gateway: &TestGateway, name: &str| -> Option<f64> {
        let text = gateway.get_admin("/metrics");
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
    for reload in 0..4 {
        for number in 0..20 {
            result(&ask(&mut client, GET_BALANCE, &balance_params(number, "latest")));
        }
        let now = series.iter().zip(&before).map(|(name, before)| {
            let now = count(&gateway, name).unwrap_or(*before);
            assert!(now >= *before, "{name}: {now} after {before}");
            now
        });
        let now = now.collect();
        let calls = gateway.status_u64("/totals/calls");
        assert!(calls >= total + 20, "{calls} after {total}");
        (before, total) = (now, calls);
        // The reloads remove node `a`, then add it with another URL, and then with its own URL.
        let other = upstream_toml("a", &b.url(), "");
        let nodes = match reload {
            0 => b.to_toml(""),
            1 => other + &b.to_toml(""),
            _ => b.to_toml("") + &a.to_toml(""),
        };
        gateway.reload(&format!("{more}\n{nodes}"));
    }
    assert!(before[3] > 0.0, "the node that came and went was called");
    assert_eq!(count(&gateway, "weir_config_generation"), Some(5.0));
}

#[test]
fn a_shorter_poll_interval_holds_at_once() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(""));
    let before = node.calls();
    gateway.reload(&config(&[&node], &chain_polled_often("")));
    wait_until("the node is polled", || node.calls() > before + 3);
}

#[test]
fn a_stop_answers_one_more_request_of_each_idle_connection() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let linger = "[server]\ndrain_linger = \"10s\"\ndrain_deadline = \"20s\"\n";
    let text = format!("{}\n{}", chain_polled_often(""), node.to_toml(""));
    let gateway = TestGateway::with_server_table(linger, &text);
    gateway.wait_for_candidates(&["node"]);
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    for client in &mut clients[..3] {
        result(&ask(client, GET_BALANCE, &balance_params(1, "latest")));
    }
    let address = gateway.address.clone();
    let stopping = std::thread::spawn(move || gateway.stop());
    wait_until("no connection is taken", || std::net::TcpStream::connect(&address).is_err());
    for client in &mut clients {
        let answer = ask(client, GET_BALANCE, &balance_params(1, "latest"));
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
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    node.set_latency(GET_BALANCE, 20_000.0);
    let server = "[server]\ndrain_linger = \"200ms\"\ndrain_deadline = \"1s\"\n";
    let text = format!("{}\n{}", chain_polled_often(""), node.to_toml(""));
    let gateway = TestGateway::with_server_table(server, &text);
    gateway.wait_for_candidates(&["node"]);
    let mut idle = gateway.client();
    let mut busy = gateway.client();
    send(&mut busy, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("the call is at the node", || gateway.status_u64("/totals/in_flight") == 1);
    let began = Instant::now();
    let stopping = std::thread::spawn(move || gateway.stop());
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
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let server = "[server]\ndrain_delay = \"1500ms\"\n";
    let text = format!("{}\n{}", chain_polled_often(""), node.to_toml(""));
    let gateway = TestGateway::with_server_table(server, &text);
    gateway.wait_for_candidates(&["node"]);
    assert_eq!(gateway.get_admin("/readyz").status, 200);
    let (address, admin) = (gateway.address.clone(), gateway.admin.clone());
    let stopping = std::thread::spawn(move || gateway.stop());
    let ready = || {
        let mut client = Client::connect(&admin);
        client.send(b"GET /readyz HTTP/1.1\r\nHost: admin\r\n\r\n");
        client.read_response().unwrap().status
    };
    wait_until("the gateway is not ready", || ready() == 503);
    // The gateway still serves as usual.
    let mut client = Client::connect(&address);
    let answer = ask(&mut client, GET_BALANCE, &balance_params(1, "latest"));
    result(&answer);
    assert_eq!(answer.header("connection"), None);
    drop(client);
    assert!(stopping.join().unwrap() >= Duration::from_millis(1500));
}
