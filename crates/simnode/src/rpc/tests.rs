//! Goal: a node replies like geth and Harmony. Method: calls to a node of a small simulated chain
//! (world). The replies are compared as JSON values.

use alloy_primitives::Bloom;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Reply, Retention, View, respond};
use crate::schedule::{Reorg, WorldOptions};
use crate::world::World;

const HEAD: u64 = 40;

/// Returns a world whose blocks 28 to 30 are replaced after head 30.
fn world() -> World {
    let reorgs = vec![Reorg { at_height: 30, depth: 3 }];
    let options =
        WorldOptions { height_start: 20, finality_depth: 8, reorgs, ..WorldOptions::default() };
    World::starting(options, Instant::now()).unwrap()
}

/// Returns the reply of a node with this view.
fn ask_as(world: &World, view: &View, method: &str, params: &Value) -> Value {
    match respond(world, view, method, Some(params.to_string().as_bytes())) {
        Reply::Result(result) => serde_json::from_slice(&result).unwrap(),
        Reply::Error(error) => {
            json!({ "error": serde_json::from_slice::<Value>(&error.to_json()).unwrap() })
        }
    }
}

/// Returns the reply of an honest node at head 40 (0x28).
fn ask(world: &World, method: &str, params: Value) -> Value {
    ask_as(world, &View::honest(HEAD), method, &params)
}

fn code(response: &Value) -> i64 {
    response["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {response}"))
}

#[test]
fn blocks_read_by_number_tag_and_hash() {
    let world = world();
    assert_eq!(ask(&world, "eth_blockNumber", json!([])), json!("0x28"));
    let latest = ask(&world, "eth_getBlockByNumber", json!(["latest", false]));
    assert_eq!(latest["number"], "0x28");
    assert_eq!(ask(&world, "eth_getBlockByNumber", json!(["0x28", false])), latest);
    assert_eq!(ask(&world, "eth_getBlockByHash", json!([latest["hash"], false])), latest);
    let number_of =
        |tag: &str| ask(&world, "eth_getBlockByNumber", json!([tag, false]))["number"].clone();
    assert_eq!(number_of("finalized"), "0x20");
    assert_eq!(number_of("safe"), "0x24");
    assert_eq!(number_of("earliest"), "0x0");
    assert_eq!(ask(&world, "eth_getBlockByNumber", json!(["0x29", false])), Value::Null);
    let full = ask(&world, "eth_getBlockByNumber", json!(["0x28", true]));
    let hashes: Vec<_> = full["transactions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["hash"].clone())
        .collect();
    assert_eq!(Value::from(hashes.clone()), latest["transactions"]);
    let count = ask(&world, "eth_getBlockTransactionCountByNumber", json!(["0x28"]));
    assert_eq!(count, json!(format!("{:#x}", hashes.len())));
}

#[test]
fn transactions_and_receipts_agree_with_their_block() {
    let world = world();
    let block = ask(&world, "eth_getBlockByNumber", json!(["0x1e", true]));
    let receipts = ask(&world, "eth_getBlockReceipts", json!(["0x1e"]));
    let mut bloom = Bloom::ZERO;
    let mut log_count = 0;
    for (index, transaction) in block["transactions"].as_array().unwrap().iter().enumerate() {
        let hash = &transaction["hash"];
        assert_eq!(&ask(&world, "eth_getTransactionByHash", json!([hash])), transaction);
        let index_hex = format!("{index:#x}");
        let params = json!(["0x1e", index_hex]);
        let by_position = ask(&world, "eth_getTransactionByBlockNumberAndIndex", params);
        assert_eq!(&by_position, transaction);
        let params = json!([block["hash"], index_hex]);
        assert_eq!(&ask(&world, "eth_getTransactionByBlockHashAndIndex", params), transaction);
        let receipt = ask(&world, "eth_getTransactionReceipt", json!([hash]));
        assert_eq!(receipt, receipts[index]);
        assert_eq!(receipt["blockHash"], block["hash"]);
        for log in receipt["logs"].as_array().unwrap() {
            assert_eq!(log["logIndex"], format!("{log_count:#x}"));
            log_count += 1;
        }
        let receipt_bloom: Bloom = receipt["logsBloom"].as_str().unwrap().parse().unwrap();
        bloom |= receipt_bloom;
    }
    assert!(log_count > 0);
    assert_eq!(block["logsBloom"], bloom.to_string());
    assert_eq!(ask(&world, "eth_getBlockReceipts", json!([block["hash"]])), receipts);
}

#[test]
fn state_follows_from_transactions() {
    let world = world();
    let sender = world.addresses().accounts[3].to_string();
    let nonce = |block: &str| {
        let text = ask(&world, "eth_getTransactionCount", json!([sender, block]));
        u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    };
    let mut sent = 0;
    for number in 0..=HEAD {
        let block = world.block_at(HEAD, number).unwrap();
        sent += block
            .transactions
            .iter()
            .filter(|transaction| transaction.from == world.addresses().accounts[3])
            .count() as u64;
        assert_eq!(nonce(&format!("{number:#x}")), sent, "block {number}");
    }
    let balance = |block: Value| ask(&world, "eth_getBalance", json!([sender, block]));
    assert_ne!(balance(json!("0x1e")), balance(json!("0x28")));
    assert_eq!(balance(json!("latest")), balance(json!("0x28")));
    assert_eq!(balance(json!({ "blockNumber": "0x1e" })), balance(json!("0x1e")));
    let hash = world.hash_at(HEAD, 30).unwrap().to_string();
    assert_eq!(balance(json!({ "blockHash": hash })), balance(json!("0x1e")));
    assert_eq!(balance(json!(hash)), balance(json!("0x1e")));
    let stranger = json!(["0x00000000000000000000000000000000000000ff", "latest"]);
    assert_eq!(ask(&world, "eth_getBalance", stranger), "0x0");
}

#[test]
fn blocks_by_eip_1898_are_rejected_as_specified() {
    let world = world();
    let dropped = world.hash_at(30, 30).unwrap().to_string();
    let account = world.addresses().accounts[0].to_string();
    let balance_at = |block: Value| ask(&world, "eth_getBalance", json!([account, block]));
    let unknown = alloy_primitives::B256::repeat_byte(1).to_string();
    assert_eq!(code(&balance_at(json!({ "blockHash": unknown }))), -32001);
    assert_eq!(
        code(&balance_at(json!({ "blockHash": unknown, "requireCanonical": true }))),
        -32001
    );
    assert_eq!(
        code(&balance_at(json!({ "blockHash": dropped, "requireCanonical": true }))),
        -32000
    );
    assert!(balance_at(json!({ "blockHash": dropped })).is_string());
    assert_eq!(code(&balance_at(json!({ "blockHash": dropped, "blockNumber": "0x1" }))), -32602);
    let beyond = balance_at(json!("0x29"));
    assert_eq!(beyond["error"], json!({ "code": -32000, "message": "header not found" }));
}

#[test]
fn calls_depend_on_block_and_object_only() {
    let world = world();
    let call = |object: Value, block: &str| ask(&world, "eth_call", json!([object, block]));
    let object = json!({ "to": "0xAB", "data": "0x01" });
    assert_eq!(call(object.clone(), "0x28"), call(object.clone(), "latest"));
    assert_ne!(call(object.clone(), "0x28"), call(object.clone(), "0x27"));
    assert_ne!(call(object, "0x28"), call(json!({ "to": "0xAB", "data": "0x02" }), "0x28"));
    let view = View::honest(HEAD);
    let raw = |text: &str| respond(&world, &view, "eth_call", Some(text.as_bytes()));
    let same = raw("[ { \"data\" : \"0x01\", \"to\" : \"0xab\" } , \"0x28\"]");
    assert_eq!(same, raw("[{\"to\":\"0xAB\",\"data\":\"0x01\"},\"0x28\"]"));
    let reverted = call(json!({ "data": "0xdeadbeef" }), "latest");
    assert_eq!(code(&reverted), 3);
    assert!(reverted["error"]["data"].is_string());
    let gas = ask(&world, "eth_estimateGas", json!([{ "to": "0x01" }]));
    assert!(gas.is_string());
}

#[test]
fn logs_filter_as_geth() {
    let world = world();
    let logs = |filter: Value| ask(&world, "eth_getLogs", json!([filter]));
    let range = json!({ "fromBlock": "0x1c", "toBlock": "0x1f" });
    let all_logs = logs(range.clone());
    let all_logs = all_logs.as_array().unwrap();
    let mut expected = Vec::new();
    for number in 0x1c..=0x1f_u64 {
        let receipts = ask(&world, "eth_getBlockReceipts", json!([format!("{number:#x}")]));
        for receipt in receipts.as_array().unwrap() {
            expected.extend(receipt["logs"].as_array().unwrap().clone());
        }
    }
    assert_eq!(all_logs, &expected);
    let log = &all_logs[all_logs.len() / 2];
    let logs_with = |name: &str, value: Value| {
        let mut filter = range.clone();
        filter[name] = value;
        logs(filter).as_array().unwrap().clone()
    };
    let of_address: Vec<_> = all_logs
        .iter()
        .filter(|candidate| candidate["address"] == log["address"])
        .cloned()
        .collect();
    assert_eq!(logs_with("address", log["address"].clone()), of_address);
    assert_eq!(logs_with("address", json!([log["address"]])), of_address);
    let of_topic: Vec<_> = all_logs
        .iter()
        .filter(|candidate| candidate["topics"][1] == log["topics"][1])
        .cloned()
        .collect();
    assert_eq!(logs_with("topics", json!([null, log["topics"][1]])), of_topic);
    assert_eq!(logs_with("topics", json!([[], [log["topics"][1]]])), of_topic);
    assert!(
        logs_with("topics", json!([null, null, null, null])).is_empty(),
        "logs have three topics"
    );
    let hash = world.hash_at(HEAD, 0x1c).unwrap().to_string();
    let of_hash = logs(json!({ "blockHash": hash }));
    assert_eq!(of_hash, logs(json!({ "fromBlock": "0x1c", "toBlock": "0x1c" })));
}

#[test]
fn logs_are_refused_as_geth_does() {
    let world = world();
    let refusal = |filter: Value| ask(&world, "eth_getLogs", json!([filter]))["error"].clone();
    let hash = world.hash_at(HEAD, 5).unwrap().to_string();
    assert_eq!(
        refusal(json!({ "fromBlock": "0x5", "toBlock": "0x4" })),
        json!({ "code": -32602, "message": "invalid block range params" })
    );
    assert_eq!(
        refusal(json!({ "fromBlock": "0x5", "toBlock": "0x29" })),
        json!({ "code": -32602, "message": "block range extends beyond current head block" })
    );
    assert_eq!(
        refusal(json!({ "blockHash": hash, "toBlock": "0x29" })),
        json!({ "code": -32602, "message": "can't specify fromBlock/toBlock with blockHash" })
    );
    let unknown = alloy_primitives::B256::repeat_byte(1).to_string();
    assert_eq!(
        refusal(json!({ "blockHash": unknown })),
        json!({ "code": -32000, "message": "unknown block" })
    );
    assert_eq!(refusal(json!({ "fromBlock": "pending" }))["code"], -32602);
    assert_eq!(refusal(json!({ "topics": [[], [], [], [], []] }))["code"], -32602);
}

#[test]
fn fees_follow_from_blocks() {
    let world = world();
    let history = ask(&world, "eth_feeHistory", json!(["0x4", "0x1e", [25, 75]]));
    assert_eq!(history["oldestBlock"], "0x1b");
    assert_eq!(history["baseFeePerGas"].as_array().unwrap().len(), 5);
    assert_eq!(history["reward"].as_array().unwrap().len(), 4);
    let next = ask(&world, "eth_getBlockByNumber", json!(["0x1f", false]));
    assert_eq!(history["baseFeePerGas"][4], next["baseFeePerGas"]);
    assert_eq!(code(&ask(&world, "eth_feeHistory", json!(["0x4", "0x29"]))), -32000);
    assert!(ask(&world, "eth_gasPrice", json!([])).is_string());
}

#[test]
fn pruned_nodes_refuse_in_their_own_words() {
    let world = world();
    let account = world.addresses().accounts[0].to_string();
    let retention =
        Retention { state_blocks: Some(5), history_blocks: Some(20), ..Retention::default() };
    let view = View { retention, ..View::honest(HEAD) };
    // The node has the state of blocks from 35 (0x23) on, and the other data from 20 (0x14) on.
    let pruned = ask_as(&world, &view, "eth_getBalance", &json!([account, "0x10"]));
    assert!(pruned["error"]["message"].as_str().unwrap().starts_with("missing trie node"));
    assert!(ask_as(&world, &view, "eth_getBalance", &json!([account, "0x23"])).is_string());
    let history = ask_as(&world, &view, "eth_getBlockByNumber", &json!(["0x5", false]));
    assert_eq!(code(&history), 4444);
    assert_eq!(
        ask_as(&world, &view, "eth_getBlockByNumber", &json!(["0x0", false]))["number"],
        "0x0"
    );
}

#[test]
fn the_announced_header_of_a_lying_node_is_on_no_branch() {
    let world = world();
    let view = View { ahead_blocks: 100, ..View::honest(HEAD) };
    // 0x8c is 140, the real head 40 plus 100.
    assert_eq!(ask_as(&world, &view, "eth_blockNumber", &json!([])), "0x8c");
    let block = ask_as(&world, &view, "eth_getBlockByNumber", &json!(["latest", false]));
    assert_eq!(block["number"], "0x8c");
    let hash = block["hash"].as_str().unwrap().parse().unwrap();
    assert!(world.block_by_hash(200, &hash).is_none());
}

#[test]
fn harmony_prints_decimal_numbers_above_2_to_the_53() {
    let world = world();
    let address = crate::bech32::encode_address(world.addresses().accounts[2]);
    let view = View::honest(HEAD);
    let raw = |method: &str, params: Value| match respond(
        &world,
        &view,
        method,
        Some(params.to_string().as_bytes()),
    ) {
        Reply::Result(result) => String::from_utf8(result.to_vec()).unwrap(),
        Reply::Error(error) => panic!("{method}: {error:?}"),
    };
    assert_eq!(raw("hmyv2_blockNumber", json!([])), "40");
    assert_eq!(raw("hmy_blockNumber", json!([])), "\"0x28\"");
    let balance: u128 = raw("hmyv2_getBalance", json!([address])).parse().unwrap();
    assert!(balance > 1 << 53);
    assert_eq!(raw("hmy_getBalance", json!([address])), format!("\"{balance:#x}\""));
    assert_eq!(raw("hmyv2_getBalanceByBlockNumber", json!([address, 40])), balance.to_string());
    assert_eq!(raw("hmyv2_getBlockSigners", json!([40])), "[]", "newest block");
    assert_ne!(raw("hmyv2_getBlockSigners", json!([39])), "[]");
    let signers = raw("hmyv2_getBlockSigners", json!([12]));
    for form in [json!("12"), json!("0xc")] {
        assert_eq!(raw("hmyv2_getBlockSigners", json!([form])), signers);
    }
    for (method, params) in [
        ("getBlockByNumber", json!([40, { "fullTx": true, "withSigners": true }])),
        ("getBlocks", json!([38, 60, { "fullTx": false }])),
        ("latestHeader", json!([])),
        ("getHeaderByNumber", json!([12])),
        ("getLatestChainHeaders", json!([])),
        ("getValidators", json!([0])),
        ("getValidatorKeys", json!([0])),
        ("getBlockSignersKeys", json!([12])),
        ("getNodeMetadata", json!([])),
        ("getCurrentUtilityMetrics", json!([])),
        ("getTransactionsCount", json!([address, "ALL"])),
        ("getStakingTransactionsCount", json!([address, "ALL"])),
        ("getStakingTransactionsHistory", json!([{ "address": address }])),
        ("getCode", json!([address, 40])),
        ("getBlockTransactionCountByNumber", json!(["latest"])),
        ("getTransactionByBlockNumberAndIndex", json!([40, 0])),
    ] {
        let text = raw(&format!("hmyv2_{method}"), params);
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{method}: {error}"));
    }
    let blocks: Vec<Value> =
        serde_json::from_str(&raw("hmyv2_getBlocks", json!([38, 60, {}]))).unwrap();
    assert_eq!(blocks.len(), 3, "stops silently at the head");
    let hash = &blocks[0]["transactions"][0];
    let receipt: Value =
        serde_json::from_str(&raw("hmyv2_getTransactionReceipt", json!([hash]))).unwrap();
    assert_eq!(receipt["blockNumber"], 38);
    let above = ask(&world, "hmyv2_getBlockSigners", json!([41]));
    assert_eq!(code(&above), -32000);
}

#[test]
fn a_sent_transaction_is_pooled_once() {
    let world = world();
    // The transaction is from a block of another chain, so this chain does not contain it yet.
    let other_world = World::starting(
        WorldOptions { seed: 9, height_start: 1, ..WorldOptions::default() },
        Instant::now(),
    );
    let block = other_world.unwrap().block_at(1, 1).unwrap();
    let raw = alloy_primitives::hex::encode_prefixed(block.transactions[0].signed.encoded());
    let hash = ask(&world, "eth_sendRawTransaction", json!([raw]));
    assert_eq!(hash, block.transactions[0].hash().to_string());
    let second_reply = ask(&world, "eth_sendRawTransaction", json!([raw]));
    assert_eq!(second_reply["error"]["message"], "already known");
    let pending = ask(&world, "eth_getTransactionByHash", json!([hash]));
    assert_eq!(pending["blockHash"], Value::Null);
    assert_eq!(pending["hash"], hash);
    assert!(ask(&world, "eth_sendRawTransaction", json!(["0x00"]))["error"].is_object());
}

#[test]
fn bad_calls_are_refused_as_geth_does() {
    let world = world();
    let missing = ask(&world, "eth_getBalance", json!([]));
    assert_eq!(
        missing["error"],
        json!({ "code": -32602, "message": "missing value for required argument 0" })
    );
    assert_eq!(code(&ask(&world, "eth_getBalance", json!(["0x12", "latest"]))), -32602);
    assert_eq!(code(&ask(&world, "eth_getBlockByNumber", json!(["latesst", false]))), -32602);
    assert_eq!(code(&ask(&world, "eth_getBlockByNumber", json!([5, false]))), -32602);
    assert_eq!(code(&ask(&world, "eth_getBlockByNumber", json!(["5", false]))), -32602);
    assert_eq!(code(&ask(&world, "eth_getBlockByNumber", json!({ "a": 1 }))), -32602);
    let unknown = ask(&world, "eth_nothing", json!([]));
    assert_eq!(
        unknown["error"],
        json!({ "code": -32601, "message": "the method eth_nothing does not exist/is not available" })
    );
    let empty = ask(&world, "web3_sha3", json!(["0x"]));
    assert_eq!(empty, "0xc5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470");
}
