//! Monthly quotas of API keys, over sockets: the gateway's responses and reports, persistence over
//! a restart, and two gateways that share a quota.

use std::path::Path;

use tempfile::TempDir;

use super::outage::metric;
use crate::support::harness::{NodeRuntime, SimNode, TestGateway, body, chain_polled_once};
use crate::support::redis_server::Redis;
use test_support::raw::{Response, post_with};
use test_support::wait::wait_until;

const KEY: &str = "weir_paid_0123456789abcdef";

/// Starts a gateway with one API key and this monthly quota of calls. `more` is further
/// configuration, whose first keys belong to the table `quota`.
fn start_gateway(node: &SimNode, folder: &Path, quota: u64, more: &str) -> TestGateway {
    let file = folder.join("quotas.json");
    let text = format!(
        "[quota]\nfile = \"{}\"\ncost = \"call\"\n{more}\n\
         [[key]]\nname = \"paid\"\nsecret = \"{KEY}\"\nquota = {quota}\n",
        file.display()
    );
    TestGateway::in_front_of(&[node], &chain_polled_once(&text))
}

fn ask(gateway: &TestGateway, body: &[u8]) -> Response {
    let mut client = gateway.client();
    client.send(&post_with("/", &format!("x-api-key: {KEY}\r\n"), body));
    client.read_response().unwrap()
}

fn call() -> Vec<u8> {
    body("eth_blockNumber", "[]")
}

/// Returns the units of the quota that a gateway reports as used.
fn used_units(gateway: &TestGateway) -> f64 {
    metric(gateway, "weir_quota_used_units{key=\"paid\"}")
}

#[test]
fn a_quota_is_reported_and_outlives_a_restart() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let folder = TempDir::new().unwrap();
    let first = start_gateway(&node, folder.path(), 5, "");
    // A rejected method costs nothing.
    assert!(ask(&first, &body("admin_peers", "[]")).text().contains("-32601"));
    assert_eq!(used_units(&first), 0.0);
    for _ in 0..4 {
        assert_eq!(ask(&first, &call()).status, 200);
    }
    // The quota has one unit left, so one call of the batch passes.
    let one_call = String::from_utf8(call()).unwrap();
    let batch = ask(&first, format!("[{one_call},{one_call}]").as_bytes());
    assert_eq!((batch.status, batch.text().matches("-32005").count()), (200, 1));
    let refused = ask(&first, &call());
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.text(),
        "{\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32005,\"message\":\"the quota of this API \
         key is used up for this month\"}}"
    );
    let retry_after_seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31 * 86_400).contains(&retry_after_seconds), "{retry_after_seconds}");
    let limit_units = metric(&first, "weir_quota_limit_units{key=\"paid\"}");
    assert_eq!((used_units(&first), limit_units), (5.0, 5.0));
    assert_eq!(metric(&first, "weir_quota_refused_total"), 2.0);
    assert_eq!(ask(&first, format!("[{one_call},{one_call}]").as_bytes()).status, 429);
    first.stop();
    let second = start_gateway(&node, folder.path(), 5, "");
    assert_eq!(ask(&second, &call()).status, 429, "a restart gave a new quota");
    second.stop();
    let third = start_gateway(&node, folder.path(), 6, "");
    assert_eq!([ask(&third, &call()).status, ask(&third, &call()).status], [200, 429]);
    drop(third);
    let text = std::fs::read_to_string(folder.path().join("quotas.json")).unwrap();
    assert!(text.contains("\"paid\": 6"), "{text}");
}

#[test]
fn two_gateways_count_together_and_restore_what_redis_lost() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let settings = format!(
        "shared = true\n[redis]\nurl = \"{}\"\nresponses = false\ngateways = 2\nbackoff = \"100ms\"\n",
        redis.url()
    );
    let folders = [(); 2].map(|()| TempDir::new().unwrap());
    let [first, second] =
        [0, 1].map(|index| start_gateway(&node, folders[index].path(), 20, &settings));
    let uses_redis = |gateway: &TestGateway| metric(gateway, "weir_quota_local_only") == 0.0;
    wait_until("both gateways use Redis", || uses_redis(&first) && uses_redis(&second));
    for _ in 0..12 {
        assert_eq!(ask(&first, &call()).status, 200);
    }
    assert_eq!(ask(&second, &call()).status, 200);
    wait_until("the second gateway counts the calls of the first", || used_units(&second) == 13.0);
    let passed = (0..12).filter(|_| ask(&second, &call()).status == 200).count();
    assert_eq!(passed, 7);
    wait_until("the first gateway counts the calls of the second", || {
        ask(&first, &call());
        used_units(&first) >= 20.0
    });
    assert_eq!(ask(&first, &call()).status, 429);
    // A quota that is used up remains so while Redis is down.
    redis.kill();
    wait_until("both gateways notice the outage", || !uses_redis(&first) && !uses_redis(&second));
    assert_eq!([ask(&first, &call()).status, ask(&second, &call()).status], [429, 429]);
    redis.start_again();
    wait_until("both gateways use Redis again", || uses_redis(&first) && uses_redis(&second));
    let quota_key = || redis.cli(&["--scan", "--pattern", "weir:quota:*:paid"]);
    wait_until("redis has the count again", || {
        ask(&first, &call());
        let key = quota_key();
        !key.is_empty() && redis.cli(&["GET", &key]).parse::<u64>().is_ok_and(|units| units >= 20)
    });
    let ttl_seconds: i64 = redis.cli(&["TTL", &quota_key()]).parse().unwrap();
    assert!((1..=32 * 86_400).contains(&ttl_seconds), "{ttl_seconds}");
}
