//! Chains that get new blocks while a test runs: a simulated chain with a short block time, and a
//! geth in developer mode, whose message formats are those of a real node. The helpers also read
//! the logs of the chain, so that tests can compare them with the logs that clients received.

use std::collections::HashMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use simnode::schedule::{ReorgEvery, WorldOptions};
use simnode::world::World;

use crate::support::harness::{SimNode, TestGateway, body};
use test_support::wait::wait_until;
use test_support::{geth, programs, raw};

/// Time between blocks of the simulated chain. It is short, so that a test of a few seconds covers
/// many blocks.
pub(crate) const BLOCK_TIME: Duration = Duration::from_millis(60);

/// A simulated chain with a new block every [`BLOCK_TIME`]. If `has_reorgs` is true, it also has a
/// reorg every 11 blocks.
pub(crate) fn growing_world(has_reorgs: bool) -> Arc<World> {
    let reorg_every = has_reorgs.then_some(ReorgEvery { blocks: 11, depth_max: 5 });
    let options = WorldOptions {
        height_start: 100,
        block_time: BLOCK_TIME,
        reorg_every,
        ..WorldOptions::default()
    };
    Arc::new(World::new(options).unwrap())
}

/// Starts a gateway with these `[[upstream]]` tables. It polls every 20 ms, because the default
/// interval is too long for a block time of 60 ms.
pub(crate) fn start_gateway(upstreams: &[String], more: &str) -> TestGateway {
    let chain = "[chain.sim]\npoll_interval = \"20ms\"\n";
    let gateway = TestGateway::start(&format!("{more}{chain}{}", upstreams.concat()));
    wait_until("there is a head", || {
        gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    gateway
}

/// Parses a quantity such as `"0x1f"`.
pub(crate) fn parse_quantity(raw: &Value) -> u64 {
    let digits = raw.as_str().and_then(|text| text.strip_prefix("0x")).unwrap();
    u64::from_str_radix(digits, 16).unwrap()
}

/// Applies log notifications in order, as a client does, and returns the logs that remain. A
/// notification with `removed` deletes the log of an earlier one.
pub(crate) fn remaining_logs(notifications: &[Value]) -> Vec<&Value> {
    let mut logs: Vec<Option<&Value>> = Vec::new();
    let mut positions: HashMap<(&str, &str), usize> = HashMap::new();
    for log in notifications {
        let text = |name: &str| log[name].as_str().unwrap();
        let key = (text("blockHash"), text("logIndex"));
        if log["removed"].as_bool().unwrap() {
            // The client has no such log if it subscribed after the node announced the log.
            if let Some(position) = positions.remove(&key) {
                logs[position] = None;
            }
        } else {
            assert_eq!(positions.insert(key, logs.len()), None, "received twice: {log}");
            logs.push(Some(log));
        }
    }
    logs.into_iter().flatten().collect()
}

/// The logs that match `filter` in the blocks `from..=to`. They come directly from the node, not
/// through the gateway.
pub(crate) fn logs_of_node(node: &SimNode, filter: &Value, from: u64, to: u64) -> Vec<Value> {
    let mut filter = filter.clone();
    filter["fromBlock"] = format!("0x{from:x}").into();
    filter["toBlock"] = format!("0x{to:x}").into();
    let raw = node.call("eth_getLogs", &json!([filter]).to_string());
    serde_json::from_str(&raw).unwrap()
}

/// A geth in developer mode. It is killed when the test ends.
pub(crate) struct Geth {
    child: Child,
    _home: tempfile::TempDir,
    pub(crate) address: String,
}

impl Geth {
    /// `None` if geth is not installed.
    pub(crate) fn start() -> Option<Geth> {
        Geth::with_period(1)
    }

    /// Starts a geth that makes a block every `period` seconds. If it is 0, each transaction makes
    /// a block.
    pub(crate) fn with_period(period: u8) -> Option<Geth> {
        let program = programs::require("geth")?;
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let log = File::create(&path).unwrap();
        let mut child = Command::new(program)
            .arg("--datadir")
            .arg(home.path())
            .args(["--dev", "--dev.period", &period.to_string()])
            .args(["--nodiscover", "--maxpeers", "0", "--port", "0"])
            .args(["--http", "--http.port", "0", "--ws", "--ws.port", "0"])
            .args(["--authrpc.port", "0", "--ipcdisable"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let address = programs::wait_for_address(&mut child, &path, geth::LISTEN_LOG_PREFIX);
        Some(Geth { child, _home: home, address })
    }

    /// Sends a transaction that emits a log. It creates a contract whose init code emits the log.
    pub(crate) fn emit_log(&self) {
        let account = self.call("eth_accounts", &json!([]))[0].clone();
        let deploy = json!([{"from": account, "data": LOG_INIT_CODE, "gas": "0x30d40"}]);
        self.call("eth_sendTransaction", &deploy);
    }

    pub(crate) fn call(&self, method: &str, params: &Value) -> Value {
        let mut client = raw::Client::connect(&self.address);
        let answer = client.call("/", &body(method, &params.to_string()));
        let answer: Value = serde_json::from_str(answer.text()).unwrap();
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }
}

/// EVM init code that emits a log with one topic.
const LOG_INIT_CODE: &str = "0x604260006000a100";

impl Drop for Geth {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
