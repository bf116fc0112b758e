//! Goal: logs that come 3 to 60 s after their block, or in two parts, reach subscribers and filters
//! once, no client sees logs vanish, and no incomplete list stays in the cache.
//!
//! Method: the gateway and one or three simulated nodes, in virtual time. Some or all of the nodes
//! index each block late; some have half of a block's logs until then. A client asks for the logs of
//! each new block several times, and others follow the chain. After the time in which every node has
//! indexed, everything is compared with the chain.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway::MemoryConnector;
use gateway::runtime::simulated::Simulation;
use serde_json::{Value, json};
use simnode::node::Node;
use simnode::rpc::{self, Reply, View};
use simnode::world::World;
use tokio::time::{Instant, sleep, timeout};

use super::judge::parse_quantity;
use super::socket::WebSocketClient;
use super::{BLOCK_TIME, Connection, call, config, runtime, world};

const BLOCKS: u64 = 20;

/// The logs of a block as a node returns them that has indexed it.
fn logs_of(world: &World, number: u64) -> Vec<Value> {
    let params = json!([{"fromBlock": format!("{number:#x}"), "toBlock": format!("{number:#x}")}]);
    let view = View::honest(number);
    let params = params.to_string();
    let Reply::Result(logs) = rpc::respond(world, &view, "eth_getLogs", Some(params.as_bytes()))
    else {
        panic!("no logs of block {number}");
    };
    serde_json::from_slice(&logs).unwrap()
}

/// Groups logs by block, sorted by their position.
fn by_block(logs: &[Value]) -> BTreeMap<u64, Vec<Value>> {
    let mut blocks: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for log in logs {
        blocks.entry(parse_quantity(&log["blockNumber"])).or_default().push(log.clone());
    }
    blocks.values_mut().for_each(|logs| logs.sort_by_key(|log| parse_quantity(&log["logIndex"])));
    blocks
}

fn run(count: usize, late: usize, delay: Duration, half: bool) {
    let case = format!("{late} of {count} nodes {delay:?} late, half indexed: {half}");
    runtime(true).block_on(async {
        let world = world(3);
        let names = &["a", "b", "c"][..count];
        let nodes: Vec<Arc<Node>> =
            names.iter().map(|name| Node::new(name, Arc::clone(&world))).collect();
        for node in &nodes[..late] {
            let set = node.set(|settings| {
                settings.index_delay = delay;
                settings.keeping.half_indexed = half;
            });
            set.unwrap();
        }
        let connectors = nodes.iter().map(|node| -> MemoryConnector {
            let node = Arc::clone(node);
            Arc::new(move || {
                let (ours, theirs) = tokio::io::duplex(64 * 1024);
                tokio::spawn(simnode::serve::serve_connection(Arc::clone(&node), theirs));
                Ok(ours)
            })
        });
        let urls: Vec<String> = names.iter().map(|name| format!("http://{name}.example")).collect();
        let gateway = Rc::new(Simulation::start(config(&urls, ""), connectors.collect(), 3));
        sleep(delay + Duration::from_secs(10)).await; // Sleeps: virtual time, until old blocks are indexed.
        let connect = |client| gateway.connect(IpAddr::V4(Ipv4Addr::new(192, 0, 2, client)));
        let mut client = Connection::new(connect(1));
        let (id, _) = call(&mut client, "eth_newFilter", "[{}]").await;
        let filter = format!("[{}]", id["result"]);
        let (head, _) = call(&mut client, "eth_blockNumber", "[]").await;
        let first = parse_quantity(&head["result"]) + 1;
        let mut socket = WebSocketClient::open(connect(2)).await.unwrap();
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["logs",{}]}"#;
        socket.send(request).await.unwrap();
        socket.next().await.unwrap();
        let (mut filtered, mut subscribed) = (Vec::new(), Vec::new());
        let mut most: BTreeMap<u64, usize> = BTreeMap::new();
        let until =
            Instant::now() + BLOCK_TIME * BLOCKS as u32 + 2 * delay + Duration::from_secs(20);
        while Instant::now() < until {
            let (response, _) = call(&mut client, "eth_getFilterChanges", &filter).await;
            filtered.extend(response["result"].as_array().unwrap().iter().cloned());
            let (head, _) = call(&mut client, "eth_blockNumber", "[]").await;
            let head = parse_quantity(&head["result"]);
            for number in (head.saturating_sub(3).max(first)..=head).filter(|n| *n < first + BLOCKS)
            {
                let range =
                    format!("[{{\"fromBlock\":\"{number:#x}\",\"toBlock\":\"{number:#x}\"}}]");
                let (response, _) = call(&mut client, "eth_getLogs", &range).await;
                let count = response["result"].as_array().unwrap().len();
                let before = most.insert(number, count).unwrap_or(0);
                assert!(count >= before, "{case}: {count} logs of {number} after {before}");
            }
            // The timeout is in virtual time.
            while let Ok(message) = timeout(BLOCK_TIME / 2, socket.next()).await {
                subscribed.push(message.unwrap()["params"]["result"].clone());
            }
        }
        let (filtered, subscribed) = (by_block(&filtered), by_block(&subscribed));
        let mut log_count = 0;
        for number in first..first + BLOCKS {
            let expected = logs_of(&world, number);
            log_count += expected.len();
            let of = |blocks: &BTreeMap<u64, Vec<Value>>| {
                blocks.get(&number).cloned().unwrap_or_default()
            };
            assert_eq!(of(&filtered), expected, "{case}: filter, block {number}");
            assert_eq!(of(&subscribed), expected, "{case}: subscriber, block {number}");
            let range = format!("[{{\"fromBlock\":\"{number:#x}\",\"toBlock\":\"{number:#x}\"}}]");
            let (response, cache) = call(&mut client, "eth_getLogs", &range).await;
            assert_eq!(response["result"], json!(expected), "{case}: block {number}, {cache}");
        }
        assert!(log_count > 20, "{case}: {log_count} logs");
    });
}

#[test]
fn late_logs_reach_everyone_once() {
    for (count, late) in [(1, 1), (3, 1), (3, 2), (3, 3)] {
        for (seconds, half) in [(10, false), (3, true), (30, true), (60, false)] {
            run(count, late, Duration::from_secs(seconds), half);
        }
    }
}
