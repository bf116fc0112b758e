//! Goal: calls about old blocks go to upstreams that have the data, without any setting, and ranges
//! of logs are split for upstreams that limit them. No client gets the refusal of an upstream while
//! another one can serve the call.
//!
//! Method: the gateway and simulated nodes that keep the state of few blocks or limit ranges, in
//! virtual time. Each response is compared with that of a node that has everything.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::simulated::Simulation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use simnode::node::Node;
use simnode::node::settings::{ErrorKind, Fault, FaultRule, Settings};
use simnode::rpc::{self, Reply, Retention, View};
use simnode::world::World;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::sleep;

use crate::absence::{call, connector, world};
use crate::sim::connection::Connection;

/// Number of blocks whose state the pruned nodes have.
const STATE_BLOCKS: u64 = 20;

/// Virtual time until the gateway has found out which data the upstreams have.
const LEARNING_TIME: Duration = Duration::from_secs(10);

fn config(keys: &[&str]) -> Config {
    let mut text =
        "[chain.sim]\nfamily = \"ethereum\"\nblock_time = \"500ms\"\npoll_interval = \"100ms\"\n"
            .to_owned();
    for (index, keys) in keys.iter().enumerate() {
        text.push_str(&format!(
            "[[upstream]]\nname = \"{index}\"\nurl = \"http://{index}.example\"\n{keys}\n"
        ));
    }
    let config = Config::from_text("history", &text, Path::new(""), &|_| None);
    config.unwrap_or_else(|faults| panic!("{faults}")).with_overrides(&Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin: AdminOverride::Off,
        threads: Some(1),
        no_cache: false,
    })
}

/// A running gateway in front of simulated nodes.
struct Stage {
    world: Arc<World>,
    nodes: Vec<Arc<Node>>,
    gateway: Simulation,
    rng: SmallRng,
}

impl Stage {
    /// Starts a gateway in front of one node for each element of `keys`, which has further keys of
    /// the upstream.
    async fn start(keys: &[&str], change: impl Fn(usize, &mut Settings)) -> Stage {
        let world = world();
        let start_node = |index: usize| {
            let node = Node::new(&index.to_string(), Arc::clone(&world));
            node.set(|settings| change(index, settings)).unwrap();
            node
        };
        let nodes: Vec<_> = (0..keys.len()).map(start_node).collect();
        let gateway = Simulation::start(config(keys), nodes.iter().map(connector).collect(), 7);
        sleep(Duration::from_secs(2)).await; // Sleeps: virtual time until the first heads.
        Stage { world, nodes, gateway, rng: SmallRng::seed_from_u64(7) }
    }

    /// Calls the gateway over a new connection and returns the response.
    async fn ask(&self, method: &str, params: &Value) -> Value {
        let stream = self.gateway.connect(IpAddr::V4(Ipv4Addr::LOCALHOST));
        call(&mut Connection::new(stream), method, params).await
    }

    /// Calls the gateway. Returns the response, and the response of a node that has everything.
    async fn call(&self, method: &str, params: &Value) -> (Value, Value) {
        let response = self.ask(method, params).await;
        let head = self.world.height_at(tokio::time::Instant::now());
        let retention = Retention::default();
        let view =
            View { head, ahead_blocks: 0, indexed: head, clamps_logs_to_head: false, retention };
        let raw = params.to_string();
        let expected = match rpc::respond(&self.world, &view, method, Some(raw.as_bytes())) {
            Reply::Result(result) => serde_json::from_slice(&result).unwrap(),
            Reply::Error(error) => panic!("{method} {params}: {error:?}"),
        };
        (response, expected)
    }

    /// Calls state of blocks at depths from this range, and expects correct responses.
    async fn read_state(&mut self, calls: usize, depths: std::ops::Range<u64>) {
        for _ in 0..calls {
            sleep(Duration::from_millis(self.rng.random_range(1..20))).await; // Sleeps: virtual time.
            let depth = self.rng.random_range(depths.clone());
            let block = format!("{:#x}", self.gateway.head().unwrap() - depth);
            let account = format!("{:#042x}", self.rng.random::<u64>());
            let (method, params) = match self.rng.random_range(0..3) {
                0 => ("eth_getBalance", json!([account, block])),
                1 => ("eth_getTransactionCount", json!([account, block])),
                _ => ("eth_getCode", json!([account, block])),
            };
            let (response, expected) = self.call(method, &params).await;
            assert_eq!(response["result"], expected, "{method} {params} depth {depth}: {response}");
        }
    }

    /// Returns the number of attempts at each upstream.
    fn attempts(&self) -> Vec<u64> {
        let status = self.gateway.status();
        status.chains[0].upstreams.iter().map(|upstream| upstream.attempts).collect()
    }

    /// Returns what the status says about the data of an upstream: number of blocks by kind of data.
    fn history(&self, upstream: usize) -> BTreeMap<&'static str, u64> {
        let status = self.gateway.status();
        let limits = status.chains[0].upstreams[upstream].history.iter();
        limits.map(|limit| (limit.data, limit.blocks)).collect()
    }
}

fn run(test: impl AsyncFnOnce()) {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build_local(LocalOptions::default()).unwrap().block_on(test());
}

/// Node 0 is an archive; the others have the state of few blocks.
fn prune_others(index: usize, settings: &mut Settings) {
    settings.keeping.state_blocks = (index > 0).then_some(STATE_BLOCKS);
}

#[test]
fn an_archive_gets_only_calls_that_need_it() {
    run(async || {
        let mut stage = Stage::start(&[""; 4], prune_others).await;
        sleep(LEARNING_TIME).await; // Sleeps: virtual time.
        assert!(stage.history(0).is_empty(), "{:?}", stage.history(0));
        for upstream in 1..4 {
            let blocks = stage.history(upstream)["state"];
            assert!(blocks.abs_diff(STATE_BLOCKS) <= 2, "{blocks}");
        }
        let before = stage.attempts();
        let (old, recent) = (500, 500);
        for _ in 0..10 {
            stage.read_state(old / 10, STATE_BLOCKS + 5..500).await;
            stage.read_state(recent / 10, 0..STATE_BLOCKS - 5).await;
        }
        let attempts: Vec<u64> =
            stage.attempts().iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(attempts[0].abs_diff(old as u64) <= 5, "{attempts:?}");
        let others: u64 = attempts[1..].iter().sum();
        assert!(others.abs_diff(recent as u64) <= 5, "{attempts:?}");
        assert!(attempts[1..].iter().all(|attempts| *attempts > 20), "{attempts:?}");
    });
}

#[test]
fn nothing_is_refused_before_the_gateway_has_found_out() {
    run(async || {
        let mut stage = Stage::start(&[""; 4], prune_others).await;
        stage.read_state(50, 100..500).await;
        stage.read_state(50, 0..500).await;
    });
}

#[test]
fn data_that_is_deleted_or_added_is_noticed_within_a_minute() {
    run(async || {
        let mut stage = Stage::start(&[""; 3], prune_others).await;
        sleep(LEARNING_TIME).await; // Sleeps: virtual time.
        for blocks in [5, 200, 12] {
            for node in &stage.nodes[1..] {
                node.set(|settings| settings.keeping.state_blocks = Some(blocks)).unwrap();
            }
            stage.read_state(200, 0..500).await;
            sleep(Duration::from_secs(60)).await; // Sleeps: virtual time.
            for upstream in 1..3 {
                let known = stage.history(upstream)["state"];
                assert!(known.abs_diff(blocks) <= 2 + blocks / 50, "{known} instead of {blocks}");
            }
        }
        for node in &stage.nodes[1..] {
            node.set(|settings| settings.keeping.state_blocks = None).unwrap();
        }
        sleep(Duration::from_secs(60)).await; // Sleeps: virtual time.
        assert!(stage.history(1).is_empty(), "{:?}", stage.history(1));
    });
}

#[test]
fn a_set_history_is_believed() {
    run(async || {
        let keys = ["history = \"archive\"", "history = { blocks = 10 }"];
        let mut stage = Stage::start(&keys, |_, _| {}).await;
        sleep(LEARNING_TIME).await; // Sleeps: virtual time.
        assert_eq!(stage.history(1), BTreeMap::from([("state", 10), ("traces", 10)]));
        let before = stage.attempts();
        stage.read_state(100, 15..500).await;
        assert_eq!(stage.attempts(), [before[0] + 100, before[1]]);
    });
}

#[test]
fn the_upstreams_own_words_are_returned_if_none_has_the_data() {
    run(async || {
        let prune_all =
            |_, settings: &mut Settings| settings.keeping.state_blocks = Some(STATE_BLOCKS);
        let stage = Stage::start(&[""; 3], prune_all).await;
        sleep(LEARNING_TIME).await; // Sleeps: virtual time.
        let before: u64 = stage.attempts().iter().sum();
        let params = json!(["0x00000000000000000000000000000000000000aa", "0x10"]);
        let response = stage.ask("eth_getBalance", &params).await;
        let message = response["error"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("missing trie node"), "{response}");
        assert_eq!(stage.attempts().iter().sum::<u64>(), before + 1, "one upstream is enough");
    });
}

#[test]
fn long_ranges_of_logs_are_split_for_the_upstreams() {
    run(async || {
        let limits = [10, 50, 100];
        let stage = Stage::start(&[""; 3], |index, settings| {
            settings.keeping.logs_range_blocks_max = Some(limits[index]);
        })
        .await;
        let mut failed_before = 0;
        for (from, to) in [(16, 520), (1, 599), (100, 110), (17, 530), (300, 350)] {
            let params =
                json!([{"fromBlock": format!("{from:#x}"), "toBlock": format!("{to:#x}")}]);
            let (response, expected) = stage.call("eth_getLogs", &params).await;
            assert!(expected.as_array().unwrap().len() > 5);
            assert_eq!(response["result"], expected, "{from} to {to}");
            let status = stage.gateway.status();
            let failed: u64 = status.chains[0].upstreams.iter().map(|node| node.failed).sum();
            assert!(failed <= 3, "{failed} refusals; one of each upstream shows its limit");
            assert!(failed_before == 0 || failed == failed_before, "limits are remembered");
            failed_before = failed;
        }
    });
}

#[test]
fn a_node_that_once_lacked_data_is_not_preferred_for_it() {
    run(async || {
        let mut stage = Stage::start(&[""; 2], |_, _| {}).await;
        sleep(LEARNING_TIME).await; // Sleeps: virtual time.
        let error = FaultRule::always(Fault::Error { error: ErrorKind::MissingTrieNode });
        let rule = FaultRule { times: Some(1), method: Some("eth_getCode".to_owned()), ..error };
        stage.nodes[1].set(|settings| settings.faults.push(rule)).unwrap();
        stage.read_state(200, 100..500).await;
        sleep(Duration::from_secs(2)).await; // Sleeps: virtual time until the search has ended.
        assert!(stage.history(1).is_empty(), "{:?}", stage.history(1));
        let before = stage.attempts();
        stage.read_state(200, 0..500).await;
        let after = stage.attempts();
        assert!(after[0] - before[0] > 20 && after[1] - before[1] > 20, "{before:?} {after:?}");
    });
}

#[test]
fn a_method_that_no_upstream_serves_is_refused_without_further_calls() {
    run(async || {
        let stage = Stage::start(&[""; 2], |_, settings| {
            settings.unsupported.insert("trace_block".to_owned());
        })
        .await;
        let mut texts = Vec::new();
        for block in 16..26 {
            let params = json!([format!("{block:#x}")]);
            let response = stage.ask("trace_block", &params).await;
            texts.push(response["error"].to_string());
        }
        assert!(texts[0].contains("-32601"), "{texts:?}");
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        assert_eq!(stage.attempts(), [3, 1], "three refusals of one upstream are enough");
        for node in &stage.nodes {
            node.set(|settings| settings.unsupported.clear()).unwrap();
        }
        sleep(Duration::from_secs(31)).await; // Sleeps: virtual time.
        stage.ask("trace_block", &json!(["0x1a"])).await;
        assert_eq!(stage.attempts(), [4, 1], "one upstream is asked again");
        let served = stage.ask("eth_chainId", &json!([])).await;
        assert!(served["result"].is_string(), "{served}");
    });
}
