//! The scenarios of nginx's own tests of `limit_req` and `limit_conn`, over sockets.
//!
//! nginx selects limits by location, and Weir by method. So each location of a scenario is a method
//! here. The tests configure the statuses of the scenarios (501 and 503). Weir's default is 429
//! (RFC 6585, section 4).
//!
//! As in nginx, a limit counts calls in a zone. A zone has a rate and one counter for each key,
//! such as a client address.

use std::time::{Duration, Instant};

use super::{Coverage, Group};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, balance_params, body, chain_polled_once, send,
};
use test_support::raw::{Client, post_with};
use test_support::wait::{pause, wait_until};

pub(super) const GROUPS: [Group; 13] = [
    Group::new(
        "limit_req.t",
        7,
        "rates, statuses, delays and keys",
        Coverage::here("limits", "rates_of_limit_req"),
    ),
    // nginx marks this scenario as failing, because it accepts a request with such a key.
    Group::new(
        "limit_req.t",
        1,
        "a key that is too long",
        Coverage::here("limits", "a_key_that_is_too_long_is_refused"),
    ),
    Group::new(
        "limit_req2.t",
        14,
        "two limits at once, and calls without a key",
        Coverage::here("limits", "two_limits_of_limit_req2"),
    ),
    Group::new(
        "limit_req_delay.t",
        4,
        "a part of a burst waits",
        Coverage::here("limits", "the_delay_of_limit_req_delay"),
    ),
    Group::new(
        "limit_req_dry_run.t",
        6,
        "a dry run only counts",
        Coverage::here("limits", "the_dry_run_of_limit_req"),
    ),
    Group::new(
        "h2_limit_req.t",
        7,
        "bodies of calls that wait, over HTTP/2",
        Coverage::here("frames", "bodies_of_h2_limit_req"),
    ),
    Group::new(
        "limit_conn.t",
        8,
        "zones, keys and statuses",
        Coverage::here("limits", "zones_of_limit_conn"),
    ),
    Group::new(
        "limit_conn.t",
        1,
        "a key that is too long",
        Coverage::here("limits", "a_key_that_is_too_long_is_refused"),
    ),
    Group::new(
        "limit_conn.t",
        1,
        "the level at which a refusal is logged",
        Coverage::NotApplicable(
            "refusals are counted by zone and written to the access log, not to the log",
        ),
    ),
    Group::new(
        "limit_conn_complex.t",
        2,
        "keys of several parts, for rates",
        Coverage::here("limits", "keys_of_several_parts"),
    ),
    Group::new(
        "limit_conn_complex.t",
        2,
        "keys of several parts, in flight",
        Coverage::here("limits", "keys_of_several_parts"),
    ),
    Group::new(
        "limit_conn_dry_run.t",
        5,
        "a dry run only counts",
        Coverage::here("limits", "the_dry_run_of_limit_conn"),
    ),
    Group::new(
        "limit_conn_dry_run.t",
        1,
        "the outcome as a variable of an answer that was not found",
        Coverage::NotApplicable(
            "there is no variable of a limit's outcome; metrics have it by zone",
        ),
    ),
];

// Methods that the gateway answers without a node, so that only the limits affect them.
const ONE: &str = "eth_chainId";
const OTHER: &str = "eth_blockNumber";
const THIRD: &str = "net_version";

fn start_gateway(node: &SimNode, limits: &str) -> TestGateway {
    TestGateway::in_front_of(&[node], &format!("{}{limits}", chain_polled_once("")))
}

/// The HTTP status of a call with these header lines, on a new connection.
fn status(gateway: &TestGateway, lines: &str, method: &str) -> u16 {
    let mut client = gateway.client();
    client.send(&post_with("/", lines, &body(method, "[]")));
    client.read_response().unwrap().status
}

fn zone(name: &str, key: &str, rate: &str) -> String {
    format!("[zone.{name}]\nkey = [{key}]\nrate = \"{rate}\"\n")
}

fn limit(zone: &str, methods: &str, more: &str) -> String {
    format!("[[limit]]\nzone = \"{zone}\"\nmethods = [\"{methods}\"]\n{more}\n")
}

/// Number of calls with this outcome in a zone. `zone` is the position of the zone in the
/// configuration.
fn outcome_count(gateway: &TestGateway, zone: usize, outcome: &str) -> u64 {
    gateway.status_u64(&format!("/zones/{zone}/{outcome}"))
}

#[test]
fn rates_of_limit_req() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let client = "\"client\"";
    let gateway = start_gateway(
        &node,
        &[
            zone("one", client, "2r/s"),
            zone("long", client, "2r/s"),
            zone("fast", client, "1000r/s"),
            zone("key", "\"header:x-key\"", "1000r/s"),
            limit("one", ONE, "burst = 1\nnodelay = true\nstatus = 503"),
            limit("one", OTHER, "burst = 1\nnodelay = true\nstatus = 501"),
            limit("long", "eth_getBlockByNumber", "burst = 5"),
            limit("fast", THIRD, "burst = 1"),
            limit("key", GET_BALANCE, "burst = 100"),
        ]
        .concat(),
    );
    let status_of = |method| status(&gateway, "", method);
    assert_eq!(status_of(ONE), 200, "the first");
    status_of(ONE);
    assert_eq!(status_of(ONE), 503, "one too many");
    assert_eq!(status_of(OTHER), 501, "one too many, with a status of its own");
    status_of(ONE);
    status_of(ONE);
    // A delayed response that is larger than the client's buffers must arrive complete.
    let long = || {
        let calls: Vec<String> = (1..=60)
            .map(|at| {
                format!(r#"{{"id":1,"method":"eth_getBlockByHash","params":["0x{at:064x}",true]}}"#)
            })
            .chain(
                [r#"{"id":1,"method":"eth_getBlockByNumber","params":["0x64",true]}"#.to_owned()],
            )
            .collect();
        let body = format!("[{}]", calls.join(","));
        let mut client = Client::with_small_receive_buffer(&gateway.address);
        client.send(&post_with("/", "", body.as_bytes()));
        client
    };
    let first = long().read_response().unwrap().body.len();
    let mut second = long();
    pause(Duration::from_millis(600)); // Sleeps: the first part of a delayed response is read late.
    assert_eq!(
        second.read_response().unwrap().body.len(),
        first,
        "a delayed response is incomplete"
    );
    assert_eq!(outcome_count(&gateway, 1, "delayed"), 1);
    assert_eq!(status_of(ONE), 200, "refused calls count for nothing");
    status_of(THIRD);
    pause(Duration::from_millis(100)); // Sleeps: the excess drains by real time.
    assert_eq!(status_of(THIRD), 200, "an excess below zero is none");
    let mut client = gateway.client();
    let call = body(GET_BALANCE, &balance_params(1, "0x10"));
    client.send(&post_with("/", "x-key: short\r\n", &call));
    assert_eq!(client.read_response().unwrap().status, 200, "a key");
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(
        &node,
        &[
            zone("rate", "\"header:x-key\"", "1r/m"),
            "[zone.flight]\nkey = [\"header:x-key\"]\n".to_owned(),
            limit("rate", ONE, ""),
            limit("flight", OTHER, "concurrent = 10"),
        ]
        .concat(),
    );
    assert_eq!(status(&gateway, "x-key: short\r\n", OTHER), 200);
    // A request with such a key does not reach the limits, because the gateway refuses a header
    // section above 16 KiB (RFC 6585, section 5).
    for method in [ONE, OTHER] {
        let line = format!("x-key: {}\r\n", "x".repeat(65_600));
        assert_eq!(status(&gateway, &line, method), 431);
    }
    // A key of 300 bytes works, although nginx's `limit_conn` supports at most 255.
    let line = format!("x-key: {}\r\n", "x".repeat(300));
    assert_eq!([ONE, ONE, OTHER].map(|method| status(&gateway, &line, method)), [200, 429, 200]);
}

#[test]
fn two_limits_of_limit_req2() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    for (method, more) in [(ONE, "status = 503"), (OTHER, "nodelay = true\nstatus = 503")] {
        let gateway = start_gateway(
            &node,
            &[
                zone("slow", "\"header:x-a\"", "1r/m"),
                zone("fast", "\"header:x-b\"", "1000r/s"),
                limit("fast", method, more),
                limit("slow", method, more),
            ]
            .concat(),
        );
        let status_of = |lines| {
            let status = status(&gateway, lines, method);
            pause(Duration::from_millis(100)); // Sleeps: the excess drains by real time.
            status
        };
        for (lines, expected) in [
            ("x-b: 1\r\n", [200, 200]),
            ("x-a: 1\r\n", [200, 503]),
            ("x-a: 2\r\nx-b: 2\r\n", [200, 503]),
            ("", [200, 200]),
        ] {
            assert_eq!([status_of(lines), status_of(lines)], expected, "{lines:?} {more}");
        }
    }
}

#[test]
fn the_delay_of_limit_req_delay() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let limits = [
        zone("one", "\"client\"", "30r/m"),
        limit("one", ONE, "delay = 1\nburst = 2\nstatus = 503"),
    ];
    let gateway = start_gateway(&node, &limits.concat());
    assert_eq!(status(&gateway, "", ONE), 200);
    let began = Instant::now();
    assert_eq!(status(&gateway, "", ONE), 200);
    assert!(began.elapsed() < Duration::from_secs(1), "it waited {:?}", began.elapsed());
    let mut delayed = gateway.client();
    send(&mut delayed, ONE, "[]");
    wait_until("one call is delayed", || gateway.status_u64("/totals/waiting") == 1);
    assert_eq!(status(&gateway, "", ONE), 503);
    assert_eq!(delayed.read_response().unwrap().status, 200);
    // Two calls exceed the rate, which is one call in two seconds. With `delay = 1`, one of them
    // passes at once.
    assert!(began.elapsed() > Duration::from_millis(1500), "after {:?}", began.elapsed());
}

#[test]
fn the_dry_run_of_limit_req() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(
        &node,
        &[
            zone("one", "\"client\"", "1r/m"),
            limit("one", ONE, "burst = 2\ndry_run = true"),
            limit("one", OTHER, "dry_run = true"),
            limit("one", THIRD, "status = 503"),
        ]
        .concat(),
    );
    let began = Instant::now();
    assert_eq!([ONE, ONE, OTHER].map(|method| status(&gateway, "", method)), [200; 3]);
    assert!(began.elapsed() < Duration::from_secs(10), "a dry run waited {:?}", began.elapsed());
    assert_eq!(status(&gateway, "", THIRD), 503, "what a dry run lets through counts");
    // nginx logs the outcomes of a dry run. The gateway counts them.
    assert_eq!(outcome_count(&gateway, 0, "delayed_dry_run"), 1);
    assert_eq!(outcome_count(&gateway, 0, "rejected_dry_run"), 1);
    assert_eq!(outcome_count(&gateway, 0, "rejected"), 1);
}

/// Starts a node that takes 3 s for each call of [`GET_BALANCE`].
fn start_slow_node(runtime: &NodeRuntime) -> SimNode {
    let [node] = runtime.nodes(["a"]);
    node.set_latency(GET_BALANCE, 3_000.0);
    node
}

/// Sends a slow call and waits until it is in flight.
fn start_slow_call(gateway: &TestGateway, headers: &str, account: u64) -> Client {
    let before = outcome_count(gateway, 0, "passed");
    let mut client = gateway.client();
    client.send(&post_with("/", headers, &body(GET_BALANCE, &balance_params(account, "0x10"))));
    wait_until("the call is in flight", || outcome_count(gateway, 0, "passed") > before);
    client
}

/// A zone without a rate, for limits on calls in flight.
fn in_flight_zone(name: &str, key: &str) -> String {
    format!("[zone.{name}]\nkey = [{key}]\n")
}

#[test]
fn zones_of_limit_conn() {
    let runtime = NodeRuntime::start();
    let node = start_slow_node(&runtime);
    let client = "\"client\"";
    let gateway = start_gateway(
        &node,
        &[
            in_flight_zone("zone", client),
            in_flight_zone("zone2", client),
            in_flight_zone("key", "\"header:x-key\""),
            limit("zone", GET_BALANCE, "concurrent = 1\nstatus = 503"),
            limit("zone", ONE, "concurrent = 1\nstatus = 503"),
            limit("zone", "eth_syncing", "concurrent = 1\nstatus = 501"),
            limit("zone", "eth_gasPrice", "concurrent = 5\nstatus = 503"),
            limit("zone2", OTHER, "concurrent = 1\nstatus = 503"),
            limit("key", THIRD, "concurrent = 10"),
        ]
        .concat(),
    );
    let status_of = |method| status(&gateway, "", method);
    let first = start_slow_call(&gateway, "", 1);
    let mut client = gateway.client();
    client.send(&post_with("/", "", &body(GET_BALANCE, &balance_params(2, "0x10"))));
    assert_eq!(client.read_response().unwrap().status, 503, "the same limit");
    assert_eq!(status_of(ONE), 503, "another limit of the zone");
    assert_eq!(status_of(OTHER), 200, "another zone");
    assert_eq!(status_of("eth_syncing"), 501, "a status of its own");
    assert_eq!(status_of("eth_gasPrice"), 200, "a limit of five");
    assert_eq!(status_of(ONE), 503, "a limit of one behind a limit of five");
    assert_eq!(status(&gateway, "x-key: short\r\n", THIRD), 200, "a key");
    drop(first);
    wait_until("the call of the disconnected client ends", || {
        outcome_count(&gateway, 0, "keys") == 0
    });
    assert_eq!(status_of(ONE), 200, "no other call is in flight");
}

#[test]
fn keys_of_several_parts() {
    let runtime = NodeRuntime::start();
    let node = start_slow_node(&runtime);
    let both = "\"client\", \"header:x-c\"";
    let gateway = start_gateway(
        &node,
        &[
            in_flight_zone("flight", both),
            zone("rate", "\"client\", \"header:x-r\"", "1r/m"),
            limit("flight", GET_BALANCE, "concurrent = 1\nstatus = 503"),
            limit("flight", ONE, "concurrent = 1\nstatus = 503"),
            limit("rate", OTHER, "burst = 2"),
        ]
        .concat(),
    );
    assert_eq!(status(&gateway, "", OTHER), 200);
    let mut waits = gateway.client();
    send(&mut waits, OTHER, "[]");
    wait_until("the same key waits", || gateway.status_u64("/totals/waiting") == 1);
    assert!(waits.is_silent());
    assert_eq!(status(&gateway, "x-r: 2\r\n", OTHER), 200, "another key");
    let _first = start_slow_call(&gateway, "", 1);
    assert_eq!(status(&gateway, "", ONE), 503, "the same key");
    assert_eq!(status(&gateway, "x-c: 2\r\n", ONE), 200, "another key");
}

#[test]
fn the_dry_run_of_limit_conn() {
    let runtime = NodeRuntime::start();
    let node = start_slow_node(&runtime);
    let gateway = start_gateway(
        &node,
        &[
            in_flight_zone("zone", "\"client\""),
            in_flight_zone("dry", "\"client\""),
            limit("zone", GET_BALANCE, "concurrent = 1\nstatus = 503"),
            limit("dry", GET_BALANCE, "concurrent = 1\ndry_run = true"),
            limit("dry", ONE, "concurrent = 1\ndry_run = true"),
        ]
        .concat(),
    );
    let _first = start_slow_call(&gateway, "", 1);
    assert_eq!(outcome_count(&gateway, 0, "passed"), 1);
    let mut client = gateway.client();
    client.send(&post_with("/", "", &body(GET_BALANCE, &balance_params(2, "0x10"))));
    assert_eq!(client.read_response().unwrap().status, 503);
    assert_eq!(outcome_count(&gateway, 0, "rejected"), 1);
    assert_eq!(status(&gateway, "", ONE), 200, "a dry run refuses nobody");
    assert_eq!(outcome_count(&gateway, 1, "rejected_dry_run"), 1);
    assert_eq!(status(&gateway, "", OTHER), 200, "no limit");
    assert_eq!(outcome_count(&gateway, 0, "passed"), 1);
}
