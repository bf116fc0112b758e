//! Responses to rejected calls: status, `Retry-After`, code, id; for single calls and batches.

use std::time::Duration;

use crate::support::scene::{Scene, Served, SimNode, body, polled_once};
use test_support::raw::{Response, post};
use test_support::wait::pause;

/// A call that the gateway responds to without a node.
const CALL: &str = "eth_blockNumber";

/// Starts a gateway in front of a node, with these limits.
fn served(node: &SimNode, limits: &str) -> Served {
    Served::before(&[node], &format!("{}{limits}", polled_once("")))
}

/// A limit with one rate for each client address; `more` has further lines of `[[limit]]`.
fn of_client(rate: &str, more: &str) -> String {
    format!("[zone.z]\nkey = [\"client\"]\nrate = \"{rate}\"\n[[limit]]\nzone = \"z\"\n{more}\n")
}

fn send(served: &Served, body: &str) -> Response {
    served.client().call("/", body.as_bytes())
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
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, &of_client("30r/m", ""));
    let mut client = served.client();
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
    assert_eq!(outcome_counts(&served), [2, 0, 3, 0, 0]);
}

/// The counts of outcomes in the first zone: passed, delayed, rejected, delayed in a dry run,
/// rejected in a dry run. Checks that `/status` and `/metrics` agree.
fn outcome_counts(served: &Served) -> [u64; 5] {
    let outcomes = ["passed", "delayed", "rejected", "delayed_dry_run", "rejected_dry_run"];
    let metrics = served.look("/metrics");
    outcomes.map(|outcome| {
        let count = served.count(&format!("/zones/0/{outcome}"));
        let line = format!("weir_limit_calls_total{{zone=\"z\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.text().contains(&line), "{line} is not in the metrics");
        count
    })
}

#[test]
fn in_a_batch_each_call_is_judged_by_itself() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, &of_client("1r/m", "burst = 1\nnodelay = true"));
    let ids = ["1", "\"b\"", "3", "4"];
    let batch = format!("[{}]", ids.map(call_of).join(","));
    let answer = send(&served, &batch);
    assert_eq!((answer.status, answer.header("retry-after")), (200, None));
    let result =
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":"{:#x}"}}"#, crate::support::scene::HEAD);
    let passed = result.replace("\"id\":1", "\"id\":\"b\"");
    let expected = [result, passed, refusal_of("3"), refusal_of("4")];
    assert_eq!(answer.text(), format!("[{}]", expected.join(",")));
    // If all calls of a batch are refused, the response has status 429, so that client libraries
    // retry later.
    let answer = send(&served, &batch);
    assert_eq!(answer.status, 429);
    assert_eq!(answer.text(), format!("[{}]", ids.map(refusal_of).join(",")));
    // At one call per minute the next call passes after about 60 s.
    let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((61..=63).contains(&retry), "{retry}");
}

#[test]
fn notifications_count_and_a_single_one_gets_a_response() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, &of_client("1r/m", ""));
    let notification = format!(r#"{{"jsonrpc":"2.0","method":"{CALL}"}}"#);
    let answer = send(&served, &notification);
    assert_eq!((answer.status, answer.text()), (200, ""));
    let answer = send(&served, &format!(" {notification}"));
    assert_eq!((answer.status, answer.text()), (429, &*refusal_of("null")));
    let answer = send(&served, &format!("[{notification},{}]", call_of("5")));
    assert_eq!((answer.status, answer.text()), (429, &*format!("[{}]", refusal_of("5"))));
    let answer = send(&served, &format!("[{notification}]"));
    assert_eq!((answer.status, answer.text()), (200, ""));
}

#[test]
fn a_limit_has_its_own_status_and_its_own_methods() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let limits = of_client("1r/m", "status = 503\nmethods = [\"eth_block*\"]");
    let served = served(&node, &limits);
    let mut client = served.client();
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 503);
    for _ in 0..3 {
        assert_eq!(client.call("/", &body("eth_chainId", "[]")).status, 200);
        assert_eq!(client.call("/", b"no call").status, 200);
    }
}

#[test]
fn a_header_distinguishes_clients_and_calls_without_it_are_not_limited() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let limits =
        "[zone.z]\nkey = [\"header:X-Tenant\"]\nrate = \"1r/m\"\n[[limit]]\nzone = \"z\"\n";
    let served = served(&node, limits);
    let mut client = served.client();
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
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, &of_client("1r/m", "burst = 1\ndry_run = true"));
    let mut client = served.client();
    for _ in 0..5 {
        assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    }
    assert_eq!(outcome_counts(&served), [1, 0, 0, 1, 3]);
}

#[test]
fn a_call_may_cost_its_weight() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(
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
    let mut client = served.client();
    let statuses: Vec<u16> = (0..=passes).map(|_| client.call("/", &logs).status).collect();
    assert_eq!(statuses[..passes], vec![200; passes]);
    assert_eq!(statuses[passes], 429);
}

#[test]
fn connections_per_client_are_limited() {
    let scene = Scene::set();
    let [node] = scene.nodes(["a"]);
    let served = served(&node, "[downstream]\nconnections_per_client_max = 2\n");
    let mut first = served.client();
    let mut second = served.client();
    for client in [&mut first, &mut second] {
        assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    }
    assert!(served.client().is_closed(), "a third connection was accepted");
    assert_eq!(served.count("/totals/connections_refused"), 1);
    drop(first);
    test_support::wait::wait_until("the first connection is closed", || {
        served.count("/totals/connections_open") == 1
    });
    let mut third = served.client();
    third.send(&post("/", &body(CALL, "[]")));
    assert_eq!(third.read_response().unwrap().status, 200);
    assert_eq!(second.call("/", &body(CALL, "[]")).status, 200);
}
