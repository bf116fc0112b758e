//! Goal: the head, the newest block that clients get, follows the chain at any block time, latency
//! and depth of a reorg, past heights without a block, and beside nodes that sync. A head that
//! stands still is reported.
//!
//! Method: the gateway and simulated nodes, in virtual time. The inputs of the public faults are in
//! `testdata/public-faults`: `null-rounds.json`, `reorg-of-a-single-upstream.json` and
//! `start-beside-a-node-at-block-0.json`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::MemoryConnector;
use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::simulated::Simulation;
use serde_json::{Value, json};
use simnode::node::Node;
use simnode::node::settings::{Latency, Settings};
use simnode::rpc::SkippedHeight;
use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;
use tokio::io::DuplexStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::{Instant, sleep};

use crate::late_logs::socket::WebSocketClient;
use crate::sim::connection::Connection;
use crate::support::growing_chain::parse_quantity;

/// Buffer size of a stream between the gateway and a node.
const STREAM_BYTES: usize = 256 * 1024;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a test in virtual time.
fn in_virtual_time(test: impl Future<Output = ()>) {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build_local(LocalOptions::default()).unwrap().block_on(test);
}

fn node(world: &Arc<World>, name: &str, change: impl FnOnce(&mut Settings)) -> Arc<Node> {
    let node = Node::new(name, Arc::clone(world));
    node.set(change).unwrap();
    node
}

/// Starts a gateway in front of these nodes. `chain` has lines of the chain's table.
fn start(nodes: &[Arc<Node>], chain: &str) -> Simulation {
    let mut text = format!("[chain.sim]\n{chain}\n");
    for node in nodes {
        let name = node.name();
        text.push_str(&format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{name}.local\"\n"));
    }
    let config = Config::from_text("heads", &text, Path::new(""), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let (admin, threads) = (AdminOverride::Off, Some(1));
    let config = config.with_overrides(&Overrides { listen, admin, threads, no_cache: false });
    let connector = |node: &Arc<Node>| -> MemoryConnector {
        let node = Arc::clone(node);
        Arc::new(move || {
            let (gateway_end, node_end) = tokio::io::duplex(STREAM_BYTES);
            tokio::spawn(simnode::serve::serve_connection(Arc::clone(&node), node_end));
            Ok(gateway_end)
        })
    };
    Simulation::start(config, nodes.iter().map(connector).collect(), 1)
}

fn connect(gateway: &Simulation) -> DuplexStream {
    gateway.connect(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Sends a call and returns the whole response.
async fn call(client: &mut Connection<DuplexStream>, method: &str, params: &Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    client.send(body.to_string().as_bytes()).await.unwrap();
    serde_json::from_slice(&client.receive().await.unwrap().body).unwrap()
}

/// Returns the block at a height as a client gets it.
async fn block(client: &mut Connection<DuplexStream>, number: u64) -> Value {
    call(client, "eth_getBlockByNumber", &json!([format!("{number:#x}"), false])).await
}

/// Asserts that the client gets the chain's blocks at these heights.
async fn assert_blocks(
    client: &mut Connection<DuplexStream>,
    world: &World,
    numbers: impl Iterator<Item = u64>,
) {
    let head = world.height_at(Instant::now());
    for number in numbers {
        let expected = world.hash_at(head, number).unwrap().to_string();
        assert_eq!(block(client, number).await["result"]["hash"], expected, "block {number}");
    }
}

/// The number of blocks by which the gateway is behind the chain.
fn lag(gateway: &Simulation, world: &World) -> u64 {
    world.height_at(Instant::now()) - gateway.head().unwrap_or(0)
}

#[test]
fn a_single_node_is_followed_through_a_deep_reorg() {
    for (block_ms, poll, depth) in
        [(300, 500, 12), (300, 500, 30), (100, 500, 64), (50, 1000, 30), (1000, 500, 30)]
    {
        in_virtual_time(async move {
            let (height_start, at_height) = (2000, 2040);
            let options = WorldOptions {
                height_start,
                block_time: ms(block_ms),
                finality_depth: 90,
                reorgs: vec![Reorg { at_height, depth }],
                ..WorldOptions::default()
            };
            let world = Arc::new(World::new(options).unwrap());
            let nodes = [node(&world, "a", |settings| {
                settings.latency = Latency::Constant { ms: 20.0 };
            })];
            let chain = format!("block_time = \"{block_ms}ms\"\npoll_interval = \"{poll}ms\"");
            let gateway = start(&nodes, &chain);
            // Sleeps: virtual time until the reorg and some polls after it.
            sleep(ms(block_ms * (at_height + 1 - height_start) + poll * 6)).await;
            let allowed = poll / block_ms + 3;
            for _ in 0..20 {
                let behind = lag(&gateway, &world);
                assert!(behind <= allowed, "{block_ms} ms, depth {depth}: {behind} blocks behind");
                sleep(ms(poll / 2)).await; // Sleeps: virtual time.
            }
            let mut client = Connection::new(connect(&gateway));
            assert_blocks(&mut client, &world, at_height - depth..at_height + 2).await;
            let chain = &gateway.status().chains[0];
            assert_eq!(chain.reorgs, 1, "depth {depth}");
            assert!(chain.head_stall.is_none());
            assert!(chain.finalized.unwrap() <= world.finalized_number(gateway.head().unwrap()));
        });
    }
}

#[test]
fn the_head_rises_as_fast_as_the_chain_if_headers_take_longer_than_blocks() {
    for (block_ms, latency_ms, upstreams) in [(100, 400, 1), (50, 400, 2), (300, 1500, 1)] {
        in_virtual_time(async move {
            let options = WorldOptions { block_time: ms(block_ms), ..WorldOptions::default() };
            let world = Arc::new(World::new(options).unwrap());
            let slow = |settings: &mut Settings| {
                settings.latency = Latency::Constant { ms: latency_ms as f64 }
            };
            let names = &["a", "b"][..upstreams];
            let nodes: Vec<_> = names.iter().map(|name| node(&world, name, slow)).collect();
            let chain = format!("block_time = \"{block_ms}ms\"\npoll_interval = \"500ms\"");
            let gateway = start(&nodes, &chain);
            sleep(Duration::from_secs(20)).await; // Sleeps: virtual time.
            // The poll interval, two polls of which one queries the finalized height too, and the
            // headers in at most five rounds.
            let allowed = (500 + 8 * latency_ms) / block_ms;
            for _ in 0..40 {
                let behind = lag(&gateway, &world);
                assert!(
                    behind <= allowed,
                    "{block_ms} ms, {latency_ms} ms: {behind} blocks behind"
                );
                sleep(ms(700)).await; // Sleeps: virtual time.
            }
            assert_eq!(gateway.status().chains[0].reorgs, 0);
        });
    }
}

#[test]
fn heights_without_a_block_do_not_stop_the_head() {
    let variants = [SkippedHeight::Null, SkippedHeight::Error, SkippedHeight::BlockBelow];
    for (variant, upstreams) in variants.into_iter().flat_map(|v| [(v, 1), (v, 2), (v, 3)]) {
        in_virtual_time(async move {
            let options = WorldOptions {
                height_start: 1003,
                block_time: ms(400),
                skip_every: Some(10),
                ..WorldOptions::default()
            };
            let world = Arc::new(World::new(options).unwrap());
            let set = |settings: &mut Settings| settings.keeping.skipped_heights = variant;
            let names = &["a", "b", "c"][..upstreams];
            let nodes: Vec<_> = names.iter().map(|name| node(&world, name, set)).collect();
            let gateway = start(&nodes, "block_time = \"400ms\"");
            sleep(ms(500)).await; // Sleeps: virtual time until the first head.
            let mut socket = WebSocketClient::open(connect(&gateway)).await.unwrap();
            let subscribe =
                r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newHeads"]}"#;
            socket.send(subscribe).await.unwrap();
            assert!(socket.next().await.unwrap()["result"].is_string());
            let mut numbers = Vec::new();
            let until = Instant::now() + Duration::from_secs(30);
            while let Ok(message) = tokio::time::timeout_at(until, socket.next()).await {
                let head = &message.unwrap()["params"]["result"];
                let number = parse_quantity(&head["number"]);
                numbers.push(number);
                // Two polls take two seconds. The chain has five blocks in this time.
                let behind = lag(&gateway, &world);
                assert!(behind <= 6, "{variant:?}, {upstreams} upstreams: {behind} blocks behind");
            }
            let (first, last) = (numbers[0], *numbers.last().unwrap());
            let expected: Vec<u64> =
                (first..=last).filter(|number| !world.options().is_skipped(*number)).collect();
            assert_eq!(numbers, expected, "each block once");
            assert!(expected.len() > 50, "{}", expected.len());
            let mut client = Connection::new(connect(&gateway));
            // A call for a height without a block gets the node's own response.
            for number in [1019, 1029] {
                let response = block(&mut client, number).await;
                match variant {
                    SkippedHeight::Null => assert!(response["result"].is_null(), "{response}"),
                    SkippedHeight::Error => assert_eq!(response["error"]["code"], 12, "{response}"),
                    SkippedHeight::BlockBelow => {
                        let below = format!("{:#x}", number - 1);
                        assert_eq!(response["result"]["number"], below, "{response}");
                    }
                }
                let blocks = [number - 1, number + 1].into_iter();
                assert_blocks(&mut client, &world, blocks).await;
            }
            assert_eq!(gateway.status().chains[0].reorgs, 0);
        });
    }
}

/// A node at block 0, or one that syncs, beside a node at the head that responds later.
#[test]
fn a_node_that_syncs_serves_nothing_beside_a_healthy_one() {
    // The number of nodes at block 0 and of nodes that sync, and the time of the healthy one.
    for (zeros, syncing, late_ms) in
        [(1, 0, 300), (2, 0, 300), (0, 1, 300), (0, 2, 300), (1, 1, 900)]
    {
        in_virtual_time(async move {
            let options = WorldOptions {
                height_start: 5000,
                block_time: Duration::from_secs(4),
                ..WorldOptions::default()
            };
            let world = Arc::new(World::new(options).unwrap());
            let mut nodes = Vec::new();
            for name in &["a", "b"][..zeros] {
                nodes.push(node(&world, name, |settings| settings.frozen_at = Some(0)));
            }
            for name in &["c", "d"][..syncing] {
                nodes.push(node(&world, name, |settings| {
                    settings.frozen_at = Some(4000);
                    settings.keeping.syncing = true;
                }));
            }
            nodes.push(node(&world, "good", |settings| {
                settings.latency = Latency::Constant { ms: late_ms as f64 };
            }));
            let gateway = start(&nodes, "");
            let mut client = Connection::new(connect(&gateway));
            sleep(ms(20)).await; // Sleeps: virtual time until the fast nodes were polled.
            let (mut served, began) = (0, Instant::now());
            while began.elapsed() < Duration::from_secs(20) {
                let latest = json!(["latest", false]);
                let head = call(&mut client, "eth_blockNumber", &json!([])).await;
                let block = call(&mut client, "eth_getBlockByNumber", &latest).await;
                for number in [&head["result"], &block["result"]["number"]] {
                    let Value::String(text) = number else { continue };
                    let number = u64::from_str_radix(&text[2..], 16).unwrap();
                    assert!(number >= 5000, "block {number} after {:?}", began.elapsed());
                    served += 1;
                }
                sleep(ms(200)).await; // Sleeps: virtual time.
            }
            assert!(served > 60, "{served} responses");
            let finalized = gateway.status().chains[0].finalized;
            assert!(finalized >= Some(4900), "{finalized:?}");
        });
    }
}

#[test]
fn a_node_at_block_0_is_served_if_there_is_no_other() {
    in_virtual_time(async {
        let world = Arc::new(World::new(WorldOptions::default()).unwrap());
        let nodes = [node(&world, "a", |settings| settings.frozen_at = Some(0))];
        let gateway = start(&nodes, "");
        let mut client = Connection::new(connect(&gateway));
        sleep(ms(300)).await; // Sleeps: virtual time until the first head.
        assert_eq!(call(&mut client, "eth_blockNumber", &json!([])).await["result"], "0x0");
    });
}

/// Returns the number of the block that a client gets for `finalized`.
async fn finalized(client: &mut Connection<DuplexStream>) -> u64 {
    let response = call(client, "eth_getBlockByNumber", &json!(["finalized", false])).await;
    parse_quantity(&response["result"]["number"])
}

#[test]
fn a_restarted_node_moves_the_finalized_block_of_clients_never_back() {
    for upstreams in [1, 2] {
        in_virtual_time(async move {
            let options =
                WorldOptions { height_start: 2000, finality_depth: 200, ..WorldOptions::default() };
            let world = Arc::new(World::new(options).unwrap());
            let names = &["a", "b"][..upstreams];
            let nodes: Vec<_> = names.iter().map(|name| node(&world, name, |_| {})).collect();
            let gateway = start(&nodes, "");
            sleep(Duration::from_secs(10)).await; // Sleeps: virtual time.
            let mut client = Connection::new(connect(&gateway));
            let (mut last, mut highest) = (finalized(&mut client).await, 0);
            let generation = gateway.status().chains[0].generation;
            // The node restarts and reports a height that is not final yet. Then it restarts again.
            for depth in [Some(64), None, Some(0), Some(300), None] {
                nodes[0].set(|settings| settings.keeping.finality_depth = depth).unwrap();
                for _ in 0..40 {
                    sleep(ms(500)).await; // Sleeps: virtual time.
                    let number = finalized(&mut client).await;
                    assert!(number >= last, "{number} after {last}, depth {depth:?}");
                    last = number;
                    highest = highest.max(world.finalized_number(world.height_at(Instant::now())));
                }
            }
            let chain = &gateway.status().chains[0];
            if upstreams == 1 {
                // What the cache has kept on the word of the node is dropped.
                assert!(chain.generation > generation, "{}", chain.generation);
            } else {
                assert!(last <= highest, "finalized {last}, the chain's is {highest}");
                assert_eq!(chain.generation, generation);
            }
        });
    }
}

#[test]
fn a_reorg_of_blocks_that_a_restarted_node_called_final_leaves_none_in_the_cache() {
    in_virtual_time(async {
        let (at_height, depth) = (2030, 100);
        let options = WorldOptions {
            height_start: 2000,
            finality_depth: 200,
            reorgs: vec![Reorg { at_height, depth }],
            ..WorldOptions::default()
        };
        let world = Arc::new(World::new(options).unwrap());
        let nodes = [node(&world, "a", |settings| settings.keeping.finality_depth = Some(64))];
        let gateway = start(&nodes, "");
        sleep(Duration::from_secs(20)).await; // Sleeps: virtual time.
        let mut client = Connection::new(connect(&gateway));
        assert!(finalized(&mut client).await > at_height - depth);
        let replaced = || (at_height - depth - 5..at_height - 15).step_by(3);
        assert_blocks(&mut client, &world, replaced()).await;
        sleep(Duration::from_secs(20)).await; // Sleeps: virtual time until after the reorg.
        let behind = lag(&gateway, &world);
        assert!(behind <= 2, "{behind} blocks behind");
        assert_blocks(&mut client, &world, replaced()).await;
    });
}

#[test]
fn a_head_that_stands_still_is_reported_within_seconds() {
    in_virtual_time(async {
        let options = WorldOptions { block_time: ms(500), ..WorldOptions::default() };
        let world = Arc::new(World::new(options).unwrap());
        let nodes = ["a", "b"].map(|name| node(&world, name, |_| {}));
        let gateway = start(&nodes, "block_time = \"500ms\"\npoll_interval = \"1s\"");
        sleep(Duration::from_secs(3)).await; // Sleeps: virtual time.
        assert!(gateway.status().chains[0].head_stall.is_none());
        nodes[0].freeze();
        nodes[1].set(|settings| settings.ahead_blocks = 100_000).unwrap();
        sleep(Duration::from_secs(8)).await; // Sleeps: virtual time.
        let status = gateway.status();
        let stall = status.chains[0].head_stall.as_ref().expect("a stall");
        assert_eq!(stall.upstream, "b");
        assert!(stall.number > 100_000 && stall.reason.contains("block time"), "{}", stall.reason);
        nodes[0].thaw();
        nodes[1].set(|settings| settings.ahead_blocks = 0).unwrap();
        sleep(Duration::from_secs(4)).await; // Sleeps: virtual time.
        assert!(gateway.status().chains[0].head_stall.is_none());
    });
}
