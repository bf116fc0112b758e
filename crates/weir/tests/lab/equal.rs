//! Goal: `weir equal` finds each planted difference and no other one, and ends with the exit codes
//! that its help states. Method: a simulated node against itself behind a proxy that rewrites
//! responses, against a second node of the same chain, and against a gateway.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use test_support::proxy::start_proxy;
use test_support::running::{Running, Weir};

/// Runs `weir equal`. Returns its exit code, standard output and standard error.
fn equal(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("equal").args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs `weir equal --json -` and validates the result against the published schema. Returns the
/// exit code and the result.
fn equal_json(arguments: &[&str]) -> (i32, Value) {
    let (code, text, messages) = equal(&[arguments, &["--json", "-"]].concat());
    let result: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{messages}"));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/equal.schema.json");
    let schema = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&result).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    (code, result)
}

/// A node whose chain does not grow during the test.
fn node() -> Running {
    Weir::node().args(&["--block-time", "1h"]).start()
}

/// The differences as method, class and JSON pointer; `counts` selects those that count for the
/// verdict, or the others.
fn differences(result: &Value, counts: bool) -> Vec<(String, String, String)> {
    let rows = result["differences"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["counts"] == counts);
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    rows.map(|row| (text(row, "method"), text(row, "class"), text(row, "pointer"))).collect()
}

/// Plants a difference into the response of some methods: one of each class.
fn plant(request: &str, response: String) -> String {
    let request: Value = serde_json::from_str(request).unwrap();
    let Ok(mut body) = serde_json::from_str::<Value>(&response) else { return response };
    let is_error = body["result"].is_null() && body["error"].is_object();
    let result = &mut body["result"];
    match (request["method"].as_str().unwrap(), is_error) {
        ("eth_chainId", false) => {
            *result = json!(result.as_str().unwrap().replace("0x", "0x0"));
        }
        ("eth_getBlockByNumber", false) if result["transactions"].is_array() => {
            result["transactions"].as_array_mut().unwrap().reverse();
        }
        ("eth_getTransactionByHash", false) if result.is_object() => {
            result.as_object_mut().unwrap().remove("nonce");
        }
        ("eth_getTransactionReceipt", false) if result.is_object() => {
            result["logsBloom"] = Value::Null;
        }
        ("eth_getTransactionCount", false) => *result = json!(7),
        ("eth_getLogs", false) => drop(result.as_array_mut().unwrap().pop()),
        ("eth_getStorageAt", false) => *result = json!("0xdeadbeef"),
        ("eth_getCode", false) => {
            return json!({"jsonrpc": "2.0", "id": body["id"],
                "error": {"code": -32000, "message": "no"}})
            .to_string();
        }
        ("eth_noSuchMethod", true) => body["error"]["code"] = json!(-32000),
        ("eth_getLogs", true) => body["error"]["message"] = json!("another text"),
        ("eth_getBalance", true) => body["error"]["data"] = json!("more"),
        ("eth_feeHistory", false) => return "<html>".to_owned(),
        _ => return response,
    }
    body.to_string()
}

/// The differences that [`plant`] plants: method, class, and JSON pointer of each.
const PLANTED: &[(&str, &str, &str)] = &[
    ("eth_chainId", "spelling", "/result"),
    ("eth_feeHistory", "not-json-rpc", ""),
    ("eth_getBalance", "error-data", "/error/data"),
    ("eth_getBlockByNumber", "order", "/result/transactions"),
    ("eth_getCode", "error-against-result", ""),
    ("eth_getLogs", "error-message", "/error/message"),
    ("eth_getLogs", "length", "/result"),
    ("eth_getStorageAt", "value", "/result"),
    ("eth_getTransactionByHash", "missing-member", "/result/nonce"),
    ("eth_getTransactionCount", "type", "/result"),
    ("eth_getTransactionReceipt", "null", "/result/logsBloom"),
    ("eth_noSuchMethod", "error-code", "/error/code"),
];

#[test]
fn each_planted_difference_is_found_and_no_other() {
    let node = node();
    let proxy = start_proxy(&node.address, plant);
    let (code, result) = equal_json(&[&node.url(), &proxy]);
    assert_eq!(code, 1);
    assert_eq!(result["verdict"], "different");
    let mut found = differences(&result, true);
    found.sort();
    let found: Vec<_> =
        found.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
    assert_eq!(found, PLANTED);
    assert!(differences(&result, false).is_empty(), "the client version is the same");
    let example = &result["differences"][0]["example"];
    assert!(example["request"].as_str().unwrap().contains("\"method\":"), "{example}");

    let (code, text, _) = equal(&[&node.url(), &proxy]);
    assert_eq!(code, 1);
    for (method, class, pointer) in PLANTED.iter().filter(|(_, class, _)| *class == "value") {
        let mut lines = text.lines();
        assert!(lines.any(|line| line.contains(method) && line.contains(class)), "{text}");
        assert!(text.contains(pointer) && text.contains("0xdeadbeef"), "{text}");
    }
}

#[test]
fn responses_that_are_wrong_now_and_then_are_unsteady() {
    let node = node();
    let objects = Arc::new(AtomicU64::new(0));
    // One object in ten is wrong, so at most one of three responses in a row.
    let proxy = start_proxy(&node.address, move |_, response| {
        let is_object = response.contains("\"result\":{");
        match is_object && objects.fetch_add(1, Ordering::Relaxed) % 10 == 9 {
            true => response.replacen("\"result\":{", "\"result\":{\"hash\":\"0x0\",", 1),
            false => response,
        }
    });
    let (code, result) = equal_json(&[&node.url(), &proxy, "--blocks", "20", "-c", "1"]);
    assert_eq!((code, &result["verdict"]), (3, &json!("unsteady")), "{result:#}");
    let rows = result["differences"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["unsteady"] == true), "{rows:#?}");
    assert!(rows.iter().all(|row| row["pointer"] == "/result/hash"), "{rows:#?}");
}

#[test]
fn known_habits_of_another_client_are_allowed_unless_strict() {
    let node = node();
    let proxy = start_proxy(&node.address, |request, response| {
        let habit = |method: &str| request.contains(&format!("\"{method}\""));
        match () {
            () if habit("web3_clientVersion") => response.replace("Geth/", "Nethermind/"),
            () if habit("eth_chainId") || habit("eth_noSuchMethod") || habit("eth_getLogs") => {
                plant(request, response)
            }
            () => response,
        }
    });
    let (code, result) = equal_json(&[&node.url(), &proxy, "--ignore", "/result"]);
    assert_eq!(code, 1, "{result:#}");
    // The difference between -32601 and -32000 is not a known habit.
    let counted = differences(&result, true);
    assert_eq!(counted.len(), 1, "{counted:?}");
    assert_eq!(counted[0].1, "error-code");
    let mut allowed: Vec<_> = result["differences"].as_array().unwrap().iter().collect();
    allowed.retain(|row| row["counts"] == false);
    let habits: Vec<_> = allowed.iter().map(|row| row["habit"].as_str().unwrap()).collect();
    assert_eq!(habits, ["--ignore", "--ignore", "error texts"], "{allowed:#?}");

    let ignored = ["--ignore", "/error/code", "--ignore", "/result"];
    let (code, _) = equal_json(&[&[node.url().as_str(), &proxy], &ignored[..]].concat());
    assert_eq!(code, 0);
    let strict = [&ignored[..], &["--strict"]].concat();
    let (code, result) = equal_json(&[&[node.url().as_str(), &proxy], &strict[..]].concat());
    assert_eq!(code, 1);
    assert_eq!(differences(&result, true)[0].1, "error-message");
}

#[test]
fn two_nodes_of_one_chain_and_a_gateway_are_equal() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let since = now.as_secs().to_string();
    let arguments = ["--since", &since, "--block-time", "500ms"];
    let (a, b) = (Weir::node().args(&arguments).start(), Weir::node().args(&arguments).start());
    let gateway = Weir::serve().upstreams(&[a.url()]).start();
    for other in [b.url(), gateway.url()] {
        let (code, text, messages) = equal(&[&a.url(), &other, "--strict"]);
        assert_eq!(code, 0, "{text}{messages}");
        assert!(text.starts_with("EQUAL  the responses to "), "{text}");
    }
}

#[test]
fn servers_are_compared_over_websockets() {
    let node = node();
    let websocket = format!("ws://{}", node.address);
    let (code, result) = equal_json(&[&node.url(), &websocket, "--strict"]);
    assert_eq!((code, &result["verdict"]), (0, &json!("equal")), "{result:#}");

    let gateway = Weir::serve().upstreams(&[node.url()]).start();
    let gateway_websocket = format!("ws://{}", gateway.address);
    let (code, text, messages) = equal(&[&websocket, &gateway_websocket, "--strict"]);
    assert_eq!(code, 0, "{text}{messages}");

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let since = now.as_secs().to_string();
    let arguments = ["--since", &since, "--block-time", "1h"];
    let sound = Weir::node().args(&arguments).start();
    let faulty = Weir::node().args(&arguments).admin().start();
    faulty.set_node_settings(
        r#"{"faults":[{"fault":{"kind":"error","error":"missing_trie_node"},"method":"eth_getCode"}]}"#,
    );
    let (code, result) =
        equal_json(&[&format!("ws://{}", sound.address), &format!("ws://{}", faulty.address)]);
    assert_eq!(code, 1, "{result:#}");
    let found = differences(&result, true);
    assert_eq!(found, [("eth_getCode".into(), "error-against-result".into(), String::new())]);
}

#[test]
fn harmony_nodes_are_compared_by_their_own_methods() {
    let arguments = ["--family", "harmony", "--chain-id", "1666600000", "--block-time", "1h"];
    let node = Weir::node().args(&arguments).start();
    let proxy = start_proxy(&node.address, |request, response| {
        match request.contains("hmyv2_getBalanceByBlockNumber") {
            true => response.replace("\"result\":", "\"result\":1"),
            false => response,
        }
    });
    let (code, result) = equal_json(&[&node.url(), &proxy]);
    assert_eq!(code, 1);
    assert_eq!(result["family"], "harmony");
    let expected = ("hmyv2_getBalanceByBlockNumber", "value", "/result");
    let found = differences(&result, true);
    let found: Vec<_> =
        found.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
    assert_eq!(found, [expected]);
}

#[test]
fn recorded_calls_are_pinned_and_unsafe_ones_are_not_sent() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let since = now.as_secs().to_string();
    let arguments = ["--since", &since, "--block-time", "300ms"];
    // One node lags behind the other, so their responses at latest differ.
    let ahead = Weir::node().args(&arguments).start();
    let behind = Weir::node().args(&arguments).args(&["--lag", "3"]).start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls.jsonl");
    let calls = [
        r#"{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":["latest",false]}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"eth_chainId"},{"jsonrpc":"2.0","id":2,"method":"eth_chainId"}]"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["0x00"]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"my_method","params":[]}"#,
    ];
    std::fs::write(&file, calls.join("\n")).unwrap();
    let requests = ["--requests", file.to_str().unwrap()];
    let (code, result) =
        equal_json(&[&[ahead.url().as_str(), &behind.url()], &requests[..]].concat());
    assert_eq!(code, 0, "{result:#}");
    assert_eq!(result["calls"], 2, "equal calls count once");
    let skipped: Vec<_> = result["skipped"].as_array().unwrap().iter().collect();
    let reasons: Vec<_> = skipped.iter().map(|row| row["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["unsafe", "unknown", "node-specific"]);

    // With tags, the two nodes never have the same newest block.
    let tags = [&requests[..], &["--keep-tags"]].concat();
    let (code, result) = equal_json(&[&[ahead.url().as_str(), &behind.url()], &tags[..]].concat());
    assert_eq!((code, &result["verdict"]), (2, &json!("cannot-tell")));
}

#[test]
fn servers_that_cannot_be_compared_end_with_two() {
    let node = node();
    let other = Weir::node().args(&["--chain-id", "5"]).start();
    let nowhere = test_support::port::ReservedPort::new();
    let nowhere = format!("http://{}", nowhere.address);
    for (arguments, message) in [
        (vec![node.url(), nowhere], "the connection was refused"),
        (vec![node.url(), other.url()], "different chains"),
        (vec![node.url(), "ftp://x".to_owned()], "http"),
        (
            vec![node.url(), node.url(), "--block".to_owned(), "99999".to_owned()],
            "above the lower head",
        ),
        (
            vec![node.url(), node.url(), "--requests".to_owned(), "gone.jsonl".to_owned()],
            "gone.jsonl",
        ),
        (vec![node.url(), node.url(), "--ignore".to_owned(), "x".to_owned()], "a pointer begins"),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, text, messages) = equal(&arguments);
        assert_eq!(code, 2, "{text}{messages}");
        assert!(messages.contains(message), "{message}: {messages}");
    }
}

#[test]
fn headers_reach_the_server_that_they_are_for() {
    let node = node();
    // The key of examples/public.toml.
    let key = "weir_demo_0123456789abcdef";
    let hash = "c8865233d82d93a78fe85f1aba4f412fc53b0ba4bb2b39968df3036eeec81347";
    let configuration = format!(
        "[server]\nadmin = \"off\"\n[[key]]\nname = \"demo\"\nhash = \"sha256:{hash}\"\n\
         [[upstream]]\nurl = \"{}\"\n",
        node.url()
    );
    let gateway = Weir::serve().config(&configuration).start();
    let header = format!("x-api-key: {key}");
    let (code, text, messages) = equal(&[&node.url(), &gateway.url()]);
    assert_eq!(code, 2, "{text}{messages}");
    let (code, text, messages) = equal(&[&node.url(), &gateway.url(), "--header-b", &header]);
    assert_eq!(code, 0, "{text}{messages}");
    let (code, text, messages) = equal(&[&gateway.url(), &gateway.url(), "-H", &header]);
    assert_eq!(code, 0, "{text}{messages}");
}
