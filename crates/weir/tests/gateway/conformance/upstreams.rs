//! The scenarios of nginx's own tests of `proxy_next_upstream`: which failures are retried at the
//! next node, how often, and for how long. A node's bare HTTP status is not a JSON-RPC response, so
//! the gateway never passes it on.

use std::time::{Duration, Instant};

use super::{Group, Judged};
use crate::support::line::{Instead, Line, status};
use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, body, by, error, polled_once, result,
    wait_for_quiet,
};
use test_support::raw::Response;
use test_support::wait::wait_until;

const ONCE: Judged = Judged::Not(
    "`no_live` asks the same servers again once all were asked; here a call asks each node once",
);
const NAMES: Judged = Judged::Not(
    "a name is resolved when a connection is made; a node is one URL, however many addresses it has",
);

pub(super) const GROUPS: [Group; 10] = [
    Group::new(
        "proxy_next_upstream.t",
        3,
        "a 404 goes to the next and takes nobody out",
        Judged::here("upstreams", "a_404_goes_to_the_next_and_takes_nobody_out"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        3,
        "a 500 goes to the next and takes its node out",
        Judged::here("upstreams", "a_500_goes_to_the_next_and_takes_its_node_out"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        3,
        "all are tried once, and none that is down",
        Judged::here("upstreams", "all_are_tried_once_and_none_that_is_down"),
    ),
    Group::new(
        "proxy_next_upstream.t",
        1,
        "each call of several has tries of its own",
        Judged::here("upstreams", "each_call_has_tries_of_its_own"),
    ),
    Group::new("proxy_next_upstream.t", 4, "no_live", ONCE),
    Group::new(
        "proxy_next_upstream_tries.t",
        3,
        "so many tries, backups among them",
        Judged::here("upstreams", "there_are_so_many_tries"),
    ),
    Group::new("proxy_next_upstream_tries.t", 1, "tries over the addresses of a name", NAMES),
    Group::new(
        "proxy_next_upstream_tries.t",
        3,
        "tries end with the time",
        Judged::here("upstreams", "tries_end_with_the_time"),
    ),
    Group::new("proxy_next_upstream_tries.t", 1, "time over the addresses of a name", NAMES),
    // From the directive's documentation: each kind of failure, and calls that must not be retried.
    Group::new(
        "proxy_next_upstream, by kind",
        14,
        "kinds of failure, for calls that may be repeated and others",
        Judged::here("upstreams", "kinds_of_failure_go_to_the_next_where_that_is_safe"),
    ),
];

/// Weighted round robin without hedging, and with an ample retry budget.
const IN_TURN: &str = "[call]\nbalance = \"weighted\"\nhedge = false\nretry_rate_min = 1000\n";
/// Never ejects a node for its failures.
const PATIENT: &str = "[health]\nfailures_max = 1000\nwindow_calls_min = 100000\n";
/// An unknown method: it may have side effects, so it is not retried.
const UNKNOWN: &str = "weir_doSomething";

/// Starts a gateway with these `[[upstream]]` tables and waits until all `nodes` are candidates.
fn served(nodes: &[&SimNode], entries: &[String], text: &str) -> Served {
    let served = Served::start(&format!("{text}{}{}", polled_once(""), entries.concat()));
    let names: Vec<&str> = nodes.iter().map(|node| node.name).collect();
    served.wait_for_candidates(&names);
    wait_for_quiet(nodes);
    served
}

fn read(served: &Served, number: u64) -> Response {
    ask(&mut served.client(), READ, &account(number, "0x10"))
}

#[test]
fn a_404_goes_to_the_next_and_takes_nobody_out() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let line = Line::before(&a, READ, status(404, ""));
    let served = served(&[&a, &b], &[line.entry(""), b.entry("")], IN_TURN);
    for number in [1, 2] {
        let answer = read(&served, number);
        assert_eq!((result(&answer), by(&answer)), (b.result(READ, &account(number, "0x10")), "b"));
    }
    assert!(line.met() >= 1, "the faulty node was never called");
    // The node still gets calls of other methods.
    let answers = [0, 1].map(|_| ask(&mut served.client(), "eth_getCode", &account(1, "0x10")));
    assert!(
        answers
            .iter()
            .any(|answer| by(answer) == "a" || crate::support::scene::mark(answer) == "hit")
    );
    assert_eq!(served.upstream(0, "ejections"), 0);
}

#[test]
fn a_500_goes_to_the_next_and_takes_its_node_out() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let line = Line::before(&a, READ, status(500, ""));
    // Like nginx's `max_fails`, whose default is one.
    let text = format!("{IN_TURN}[health]\nfailures_max = 1\nbackoff_min = \"1m\"\n");
    let served = served(&[&a, &b], &[line.entry(""), b.entry("")], &text);
    for number in [1, 2] {
        assert_eq!(by(&read(&served, number)), "b");
    }
    assert_eq!((line.met(), served.upstream(0, "ejections")), (1, 1.into()));
    let attempts = served.attempts(0);
    for number in 0..4 {
        assert_eq!(by(&ask(&mut served.client(), "eth_getCode", &account(number, "0x10"))), "b");
    }
    assert_eq!(served.attempts(0), attempts, "an ejected node was called");
}

#[test]
fn all_are_tried_once_and_none_that_is_down() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let first = Line::before(&a, READ, status(404, ""));
    let second = Line::before(&b, READ, status(404, ""));
    let text = format!("{IN_TURN}{PATIENT}");
    let served = served(&[&a, &b], &[first.entry(""), second.entry("")], &text);
    let failure = error(&read(&served, 1));
    assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
    assert_eq!((first.met(), second.met()), (1, 1));
    // More retries would be allowed, but every node has been tried.
    assert_eq!(served.count("/totals/retries"), 1);
    drop(served);

    let [a, b] = scene.nodes(["a", "b"]);
    let first = Line::before(&a, READ, status(404, ""));
    b.down();
    let served =
        Served::start(&format!("{text}{}{}{}", polled_once(""), first.entry(""), b.entry("")));
    served.wait_for_candidates(&["a"]);
    let failure = error(&read(&served, 1));
    assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
    assert_eq!((first.met(), served.attempts(1)), (1, 0));
}

#[test]
fn each_call_has_tries_of_its_own() {
    let scene = Scene::set();
    let [a, b] = scene.nodes(["a", "b"]);
    let first = Line::before(&a, READ, status(404, ""));
    let second = Line::before(&b, READ, status(404, ""));
    let text = format!("{IN_TURN}retries_max = 1\n{PATIENT}");
    let served = served(&[&a, &b], &[first.entry(""), second.entry("")], &text);
    let calls =
        [1, 2].map(|number| String::from_utf8(body(READ, &account(number, "0x10"))).unwrap());
    let answer = served.client().call("/", format!("[{}]", calls.join(",")).as_bytes());
    assert_eq!(answer.text().matches("-32603").count(), 2, "{}", answer.text());
    assert_eq!((first.met(), second.met()), (2, 2));
}

#[test]
fn there_are_so_many_tries() {
    let scene = Scene::set();
    // Maximum of retries, further lines of the other nodes, expected number of calls to nodes.
    for (retries, more, expected) in [(1, "", 2), (1, "backup = true", 2), (2, "", 3)] {
        let [a, b, c] = scene.nodes(["a", "b", "c"]);
        let lines = [&a, &b, &c].map(|node| Line::before(node, READ, status(404, "")));
        let entries = [lines[0].entry(""), lines[1].entry(more), lines[2].entry(more)];
        let text = format!("{IN_TURN}retries_max = {retries}\n{PATIENT}");
        // Backups are chosen only where nobody else can be.
        let nodes: &[&SimNode] = if more.is_empty() { &[&a, &b, &c] } else { &[&a] };
        let served = served(nodes, &entries, &text);
        let failure = error(&read(&served, 1));
        assert_eq!((failure.0, failure.1), (502, -32603), "{}", failure.2);
        let met = lines.each_ref().map(Line::met);
        let total = met.iter().sum::<usize>();
        assert_eq!(total, expected, "{met:?} with {retries} retries {more}");
    }
}

#[test]
fn tries_end_with_the_time() {
    let scene = Scene::set();
    let slow = || {
        let Instead::Bytes(answer) = status(404, "") else { unreachable!("a status is bytes") };
        Instead::Late(Duration::from_millis(600), answer)
    };
    // Deadline of the call, further lines of the other nodes, expected number of calls to nodes.
    // At the deadline nginx starts no further attempt; the gateway also ends the current one.
    for (deadline, more, expected) in [("1s", "", 2), ("1s", "backup = true", 2), ("30s", "", 3)] {
        let [a, b, c] = scene.nodes(["a", "b", "c"]);
        let lines = [&a, &b, &c].map(|node| Line::before(node, READ, slow()));
        let entries = [lines[0].entry(""), lines[1].entry(more), lines[2].entry(more)];
        let text = format!(
            "{IN_TURN}retries_max = 2\ndeadline = \"{deadline}\"\nattempt_deadline = \"{deadline}\"\n{PATIENT}"
        );
        // Backups are chosen only where nobody else can be.
        let nodes: &[&SimNode] = if more.is_empty() { &[&a, &b, &c] } else { &[&a] };
        let served = served(nodes, &entries, &text);
        let began = Instant::now();
        let failure = error(&read(&served, 1));
        assert!(matches!(failure.0, 502 | 504), "{failure:?}");
        let met = lines.each_ref().map(Line::met);
        assert_eq!(met.iter().sum::<usize>(), expected, "{met:?} within {deadline} {more}");
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
    let scene = Scene::set();
    let bytes = |bytes: &[u8]| Instead::Bytes(bytes.to_vec());
    // The kind of failure, and what the first node does.
    let kinds: [(&str, Instead); 14] = [
        ("error: the connection ends", Instead::Close),
        ("timeout", Instead::Silence),
        ("invalid_header: no HTTP", bytes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
        (
            "invalid_header: two lengths",
            bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        ),
        ("invalid_header: cut short", bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}")),
        ("http_500", status(500, "")),
        ("http_502", status(502, "")),
        ("http_503", status(503, "")),
        ("http_504", status(504, "")),
        ("http_403", status(403, "")),
        ("http_404", status(404, "")),
        ("http_429", status(429, "")),
        ("http_429 with a time", status(429, "Retry-After: 1\r\n")),
        ("a redirect", status(302, "Location: /login\r\n")),
    ];
    assert_eq!(kinds.len(), GROUPS[9].scenarios);
    for (name, instead) in kinds {
        for method in [READ, UNKNOWN] {
            let [a, b] = scene.nodes(["a", "b"]);
            let line = Line::before(&a, method, instead.clone());
            let text = format!("{IN_TURN}attempt_deadline = \"500ms\"\n{PATIENT}");
            // By the weights, the second node is called only if the first fails.
            let entries = [line.entry("weight = 1000"), b.entry("")];
            let served = served(&[&a, &b], &entries, &text);
            let answer = ask(&mut served.client(), method, &account(1, "0x10"));
            assert_eq!(line.met(), 1, "{name}, {method}");
            if method == READ {
                assert_eq!(result(&answer), b.result(READ, &account(1, "0x10")), "{name}");
                assert_eq!(by(&answer), "b", "{name}");
            } else {
                // The node may have executed the call, so only the client can decide to retry.
                let (status, ..) = error(&answer);
                assert!(status >= 400, "{name}: {status}");
                assert_eq!(served.attempts(1), 0, "{name}: the call was retried");
            }
        }
    }
    // A call that was never sent may be retried, whatever its method.
    let [a, b] = scene.nodes(["a", "b"]);
    let served = served(&[&a, &b], &[a.entry("weight = 1000"), b.entry("")], IN_TURN);
    a.down();
    let answer = ask(&mut served.client(), UNKNOWN, "[]");
    assert_eq!((by(&answer), error(&answer).1), ("b", -32601));
    wait_until("the retry is counted", || served.count("/totals/retries") == 1);
}
