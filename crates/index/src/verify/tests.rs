//! Whether true answers of real chains pass at every level, and every change of them is refused.
//! Recorded blocks of many forks (`testdata/mainnet`, `testdata/execution-apis`) and made ones of
//! every type of transaction, whole; then each of their members changed in turn (`mutation`); then
//! any bytes at all (`bytes`).

mod bytes;
mod forms;
pub(crate) mod made;
mod mutation;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Fault, FaultKind, Level, block, header, receipts};

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The JSON files of a folder of `testdata`, in the order of their names.
fn files(path: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder(path)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    files
}

fn raw(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn result(value: Value) -> Value {
    match value {
        Value::Object(mut members) if members.contains_key("result") => {
            members.remove("result").unwrap()
        }
        other => other,
    }
}

fn is_whole(block: &Value) -> bool {
    block["transactions"].as_array().unwrap().iter().all(Value::is_object)
}

/// The last response of a file of `testdata/execution-apis`.
fn response(path: &str) -> Value {
    let text = fs::read_to_string(folder("execution-apis").join(path)).unwrap();
    let line = text.lines().rfind(|line| line.starts_with("<< ")).unwrap();
    result(serde_json::from_str(&line[3..]).unwrap())
}

fn field_of<T: std::fmt::Debug>(checked: Result<T, Fault>) -> String {
    checked.unwrap_err().field
}

#[test]
fn levels_are_read_as_they_are_written() {
    for name in ["off", "headers", "full", "senders"] {
        assert_eq!(name.parse::<Level>().unwrap().to_string(), name);
    }
    let fault = "all".parse::<Level>().unwrap_err().to_string();
    assert_eq!(
        fault,
        "\"all\" is no level of verification, allowed are off, headers, full and senders"
    );
}

#[test]
fn recorded_blocks_of_mainnet_are_true() {
    let mut blocks: Vec<Value> =
        files("mainnet/nimbus-blocks").iter().map(|path| result(json(path))).collect();
    assert_eq!(blocks.len(), 5);
    for method in ["eth_getBlockByHash", "eth_getBlockByNumber"] {
        for path in files(&format!("mainnet/erigon-rpc-tests/{method}")) {
            for pair in json(&path).as_array().unwrap() {
                let block = &pair["response"]["result"];
                if block.is_object() {
                    blocks.push(block.clone());
                }
            }
        }
    }
    blocks.push(result(json(&folder("mainnet/helios/block.json"))));
    let (whole, bare): (Vec<Value>, Vec<Value>) = blocks.into_iter().partition(is_whole);
    assert_eq!((whole.len(), bare.len()), (9, 4), "of two kinds");
    let mut transactions = 0;
    for one in &whole {
        for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
            let read = block(&raw(one), level).unwrap();
            assert_eq!(read.transactions.len(), one["transactions"].as_array().unwrap().len());
            assert_eq!(format!("{:#x}", read.number), one["number"]);
            assert_eq!(format!("{:#x}", read.hash), one["hash"]);
            assert_eq!(format!("{:#x}", read.parent), one["parentHash"]);
            assert_eq!(format!("{:#x}", read.timestamp), one["timestamp"]);
            for (tx, said) in read.transactions.iter().zip(one["transactions"].as_array().unwrap())
            {
                assert_eq!(format!("{:#x}", tx.hash), said["hash"]);
            }
        }
        transactions += one["transactions"].as_array().unwrap().len();
    }
    assert_eq!(transactions, 1_574);
    for one in &bare {
        header(&raw(one), Level::Headers).unwrap();
        // Asked for whole transactions, a node may not give their hashes.
        assert_eq!(field_of(block(&raw(one), Level::Off)), "transactions[0]");
    }
}

#[test]
fn recorded_receipts_of_mainnet_are_true() {
    let block = bare_block(&json(&folder("mainnet/helios/block.json")));
    let said = json(&folder("mainnet/helios/receipts.json"));
    assert_eq!(said.as_array().unwrap().len(), 202);
    for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
        receipts(&block, &raw(&said), level).unwrap();
    }
    let logs: Vec<Value> = said
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["logs"].as_array().unwrap().clone())
        .collect();
    assert_eq!(logs.len(), 463);
    super::logs(&block, &raw(&Value::Array(logs)), Level::Full).unwrap();
}

/// A block of which only the hashes of its transactions are known.
fn bare_block(said: &Value) -> super::Block {
    let block = header(&raw(said), Level::Headers).unwrap();
    let hashes: Vec<String> =
        block.transactions.iter().map(|one| format!("{:#x}", one.hash)).collect();
    assert_eq!(Value::from(hashes), said["transactions"]);
    block
}

#[test]
fn logs_are_compared_with_the_hashes_of_a_bare_block() {
    let said = json(&folder("mainnet/helios/block.json"));
    let receipts = json(&folder("mainnet/helios/receipts.json"));
    let with_logs = |one: &&Value| !one["logs"].as_array().unwrap().is_empty();
    let index = receipts.as_array().unwrap().iter().position(|one| with_logs(&one)).unwrap();
    let logs = raw(&receipts[index]["logs"]);
    for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
        assert_eq!(header(&raw(&said), level).unwrap().transactions.len(), 202);
    }
    let mut other = said.clone();
    other["transactions"][index] = Value::from(format!("0x{}", "1".repeat(64)));
    let other = header(&raw(&other), Level::Headers).unwrap();
    assert_eq!(field_of(super::logs(&other, &logs, Level::Headers)), "logs[0].transactionHash");
    let mut odd = said.clone();
    odd["transactions"][3] = Value::from("0x12");
    assert_eq!(field_of(header(&raw(&odd), Level::Headers)), "transactions[3]");
    // Whole transactions, which are not asked about here, are passed over.
    let whole = result(json(&folder("mainnet/nimbus-blocks/Cancun.json")));
    assert!(is_whole(&whole));
    assert!(header(&raw(&whole), Level::Headers).unwrap().transactions.is_empty());
}

/// Blocks before Byzantium, when a receipt held the root of the state, and of today.
#[test]
fn recorded_blocks_with_their_receipts_are_true() {
    let pairs = [
        ("eth_getBlockByHash/get-block-by-hash.io", "get-block-receipts-by-hash.io"),
        ("eth_getBlockByNumber/get-safe.io", "get-block-receipts-latest.io"),
        ("eth_getBlockByNumber/get-genesis.io", "get-block-receipts-0.io"),
    ];
    let mut counts = Vec::new();
    for (of_block, of_receipts) in pairs {
        let said = response(&format!("eth_getBlockReceipts/{of_receipts}"));
        let block = block(&raw(&response(of_block)), Level::Senders).unwrap();
        receipts(&block, &raw(&said), Level::Senders).unwrap();
        counts.push(said.as_array().unwrap().len());
    }
    assert_eq!(counts, [4, 4, 0]);
}

/// Every block of a chain that has a fork every three blocks and all types of transactions.
#[test]
fn a_chain_through_all_forks_is_true() {
    let blocks = made::chain();
    assert_eq!(blocks.len(), 54);
    let mut kinds = [0; 5];
    for said in &blocks {
        let read = block(&raw(said), Level::Senders).unwrap();
        for tx in &read.transactions {
            kinds[usize::from(tx.body.as_ref().unwrap().kind)] += 1;
        }
    }
    assert_eq!(kinds.iter().sum::<usize>(), 249);
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
fn made_blocks_and_their_receipts_are_true() {
    let made = made::Made::new();
    let block = block(&raw(&made.block), Level::Senders).unwrap();
    receipts(&block, &raw(&made.receipts), Level::Senders).unwrap();
    super::logs(&block, &raw(&made.logs()), Level::Full).unwrap();
}

/// The corrupted blocks of another project, each with what must be noticed.
#[test]
fn corrupted_blocks_of_goerli_are_refused() {
    let (mut good, mut bad) = (0, 0);
    for kind in ["blocks", "headers"] {
        for path in files(&format!("mainnet/op-service-goerli/{kind}")) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some(name) = name.strip_suffix("_metadata.json") else { continue };
            let metadata = json(&path);
            let said = json(&path.with_file_name(format!("{name}_data.json")));
            let checked = match kind {
                "blocks" => block(&raw(&said), Level::Senders),
                _ => header(&raw(&said), Level::Senders),
            };
            if metadata["fail"] != true {
                checked.unwrap();
                good += 1;
                continue;
            }
            bad += 1;
            let fault = checked.unwrap_err();
            assert!(matches!(fault.kind, FaultKind::Mismatch { .. }), "{fault}");
            match metadata["reason"].as_str() {
                Some("failed to verify block hash") => assert_eq!(fault.field, "hash"),
                Some("failed to verify transactions list") => {
                    assert!(fault.field.starts_with("transactions"), "{fault}");
                }
                Some(reason) => panic!("{reason}"),
                None => assert_eq!(fault.field, "hash", "{name}"),
            }
        }
    }
    assert_eq!((good, bad), (4, 5));
}
