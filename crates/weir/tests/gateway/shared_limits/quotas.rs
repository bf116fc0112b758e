//! Monthly quotas of keys over sockets: responses, persistence over a restart, and two gateways
//! that share a quota.

use std::path::Path;

use tempfile::TempDir;

use super::outage::metric;
use crate::support::redis_server::Redis;
use crate::support::scene::{Scene, Served, SimNode, body, polled_once};
use test_support::raw::{Answer, post_with};
use test_support::wait::wait_until;

const KEY: &str = "weir_paid_0123456789abcdef";

/// A gateway with one key and this monthly quota of calls.
fn served(node: &SimNode, folder: &Path, quota: u64, more: &str) -> Served {
    let file = folder.join("quotas.json");
    let text = format!(
        "[quota]\nfile = \"{}\"\ncost = \"call\"\n{more}\n\
         [[key]]\nname = \"paid\"\nsecret = \"{KEY}\"\nquota = {quota}\n",
        file.display()
    );
    Served::before(&[node], &polled_once(&text))
}

fn ask(served: &Served, body: &[u8]) -> Answer {
    let mut client = served.client();
    client.send(&post_with("/", &format!("x-api-key: {KEY}\r\n"), body));
    client.answer().unwrap()
}

fn call() -> Vec<u8> {
    body("eth_blockNumber", "[]")
}

fn used(served: &Served) -> f64 {
    metric(served, "weir_quota_used_units{key=\"paid\"}")
}

#[test]
fn a_quota_is_reported_and_outlives_a_restart() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let folder = TempDir::new().unwrap();
    let first = served(&node, folder.path(), 5, "");
    // What is not served costs nothing.
    assert!(ask(&first, &body("admin_peers", "[]")).text().contains("-32601"));
    assert_eq!(used(&first), 0.0);
    for _ in 0..4 {
        assert_eq!(ask(&first, &call()).status, 200);
    }
    // Of a batch the calls that still fit pass.
    let one = String::from_utf8(call()).unwrap();
    let batch = ask(&first, format!("[{one},{one}]").as_bytes());
    assert_eq!((batch.status, batch.text().matches("-32005").count()), (200, 1));
    let refused = ask(&first, &call());
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.text(),
        "{\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":-32005,\"message\":\"the quota of this API \
         key is used up for this month\"}}"
    );
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31 * 86_400).contains(&retry), "{retry}");
    assert_eq!((used(&first), metric(&first, "weir_quota_limit_units{key=\"paid\"}")), (5.0, 5.0));
    assert_eq!(metric(&first, "weir_quota_refused_total"), 2.0);
    assert_eq!(ask(&first, format!("[{one},{one}]").as_bytes()).status, 429);
    first.stop();
    let second = served(&node, folder.path(), 5, "");
    assert_eq!(ask(&second, &call()).status, 429, "a restart gave a new quota");
    second.stop();
    let third = served(&node, folder.path(), 6, "");
    assert_eq!([ask(&third, &call()).status, ask(&third, &call()).status], [200, 429]);
    drop(third);
    let text = std::fs::read_to_string(folder.path().join("quotas.json")).unwrap();
    assert!(text.contains("\"paid\": 6"), "{text}");
}

#[test]
fn two_gateways_count_together_and_restore_what_redis_lost() {
    let Some(mut redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let more = format!(
        "shared = true\n[redis]\nurl = \"{}\"\nresponses = false\ngateways = 2\nbackoff = \"100ms\"\n",
        redis.url()
    );
    let folders = [(); 2].map(|()| TempDir::new().unwrap());
    let [first, second] = [0, 1].map(|at| served(&node, folders[at].path(), 20, &more));
    let heard = |served: &Served| metric(served, "weir_quota_local_only") == 0.0;
    wait_until("both hear", || heard(&first) && heard(&second));
    for _ in 0..12 {
        assert_eq!(ask(&first, &call()).status, 200);
    }
    assert_eq!(ask(&second, &call()).status, 200);
    wait_until("the second has heard of the first", || used(&second) == 13.0);
    let passed = (0..12).filter(|_| ask(&second, &call()).status == 200).count();
    assert_eq!(passed, 7);
    wait_until("the first has heard of the second", || {
        ask(&first, &call());
        used(&first) >= 20.0
    });
    assert_eq!(ask(&first, &call()).status, 429);
    // Redis is gone: nobody gets anything new of a quota that is used up.
    redis.kill();
    wait_until("both are alone", || !heard(&first) && !heard(&second));
    assert_eq!([ask(&first, &call()).status, ask(&second, &call()).status], [429, 429]);
    redis.start_again();
    wait_until("both hear again", || heard(&first) && heard(&second));
    let told = || redis.cli(&["--scan", "--pattern", "weir:quota:*:paid"]);
    wait_until("redis is told again", || {
        ask(&first, &call());
        let key = told();
        !key.is_empty() && redis.cli(&["GET", &key]).parse::<u64>().is_ok_and(|units| units >= 20)
    });
    let left: i64 = redis.cli(&["TTL", &told()]).parse().unwrap();
    assert!((1..=32 * 86_400).contains(&left), "{left}");
}
