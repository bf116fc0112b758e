//! Goal: gateways share responses through Redis, in each of its setups. None serves a response
//! about a block that is not in its own view. No failure of Redis causes an error or a wait above
//! the configured one. Method: real `redis-server` processes on free ports, simulated nodes with
//! planned forks, and an oracle that checks all responses.

mod chaos;
mod setups;

use std::sync::Arc;
use std::time::Duration;

use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;

use crate::support::redis_server::Redis;
use crate::support::scene::{
    FINAL, READ, Scene, Served, SimNode, account, ask, mark, polled_often, result,
};
use test_support::raw;
use test_support::wait::wait_until;

const BLOCK: &str = "eth_getBlockByNumber";

/// `[redis]` at a URL. Wide enough for a busy machine: what is measured is measured apart.
fn tier(url: &str, more: &str) -> String {
    let timeout = if more.contains("timeout") { "" } else { "timeout = \"500ms\"\n" };
    format!("[redis]\nurl = \"{url}\"\nbackoff = \"100ms\"\n{timeout}{more}\n")
}

/// A gateway before a node, once its tier is in use.
fn sharing(node: &SimNode, redis: &str) -> Served {
    let served = Served::before(&[node], &polled_often(redis));
    wait_until("the tier is used", || metric(&served, "weir_redis_breakers_open") == 0.0);
    let mut client = served.client();
    // The generation comes a moment later.
    let mut number = 0;
    wait_until("the tier is asked", || {
        number += 1;
        let params = account(number, "0x32");
        ask(&mut client, "eth_getTransactionCount", &params);
        let looked = ["hit", "miss"].map(|outcome| {
            metric(&served, &format!("weir_redis_lookups_total{{outcome=\"{outcome}\"}}"))
        });
        looked[0] + looked[1] > 0.0
    });
    served
}

/// A sample of `/metrics`.
fn metric(served: &Served, name: &str) -> f64 {
    let text = served.look("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn stored(served: &Served) -> f64 {
    metric(served, r#"weir_redis_stores_total{outcome="ok"}"#)
}

/// Calls one gateway, waits until its response is stored, and calls the other, which must not call
/// its node.
fn share(first: &Served, second: &Served, node: &SimNode, method: &str, params: &str) {
    let before = stored(first);
    let theirs = node.result(method, params);
    let answer = ask(&mut first.client(), method, params);
    assert_eq!((result(&answer), mark(&answer)), (theirs.clone(), "miss"), "{method} {params}");
    wait_until(&format!("{method} {params} is stored"), || stored(first) > before);
    let answer = ask(&mut second.client(), method, params);
    assert_eq!((result(&answer), mark(&answer)), (theirs, "hit"), "{method} {params}");
    assert_eq!(answer.header("x-weir-upstream"), None, "the node is another gateway's");
}

#[test]
fn answers_are_shared_and_outlive_the_gateways() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let tier = tier(&redis.url(), "compress_bytes_min = \"1KiB\"");
    let (first, second) = (sharing(&node, &tier), sharing(&node, &tier));
    // Final; bound to the head's block and to the head, once the node was polled again; a large
    // one.
    for (method, params) in [
        (READ, account(1, &format!("{FINAL:#x}"))),
        (READ, account(2, "latest")),
        ("eth_gasPrice", "[]".to_owned()),
        (BLOCK, r#"["latest",true]"#.to_owned()),
        ("eth_chainId", "[]".to_owned()),
    ] {
        share(&first, &second, &node, method, &params);
    }
    let asked = metric(&second, "weir_redis_lookup_duration_seconds_count");
    let hits = metric(&second, r#"weir_redis_lookups_total{outcome="hit"}"#);
    // From memory now.
    assert_eq!(mark(&ask(&mut second.client(), READ, &account(2, "latest"))), "hit");
    assert_eq!(metric(&second, "weir_redis_lookup_duration_seconds_count"), asked);
    assert!(hits >= 5.0, "{hits}");
    first.stop();
    second.stop();
    let third = sharing(&node, &tier);
    let answer = ask(&mut third.client(), READ, &account(2, "latest"));
    let cache = answer.header("x-weir-cache");
    assert_eq!(cache, Some("hit; tier=redis"), "a restart keeps the cache");
    let answer = ask(&mut third.client(), READ, &account(2, "latest"));
    assert_eq!(answer.header("x-weir-cache"), Some("hit"), "from memory now");
}

#[test]
fn the_calls_of_a_batch_share_an_exchange() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let (first, second) =
        (sharing(&node, &tier(&redis.url(), "")), sharing(&node, &tier(&redis.url(), "")));
    let calls: Vec<String> = (0..60)
        .map(|id| {
            let params = account(id, "0x64");
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{READ}","params":{params}}}"#)
        })
        .collect();
    let batch = format!("[{}]", calls.join(","));
    let before = stored(&first);
    let theirs = first.client().call("/", batch.as_bytes());
    wait_until("the batch is stored", || stored(&first) >= before + 60.0);
    let exchanges = || metric(&second, "weir_redis_lookup_duration_seconds_count");
    let commands = || {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_mget:")).unwrap().to_owned();
        let count = line.split(['=', ',']).nth(1).unwrap();
        count.parse::<u64>().unwrap()
    };
    let hits = || metric(&second, r#"weir_redis_lookups_total{outcome="hit"}"#);
    let (asked, commanded, hit) = (exchanges(), commands(), hits());
    let ours = second.client().call("/", batch.as_bytes());
    assert_eq!(ours.text(), theirs.text());
    assert_eq!(hits() - hit, 60.0);
    assert_eq!(exchanges() - asked, 1.0, "one exchange for all of them");
    assert!(commands() - commanded <= 2, "and one MGET; a probe may come between");
}

/// Nodes that stand at 1005, after which blocks 1003 to 1005 are replaced.
fn forking(scene: &Scene) -> [SimNode; 2] {
    let world = WorldOptions {
        height_start: 1_000,
        block_time: Duration::from_millis(20),
        reorgs: vec![Reorg { at_height: 1_005, depth: 3 }],
        ..WorldOptions::default()
    };
    let world = Arc::new(World::new(world).unwrap());
    wait_until("the world is past its fork", || {
        world.height_at(tokio::time::Instant::now()) > 1_010
    });
    ["a", "b"].map(|name| {
        let node = scene.node(name, &world);
        node.set(|settings| settings.frozen_at = Some(1_005));
        node
    })
}

#[test]
fn a_dropped_block_is_served_by_no_gateway_that_knows_of_it() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let nodes = forking(&scene);
    // Nothing is told: what is right must be so by the check on reading alone.
    let tier = tier(&redis.url(), "messages = false");
    let [first, second] = [0, 1].map(|at| sharing(&nodes[at], &tier));
    let reads = [
        (BLOCK, r#"["0x3eb",false]"#.to_owned()),
        (BLOCK, r#"["0x3ed",true]"#.to_owned()),
        (READ, account(7, "0x3ec")),
        ("eth_getBlockReceipts", r#"["0x3ec"]"#.to_owned()),
        ("eth_getLogs", r#"[{"fromBlock":"0x3e9","toBlock":"0x3ec"}]"#.to_owned()),
        (BLOCK, r#"["0x3ea",false]"#.to_owned()),
    ];
    for (method, params) in &reads {
        share(&first, &second, &nodes[0], method, params);
    }
    // The second gateway's node reorganises; entries of both branches are asked for by both.
    nodes[1].set(|settings| settings.frozen_at = Some(1_006));
    second.wait_for_head(Some(1_006));
    let mut changed = 0;
    for _ in 0..3 {
        for (method, params) in &reads {
            let old = nodes[0].result(method, params);
            let new = nodes[1].result(method, params);
            changed += usize::from(old != new);
            assert_eq!(result(&ask(&mut second.client(), method, params)), new, "{method}");
            assert_eq!(result(&ask(&mut first.client(), method, params)), old, "{method}");
        }
    }
    assert!(changed >= 9, "only {changed} answers differ between the branches");
    assert!(metric(&second, r#"weir_redis_lookups_total{outcome="stale"}"#) >= 3.0);
    // A gateway that begins anew knows nothing but what its node shows.
    first.stop();
    let third = sharing(&nodes[0], &tier);
    for (method, params) in &reads {
        let old = nodes[0].result(method, params);
        assert_eq!(result(&ask(&mut third.client(), method, params)), old, "{method} {params}");
    }
    // When the other node follows, what the second has stored is good there too.
    nodes[0].set(|settings| settings.frozen_at = Some(1_006));
    third.wait_for_head(Some(1_006));
    for (method, params) in &reads {
        let new = nodes[0].result(method, params);
        assert_eq!(result(&ask(&mut third.client(), method, params)), new, "{method} {params}");
    }
}

#[test]
fn a_reorg_is_sent_to_the_other_gateways() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let nodes = forking(&scene);
    let [first, second] = [0, 1].map(|at| sharing(&nodes[at], &tier(&redis.url(), "")));
    wait_until("both listen", || redis.cli(&["PUBSUB", "NUMSUB", "weir:messages"]).ends_with('2'));
    nodes[1].set(|settings| settings.frozen_at = Some(1_006));
    let heard =
        |served: &Served| metric(served, r#"weir_redis_messages_total{direction="received"}"#);
    wait_until("the first has heard of it", || heard(&first) >= 1.0);
    assert_eq!(heard(&second), 0.0, "nobody hears himself");
    assert_eq!(first.count("/chains/0/head/number"), 1_005, "its own node decides");
    redis.cli(&["PUBLISH", "weir:messages", "weir1 nonsense"]);
}

#[test]
fn what_others_plant_is_refused_and_counted() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let tier = tier(&redis.url(), "");
    let (first, second) = (sharing(&node, &tier), sharing(&node, &tier));
    let before = stored(&first);
    let reads: Vec<String> = (0..6).map(|number| account(number, "0x64")).collect();
    for params in &reads {
        ask(&mut first.client(), READ, params);
    }
    wait_until("all are stored", || stored(&first) >= before + 6.0);
    let keys = redis.answers();
    assert!(keys.len() >= 6, "{keys:?}");
    for (at, key) in keys.iter().enumerate() {
        match at % 6 {
            0 => drop(redis.cli(&["SET", key, "garbage"])),
            1 => drop(redis.cli(&["SETRANGE", key, "70", "zzzz"])),
            2 => drop(redis.cli(&["APPEND", key, "more"])),
            3 => drop(redis.cli(&["SET", key, ""])),
            // The value of another call, whole and sound.
            4 => drop(redis.cli(&["COPY", &keys[(at + 1) % keys.len()], key, "REPLACE"])),
            _ => {
                redis.cli(&["DEL", key]);
                redis.cli(&["RPUSH", key, "a list"]);
            }
        }
    }
    for params in &reads {
        let answer = ask(&mut second.client(), READ, params);
        assert_eq!(result(&answer), node.result(READ, params));
        assert_eq!(mark(&answer), "miss");
    }
    let outcome = |outcome: &str| {
        metric(&second, &format!("weir_redis_lookups_total{{outcome=\"{outcome}\"}}"))
    };
    assert!(outcome("refused") >= 4.0, "{} refused", outcome("refused"));
    assert_eq!(outcome("error"), 0.0);
    // A generation that is none voids the chain's entries, and a new one is made.
    redis.cli(&["SET", "weir:sim:generation", "no number"]);
    let made = || redis.cli(&["GET", "weir:sim:generation"]);
    wait_until("a new generation is made", || u64::from_str_radix(&made(), 16).is_ok());
}

/// True if the second gateway hits the entry that the first has just stored.
fn share_quietly(first: &Served, second: &mut raw::Client, number: u64) -> bool {
    let before = stored(first);
    ask(&mut first.client(), READ, &account(number, "0x64"));
    wait_until("it is stored", || stored(first) > before);
    mark(&ask(second, READ, &account(number, "0x64"))) == "hit"
}
