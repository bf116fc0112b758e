//! Goal: valid responses pass at every level, and changed responses are rejected. Method: recorded
//! blocks of many forks (`testdata/mainnet`, `testdata/execution-apis`) and synthetic blocks with
//! every transaction type. Then each of their members is changed (`mutation`), and random bytes are
//! read (`bytes`).

mod bytes;
mod forms;
mod mutation;
pub(crate) mod test_block;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Error, ErrorKind, Level, verify_block, verify_header, verify_receipts};

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Returns the JSON files of a folder of `testdata`, in the order of their names.
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

fn unwrap_result(value: Value) -> Value {
    match value {
        Value::Object(mut members) if members.contains_key("result") => {
            members.remove("result").unwrap()
        }
        other => other,
    }
}

fn has_full_transactions(block: &Value) -> bool {
    block["transactions"].as_array().unwrap().iter().all(Value::is_object)
}

/// Returns the last response in a file of `testdata/execution-apis`.
fn response(path: &str) -> Value {
    let text = fs::read_to_string(folder("execution-apis").join(path)).unwrap();
    let line = text.lines().rfind(|line| line.starts_with("<< ")).unwrap();
    unwrap_result(serde_json::from_str(&line[3..]).unwrap())
}

/// Returns the field of an error.
fn error_field<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().field
}

#[test]
fn levels_are_parsed_as_they_are_printed() {
    for name in ["off", "headers", "full", "senders"] {
        assert_eq!(name.parse::<Level>().unwrap().to_string(), name);
    }
    let error = "all".parse::<Level>().unwrap_err();
    assert_eq!(
        error,
        "\"all\" is no level of verification, allowed are off, headers, full and senders"
    );
}

#[test]
fn recorded_mainnet_blocks_pass() {
    let mut blocks: Vec<Value> =
        files("mainnet/nimbus-blocks").iter().map(|path| unwrap_result(json(path))).collect();
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
    blocks.push(unwrap_result(json(&folder("mainnet/helios/block.json"))));
    let (full_blocks, hash_blocks): (Vec<Value>, Vec<Value>) =
        blocks.into_iter().partition(has_full_transactions);
    assert_eq!((full_blocks.len(), hash_blocks.len()), (9, 4), "of two kinds");
    let mut transactions = 0;
    for recorded in &full_blocks {
        for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
            let verified = verify_block(&raw(recorded), level).unwrap();
            assert_eq!(
                verified.transactions.len(),
                recorded["transactions"].as_array().unwrap().len()
            );
            assert_eq!(format!("{:#x}", verified.number), recorded["number"]);
            assert_eq!(format!("{:#x}", verified.hash), recorded["hash"]);
            assert_eq!(format!("{:#x}", verified.parent), recorded["parentHash"]);
            assert_eq!(format!("{:#x}", verified.timestamp), recorded["timestamp"]);
            for (tx, recorded_tx) in
                verified.transactions.iter().zip(recorded["transactions"].as_array().unwrap())
            {
                assert_eq!(format!("{:#x}", tx.hash), recorded_tx["hash"]);
            }
        }
        transactions += recorded["transactions"].as_array().unwrap().len();
    }
    assert_eq!(transactions, 1_574);
    for recorded in &hash_blocks {
        verify_header(&raw(recorded), Level::Headers).unwrap();
        // A block with hashes is rejected where full transactions are needed.
        assert_eq!(error_field(verify_block(&raw(recorded), Level::Off)), "transactions[0]");
    }
}

#[test]
fn recorded_mainnet_receipts_pass() {
    let block = block_with_hashes(&json(&folder("mainnet/helios/block.json")));
    let recorded = json(&folder("mainnet/helios/receipts.json"));
    assert_eq!(recorded.as_array().unwrap().len(), 202);
    for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
        verify_receipts(&block, &raw(&recorded), level).unwrap();
    }
    let logs: Vec<Value> = recorded
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|receipt| receipt["logs"].as_array().unwrap().clone())
        .collect();
    assert_eq!(logs.len(), 463);
    super::verify_logs(&block, &raw(&Value::Array(logs)), Level::Full).unwrap();
}

/// Verifies a block that has only the hashes of its transactions.
fn block_with_hashes(recorded: &Value) -> super::Block {
    let block = verify_header(&raw(recorded), Level::Headers).unwrap();
    let hashes: Vec<String> =
        block.transactions.iter().map(|transaction| format!("{:#x}", transaction.hash)).collect();
    assert_eq!(Value::from(hashes), recorded["transactions"]);
    block
}

#[test]
fn logs_are_compared_with_the_hashes_of_a_bare_block() {
    let recorded = json(&folder("mainnet/helios/block.json"));
    let receipts = json(&folder("mainnet/helios/receipts.json"));
    let has_logs = |receipt: &&Value| !receipt["logs"].as_array().unwrap().is_empty();
    let index = receipts.as_array().unwrap().iter().position(|receipt| has_logs(&receipt)).unwrap();
    let logs = raw(&receipts[index]["logs"]);
    for level in [Level::Off, Level::Headers, Level::Full, Level::Senders] {
        assert_eq!(verify_header(&raw(&recorded), level).unwrap().transactions.len(), 202);
    }
    let mut changed = recorded.clone();
    changed["transactions"][index] = Value::from(format!("0x{}", "1".repeat(64)));
    let changed = verify_header(&raw(&changed), Level::Headers).unwrap();
    assert_eq!(
        error_field(super::verify_logs(&changed, &logs, Level::Headers)),
        "logs[0].transactionHash"
    );
    let mut malformed = recorded.clone();
    malformed["transactions"][3] = Value::from("0x12");
    assert_eq!(error_field(verify_header(&raw(&malformed), Level::Headers)), "transactions[3]");
    // `verify_header` does not read full transactions.
    let full_block = unwrap_result(json(&folder("mainnet/nimbus-blocks/Cancun.json")));
    assert!(has_full_transactions(&full_block));
    assert!(verify_header(&raw(&full_block), Level::Headers).unwrap().transactions.is_empty());
}

/// Some blocks are recent. Others are older than the fork Byzantium: until then receipts contained
/// the state root.
#[test]
fn recorded_blocks_and_their_receipts_pass() {
    let pairs = [
        ("eth_getBlockByHash/get-block-by-hash.io", "get-block-receipts-by-hash.io"),
        ("eth_getBlockByNumber/get-safe.io", "get-block-receipts-latest.io"),
        ("eth_getBlockByNumber/get-genesis.io", "get-block-receipts-0.io"),
    ];
    let mut counts = Vec::new();
    for (block_file, receipts_file) in pairs {
        let recorded = response(&format!("eth_getBlockReceipts/{receipts_file}"));
        let block = verify_block(&raw(&response(block_file)), Level::Senders).unwrap();
        verify_receipts(&block, &raw(&recorded), Level::Senders).unwrap();
        counts.push(recorded.as_array().unwrap().len());
    }
    assert_eq!(counts, [4, 4, 0]);
}

/// The chain has a fork every three blocks, and all transaction types.
#[test]
fn a_chain_through_all_forks_passes() {
    let blocks = test_block::chain();
    assert_eq!(blocks.len(), 54);
    let mut kinds = [0; 5];
    for recorded in &blocks {
        let verified = verify_block(&raw(recorded), Level::Senders).unwrap();
        for tx in &verified.transactions {
            kinds[usize::from(tx.body.as_ref().unwrap().kind)] += 1;
        }
    }
    assert_eq!(kinds.iter().sum::<usize>(), 249);
    assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
}

#[test]
fn synthetic_blocks_and_their_receipts_pass() {
    let sample = test_block::TestBlock::new();
    let block = verify_block(&raw(&sample.block), Level::Senders).unwrap();
    verify_receipts(&block, &raw(&sample.receipts), Level::Senders).unwrap();
    super::verify_logs(&block, &raw(&sample.logs()), Level::Full).unwrap();
}

/// The corrupted blocks come from another project, each with the expected error.
#[test]
fn corrupted_goerli_blocks_are_rejected() {
    let (mut accepted, mut rejected) = (0, 0);
    for kind in ["blocks", "headers"] {
        for path in files(&format!("mainnet/op-service-goerli/{kind}")) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some(name) = name.strip_suffix("_metadata.json") else { continue };
            let metadata = json(&path);
            let recorded = json(&path.with_file_name(format!("{name}_data.json")));
            let result = match kind {
                "blocks" => verify_block(&raw(&recorded), Level::Senders),
                _ => verify_header(&raw(&recorded), Level::Senders),
            };
            if metadata["fail"] != true {
                result.unwrap();
                accepted += 1;
                continue;
            }
            rejected += 1;
            let error = result.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
            match metadata["reason"].as_str() {
                Some("failed to verify block hash") => assert_eq!(error.field, "hash"),
                Some("failed to verify transactions list") => {
                    assert!(error.field.starts_with("transactions"), "{error}");
                }
                Some(reason) => panic!("{reason}"),
                None => assert_eq!(error.field, "hash", "{name}"),
            }
        }
    }
    assert_eq!((accepted, rejected), (4, 5));
}
