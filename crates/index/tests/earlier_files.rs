//! Goal: an index that an earlier version has written returns the same bytes today. Method: a file
//! of that version is audited. Then all its blocks, transactions and logs are looked up, and the
//! hashes of the responses are compared with the hashes of the earlier version.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use alloy_primitives::keccak256;
use index::audit::audit;
use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext};
use index::store::{self, Settings};
use index::verify::Level;
use serde_json::Value;

const FIRST: u64 = 505;
const LAST: u64 = 518;

/// Returns a reader of a copy of the file, which a writer has migrated.
fn reader(folder: &Path) -> Reader {
    let path = folder.join("schema-2.db");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/index/schema-2.db");
    std::fs::copy(fixture, &path).unwrap();
    drop(store::open(&path, Settings::default()).unwrap());
    Reader::open(&path, Settings::default()).unwrap().unwrap()
}

fn response(reader: &mut Reader, method: &str, params: &str) -> Vec<u8> {
    let context = QueryContext {
        finalized: Some(LAST),
        is_canonical: &|_, _| false,
        limits: SearchLimits::NONE,
    };
    match reader.lookup(method, params.as_bytes(), &context).unwrap() {
        Lookup::Full(result) => result,
        other => panic!("{method} {params}: {other:?}"),
    }
}

/// Returns calls about each block, its transactions and its logs.
fn calls(reader: &mut Reader) -> Vec<(&'static str, String)> {
    let mut calls = Vec::new();
    let mut filters = BTreeSet::new();
    for number in FIRST..=LAST {
        let block_call = ("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#));
        let block: Value =
            serde_json::from_slice(&response(reader, block_call.0, &block_call.1)).unwrap();
        let hash = &block["hash"];
        calls.push(block_call);
        calls.push(("eth_getBlockByHash", format!("[{hash},false]")));
        calls.push(("eth_getBlockReceipts", format!(r#"["{number:#x}"]"#)));
        calls.push(("eth_getBlockTransactionCountByNumber", format!(r#"["{number:#x}"]"#)));
        calls.push(("eth_getLogs", format!(r#"[{{"blockHash":{hash}}}]"#)));
        for (full, staking) in [(true, true), (true, false), (false, true), (false, false)] {
            let options = format!(r#"{{"fullTx":{full},"inclStaking":{staking}}}"#);
            calls.push(("hmyv2_getBlocks", format!("[{number},{number},{options}]")));
            calls.push(("hmyv2_getBlockByHash", format!("[{hash},{options}]")));
        }
        calls.push(("hmyv2_getBlockTransactionCountByNumber", format!("[{number}]")));
        for (index, transaction) in block["transactions"].as_array().unwrap().iter().enumerate() {
            let hash = &transaction["hash"];
            calls.push(("eth_getTransactionByHash", format!("[{hash}]")));
            calls.push(("eth_getTransactionReceipt", format!("[{hash}]")));
            let params = format!(r#"["{number:#x}","{index:#x}"]"#);
            calls.push(("eth_getTransactionByBlockNumberAndIndex", params));
        }
        let logs = format!(r#"[{{"fromBlock":"{number:#x}","toBlock":"{number:#x}"}}]"#);
        let logs: Value = serde_json::from_slice(&response(reader, "eth_getLogs", &logs)).unwrap();
        for log in logs.as_array().unwrap() {
            let (address, topics) = (&log["address"], log["topics"].as_array().unwrap());
            filters.insert(format!(r#""address":{address}"#));
            for (position, topic) in topics.iter().enumerate() {
                let wildcards = "null,".repeat(position);
                filters.insert(format!(r#""topics":[{wildcards}{topic}]"#));
                filters.insert(format!(r#""address":{address},"topics":[{wildcards}{topic}]"#));
            }
        }
    }
    let range = format!(r#""fromBlock":"{FIRST:#x}","toBlock":"{LAST:#x}""#);
    calls.push(("eth_getLogs", format!("[{{{range}}}]")));
    let filtered =
        filters.into_iter().map(|filter| ("eth_getLogs", format!("[{{{range},{filter}}}]")));
    calls.extend(filtered);
    calls
}

#[test]
fn an_earlier_file_returns_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut reader = reader(folder.path());
    let mut text = String::new();
    for (method, params) in calls(&mut reader) {
        let hash = keccak256(response(&mut reader, method, &params));
        writeln!(text, "{method} {params} {hash}").unwrap();
    }
    assert!(text.lines().count() > 200, "only {} calls", text.lines().count());
    expect_test::expect_file!["../../../testdata/index/responses.txt"].assert_eq(&text);
}

#[test]
fn an_earlier_file_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let mut reader = reader(folder.path());
    let stop = AtomicBool::new(false);
    let report = audit(&mut reader, Level::Off, &mut |_| {}, &stop).unwrap();
    assert_eq!((report.findings, report.stopped), (Vec::new(), false));
    assert_eq!(report.range.map(|range| (range.first, range.last)), Some((FIRST, LAST)));
}
