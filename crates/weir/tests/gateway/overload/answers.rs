//! Calls to a group of upstreams that is at its concurrency limit: queueing, priority and shedding.
//! The limit is one call in flight, so there is one permit. A call of a slow method holds it.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, body, chain_polled_once,
    error, result, send,
};
use test_support::raw::{Client, post, post_with};
use test_support::wait::wait_until;

/// The method whose calls hold the only permit.
const SLOW: &str = "eth_call";
/// JSON pointer of the group in `/status`.
const GROUP: &str = "/chains/0/groups/0";

/// Starts a gateway with these additional keys of `[overload]`.
fn start_gateway(node: &SimNode, overload: &str) -> TestGateway {
    node.set_latency(SLOW, 400.0);
    TestGateway::in_front_of(
        &[node],
        &format!(
            "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nhigh_tiers = [\"gold\"]\n{overload}\n\
             [cache]\nenabled = false\n[access]\nrequired = false\n\
             [[key]]\nname = \"paid\"\nsecret = \"0123456789abcdef\"\ntier = \"gold\"\n",
            chain_polled_once("")
        ),
    )
}

/// Returns a number that `/status` reports about the group.
fn group_count(gateway: &TestGateway, field: &str) -> u64 {
    gateway.status_u64(&format!("{GROUP}/{field}"))
}

/// Sends a slow call, which holds the only permit for 400 ms.
fn hold_permit(gateway: &TestGateway) -> Client {
    let mut client = gateway.client();
    send(&mut client, SLOW, r#"[{}, "latest"]"#);
    wait_until("the permit is held", || group_count(gateway, "in_flight") == 1);
    client
}

#[test]
fn a_call_waits_for_a_permit() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "");
    assert_eq!(group_count(&gateway, "in_flight_limit"), 1);
    let mut holding = hold_permit(&gateway);
    let mut waiting = gateway.client();
    send(&mut waiting, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("the call waits", || group_count(&gateway, "queued") == 1);
    result(&holding.read_response().unwrap());
    result(&waiting.read_response().unwrap());
    assert_eq!((group_count(&gateway, "queued"), group_count(&gateway, "in_flight")), (0, 0));
    assert_eq!(group_count(&gateway, "shed"), 0);
}

#[test]
fn calls_that_waited_too_long_or_find_a_full_queue_are_shed() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "queue_max = 1\nqueue_timeout = \"50ms\"");
    let _holding = hold_permit(&gateway);
    let (mut first, mut second) = (gateway.client(), gateway.client());
    send(&mut first, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("the call waits", || group_count(&gateway, "queued") == 1);
    send(&mut second, GET_BALANCE, &balance_params(2, "latest"));
    // The full queue sheds the older call at once, and the newer one after `queue_timeout`.
    for client in [&mut first, &mut second] {
        let answer = client.read_response().unwrap();
        let expected = (503, -32_005, "upstreams are overloaded, retry later".to_owned());
        assert_eq!(error(&answer), expected);
        let retry_after_seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3).contains(&retry_after_seconds), "{retry_after_seconds}");
    }
    let text = gateway.get_admin("/metrics");
    let series = |reason: &str| format!("group=\"all\",class=\"normal\",reason=\"{reason}\"}} 1\n");
    for reason in ["displaced", "late"] {
        assert!(text.text().contains(&series(reason)), "{reason}: {}", text.text());
    }
    assert_eq!(group_count(&gateway, "queued"), 0);
}

#[test]
fn the_higher_class_is_served_first_and_heavy_calls_last() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "share_kept = 0.0");
    node.set_latency(GET_BALANCE, 30.0);
    node.set_latency("eth_estimateGas", 30.0);
    let mut holding = hold_permit(&gateway);
    let (mut heavy, mut plain, mut paid) = (gateway.client(), gateway.client(), gateway.client());
    send(&mut heavy, "eth_estimateGas", r#"[{}, "latest"]"#);
    wait_until("the call waits", || group_count(&gateway, "queued") == 1);
    send(&mut plain, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("two calls wait", || group_count(&gateway, "queued") == 2);
    let key = "Authorization: Bearer 0123456789abcdef\r\n";
    paid.send(&post_with("/", key, &body(GET_BALANCE, &balance_params(2, "latest"))));
    wait_until("three calls wait", || group_count(&gateway, "queued") == 3);
    result(&holding.read_response().unwrap());
    result(&paid.read_response().unwrap());
    assert_eq!(group_count(&gateway, "in_flight") + group_count(&gateway, "queued"), 2);
    result(&plain.read_response().unwrap());
    heavy.read_response().unwrap();
}

#[test]
fn slow_calls_of_one_client_do_not_block_another_client() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    node.set_latency(SLOW, 1000.0);
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[overload]\nin_flight_min = 4\nin_flight_max = 4\n[cache]\nenabled = false\n\
             [access]\nrequired = false\n[[key]]\nname = \"other\"\nsecret = \"0123456789abcdef\"\n",
            chain_polled_once("")
        ),
    );
    let mut slow: Vec<Client> = (0..12).map(|_| gateway.client()).collect();
    for (index, client) in slow.iter_mut().enumerate() {
        // Different parameters prevent coalescing.
        send(client, SLOW, &format!(r#"[{{"gas": "0x{:x}"}}, "latest"]"#, 100_000 + index));
    }
    wait_until("the slow calls wait", || group_count(&gateway, "queued") == 8);
    // The other client gets the next free permit for each call.
    let mut other = gateway.client();
    let key = "Authorization: Bearer 0123456789abcdef\r\n";
    let began = Instant::now();
    for account in 0..20 {
        let params = balance_params(account, "latest");
        other.send(&post_with("/", key, &body(GET_BALANCE, &params)));
        result(&other.read_response().unwrap());
    }
    assert!(began.elapsed() < Duration::from_millis(1_800), "{:?}", began.elapsed());
}

#[test]
fn a_client_that_disconnects_leaves_the_queue() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "");
    let mut holding = hold_permit(&gateway);
    let (mut first, mut leaver) = (gateway.client(), gateway.client());
    send(&mut first, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("one waits", || group_count(&gateway, "queued") == 1);
    send(&mut leaver, GET_BALANCE, &balance_params(2, "latest"));
    wait_until("two wait", || group_count(&gateway, "queued") == 2);
    drop(leaver);
    wait_until("one has left", || group_count(&gateway, "queued") == 1);
    assert_eq!(group_count(&gateway, "in_flight"), 1, "the permit is still held");
    result(&holding.read_response().unwrap());
    result(&first.read_response().unwrap());
}

#[test]
fn equal_calls_wait_once_and_are_shed_together() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "queue_timeout = \"60ms\"");
    let _holding = hold_permit(&gateway);
    let mut clients: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut clients {
        send(client, GET_BALANCE, &balance_params(1, "latest"));
    }
    wait_until("one of them waits", || group_count(&gateway, "queued") == 1);
    for client in &mut clients {
        assert_eq!(error(&client.read_response().unwrap()).0, 503);
    }
    assert_eq!(group_count(&gateway, "shed"), 1);
}

#[test]
fn a_batch_that_is_shed_whole_has_the_status_of_its_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "queue_max = 0\nstatus = 429");
    let _holding = hold_permit(&gateway);
    let call = String::from_utf8(body(GET_BALANCE, &balance_params(1, "latest"))).unwrap();
    let mut client = gateway.client();
    client.send(&post("/", format!("[{call},{call}]").as_bytes()));
    let answer = client.read_response().unwrap();
    assert_eq!(answer.status, 429);
    assert!(answer.header("retry-after").is_some());
    let items: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
    assert!(items.iter().all(|item| item["error"]["code"] == -32_005), "{items:?}");
}

#[test]
fn a_reload_keeps_permits_and_the_queue() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, "");
    let mut holding = hold_permit(&gateway);
    let mut waiting = gateway.client();
    send(&mut waiting, GET_BALANCE, &balance_params(1, "latest"));
    wait_until("the call waits", || group_count(&gateway, "queued") == 1);
    let text = format!(
        "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nhigh_tiers = [\"gold\"]\n\
         [cache]\nenabled = false\n[downstream]\nbatch_calls_max = 7\n[access]\nrequired = false\n\
         [[key]]\nname = \"paid\"\nsecret = \"0123456789abcdef\"\ntier = \"gold\"\n{}",
        chain_polled_once(""),
        node.to_toml("")
    );
    gateway.reload(&text);
    assert_eq!((group_count(&gateway, "in_flight"), group_count(&gateway, "queued")), (1, 1));
    result(&holding.read_response().unwrap());
    result(&waiting.read_response().unwrap());
    let mut client = gateway.client();
    result(&ask(&mut client, GET_BALANCE, &balance_params(3, "latest")));
    assert_eq!((group_count(&gateway, "in_flight"), group_count(&gateway, "queued")), (0, 0));
}
