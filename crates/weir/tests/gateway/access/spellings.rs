//! A denied method stays denied in every spelling of its name and over every transport.
//!
//! Some nodes trim method names or ignore case. If the gateway compared exact bytes, a client could
//! reach a denied method by another spelling.

use std::collections::BTreeSet;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use super::{ask, call, error, is_result};
use crate::support::harness::{
    NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, chain_polled_once, wait_until_idle,
};
use crate::support::websocket_client::WebSocketClient;

/// Number of tested spellings of each method.
const SPELLINGS: usize = 2000;
/// Number of calls in a batch.
const BATCH: usize = 500;
/// Denied methods, at least one for each way to deny a method: a list of names, a prefix, methods
/// that act on the node, accounts in the node's keystore, signed transactions, and the list of a
/// group.
const PROTECTED: [&str; 8] = [
    "eth_getCode",
    "net_version",
    "admin_addPeer",
    "debug_setHead",
    "personal_unlockAccount",
    "eth_sendTransaction",
    "eth_sendRawTransaction",
    "eth_getLogs",
];
/// Characters that some parsers trim, ignore or replace.
const ODD: [char; 30] = [
    ' ', '\t', '\n', '\r', '\u{b}', '\u{c}', '\0', '\u{7f}', '\u{85}', '\u{a0}', '\u{ad}',
    '\u{1680}', '\u{180e}', '\u{2000}', '\u{2003}', '\u{2009}', '\u{200b}', '\u{200c}', '\u{200d}',
    '\u{2028}', '\u{2029}', '\u{202f}', '\u{205f}', '\u{2060}', '\u{3000}', '\u{feff}', '-', '/',
    '\u{301}', '\u{ff3f}',
];

/// Returns spellings of a name as JSON strings. The spellings are the same in every run.
fn spellings(name: &str) -> Vec<String> {
    let mut spellings = BTreeSet::from([json!(name).to_string()]);
    for odd in ODD {
        for position in 0..=name.len() {
            let (start, end) = name.split_at(position);
            spellings.insert(json!(format!("{start}{odd}{end}")).to_string());
        }
        spellings.insert(json!(format!("{odd}{name}{odd}")).to_string());
    }
    // A linear congruential generator with Knuth's MMIX constants.
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    while spellings.len() < SPELLINGS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut spelling = String::from("\"");
        for (position, letter) in name.chars().enumerate() {
            let bits = seed >> (position % 29 + 16);
            let letter = if bits & 1 == 0 { letter } else { letter.to_ascii_uppercase() };
            if bits & 6 == 6 {
                spelling.push_str(&format!("\\u{:04x}", u32::from(letter)));
            } else {
                spelling.push(letter);
            }
        }
        spelling.push('"');
        spellings.insert(spelling);
    }
    spellings.into_iter().take(SPELLINGS).collect()
}

fn body_of(spelling: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":{spelling},"params":[]}}"#)
}

/// Panics unless the response is a JSON-RPC error for a denied or invalid method.
fn assert_refused(spelling: &str, response: &Value) {
    let code = &response["error"]["code"];
    assert!(*code == json!(-32600) || *code == json!(-32601), "{spelling}: {response}");
}

fn send_over_http(gateway: &TestGateway, spellings: &[String]) {
    let mut client = gateway.client();
    for spelling in spellings {
        let answer = client.call("/", body_of(spelling).as_bytes());
        assert_refused(spelling, &serde_json::from_str(answer.text()).unwrap());
    }
}

fn send_in_batches(gateway: &TestGateway, spellings: &[String]) {
    let mut client = gateway.client();
    for chunk in spellings.chunks(BATCH) {
        let calls: Vec<String> = chunk.iter().map(|spelling| body_of(spelling)).collect();
        let answer = client.call("/", format!("[{}]", calls.join(",")).as_bytes());
        let responses: Vec<Value> = serde_json::from_str(answer.text()).unwrap();
        assert_eq!(responses.len(), chunk.len());
        for (spelling, response) in chunk.iter().zip(&responses) {
            assert_refused(spelling, response);
        }
    }
}

fn send_over_http2(runtime: &NodeRuntime, gateway: &TestGateway, spellings: &[String]) {
    let (address, spellings) = (gateway.address.clone(), spellings.to_vec());
    let client_task = runtime.handle.spawn(async move {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (executor, stream) = (TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, stream).await.unwrap();
        tokio::spawn(connection);
        for spelling in spellings {
            let request = Request::post(format!("http://{address}/"))
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body_of(&spelling))))
                .unwrap();
            let answer = sender.send_request(request).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_refused(&spelling, &serde_json::from_slice(&body).unwrap());
        }
    });
    runtime.handle.block_on(client_task).unwrap();
}

fn send_over_websocket(gateway: &TestGateway, spellings: &[String]) {
    let mut socket = WebSocketClient::open(&gateway.address);
    for spelling in spellings {
        let response = socket.ask(body_of(spelling).as_bytes());
        assert_refused(spelling, &response);
    }
}

/// Starts a gateway that denies each of the [`PROTECTED`] methods.
fn start_gateway(runtime: &NodeRuntime, more: &str) -> (SimNode, TestGateway) {
    let [node] = runtime.nodes(["a"]);
    let text = format!(
        "{}\n[access]\ntransactions = false\nmethods_deny = [\"eth_getCode\", \"net_*\"]\n\
         [[group]]\nname = \"most\"\nmethods = [\"*\"]\nmethods_deny = [\"eth_getLogs\"]\n{more}",
        chain_polled_once("")
    );
    let gateway = TestGateway::in_front_of(&[&node], &text);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    wait_until_idle(&[&node]);
    (node, gateway)
}

#[test]
fn no_spelling_of_a_protected_method_reaches_a_node() {
    let runtime = NodeRuntime::start();
    let (node, gateway) = start_gateway(&runtime, "");
    let before = node.calls();
    for name in PROTECTED {
        let spellings = spellings(name);
        assert_eq!(spellings.len(), SPELLINGS);
        send_over_http(&gateway, &spellings);
        send_in_batches(&gateway, &spellings);
        send_over_http2(&runtime, &gateway, &spellings);
        send_over_websocket(&gateway, &spellings);
    }
    assert_eq!(node.calls(), before, "a protected method reached the node");
    // Other methods reach the node. The second one is unknown, and has each kind of character that
    // a name may have.
    assert!(is_result(&ask(&gateway, "/", "", &call("eth_chainId"))));
    ask(&gateway, "/", "", &call("Some.unknown_Method2"));
    assert_eq!(node.calls(), before + 2);
}

/// `eth_getFilterLogs` returns the same logs as `eth_getLogs`. So the gateway must deny it to a
/// client that may not call `eth_getLogs`.
#[test]
fn filters_do_not_bypass_a_method_list() {
    let runtime = NodeRuntime::start();
    let (node, gateway) = start_gateway(&runtime, "");
    let mut client = gateway.client();
    let filter = r#"{"id":1,"method":"eth_newFilter","params":[{"fromBlock":"0x0"}]}"#;
    let made: Value = serde_json::from_str(client.call("/", filter.as_bytes()).text()).unwrap();
    let id = made["result"].as_str().unwrap().to_owned();
    let before = node.calls();
    for spelling in spellings("eth_getFilterLogs") {
        let asked = format!(r#"{{"id":1,"method":{spelling},"params":["{id}"]}}"#);
        let answer = client.call("/", asked.as_bytes());
        assert_refused(&spelling, &serde_json::from_str(answer.text()).unwrap());
    }
    assert_eq!(node.calls(), before);
}

/// When a client calls `eth_getFilterLogs`, the gateway matches rules with the parameters of the
/// filter, as if the client had called `eth_getLogs` with them.
#[test]
fn filters_do_not_bypass_a_rule() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["a"]);
    let rule = "[[rule]]\nname = \"no-broad-logs\"\nmethods = [\"eth_getLogs\"]\nparams = '[{\"fromBlock\":\"0x0\"'\n\
                deny = 403\n";
    let gateway = TestGateway::in_front_of(&[&node], &format!("{}{rule}", chain_polled_once("")));
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    let mut client = gateway.client();
    for (from, spelling, denied) in
        [("0x0", "fromBlock", true), ("0x1", "fromBlock", false), ("0x0", "FROMBLOCK", true)]
    {
        let filter =
            format!(r#"{{"id":1,"method":"eth_newFilter","params":[{{"{spelling}":"{from}"}}]}}"#);
        let made = client.call("/", filter.as_bytes());
        let made: Value = serde_json::from_str(made.text()).unwrap();
        let logs =
            format!(r#"{{"id":1,"method":"eth_getFilterLogs","params":[{}]}}"#, made["result"]);
        let answer = client.call("/", logs.as_bytes());
        assert_eq!(is_result(&answer), !denied, "{spelling} {from}: {}", answer.text());
    }
}

/// Limits count `eth_getFilterLogs` as `eth_getLogs`, and ignore the case of method names.
#[test]
fn filters_and_letter_case_do_not_bypass_a_limit() {
    let runtime = NodeRuntime::start();
    for (key, methods) in
        [(r#"["client"]"#, r#"["eth_getLogs"]"#), (r#"["client", "method"]"#, r#"["eth_get*"]"#)]
    {
        let [node] = runtime.nodes(["a"]);
        let limit = format!(
            "[zone.z]\nkey = {key}\nrate = \"1r/m\"\n[[limit]]\nzone = \"z\"\nmethods = {methods}\n\
             burst = 1\nnodelay = true\n"
        );
        let text = format!("{}{limit}", chain_polled_once(""));
        let gateway = TestGateway::in_front_of(&[&node], &text);
        gateway.wait_for_head(Some(NEWEST_BLOCK));
        let mut client = gateway.client();
        let filter = r#"{"id":1,"method":"eth_newFilter","params":[{"fromBlock":"0x1"}]}"#;
        let made: Value = serde_json::from_str(client.call("/", filter.as_bytes()).text()).unwrap();
        let by_filter =
            format!(r#"{{"id":1,"method":"eth_getFilterLogs","params":[{}]}}"#, made["result"]);
        assert!(
            is_result(&client.call("/", by_filter.as_bytes())),
            "the first call is within the limit"
        );
        ask(&gateway, "/", "", &call("eth_getLogs"));
        for body in [by_filter.into_bytes(), call("eth_getLogs"), call("ETH_GETLOGS")] {
            let answer = client.call("/", &body);
            let body = String::from_utf8_lossy(&body);
            assert_eq!((answer.status, error(&answer).0), (429, -32005), "{key} {body}");
        }
    }
}
