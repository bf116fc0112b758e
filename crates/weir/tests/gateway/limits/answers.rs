//! Responses to rejected calls, for single calls and batches: HTTP status, `Retry-After`, and code
//! and id of the JSON-RPC error.

use std::time::Duration;

use crate::support::harness::{
    NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, body, chain_polled_once,
};
use test_support::raw::{Response, post};
use test_support::wait::pause;

/// A call that the gateway responds to without a node.
const CALL: &str = "eth_blockNumber";

/// Starts a gateway in front of a node, with these limits.
fn start_gateway(node: &SimNode, limits: &str) -> TestGateway {
    TestGateway::in_front_of(&[node], &format!("{}{limits}", chain_polled_once("")))
}

/// A limit with this rate for each client address. `more` has further lines of `[[limit]]`.
fn limit_per_client(rate: &str, more: &str) -> String {
    format!("[zone.z]\nkey = [\"client\"]\nrate = \"{rate}\"\n[[limit]]\nzone = \"z\"\n{more}\n")
}

fn send(gateway: &TestGateway, body: &str) -> Response {
    gateway.client().call("/", body.as_bytes())
}

fn call_of(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{CALL}"}}"#)
}

fn refusal_of(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32005,"message":"request rate limit exceeded"}}}}"#
    )
}

#[test]
fn a_refused_call_gets_429_its_id_and_the_time_to_come_back() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &limit_per_client("30r/m", ""));
    let mut client = gateway.client();
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    let refused = client.call("/", call_of(r#""\u0061 7""#).as_bytes());
    assert_eq!(refused.status, 429);
    assert_eq!(refused.text(), refusal_of(r#""\u0061 7""#));
    assert_eq!(refused.header("retry-after"), Some("2"));
    assert_eq!(refused.header("x-weir-cache"), None);
    // A body that is not a call counts too, and the connection stays open.
    assert_eq!(client.call("/", b"not json").text(), refusal_of("null"));
    assert_eq!(client.call("/", b"{}").status, 429);
    pause(Duration::from_secs(2)); // Sleeps: the time that `Retry-After` asked for.
    assert_eq!(
        client.call("/", &body(CALL, "[]")).status,
        200,
        "the call was refused after `Retry-After`"
    );
    assert_eq!(outcome_counts(&gateway), [2, 0, 3, 0, 0]);
}

/// Number of calls with each outcome in the first zone: passed, delayed, rejected, delayed in a dry
/// run, rejected in a dry run. Checks that `/status` and `/metrics` agree.
fn outcome_counts(gateway: &TestGateway) -> [u64; 5] {
    let outcomes = ["passed", "delayed", "rejected", "delayed_dry_run", "rejected_dry_run"];
    let metrics = gateway.get_admin("/metrics");
    outcomes.map(|outcome| {
        let count = gateway.status_u64(&format!("/zones/0/{outcome}"));
        let line = format!("weir_limit_calls_total{{zone=\"z\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.text().contains(&line), "{line} is not in the metrics");
        count
    })
}

#[test]
fn in_a_batch_each_call_is_judged_by_itself() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &limit_per_client("1r/m", "burst = 1\nnodelay = true"));
    let ids = ["1", "\"b\"", "3", "4"];
    let batch = format!("[{}]", ids.map(call_of).join(","));
    let answer = send(&gateway, &batch);
    assert_eq!((answer.status, answer.header("retry-after")), (200, None));
    let result = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{NEWEST_BLOCK:#x}"}}"#);
    let passed = result.replace("\"id\":1", "\"id\":\"b\"");
    let expected = [result, passed, refusal_of("3"), refusal_of("4")];
    assert_eq!(answer.text(), format!("[{}]", expected.join(",")));
    // If all calls of a batch are refused, the response has status 429, so that client libraries
    // retry later.
    let answer = send(&gateway, &batch);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.text(), format!("[{}]", ids.map(refusal_of).join(",")));
    // The rate is one call per minute, so the next call passes after about 60 s.
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((61..=63).contains(&retry), "{retry}");
}

#[test]
fn notifications_count_and_a_single_one_gets_a_response() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &limit_per_client("1r/m", ""));
    let notification = format!(r#"{{"jsonrpc":"2.0","method":"{CALL}"}}"#);
    let answer = send(&gateway, &notification);
    assert_eq!((answer.status, answer.text()), (200, ""));
    let answer = send(&gateway, &format!(" {notification}"));
    assert_eq!((answer.status, answer.text()), (429, &*refusal_of("null")));
    let answer = send(&gateway, &format!("[{notification},{}]", call_of("5")));
    assert_eq!((answer.status, answer.text()), (429, &*format!("[{}]", refusal_of("5"))));
    let answer = send(&gateway, &format!("[{notification}]"));
    assert_eq!((answer.status, answer.text()), (200, ""));
}

#[test]
fn a_limit_has_its_own_status_and_its_own_methods() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let limits = limit_per_client("1r/m", "status = 503\nmethods = [\"eth_block*\"]");
    let gateway = start_gateway(&node, &limits);
    let mut client = gateway.client();
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 503);
    for _ in 0..3 {
        assert_eq!(client.call("/", &body("eth_chainId", "[]")).status, 200);
        assert_eq!(client.call("/", b"no call").status, 200);
    }
}

#[test]
fn a_header_distinguishes_clients_and_calls_without_it_are_not_limited() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let limits =
        "[zone.z]\nkey = [\"header:X-Tenant\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"z\"\n";
    let gateway = start_gateway(&node, limits);
    let mut client = gateway.client();
    let mut ask = |lines: &str| {
        client.send(&test_support::raw::post_with("/", lines, &body(CALL, "[]")));
        client.read_response().unwrap().status
    };
    assert_eq!([ask("x-tenant: a\r\n"), ask("X-TENANT: a\r\n")], [200, 429]);
    assert_eq!([ask("x-tenant: b\r\n"), ask("x-tenant: b\r\nx-tenant: c\r\n")], [200, 429]);
    assert_eq!([ask(""), ask("x-tenant:\r\n"), ask("")], [200, 200, 200]);
}

#[test]
fn a_dry_run_refuses_nobody() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &limit_per_client("1r/m", "burst = 1\ndry_run = true"));
    let mut client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    }
    assert_eq!(outcome_counts(&gateway), [1, 0, 0, 1, 3]);
}

#[test]
fn a_call_may_cost_its_weight() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(
        &node,
        "[zone.z]\nkey = [\"client\"]\nrate = \"1r/m\"\ncost = \"weight\"\n\
         [[limit]]\nzone = \"z\"\nburst = 1000\nnodelay = true\n",
    );
    let weight = wire::method::methods_of(wire::family::Family::Ethereum)
        .method("eth_getLogs")
        .unwrap()
        .weight;
    let passes = 1001 / weight as usize;
    let logs = body("eth_getLogs", r#"[{"fromBlock":"0x1","toBlock":"0x1"}]"#);
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..=passes).map(|_| client.call("/", &logs).status).collect();
    assert_eq!(statuses[..passes], vec![200; passes]);
    assert_eq!(statuses[passes], 429);
}

#[test]
fn connections_per_client_are_limited() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "[downstream]\nconnections_per_client_max = 2\n");
    let mut first = gateway.client();
    let mut second = gateway.client();
    for client in [&mut first, &mut second] {
        assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    }
    assert!(gateway.client().is_closed(), "a third connection was accepted");
    assert_eq!(gateway.status_u64("/totals/connections_refused"), 1);
    drop(first);
    test_support::wait::wait_until("the first connection is closed", || {
        gateway.status_u64("/totals/connections_open") == 1
    });
    let mut third = gateway.client();
    third.send(&post("/", &body(CALL, "[]")));
    assert_eq!(third.read_response().unwrap().status, 200);
    assert_eq!(second.call("/", &body(CALL, "[]")).status, 200);
}
