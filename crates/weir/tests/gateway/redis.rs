//! Goal: gateways share responses through Redis, as a second tier of the cache, in each setup of
//! Redis. A gateway serves a response about a block only if its own node has that block. If Redis
//! fails, no client gets an error, and no call waits longer than the configured timeout.
//!
//! Method: real `redis-server` processes on free ports, and simulated nodes with planned forks. In
//! `chaos`, the oracle of the simulated chain checks all responses.

mod chaos;
mod setups;

use std::sync::Arc;
use std::time::Duration;

use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;

use crate::support::harness::{
    FINALIZED_BLOCK, GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params,
    cache_status, chain_polled_often, result,
};
use crate::support::redis_server::Redis;
use test_support::raw;
use test_support::wait::wait_until;

const BLOCK: &str = "eth_getBlockByNumber";

/// Returns a `[redis]` table. `more` has further lines. The default timeout is for a busy machine.
/// `chaos` tests the latency with a short timeout.
fn redis_table(url: &str, more: &str) -> String {
    let timeout = if more.contains("timeout") { "" } else { "timeout = \"500ms\"\n" };
    format!("[redis]\nurl = \"{url}\"\nbackoff = \"100ms\"\n{timeout}{more}\n")
}

/// Starts a gateway and waits until it uses Redis.
fn start_with_redis(node: &SimNode, redis: &str) -> TestGateway {
    let gateway = TestGateway::in_front_of(&[node], &chain_polled_often(redis));
    wait_until("the gateway uses Redis", || metric(&gateway, "weir_redis_breakers_open") == 0.0);
    let mut client = gateway.client();
    // A moment later, the gateway reads the generation of its chain from Redis. The generation is
    // part of all keys, so the gateway sends no lookups before.
    let mut number = 0;
    wait_until("the gateway sends lookups to Redis", || {
        number += 1;
        let params = balance_params(number, "0x32");
        ask(&mut client, "eth_getTransactionCount", &params);
        let [hits, misses] = ["hit", "miss"].map(|outcome| {
            metric(&gateway, &format!("weir_redis_lookups_total{{outcome=\"{outcome}\"}}"))
        });
        hits + misses > 0.0
    });
    gateway
}

/// Returns the value of a metric. `name` may include labels.
fn metric(gateway: &TestGateway, name: &str) -> f64 {
    let text = gateway.get_admin("/metrics").text().to_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the number of responses that a gateway has stored in Redis.
fn stored(gateway: &TestGateway) -> f64 {
    metric(gateway, r#"weir_redis_stores_total{outcome="ok"}"#)
}

/// Sends a call to the first gateway, waits until the gateway has stored the response, and sends
/// the same call to the second gateway. Asserts that the second gateway reads the response from
/// Redis and does not call its node.
fn assert_shared(
    first: &TestGateway,
    second: &TestGateway,
    node: &SimNode,
    method: &str,
    params: &str,
) {
    let before = stored(first);
    let expected = node.call(method, params);
    let answer = ask(&mut first.client(), method, params);
    let found = (result(&answer), cache_status(&answer));
    assert_eq!(found, (expected.clone(), "miss"), "{method} {params}");
    wait_until(&format!("{method} {params} is stored"), || stored(first) > before);
    let answer = ask(&mut second.client(), method, params);
    let found = (result(&answer), cache_status(&answer));
    assert_eq!(found, (expected, "hit"), "{method} {params}");
    assert_eq!(
        answer.header("x-weir-upstream"),
        None,
        "the response came from another gateway's node"
    );
}

#[test]
fn answers_are_shared_and_outlive_the_gateways() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let table = redis_table(&redis.url(), "compress_bytes_min = \"1KiB\"");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    // Calls about a final block and the latest block, a call that depends on the newest block, a
    // large response, and a constant.
    for (method, params) in [
        (GET_BALANCE, balance_params(1, &format!("{FINALIZED_BLOCK:#x}"))),
        (GET_BALANCE, balance_params(2, "latest")),
        ("eth_gasPrice", "[]".to_owned()),
        (BLOCK, r#"["latest",true]"#.to_owned()),
        ("eth_chainId", "[]".to_owned()),
    ] {
        assert_shared(&first, &second, &node, method, &params);
    }
    let lookups_before = metric(&second, "weir_redis_lookup_duration_seconds_count");
    let hits = metric(&second, r#"weir_redis_lookups_total{outcome="hit"}"#);
    // The second gateway now has the response in memory.
    let answer = ask(&mut second.client(), GET_BALANCE, &balance_params(2, "latest"));
    assert_eq!(cache_status(&answer), "hit");
    assert_eq!(metric(&second, "weir_redis_lookup_duration_seconds_count"), lookups_before);
    assert!(hits >= 5.0, "{hits}");
    first.stop();
    second.stop();
    let third = start_with_redis(&node, &table);
    let answer = ask(&mut third.client(), GET_BALANCE, &balance_params(2, "latest"));
    let cache = answer.header("x-weir-cache");
    assert_eq!(cache, Some("hit; tier=redis"), "a restart keeps the cache");
    let answer = ask(&mut third.client(), GET_BALANCE, &balance_params(2, "latest"));
    assert_eq!(
        answer.header("x-weir-cache"),
        Some("hit"),
        "the gateway must now have the response in memory"
    );
}

#[test]
fn the_calls_of_a_batch_share_one_redis_lookup() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let table = redis_table(&redis.url(), "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    let calls: Vec<String> = (0..60)
        .map(|id| {
            let params = balance_params(id, "0x64");
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{GET_BALANCE}","params":{params}}}"#)
        })
        .collect();
    let batch = format!("[{}]", calls.join(","));
    let before = stored(&first);
    let first_response = first.client().call("/", batch.as_bytes());
    wait_until("the batch is stored", || stored(&first) >= before + 60.0);
    // One exchange is a request to Redis and its reply.
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

/// Starts two nodes of one chain that are frozen at block 1005. In the next block, the chain
/// reorganises: it replaces the blocks 1003 to 1005.
fn forking_nodes(runtime: &NodeRuntime) -> [SimNode; 2] {
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
        let node = runtime.node(name, &world);
        node.set(|settings| settings.frozen_at = Some(1_005));
        node
    })
}

#[test]
fn no_gateway_serves_a_block_that_its_node_has_dropped() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let nodes = forking_nodes(&runtime);
    // Gateways exchange no messages. So only the check at each lookup makes the responses correct.
    let table = redis_table(&redis.url(), "messages = false");
    let [first, second] = [0, 1].map(|index| start_with_redis(&nodes[index], &table));
    let reads = [
        (BLOCK, r#"["0x3eb",false]"#.to_owned()),
        (BLOCK, r#"["0x3ed",true]"#.to_owned()),
        (GET_BALANCE, balance_params(7, "0x3ec")),
        ("eth_getBlockReceipts", r#"["0x3ec"]"#.to_owned()),
        ("eth_getLogs", r#"[{"fromBlock":"0x3e9","toBlock":"0x3ec"}]"#.to_owned()),
        (BLOCK, r#"["0x3ea",false]"#.to_owned()),
    ];
    // Logs of recent blocks are shared only once they were returned twice, a minute apart.
    for (method, params) in reads.iter().filter(|(method, _)| *method != "eth_getLogs") {
        assert_shared(&first, &second, &nodes[0], method, params);
    }
    // The second gateway's node reorganises. Then Redis has entries of both branches, and both
    // gateways look them up.
    nodes[1].set(|settings| settings.frozen_at = Some(1_006));
    second.wait_for_head(Some(1_006));
    let mut changed = 0;
    for _ in 0..3 {
        for (method, params) in &reads {
            let old = nodes[0].call(method, params);
            let new = nodes[1].call(method, params);
            changed += usize::from(old != new);
            assert_eq!(result(&ask(&mut second.client(), method, params)), new, "{method}");
            assert_eq!(result(&ask(&mut first.client(), method, params)), old, "{method}");
        }
    }
    assert!(changed >= 9, "only {changed} answers differ between the branches");
    assert!(metric(&second, r#"weir_redis_lookups_total{outcome="stale"}"#) >= 3.0);
    // A restarted gateway knows only the branch of its own node.
    first.stop();
    let third = start_with_redis(&nodes[0], &table);
    for (method, params) in &reads {
        let old = nodes[0].call(method, params);
        assert_eq!(result(&ask(&mut third.client(), method, params)), old, "{method} {params}");
    }
    // When the first node has reorganised too, its gateway may use entries of the second gateway.
    nodes[0].set(|settings| settings.frozen_at = Some(1_006));
    third.wait_for_head(Some(1_006));
    for (method, params) in &reads {
        let new = nodes[0].call(method, params);
        assert_eq!(result(&ask(&mut third.client(), method, params)), new, "{method} {params}");
    }
}

#[test]
fn a_reorg_is_sent_to_the_other_gateways() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let nodes = forking_nodes(&runtime);
    let table = redis_table(&redis.url(), "");
    let [first, second] = [0, 1].map(|index| start_with_redis(&nodes[index], &table));
    wait_until("both listen", || redis.cli(&["PUBSUB", "NUMSUB", "weir:messages"]).ends_with('2'));
    nodes[1].set(|settings| settings.frozen_at = Some(1_006));
    let received = |gateway: &TestGateway| {
        metric(gateway, r#"weir_redis_messages_total{direction="received"}"#)
    };
    wait_until("the first gateway has received the message", || received(&first) >= 1.0);
    assert_eq!(received(&second), 0.0, "a gateway ignores its own messages");
    assert_eq!(
        first.status_u64("/chains/0/head/number"),
        1_005,
        "the head is that of the gateway's own node"
    );
    redis.cli(&["PUBLISH", "weir:messages", "weir1 nonsense"]);
}

#[test]
fn invalid_entries_are_rejected_and_counted() {
    let Some(redis) = Redis::start(&[]) else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let table = redis_table(&redis.url(), "");
    let (first, second) = (start_with_redis(&node, &table), start_with_redis(&node, &table));
    let before = stored(&first);
    let reads: Vec<String> = (0..6).map(|account| balance_params(account, "0x64")).collect();
    for params in &reads {
        ask(&mut first.client(), GET_BALANCE, params);
    }
    wait_until("all are stored", || stored(&first) >= before + 6.0);
    let keys = redis.response_keys();
    assert!(keys.len() >= 6, "{keys:?}");
    for (index, key) in keys.iter().enumerate() {
        match index % 6 {
            0 => drop(redis.cli(&["SET", key, "garbage"])),
            1 => drop(redis.cli(&["SETRANGE", key, "70", "zzzz"])),
            2 => drop(redis.cli(&["APPEND", key, "more"])),
            3 => drop(redis.cli(&["SET", key, ""])),
            // This value is valid, but belongs to another call.
            4 => drop(redis.cli(&["COPY", &keys[(index + 1) % keys.len()], key, "REPLACE"])),
            _ => {
                redis.cli(&["DEL", key]);
                redis.cli(&["RPUSH", key, "a list"]);
            }
        }
    }
    for params in &reads {
        let answer = ask(&mut second.client(), GET_BALANCE, params);
        assert_eq!(result(&answer), node.call(GET_BALANCE, params));
        assert_eq!(cache_status(&answer), "miss");
    }
    let outcome = |outcome: &str| {
        metric(&second, &format!("weir_redis_lookups_total{{outcome=\"{outcome}\"}}"))
    };
    assert!(outcome("refused") >= 4.0, "{} refused", outcome("refused"));
    assert_eq!(outcome("error"), 0.0);
    // If the generation of the chain is invalid, the gateway creates a new one. That invalidates
    // all entries of the chain.
    redis.cli(&["SET", "weir:sim:generation", "no number"]);
    let generation = || redis.cli(&["GET", "weir:sim:generation"]);
    wait_until("a new generation exists", || u64::from_str_radix(&generation(), 16).is_ok());
}

/// Sends a call to the first gateway, which stores the response in Redis. Returns true if the
/// second gateway then has a cache hit for the same call.
fn is_shared(first: &TestGateway, second: &mut raw::Client, account: u64) -> bool {
    let before = stored(first);
    let params = balance_params(account, "0x64");
    ask(&mut first.client(), GET_BALANCE, &params);
    wait_until("it is stored", || stored(first) > before);
    cache_status(&ask(second, GET_BALANCE, &params)) == "hit"
}
