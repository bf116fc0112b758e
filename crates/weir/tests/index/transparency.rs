//! Goal: the index's responses equal the node's, byte for byte. Method: the program syncs from a
//! real geth with the chain of the execution-apis tests. The test requests every block,
//! transaction, receipt and log from geth and from the index, in every form of every method, and
//! compares the raw results. The index is a file or a PostgreSQL database.
//!
//! These tests need geth and postgres; `test_support::programs` decides what happens without them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, QueryContext, methods};
use index::store::{Location, Settings};
use serde_json::Value;

use test_support::geth::Geth;
use test_support::members::{excerpt, items, members};
use test_support::postgres;
use test_support::programs;
use test_support::raw::Client;

/// The last block of the chain.
const HEAD: u64 = 0x36;
/// Number of calls per batch to geth.
const BATCH_CALLS: usize = 1;

fn weir(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

/// Syncs an index. `db` is a path or the URL of a PostgreSQL database.
fn sync(url: &str, db: &str, more: &[&str]) {
    let arguments = ["index", "sync", "--from", url, "--db", db, "--end", "54"];
    let (is_success, printed) = weir(&[&arguments, more].concat());
    assert!(is_success, "{printed}");
}

/// A call: method and raw parameters.
type Call = (&'static str, String);

/// Sends calls to geth and returns their results as raw JSON, in the order of the calls.
fn request_results(client: &mut Client, calls: &[Call]) -> Vec<String> {
    let mut results = Vec::new();
    for batch in calls.chunks(BATCH_CALLS) {
        let bodies: Vec<String> = batch
            .iter()
            .enumerate()
            .map(|(id, (method, params))| {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            })
            .collect();
        let response = client.call("/", format!("[{}]", bodies.join(",")).as_bytes());
        for (item, (method, params)) in items(response.text()).into_iter().zip(batch) {
            let fields = members(item.get());
            let result = fields.get("result");
            let result = result.unwrap_or_else(|| panic!("{method} {params}: {}", item.get()));
            results.push(result.get().to_owned());
        }
    }
    assert_eq!(results.len(), calls.len());
    results
}

/// Returns every form of call for each block, transaction and receipt of the chain, and calls for
/// logs.
fn calls(node: &mut Client) -> Vec<Call> {
    let by_number = |number| ("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#));
    let blocks = request_results(node, &(0..=HEAD).map(by_number).collect::<Vec<_>>());
    let mut calls = Vec::new();
    for text in &blocks {
        let block: Value = serde_json::from_str(text).unwrap();
        let (number, hash) = (block["number"].as_str().unwrap(), block["hash"].as_str().unwrap());
        for full_transactions in [true, false] {
            calls.push(("eth_getBlockByNumber", format!(r#"["{number}",{full_transactions}]"#)));
            calls.push(("eth_getBlockByHash", format!(r#"["{hash}",{full_transactions}]"#)));
        }
        calls.push(("eth_getBlockReceipts", format!(r#"["{number}"]"#)));
        calls.push(("eth_getBlockReceipts", format!(r#"["{hash}"]"#)));
        calls.push(("eth_getBlockReceipts", format!(r#"[{{"blockHash":"{hash}"}}]"#)));
        calls.push(("eth_getBlockReceipts", format!(r#"[{{"blockNumber":"{number}"}}]"#)));
        calls.push(("eth_getBlockTransactionCountByNumber", format!(r#"["{number}"]"#)));
        calls.push(("eth_getBlockTransactionCountByHash", format!(r#"["{hash}"]"#)));
        calls.push(("eth_getLogs", format!(r#"[{{"blockHash":"{hash}"}}]"#)));
        let transactions = block["transactions"].as_array().unwrap();
        for index in 0..=transactions.len() {
            let at = format!("{index:#x}");
            calls.push((
                "eth_getTransactionByBlockNumberAndIndex",
                format!(r#"["{number}","{at}"]"#),
            ));
            calls.push(("eth_getTransactionByBlockHashAndIndex", format!(r#"["{hash}","{at}"]"#)));
        }
        for transaction in transactions {
            let hash = transaction["hash"].as_str().unwrap();
            calls.push(("eth_getTransactionByHash", format!(r#"["{hash}"]"#)));
            calls.push(("eth_getTransactionReceipt", format!(r#"["{hash}"]"#)));
        }
    }
    calls.extend(log_calls(node));
    calls
}

/// Returns calls for logs with filters of every form: by each address and each topic that occurs,
/// by both, by lists, with wildcards, over ranges with various first and last blocks.
fn log_calls(node: &mut Client) -> Vec<Call> {
    let all = format!(r#"[{{"fromBlock":"0x0","toBlock":"{HEAD:#x}"}}]"#);
    let logs = request_results(node, &[("eth_getLogs", all)]).remove(0);
    let logs: Vec<Value> = serde_json::from_str(&logs).unwrap();
    assert!(logs.len() > 300, "only {} logs", logs.len());
    let mut filters = BTreeSet::from([String::new()]);
    let mut addresses = BTreeSet::new();
    let mut topics = BTreeSet::new();
    for log in &logs {
        let address = log["address"].to_string();
        let log_topics: Vec<String> =
            log["topics"].as_array().unwrap().iter().map(Value::to_string).collect();
        filters.insert(format!(r#""address":{address}"#));
        for (position, topic) in log_topics.iter().enumerate() {
            let nulls = "null,".repeat(position);
            filters.insert(format!(r#""topics":[{nulls}{topic}]"#));
            filters.insert(format!(r#""address":[{address}],"topics":[{nulls}{topic}]"#));
            topics.insert(topic.clone());
        }
        filters.insert(format!(r#""address":{address},"topics":[{}]"#, log_topics.join(",")));
        filters.insert(format!(r#""topics":[{}null]"#, "null,".repeat(log_topics.len())));
        addresses.insert(address);
    }
    let join = |all: &BTreeSet<String>, step| {
        all.iter().step_by(step).cloned().collect::<Vec<_>>().join(",")
    };
    filters.insert(format!(
        r#""address":[{}],"topics":[[{}]]"#,
        join(&addresses, 2),
        join(&topics, 3)
    ));
    filters.insert(format!(r#""address":[],"topics":[[],[{}]]"#, join(&topics, 2)));
    filters.insert(r#""topics":[]"#.to_owned());
    filters.insert(r#""address":null,"topics":null"#.to_owned());
    filters.insert(format!(r#""address":"0x{}""#, "12".repeat(20)));
    // Block 2 has 21 MB of logs, so only every 64th filter covers it.
    let ranges = [(3, HEAD), (7, 20), (20, 21), (HEAD, HEAD), (33, 53)];
    let mut calls = Vec::new();
    for (filter_index, filter) in filters.iter().enumerate() {
        for (from, to) in [(0, HEAD)].into_iter().filter(|_| filter_index % 64 == 0).chain(ranges) {
            let more_fields = if filter.is_empty() { String::new() } else { format!(",{filter}") };
            let text = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"{more_fields}}}]"#);
            calls.push(("eth_getLogs", text));
        }
    }
    calls
}

fn look_up(reader: &mut Reader, method: &str, params: &str) -> Lookup {
    let context = QueryContext {
        finalized: Some(u64::MAX),
        is_canonical: &|_, _| true,
        limits: SearchLimits::NONE,
    };
    reader.lookup(method, params.as_bytes(), &context).unwrap()
}

#[test]
fn every_result_equals_the_node_s_result() {
    let Some(program) = programs::require("geth") else { return };
    let geth = Geth::start(&program);
    let mut node = Client::connect(&geth.address);
    let calls = calls(&mut node);
    let geth_results = request_results(&mut node, &calls);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", geth.address);
    // Each index: its contents, the number of methods that it can answer, and its location.
    let file = |name: &str| folder.path().join(name).display().to_string();
    let all = methods().filter(|method| method.starts_with("eth_")).count();
    let mut indexes = vec![
        ("blocks,receipts,logs", all, file("whole.db")),
        ("blocks,logs", 8, file("blocks.db")),
        ("logs", 5, file("logs.db")),
    ];
    let server = postgres::Postgres::start();
    if let Some(server) = &server {
        indexes.push(("blocks,receipts,logs", all, server.url("whole")));
    }
    for (contents, method_count, db) in indexes {
        sync(&url, &db, &["--what", contents, "--verify", "senders"]);
        let location: Location = db.parse().unwrap();
        let mut reader = Reader::open(&location, Settings::default()).unwrap().unwrap();
        assert_eq!(reader.metadata().differing_forms, Vec::<String>::new());
        let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
        for ((method, params), expected) in calls.iter().zip(&geth_results) {
            match look_up(&mut reader, method, params) {
                Lookup::Full(ours) => {
                    let ours = String::from_utf8(ours).unwrap();
                    assert!(
                        ours == *expected,
                        "{contents}: {method} {params}\nours:   {}\ntheirs: {}",
                        excerpt(&ours),
                        excerpt(expected)
                    );
                    *answered.entry(method).or_default() += 1;
                }
                Lookup::Miss => {}
                partial => panic!("{method} {params}: {partial:?}"),
            }
        }
        println!("{contents}: {answered:?}");
        assert_eq!(answered.len(), method_count, "{answered:?}");
        if method_count == all {
            assert_eq!(answered.values().sum::<usize>(), calls.len());
        }
        assert!(answered["eth_getLogs"] > 1000);
    }
}
