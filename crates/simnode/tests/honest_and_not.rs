//! Goal: over two minutes of a chain with many reorgs, the oracle accuses every dishonest node and
//! no honest one. The oracle judges whether replies are right. Method: seeded random calls to nodes
//! in virtual time. Each node has its own client, so the oracle also detects heads whose numbers
//! fall.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use simnode::node::settings::Latency;
use simnode::node::{Delivery, Node};
use simnode::oracle::{Exchange, ObservedReply, Oracle, OracleOptions, Verdict};
use simnode::schedule::{ReorgEvery, WorldOptions};
use simnode::world::World;
use tokio::time::Instant;
use wire::response::Outcome;

/// Time between two blocks.
const BLOCK: Duration = Duration::from_millis(100);
/// Maximum depth of the JSON of a response.
const DEPTH_MAX: usize = 128;

fn world() -> Arc<World> {
    let options = WorldOptions {
        height_start: 100,
        block_time: BLOCK,
        finality_depth: 16,
        reorg_every: Some(ReorgEvery { blocks: 9, depth_max: 5 }),
        ..WorldOptions::default()
    };
    Arc::new(World::new(options).unwrap())
}

/// Returns the method and the parameters of a random call about a block near the head.
fn random_call(world: &World, rng: &mut SmallRng) -> (&'static str, String) {
    let head = world.height_at(Instant::now());
    let number = head.saturating_sub(rng.random_range(0..24));
    let account = world.addresses().accounts[rng.random_range(0..16)];
    let block = world.block_at(head, number).unwrap();
    let transaction = block.transactions[rng.random_range(0..block.transactions.len())].hash();
    match rng.random_range(0..12) {
        0 => ("eth_blockNumber", "[]".to_owned()),
        1 => ("eth_getBlockByNumber", "[\"latest\",false]".to_owned()),
        2 => ("eth_getBlockByNumber", format!("[\"{number:#x}\",true]")),
        3 => ("eth_getBlockByNumber", "[\"finalized\",false]".to_owned()),
        4 => ("eth_getBlockByHash", format!("[\"{}\",false]", block.hash)),
        5 => ("eth_getTransactionByHash", format!("[\"{transaction}\"]")),
        6 => ("eth_getTransactionReceipt", format!("[\"{transaction}\"]")),
        7 => ("eth_getBalance", format!("[\"{account}\",\"latest\"]")),
        8 => ("eth_getTransactionCount", format!("[\"{account}\",\"{number:#x}\"]")),
        9 => ("eth_call", format!("[{{\"to\":\"{account}\"}},\"latest\"]")),
        10 => {
            let from = number.saturating_sub(5);
            let range = format!("{{\"fromBlock\":\"{from:#x}\",\"toBlock\":\"{number:#x}\"}}");
            ("eth_getLogs", format!("[{range}]"))
        }
        _ => ("hmyv2_latestHeader", "[]".to_owned()),
    }
}

/// Sends random calls to a node and counts the verdicts.
async fn count_verdicts(
    node: &Node,
    oracle: &Oracle,
    seed: u64,
    count: u64,
) -> BTreeMap<String, u64> {
    let world = node.world().unwrap();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut verdicts = BTreeMap::new();
    for _ in 0..count {
        tokio::time::advance(Duration::from_millis(rng.random_range(0..24))).await;
        let (method, params) = random_call(world, &mut rng);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let sent = Instant::now();
        let Delivery::Whole { body, .. } = node.serve(body.as_bytes()).await else {
            panic!("no fault was asked for");
        };
        let reply = match wire::response::parse_response(&body, DEPTH_MAX).unwrap().outcome {
            Outcome::Result(result) => ObservedReply::Result(result),
            Outcome::Error { code, .. } => ObservedReply::Error { code },
        };
        let (params, received) = (Some(params.as_bytes()), Instant::now());
        let exchange = Exchange { method, params, reply, sent, received, client: seed };
        let verdict = oracle.judge(&exchange);
        let verdict_text = format!("{verdict:?}");
        let name = verdict_text.split(['(', ' ']).next().unwrap().to_owned();
        if let Verdict::Mixed(_) | Verdict::Wrong(_) = &verdict {
            eprintln!("{method} {} {verdict:?}", String::from_utf8_lossy(params.unwrap()));
        }
        *verdicts.entry(name).or_default() += 1;
    }
    verdicts
}

#[tokio::test(start_paused = true)]
async fn honest_nodes_are_never_accused() {
    let world = world();
    let staleness = BLOCK;
    let options = OracleOptions { staleness, ..OracleOptions::default() };
    let oracle = Oracle::new(Arc::clone(&world), options);
    for (seed, lag_blocks, delay_ms) in [(1, 0, 0), (2, 2, 0), (3, 1, 90)] {
        let node = Node::new("honest", Arc::clone(&world));
        node.set(|settings| {
            settings.lag_blocks = lag_blocks;
            settings.delay = Duration::from_millis(delay_ms);
            settings.latency = Latency::Uniform { low_ms: 0.0, high_ms: 20.0 };
        })
        .unwrap();
        let mut verdicts = count_verdicts(&node, &oracle, seed, 2_000).await;
        // An error or null is a right reply to a call about a block that a lagging node does not
        // have yet.
        assert_eq!(verdicts.remove("Right"), Some(2_000), "{verdicts:?}");
    }
    let reorgs = world.schedule().branch_of_head(world.height_at(Instant::now()));
    assert!(reorgs > 50, "only {reorgs} reorgs");
}

#[tokio::test(start_paused = true)]
async fn dishonest_nodes_are_accused() {
    let world = world();
    let options = OracleOptions { staleness: BLOCK, ..OracleOptions::default() };
    let oracle = Oracle::new(Arc::clone(&world), options);
    let assert_accused = async |seed: u64, node: Arc<Node>| {
        let mut verdicts = count_verdicts(&node, &oracle, seed, 400).await;
        let right = verdicts.remove("Right").unwrap_or_default();
        assert!(right < 300, "seed {seed}: {right} right, {verdicts:?}");
        verdicts
    };
    let lagging = Node::new("lagging", Arc::clone(&world));
    lagging.set(|settings| settings.lag_blocks = 12).unwrap();
    let verdicts = assert_accused(1, lagging).await;
    assert!(verdicts["Stale"] > 50, "{verdicts:?}");
    let frozen = Node::new("frozen", Arc::clone(&world));
    frozen.freeze();
    tokio::time::advance(BLOCK * 10).await;
    let verdicts = assert_accused(2, frozen).await;
    assert!(verdicts["Stale"] > 50, "{verdicts:?}");
    let lying = Node::new("lying", Arc::clone(&world));
    lying.set(|settings| settings.ahead_blocks = 40).unwrap();
    let mut verdicts = count_verdicts(&lying, &oracle, 3, 400).await;
    assert!(verdicts.remove("Wrong").unwrap_or_default() > 30, "{verdicts:?}");
}

#[tokio::test(start_paused = true)]
async fn two_nodes_behind_one_client_make_heads_fall() {
    let world = world();
    let options = OracleOptions { staleness: BLOCK, ..OracleOptions::default() };
    let oracle = Oracle::new(Arc::clone(&world), options);
    let (fast, slow) = (Node::new("fast", Arc::clone(&world)), Node::new("slow", world.clone()));
    slow.set(|settings| settings.lag_blocks = 2).unwrap();
    let mut fallen = 0;
    for turn in 0..100 {
        tokio::time::advance(BLOCK / 4).await;
        let node = if turn % 2 == 0 { &fast } else { &slow };
        let sent = Instant::now();
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
        let Delivery::Whole { body, .. } = node.serve(body).await else { panic!("no fault") };
        let Outcome::Result(result) = wire::response::parse_response(&body, 8).unwrap().outcome
        else {
            panic!("no error")
        };
        let (params, reply) = (None, ObservedReply::Result(result));
        let method = "eth_blockNumber";
        let exchange = Exchange { method, params, reply, sent, received: sent, client: 1 };
        fallen += u32::from(matches!(oracle.judge(&exchange), Verdict::Backward { .. }));
    }
    assert!(fallen >= 40, "only {fallen} of 50 falls were detected");
}
