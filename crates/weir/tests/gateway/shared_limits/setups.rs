//! Gateways share zones over a reload, with a Redis that hangs, and in a Redis cluster.

use std::time::{Duration, Instant};

use super::outage::{fallback_threads, metric};
use crate::support::harness::{
    NodeRuntime, TestGateway, ask, ask_with_header, body, chain_polled_once,
};
use crate::support::redis_server::Redis;
use test_support::wait::wait_until;

const CALL: &str = "eth_blockNumber";

/// Returns the configuration of Redis and of a zone with one counter per value of the header
/// `x-tenant`. The zone allows one call per minute and a burst of five. `redis` is further
/// configuration of Redis.
fn limits(redis: &str) -> String {
    format!(
        "[redis]\n{redis}responses = false\ngateways = 2\nbackoff = \"100ms\"\n\
         [zone.tenants]\nkey = [\"header:x-tenant\"]\nrate = \"1r/m\"\nshared = true\n\
         [[limit]]\nzone = \"tenants\"\nburst = 5\nnodelay = true\n"
    )
}

/// Returns [`limits`] with a Redis at a URL.
fn limits_at(url: &str, timeout: &str) -> String {
    limits(&format!("url = \"{url}\"\ntimeout = \"{timeout}\"\n"))
}

/// Waits until a gateway decides calls of the zone in Redis.
fn wait_until_redis_used(gateway: &TestGateway) {
    wait_until("redis is used", || fallback_threads(gateway, "tenants") == 0.0);
}

/// Sends this many calls of a tenant alternately to both gateways. Returns the HTTP statuses.
fn call_statuses(gateways: [&TestGateway; 2], tenant: &str, count: usize) -> Vec<u16> {
    let mut clients = gateways.map(TestGateway::client);
    let line = format!("x-tenant: {tenant}");
    let status = |index: usize| ask_with_header(&mut clients[index % 2], &line, CALL, "[]").status;
    (0..count).map(status).collect()
}

/// Statuses of eight calls of which the first one and the burst of five pass.
const SIX_PASS: [u16; 8] = [200, 200, 200, 200, 200, 200, 429, 429];

#[test]
fn two_gateways_share_a_zone_over_a_reload_and_redis_keys_hide_the_tenant() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once(&limits_at(&redis.url(), "500ms"));
    let [first, second] = [(); 2].map(|()| TestGateway::in_front_of(&[&node], &text));
    wait_until_redis_used(&first);
    wait_until_redis_used(&second);
    assert_eq!(call_statuses([&first, &second], "a", 8), SIX_PASS);
    let refused = ask_with_header(&mut first.client(), "x-tenant: a", CALL, "[]");
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((50..=63).contains(&retry), "{retry}");
    let by_share = || metric(&first, "weir_limit_shared_calls_total{by=\"share\"}");
    let before = by_share();
    first.reload(&format!("{text}\n{}\n[cache]\nbytes_max = \"64MiB\"\n", node.to_toml("")));
    assert_eq!(call_statuses([&first, &second], "a", 2), [429, 429]);
    assert_eq!(call_statuses([&first, &second], "b", 8), SIX_PASS);
    assert_eq!(by_share(), before, "the connection stays over a reload");
    // Scripts that Redis has forgotten are sent again.
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(call_statuses([&first, &second], "c", 8), SIX_PASS);
    let keys = redis.cli(&["--scan", "--pattern", "weir:zone:tenants:*"]);
    assert_eq!(keys.lines().count(), 3);
    for key in keys.lines() {
        let left: i64 = redis.cli(&["PTTL", key]).parse().unwrap();
        // An excess of 6,000 thousandths of a call drains at 16 thousandths per second.
        assert!((1..=375_000).contains(&left), "{key} stays for {left} ms");
        assert!(key.ends_with(|end: char| end.is_ascii_hexdigit()) && key.len() > 40, "{key}");
    }
    // The zone does not limit calls without the header.
    assert_eq!(ask(&mut first.client(), CALL, "[]").status, 200);
}

#[test]
fn a_redis_that_hangs_delays_few_calls_by_its_timeout() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let text = chain_polled_once(&limits_at(&redis.url(), "20ms"));
    let gateway = TestGateway::in_front_of(&[&node], &text);
    wait_until_redis_used(&gateway);
    redis.signal("-STOP");
    let mut client = gateway.client();
    let mut took = Vec::new();
    for number in 0..40 {
        let began = Instant::now();
        let line = format!("x-tenant: t{number}");
        // Each call is its tenant's first, so it passes even if only this gateway's share applies.
        assert_eq!(ask_with_header(&mut client, &line, CALL, "[]").status, 200);
        took.push(began.elapsed());
    }
    redis.signal("-CONT");
    let slow = took.iter().filter(|took| **took >= Duration::from_millis(15)).count();
    assert!((3..=20).contains(&slow), "{took:?}");
    assert!(metric(&gateway, "weir_limit_shared_failures_total{reason=\"timeout\"}") >= 3.0);
    wait_until_redis_used(&gateway);
    assert_eq!(call_statuses([&gateway, &gateway], "t1", 3).len(), 3);
}

#[test]
fn a_cluster_holds_shared_zones() {
    let Some(nodes) = Redis::cluster() else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let url = Redis::cluster_url(&nodes);
    let text = chain_polled_once(&limits_at(&url, "500ms"));
    let [first, second] = [(); 2].map(|()| TestGateway::in_front_of(&[&node], &text));
    wait_until_redis_used(&first);
    wait_until_redis_used(&second);
    for tenant in 0..20 {
        assert_eq!(call_statuses([&first, &second], &tenant.to_string(), 8), SIX_PASS);
    }
    let held = nodes.each_ref().map(|node| node.cli(&["DBSIZE"]).parse::<u64>().unwrap());
    assert!(held.iter().all(|held| *held > 0), "each node holds keys: {held:?}");
    assert_eq!(metric(&first, "weir_limit_shared_calls_total{by=\"share\"}"), 0.0);
}

#[test]
fn a_batch_is_judged_call_by_call_and_a_call_waits_its_turn() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let redis = format!(
        "[redis]\nurl = \"{}\"\nresponses = false\ngateways = 2\ntimeout = \"500ms\"\n\
         [zone.all]\nkey = [\"chain\"]\nrate = \"5r/s\"\nshared = true\n\
         [[limit]]\nzone = \"all\"\nburst = 3\n",
        redis.url()
    );
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_once(&redis));
    wait_until("redis is used", || fallback_threads(&gateway, "all") == 0.0);
    let call = String::from_utf8(body(CALL, "[]")).unwrap();
    let began = Instant::now();
    let answer = gateway.client().call("/", format!("[{}]", [&*call; 6].join(",")).as_bytes());
    let took = began.elapsed();
    let items: Vec<serde_json::Value> = serde_json::from_str(answer.text()).unwrap();
    let passed = items.iter().filter(|item| item.get("result").is_some()).count();
    assert_eq!((items.len(), passed), (6, 4), "{}", answer.text());
    assert!(took >= Duration::from_millis(590), "{took:?}");
    assert_eq!(gateway.status_u64("/zones/0/delayed"), 3);
    assert_eq!(gateway.status_u64("/zones/0/rejected"), 2);
}
