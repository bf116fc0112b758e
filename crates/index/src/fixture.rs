//! Writes indexes for tests. They hold a chain of blocks with valid hashes, in the rows that a sync
//! writes.

use serde_json::{Value, json};

use crate::compression::{Compressor, Dictionary, FragmentKind};
use crate::contents::{Chain, Contents, Metadata};
use crate::encode::{self, RawBlock};
use crate::reader::Reader;
use crate::store::{self, Location, Settings};
use crate::verify::tests::test_block::TestBlock;

/// The first block of an index. The range of its blocks contains a multiple of 256, the border
/// between two segments of an audit.
pub(crate) const FIRST: u64 = 509;
/// The number of blocks of an index.
pub(crate) const BLOCKS: u64 = 6;
/// The last block of an index.
pub(crate) const LAST: u64 = FIRST + BLOCKS - 1;

/// Writes an index that holds these contents, with this number of blocks in each database
/// transaction.
pub(crate) fn write(location: &Location, contents: &str, blocks_per_transaction: usize) {
    write_from(FIRST, location, contents, blocks_per_transaction);
}

/// Writes an index like [`write`], with the first block `first`.
pub(crate) fn write_from(
    first: u64,
    location: &Location,
    contents: &str,
    blocks_per_transaction: usize,
) {
    let contents: Contents = contents.parse().unwrap();
    let mut store = store::open(location, Settings::default()).unwrap();
    let chain = Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis_hash: [7; 32] };
    let metadata = Metadata {
        chain,
        contents,
        verification: "full".to_owned(),
        differing_forms: vec![],
        untested_forms: vec![],
    };
    let bytes: Vec<u8> = (0..=255).collect();
    let dictionaries = [Dictionary { kind: FragmentKind::Block, bytes }];
    store.initialize(&metadata, &dictionaries).unwrap();
    let mut compressor = Compressor::new(&dictionaries).unwrap();
    let mut rows = Vec::new();
    for sample in TestBlock::chain(first, BLOCKS) {
        let mut block = sample.block.clone();
        if !contents.transactions {
            for transaction in block["transactions"].as_array_mut().unwrap() {
                *transaction = transaction["hash"].take();
            }
        }
        let to_json = |value| serde_json::to_vec(value).unwrap();
        let (block, receipts) = (to_json(&block), to_json(&sample.receipts));
        let logs = to_json(&sample.logs());
        let harmony = harmony(&sample.block);
        let raw = RawBlock {
            block: &block,
            receipts: contents.receipts.then_some(receipts.as_slice()),
            logs: (contents.logs && !contents.receipts).then_some(logs.as_slice()),
            harmony: contents.hmyv2.then_some(harmony.as_slice()),
        };
        rows.push(encode::encode(&mut compressor, raw, contents).unwrap());
    }
    for batch in rows.chunks(blocks_per_transaction) {
        store.append(batch, first + BLOCKS - 1).unwrap();
    }
}

/// Returns a block as Harmony's `hmyv2_` methods write it: with decimal numbers, and with a second
/// hash beside the Ethereum hash of each transaction. Blocks with odd numbers have staking
/// transactions.
pub(crate) fn harmony(block: &Value) -> Vec<u8> {
    let to_number = |value: &Value| {
        let digits = value.as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap()
    };
    let to_harmony_hash =
        |hash: &Value| Value::from(hash.as_str().unwrap().replace("0x", "0x5")[..66].to_owned());
    let block_number = to_number(&block["number"]);
    let transactions = block["transactions"].as_array().unwrap().iter().enumerate();
    let transactions = transactions.map(|(index, transaction)| {
        let eth_hash = if transaction.is_string() { transaction } else { &transaction["hash"] };
        json!({
            "blockHash": block["hash"],
            "blockNumber": block_number,
            "ethHash": eth_hash,
            "hash": to_harmony_hash(eth_hash),
            "transactionIndex": index,
            "value": 1,
        })
    });
    let staking = (0..block_number % 2 * 2).map(|index| {
        json!({"blockHash": block["hash"], "hash": format!("0x{:064x}", block_number + index), "type": "Delegate"})
    });
    let harmony_block = json!({
        "hash": block["hash"],
        "number": block_number,
        "parentHash": block["parentHash"],
        "stakingTransactions": staking.collect::<Vec<_>>(),
        "timestamp": to_number(&block["timestamp"]),
        "transactions": transactions.collect::<Vec<_>>(),
        "uncles": [],
    });
    serde_json::to_vec(&harmony_block).unwrap()
}

/// Opens an index to read.
pub(crate) fn reader(location: &Location) -> Reader {
    Reader::open(location, Settings::default()).unwrap().unwrap()
}
