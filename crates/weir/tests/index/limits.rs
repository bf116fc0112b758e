//! Goal: a sync finishes at a provider's own limits, whatever the status and the words in which the
//! provider states them, and no request is rejected twice for one limit.
//!
//! Method: a proxy in front of a simulated node rejects batches of more calls, or ranges of more
//! blocks, than its limit. The texts are those of real providers (`testdata/public-faults`).

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use test_support::proxy::start_proxy_with_status;
use test_support::running::Weir;

/// The highest number of the simulated node.
const HEAD: &str = "60";
const BLOCKS: u64 = 50;

/// Reads a file of public faults.
fn read_case(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/public-faults");
    serde_json::from_str(&std::fs::read_to_string(path.join(name)).unwrap()).unwrap()
}

/// The number of calls in a request, and the longest range of a call for logs in it.
fn measure(request: &str) -> (usize, u64) {
    let request: Value = serde_json::from_str(request).unwrap();
    let calls = match request {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    let number = |value: &Value| u64::from_str_radix(&value.as_str().unwrap()[2..], 16).unwrap();
    let ranges = calls.iter().filter(|call| call["method"] == "eth_getLogs").map(|call| {
        let filter = &call["params"][0];
        number(&filter["toBlock"]) - number(&filter["fromBlock"]) + 1
    });
    (calls.len(), ranges.max().unwrap_or(0))
}

/// Syncs from a provider that rejects what is over its limits. `body` returns the body of a rejection
/// of this many calls. Returns the number of rejections.
fn sync(
    contents: &str,
    (calls_max, range_max): (usize, u64),
    status: u16,
    body: impl Fn(usize) -> String + Clone + Send + 'static,
) -> u32 {
    let node = Weir::node().args(&["--head", HEAD, "--block-time", "1h"]).start();
    let rejections = Arc::new(AtomicU32::new(0));
    let (counter, rejection) = (Arc::clone(&rejections), body(1));
    let url = start_proxy_with_status(&node.address, move |request, response| {
        let (calls, range) = measure(request);
        if calls > calls_max || range > range_max {
            counter.fetch_add(1, Ordering::Relaxed);
            return (status, body(calls));
        }
        (200, response)
    });
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["index", "sync", "--from", &url, "--what", contents, "--patience", "4"]);
    command.args(["--concurrency", "1", "--end", &BLOCKS.to_string()]);
    let output = command.arg("--db").arg(folder.path().join("chain.db")).output().unwrap();
    let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(0), "{status} {rejection}\n{printed}");
    rejections.load(Ordering::Relaxed)
}

#[test]
fn batches_become_small_enough() {
    let text = "Batch of more than 3 requests are not allowed on free tier";
    let error = |code: i32, message: &str| json!({"code": code, "message": message});
    type Body = fn(&Value, usize) -> String;
    let alone: Body = |error, _| error.to_string();
    let in_one: Body = |error, _| json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
    let for_each: Body = |error, calls| {
        let reply = |id| json!({"jsonrpc": "2.0", "id": id, "error": error});
        Value::Array((0..calls).map(reply).collect()).to_string()
    };
    let bodies = [
        (500, alone, json!({"message": text, "code": 31})),
        (200, in_one, error(31, text)),
        (200, in_one, error(-32005, "Number of requests exceeds max batch size")),
        (500, for_each, error(31, text)),
        (200, for_each, error(31, text)),
        (400, in_one, error(-32010, "The batch request was too large")),
    ];
    assert_eq!(read_case("index-batch-limit.json")["upstream"].as_array().unwrap().len(), 5);
    for (status, body, error) in bodies {
        for calls_max in [3, 1] {
            let (shown, limits, error) = (error.clone(), (calls_max, u64::MAX), error.clone());
            let rejections =
                sync("blocks,receipts", limits, status, move |calls| body(&error, calls));
            assert!((1..=2).contains(&rejections), "{shown}, limit {calls_max}: {rejections}");
        }
    }
}

#[test]
fn ranges_become_small_enough() {
    let in_envelope =
        |error: &Value| json!({"jsonrpc": "2.0", "id": 0, "error": error}).to_string();
    let mut cases = Vec::new();
    for error in read_case("index-size-texts.json")["upstream"].as_array().unwrap() {
        cases.push((200, in_envelope(error)));
        cases.push((400, in_envelope(error)));
    }
    for text in read_case("index-limits-with-status-400.json")["upstream"].as_array().unwrap() {
        let text = text.as_str().unwrap();
        let (_, message) = text.split_once(['`', ':']).unwrap();
        let message = message.trim_end_matches('`');
        cases.push((400, in_envelope(&json!({"code": -32600, "message": message}))));
    }
    assert_eq!(cases.len(), 15);
    for (status, body) in cases {
        let (limits, sent) = ((usize::MAX, 10), body.clone());
        let rejections = sync("logs", limits, status, move |_| sent.clone());
        assert!((1..=2).contains(&rejections), "{status} {body}: {rejections} rejections");
    }
}
