//! The scenarios of nginx's own tests of `proxy_next_upstream`: which failures the gateway retries
//! at the next node, how often, and for how long. If a node sends an HTTP status without a JSON-RPC
//! response, the gateway never forwards that status to the client.

use std::time::{Duration, Instant};

use super::{Coverage, Group};
use crate::support::harness::{
    self, GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, body,
    chain_polled_once, error, result, upstream_of, wait_until_idle,
};
use crate::support::tampering_proxy::{Tampering, TamperingProxy, respond_with_status};
use test_support::raw::Response;
use test_support::wait::wait_until;

const ONCE: Coverage = Coverage::NotApplicable(
    "`no_live` asks the same servers again once all were asked; here a call asks each node once",
);
const NAMES: Coverage = Coverage::NotApplicable(
    "a name is resolved when a connection is made; a node is one URL, however many addresses it has",
);

pub(super) const GROUPS: [Group; 10] = [
    Group::new(
        "proxy_next_upstream.t",
        3,
        "a 404 goes to the next and takes nobody out",
        Coverage::here("upstreams", "a_404_goes_to_the_next_and_takes_nobody_out"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        3,
        "a 500 goes to the next and takes its node out",
        Coverage::here("upstreams", "a_500_goes_to_the_next_and_takes_its_node_out"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        3,
        "all are tried once, and none that is down",
        Coverage::here("upstreams", "all_are_tried_once_and_none_that_is_down"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        1,
        "each call of several has tries of its own",
        Coverage::here("upstreams", "each_call_has_tries_of_its_own"),
    ),
    Group::new("proxy_next_upstream.t", 4, "no_live", ONCE),
    Group::new(
        "proxy_next_upstream_tries.t",
        3,
        "so many tries, backups among them",
        Coverage::here("upstreams", "there_are_so_many_tries"),
    ),
    Group::new("proxy_next_upstream_tries.t", 1, "tries over the addresses of a name", NAMES),
    Group::new(
        "proxy_next_upstream_tries.t",
        3,
        "tries end with the time",
        Coverage::here("upstreams", "tries_end_with_the_time"),
    ),
    Group::new("proxy_next_upstream_tries.t", 1, "time over the addresses of a name", NAMES),
    // These scenarios are from the documentation of the directive: each kind of failure, and calls
    // that must not be retried.
    Group::new(
        "proxy_next_upstream, by kind",
        14,
        "kinds of failure, for calls that may be repeated and others",
        Coverage::here("upstreams", "kinds_of_failure_go_to_the_next_where_that_is_safe"),
    ),
];

/// Weighted round robin without hedging, and with a large retry budget.
const ROUND_ROBIN: &str = "[call]\nbalance = \"weighted\"\nhedge = false\nretry_rate_min = 1000\n";
/// With this table, the gateway never ejects a node for its failures.
const NO_EJECTION: &str = "[health]\nfailures_max = 1000\nwindow_calls_min = 100000\n";
/// An unknown method. The gateway does not retry it, because it may have side effects.
const UNKNOWN: &str = "weir_doSomething";

/// Starts a gateway with these `[[upstream]]` tables. Waits until the gateway may send calls to all
/// `nodes`.
fn start_gateway(nodes: &[&SimNode], upstreams: &[String], text: &str) -> TestGateway {
    let chain = chain_polled_once("");
    let gateway = TestGateway::start(&format!("{text}{chain}{}", upstreams.concat()));
    let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
    gateway.wait_for_candidates(&names);
    wait_until_idle(nodes);
    gateway
}

fn read_balance(gateway: &TestGateway, account: u64) -> Response {
    ask(&mut gateway.client(), GET_BALANCE, &balance_params(account, "0x10"))
}

#[test]
fn a_404_goes_to_the_next_and_takes_nobody_out() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let proxy = TamperingProxy::in_front_of(&a, GET_BALANCE, respond_with_status(404, ""));
    let gateway = start_gateway(&[&a, &b], &[proxy.to_toml(""), b.to_toml("")], ROUND_ROBIN);
    for account in [1, 2] {
        let answer = read_balance(&gateway, account);
        let expected = b.call(GET_BALANCE, &balance_params(account, "0x10"));
        assert_eq!((result(&answer), upstream_of(&answer)), (expected, "b"));
    }
    assert!(proxy.matching_calls() >= 1, "the faulty node was never called");
    // The node still gets calls of other methods.
    let params = balance_params(1, "0x10");
    let answers = [0, 1].map(|_| ask(&mut gateway.client(), "eth_getCode", &params));
    assert!(
        answers
            .iter()
            .any(|answer| upstream_of(answer) == "a" || harness::cache_status(answer) == "hit")
    );
    assert_eq!(gateway.upstream(0, "ejections"), 0);
}

#[test]
fn a_500_goes_to_the_next_and_takes_its_node_out() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let proxy = TamperingProxy::in_front_of(&a, GET_BALANCE, respond_with_status(500, ""));
    // Like nginx's `max_fails`, whose default is one.
    let text = format!("{ROUND_ROBIN}[health]\nfailures_max = 1\nbackoff_min = \"1m\"\n");
    let gateway = start_gateway(&[&a, &b], &[proxy.to_toml(""), b.to_toml("")], &text);
    for account in [1, 2] {
        assert_eq!(upstream_of(&read_balance(&gateway, account)), "b");
    }
    assert_eq!((proxy.matching_calls(), gateway.upstream(0, "ejections")), (1, 1.into()));
    let attempts = gateway.attempts(0);
    for account in 0..4 {
        let params = balance_params(account, "0x10");
        assert_eq!(upstream_of(&ask(&mut gateway.client(), "eth_getCode", &params)), "b");
    }
    assert_eq!(gateway.attempts(0), attempts, "an ejected node was called");
}

#[test]
fn all_are_tried_once_and_none_that_is_down() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let first = TamperingProxy::in_front_of(&a, GET_BALANCE, respond_with_status(404, ""));
    let second = TamperingProxy::in_front_of(&b, GET_BALANCE, respond_with_status(404, ""));
    let text = format!("{ROUND_ROBIN}{NO_EJECTION}");
    let gateway = start_gateway(&[&a, &b], &[first.to_toml(""), second.to_toml("")], &text);
    let failure = error(&read_balance(&gateway, 1));
    assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
    assert_eq!((first.matching_calls(), second.matching_calls()), (1, 1));
    // More retries would be allowed, but every node has been tried.
    assert_eq!(gateway.status_u64("/totals/retries"), 1);
    drop(gateway);

    let [a, b] = runtime.nodes(["a", "b"]);
    let first = TamperingProxy::in_front_of(&a, GET_BALANCE, respond_with_status(404, ""));
    b.stop_listening();
    let upstreams = [first.to_toml(""), b.to_toml("")].concat();
    let gateway = TestGateway::start(&format!("{text}{}{upstreams}", chain_polled_once("")));
    gateway.wait_for_candidates(&["a"]);
    let failure = error(&read_balance(&gateway, 1));
    assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
    assert_eq!((first.matching_calls(), gateway.attempts(1)), (1, 0));
}

#[test]
fn each_call_has_tries_of_its_own() {
    let runtime = NodeRuntime::start();
    let [a, b] = runtime.nodes(["a", "b"]);
    let first = TamperingProxy::in_front_of(&a, GET_BALANCE, respond_with_status(404, ""));
    let second = TamperingProxy::in_front_of(&b, GET_BALANCE, respond_with_status(404, ""));
    let text = format!("{ROUND_ROBIN}retries_max = 1\n{NO_EJECTION}");
    let gateway = start_gateway(&[&a, &b], &[first.to_toml(""), second.to_toml("")], &text);
    let calls = [1, 2].map(|account| {
        String::from_utf8(body(GET_BALANCE, &balance_params(account, "0x10"))).unwrap()
    });
    let answer = gateway.client().call("/", format!("[{}]", calls.join(",")).as_bytes());
    assert_eq!(answer.text().matches("-32603").count(), 2, "{}", answer.text());
    assert_eq!((first.matching_calls(), second.matching_calls()), (2, 2));
}

#[test]
fn there_are_so_many_tries() {
    let runtime = NodeRuntime::start();
    // `retries_max`, further keys of the upstreams `b` and `c`, expected number of calls to nodes.
    for (retries, more, expected) in [(1, "", 2), (1, "backup = true", 2), (2, "", 3)] {
        let [a, b, c] = runtime.nodes(["a", "b", "c"]);
        let not_found = || respond_with_status(404, "");
        let proxies =
            [&a, &b, &c].map(|node| TamperingProxy::in_front_of(node, GET_BALANCE, not_found()));
        let upstreams =
            [proxies[0].to_toml(""), proxies[1].to_toml(more), proxies[2].to_toml(more)];
        let text = format!("{ROUND_ROBIN}retries_max = {retries}\n{NO_EJECTION}");
        // Backups are not candidates while another upstream is one.
        let nodes: &[&SimNode] = if more.is_empty() { &[&a, &b, &c] } else { &[&a] };
        let gateway = start_gateway(nodes, &upstreams, &text);
        let failure = error(&read_balance(&gateway, 1));
        assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
        let matching_calls = proxies.each_ref().map(TamperingProxy::matching_calls);
        let total = matching_calls.iter().sum::<usize>();
        assert_eq!(total, expected, "{matching_calls:?} with {retries} retries {more}");
    }
}

#[test]
fn tries_end_with_the_time() {
    let runtime = NodeRuntime::start();
    let slow = || {
        let Tampering::Respond(answer) = respond_with_status(404, "") else {
            unreachable!("a status is bytes")
        };
        Tampering::RespondLate(Duration::from_millis(600), answer)
    };
    // The call's deadline, further keys of the upstreams `b` and `c`, expected number of calls to
    // nodes. After the deadline, nginx starts no further attempt. The gateway also ends the current
    // attempt.
    for (deadline, more, expected) in [("1s", "", 2), ("1s", "backup = true", 2), ("30s", "", 3)] {
        let [a, b, c] = runtime.nodes(["a", "b", "c"]);
        let proxies =
            [&a, &b, &c].map(|node| TamperingProxy::in_front_of(node, GET_BALANCE, slow()));
        let upstreams =
            [proxies[0].to_toml(""), proxies[1].to_toml(more), proxies[2].to_toml(more)];
        let text = format!(
            "{ROUND_ROBIN}retries_max = 2\ndeadline = \"{deadline}\"\n\
             attempt_deadline = \"{deadline}\"\n{NO_EJECTION}"
        );
        // Backups are not candidates while another upstream is one.
        let nodes: &[&SimNode] = if more.is_empty() { &[&a, &b, &c] } else { &[&a] };
        let gateway = start_gateway(nodes, &upstreams, &text);
        let began = Instant::now();
        let failure = error(&read_balance(&gateway, 1));
        assert!(matches!(failure.0, 502 | 504), "{failure:?}");
        let matching_calls = proxies.each_ref().map(TamperingProxy::matching_calls);
        let total = matching_calls.iter().sum::<usize>();
        assert_eq!(total, expected, "{matching_calls:?} within {deadline} {more}");
        assert_eq!(
            began.elapsed() < Duration::from_millis(1500),
            expected == 2,
            "{:?}",
            began.elapsed()
        );
    }
}

#[test]
fn kinds_of_failure_go_to_the_next_where_that_is_safe() {
    let runtime = NodeRuntime::start();
    let bytes = |bytes: &[u8]| Tampering::Respond(bytes.to_vec());
    // The kind of failure, and what the first node does.
    let kinds: [(&str, Tampering); 14] = [
        ("error: the connection ends", Tampering::Close),
        ("timeout", Tampering::NeverRespond),
        ("invalid_header: no HTTP", bytes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
        (
            "invalid_header: two lengths",
            bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        ),
        ("invalid_header: cut short", bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}")),
        ("http_500", respond_with_status(500, "")),
        ("http_502", respond_with_status(502, "")),
        ("http_503", respond_with_status(503, "")),
        ("http_504", respond_with_status(504, "")),
        ("http_403", respond_with_status(403, "")),
        ("http_404", respond_with_status(404, "")),
        ("http_429", respond_with_status(429, "")),
        ("http_429 with a time", respond_with_status(429, "Retry-After: 1\r\n")),
        ("a redirect", respond_with_status(302, "Location: /login\r\n")),
    ];
    assert_eq!(kinds.len(), GROUPS[9].scenarios);
    for (name, tampering) in kinds {
        for method in [GET_BALANCE, UNKNOWN] {
            let [a, b] = runtime.nodes(["a", "b"]);
            let proxy = TamperingProxy::in_front_of(&a, method, tampering.clone());
            let text = format!("{ROUND_ROBIN}attempt_deadline = \"500ms\"\n{NO_EJECTION}");
            // The weight makes the gateway call `b` only if `a` fails.
            let upstreams = [proxy.to_toml("weight = 1000"), b.to_toml("")];
            let gateway = start_gateway(&[&a, &b], &upstreams, &text);
            let params = balance_params(1, "0x10");
            let answer = ask(&mut gateway.client(), method, &params);
            assert_eq!(proxy.matching_calls(), 1, "{name}, {method}");
            if method == GET_BALANCE {
                assert_eq!(result(&answer), b.call(GET_BALANCE, &params), "{name}");
                assert_eq!(upstream_of(&answer), "b", "{name}");
            } else {
                // The node may have executed the call, so only the client can decide to retry.
                let (status, ..) = error(&answer);
                assert!(status >= 400, "{name}: {status}");
                assert_eq!(gateway.attempts(1), 0, "{name}: the call was retried");
            }
        }
    }
    // The gateway may retry a call of any method if no node has received the call.
    let [a, b] = runtime.nodes(["a", "b"]);
    let upstreams = [a.to_toml("weight = 1000"), b.to_toml("")];
    let gateway = start_gateway(&[&a, &b], &upstreams, ROUND_ROBIN);
    a.stop_listening();
    let answer = ask(&mut gateway.client(), UNKNOWN, "[]");
    assert_eq!((upstream_of(&answer), error(&answer).1), ("b", -32601));
    wait_until("the retry is counted", || gateway.status_u64("/totals/retries") == 1);
}
