//! The default calls of each family: reads at blocks that both servers have, and calls that must
//! return null or an error. Hashes and addresses are those of the first server's blocks.

use std::collections::HashSet;

use serde_json::{Value, json};
use wire::family::Family;

use super::Call;
use crate::target::{Client, Reply, number};

/// Number of transactions and of addresses of each block that have calls of their own.
const ENTRIES_MAX: usize = 3;
/// A hash and an address that no chain has.
const UNKNOWN_HASH: &str = "0x00000000000000000000000000000000000000000000000000000000deadbeef";
const UNKNOWN_ADDRESS: &str = "0x00000000000000000000000000000000deadbeef";
/// A block number above the head of every chain.
const FAR_BLOCK: u64 = 1 << 40;

/// The calls so far, each once.
#[derive(Default)]
struct Calls {
    list: Vec<Call>,
    known: HashSet<Call>,
}

impl Calls {
    fn add(&mut self, method: &str, params: &Value) {
        let params = Some(params.to_string().into_bytes());
        let call = Call { method: method.to_owned(), params, names_its_block: true };
        if self.known.insert(call.clone()) {
            self.list.push(call);
        }
    }
}

/// Returns the calls about the block `newest` and the `count - 1` blocks before it, and the blocks
/// that the server did not return.
pub(super) fn default_calls(
    client: &Client,
    family: Family,
    newest: u64,
    count: u64,
) -> (Vec<Call>, Vec<u64>) {
    let (mut calls, mut missing) = (Calls::default(), Vec::new());
    for height in (0..=newest).rev().take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let found = match family {
            Family::Ethereum => add_ethereum_block(&mut calls, client, height),
            Family::Harmony => {
                let found = add_harmony_block(&mut calls, client, height);
                add_ethereum_block(&mut calls, client, height).and(found)
            }
            Family::Bitcoin => add_bitcoin_block(&mut calls, client, height),
        };
        if found.is_none() {
            missing.push(height);
        }
    }
    match family {
        Family::Ethereum => add_ethereum_constants(&mut calls, newest, count),
        Family::Harmony => {
            add_ethereum_constants(&mut calls, newest, count);
            add_harmony_constants(&mut calls);
        }
        Family::Bitcoin => add_bitcoin_constants(&mut calls),
    }
    (calls.list, missing)
}

/// Returns the number of the finalized block.
pub(super) fn find_finalized(client: &Client) -> Option<u64> {
    let block = call_for_result(client, "eth_getBlockByNumber", &json!(["finalized", false]))?;
    number(&block["number"])
}

fn call_for_result(client: &Client, method: &str, params: &Value) -> Option<Value> {
    match client.call(method, &params.to_string()) {
        Ok(Reply::Result(value)) if !value.is_null() => Some(value),
        _ => None,
    }
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Adds the calls about a block. Returns `None` if the server does not return the block.
fn add_ethereum_block(calls: &mut Calls, client: &Client, height: u64) -> Option<()> {
    let at = hex(height);
    calls.add("eth_getBlockByNumber", &json!([at, false]));
    calls.add("eth_getBlockByNumber", &json!([at, true]));
    calls.add("eth_getBlockTransactionCountByNumber", &json!([at]));
    calls.add("eth_getUncleCountByBlockNumber", &json!([at]));
    calls.add("eth_getBlockReceipts", &json!([at]));
    calls.add("eth_getTransactionByBlockNumberAndIndex", &json!([at, "0x0"]));
    calls.add("eth_getLogs", &json!([{"fromBlock": at, "toBlock": at}]));
    let block = call_for_result(client, "eth_getBlockByNumber", &json!([at, true]))?;
    let hash = block["hash"].as_str()?;
    calls.add("eth_getBlockByHash", &json!([hash, true]));
    calls.add("eth_getBlockTransactionCountByHash", &json!([hash]));
    calls.add("eth_getUncleCountByBlockHash", &json!([hash]));
    calls.add("eth_getTransactionByBlockHashAndIndex", &json!([hash, "0x0"]));
    calls.add("eth_getLogs", &json!([{"blockHash": hash}]));
    let transactions = block["transactions"].as_array()?;
    for transaction in transactions.iter().take(ENTRIES_MAX) {
        let Some(hash) = transaction["hash"].as_str() else { continue };
        calls.add("eth_getTransactionByHash", &json!([hash]));
        calls.add("eth_getTransactionReceipt", &json!([hash]));
        let (from, to) = (transaction["from"].as_str(), transaction["to"].as_str());
        for address in [from, to].into_iter().flatten() {
            add_ethereum_account(calls, address, &at);
        }
        if let (Some(from), Some(to)) = (from, to) {
            let call = json!({"from": from, "to": to, "data": "0x"});
            calls.add("eth_call", &json!([call, at]));
            calls.add("eth_estimateGas", &json!([{"from": from, "to": from}, at]));
        }
    }
    add_ethereum_account(calls, UNKNOWN_ADDRESS, &at);
    Some(())
}

fn add_ethereum_account(calls: &mut Calls, address: &str, at: &str) {
    calls.add("eth_getBalance", &json!([address, at]));
    calls.add("eth_getTransactionCount", &json!([address, at]));
    calls.add("eth_getCode", &json!([address, at]));
    calls.add("eth_getStorageAt", &json!([address, "0x0", at]));
    calls.add("eth_getProof", &json!([address, ["0x0"], at]));
}

fn add_ethereum_constants(calls: &mut Calls, newest: u64, count: u64) {
    let (oldest, at) = (hex(newest.saturating_sub(count - 1)), hex(newest));
    calls.add("eth_chainId", &json!([]));
    calls.add("net_version", &json!([]));
    calls.add("web3_sha3", &json!(["0x68656c6c6f"]));
    calls.add("eth_getBlockByNumber", &json!(["0x0", false]));
    calls.add("eth_feeHistory", &json!(["0x4", at, [25, 75]]));
    calls.add("eth_getLogs", &json!([{"fromBlock": oldest, "toBlock": at}]));
    // The responses to these calls must be null.
    calls.add("eth_getBlockByNumber", &json!([hex(FAR_BLOCK), false]));
    calls.add("eth_getBlockByHash", &json!([UNKNOWN_HASH, false]));
    calls.add("eth_getTransactionByHash", &json!([UNKNOWN_HASH]));
    calls.add("eth_getTransactionReceipt", &json!([UNKNOWN_HASH]));
    // The responses to these calls must be errors.
    calls.add("eth_getBalance", &json!([UNKNOWN_ADDRESS, hex(FAR_BLOCK)]));
    calls.add("eth_getBalance", &json!(["0x12", at]));
    calls.add("eth_getLogs", &json!([{"fromBlock": at, "toBlock": hex(newest.saturating_sub(1))}]));
    calls.add("eth_noSuchMethod", &json!([]));
}

/// Adds the calls about a block. Returns `None` if the server does not return the block.
fn add_harmony_block(calls: &mut Calls, client: &Client, height: u64) -> Option<()> {
    let options =
        json!({"fullTx": true, "inclTx": true, "withSigners": false, "inclStaking": true});
    calls.add("hmyv2_getBlockByNumber", &json!([height, options]));
    calls.add("hmyv2_getBlockTransactionCountByNumber", &json!([height]));
    calls.add("hmyv2_getBlockSigners", &json!([height]));
    calls.add("hmyv2_getHeaderByNumber", &json!([height]));
    let block = call_for_result(client, "hmyv2_getBlockByNumber", &json!([height, options]))?;
    let hash = block["hash"].as_str()?;
    calls.add("hmyv2_getBlockByHash", &json!([hash, options]));
    for transaction in block["transactions"].as_array()?.iter().take(ENTRIES_MAX) {
        let Some(hash) = transaction["hash"].as_str() else { continue };
        calls.add("hmyv2_getTransactionByHash", &json!([hash]));
        calls.add("hmyv2_getTransactionReceipt", &json!([hash]));
        if let Some(from) = transaction["from"].as_str() {
            calls.add("hmyv2_getBalanceByBlockNumber", &json!([from, height]));
        }
    }
    Some(())
}

fn add_harmony_constants(calls: &mut Calls) {
    calls.add("hmyv2_chainId", &json!([]));
    calls.add("hmyv2_getShardID", &json!([]));
    // The responses to these calls must be null or errors.
    calls.add("hmyv2_getBlockByNumber", &json!([FAR_BLOCK, {}]));
    calls.add("hmyv2_getTransactionByHash", &json!([UNKNOWN_HASH]));
    calls.add("hmyv2_noSuchMethod", &json!([]));
}

/// Adds the calls about a block. Returns `None` if the server does not return the block.
fn add_bitcoin_block(calls: &mut Calls, client: &Client, height: u64) -> Option<()> {
    calls.add("getblockhash", &json!([height]));
    let hash = call_for_result(client, "getblockhash", &json!([height]))?;
    calls.add("getblockheader", &json!([hash, true]));
    calls.add("getblockheader", &json!([hash, false]));
    calls.add("getblock", &json!([hash, 1]));
    calls.add("getblock", &json!([hash, 2]));
    let block = call_for_result(client, "getblock", &json!([hash, 1]))?;
    for transaction in block["tx"].as_array()?.iter().take(ENTRIES_MAX) {
        calls.add("getrawtransaction", &json!([transaction, true, hash]));
    }
    Some(())
}

fn add_bitcoin_constants(calls: &mut Calls) {
    calls.add("getblockhash", &json!([0]));
    // The responses to these calls must be errors.
    calls.add("getblockhash", &json!([1_000_000_000]));
    calls.add("getblockheader", &json!([&UNKNOWN_HASH[2..]]));
    calls.add("nosuchmethod", &json!([]));
}
