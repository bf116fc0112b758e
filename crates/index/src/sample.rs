//! Indexes for tests: linked blocks with true hashes, written as a sync writes them.

use serde_json::{Value, json};

use crate::cut::{self, Said};
use crate::pack::{Dictionary, Kind, Packer};
use crate::reader::Reader;
use crate::store::{Chain, Facts, Location, Settings, Store};
use crate::verify::tests::made::Made;

/// The first block of an index: with [`BLOCKS`] after it, a multiple of 256 is in the middle.
pub(crate) const FIRST: u64 = 509;
/// Blocks of an index.
pub(crate) const BLOCKS: u64 = 6;
/// The last block of an index.
pub(crate) const LAST: u64 = FIRST + BLOCKS - 1;

/// Writes an index that holds `what`, so many blocks in each transaction.
pub(crate) fn write(at: &Location, what: &str, at_once: usize) {
    let what: crate::store::What = what.parse().unwrap();
    let mut store = Store::open(at, Settings::default()).unwrap();
    let chain = Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis: [7; 32] };
    let facts = Facts { chain, what, verified: "full".to_owned(), unlike: vec![], untried: vec![] };
    let bytes: Vec<u8> = (0..=255).collect();
    let dictionaries = [Dictionary { kind: Kind::Block, bytes }];
    store.found(&facts, &dictionaries).unwrap();
    let mut packer = Packer::new(&dictionaries).unwrap();
    let mut rows = Vec::new();
    for made in Made::chain(FIRST, BLOCKS) {
        let mut block = made.block.clone();
        if !what.blocks {
            for transaction in block["transactions"].as_array_mut().unwrap() {
                *transaction = transaction["hash"].take();
            }
        }
        let text = |value| serde_json::to_vec(value).unwrap();
        let (block, receipts) = (text(&block), text(&made.receipts));
        let logs = text(&made.logs());
        let harmony = harmony(&made.block);
        let said = Said {
            block: &block,
            receipts: what.receipts.then_some(receipts.as_slice()),
            logs: (what.logs && !what.receipts).then_some(logs.as_slice()),
            harmony: what.hmyv2.then_some(harmony.as_slice()),
        };
        rows.push(cut::cut(&mut packer, said, what).unwrap());
    }
    for some in rows.chunks(at_once) {
        store.append(some, LAST).unwrap();
    }
}

/// A block as Harmony's own methods write it: numbers in decimal, each transaction with a hash of
/// its own beside that of Ethereum's tools, and staking transactions in every other block.
pub(crate) fn harmony(block: &Value) -> Vec<u8> {
    let number = |value: &Value| {
        let digits = value.as_str().unwrap().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).unwrap()
    };
    let own =
        |hash: &Value| Value::from(hash.as_str().unwrap().replace("0x", "0x5")[..66].to_owned());
    let at = number(&block["number"]);
    let transactions = block["transactions"].as_array().unwrap().iter().enumerate();
    let transactions = transactions.map(|(index, transaction)| {
        let eth_hash = if transaction.is_string() { transaction } else { &transaction["hash"] };
        json!({
            "blockHash": block["hash"],
            "blockNumber": at,
            "ethHash": eth_hash,
            "hash": own(eth_hash),
            "transactionIndex": index,
            "value": 1,
        })
    });
    let staking = (0..at % 2 * 2).map(|index| {
        json!({"blockHash": block["hash"], "hash": format!("0x{:064x}", at + index), "type": "Delegate"})
    });
    let whole = json!({
        "hash": block["hash"],
        "number": at,
        "parentHash": block["parentHash"],
        "stakingTransactions": staking.collect::<Vec<_>>(),
        "timestamp": number(&block["timestamp"]),
        "transactions": transactions.collect::<Vec<_>>(),
        "uncles": [],
    });
    serde_json::to_vec(&whole).unwrap()
}

/// Opens such an index.
pub(crate) fn reader(at: &Location) -> Reader {
    Reader::open(at, Settings::default()).unwrap().unwrap()
}
