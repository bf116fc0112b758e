//! Goal: calls get to nodes over WebSockets and local sockets as they do over HTTP: the same bytes,
//! no error for clients when connections break, nothing sent twice that may not be, and over HTTP
//! at once where that works and the WebSocket does not. Method: simulated nodes and the gateway,
//! each a process of its own; faults are switched on at the node's admin address while calls are
//! under way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use test_support::raw::Client;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// A node whose admin address is known.
fn node(more: &[&str]) -> Running {
    Weir::node().admin().args(&[&["--block-time", "1h"], more].concat()).start()
}

/// Switches faults on.
fn tell(node: &Running, settings: &Value) {
    let admin = node.admin.as_deref().unwrap();
    let answer = Client::connect(admin).call("/faults", settings.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn status(gateway: &Running) -> Value {
    let admin = gateway.admin.as_deref().unwrap();
    let mut client = Client::connect(admin);
    client.send(format!("GET /status HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
    let answer = client.answer().expect("the status is given");
    serde_json::from_slice::<Value>(&answer.body).unwrap()["chains"][0]["upstreams"][0].clone()
}

/// A gateway without a cache in front of one node, as its URL says.
fn gateway(node: &str) -> Running {
    let toml = format!("[cache]\nenabled = false\n[[upstream]]\n{node}\n");
    Weir::serve().admin().config(&toml).start()
}

fn ask(client: &mut Client, call: &str) -> String {
    let answer = client.call("/", call.as_bytes());
    answer.text().to_owned()
}

const BLOCK: &str =
    r#"{"jsonrpc":"2.0","id":"mine","method":"eth_getBlockByNumber","params":["0x3e8",true]}"#;

/// Asks from several clients at a time for as long as `while_told` runs; what was no result.
fn under_load(gateway: &Running, while_told: impl FnOnce()) -> (usize, Vec<String>) {
    let stop = AtomicBool::new(false);
    let seen = parking_lot::Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(&gateway.address);
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&mut client, BLOCK);
                    let mut seen = seen.lock();
                    seen.0 += 1;
                    if !answer.starts_with(r#"{"jsonrpc":"2.0","id":"mine","result":{"#) {
                        seen.1.push(answer);
                    }
                }
            });
        }
        let _stopped = Stopped(&stop);
        while_told();
    });
    seen.into_inner()
}

/// Stops clients when it goes, also with a test that fails: whoever waits for them would wait for
/// ever.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn bytes_are_the_same_over_all_ways() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("node.ipc");
    let path = socket.to_str().unwrap();
    let node = node(&["--ipc", path]);
    let urls = [format!("ws://{}", node.address), format!("ipc:{path}")];
    let calls = [
        BLOCK,
        r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1.50,"method":"eth_chainId"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"nope_nothing","params":[1,"\u00fc"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{"fromBlock":"0x380","toBlock":"0x3e8"}]}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"eth_chainId"},{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[]}]"#,
    ];
    let mut direct = Client::connect(&node.address);
    for url in urls {
        let gateway = gateway(&format!("url = \"{url}\""));
        let mut client = Client::connect(&gateway.address);
        for call in calls {
            assert_eq!(ask(&mut client, call), ask(&mut direct, call), "{call} over {url}");
        }
        let status = status(&gateway);
        assert_eq!(status["attempts"], status["multiplexed_calls"], "{status}");
        assert_eq!(status["failed"], 0, "{status}");
    }
}

#[test]
fn many_calls_share_few_connections() {
    let node = node(&["--latency", "5ms"]);
    let gateway = gateway(&format!("url = \"ws://{}\"", node.address));
    let (calls, faults) = under_load(&gateway, || {
        wait_until("calls", || status(&gateway)["attempts"].as_u64().unwrap() > 500);
        // One for each of two threads, and as many for large answers.
        assert!(
            status(&gateway)["connections_opened"].as_u64().unwrap() <= 4,
            "{}",
            status(&gateway)
        );
    });
    assert!(calls > 500 && faults.is_empty(), "{calls} calls, {faults:?}");
}

#[test]
fn clients_see_no_fault_while_connections_break() {
    let faults = ["close", "reset", "truncate"];
    for fault in faults {
        let node = node(&[]);
        let other = self::node(&[]);
        let toml = format!(
            "[cache]\nenabled = false\n[[upstream]]\nurl = \"ws://{}\"\n[[upstream]]\nurl = \"ws://{}\"\n",
            node.address, other.address
        );
        let gateway = Weir::serve().admin().config(&toml).start();
        let (calls, seen) = under_load(&gateway, || {
            wait_until("calls", || status(&gateway)["attempts"].as_u64().unwrap() > 200);
            let rule = json!({"faults": [{"fault": {"kind": fault}, "share": 0.05}]});
            tell(&node, &rule);
            wait_until("losses", || {
                status(&gateway)["multiplexed_connections_lost"].as_u64().unwrap() > 3
            });
            tell(&node, &json!({"faults": []}));
        });
        assert!(
            calls > 200 && seen.is_empty(),
            "{fault}: {calls} calls, {} {:?}",
            seen.len(),
            seen.first()
        );
    }
}

#[test]
fn responses_in_fragments_and_with_their_ids_wrong() {
    let node = node(&[]);
    let gateway = gateway(&format!(
        "url = \"ws://{}\"\n[call]\nattempt_deadline = \"300ms\"\nretries_max = 0",
        node.address
    ));
    let mut client = Client::connect(&gateway.address);
    tell(&node, &json!({"fragment_bytes": 7}));
    let mut direct = Client::connect(&node.address);
    assert_eq!(ask(&mut client, BLOCK), ask(&mut direct, BLOCK));
    tell(
        &node,
        &json!({"fragment_bytes": null, "faults": [
            {"fault": {"kind": "wrong_id"}, "share": 1.0, "method": "eth_getBlockByNumber"}
        ]}),
    );
    let answer = ask(&mut client, BLOCK);
    assert!(answer.contains(r#""id":"mine","error""#), "{answer}");
}

#[test]
fn what_may_not_be_sent_twice_is_not() {
    let node = node(&[]);
    let other = self::node(&[]);
    let toml = format!(
        "[cache]\nenabled = false\n[[upstream]]\nurl = \"ws://{}\"\n[[upstream]]\nurl = \"ws://{}\"\n",
        node.address, other.address
    );
    let gateway = Weir::serve().admin().config(&toml).start();
    let mut client = Client::connect(&gateway.address);
    wait_until("an answer", || ask(&mut client, BLOCK).contains("result"));
    let rule = json!({"faults": [
        {"fault": {"kind": "close"}, "share": 1.0, "method": "eth_unknownThing"}
    ]});
    tell(&node, &rule);
    tell(&other, &rule);
    let before = attempts(&gateway);
    let answer = ask(&mut client, r#"{"jsonrpc":"2.0","id":1,"method":"eth_unknownThing"}"#);
    assert!(answer.contains("error"), "{answer}");
    assert_eq!(attempts(&gateway) - before, 1, "it may have been sent");
}

/// Attempts at all nodes.
fn attempts(gateway: &Running) -> u64 {
    let admin = gateway.admin.as_deref().unwrap();
    let mut client = Client::connect(admin);
    client.send(format!("GET /status HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
    let status: Value = serde_json::from_slice(&client.answer().unwrap().body).unwrap();
    let nodes = status["chains"][0]["upstreams"].as_array().unwrap();
    nodes.iter().map(|node| node["attempts"].as_u64().unwrap()).sum()
}

#[test]
fn calls_go_over_http_while_the_websocket_does_not_work() {
    let (http, ws) = (node(&[]), node(&[]));
    let ws_address = ws.address.clone();
    let gateway =
        gateway(&format!("url = \"http://{}\"\nws_url = \"ws://{ws_address}\"", http.address));
    let (calls, faults) = under_load(&gateway, || {
        let multiplexed = || status(&gateway)["multiplexed_calls"].as_u64().unwrap();
        let attempts = || status(&gateway)["attempts"].as_u64().unwrap();
        wait_until("a call over the websocket", || multiplexed() > 100);
        drop(ws);
        wait_until("its loss", || status(&gateway)["multiplexed_connections"] == 0);
        let (before, all) = (multiplexed(), attempts());
        wait_until("calls over http", || attempts() > all + 200);
        assert!(multiplexed() < before + 100, "they go over http");
        let _again = Weir::node().admin().listen(&ws_address).args(&["--block-time", "1h"]).start();
        let before = multiplexed();
        wait_until("calls over the websocket again", || multiplexed() > before + 100);
    });
    assert!(calls > 300 && faults.is_empty(), "{calls} calls, {faults:?}");
}

#[test]
fn a_call_too_long_for_the_websocket_does_not_go_there() {
    let node = node(&[]);
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":"mine","method":"eth_getBlockByNumber","params":["0x3e8",{:4000}]}}"#,
        "true"
    );
    let address = &node.address;
    let bound = "message_bytes_max = \"2KiB\"";
    let way =
        |status: &Value| [&status["attempts"], &status["multiplexed_calls"]].map(|n| n.as_u64());

    let beside =
        gateway(&format!("url = \"http://{address}\"\nws_url = \"ws://{address}\"\n{bound}"));
    let mut client = Client::connect(&beside.address);
    wait_until("a call over the websocket", || {
        ask(&mut client, BLOCK);
        way(&status(&beside))[1] > Some(0)
    });
    let [attempts, multiplexed] = way(&status(&beside));
    assert_eq!(ask(&mut client, &long), ask(&mut Client::connect(address), &long));
    assert_eq!(way(&status(&beside)), [attempts.map(|n| n + 1), multiplexed]);

    let alone = gateway(&format!("url = \"ws://{address}\"\n{bound}"));
    let mut client = Client::connect(&alone.address);
    let refused = client.call("/", long.as_bytes());
    assert_eq!(refused.status, 413);
    let text = "the call is too long for an upstream over WebSocket";
    assert!(refused.text().contains(text), "{}", refused.text());
    assert!(ask(&mut client, BLOCK).contains("result"), "others are served on");
    assert_eq!(status(&alone)["state"], "healthy", "the node has done nothing wrong");
}

/// Relays connections to a node and returns the relay's address. Once `is_stale` is true, a connection
/// that was opened before is closed when it carries a request, as a node closes idle connections.
fn aging_relay(node: &str, is_stale: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (node, is_stale) = (node.to_owned(), Arc::clone(is_stale));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&node) else { continue };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (is_new, is_stale) = (is_stale.load(Ordering::SeqCst), Arc::clone(&is_stale));
            std::thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    let is_open = is_new || !is_stale.load(Ordering::SeqCst);
                    if !is_open || to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                // The other side may have closed the connections before.
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut &server, &mut &client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn a_repeated_call_uses_a_new_connection_over_http_too() {
    let node = node(&[]);
    let is_stale = Arc::new(AtomicBool::new(false));
    let relay = aging_relay(&node.address, &is_stale);
    let gateway = gateway(&format!(
        "url = \"http://{relay}\"\nws_url = \"ws://{relay}\"\nmessage_bytes_max = \"2KiB\""
    ));
    let mut client = Client::connect(&gateway.address);
    wait_until("a call over the websocket", || {
        ask(&mut client, BLOCK);
        status(&gateway)["multiplexed_calls"].as_u64() > Some(0)
    });
    // This call is too long for the WebSocket, so an HTTP connection stays in the pool.
    let long = BLOCK.replace("true]", &format!("{:4000}]", "true"));
    assert!(ask(&mut client, &long).contains("result"));
    is_stale.store(true, Ordering::SeqCst);
    let response = ask(&mut client, BLOCK);
    assert!(response.contains("result"), "{response}");
}

#[test]
fn a_node_that_stalls_is_left() {
    let node = node(&[]);
    let gateway = gateway(&format!("url = \"ws://{}\"\nping_interval = \"200ms\"", node.address));
    let mut client = Client::connect(&gateway.address);
    wait_until("an answer", || ask(&mut client, BLOCK).contains("result"));
    let lost = || status(&gateway)["multiplexed_connections_lost"].as_u64().unwrap();
    assert_eq!(lost(), 0);
    tell(&node, &json!({"mute_to_pings": true}));
    wait_until("the loss", || lost() > 0);
}
