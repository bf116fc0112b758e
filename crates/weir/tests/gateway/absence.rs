//! Goal: `null` and "not found" are not believed where the gateway's view has the block. Behind a
//! single URL some of whose backends are some blocks behind, no more calls fail than without the
//! gateway. While a healthy upstream is left, no call fails, and nothing wrong is cached.
//!
//! Method: the gateway and one to three simulated nodes, in virtual time. A part of the nodes
//! answers a share of all calls from a backend some blocks behind, or lacks the index of old
//! transactions. The calls are every method of the method table that names a block or a
//! transaction and that the simulated node has. Each response is compared with the chain.
//!
//! The environment variable `WEIR_ABSENCE_CALLS` sets the number of calls of each case. If it is set,
//! the test also combines each share of a backend that is behind with each number of blocks.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::MemoryConnector;
use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::simulated::Simulation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use simnode::node::Node;
use simnode::node::settings::{Latency, SecondBackend, Settings};
use simnode::rpc::{self, Reply, Retention, View};
use simnode::schedule::WorldOptions;
use simnode::world::World;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::sleep;
use wire::block::BlockFormat;
use wire::family::Family;
use wire::method::{Method, ParamType, Validity, methods_of};

use crate::sim::connection::Connection;

/// Default number of calls of each case.
const CALLS: usize = 600;
const BLOCK_TIME: Duration = Duration::from_millis(500);
const STREAM_BYTES: usize = 64 * 1024;
/// The number of blocks whose transactions a node without the old index finds.
const INDEXED_BLOCKS: u64 = 50;

/// Counts of one case.
#[derive(Debug, Default)]
struct Counts {
    calls: usize,
    /// Responses of the gateway that are `null` or an error.
    absent: usize,
    /// Responses of the first node, called directly, that are `null` or an error.
    absent_directly: usize,
    /// Responses about `latest` that are `null`.
    null_latest: usize,
    /// Responses of the gateway that are `null` or wrong after all nodes have become healthy.
    wrong_later: usize,
    /// Calls to upstreams, polls excluded.
    attempts: u64,
    findings: Vec<String>,
}

impl Counts {
    /// Sends calls again while all nodes are healthy, and compares the responses with the chain.
    async fn repeat<S>(&mut self, client: &mut Connection<S>, world: &World, calls: Vec<Call>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        for (method, params) in calls {
            let head = world.height_at(tokio::time::Instant::now());
            let response = call(client, method, &params).await;
            if Some(&response["result"])
                != (Oracle { world, head }).respond(method, &params).as_ref()
            {
                self.wrong_later += 1;
                self.findings.push(format!("later {method} {params}: {response}"));
            }
        }
    }
}

/// The method and the parameters of a call.
type Call = (&'static str, Value);

/// Returns the parameters of a call about a block: of a method, of the block as the method names
/// it, and of a transaction in the block. `None` if the method has another form.
fn params(method: &Method, block: Value, transaction: &str) -> Option<Value> {
    let mut params = Vec::new();
    for (position, kind) in method.params.iter().enumerate() {
        let value = match kind {
            _ if method.block.is_some_and(|named| named.at == position) => block.clone(),
            ParamType::Hash => json!(transaction),
            ParamType::Address => json!("0x00000000000000000000000000000000000000aa"),
            ParamType::Quantity => json!("0x0"),
            ParamType::Bool => json!(false),
            ParamType::CallObject => json!({"to": "0x00000000000000000000000000000000000000aa"}),
            ParamType::Any if method.name.ends_with("feeHistory") => json!([]),
            ParamType::Any if method.name.contains("Index") => json!(0),
            ParamType::Any => json!({}),
            ParamType::Block => return None,
            ParamType::Data | ParamType::Filter => return None,
        };
        params.push(value);
    }
    Some(Value::Array(params))
}

/// The ways in which a call may name a block.
fn block_forms(method: &Method, number: u64, hash: &str) -> Vec<Value> {
    match method.block.map(|block| block.format) {
        None => vec![Value::Null],
        Some(BlockFormat::Hash) => vec![json!(hash)],
        Some(BlockFormat::Harmony) => vec![json!(number), json!("latest")],
        Some(BlockFormat::Hex) if method.name.starts_with("eth_get") && method.weight == 1 => {
            let by_number = vec![json!(format!("{number:#x}")), json!("latest")];
            let takes_object = method.params[0] == ParamType::Address;
            let by_hash = takes_object.then(|| json!({"blockHash": hash}));
            by_number.into_iter().chain(by_hash).collect()
        }
        Some(_) => vec![json!(format!("{number:#x}")), json!("latest")],
    }
}

/// The chain as a healthy node with all blocks up to `head` sees it.
struct Oracle<'a> {
    world: &'a World,
    head: u64,
}

impl Oracle<'_> {
    fn respond(&self, method: &str, params: &Value) -> Option<Value> {
        let head = self.head;
        let view = View {
            head,
            ahead_blocks: 0,
            indexed: head,
            clamps_logs_to_head: false,
            retention: Retention::default(),
        };
        match rpc::respond(self.world, &view, method, Some(params.to_string().as_bytes())) {
            Reply::Result(result) => serde_json::from_slice(&result).ok(),
            Reply::Error(_) => None,
        }
    }

    /// Returns the hash of a block, and the hash of its first transaction.
    fn block(&self, number: u64) -> (String, String) {
        let params = json!([format!("{number:#x}"), false]);
        let block = self.respond("eth_getBlockByNumber", &params).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&block["hash"]), text(&block["transactions"][0]))
    }

    /// Returns all calls about a block to which the chain has a response other than `null`.
    fn calls(&self, family: Family, number: u64) -> Vec<Call> {
        let (hash, transaction) = self.block(number);
        let mut calls = Vec::new();
        for method in methods_of(family).methods() {
            let names_block = method.block.is_some() || method.validity == Validity::Transaction;
            if !names_block || method.write {
                continue;
            }
            for block in block_forms(method, number, &hash) {
                let Some(params) = params(method, block, &transaction) else { continue };
                if self.respond(method.name, &params).is_some_and(|value| !value.is_null()) {
                    calls.push((method.name, params));
                }
            }
        }
        calls
    }
}

/// A chain without reorgs, so that each call has one correct response.
pub(crate) fn world() -> Arc<World> {
    let options = WorldOptions {
        seed: 7,
        height_start: 600,
        block_time: BLOCK_TIME,
        finality_depth: 16,
        transactions_min: 1,
        transactions_max: 4,
        ..WorldOptions::default()
    };
    Arc::new(World::new(options).unwrap())
}

pub(crate) fn connector(node: &Arc<Node>) -> MemoryConnector {
    let node = Arc::clone(node);
    Arc::new(move || {
        let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
        tokio::spawn(simnode::serve::serve_connection(Arc::clone(&node), theirs));
        Ok(ours)
    })
}

pub(crate) fn config(nodes: usize, more: &str) -> Config {
    let mut text = format!(
        "[chain.sim]\nfamily = \"harmony\"\nblock_time = \"{BLOCK_TIME:?}\"\npoll_interval = \"100ms\"\n{more}\n"
    );
    for name in ["a", "b", "c"].iter().take(nodes) {
        let url = format!("http://{name}.example");
        text.push_str(&format!("[[upstream]]\nname = \"{name}\"\nurl = \"{url}\"\n"));
    }
    let config = Config::from_text("absence", &text, Path::new(""), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    config.with_overrides(&Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin: AdminOverride::Off,
        threads: Some(1),
        no_cache: false,
    })
}

pub(crate) async fn call<S>(client: &mut Connection<S>, method: &str, params: &Value) -> Value
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    client.send(body.as_bytes()).await.unwrap();
    serde_json::from_slice(&client.receive().await.unwrap().body).unwrap()
}

/// Runs one case: `trouble` changes the settings of the first `troubled` of `nodes` nodes. Calls are
/// about blocks `depth` below the head.
fn run(
    nodes: usize,
    troubled: usize,
    depth: std::ops::Range<u64>,
    trouble: impl Fn(&mut Settings),
) -> Counts {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build_local(LocalOptions::default()).unwrap().block_on(async {
        let world = world();
        let nodes: Vec<Arc<Node>> = ["a", "b", "c"]
            .iter()
            .take(nodes)
            .map(|name| Node::new(name, Arc::clone(&world)))
            .collect();
        for (index, node) in nodes.iter().enumerate() {
            let set = node.set(|settings| {
                settings.latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.3 };
                if index < troubled {
                    trouble(settings);
                }
            });
            set.unwrap();
        }
        let connectors = nodes.iter().map(connector).collect();
        let gateway = Simulation::start(config(nodes.len(), ""), connectors, 7);
        sleep(Duration::from_secs(3)).await; // Sleeps: virtual time until the first heads.
        let mut client = Connection::new(gateway.connect(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let mut direct = Connection::new(connector(&nodes[0])().unwrap());
        let mut rng = SmallRng::seed_from_u64(7);
        let mut counts = Counts::default();
        let mut asked = Vec::new();
        let calls_max =
            std::env::var("WEIR_ABSENCE_CALLS").map_or(CALLS, |text| text.parse().unwrap());
        while counts.calls < calls_max {
            sleep(Duration::from_millis(rng.random_range(5..60))).await; // Sleeps: virtual time.
            let head = call(&mut client, "eth_blockNumber", &json!([])).await["result"].clone();
            let head = u64::from_str_radix(&head.as_str().unwrap()[2..], 16).unwrap();
            let number = head - rng.random_range(depth.clone());
            let family = if rng.random_bool(0.2) { Family::Harmony } else { Family::Ethereum };
            let calls = Oracle { world: &world, head }.calls(family, number);
            assert!(calls.len() >= 20, "hardly any method names a block: {calls:?}");
            let (method, params) = &calls[rng.random_range(0..calls.len())];
            let response = call(&mut client, method, params).await;
            let directly = call(&mut direct, method, params).await;
            counts.calls += 1;
            let is_absent = response["result"].is_null();
            if is_absent {
                counts.absent += 1;
                counts.findings.push(format!("{method} {params} at head {head}: {response}"));
            }
            let is_null_latest = response.get("result").is_some_and(Value::is_null)
                && params.to_string().contains("latest");
            counts.null_latest += usize::from(is_null_latest);
            counts.absent_directly += usize::from(directly["result"].is_null());
            if !params.to_string().contains("latest") {
                asked.push((*method, params.clone()));
            }
        }
        counts.attempts =
            gateway.status().chains[0].upstreams.iter().map(|node| node.attempts).sum();
        for node in &nodes {
            node.set(|settings| *settings = Settings::default()).unwrap();
        }
        counts.repeat(&mut client, &world, asked).await;
        counts
    })
}

fn show(what: &str, counts: &Counts) {
    let Counts { calls, absent, absent_directly, null_latest, wrong_later, attempts, .. } = counts;
    println!(
        "{what}: {calls} calls, absent {absent} (directly {absent_directly}), null latest {null_latest}, \
         wrong later {wrong_later}, attempts {attempts}"
    );
}

#[test]
fn a_url_that_balances_inside_fails_no_more_than_directly() {
    let mut failures = Vec::new();
    let shares_and_blocks = match std::env::var_os("WEIR_ABSENCE_CALLS") {
        None => vec![(0.1, 1), (0.3, 2), (0.5, 5)],
        Some(_) => [0.1, 0.3, 0.5].iter().flat_map(|p| [1, 2, 5].map(|n| (*p, n))).collect(),
    };
    for (share, behind_blocks) in shares_and_blocks {
        for (nodes, troubled) in [(1, 1), (3, 1), (3, 2), (3, 3)] {
            let counts = run(nodes, troubled, 0..3, |settings| {
                settings.inside = Some(SecondBackend { behind_blocks, share, all_methods: true });
            });
            let what = format!("share {share}, {behind_blocks} behind, {troubled} of {nodes}");
            show(&what, &counts);
            if (counts.absent, counts.null_latest, counts.wrong_later) != (0, 0, 0) {
                failures.push(format!("{what}\n{}", counts.findings.join("\n")));
            }
            assert!(counts.absent_directly > 0, "{what}: no backend was behind");
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_upstream_without_the_old_transaction_index_does_not_decide() {
    for (nodes, troubled) in [(3, 1), (3, 2)] {
        let counts = run(nodes, troubled, 300..500, |settings| {
            settings.keeping.transaction_index_blocks = Some(INDEXED_BLOCKS);
        });
        let what = format!("{troubled} of {nodes} without index");
        show(&what, &counts);
        assert_eq!(counts.absent, 0, "{what}\n{}", counts.findings.join("\n"));
        assert_eq!(counts.wrong_later, 0, "{what}\n{}", counts.findings.join("\n"));
        assert!(counts.absent_directly > 0, "{what}: the node had the index");
    }
}
