//! Goal: the index's responses have the node's bytes. Method: the program syncs a real geth with
//! the chain of the execution-apis tests. Every block, transaction, receipt and log is requested
//! from geth and from the index, in every form of every method, and the raw results are compared;
//! for a file and for a PostgreSQL database.
//!
//! Needs geth and postgres; see `test_support::programs` for what happens without.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use index::reader::Reader;
use index::search::SearchLimits;
use index::serve::{Lookup, METHODS, QueryContext};
use index::store::{Location, Settings};
use serde_json::Value;

use test_support::geth::Geth;
use test_support::members::{excerpt, items, members};
use test_support::postgres;
use test_support::programs;
use test_support::raw::Client;

/// The last block of the chain.
const HEAD: u64 = 0x36;
/// Calls of one batch to geth.
const BATCH_CALLS: usize = 1;

fn weir(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn sync(url: &str, at: &str, more: &[&str]) {
    let arguments = ["index", "sync", "--from", url, "--db", at, "--end", "54"];
    let (done, said) = weir(&[&arguments, more].concat());
    assert!(done, "{said}");
}

/// A call: method and raw parameters.
type Asked = (&'static str, String);

/// Results of geth, as raw text, in the order of the calls.
fn ask(client: &mut Client, calls: &[Asked]) -> Vec<String> {
    let mut results = Vec::new();
    for some in calls.chunks(BATCH_CALLS) {
        let bodies: Vec<String> = some
            .iter()
            .enumerate()
            .map(|(id, (method, params))| {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
            })
            .collect();
        let answer = client.call("/", format!("[{}]", bodies.join(",")).as_bytes());
        for (item, (method, params)) in items(answer.text()).into_iter().zip(some) {
            let fields = members(item.get());
            let result = fields.get("result");
            let result = result.unwrap_or_else(|| panic!("{method} {params}: {}", item.get()));
            results.push(result.get().to_owned());
        }
    }
    assert_eq!(results.len(), calls.len());
    results
}

/// Every call about every block, and all that is in it.
fn calls(node: &mut Client) -> Vec<Asked> {
    let by_number = |number| ("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#));
    let blocks = ask(node, &(0..=HEAD).map(by_number).collect::<Vec<_>>());
    let mut calls = Vec::new();
    for text in &blocks {
        let block: Value = serde_json::from_str(text).unwrap();
        let (number, hash) = (block["number"].as_str().unwrap(), block["hash"].as_str().unwrap());
        for whole in [true, false] {
            calls.push(("eth_getBlockByNumber", format!(r#"["{number}",{whole}]"#)));
            calls.push(("eth_getBlockByHash", format!(r#"["{hash}",{whole}]"#)));
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

/// Filters of every form: by each address and each topic that occurs, by both, by lists, with
/// wildcards, over ranges that begin and end everywhere.
fn log_calls(node: &mut Client) -> Vec<Asked> {
    let all = format!(r#"[{{"fromBlock":"0x0","toBlock":"{HEAD:#x}"}}]"#);
    let logs = ask(node, &[("eth_getLogs", all)]).remove(0);
    let logs: Vec<Value> = serde_json::from_str(&logs).unwrap();
    assert!(logs.len() > 300, "only {} logs", logs.len());
    let mut filters = BTreeSet::from([String::new()]);
    let mut addresses = BTreeSet::new();
    let mut topics = BTreeSet::new();
    for log in &logs {
        let address = log["address"].to_string();
        let own: Vec<String> =
            log["topics"].as_array().unwrap().iter().map(Value::to_string).collect();
        filters.insert(format!(r#""address":{address}"#));
        for (position, topic) in own.iter().enumerate() {
            let nulls = "null,".repeat(position);
            filters.insert(format!(r#""topics":[{nulls}{topic}]"#));
            filters.insert(format!(r#""address":[{address}],"topics":[{nulls}{topic}]"#));
            topics.insert(topic.clone());
        }
        filters.insert(format!(r#""address":{address},"topics":[{}]"#, own.join(",")));
        filters.insert(format!(r#""topics":[{}null]"#, "null,".repeat(own.len())));
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
    // Block 2 has logs of 21 MB: it is asked for now and then.
    let ranges = [(3, HEAD), (7, 20), (20, 21), (HEAD, HEAD), (33, 53)];
    let mut calls = Vec::new();
    for (at, filter) in filters.iter().enumerate() {
        for (from, to) in [(0, HEAD)].into_iter().filter(|_| at % 64 == 0).chain(ranges) {
            let rest = if filter.is_empty() { String::new() } else { format!(",{filter}") };
            let text = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{to:#x}"{rest}}}]"#);
            calls.push(("eth_getLogs", text));
        }
    }
    calls
}

fn answer(reader: &mut Reader, method: &str, params: &str) -> Lookup {
    let context = QueryContext {
        finalized: Some(u64::MAX),
        is_canonical: &|_, _| true,
        limits: SearchLimits::NONE,
    };
    reader.lookup(method, params.as_bytes(), &context).unwrap()
}

#[test]
fn every_answer_is_the_nodes_own() {
    let Some(program) = programs::require("geth") else { return };
    let geth = Geth::start(&program);
    let mut node = Client::connect(&geth.address);
    let calls = calls(&mut node);
    let theirs = ask(&mut node, &calls);
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", geth.address);
    // Everything; logs without receipts beside whole blocks; logs alone.
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut synced = vec![
        ("blocks,receipts,logs", 10, file("whole.db")),
        ("blocks,logs", 8, file("blocks.db")),
        ("logs", 5, file("logs.db")),
    ];
    let server = postgres::Postgres::start();
    if let Some(server) = &server {
        synced.push(("blocks,receipts,logs", 10, server.url("whole")));
    }
    for (what, most, at) in synced {
        sync(&url, &at, &["--what", what, "--verify", "senders"]);
        let location: Location = at.parse().unwrap();
        let mut reader = Reader::open(&location, Settings::default()).unwrap().unwrap();
        assert_eq!(reader.metadata().differing_forms, Vec::<String>::new());
        let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
        for ((method, params), theirs) in calls.iter().zip(&theirs) {
            match answer(&mut reader, method, params) {
                Lookup::Full(ours) => {
                    let ours = String::from_utf8(ours).unwrap();
                    assert!(
                        ours == *theirs,
                        "{what}: {method} {params}\nours:   {}\ntheirs: {}",
                        excerpt(&ours),
                        excerpt(theirs)
                    );
                    *answered.entry(method).or_default() += 1;
                }
                Lookup::Miss => {}
                part => panic!("{method} {params}: {part:?}"),
            }
        }
        println!("{what}: {answered:?}");
        assert_eq!(answered.len(), most, "{answered:?}");
        if most == METHODS.iter().filter(|method| method.starts_with("eth_")).count() {
            assert_eq!(answered.values().sum::<usize>(), calls.len());
        }
        assert!(answered["eth_getLogs"] > 1000);
    }
}
