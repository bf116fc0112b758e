//! Goal: a subscriber receives every block and every log of the served chain once and in order,
//! including those that a reorg removes, under any failure of nodes. No subscriber receives
//! another's notifications. Method: simulated nodes that die, freeze and reorganise, tungstenite
//! clients, and the simulated chain as the reference; a geth that creates blocks, for the format of
//! notifications.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::chain::{BLOCK_TIME, Geth, logs_of, moving_world, number, served, truth};
use crate::support::scene::{Scene, Served, SimNode, body, entry, error, polled_once};
use crate::support::socket::Socket;
use test_support::wait::{pause, wait_until};

/// A node's lines with a WebSocket address and nothing else.
fn ws_entry(node: &SimNode) -> String {
    entry(node.name, &format!("ws://{}", node.address), "")
}

/// Reads the response to a call; earlier notifications go into `told`.
fn answer(socket: &mut Socket, method: &str, params: &str, told: &mut Vec<String>) -> Value {
    socket.send(&body(method, params));
    loop {
        let text = socket.text();
        let said: Value = serde_json::from_str(&text).unwrap();
        if said.get("id").is_some() {
            return said;
        }
        told.push(text);
    }
}

/// Subscribes; the id.
fn subscribe(socket: &mut Socket, params: &str) -> String {
    subscribe_after(socket, params, &mut Vec::new())
}

/// As above, and returns the notifications before the response.
fn subscribe_after(socket: &mut Socket, params: &str, told: &mut Vec<String>) -> String {
    let answer = answer(socket, "eth_subscribe", params, told);
    let id = answer["result"].as_str();
    id.unwrap_or_else(|| panic!("no subscription: {answer}")).to_owned()
}

/// Code and message of a refusal.
fn refused(socket: &mut Socket, method: &str, params: &str) -> (i64, String) {
    let answer = answer(socket, method, params, &mut Vec::new());
    let error = &answer["error"];
    let code = error["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"));
    (code, error["message"].as_str().unwrap().to_owned())
}

/// Id and result of the next notice.
fn notice(socket: &mut Socket) -> (String, Value) {
    let told: Value = serde_json::from_str(&socket.text()).unwrap();
    assert_eq!(told["method"], "eth_subscription", "{told}");
    let params = &told["params"];
    (params["subscription"].as_str().unwrap().to_owned(), params["result"].clone())
}

/// A client that records notifications until it is stopped.
struct Listener {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(usize, String)>>,
}

impl Listener {
    /// Creates these subscriptions, and records the notifications of each by index.
    fn start(address: &str, subscriptions: &[&str]) -> Listener {
        let mut socket = Socket::open(address);
        let (mut ids, mut early) = (HashMap::new(), Vec::new());
        for (place, params) in subscriptions.iter().enumerate() {
            ids.insert(subscribe_after(&mut socket, params, &mut early), place);
        }
        assert_eq!(ids.len(), subscriptions.len(), "ids differ");
        let stream = socket.0.get_ref();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let noted = |text: &str| {
                let (id, result) = parts(text);
                (ids[id], result.to_owned())
            };
            let mut told: Vec<(usize, String)> = early.iter().map(|text| noted(text)).collect();
            loop {
                match socket.0.read() {
                    Ok(Message::Text(text)) => told.push(noted(&text)),
                    Ok(_) => {}
                    Err(tungstenite::Error::Io(error))
                        if error.kind() == std::io::ErrorKind::WouldBlock =>
                    {
                        if stopped.load(Ordering::Relaxed) {
                            return told;
                        }
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        Listener { stop, thread }
    }

    fn told(self) -> Vec<(usize, String)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Id and raw result of a notice, without parsing it: there are many.
fn parts(text: &str) -> (&str, &str) {
    let start = r#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":""#;
    let rest = text.strip_prefix(start).unwrap_or_else(|| panic!("no notice: {text}"));
    let (id, rest) = rest.split_once(r#"","result":"#).unwrap();
    (id, rest.trim_end().strip_suffix("}}").unwrap())
}

/// Follows headers as a client that maintains the chain does; returns its headers by height.
fn chain_of(headers: &[Value]) -> BTreeMap<u64, String> {
    let mut chain: BTreeMap<u64, String> = BTreeMap::new();
    for header in headers {
        let text = |name: &str| header[name].as_str().unwrap().to_owned();
        let number = number(&header["number"]);
        let (hash, parent) = (text("hash"), text("parentHash"));
        assert_ne!(chain.get(&number), Some(&hash), "told twice: {header}");
        chain.split_off(&number);
        if let Some((highest, below)) = chain.last_key_value() {
            assert_eq!((*highest + 1, below), (number, &parent), "one is missing before {header}");
        }
        chain.insert(number, hash);
    }
    chain
}

#[test]
fn each_subscriber_gets_each_block_and_log_once_despite_node_failures() {
    let world = moving_world(true);
    let scene = Scene::set();
    let nodes = ["one", "two", "three"].map(|name| scene.node(name, &world));
    // One node is polled over HTTP, without notifications, so that both transports are used.
    let entries = [ws_entry(&nodes[0]), ws_entry(&nodes[1]), nodes[2].entry("")];
    let served = served(&entries, "");
    let some: Vec<Value> = {
        let head = served.count("/chains/0/head/number");
        truth(&nodes[0], &json!({}), head.saturating_sub(20), head)
    };
    let (first, other) = (&some[0], &some[some.len() / 2]);
    let filters =
        [json!({}), json!({"address": first["address"]}), json!({"topics": [other["topics"][0]]})];
    let logs = filters.iter().map(|filter| json!(["logs", filter]).to_string());
    let wanted: Vec<String> = std::iter::once("[\"newHeads\"]".to_owned()).chain(logs).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let clients = std::env::var("WEIR_SUBSCRIBERS").map_or(40, |text| text.parse().unwrap());
    let listeners: Vec<Listener> =
        (0..clients).map(|_| Listener::start(&served.address, &wanted)).collect();
    let began = served.count("/chains/0/head/number");

    // Nodes die, freeze, fall silent and come back while blocks come and go.
    let rounds = std::env::var("WEIR_ROUNDS").map_or(3, |text| text.parse().unwrap());
    for round in 0..rounds {
        let node = &nodes[round % 3];
        node.down();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on without the node.
        node.up();
        let node = &nodes[(round + 1) % 3];
        node.node.freeze();
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on without the node.
        node.node.thaw();
        let node = &nodes[(round + 2) % 3];
        node.set(|settings| settings.mute_subscriptions = true);
        pause(BLOCK_TIME * 8); // Sleeps: the chain moves on meanwhile.
        node.set(|settings| settings.mute_subscriptions = false);
    }
    // The chain has no new blocks, so that all clients receive the same last block.
    nodes.iter().for_each(|node| node.node.freeze());
    let last = nodes.iter().map(|node| node.node.settings().frozen_at.unwrap()).max().unwrap();
    nodes.iter().for_each(|node| node.set(|settings| settings.frozen_at = Some(last)));
    served.wait_for_head(Some(last));
    let hash = world.hash_at(last, last).unwrap().to_string();
    pause(BLOCK_TIME * 20); // Sleeps: what would come too much has time to come.
    assert!(served.status("/chains/0/reorgs").as_u64() > Some(0), "no reorg has been seen");

    let mut sequences: Vec<Vec<(usize, String)>> =
        listeners.into_iter().map(Listener::told).collect();
    for (client, told) in sequences.iter_mut().enumerate() {
        let of = |place: usize| -> Vec<Value> {
            let own = told.iter().filter(|(own, _)| *own == place);
            own.map(|(_, raw)| serde_json::from_str(raw).unwrap()).collect()
        };
        let headers = of(0);
        let chain = chain_of(&headers);
        assert_eq!(chain.last_key_value(), Some((&last, &hash)), "client {client}");
        for (number, own) in &chain {
            let right = world.hash_at(last, *number).unwrap().to_string();
            assert_eq!(*own, right, "block {number} of client {client}");
        }
        let from = *chain.first_key_value().unwrap().0;
        for (place, filter) in filters.iter().enumerate() {
            let told = of(place + 1);
            let mut kept = logs_of(&told);
            kept.retain(|log| number(&log["blockNumber"]) > from.max(began));
            let right = truth(&nodes[0], filter, from.max(began) + 1, last);
            assert!(kept == right.iter().collect::<Vec<_>>(), "{filter} of client {client}");
            assert!(!kept.is_empty(), "{filter} selects nothing: nothing is tested");
        }
        // What went before all were there differs.
        let all = |(place, raw): &(usize, String)| {
            let value: Value = serde_json::from_str(raw).unwrap();
            let name = if *place == 0 { "number" } else { "blockNumber" };
            number(&value[name]) > began + 5
        };
        let first = told.iter().position(all).unwrap();
        told.drain(..first);
        told.sort_by_key(|(place, _)| *place);
    }
    let removed = sequences[0].iter().filter(|(_, raw)| raw.contains("\"removed\":true")).count();
    assert!(removed > 0, "no log was removed: nothing is tested");
    for (client, told) in sequences.iter().enumerate() {
        assert!(*told == sequences[0], "client {client} was told something else than the first");
    }
}

#[test]
fn a_node_that_has_not_indexed_a_block_yet_is_not_believed() {
    let world = moving_world(false);
    let scene = Scene::set();
    let nodes = ["late", "later"].map(|name| scene.node(name, &world));
    for (node, blocks) in nodes.iter().zip([2, 4]) {
        node.set(|settings| settings.keeping.unindexed_blocks = blocks);
    }
    let served = served(&nodes.each_ref().map(|node| node.entry("")), "");
    let began = served.count("/chains/0/head/number");
    let mut socket = Socket::open(&served.address);
    subscribe(&mut socket, "[\"logs\",{}]");
    let mut told = Vec::new();
    while told.last().is_none_or(|log: &Value| number(&log["blockNumber"]) < began + 20) {
        told.push(notice(&mut socket).1);
    }
    told.retain(|log| (began + 2..began + 20).contains(&number(&log["blockNumber"])));
    nodes[0].set(|settings| settings.keeping.unindexed_blocks = 0);
    assert_eq!(told, truth(&nodes[0], &json!({}), began + 2, began + 19));
}

#[test]
fn a_subscription_is_its_clients_own() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let served = served(&[node.entry("")], "[downstream]\nwebsocket_subscriptions_max = 3\n");
    let (mut one, mut two) = (Socket::open(&served.address), Socket::open(&served.address));
    let ids = [(); 2].map(|()| subscribe(&mut one, "[\"newHeads\"]"));
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.len() == 34 && id.starts_with("0x")), "{ids:?}");
    let told = [notice(&mut one), notice(&mut one)];
    assert_eq!(told[0].1, told[1].1, "both are told of the same block");
    assert!(ids.contains(&told[0].0) && ids.contains(&told[1].0) && told[0].0 != told[1].0);

    // The id of another client's subscription is rejected, and so is that of an ended one.
    let unsubscribe = |id: &str| json!([id]).to_string();
    let nothing = (-32000, "subscription not found".to_owned());
    assert_eq!(refused(&mut two, "eth_unsubscribe", &unsubscribe(&ids[0])), nothing);
    let end = |socket: &mut Socket, id: &str| {
        answer(socket, "eth_unsubscribe", &unsubscribe(id), &mut Vec::new())
    };
    assert_eq!(end(&mut one, &ids[0])["result"], true);
    assert_eq!(end(&mut one, &ids[0])["error"]["message"], nothing.1);
    assert_eq!(notice(&mut one).0, ids[1], "the other goes on");
    assert_eq!(end(&mut one, &ids[1])["result"], true);

    // In a batch each subscription's id is sent before its notifications.
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 2, "method": "eth_getBalance", "params": [format!("0x{:040x}", 1), "latest"]},
        {"jsonrpc": "2.0", "id": 3, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 4, "method": "eth_subscribe", "params": ["newHeads"]},
        {"jsonrpc": "2.0", "id": 5, "method": "eth_subscribe", "params": ["newHeads"]},
    ]);
    node.slow("eth_getBalance", 200.0);
    let answers = one.ask(batch.to_string().as_bytes());
    let codes: Vec<Option<i64>> =
        answers.as_array().unwrap().iter().map(|answer| answer["error"]["code"].as_i64()).collect();
    assert_eq!(codes, [None, None, None, None, Some(-32005)], "three at most: {answers}");
    let mut expected: Vec<&str> =
        [0, 2, 3].iter().map(|place| answers[*place]["result"].as_str().unwrap()).collect();
    let told = [(); 3].map(|()| notice(&mut one).0);
    let mut told: Vec<&str> = told.iter().map(String::as_str).collect();
    expected.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, expected);

    // Who leaves takes all of it along.
    wait_until("three are open", || {
        served.look("/metrics").text().contains("weir_subscriptions_open 3\n")
    });
    drop(one);
    wait_until("none is open", || {
        served.look("/metrics").text().contains("weir_subscriptions_open 0\n")
    });
}

#[test]
fn what_nobody_can_be_told_of_is_refused_in_words() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let served = served(&[node.entry("")], "");
    let over_http = served.client().call("/", &body("eth_subscribe", "[\"newHeads\"]"));
    assert_eq!(error(&over_http), (200, -32601, "notifications not supported".to_owned()));
    let mut socket = Socket::open(&served.address);
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
        // Only a node could tell, and this one has no connection for it.
        ("[\"newPendingTransactions\"]", -32601, "no upstream supports this"),
        ("[\"nothing\"]", -32601, "no upstream supports this"),
    ];
    for (params, code, words) in cases {
        let (is, said) = refused(&mut socket, "eth_subscribe", params);
        assert!(is == code && said.contains(words), "{params}: {is} {said}");
    }
    for params in ["[]", "[7]"] {
        assert_eq!(refused(&mut socket, "eth_unsubscribe", params).0, -32602, "{params}");
    }
    let metrics = served.look("/metrics").text().to_owned();
    assert!(metrics.contains("weir_subscriptions_open 0\n"), "{metrics}");
}

#[test]
fn what_only_nodes_know_is_passed_on_from_one_of_them() {
    let world = moving_world(false);
    let scene = Scene::set();
    let nodes = ["one", "two"].map(|name| scene.node(name, &world));
    let served = served(&nodes.each_ref().map(ws_entry), "[access]\ntransactions = true\n");
    let mut clients = [(); 2].map(|()| Socket::open(&served.address));
    let ids = clients.each_mut().map(|client| subscribe(client, "[\"newPendingTransactions\"]"));
    assert_ne!(ids[0], ids[1]);
    // The node's own words where it refuses.
    assert_eq!(
        refused(&mut clients[0], "eth_subscribe", "[\"nothing\"]"),
        (-32601, "no \"nothing\" subscription in eth namespace".to_owned())
    );
    let hash = send_transaction(&nodes[0], 0);
    for (client, id) in clients.iter_mut().zip(&ids) {
        assert_eq!(notice(client), (id.clone(), hash.clone().into()));
    }
    // Whichever node it was, the other takes over.
    let mut sent = 0;
    for (place, node) in nodes.iter().enumerate() {
        node.down();
        let other = &nodes[1 - place];
        wait_until("the other node tells", || {
            sent += 1;
            let hash = send_transaction(other, sent);
            let heard = clients.each_mut().map(|client| {
                client.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                match client.0.read() {
                    Ok(Message::Text(text)) => text.contains(&hash),
                    _ => false,
                }
            });
            heard[0] && heard[1]
        });
        node.up();
        served.wait_for_candidates(&["one", "two"]);
    }
}

/// A node that a new configuration takes away is left, though it would go on to tell.
#[test]
fn a_node_that_is_taken_away_is_not_listened_to_any_more() {
    // Nodes of one world have one pool of transactions; these two know of none of the other's.
    let worlds = [(); 2].map(|()| moving_world(false));
    let scene = Scene::set();
    let nodes = [scene.node("one", &worlds[0]), scene.node("two", &worlds[1])];
    let config = |nodes: &[&SimNode]| {
        let entries: Vec<String> = nodes.iter().map(|node| ws_entry(node)).collect();
        let chain = "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n";
        format!("{chain}{}", entries.concat())
    };
    let served = Served::start(&config(&[&nodes[0], &nodes[1]]));
    served.wait_for_candidates(&["one", "two"]);
    let mut client = Socket::open(&served.address);
    subscribe(&mut client, "[\"newPendingTransactions\"]");
    let mut sent = 1000;
    // Whichever of them it was, it is taken away by one of the two.
    for (kept, gone) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        served.reload(&config(&[kept]));
        wait_until("the node that is left tells", || {
            sent += 1;
            let hash = send_transaction(kept, sent);
            client.0.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            matches!(client.0.read(), Ok(Message::Text(text)) if text.contains(&hash))
        });
        // Blocks of the other node reach no client; blocks of this one do.
        let unheard = send_transaction(gone, sent + 100);
        let heard = send_transaction(kept, sent + 200);
        client.0.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        loop {
            let text = client.text();
            assert!(!text.contains(&unheard), "told by a node that was taken away: {text}");
            if text.contains(&heard) {
                break;
            }
        }
        sent += 200;
    }
}

/// A subscription that is relayed from a cordoned node moves to another node.
#[test]
fn a_relayed_subscription_moves_away_from_a_cordoned_node() {
    // Nodes of one world share a pool of transactions, so these have a world each.
    let worlds = [(); 2].map(|()| moving_world(false));
    let scene = Scene::set();
    let nodes = [scene.node("one", &worlds[0]), scene.node("two", &worlds[1])];
    let entries: String = nodes.iter().map(ws_entry).collect();
    let chain = "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n";
    let served = Served::start(&format!("{chain}{entries}"));
    served.wait_for_candidates(&["one", "two"]);
    let mut client = Socket::open(&served.address);
    subscribe(&mut client, "[\"newPendingTransactions\"]");
    let mut sent = 5000;
    // One of the two nodes was the first to relay.
    for (cordoned, other) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
        let command = |arguments: &[&str]| {
            let mut weir = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
            let output = weir.args(arguments).args(["--admin", &served.admin]).output().unwrap();
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
        served.wait_for_candidates(&["one", "two"]);
    }
}

/// A signed transaction of `testdata/execution-apis`.
const TRANSACTION: &str = include_str!(
    "../../../../testdata/execution-apis/eth_sendRawTransaction/send-legacy-transaction.io"
);

/// Sends a transaction to a node, another one for each number; its hash. Nobody recovers its
/// sender, so that its signature may be any. A reload that changes a node's chain stops
/// notifications of the old chain.
#[test]
fn a_chain_that_is_another_one_by_now_ends_its_subscriptions() {
    let scene = Scene::set();
    let node = scene.node("one", &moving_world(false));
    let id = node.result("eth_chainId", "[]");
    let id = u64::from_str_radix(id.trim_matches('"').trim_start_matches("0x"), 16).unwrap();
    let config =
        |more: &str| format!("[chain.sim]\npoll_interval = \"20ms\"\n{more}\n{}", ws_entry(&node));
    let served = Served::start(&config(""));
    served.wait_for_candidates(&["one"]);
    let mut client = Socket::open(&served.address);
    subscribe(&mut client, "[\"newHeads\"]");
    notice(&mut client);
    served.reload(&config(&format!("id = {id}")));
    client.0.get_ref().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let code = loop {
        if let Message::Close(frame) = client.0.read().unwrap() {
            break frame.unwrap().code;
        }
    };
    assert_eq!(code, CloseCode::Again);
}

/// A node that takes no WebSocket is no reason to wait for ever, nor to keep back what others tell.
#[test]
fn what_no_node_can_be_asked_for_is_refused_in_time() {
    let scene = Scene::set();
    let node = scene.node("one", &moving_world(false));
    let config = format!(
        "[chain.sim]\npoll_interval = \"20ms\"\n[access]\ntransactions = true\n\
         [[upstream]]\nname = \"one\"\nurl = \"http://{}\"\nws_url = \"ws://127.0.0.1:1\"\n",
        node.address
    );
    let served = Served::start(&config);
    served.wait_for_candidates(&["one"]);
    let mut client = Socket::open(&served.address);
    let heads = subscribe(&mut client, "[\"newHeads\"]");
    let (code, why) = refused(&mut client, "eth_subscribe", "[\"newPendingTransactions\"]");
    assert_eq!(code, -32601, "{why}");
    assert_eq!(notice(&mut client).0, heads);
    // The response is not cached, whatever its length.
    let long = json!(["newPendingTransactions", "x".repeat(70_000)]).to_string();
    let (code, why) = refused(&mut client, "eth_subscribe", &long);
    assert_eq!(code, -32602, "{why}");
    assert!(why.contains("64 KiB"), "{why}");
}

#[test]
fn a_filter_may_begin_with_the_earliest_block() {
    let scene = Scene::set();
    let node = scene.node("one", &moving_world(false));
    let served =
        Served::start(&format!("[chain.sim]\npoll_interval = \"20ms\"\n{}", ws_entry(&node)));
    served.wait_for_candidates(&["one"]);
    let mut client = Socket::open(&served.address);
    subscribe(&mut client, r#"["logs",{"fromBlock":"earliest"}]"#);
    let text = refused(&mut client, "eth_subscribe", r#"["logs",{"toBlock":"earliest"}]"#).1;
    assert!(text.contains("range") || text.contains("block"), "{text}");
}

fn send_transaction(node: &SimNode, number: u32) -> String {
    let call = TRANSACTION.lines().find_map(|line| line.strip_prefix(">> ")).unwrap();
    let call: Value = serde_json::from_str(call).unwrap();
    let raw = call["params"][0].as_str().unwrap();
    let raw = format!("{}{number:08x}", &raw[..raw.len() - 8]);
    let result = node.result("eth_sendRawTransaction", &json!([raw]).to_string());
    serde_json::from_str(&result).unwrap()
}

#[test]
fn harmonys_are_passed_on_under_their_own_name() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let chain = "[chain.sim]\nfamily = \"harmony\"\npoll_interval = \"20ms\"\n";
    let served = Served::start(&format!("{chain}{}", ws_entry(&node)));
    wait_until("there is a head", || {
        served.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    let mut socket = Socket::open(&served.address);
    let answer = answer(&mut socket, "hmy_subscribe", "[\"newHeads\"]", &mut Vec::new());
    let id = answer["result"].as_str().unwrap_or_else(|| panic!("no subscription: {answer}"));
    for _ in 0..3 {
        let told: Value = serde_json::from_str(&socket.text()).unwrap();
        assert_eq!(told["method"], "hmy_subscription", "{told}");
        assert_eq!(told["params"]["subscription"], id);
        assert!(told["params"]["result"]["hash"].is_string());
    }
    let refused = refused(&mut socket, "hmy_subscribe", "[\"nothing\"]");
    assert_eq!(refused, (-32601, "no \"nothing\" subscription in hmy namespace".to_owned()));
}

#[test]
fn a_head_is_followed_at_once_if_a_node_announces_it() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    // Its polls alone would show one head in an hour.
    let served = Served::start(&format!("{}{}", polled_once(""), ws_entry(&node)));
    let mut socket = Socket::open(&served.address);
    wait_until("there is a head", || {
        served.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    subscribe(&mut socket, "[\"newHeads\"]");
    let headers: Vec<Value> = (0..20).map(|_| notice(&mut socket).1).collect();
    chain_of(&headers);
    // And so do cached answers about the latest block.
    let (_, header) = notice(&mut socket);
    let answer = answer(&mut socket, "eth_blockNumber", "[]", &mut Vec::new());
    assert!(number(&answer["result"]) >= number(&header["number"]), "{answer} after {header}");
}

#[test]
fn clients_that_do_not_read_are_disconnected_and_others_are_served() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let more = "[downstream]\nwebsocket_queue_bytes_max = \"64KiB\"\nwrite_timeout = \"1h\"\n";
    let served = served(&[node.entry("")], more);
    let mut deaf = Socket::open(&served.address);
    for _ in 0..400 {
        // The more it wants, the sooner it is behind.
        deaf.send(&body("eth_subscribe", "[\"newHeads\"]"));
    }
    let mut other = Socket::open(&served.address);
    subscribe(&mut other, "[\"newHeads\"]");
    wait_until("the deaf one is let go", || {
        notice(&mut other);
        served.look("/metrics").text().contains("weir_subscriptions_open 1\n")
    });
    notice(&mut other);
}

#[test]
fn removing_a_key_ends_its_subscriptions() {
    let world = moving_world(false);
    let scene = Scene::set();
    let node = scene.node("node", &world);
    let key = "weir_own_0123456789abcdef";
    let keys = |expires: &str| format!("[[key]]\nname = \"own\"\nsecret = \"{key}\"\n{expires}\n");
    let chain = "[chain.sim]\npoll_interval = \"20ms\"\n";
    let config = |expires: &str| format!("{}{chain}{}", keys(expires), node.entry(""));
    let served = Served::start(&config(""));
    let headers = [("x-api-key", key)];
    let mut socket = Socket::try_open(&served.address, "/", &headers).unwrap().0;
    wait_until("there is a head", || {
        served.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
    });
    subscribe(&mut socket, "[\"newHeads\"]");
    notice(&mut socket);
    served.reload(&config("expires = \"2020-01-01T00:00:00Z\""));
    assert_eq!(socket.closed().0, CloseCode::Policy);
}

#[test]
fn denying_a_key_subscriptions_ends_them() {
    let scene = Scene::set();
    let nodes = [scene.node("one", &moving_world(false)), scene.node("two", &moving_world(false))];
    let key = "weir_own_0123456789abcdef";
    let [one, two] = nodes.each_ref().map(|node| node.entry("chain = \"CHAIN\""));
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
        let served = Served::start(&config("chains = [\"sim\"]", open));
        let opened = Socket::try_open(&served.address, "/sim", &[("x-api-key", key)]);
        let mut socket = opened.unwrap().0;
        wait_until("there is a head", || {
            served.status("/chains/0/head").get("number").is_some_and(Value::is_u64)
        });
        subscribe(&mut socket, "[\"newHeads\"]");
        // What the grant still holds is heard on.
        served.reload(&config("methods_deny = [\"eth_call\"]", open));
        pause(Duration::from_millis(1200)); // Sleeps: the grant expires meanwhile.
        for _ in 0..3 {
            notice(&mut socket);
        }
        served.reload(&config(grant, policy));
        let (code, why) = socket.closed();
        assert_eq!(code, CloseCode::Policy, "{grant}{policy}: {why}");
    }
}

#[test]
fn notifications_have_the_form_of_geth() {
    let Some(geth) = Geth::start() else { return };
    let url = format!("ws://{}", geth.address);
    let served = served(&[entry("geth", &url, "")], "[access]\ntransactions = true\n");
    let kinds = ["[\"newHeads\"]", "[\"logs\",{}]", "[\"newPendingTransactions\"]"];
    // Who asks first hears of a block that the other may have missed: both hear of those behind.
    let [theirs, ours] =
        [&geth.address, &served.address].map(|address| Listener::start(address, &kinds));
    for _ in 0..3 {
        let before = number(&geth.call("eth_blockNumber", &json!([])));
        geth.deploy();
        wait_until("there are two more blocks", || {
            number(&geth.call("eth_blockNumber", &json!([]))) > before + 1
        });
    }
    let last = number(&geth.call("eth_blockNumber", &json!([])));
    wait_until("the gateway has them", || served.count("/chains/0/head/number") >= last);
    pause(Duration::from_millis(300)); // Sleeps: what would come too much has time to come.
    let [theirs, ours] = [theirs, ours].map(Listener::told);
    for (place, kind) in kinds.iter().enumerate() {
        let of = |told: &[(usize, String)]| -> Vec<Value> {
            let own = told.iter().filter(|(own, _)| *own == place);
            own.map(|(_, raw)| serde_json::from_str(raw).unwrap()).collect()
        };
        let (theirs, ours) = (of(&theirs), of(&ours));
        let both: Vec<&Value> = theirs.iter().filter(|value| ours.contains(value)).collect();
        let most = theirs.len().max(ours.len());
        // Just after it has answered that it will, geth may not tell yet.
        assert!(both.len() >= 2, "{kind}: geth told {theirs:#?}, the gateway {ours:#?}");
        assert!(both.len() + 2 >= most, "{kind}: geth told {theirs:#?}, the gateway {ours:#?}");
    }
}
