//! Shared zones over a reload, with a Redis that hangs, and in a Redis cluster.

use std::time::{Duration, Instant};

use super::outage::{fallback_threads, metric};
use crate::support::redis_server::Redis;
use crate::support::scene::{Scene, Served, ask, ask_with, body, polled_once};
use test_support::wait::wait_until;

const CALL: &str = "eth_blockNumber";

/// A zone keyed by a header, with one call per minute and a burst of 5.
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

/// Waits until a gateway uses Redis for the zone.
fn wait_until_used(served: &Served) {
    wait_until("redis is used", || fallback_threads(served, "tenants") == 0.0);
}

/// Sends this many calls alternately to both gateways; returns their statuses.
fn calls(gateways: [&Served; 2], tenant: &str, count: usize) -> Vec<u16> {
    let mut clients = gateways.map(Served::client);
    let line = format!("x-tenant: {tenant}");
    (0..count).map(|index| ask_with(&mut clients[index % 2], &line, CALL, "[]").status).collect()
}

/// Statuses of eight calls: the first one and the burst of five pass.
const SIX_PASS: [u16; 8] = [200, 200, 200, 200, 200, 200, 429, 429];

#[test]
fn two_gateways_share_a_zone_over_a_reload_and_redis_keys_hide_the_tenant() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let text = polled_once(&limits_at(&redis.url(), "500ms"));
    let [first, second] = [(); 2].map(|()| Served::before(&[&node], &text));
    wait_until_used(&first);
    wait_until_used(&second);
    assert_eq!(calls([&first, &second], "a", 8), SIX_PASS);
    let refused = ask_with(&mut first.client(), "x-tenant: a", CALL, "[]");
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((50..=63).contains(&retry), "{retry}");
    let by_share = || metric(&first, "weir_limit_shared_calls_total{by=\"share\"}");
    let before = by_share();
    first.reload(&format!("{text}\n{}\n[cache]\nbytes_max = \"64MiB\"\n", node.entry("")));
    assert_eq!(calls([&first, &second], "a", 2), [429, 429]);
    assert_eq!(calls([&first, &second], "b", 8), SIX_PASS);
    assert_eq!(by_share(), before, "the connection stays over a reload");
    // Scripts that Redis has forgotten are sent again.
    redis.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(calls([&first, &second], "c", 8), SIX_PASS);
    let keys = redis.cli(&["--scan", "--pattern", "weir:zone:tenants:*"]);
    assert_eq!(keys.lines().count(), 3);
    for key in keys.lines() {
        let left: i64 = redis.cli(&["PTTL", key]).parse().unwrap();
        // 6,000 thousandths at 16 per second.
        assert!((1..=375_000).contains(&left), "{key} stays for {left} ms");
        assert!(key.ends_with(|end: char| end.is_ascii_hexdigit()) && key.len() > 40, "{key}");
    }
    // A call without the header is not limited.
    assert_eq!(ask(&mut first.client(), CALL, "[]").status, 200);
}

#[test]
fn a_redis_that_hangs_delays_few_calls_by_its_timeout() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let text = polled_once(&limits_at(&redis.url(), "20ms"));
    let served = Served::before(&[&node], &text);
    wait_until_used(&served);
    redis.signal("-STOP");
    let mut client = served.client();
    let mut took = Vec::new();
    for number in 0..40 {
        let began = Instant::now();
        let line = format!("x-tenant: t{number}");
        // Each call is the first of its tenant, so it passes even with this gateway's share.
        assert_eq!(ask_with(&mut client, &line, CALL, "[]").status, 200);
        took.push(began.elapsed());
    }
    redis.signal("-CONT");
    let slow = took.iter().filter(|took| **took >= Duration::from_millis(15)).count();
    assert!((3..=20).contains(&slow), "{took:?}");
    assert!(metric(&served, "weir_limit_shared_failures_total{reason=\"timeout\"}") >= 3.0);
    wait_until_used(&served);
    assert_eq!(calls([&served, &served], "t1", 3).len(), 3);
}

#[test]
fn a_cluster_holds_shared_zones() {
    let Some(nodes) = Redis::cluster() else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let url = Redis::cluster_url(&nodes);
    let text = polled_once(&limits_at(&url, "500ms"));
    let [first, second] = [(); 2].map(|()| Served::before(&[&node], &text));
    wait_until_used(&first);
    wait_until_used(&second);
    for tenant in 0..20 {
        assert_eq!(calls([&first, &second], &tenant.to_string(), 8), SIX_PASS);
    }
    let held = nodes.each_ref().map(|node| node.cli(&["DBSIZE"]).parse::<u64>().unwrap());
    assert!(held.iter().all(|held| *held > 0), "each node holds keys: {held:?}");
    assert_eq!(metric(&first, "weir_limit_shared_calls_total{by=\"share\"}"), 0.0);
}

#[test]
fn a_batch_is_judged_call_by_call_and_a_call_waits_its_turn() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let redis = format!(
        "[redis]\nurl = \"{}\"\nresponses = false\ngateways = 2\ntimeout = \"500ms\"\n\
         [zone.all]\nkey = [\"chain\"]\nrate = \"5r/s\"\nshared = true\n\
         [[limit]]\nzone = \"all\"\nburst = 3\n",
        redis.url()
    );
    let served = Served::before(&[&node], &polled_once(&redis));
    wait_until("redis is used", || fallback_threads(&served, "all") == 0.0);
    let call = String::from_utf8(body(CALL, "[]")).unwrap();
    let began = Instant::now();
    let answer = served.client().call("/", format!("[{}]", [&*call; 6].join(",")).as_bytes());
    let took = began.elapsed();
    let items: Vec<serde_json::Value> = serde_json::from_str(answer.text()).unwrap();
    let passed = items.iter().filter(|item| item.get("result").is_some()).count();
    assert_eq!((items.len(), passed), (6, 4), "{}", answer.text());
    assert!(took >= Duration::from_millis(590), "{took:?}");
    assert_eq!(served.count("/zones/0/delayed"), 3);
    assert_eq!(served.count("/zones/0/rejected"), 2);
}
