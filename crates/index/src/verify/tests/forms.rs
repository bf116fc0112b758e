//! Goal: errors name the member and the right value. Malformed responses are rejected, also those
//! that `mutation` does not produce: duplicate or similar names, values under other names, unknown
//! types. Method: a synthetic block, changed by hand.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::test_block::TestBlock;
use super::{raw, response};
use crate::verify::{
    Block, Error, Level, verify_block, verify_header, verify_logs, verify_receipts,
};

/// The errors of several responses, one per line.
#[derive(Default)]
struct Errors(String);

impl Errors {
    fn push<T: std::fmt::Debug>(&mut self, result: Result<T, Error>) {
        self.0.push_str(&result.unwrap_err().to_string());
        self.0.push('\n');
    }

    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.0);
    }
}

/// Returns the synthetic block with another value of the member at this JSON pointer.
fn block_with(pointer: &str, value: Value) -> Vec<u8> {
    let mut block = TestBlock::new().block;
    *block.pointer_mut(pointer).unwrap() = value;
    raw(&block)
}

/// Verifies a block at the level `full`.
fn full(raw: &[u8]) -> Result<Block, Error> {
    verify_block(raw, Level::Full)
}

fn sample() -> (Block, TestBlock) {
    let sample = TestBlock::new();
    (full(&raw(&sample.block)).unwrap(), sample)
}

/// Verifies the receipts with another value of the member at this JSON pointer.
fn verify_receipts_with(pointer: &str, value: Value) -> Result<(), Error> {
    let (block, mut sample) = sample();
    *sample.receipts.pointer_mut(pointer).unwrap() = value;
    verify_receipts(&block, &raw(&sample.receipts), Level::Full)
}

#[test]
fn errors_name_the_found_and_the_right_value() {
    let mut errors = Errors::default();
    errors.push(full(&block_with("/number", json!("0x1"))));
    errors.push(full(&block_with("/transactions/3/value", json!("0x1"))));
    errors.push(full(&block_with("/transactions/3/transactionIndex", json!("0x4"))));
    errors.push(full(&block_with("/transactions/4/gasPrice", json!("0x4"))));
    errors.push(full(&block_with("/withdrawals/1/amount", json!("0x4"))));
    errors.push(full(&block_with("/size", json!("0x4"))));
    errors.push(full(&block_with("/uncles", json!([format!("0x{}", "1".repeat(64))]))));
    errors.push(full(&block_with("/withdrawals", json!(null))));
    errors.push(verify_receipts_with("/3/gasUsed", json!("0x1")));
    errors.push(verify_receipts_with("/3/logs/2/data", json!("0x")));
    errors.push(verify_receipts_with("/3/logs/1/topics", json!([])));
    errors.push(verify_receipts_with("/6/blobGasPrice", json!("0x8")));
    errors.push(verify_receipts_with("/7/blobGasPrice", json!("0x8")));
    errors.push(verify_receipts_with("/5/contractAddress", json!(format!("0x{}", "1".repeat(40)))));
    errors.push(verify_receipts_with("/4/cumulativeGasUsed", json!("0x1")));
    errors.check(expect![[r#"
        hash: found 0x6ab1a108bcfc2e33b0f059362391aa7b2646cff7a40709a96cb4364016111065, expected 0xe221c29b0fdbed945f4bf36307defb84bc9892effbecd60433148faf9762046a by the Keccak-256 of parentHash, sha3Uncles, miner, stateRoot, transactionsRoot, receiptsRoot, logsBloom, difficulty, number, gasLimit, gasUsed, timestamp, extraData, mixHash, nonce and those of baseFeePerGas, withdrawalsRoot, blobGasUsed, excessBlobGas, parentBeaconBlockRoot, requestsHash, blockAccessListHash, slotNumber that are present
        transactions[3].hash: found 0xad446f7107ac95fe05c77a1bdba29d42790c4202f0fcd6bb0d94e327fe2ddd77, expected 0x78aa05d4b2a61b1a38c8a072cfff5f51f7c8c8434e9928533970086782fdcd08 by the Keccak-256 of the transaction's encoding
        transactions[3].transactionIndex: found 0x4, expected 0x3 by its index in the block
        transactions[4].gasPrice: found 0x4, expected 0x3b9aca08 by the base fee with maxFeePerGas and its tip
        withdrawalsRoot: found 0x82559bb23db1cfa583b113f5cc624debb60dd2dcd07db45797bf63567bad8f4c, expected 0x139edbdd4e6ec4623959ab1bf0005dc303d4985067a66ea83f4350ad8515c1ad by the Merkle root of withdrawals
        size: found 0x4, expected 0xfcc by the length of the block in RLP
        uncles: found ["0x1111111111111111111111111111111111111111111111111111111111111111"], expected none by sha3Uncles
        withdrawals: missing, expected an array, because withdrawalsRoot is present
        receipts[3].gasUsed: found 0x1, expected 0x5208 by cumulativeGasUsed and that of the receipt before
        receiptsRoot: found 0xee6af14f86427d74bd923ebb907403cdc9d226d54015d04aa81b607a46d145e4, expected 0x75150e21095427b2f4fac3de211225a065bb3327d336787707bf60b0fbd056bc by the Merkle root of receipts (type, status or root, cumulativeGasUsed, logs)
        receipts[3].logsBloom: found 0x000020000000000000100040000000000000000000180000000000000000000000000000000000…, expected 0x000000000000000000000040000000000000000000180000000000000000000000000000000000… by the receipt's logs
        receipts[6].blobGasPrice: found 0x8, expected at most 0x7 by maxFeePerBlobGas
        receipts[7].blobGasPrice: found 0x8, expected 0x7 by the first receipt with blobs
        receipts[5].contractAddress: found 0x1111111111111111111111111111111111111111, expected 0xada08b89ed4fc3a545f4bf9013bfe90b355e8e09 by the sender and its nonce
        receipts[4].cumulativeGasUsed: found 0x1, expected at least 0x14820 by the receipt before
    "#]]);
}

#[test]
fn errors_name_the_allowed_form() {
    let mut errors = Errors::default();
    errors.push(full(&block_with("/transactions/3/value", json!("0x01"))));
    errors.push(full(&block_with("/transactions/3/value", json!("12"))));
    errors.push(full(&block_with("/transactions/3/nonce", json!("0x10000000000000000"))));
    errors.push(full(&block_with("/transactions/3/nonce", json!("0x"))));
    errors.push(full(&block_with("/transactions/3/nonce", json!("0xg"))));
    errors.push(full(&block_with("/transactions/3/input", json!("0x0"))));
    errors.push(full(&block_with("/transactions/3/input", json!("0x0x00"))));
    errors.push(full(&block_with("/transactions/3/input", json!("0xzz"))));
    errors.push(full(&block_with("/transactions/3/v", json!("0x2"))));
    errors.push(full(&block_with("/transactions/1/v", json!("0x22"))));
    errors.push(full(&block_with("/transactions/6/to", json!(null))));
    errors.push(full(&block_with("/transactions/2", json!("0x12"))));
    errors.push(full(&block_with("/transactions", json!(null))));
    errors.push(full(&block_with("/extraData", json!("x".repeat(1_000)))));
    errors.push(full(b""));
    errors.push(full(b"null"));
    errors.push(full(b"{\"hash\":"));
    let topic = json!(format!("0x{}", "1".repeat(64)));
    errors
        .push(verify_receipts_with("/3/logs/2/topics", json!([topic, topic, topic, topic, topic])));
    errors.push(verify_receipts_with("/3/logs/2/removed", json!(true)));
    errors.push(verify_receipts_with("/3/status", json!("0x2")));
    errors.check(expect![[r#"
        transactions[3].value: found "0x01", expected 0x and 1 to 64 hexadecimal digits without leading zeros
        transactions[3].value: found "12", expected 0x and 1 to 64 hexadecimal digits without leading zeros
        transactions[3].nonce: found "0x10000000000000000", expected 0x and 1 to 16 hexadecimal digits without leading zeros
        transactions[3].nonce: found "0x", expected 0x and 1 to 16 hexadecimal digits without leading zeros
        transactions[3].nonce: found "0xg", expected 0x and 1 to 16 hexadecimal digits without leading zeros
        transactions[3].input: found "0x0", expected 0x and an even number of hexadecimal digits
        transactions[3].input: found "0x0x00", expected 0x and an even number of hexadecimal digits
        transactions[3].input: found "0xzz", expected 0x and an even number of hexadecimal digits
        transactions[3].v: found 0x2, expected 0x0 by yParity
        transactions[1].v: found "0x22", expected 0x1b, 0x1c, or from 0x23 on
        transactions[6].to: missing, expected 0x and 40 hexadecimal digits
        transactions[2]: found "0x12", expected an object
        transactions: missing, expected an array of transactions
        extraData: found "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…, expected 0x and an even number of hexadecimal digits
        the response: found nothing, expected JSON that does not end here
        the response: missing, expected an object
        the response: found nothing, expected JSON that does not end here
        receipts[3].logs[2].topics[4]: found "0x1111111111111111111111111111111111111111111111111111111111111111", expected at most four topics
        receipts[3].logs[2].removed: found true, expected false
        receipts[3].status: found "0x2", expected 0x0 or 0x1
    "#]]);
}

/// A member of another transaction type cannot be verified.
#[test]
fn members_of_other_types_are_rejected() {
    let mut errors = Errors::default();
    let verify_with = |index: usize, name: &str, value: Value| {
        let mut block = TestBlock::new().block;
        block["transactions"][index][name] = value;
        full(&raw(&block))
    };
    errors.push(verify_with(0, "maxFeePerGas", json!("0x1")));
    errors.push(verify_with(3, "blobVersionedHashes", json!(["0x1"])));
    errors.push(verify_with(0, "yParity", json!("0x1")));
    errors.push(verify_with(0, "chainId", json!("0x1")));
    errors.push(verify_with(0, "data", json!("0x1")));
    verify_with(0, "data", json!("0x010203")).unwrap();
    verify_with(0, "maxFeePerGas", json!(null)).unwrap();
    verify_with(0, "accessList", json!([])).unwrap();
    errors.check(expect![[r#"
        transactions[0].maxFeePerGas: found "0x1", expected none in a transaction of this type
        transactions[3].blobVersionedHashes: found ["0x1"], expected none in a transaction of this type
        transactions[0].yParity: found 0x1, expected 0x0 by v
        transactions[0].chainId: found 0x1, expected 0x0 by v
        transactions[0].data: found 0x1, expected "0x010203" by input
    "#]]);
}

#[test]
fn ambiguous_names_are_rejected() {
    let mut errors = Errors::default();
    let text = String::from_utf8(raw(&TestBlock::new().block)).unwrap();
    let verify_with = |members: &str| {
        let text = format!("{{{members},{}", &text[1..]);
        full(text.as_bytes())
    };
    errors.push(verify_with(r#""hash":"0x1""#));
    errors.push(verify_with(r#""h\u0061sh":"0x1""#));
    errors.push(verify_with(r#""Hash":"0x1""#));
    errors.push(verify_with(r#""author":"0x1111111111111111111111111111111111111111""#));
    errors.push(verify_with("\"ha\u{17f}h\":\"0x1\""));
    verify_with(r#""milliTimestamp":"0x1","l2":{"hash":["}",{"a\"":"\\"}]}"#).unwrap();
    errors.check(expect![[r#"
        hash: occurs twice in one object
        hash: occurs twice in one object
        Hash: found Hash, expected a name that readers do not take for another
        author: found 0x1111111111111111111111111111111111111111, expected 0x2222222222222222222222222222222222222222 by miner
        haſh: found haſh, expected a name that readers do not take for another
    "#]]);
}

/// The header is a list without names, so a value moved to another name may keep the hash.
#[test]
fn values_of_another_fork_are_rejected() {
    let mut errors = Errors::default();
    let mut recorded = response("eth_getBlockByNumber/get-safe.io");
    let members = recorded.as_object_mut().unwrap();
    let value = members.remove("requestsHash").unwrap();
    members.insert("blockAccessListHash".to_owned(), value);
    errors.push(verify_header(&raw(&recorded), Level::Headers));
    errors.check(expect![[r#"
        requestsHash: missing, expected a value, because a later fork's member is present
    "#]]);
}

/// An unknown type makes a response unverifiable, not false.
#[test]
fn unknown_types_are_unverifiable() {
    let error = full(&block_with("/transactions/2/type", json!("0x7e"))).unwrap_err();
    assert!(error.is_unverifiable());
    expect![[r#"transactions[2].type: cannot be verified: type "0x7e", known are 0x0 to 0x4"#]]
        .assert_eq(&error.to_string());
    let error = full(&block_with("/transactions/2/nonce", json!("0x7e"))).unwrap_err();
    assert!(!error.is_unverifiable());
}

#[test]
fn missing_and_extra_receipts_are_rejected() {
    let mut errors = Errors::default();
    let (block, sample) = sample();
    let all_receipts = sample.receipts.as_array().unwrap();
    let mut extra = all_receipts.clone();
    extra.push(all_receipts[8].clone());
    let mut swapped = all_receipts.clone();
    swapped.swap(0, 1);
    let (missing, extra, swapped): (Value, Value, Value) =
        (all_receipts[..8].into(), extra.into(), swapped.into());
    errors.push(verify_receipts(&block, &raw(&missing), Level::Off));
    errors.push(verify_receipts(&block, &raw(&missing), Level::Full));
    errors.push(verify_receipts(&block, &raw(&extra), Level::Off));
    errors.push(verify_receipts(&block, &raw(&extra), Level::Full));
    errors.push(verify_receipts(&block, &raw(&swapped), Level::Off));
    errors.push(verify_receipts(&block, &raw(&swapped), Level::Full));
    errors.push(verify_receipts(&block, b"{}", Level::Full));
    errors.check(expect![[r#"
        receipts: found 8, expected 9 by the number of transactions
        receipts: found 8, expected 9 by the number of transactions
        receipts[9]: found a receipt, expected only 9 by the number of transactions
        receipts[9]: found a receipt, expected only 9 by the number of transactions
        receipts[0].transactionHash: found 0xe674b497318f9658124da5a4715fe394ae3e3707bfc587e35e6342654cc64a30, expected 0xe0f2000293f48c4ab171254ccca99caa2fb1ccfc7d1862f3e7d59b43bb2e2228 by the transaction at this index
        receipts[0].logs[0].transactionHash: found 0xe674b497318f9658124da5a4715fe394ae3e3707bfc587e35e6342654cc64a30, expected 0xe0f2000293f48c4ab171254ccca99caa2fb1ccfc7d1862f3e7d59b43bb2e2228 by the transaction at this index
        receipts: found {}, expected an array
    "#]]);
}

/// A header whose bloom lacks a bit hides logs from searches by blooms.
#[test]
fn a_header_with_another_bloom_is_rejected() {
    let mut errors = Errors::default();
    let (mut block, sample) = sample();
    for bit in [0, 255] {
        let bloom = &mut block.header.as_mut().unwrap().logs_bloom;
        let original_bloom = *bloom;
        bloom[bit] ^= 1;
        errors.push(verify_receipts(&block, &raw(&sample.receipts), Level::Full));
        errors.push(verify_logs(&block, &raw(&sample.logs()), Level::Headers));
        block.header.as_mut().unwrap().logs_bloom = original_bloom;
    }
    verify_receipts(&block, &raw(&sample.receipts), Level::Full).unwrap();
    errors.check(expect![[r#"
        logsBloom: found 1 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
        logsBloom: found 1 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
        logsBloom: found 1 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
        logsBloom: found 1 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
    "#]]);
}

#[test]
fn missing_logs_are_rejected() {
    let mut errors = Errors::default();
    let (block, sample) = sample();
    let all_logs = sample.logs().as_array().unwrap().clone();
    // The last log has no topics, and its address emits others, so no bloom reveals that it is
    // missing.
    let some_logs: Value = all_logs[..all_logs.len() - 1].into();
    verify_logs(&block, &raw(&some_logs), Level::Headers).unwrap();
    let some_logs: Value = all_logs[..all_logs.len() - 2].into();
    errors.push(verify_logs(&block, &raw(&some_logs), Level::Headers));
    errors.push(verify_logs(&block, &raw(&all_logs[1..].into()), Level::Headers));
    errors.push(verify_logs(&block, b"[]", Level::Headers));
    verify_logs(&block, b"[]", Level::Off).unwrap();
    let mut swapped = all_logs.clone();
    swapped.swap(0, 5);
    errors.push(verify_logs(&block, &raw(&swapped.into()), Level::Headers));
    let mut out_of_range = sample.logs();
    out_of_range[3]["transactionIndex"] = json!("0xffffffffffffffff");
    errors.push(verify_logs(&block, &raw(&out_of_range), Level::Headers));
    errors.check(expect![[r#"
        logsBloom: found 10 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
        logs[0].logIndex: found 0x1, expected 0x0 by counting the block's logs
        logsBloom: found 222 bits that no log sets and 0 missing bits, expected none of either by the bloom of all logs
        logs[0].logIndex: found 0x5, expected 0x0 by counting the block's logs
        logs[3].transactionIndex: found 0xffffffffffffffff, expected less than 0x9 by the number of transactions
    "#]]);
}

/// Receipts cannot be verified by a header that was not verified.
#[test]
fn a_block_read_at_level_off_verifies_nothing() {
    let mut errors = Errors::default();
    let sample = TestBlock::new();
    let block = verify_block(&raw(&sample.block), Level::Off).unwrap();
    verify_receipts(&block, &raw(&sample.receipts), Level::Off).unwrap();
    errors.push(verify_receipts(&block, &raw(&sample.receipts), Level::Full));
    errors.check(expect![[r#"
        receiptsRoot: missing, expected a block whose header was verified before
    "#]]);
}
