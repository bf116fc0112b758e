//! Goal: once a client has a block, or a record of it, each later call shows that block or a newer
//! one, over every protocol.
//!
//! Method: a geth that makes blocks in its own time. Clients poll gateways for the receipt of each
//! transaction, and read the head and the state right after it. The gateways poll geth rarely, so
//! most receipts arrive before the gateway has polled their blocks.
//!
//! `WEIR_CAUSAL_TRANSFERS` sets the number of transfers, each followed by all clients. The test prints
//! how much later than geth itself the gateways have a receipt.
//!
//! Needs geth. `test_support::programs` documents what happens if it is not installed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use simnode::schedule::WorldOptions;
use simnode::world::World;
use test_support::raw::Client;
use test_support::wait::wait_until;

use crate::support::growing_chain::{Geth, parse_quantity};
use crate::support::harness::{NodeRuntime, TestGateway, ask, body, result, upstream_toml};
use crate::support::websocket_client::WebSocketClient;

/// An account that receives all transfers.
const RECIPIENT: &str = "0x00000000000000000000000000000000000000aa";

/// The name of the client that calls geth directly.
const GETH: &str = "geth";

/// A client of a gateway, or of geth.
enum TestClient {
    Http(Box<Client>),
    /// Sends each call twice, in one batch.
    Batch(Box<Client>),
    WebSocket(Box<WebSocketClient>),
}

impl TestClient {
    fn call(&mut self, method: &str, params: &Value) -> Value {
        let call = body(method, &params.to_string());
        let answer: Value = match self {
            TestClient::Http(client) => {
                serde_json::from_str(client.call("/", &call).text()).unwrap()
            }
            TestClient::Batch(client) => {
                let batch = [b"[", &*call, b",", &*call, b"]"].concat();
                let answers = client.call("/", &batch);
                serde_json::from_str::<[Value; 2]>(answers.text()).unwrap()[1].take()
            }
            TestClient::WebSocket(client) => client.ask(&call),
        };
        // Geth's response about an unknown transaction while it indexes a new block.
        if answer["error"]["message"] == "transaction indexing is in progress" {
            return Value::Null;
        }
        assert!(answer["error"].is_null(), "{method} {params}: {answer}");
        answer["result"].clone()
    }

    /// Waits for the receipt of a transaction. Then compares the head and the state with it, except
    /// those of geth itself, whose head may be older than a receipt for some microseconds.
    /// `transfers` is the number of transfers so far.
    /// Returns the time of the receipt.
    fn follow(&mut self, name: &str, sender: &Value, hash: &Value, transfers: u64) -> Instant {
        let mut receipt = Value::Null;
        wait_until("there is a receipt", || {
            receipt = self.call("eth_getTransactionReceipt", &json!([hash]));
            !receipt.is_null()
        });
        let received_at = Instant::now();
        if name == GETH {
            return received_at;
        }
        let block = parse_quantity(&receipt["blockNumber"]);
        let head = parse_quantity(&self.call("eth_blockNumber", &json!([])));
        assert!(head >= block, "{name}: receipt of {block}, then head {head}");
        let nonce = self.call("eth_getTransactionCount", &json!([sender, "latest"]));
        assert_eq!(parse_quantity(&nonce), transfers, "{name}: nonce");
        let balance = self.call("eth_getBalance", &json!([RECIPIENT, "latest"]));
        assert_eq!(parse_quantity(&balance), transfers, "{name}: balance");
        received_at
    }
}

/// Sends transfers one after the other to a geth with this block period, and follows each through
/// gateways with all kinds of upstreams.
fn follow_transfers(period: u8, transfers: u64) {
    let Some(geth) = Geth::with_period(period) else { return };
    let address = &geth.address;
    let http = |name: &str| upstream_toml(name, &format!("http://{address}/?{name}"), "");
    let ws_url = format!("ws_url = \"ws://{address}\"\n");
    let upstreams = [
        ("http", http("a")),
        ("three", ["a", "b", "c"].map(http).concat()),
        ("ws_url", upstream_toml("a", &format!("http://{address}"), &ws_url)),
        ("ws", upstream_toml("a", &format!("ws://{address}"), "")),
    ];
    let gateways = upstreams.map(|(name, upstreams)| {
        let gateway = TestGateway::with_server_table("[server]\nthreads = 2\n", &upstreams);
        wait_until("there is a head", || {
            gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
        });
        (name, gateway)
    });
    let mut clients = Vec::new();
    for (name, gateway) in &gateways {
        clients.push((*name, TestClient::Http(Box::new(gateway.client()))));
        clients.push((*name, TestClient::Batch(Box::new(gateway.client()))));
        let websocket = WebSocketClient::open(&gateway.address);
        clients.push((*name, TestClient::WebSocket(Box::new(websocket))));
    }
    clients.push((GETH, TestClient::Http(Box::new(Client::connect(address)))));
    let transfers = std::env::var("WEIR_CAUSAL_TRANSFERS")
        .map_or(transfers, |text| text.parse().expect("a number of transfers"));
    let sender = geth.call("eth_accounts", &json!([]))[0].clone();
    let mut delays = Vec::new();
    for number in 1..=transfers {
        let transfer = json!([{"from": sender, "to": RECIPIENT, "value": "0x1"}]);
        let hash = geth.call("eth_sendTransaction", &transfer);
        std::thread::scope(|scope| {
            let mut receipts = Vec::new();
            for (name, client) in &mut clients {
                let (sender, hash) = (&sender, &hash);
                receipts.push(scope.spawn(move || client.follow(name, sender, hash, number)));
            }
            let mut times: Vec<Instant> =
                receipts.into_iter().map(|receipt| receipt.join().unwrap()).collect();
            let direct = times.pop().expect("the client of geth itself");
            delays.extend(times.iter().map(|time| time.saturating_duration_since(direct)));
        });
    }
    delays.sort_unstable();
    let [median, p99] = [50, 99].map(|percent| delays[(delays.len() - 1) * percent / 100]);
    println!(
        "period {period}: {} receipts, later than geth's: p50 {median:?}, p99 {p99:?}",
        delays.len()
    );
}

#[test]
fn reads_after_a_receipt_show_its_block_if_each_transaction_makes_a_block() {
    follow_transfers(0, 20);
}

#[test]
fn reads_after_a_receipt_show_its_block_if_blocks_come_each_second() {
    follow_transfers(1, 4);
}

#[test]
fn reads_after_a_receipt_show_its_block_if_blocks_come_each_two_seconds() {
    follow_transfers(2, 2);
}

#[test]
fn a_block_that_only_one_of_three_nodes_has_is_not_shown() {
    // A head of three nodes needs two that have it.
    let runtime = NodeRuntime::start();
    let height = 100;
    let options = WorldOptions {
        height_start: height,
        block_time: Duration::from_secs(3600),
        ..WorldOptions::default()
    };
    let world = Arc::new(World::new(options).unwrap());
    let [ahead, second, third] = ["a", "b", "c"].map(|name| runtime.node(name, &world));
    for node in [&ahead, &second, &third] {
        node.set(|settings| settings.lag_blocks = 1);
    }
    let gateway = TestGateway::in_front_of(&[&ahead, &second, &third], "");
    gateway.wait_for_head(Some(height - 1));
    ahead.set(|settings| settings.lag_blocks = 0);
    let mut client = gateway.client();
    let block = format!("[\"{height:#x}\",false]");
    let show = |client: &mut Client| result(&ask(client, "eth_getBlockByNumber", &block));
    for _ in 0..3 {
        assert_eq!(show(&mut client), "null");
    }
    second.set(|settings| settings.lag_blocks = 0);
    wait_until("the block is shown", || show(&mut client) != "null");
    assert_eq!(result(&ask(&mut client, "eth_blockNumber", "[]")), format!("\"{height:#x}\""));
}
