//! Goal: under any failure of nodes, a subscriber receives each block and each log once and in
//! order, including those that a reorg removes. No subscriber receives another's notifications.
//!
//! Method: simulated nodes that die, freeze and have reorgs, and WebSocket clients of tungstenite.
//! The simulated chain is the reference. For the format of notifications, the reference is a geth
//! that creates blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::growing_chain::{
    BLOCK_TIME, Geth, growing_world, logs_of_node, parse_quantity, remaining_logs, start_gateway,
};
use crate::support::harness::{
    NodeRuntime, SimNode, TestGateway, body, chain_polled_once, error, upstream_toml,
};
use crate::support::websocket_client::WebSocketClient;
use test_support::wait::{pause, wait_until};

/// Returns the `[[upstream]]` table of a node that the gateway calls only over WebSocket.
fn ws_toml(node: &SimNode) -> String {
    upstream_toml(node.name, &format!("ws://{}", node.address), "")
}

/// Sends a call and returns its response. Appends earlier notifications to `notifications`.
fn call(
    socket: &mut WebSocketClient,
    method: &str,
    params: &str,
    notifications: &mut Vec<String>,
) -> Value {
    socket.send(&body(method, params));
    loop {
        let text = socket.read_text();
        let message: Value = serde_json::from_str(&text).unwrap();
        if message.get("id").is_some() {
            return message;
        }
        notifications.push(text);
    }
}

/// Subscribes and returns the subscription's id.
fn subscribe(socket: &mut WebSocketClient, params: &str) -> String {
    subscribe_and_collect(socket, params, &mut Vec::new())
}

/// Subscribes and returns the subscription's id. Appends notifications that arrive before the
/// response to `notifications`.
fn subscribe_and_collect(
    socket: &mut WebSocketClient,
    params: &str,
    notifications: &mut Vec<String>,
) -> String {
    let answer = call(socket, "eth_subscribe", params, notifications);
    let id = answer["result"].as_str();
    id.unwrap_or_else(|| panic!("no subscription: {answer}")).to_owned()
}

/// Sends a call that must fail and returns the error's code and message.
fn call_error(socket: &mut WebSocketClient, method: &str, params: &str) -> (i64, String) {
    let answer = call(socket, method, params, &mut Vec::new());
    let error = &answer["error"];
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"));
    (code, error["message"].as_str().unwrap().to_owned())
}

/// Reads the next notification and returns its subscription id and its result.
fn next_notification(socket: &mut WebSocketClient) -> (String, Value) {
    let notification: Value = serde_json::from_str(&socket.read_text()).unwrap();
    assert_eq!(notification["method"], "eth_subscription", "{notification}");
    let params = &notification["params"];
    (params["subscription"].as_str().unwrap().to_owned(), params["result"].clone())
}

/// A client that records notifications until it is stopped.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(usize, String)>>,
}

impl Listener {
    /// Creates these subscriptions, and records each notification with the index of its
    /// subscription.
    fn start(address: &str, subscriptions: &[&str]) -> Listener {
        let mut socket = WebSocketClient::open(address);
        let (mut ids, mut early) = (HashMap::new(), Vec::new());
        for (index, params) in subscriptions.iter().enumerate() {
            ids.insert(subscribe_and_collect(&mut socket, params, &mut early), index);
        }
        assert_eq!(ids.len(), subscriptions.len(), "ids differ");
        let stream = socket.0.get_ref();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let with_index = |text: &str| {
                let (id, result) = split_notification(text);
                (ids[id], result.to_owned())
            };
            let mut notifications: Vec<(usize, String)> =
                early.iter().map(|text| with_index(text)).collect();
            loop {
                match socket.0.read() {
                    Ok(Message::Text(text)) => notifications.push(with_index(&text)),
                    Ok(_) => {}
                    Err(tungstenite::Error::Io(error))
                        if error.kind() == std::io::ErrorKind::WouldBlock =>
                    {
                        if is_stopped.load(Ordering::Relaxed) {
                            return notifications;
                        }
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        Listener { stop, thread }
    }

    /// Stops the client and returns each notification's subscription index and raw result.
    fn into_notifications(self) -> Vec<(usize, String)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Returns a notification's subscription id and raw result. Does not parse the JSON, which would
/// take too long.
fn split_notification(text: &str) -> (&str, &str) {
    let start = r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":""#;
    let rest = text.strip_prefix(start).unwrap_or_else(|| panic!("no notice: {text}"));
    let (id, rest) = rest.split_once(r#"","result":"#).unwrap();
    (id, rest.trim_end().strip_suffix("}}").unwrap())
}

/// Builds the canonical chain from `newHeads` notifications, like a client that follows reorgs.
/// Returns the block hashes by number. Panics if a header is repeated or missing.
fn canonical_chain(headers: &[Value]) -> BTreeMap<u64, String> {
    let mut chain: BTreeMap<u64, String> = BTreeMap::new();
    for header in headers {
        let text = |name: &str| header[name].as_str().unwrap().to_owned();
        let number = parse_quantity(&header["number"]);
        let (hash, parent) = (text("hash"), text("parentHash"));
        assert_ne!(chain.get(&number), Some(&hash), "notified twice: {header}");
        chain.split_off(&number);
        if let Some((highest, highest_hash)) = chain.last_key_value() {
            assert_eq!(
                (*highest + 1, highest_hash),
                (number, &parent),
                "a header is missing before {header}"
            );
        }
        chain.insert(number, hash);
    }
    chain
}

#[test]
fn each_subscriber_gets_each_block_and_log_once_despite_node_failures() {
    let world = growing_world(true);
    let runtime = NodeRuntime::start();
    let nodes = ["one", "two", "three"].map(|name| runtime.node(name, &world));
    // The third node has only HTTP, so the gateway polls it instead of receiving notifications.
    let entries = [ws_toml(&nodes[0]), ws_toml(&nodes[1]), nodes[2].to_toml("")];
    let gateway = start_gateway(&entries, "");
    let recent_logs: Vec<Value> = {
        let head = gateway.status_u64("/chains/0/head/number");
        logs_of_node(&nodes[0], &json!({}), head.saturating_sub(20), head)
    };
    let (first, middle) = (&recent_logs[0], &recent_logs[recent_logs.len() / 2]);
    let filters =
        [json!({}), json!({"address": first["address"]}), json!({"topics": [middle["topics"][0]]})];
    let logs = filters.iter().map(|filter| json!(["logs", filter]).to_string());
    let subscriptions: Vec<String> =
        std::iter::once("[\"newHeads\"]".to_owned()).chain(logs).collect();
    let subscriptions: Vec<&str> = subscriptions.iter().map(String::as_str).collect();
    let client_count = std::env::var("WEIR_SUBSCRIBERS").map_or(40, |text| text.parse().unwrap());
    let listeners: Vec<Listener> =
        (0..client_count).map(|_| Listener::start(&gateway.address, &subscriptions)).collect();
    let head_at_start = gateway.status_u64("/chains/0/head/number");

    // Nodes stop, freeze, send no notifications, and recover, while the chain grows with reorgs.
    let rounds = std::env::var("WEIR_ROUNDS").map_or(3, |text| text.parse().unwrap());
    for round in 0..rounds {
        let node = &nodes[round % 3];
        node.stop_listening();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on without the node.
        node.listen_again();
        let node = &nodes[(round + 1) % 3];
        node.node.freeze();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on without the node.
        node.node.thaw();
        let node = &nodes[(round + 2) % 3];
        node.set(|settings| settings.mute_subscriptions = true);
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on meanwhile.
        node.set(|settings| settings.mute_subscriptions = false);
    }
    // All nodes stop at the same block, so that all clients receive the same last block.
    nodes.iter().for_each(|node| node.node.freeze());
    let last = nodes.iter().map(|node| node.node.settings().frozen_at.unwrap()).max().unwrap();
    nodes.iter().for_each(|node| node.set(|settings| settings.frozen_at = Some(last)));
    gateway.wait_for_head(Some(last));
    let hash = world.hash_at(last, last).unwrap().to_string();
    pause(BLOCK_TIME * 20); // Sleeps: surplus notifications have time to arrive.
    assert!(gateway.status("/chains/0/reorgs").as_u64() > Some(0), "no reorg has been seen");

    let mut sequences: Vec<Vec<(usize, String)>> =
        listeners.into_iter().map(Listener::into_notifications).collect();
    for (client, notifications) in sequences.iter_mut().enumerate() {
        let results_of = |subscription: usize| -> Vec<Value> {
            let matching = notifications.iter().filter(|(index, _)| *index == subscription);
            matching.map(|(_, raw)| serde_json::from_str(raw).unwrap()).collect()
        };
        let headers = results_of(0);
        let chain = canonical_chain(&headers);
        assert_eq!(chain.last_key_value(), Some((&last, &hash)), "client {client}");
        for (number, hash) in &chain {
            let expected = world.hash_at(last, *number).unwrap().to_string();
            assert_eq!(*hash, expected, "block {number} of client {client}");
        }
        let first_block = *chain.first_key_value().unwrap().0;
        let compared_after = first_block.max(head_at_start);
        for (index, filter) in filters.iter().enumerate() {
            let notified = results_of(index + 1);
            let mut logs = remaining_logs(&notified);
            logs.retain(|log| parse_quantity(&log["blockNumber"]) > compared_after);
            let expected = logs_of_node(&nodes[0], filter, compared_after + 1, last);
            assert!(logs == expected.iter().collect::<Vec<_>>(), "{filter} of client {client}");
            assert!(!logs.is_empty(), "{filter} selects nothing: nothing is tested");
        }
        // The clients have subscribed at different times. The comparison of their notifications
        // therefore starts at a block after the last subscription.
        let is_after_start = |(index, raw): &(usize, String)| {
            let value: Value = serde_json::from_str(raw).unwrap();
            let name = if *index == 0 { "number" } else { "blockNumber" };
            parse_quantity(&value[name]) > head_at_start + 5
        };
        let first = notifications.iter().position(is_after_start).unwrap();
        notifications.drain(..first);
        notifications.sort_by_key(|(index, _)| *index);
    }
    let removed = sequences[0].iter().filter(|(_, raw)| raw.contains("\"removed\":true")).count();
    assert!(removed > 0, "no log was removed: nothing is tested");
    for (client, notifications) in sequences.iter().enumerate() {
        assert!(
            *notifications == sequences[0],
            "client {client} was notified of something else than client 0"
        );
    }
}

#[test]
fn logs_of_a_block_are_complete_though_nodes_index_it_late() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let nodes = ["late", "later"].map(|name| runtime.node(name, &world));
    for (node, blocks) in nodes.iter().zip([2, 4]) {
        node.set(|settings| settings.keeping.unindexed_blocks = blocks);
    }
    let gateway = start_gateway(&nodes.each_ref().map(|node| node.to_toml("")), "");
    let head_at_start = gateway.status_u64("/chains/0/head/number");
    let mut socket = WebSocketClient::open(&gateway.address);
    subscribe(&mut socket, "[\"logs\",{}]");
    let mut logs = Vec::new();
    let is_before_end = |log: &Value| parse_quantity(&log["blockNumber"]) < head_at_start + 20;
    while logs.last().is_none_or(is_before_end) {
        logs.push(next_notification(&mut socket).1);
    }
    logs.retain(|log| {
        (head_at_start + 2..head_at_start + 20).contains(&parse_quantity(&log["blockNumber"]))
    });
    nodes[0].set(|settings| settings.keeping.unindexed_blocks = 0);
    assert_eq!(logs, logs_of_node(&nodes[0], &json!({}), head_at_start + 2, head_at_start + 19));
}

#[test]
fn a_subscription_belongs_to_one_client() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let gateway =
        start_gateway(&[node.to_toml("")], "[downstream]\nwebsocket_subscriptions_max = 3\n");
    let (mut client, mut other_client) =
        (WebSocketClient::open(&gateway.address), WebSocketClient::open(&gateway.address));
    let ids = [(); 2].map(|()| subscribe(&mut client, "[\"newHeads\"]"));
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.len() == 34 && id.starts_with("0x")), "{ids:?}");
    let notified = [next_notification(&mut client), next_notification(&mut client)];
    assert_eq!(notified[0].1, notified[1].1, "both subscriptions notify of the same block");
    assert!(
        ids.contains(&notified[0].0)
            && ids.contains(&notified[1].0)
            && notified[0].0 != notified[1].0
    );

    // A client can end neither another client's subscription nor one that has ended.
    let id_param = |id: &str| json!([id]).to_string();
    let not_found = (-32000, "subscription not found".to_owned());
    assert_eq!(call_error(&mut other_client, "eth_unsubscribe", &id_param(&ids[0])), not_found);
    let unsubscribe = |socket: &mut WebSocketClient, id: &str| {
        call(socket, "eth_unsubscribe", &id_param(id), &mut Vec::new())
    };
    assert_eq!(unsubscribe(&mut client, &ids[0])["result"], true);
    assert_eq!(unsubscribe(&mut client, &ids[0])["error"]["message"], not_found.1);
    assert_eq!(next_notification(&mut client).0, ids[1], "the other subscription continues");
    assert_eq!(unsubscribe(&mut client, &ids[1])["result"], true);

    // In a batch, the gateway sends each subscription's id before the notifications.
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 2, "method": "eth_getBalance", "params": [format!("0x{:040x}", 1), "latest"]},
        {"jsonrpc": "2.0", "id": 3, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 4, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 5, "method": "eth_subscribe", "params": ["newHeads"]},
    ]);
    node.set_latency("eth_getBalance", 200.0);
    let answers = client.ask(batch.to_string().as_bytes());
    let codes: Vec<Option<i64>> =
        answers.as_array().unwrap().iter().map(|answer| answer["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [None, None, None, None, Some(-32005)], "three at most: {answers}");
    let mut expected: Vec<&str> =
        [0, 2, 3].iter().map(|index| answers[*index]["result"].as_str().unwrap()).collect();
    let notified = [(); 3].map(|()| next_notification(&mut client).0);
    let mut notified: Vec<&str> = notified.iter().map(String::as_str).collect();
    expected.sort_unstable();
    notified.sort_unstable();
    assert_eq!(notified, expected);

    // A client's disconnect ends its subscriptions.
    wait_until("three are open", || {
        gateway.get_admin("/metrics").text().contains("weir_subscriptions_open 3\n")
    });
    drop(client);
    wait_until("none is open", || {
        gateway.get_admin("/metrics").text().contains("weir_subscriptions_open 0\n")
    });
}

#[test]
fn invalid_subscriptions_are_rejected_with_a_reason() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let gateway = start_gateway(&[node.to_toml("")], "");
    let over_http = gateway.client().call("/", &body("eth_subscribe", "[\"newHeads\"]"));
    assert_eq!(error(&over_http), (200, -32601, "notifications not supported".to_owned()));
    let mut socket = WebSocketClient::open(&gateway.address);
    let cases = [
        ("[]", -32602, "params must name a subscription"),
        ("{\"a\":1}", -32602, "params must name a subscription"),
        ("[7]", -32602, "params must name a subscription"),
        ("[\"logs\",7]", -32602, "the filter must be an object"),
        ("[\"logs\",{\"address\":\"0x1\"}]", -32602, "address must be 0x and 40"),
        ("[\"logs\",{\"topics\":[\"0x1\"]}]", -32602, "a topic must be null, 0x and 64"),
        ("[\"logs\",{\"topics\":[null,null,null,null,null]}]", -32602, "at most 4 topics"),
        ("[\"logs\",{\"fromBlock\":\"0x5\",\"toBlock\":\"0x4\"}]", -32602, "in order"),
        ("[\"logs\",{\"fromBlock\":\"pending\"}]", -32602, "numbers or latest"),
        // The gateway relays other kinds of subscriptions from nodes over WebSocket. It calls this
        // node only over HTTP.
        ("[\"newPendingTransactions\"]", -32601, "no upstream supports this"),
        ("[\"nothing\"]", -32601, "no upstream supports this"),
    ];
    for (params, code, reason) in cases {
        let (actual_code, message) = call_error(&mut socket, "eth_subscribe", params);
        assert!(
            actual_code == code && message.contains(reason),
            "{params}: {actual_code} {message}"
        );
    }
    for params in ["[]", "[7]"] {
        assert_eq!(call_error(&mut socket, "eth_unsubscribe", params).0, -32602, "{params}");
    }
    let metrics = gateway.get_admin("/metrics").text().to_owned();
    assert!(metrics.contains("weir_subscriptions_open 0\n"), "{metrics}");
}

#[test]
fn other_subscription_kinds_are_relayed_from_one_node() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let nodes = ["one", "two"].map(|name| runtime.node(name, &world));
    let gateway = start_gateway(&nodes.each_ref().map(ws_toml), "[access]\ntransactions = true\n");
    let mut clients = [(); 2].map(|()| WebSocketClient::open(&gateway.address));
    let ids = clients.each_mut().map(|client| subscribe(client, "[\"newPendingTransactions\"]"));
    assert_ne!(ids[0], ids[1]);
    // The client receives the node's own error message.
    assert_eq!(
        call_error(&mut clients[0], "eth_subscribe", "[\"nothing\"]"),
        (-32601, "no \"nothing\" subscription in eth namespace".to_owned())
    );
    let hash = send_transaction(&nodes[0], 0);
    for (client, id) in clients.iter_mut().zip(&ids) {
        assert_eq!(next_notification(client), (id.clone(), hash.clone().into()));
    }
    // The gateway subscribes at either node. When that node fails, it subscribes at the other.
    let mut sent = 0;
    for (index, node) in nodes.iter().enumerate() {
        node.stop_listening();
        let other = &nodes[1 - index];
        wait_until("the other node relays", || {
            sent += 1;
            let hash = send_transaction(other, sent);
            let notified = clients.each_mut().map(|client| {
                client.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                match client.0.read() {
                    Ok(Message::Text(text)) => text.contains(&hash),
                    _ => false,
                }
            });
            notified[0] && notified[1]
        });
        node.listen_again();
        gateway.wait_for_candidates(&["one", "two"]);
    }
}

/// A node that a reload removes relays no more notifications, although it still sends them.
#[test]
fn a_removed_node_relays_no_more_notifications() {
    // Nodes of one world share a transaction pool, so each node gets its own world.
    let worlds = [(); 2].map(|()| growing_world(false));
    let runtime = NodeRuntime::start();
    let nodes = [runtime.node("one", &worlds[0]), runtime.node("two", &worlds[1])];
    let config = |nodes: &[&SimNode]| {
        let entries: Vec<String> = nodes.iter().map(|node| ws_toml(node)).collect();
        let chain = "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n";
        format!("{chain}{}", entries.concat())
    };
    let gateway = TestGateway::start(&config(&[&nodes[0], &nodes[1]]));
    gateway.wait_for_candidates(&["one", "two"]);
    let mut client = WebSocketClient::open(&gateway.address);
    subscribe(&mut client, "[\"newPendingTransactions\"]");
    let mut sent = 1000;
    // The gateway subscribes at either node. One of the two reloads removes that node.
    for (kept, removed) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        gateway.reload(&config(&[kept]));
        wait_until("the kept node relays", || {
            sent += 1;
            let hash = send_transaction(kept, sent);
            client.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            matches!(client.0.read(), Ok(Message::Text(text)) if text.contains(&hash))
        });
        // Transactions of the removed node do not reach the client. Those of the kept node do.
        let removed_hash = send_transaction(removed, sent + 100);
        let kept_hash = send_transaction(kept, sent + 200);
        client.0.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        loop {
            let text = client.read_text();
            assert!(!text.contains(&removed_hash), "a removed node has notified: {text}");
            if text.contains(&kept_hash) {
                break;
            }
        }
        sent += 200;
    }
}

/// An operator cordons a node, so that the gateway sends it no more calls. A subscription that is
/// relayed from this node moves to another node.
#[test]
fn a_relayed_subscription_moves_away_from_a_cordoned_node() {
    // Nodes of one world share a transaction pool, so each node gets its own world.
    let worlds = [(); 2].map(|()| growing_world(false));
    let runtime = NodeRuntime::start();
    let nodes = [runtime.node("one", &worlds[0]), runtime.node("two", &worlds[1])];
    let entries: String = nodes.iter().map(ws_toml).collect();
    let chain = "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n";
    let gateway = TestGateway::start(&format!("{chain}{entries}"));
    gateway.wait_for_candidates(&["one", "two"]);
    let mut client = WebSocketClient::open(&gateway.address);
    subscribe(&mut client, "[\"newPendingTransactions\"]");
    let mut sent = 5000;
    // The gateway subscribes at either node. One of the two rounds cordons that node.
    for (cordoned, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        let command = |arguments: &[&str]| {
            let mut weir = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
            let output = weir.args(arguments).args(["--admin", &gateway.admin]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        command(&["cordon", cordoned.name]);
        wait_until("the other node relays", || {
            sent += 1;
            let hash = send_transaction(other, sent);
            client.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            matches!(client.0.read(), Ok(Message::Text(text)) if text.contains(&hash))
        });
        command(&["uncordon", cordoned.name]);
        gateway.wait_for_candidates(&["one", "two"]);
    }
}

/// A recorded exchange of `testdata/execution-apis` that sends a signed transaction.
const TRANSACTION: &str = include_str!(
    "../../../../testdata/execution-apis/eth_sendRawTransaction/send-legacy-transaction.io"
);

/// A reload that gives a node another chain ends the subscriptions of the old chain.
#[test]
fn a_reload_that_changes_a_nodes_chain_ends_its_subscriptions() {
    let runtime = NodeRuntime::start();
    let node = runtime.node("one", &growing_world(false));
    let id = node.call("eth_chainId", "[]");
    let id = u64::from_str_radix(id.trim_matches('"').trim_start_matches("0x"), 16).unwrap();
    let config =
        |more: &str| format!("[chain.sim]\npoll_interval = \"20ms\"\n{more}\n{}", ws_toml(&node));
    let gateway = TestGateway::start(&config(""));
    gateway.wait_for_candidates(&["one"]);
    let mut client = WebSocketClient::open(&gateway.address);
    subscribe(&mut client, "[\"newHeads\"]");
    next_notification(&mut client);
    gateway.reload(&config(&format!("id = {id}")));
    client.0.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let code = loop {
        if let Message::Close(frame) = client.0.read().unwrap() {
            break frame.unwrap().code;
        }
    };
    assert_eq!(code, CloseCode::Again);
}

/// A node that refuses WebSocket connections delays neither the error of a subscription nor the
/// notifications of another one.
#[test]
fn a_subscription_that_no_node_can_relay_fails_in_time() {
    let runtime = NodeRuntime::start();
    let node = runtime.node("one", &growing_world(false));
    let config = format!(
        "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n\
         [[upstream]]\nname = \"one\"\nurl = \"http://{}\"\nws_url = \"ws://127.0.0.1:1\"\n",
        node.address
    );
    let gateway = TestGateway::start(&config);
    gateway.wait_for_candidates(&["one"]);
    let mut client = WebSocketClient::open(&gateway.address);
    let heads = subscribe(&mut client, "[\"newHeads\"]");
    let (code, why) = call_error(&mut client, "eth_subscribe", "[\"newPendingTransactions\"]");
    assert_eq!(code, -32601, "{why}");
    assert_eq!(next_notification(&mut client).0, heads);
    // The gateway rejects params that are too long.
    let long = json!(["newPendingTransactions", "x".repeat(70_000)]).to_string();
    let (code, why) = call_error(&mut client, "eth_subscribe", &long);
    assert_eq!(code, -32602, "{why}");
    assert!(why.contains("64 KiB"), "{why}");
}

#[test]
fn a_filter_may_begin_with_the_earliest_block() {
    let runtime = NodeRuntime::start();
    let node = runtime.node("one", &growing_world(false));
    let gateway =
        TestGateway::start(&format!("[chain.sim]\npoll_interval = \"20ms\"\n{}", ws_toml(&node)));
    gateway.wait_for_candidates(&["one"]);
    let mut client = WebSocketClient::open(&gateway.address);
    subscribe(&mut client, r#"["logs",{"fromBlock":"earliest"}]"#);
    let text = call_error(&mut client, "eth_subscribe", r#"["logs",{"toBlock":"earliest"}]"#).1;
    let expected = "fromBlock and toBlock must be numbers or latest, in order, without blockHash";
    assert!(text.contains(expected), "{text}");
}

/// Sends a transaction to a node and returns its hash, which differs for each number. The number
/// replaces the end of the signature, because the simulated nodes do not verify signatures.
fn send_transaction(node: &SimNode, number: u32) -> String {
    let call = TRANSACTION.lines().find_map(|line| line.strip_prefix(">> ")).unwrap();
    let call: Value = serde_json::from_str(call).unwrap();
    let raw = call["params"][0].as_str().unwrap();
    let raw = format!("{}{number:08x}", &raw[..raw.len() - 8]);
    let result = node.call("eth_sendRawTransaction", &json!([raw]).to_string());
    serde_json::from_str(&result).unwrap()
}

#[test]
fn harmony_subscriptions_keep_their_method_names() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let chain = "[chain.sim]\nfamily = \"harmony\"\npoll_interval = \"20ms\"\n";
    let gateway = TestGateway::start(&format!("{chain}{}", ws_toml(&node)));
    wait_until("there is a head", || {
        gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    let mut socket = WebSocketClient::open(&gateway.address);
    let answer = call(&mut socket, "hmy_subscribe", "[\"newHeads\"]", &mut Vec::new());
    let id = answer["result"].as_str().unwrap_or_else(|| panic!("no subscription: {answer}"));
    for _ in 0..3 {
        let notification: Value = serde_json::from_str(&socket.read_text()).unwrap();
        assert_eq!(notification["method"], "hmy_subscription", "{notification}");
        assert_eq!(notification["params"]["subscription"], id);
        assert!(notification["params"]["result"]["hash"].is_string());
    }
    let actual = call_error(&mut socket, "hmy_subscribe", "[\"nothing\"]");
    assert_eq!(actual, (-32601, "no \"nothing\" subscription in hmy namespace".to_owned()));
}

#[test]
fn a_head_is_followed_at_once_if_a_node_announces_it() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    // The gateway polls only once per hour, so it must learn new blocks from notifications.
    let gateway = TestGateway::start(&format!("{}{}", chain_polled_once(""), ws_toml(&node)));
    let mut socket = WebSocketClient::open(&gateway.address);
    wait_until("there is a head", || {
        gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    subscribe(&mut socket, "[\"newHeads\"]");
    let headers: Vec<Value> = (0..20).map(|_| next_notification(&mut socket).1).collect();
    canonical_chain(&headers);
    // A response about the latest block is no older than the notification.
    let (_, header) = next_notification(&mut socket);
    let answer = call(&mut socket, "eth_blockNumber", "[]", &mut Vec::new());
    assert!(
        parse_quantity(&answer["result"]) >= parse_quantity(&header["number"]),
        "{answer} after {header}"
    );
}

#[test]
fn clients_that_do_not_read_are_disconnected_and_others_are_served() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let settings = "[downstream]\nwebsocket_queue_bytes_max = \"64KiB\"\nwrite_timeout = \"1h\"\n";
    let gateway = start_gateway(&[node.to_toml("")], settings);
    let mut stalled = WebSocketClient::open(&gateway.address);
    for _ in 0..400 {
        // Many subscriptions fill the gateway's send queue of the client faster.
        stalled.send(&body("eth_subscribe", "[\"newHeads\"]"));
    }
    let mut other = WebSocketClient::open(&gateway.address);
    subscribe(&mut other, "[\"newHeads\"]");
    wait_until("the client that does not read is disconnected", || {
        next_notification(&mut other);
        gateway.get_admin("/metrics").text().contains("weir_subscriptions_open 1\n")
    });
    next_notification(&mut other);
}

#[test]
fn removing_a_key_ends_its_subscriptions() {
    let world = growing_world(false);
    let runtime = NodeRuntime::start();
    let node = runtime.node("node", &world);
    let key = "weir_own_0123456789abcdef";
    let keys = |expires: &str| format!("[[key]]\nname = \"own\"\nsecret = \"{key}\"\n{expires}\n");
    let chain = "[chain.sim]\npoll_interval = \"20ms\"\n";
    let config = |expires: &str| format!("{}{chain}{}", keys(expires), node.to_toml(""));
    let gateway = TestGateway::start(&config(""));
    let headers = [("x-api-key", key)];
    let mut socket = WebSocketClient::try_open(&gateway.address, "/", &headers).unwrap().0;
    wait_until("there is a head", || {
        gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    subscribe(&mut socket, "[\"newHeads\"]");
    next_notification(&mut socket);
    gateway.reload(&config("expires = \"2020-01-01T00:00:00Z\""));
    assert_eq!(socket.read_close().0, CloseCode::Policy);
}

#[test]
fn denying_a_key_subscriptions_ends_them() {
    let runtime = NodeRuntime::start();
    let nodes = ["one", "two"].map(|name| runtime.node(name, &growing_world(false)));
    let key = "weir_own_0123456789abcdef";
    let [one, two] = nodes.each_ref().map(|node| node.to_toml("chain = \"CHAIN\""));
    let config = |grant: &str, policy: &str| {
        let chains = "[chain.sim]\npoll_interval = \"20ms\"\n[chain.other]\n";
        let (one, two) = (one.replace("CHAIN", "sim"), two.replace("CHAIN", "other"));
        format!(
            "[access]\n{policy}\n[[key]]\nname = \"own\"\nsecret = \"{key}\"\n{grant}\n{chains}{one}{two}"
        )
    };
    let open = "";
    for (grant, policy) in [
        ("methods_deny = [\"eth_subscribe\"]", open),
        ("chains = [\"other\"]", open),
        ("", "methods_deny = [\"eth_subscribe\"]"),
    ] {
        let gateway = TestGateway::start(&config("chains = [\"sim\"]", open));
        let opened = WebSocketClient::try_open(&gateway.address, "/sim", &[("x-api-key", key)]);
        let mut socket = opened.unwrap().0;
        wait_until("there is a head", || {
            gateway.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
        });
        subscribe(&mut socket, "[\"newHeads\"]");
        // A reload that still allows the subscription does not end it.
        gateway.reload(&config("methods_deny = [\"eth_call\"]", open));
        pause(Duration::from_millis(1200)); // Sleeps: the grant expires meanwhile.
        for _ in 0..3 {
            next_notification(&mut socket);
        }
        gateway.reload(&config(grant, policy));
        let (code, why) = socket.read_close();
        assert_eq!(code, CloseCode::Policy, "{grant}{policy}: {why}");
    }
}

#[test]
fn notifications_have_the_form_of_geth() {
    let Some(geth) = Geth::start() else { return };
    let url = format!("ws://{}", geth.address);
    let gateway =
        start_gateway(&[upstream_toml("geth", &url, "")], "[access]\ntransactions = true\n");
    let kinds = ["[\"newHeads\"]", "[\"logs\",{}]", "[\"newPendingTransactions\"]"];
    // The listeners start one after the other, so the first may get one more block.
    let [from_geth, from_gateway] =
        [&geth.address, &gateway.address].map(|address| Listener::start(address, &kinds));
    for _ in 0..3 {
        let before = parse_quantity(&geth.call("eth_blockNumber", &json!([])));
        geth.emit_log();
        wait_until("there are two more blocks", || {
            parse_quantity(&geth.call("eth_blockNumber", &json!([]))) > before + 1
        });
    }
    let last = parse_quantity(&geth.call("eth_blockNumber", &json!([])));
    wait_until("the gateway has them", || gateway.status_u64("/chains/0/head/number") >= last);
    pause(Duration::from_millis(300)); // Sleeps: surplus notifications have time to arrive.
    let [from_geth, from_gateway] = [from_geth, from_gateway].map(Listener::into_notifications);
    for (subscription, kind) in kinds.iter().enumerate() {
        let results_of = |notifications: &[(usize, String)]| -> Vec<Value> {
            let matching = notifications.iter().filter(|(index, _)| *index == subscription);
            matching.map(|(_, raw)| serde_json::from_str(raw).unwrap()).collect()
        };
        let (from_geth, from_gateway) = (results_of(&from_geth), results_of(&from_gateway));
        let both: Vec<&Value> =
            from_geth.iter().filter(|value| from_gateway.contains(value)).collect();
        let longest = from_geth.len().max(from_gateway.len());
        // Geth may omit the first notifications right after it confirms a subscription.
        assert!(both.len() >= 2, "{kind}: geth sent {from_geth:#?}, the gateway {from_gateway:#?}");
        assert!(
            both.len() + 2 >= longest,
            "{kind}: geth sent {from_geth:#?}, the gateway {from_gateway:#?}"
        );
    }
}
