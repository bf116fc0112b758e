//! The default calls of each chain family, such as Ethereum: reads at blocks that both servers
//! have, and calls that must return null or an error. Hashes and addresses come from blocks of the
//! first server.

use std::collections::HashSet;

use serde_json::{Value, json};
use wire::family::Family;

use super::ComparedCall;
use crate::target::{Client, Reply, number};

/// Maximum number of transactions of a block for which calls are made.
const TRANSACTIONS_MAX: usize = 3;
/// A hash that exists on no chain.
const UNKNOWN_HASH: &str = "0x00000000000000000000000000000000000000000000000000000000deadbeef";
/// An address that exists on no chain.
const UNKNOWN_ADDRESS: &str = "0x00000000000000000000000000000000deadbeef";
/// A block number above the head of every chain.
const FAR_BLOCK: u64 = 1 << 40;

/// The calls so far, without repetitions.
#[derive(Default)]
struct Calls {
    /// The calls in the order in which they were added.
    list: Vec<ComparedCall>,
    /// The same calls as in `list`, for a fast search.
    known: HashSet<ComparedCall>,
}

impl Calls {
    /// Adds a call, unless it has been added before.
    fn add(&mut self, method: &str, params: &Value) {
        let params = Some(params.to_string().into_bytes());
        let call = ComparedCall { method: method.to_owned(), params, names_its_block: true };
        if self.known.insert(call.clone()) {
            self.list.push(call);
        }
    }
}

/// Returns the calls about the block `newest` and the `count - 1` blocks before it. The second list
/// has the numbers of the blocks that the server did not return.
pub(super) fn default_calls(
    client: &Client,
    family: Family,
    newest: u64,
    count: u64,
) -> (Vec<ComparedCall>, Vec<u64>) {
    let (mut calls, mut missing_blocks) = (Calls::default(), Vec::new());
    for height in (0..=newest).rev().take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let added = match family {
            Family::Ethereum => add_ethereum_block(&mut calls, client, height),
            Family::Harmony => {
                let added = add_harmony_block(&mut calls, client, height);
                add_ethereum_block(&mut calls, client, height).and(added)
            }
            Family::Bitcoin => add_bitcoin_block(&mut calls, client, height),
        };
        if added.is_none() {
            missing_blocks.push(height);
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
    (calls.list, missing_blocks)
}

/// Returns the number of the finalized block; `None` if the server does not return it.
pub(super) fn find_finalized(client: &Client) -> Option<u64> {
    let block = call_for_result(client, "eth_getBlockByNumber", &json!(["finalized", false]))?;
    number(&block["number"])
}

/// Calls a method and returns its result; `None` for an error or null.
fn call_for_result(client: &Client, method: &str, params: &Value) -> Option<Value> {
    match client.call(method, &params.to_string()) {
        Ok(Reply::Result(value)) if !value.is_null() => Some(value),
        _ => None,
    }
}

/// Formats a number as an Ethereum quantity.
fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Adds the calls about a block. Returns `None` if the server does not return the block.
fn add_ethereum_block(calls: &mut Calls, client: &Client, height: u64) -> Option<()> {
    let block_number = hex(height);
    calls.add("eth_getBlockByNumber", &json!([block_number, false]));
    calls.add("eth_getBlockByNumber", &json!([block_number, true]));
    calls.add("eth_getBlockTransactionCountByNumber", &json!([block_number]));
    calls.add("eth_getUncleCountByBlockNumber", &json!([block_number]));
    calls.add("eth_getBlockReceipts", &json!([block_number]));
    calls.add("eth_getTransactionByBlockNumberAndIndex", &json!([block_number, "0x0"]));
    calls.add("eth_getLogs", &json!([{"fromBlock": block_number, "toBlock": block_number}]));
    let block = call_for_result(client, "eth_getBlockByNumber", &json!([block_number, true]))?;
    let hash = block["hash"].as_str()?;
    calls.add("eth_getBlockByHash", &json!([hash, true]));
    calls.add("eth_getBlockTransactionCountByHash", &json!([hash]));
    calls.add("eth_getUncleCountByBlockHash", &json!([hash]));
    calls.add("eth_getTransactionByBlockHashAndIndex", &json!([hash, "0x0"]));
    calls.add("eth_getLogs", &json!([{"blockHash": hash}]));
    let transactions = block["transactions"].as_array()?;
    for transaction in transactions.iter().take(TRANSACTIONS_MAX) {
        let Some(hash) = transaction["hash"].as_str() else { continue };
        calls.add("eth_getTransactionByHash", &json!([hash]));
        calls.add("eth_getTransactionReceipt", &json!([hash]));
        let (from, to) = (transaction["from"].as_str(), transaction["to"].as_str());
        for address in [from, to].into_iter().flatten() {
            add_ethereum_account(calls, address, &block_number);
        }
        if let (Some(from), Some(to)) = (from, to) {
            let call = json!({"from": from, "to": to, "data": "0x"});
            calls.add("eth_call", &json!([call, block_number]));
            calls.add("eth_estimateGas", &json!([{"from": from, "to": from}, block_number]));
        }
    }
    add_ethereum_account(calls, UNKNOWN_ADDRESS, &block_number);
    Some(())
}

/// Adds the calls about an account at a block.
fn add_ethereum_account(calls: &mut Calls, address: &str, block_number: &str) {
    calls.add("eth_getBalance", &json!([address, block_number]));
    calls.add("eth_getTransactionCount", &json!([address, block_number]));
    calls.add("eth_getCode", &json!([address, block_number]));
    calls.add("eth_getStorageAt", &json!([address, "0x0", block_number]));
    calls.add("eth_getProof", &json!([address, ["0x0"], block_number]));
}

/// Adds the calls that do not depend on the content of a block.
fn add_ethereum_constants(calls: &mut Calls, newest: u64, count: u64) {
    let (oldest_block, newest_block) = (hex(newest.saturating_sub(count - 1)), hex(newest));
    calls.add("eth_chainId", &json!([]));
    calls.add("net_version", &json!([]));
    calls.add("web3_sha3", &json!(["0x68656c6c6f"]));
    calls.add("eth_getBlockByNumber", &json!(["0x0", false]));
    calls.add("eth_feeHistory", &json!(["0x4", newest_block, [25, 75]]));
    calls.add("eth_getLogs", &json!([{"fromBlock": oldest_block, "toBlock": newest_block}]));
    // The responses to these calls must be null.
    calls.add("eth_getBlockByNumber", &json!([hex(FAR_BLOCK), false]));
    calls.add("eth_getBlockByHash", &json!([UNKNOWN_HASH, false]));
    calls.add("eth_getTransactionByHash", &json!([UNKNOWN_HASH]));
    calls.add("eth_getTransactionReceipt", &json!([UNKNOWN_HASH]));
    // The responses to these calls must be errors.
    calls.add("eth_getBalance", &json!([UNKNOWN_ADDRESS, hex(FAR_BLOCK)]));
    calls.add("eth_getBalance", &json!(["0x12", newest_block]));
    calls.add(
        "eth_getLogs",
        &json!([{"fromBlock": newest_block, "toBlock": hex(newest.saturating_sub(1))}]),
    );
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
    for transaction in block["transactions"].as_array()?.iter().take(TRANSACTIONS_MAX) {
        let Some(hash) = transaction["hash"].as_str() else { continue };
        calls.add("hmyv2_getTransactionByHash", &json!([hash]));
        calls.add("hmyv2_getTransactionReceipt", &json!([hash]));
        if let Some(from) = transaction["from"].as_str() {
            calls.add("hmyv2_getBalanceByBlockNumber", &json!([from, height]));
        }
    }
    Some(())
}

/// Adds the calls that do not depend on the content of a block.
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
    for transaction in block["tx"].as_array()?.iter().take(TRANSACTIONS_MAX) {
        calls.add("getrawtransaction", &json!([transaction, true, hash]));
    }
    Some(())
}

/// Adds the calls that do not depend on the content of a block.
fn add_bitcoin_constants(calls: &mut Calls) {
    calls.add("getblockhash", &json!([0]));
    // The responses to these calls must be errors.
    calls.add("getblockhash", &json!([1_000_000_000]));
    calls.add("getblockheader", &json!([&UNKNOWN_HASH[2..]]));
    calls.add("nosuchmethod", &json!([]));
}
