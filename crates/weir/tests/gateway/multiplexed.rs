//! Goal: calls to a node over a WebSocket or a local socket behave like calls over HTTP. Many calls
//! share one such multiplexed connection. Responses have the same bytes, clients get no error when
//! connections break, and the gateway never retries an unsafe call. If only the WebSocket fails,
//! calls go over HTTP at once.
//!
//! Method: simulated nodes and the gateway, each in its own process. The test injects faults by the
//! node's admin address during calls.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use test_support::raw::Client;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

use crate::support::set_faults;

/// Starts a node with an admin address and these further arguments.
fn node(arguments: &[&str]) -> Running {
    Weir::node().admin().args(&[&["--block-time", "1h"], arguments].concat()).start()
}

/// Returns what `/status` reports about the first upstream.
fn upstream_status(gateway: &Running) -> Value {
    let admin = gateway.admin.as_deref().unwrap();
    let mut client = Client::connect(admin);
    client.send(format!("GET /status HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
    let answer = client.read_response().expect("the gateway returns its status");
    serde_json::from_slice::<Value>(&answer.body).unwrap()["chains"][0]["upstreams"][0].clone()
}

/// Starts a gateway without a cache. `upstream` has the keys of its only `[[upstream]]` table.
fn start_gateway(upstream: &str) -> Running {
    let toml = format!("[cache]\nenabled = false\n[[upstream]]\n{upstream}\n");
    Weir::serve().admin().config(&toml).start()
}

fn ask(client: &mut Client, call: &str) -> String {
    let answer = client.call("/", call.as_bytes());
    answer.text().to_owned()
}

/// A call for a block with its transactions.
const BLOCK: &str =
    r#"{"jsonrpc":"2.0","id":"mine","method":"eth_getBlockByNumber","params":["0x3e8",true]}"#;

/// Sends [`BLOCK`] from eight clients until `during_load` returns. Returns the number of calls and
/// the responses without a result.
fn under_load(gateway: &Running, during_load: impl FnOnce()) -> (usize, Vec<String>) {
    let stop = AtomicBool::new(false);
    let calls_and_faults = parking_lot::Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(&gateway.address);
                while !stop.load(Ordering::Relaxed) {
                    let answer = ask(&mut client, BLOCK);
                    let mut calls_and_faults = calls_and_faults.lock();
                    calls_and_faults.0 += 1;
                    if !answer.starts_with(r#"{"jsonrpc":"2.0","id":"mine","result":{"#) {
                        calls_and_faults.1.push(answer);
                    }
                }
            });
        }
        let _stop_guard = StopGuard(&stop);
        during_load();
    });
    calls_and_faults.into_inner()
}

/// Stops the clients when it is dropped. A panic drops it too. Otherwise the thread scope would
/// wait for the clients forever.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn bytes_are_the_same_over_every_transport() {
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
        let gateway = start_gateway(&format!("url = \"{url}\""));
        let mut client = Client::connect(&gateway.address);
        for call in calls {
            assert_eq!(ask(&mut client, call), ask(&mut direct, call), "{call} over {url}");
        }
        let status = upstream_status(&gateway);
        assert_eq!(status["attempts"], status["multiplexed_calls"], "{status}");
        assert_eq!(status["failed"], 0, "{status}");
    }
}

#[test]
fn many_calls_share_few_connections() {
    let node = node(&["--latency", "5ms"]);
    let gateway = start_gateway(&format!("url = \"ws://{}\"", node.address));
    let (calls, faults) = under_load(&gateway, || {
        wait_until("calls", || upstream_status(&gateway)["attempts"].as_u64().unwrap() > 500);
        // Each of the two threads has one connection for calls and one for large responses.
        assert!(
            upstream_status(&gateway)["connections_opened"].as_u64().unwrap() <= 4,
            "{}",
            upstream_status(&gateway)
        );
    });
    assert!(calls > 500 && faults.is_empty(), "{calls} calls, {faults:?}");
}

#[test]
fn clients_see_no_error_while_connections_break() {
    let faults = ["close", "reset", "truncate"];
    for fault in faults {
        let node = node(&[]);
        let other = self::node(&[]);
        let toml = format!(
            "[cache]\nenabled = false\n[[upstream]]\nurl = \"ws://{}\"\n[[upstream]]\nurl = \"ws://{}\"\n",
            node.address, other.address
        );
        let gateway = Weir::serve().admin().config(&toml).start();
        let (calls, faults_seen) = under_load(&gateway, || {
            wait_until("calls", || upstream_status(&gateway)["attempts"].as_u64().unwrap() > 200);
            let rule = json!({"faults": [{"fault": {"kind": fault}, "share": 0.05}]});
            set_faults(&node, &rule);
            wait_until("losses", || {
                upstream_status(&gateway)["multiplexed_connections_lost"].as_u64().unwrap() > 3
            });
            set_faults(&node, &json!({"faults": []}));
        });
        assert!(
            calls > 200 && faults_seen.is_empty(),
            "{fault}: {calls} calls, {} {:?}",
            faults_seen.len(),
            faults_seen.first()
        );
    }
}

#[test]
fn fragmented_responses_are_joined_and_wrong_ids_rejected() {
    let node = node(&[]);
    let gateway = start_gateway(&format!(
        "url = \"ws://{}\"\n[call]\nattempt_deadline = \"300ms\"\nretries_max = 0",
        node.address
    ));
    let mut client = Client::connect(&gateway.address);
    set_faults(&node, &json!({"fragment_bytes": 7}));
    let mut direct = Client::connect(&node.address);
    assert_eq!(ask(&mut client, BLOCK), ask(&mut direct, BLOCK));
    set_faults(
        &node,
        &json!({"fragment_bytes": null, "faults": [
            {"fault": {"kind": "wrong_id"}, "share": 1.0, "method": "eth_getBlockByNumber"}
        ]}),
    );
    let answer = ask(&mut client, BLOCK);
    assert!(answer.contains(r#""id":"mine","error""#), "{answer}");
}

#[test]
fn unsafe_calls_are_not_retried() {
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
    set_faults(&node, &rule);
    set_faults(&other, &rule);
    let before = attempts(&gateway);
    let answer = ask(&mut client, r#"{"jsonrpc":"2.0","id":1,"method":"eth_unknownThing"}"#);
    assert!(answer.contains("error"), "{answer}");
    assert_eq!(attempts(&gateway) - before, 1, "the node may have executed the call");
}

/// Returns the number of attempts at all upstreams.
fn attempts(gateway: &Running) -> u64 {
    let admin = gateway.admin.as_deref().unwrap();
    let mut client = Client::connect(admin);
    client.send(format!("GET /status HTTP/1.1\r\nHost: {admin}\r\n\r\n").as_bytes());
    let status: Value = serde_json::from_slice(&client.read_response().unwrap().body).unwrap();
    let nodes = status["chains"][0]["upstreams"].as_array().unwrap();
    nodes.iter().map(|node| node["attempts"].as_u64().unwrap()).sum()
}

#[test]
fn calls_go_over_http_while_the_websocket_does_not_work() {
    let (http, ws) = (node(&[]), node(&[]));
    let ws_address = ws.address.clone();
    let urls = format!("url = \"http://{}\"\nws_url = \"ws://{ws_address}\"", http.address);
    let gateway = start_gateway(&urls);
    let (calls, faults) = under_load(&gateway, || {
        let multiplexed = || upstream_status(&gateway)["multiplexed_calls"].as_u64().unwrap();
        let attempts = || upstream_status(&gateway)["attempts"].as_u64().unwrap();
        wait_until("a call over the websocket", || multiplexed() > 100);
        drop(ws);
        wait_until("the connection is lost", || {
            upstream_status(&gateway)["multiplexed_connections"] == 0
        });
        let (multiplexed_before, attempts_before) = (multiplexed(), attempts());
        wait_until("calls over http", || attempts() > attempts_before + 200);
        assert!(multiplexed() < multiplexed_before + 100, "calls go over HTTP");
        let _restarted =
            Weir::node().admin().listen(&ws_address).args(&["--block-time", "1h"]).start();
        let multiplexed_before = multiplexed();
        wait_until("calls over the websocket again", || multiplexed() > multiplexed_before + 100);
    });
    assert!(calls > 300 && faults.is_empty(), "{calls} calls, {faults:?}");
}

#[test]
fn a_call_too_long_for_the_websocket_does_not_go_there() {
    let node = node(&[]);
    let long_call = format!(
        r#"{{"jsonrpc":"2.0","id":"mine","method":"eth_getBlockByNumber","params":["0x3e8",{:4000}]}}"#,
        "true"
    );
    let address = &node.address;
    let limit = "message_bytes_max = \"2KiB\"";
    let attempts_and_multiplexed =
        |status: &Value| [&status["attempts"], &status["multiplexed_calls"]].map(|n| n.as_u64());

    let with_http =
        start_gateway(&format!("url = \"http://{address}\"\nws_url = \"ws://{address}\"\n{limit}"));
    let mut client = Client::connect(&with_http.address);
    wait_until("a call over the websocket", || {
        ask(&mut client, BLOCK);
        attempts_and_multiplexed(&upstream_status(&with_http))[1] > Some(0)
    });
    let [attempts, multiplexed] = attempts_and_multiplexed(&upstream_status(&with_http));
    assert_eq!(ask(&mut client, &long_call), ask(&mut Client::connect(address), &long_call));
    assert_eq!(
        attempts_and_multiplexed(&upstream_status(&with_http)),
        [attempts.map(|n| n + 1), multiplexed]
    );

    let websocket_only = start_gateway(&format!("url = \"ws://{address}\"\n{limit}"));
    let mut client = Client::connect(&websocket_only.address);
    let rejection = client.call("/", long_call.as_bytes());
    assert_eq!(rejection.status, 413);
    let reason = "the call is too long for an upstream over WebSocket";
    assert!(rejection.text().contains(reason), "{}", rejection.text());
    assert!(ask(&mut client, BLOCK).contains("result"), "other calls are still served");
    assert_eq!(
        upstream_status(&websocket_only)["state"],
        "healthy",
        "the node has done nothing wrong"
    );
}

/// Starts a proxy in front of a node and returns the proxy's address. When `is_stale` becomes true,
/// the connections that are open then become stale. The proxy closes a stale connection when the
/// next request arrives on it, as a node does that closes idle connections.
fn start_stale_proxy(node: &str, is_stale: &Arc<AtomicBool>) -> String {
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
                // Errors mean that the other side has closed the connection already.
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
    let proxy = start_stale_proxy(&node.address, &is_stale);
    let gateway = start_gateway(&format!(
        "url = \"http://{proxy}\"\nws_url = \"ws://{proxy}\"\nmessage_bytes_max = \"2KiB\""
    ));
    let mut client = Client::connect(&gateway.address);
    wait_until("a call over the websocket", || {
        ask(&mut client, BLOCK);
        upstream_status(&gateway)["multiplexed_calls"].as_u64() > Some(0)
    });
    // This call is too long for the WebSocket. So the gateway sends it over HTTP, and the HTTP
    // connection stays in the pool.
    let long_call = BLOCK.replace("true]", &format!("{:4000}]", "true"));
    assert!(ask(&mut client, &long_call).contains("result"));
    is_stale.store(true, Ordering::SeqCst);
    let response = ask(&mut client, BLOCK);
    assert!(response.contains("result"), "{response}");
}

#[test]
fn a_connection_without_pongs_is_closed() {
    let node = node(&[]);
    let gateway =
        start_gateway(&format!("url = \"ws://{}\"\nping_interval = \"200ms\"", node.address));
    let mut client = Client::connect(&gateway.address);
    wait_until("an answer", || ask(&mut client, BLOCK).contains("result"));
    let lost = || upstream_status(&gateway)["multiplexed_connections_lost"].as_u64().unwrap();
    assert_eq!(lost(), 0);
    set_faults(&node, &json!({"mute_to_pings": true}));
    wait_until("the loss", || lost() > 0);
}
