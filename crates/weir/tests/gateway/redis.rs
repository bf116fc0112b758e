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

/// Returns a `[redis]` table. Its default timeout suits a busy machine; `chaos` tests latency.
fn tier(url: &str, more: &str) -> String {
    let timeout = if more.contains("timeout") { "" } else { "timeout = \"500ms\"\n" };
    format!("[redis]\nurl = \"{url}\"\nbackoff = \"100ms\"\n{timeout}{more}\n")
}

/// Starts a gateway and waits until it uses Redis.
fn sharing(node: &SimNode, redis: &str) -> Served {
    let served = Served::before(&[node], &polled_often(redis));
    wait_until("the gateway uses Redis", || metric(&served, "weir_redis_breakers_open") == 0.0);
    let mut client = served.client();
    // The gateway reads its chain's generation from Redis a moment later.
    let mut number = 0;
    wait_until("the gateway sends lookups to Redis", || {
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

/// Returns the value of a metric, whose name may include labels.
fn metric(served: &Served, name: &str) -> f64 {
    let text = served.look("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the number of responses that a gateway has stored in Redis.
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
    assert_eq!(
        answer.header("x-weir-upstream"),
        None,
        "the response came from another gateway's node"
    );
}

#[test]
fn answers_are_shared_and_outlive_the_gateways() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let tier = tier(&redis.url(), "compress_bytes_min = \"1KiB\"");
    let (first, second) = (sharing(&node, &tier), sharing(&node, &tier));
    // A final block, the latest block, the head, a large response, and a constant.
    for (method, params) in [
        (READ, account(1, &format!("{FINAL:#x}"))),
        (READ, account(2, "latest")),
        ("eth_gasPrice", "[]".to_owned()),
        (BLOCK, r#"["latest",true]"#.to_owned()),
        ("eth_chainId", "[]".to_owned()),
    ] {
        share(&first, &second, &node, method, &params);
    }
    let lookups_before = metric(&second, "weir_redis_lookup_duration_seconds_count");
    let hits = metric(&second, r#"weir_redis_lookups_total{outcome="hit"}"#);
    // The second gateway now has the response in memory.
    assert_eq!(mark(&ask(&mut second.client(), READ, &account(2, "latest"))), "hit");
    assert_eq!(metric(&second, "weir_redis_lookup_duration_seconds_count"), lookups_before);
    assert!(hits >= 5.0, "{hits}");
    first.stop();
    second.stop();
    let third = sharing(&node, &tier);
    let answer = ask(&mut third.client(), READ, &account(2, "latest"));
    let cache = answer.header("x-weir-cache");
    assert_eq!(cache, Some("hit; tier=redis"), "a restart keeps the cache");
    let answer = ask(&mut third.client(), READ, &account(2, "latest"));
    assert_eq!(
        answer.header("x-weir-cache"),
        Some("hit"),
        "the gateway must now have the response in memory"
    );
}

#[test]
fn the_calls_of_a_batch_share_one_redis_lookup() {
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
    let first_response = first.client().call("/", batch.as_bytes());
    wait_until("the batch is stored", || stored(&first) >= before + 60.0);
    let exchanges = || metric(&second, "weir_redis_lookup_duration_seconds_count");
    let commands = || {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_mget:")).unwrap().to_owned();
        let count = line.split(['=', ',']).nth(1).unwrap();
        count.parse::<u64>().unwrap()
    };
    let hits = || metric(&second, r#"weir_redis_lookups_total{outcome="hit"}"#);
    let (exchanges_before, commands_before, hits_before) = (exchanges(), commands(), hits());
    let second_response = second.client().call("/", batch.as_bytes());
    assert_eq!(second_response.text(), first_response.text());
    assert_eq!(hits() - hits_before, 60.0);
    assert_eq!(exchanges() - exchanges_before, 1.0, "one exchange for all calls");
    assert!(commands() - commands_before <= 2, "one MGET, and perhaps one of a probe");
}

/// Starts two nodes that are frozen at block 1005. The next block replaces blocks 1003 to 1005.
fn forking_nodes(scene: &Scene) -> [SimNode; 2] {
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
fn no_gateway_serves_a_block_that_its_node_has_dropped() {
    let Some(redis) = Redis::start(&[]) else { return };
    let scene = Scene::set();
    let nodes = forking_nodes(&scene);
    // Gateways exchange no messages, so correctness relies on the check at each lookup.
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
    // The second gateway's node reorganises. Both gateways then request entries of both branches.
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
    // A restarted gateway knows only its node's branch.
    first.stop();
    let third = sharing(&nodes[0], &tier);
    for (method, params) in &reads {
        let old = nodes[0].result(method, params);
        assert_eq!(result(&ask(&mut third.client(), method, params)), old, "{method} {params}");
    }
    // Once the first node reorganises too, its gateway may use the second gateway's entries.
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
    let nodes = forking_nodes(&scene);
    let [first, second] = [0, 1].map(|at| sharing(&nodes[at], &tier(&redis.url(), "")));
    wait_until("both listen", || redis.cli(&["PUBSUB", "NUMSUB", "weir:messages"]).ends_with('2'));
    nodes[1].set(|settings| settings.frozen_at = Some(1_006));
    let received =
        |served: &Served| metric(served, r#"weir_redis_messages_total{direction="received"}"#);
    wait_until("the first gateway has received the message", || received(&first) >= 1.0);
    assert_eq!(received(&second), 0.0, "a gateway ignores its own messages");
    assert_eq!(
        first.count("/chains/0/head/number"),
        1_005,
        "the head is that of the gateway's own node"
    );
    redis.cli(&["PUBLISH", "weir:messages", "weir1 nonsense"]);
}

#[test]
fn invalid_entries_are_rejected_and_counted() {
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
    for (index, key) in keys.iter().enumerate() {
        match index % 6 {
            0 => drop(redis.cli(&["SET", key, "garbage"])),
            1 => drop(redis.cli(&["SETRANGE", key, "70", "zzzz"])),
            2 => drop(redis.cli(&["APPEND", key, "more"])),
            3 => drop(redis.cli(&["SET", key, ""])),
            // A valid value, but of another call.
            4 => drop(redis.cli(&["COPY", &keys[(index + 1) % keys.len()], key, "REPLACE"])),
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
    // An invalid generation invalidates the chain's entries, and the gateway creates a new one.
    redis.cli(&["SET", "weir:sim:generation", "no number"]);
    let generation = || redis.cli(&["GET", "weir:sim:generation"]);
    wait_until("a new generation exists", || u64::from_str_radix(&generation(), 16).is_ok());
}

/// Stores a response through the first gateway. Returns true if the second gateway then hits it.
fn is_shared(first: &Served, second: &mut raw::Client, number: u64) -> bool {
    let before = stored(first);
    ask(&mut first.client(), READ, &account(number, "0x64"));
    wait_until("it is stored", || stored(first) > before);
    mark(&ask(second, READ, &account(number, "0x64"))) == "hit"
}
