//! Calls that a limit delays, and limits on calls in flight. A delayed call blocks no thread, and
//! it ends when its client disconnects.

use std::time::{Duration, Instant};

use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, balance_params, body, chain_polled_once, send,
};
use test_support::raw::{Client, post};
use test_support::wait::wait_until;

const CALL: &str = "eth_blockNumber";

fn start_gateway(node: &SimNode, limits: &str) -> TestGateway {
    TestGateway::in_front_of(&[node], &format!("{}{limits}", chain_polled_once("")))
}

/// A limit on [`CALL`] that delays up to `burst` calls.
fn delaying_limit(rate: &str, burst: u64) -> String {
    format!(
        "[zone.z]\nkey = [\"client\"]\nrate = \"{rate}\"\n\
         [[limit]]\nzone = \"z\"\nburst = {burst}\nmethods = [\"{CALL}\"]\n"
    )
}

#[test]
fn calls_ahead_of_the_rate_wait_their_turn_and_hold_up_nobody() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &delaying_limit("5r/s", 3));
    let start = Instant::now();
    let mut clients: Vec<Client> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(&post("/", &body(CALL, "[]")));
    }
    wait_until("three wait", || gateway.status_u64("/totals/waiting") == 3);
    // The gateway has one thread, which the delayed calls do not block.
    let mut other = gateway.client();
    for _ in 0..50 {
        assert_eq!(other.call("/", &body("eth_chainId", "[]")).status, 200);
    }
    let mut statuses = Vec::new();
    let mut last = Duration::ZERO;
    for client in &mut clients {
        statuses.push(client.read_response().unwrap().status);
        last = last.max(start.elapsed());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
    assert!(last >= Duration::from_millis(595), "the last one waited only {last:?}");
    assert!(last < Duration::from_secs(5), "the last one waited {last:?}");
    assert_eq!(gateway.status_u64("/totals/waiting"), 0);
    assert_eq!(gateway.status_u64("/zones/0/delayed"), 3);
}

#[test]
fn a_delayed_call_ends_when_its_client_disconnects() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &delaying_limit("1r/m", 5));
    let mut clients: Vec<Client> = (0..4).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(&post("/", &body(CALL, "[]")));
    }
    assert_eq!(clients[0].read_response().unwrap().status, 200);
    wait_until("three wait", || gateway.status_u64("/totals/waiting") == 3);
    assert_eq!(gateway.status_u64("/totals/connections_open"), 4);
    // Without the disconnect, the delays would be at least a minute.
    let began = Instant::now();
    clients.truncate(2);
    wait_until("the calls of the disconnected clients end", || {
        gateway.status_u64("/totals/waiting") == 1
            && gateway.status_u64("/totals/connections_open") == 2
    });
    assert!(began.elapsed() < Duration::from_secs(10), "after {:?}", began.elapsed());
    clients[1].half_close();
    wait_until("the call of a half-closed client ends, as in nginx", || {
        gateway.status_u64("/totals/waiting") == 0
    });
}

#[test]
fn requests_that_arrive_while_a_call_waits_are_served_after_it() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &delaying_limit("5r/s", 5));
    let mut client = gateway.client();
    let mut requests = Vec::new();
    for method in [CALL, CALL, "eth_chainId", CALL] {
        requests.extend(post("/", &body(method, "[]")));
    }
    // The first part ends within a header section, and the second one within a body.
    for part in [&requests[..200], &requests[200..430], &requests[430..]] {
        client.send(part);
        // Sleeps: the gateway reads each part before the next arrives.
        test_support::wait::pause(Duration::from_millis(20));
    }
    for _ in 0..4 {
        let answer = client.read_response().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(client.is_silent());
    assert_eq!(gateway.status_u64("/zones/0/delayed"), 2);
}

#[test]
fn a_batch_is_delayed_like_its_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &delaying_limit("10r/s", 2));
    let call = String::from_utf8(body(CALL, "[]")).unwrap();
    let began = Instant::now();
    let mut client = gateway.client();
    let answer = client.call("/", format!("[{}]", [&*call; 4].join(",")).as_bytes());
    assert!(began.elapsed() >= Duration::from_millis(195), "after {:?}", began.elapsed());
    assert_eq!(answer.status, 200);
    let items: Vec<serde_json::Value> = serde_json::from_str(answer.text()).unwrap();
    let refused: Vec<bool> = items.iter().map(|item| item.get("error").is_some()).collect();
    assert_eq!(refused, [false, false, false, true]);
}

#[test]
fn a_gateway_that_stops_completes_delayed_calls() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(&node, &delaying_limit("2r/s", 1));
    let mut client = gateway.client();
    assert_eq!(client.call("/", &body(CALL, "[]")).status, 200);
    client.send(&post("/", &body(CALL, "[]")));
    wait_until("one call is delayed", || gateway.status_u64("/totals/waiting") == 1);
    let took = gateway.stop();
    assert_eq!(client.read_response().unwrap().status, 200);
    assert!(took < Duration::from_secs(4), "it took {took:?}");
}

#[test]
fn calls_in_flight_are_counted_by_key_until_they_end() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let gateway = start_gateway(
        &node,
        &format!(
            "[zone.z]\nkey = [\"client\"]\n\
             [[limit]]\nzone = \"z\"\nmethods = [\"{GET_BALANCE}\"]\nconcurrent = 2\nstatus = 503\n"
        ),
    );
    node.set_latency(GET_BALANCE, 1500.0);
    let mut clients: Vec<Client> = (0..3).map(|_| gateway.client()).collect();
    send(&mut clients[0], GET_BALANCE, &balance_params(1, "0x10"));
    send(&mut clients[1], GET_BALANCE, &balance_params(2, "0x10"));
    wait_until("two are in flight", || gateway.status_u64("/zones/0/passed") == 2);
    let refused = clients[2].call("/", &body(GET_BALANCE, &balance_params(3, "0x10")));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains(r#""code":-32005,"message":"too many requests in flight""#));
    assert_eq!(clients[2].call("/", &body("eth_chainId", "[]")).status, 200);
    for client in &mut clients[..2] {
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    assert_eq!(gateway.status_u64("/zones/0/keys"), 0);
    node.set_latency(GET_BALANCE, 0.0);
    assert_eq!(clients[2].call("/", &body(GET_BALANCE, &balance_params(4, "0x10"))).status, 200);
}
