//! Converts blocks of `alloy_consensus` to the JSON of a node: blocks of a recorded chain, and
//! synthetic blocks with a transaction of every type. The library `alloy_consensus` computes the
//! roots and hashes, independently of the code under test.

use std::fs;
use std::sync::OnceLock;

use alloy_consensus::proofs::{
    calculate_receipt_root, calculate_transaction_root, calculate_withdrawals_root,
};
use alloy_consensus::{
    BlockBody, EthereumTxEnvelope, EthereumTypedTransaction, Header, Receipt, ReceiptEnvelope,
    ReceiptWithBloom, SignableTransaction, Transaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702,
    TxLegacy, Typed2718,
};
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_eips::eip4895::{Withdrawal, Withdrawals};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Bloom, Bytes, Log, LogData, Signature, TxKind, U256};
use alloy_rlp::{Decodable, Encodable};
use serde_json::{Value, json};

use super::folder;

type Tx = EthereumTxEnvelope<TxEip4844>;
type Block = alloy_consensus::Block<Tx>;

fn hex<T: std::fmt::LowerHex>(value: T) -> Value {
    Value::from(format!("{value:#x}"))
}

/// Sets a member, if there is a value.
fn set<T: std::fmt::LowerHex>(members: &mut Value, name: &str, value: Option<T>) {
    if let Some(value) = value {
        members[name] = hex(value);
    }
}

/// Returns blocks 1 to 54 of the chain in `testdata/execution-apis`.
pub(super) fn chain() -> Vec<Value> {
    let bytes = fs::read(folder("execution-apis/chain.rlp")).unwrap();
    let (mut rest, mut blocks) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        blocks.push(block_json(&Block::decode(&mut rest).unwrap()));
    }
    blocks
}

/// Returns the JSON of a block.
fn block_json(block: &Block) -> Value {
    let header = &block.header;
    let mut json = json!({
        "hash": hex(header.hash_slow()),
        "parentHash": hex(header.parent_hash),
        "sha3Uncles": hex(header.ommers_hash),
        "miner": hex(header.beneficiary),
        "stateRoot": hex(header.state_root),
        "transactionsRoot": hex(header.transactions_root),
        "receiptsRoot": hex(header.receipts_root),
        "logsBloom": hex(header.logs_bloom),
        "difficulty": hex(header.difficulty),
        "number": hex(header.number),
        "gasLimit": hex(header.gas_limit),
        "gasUsed": hex(header.gas_used),
        "timestamp": hex(header.timestamp),
        "extraData": hex(&header.extra_data),
        "mixHash": hex(header.mix_hash),
        "nonce": hex(header.nonce),
        "size": hex(block.length()),
        "uncles": block.body.ommers.iter().map(|ommer| hex(ommer.hash_slow())).collect::<Value>(),
    });
    set(&mut json, "baseFeePerGas", header.base_fee_per_gas);
    set(&mut json, "withdrawalsRoot", header.withdrawals_root);
    set(&mut json, "blobGasUsed", header.blob_gas_used);
    set(&mut json, "excessBlobGas", header.excess_blob_gas);
    set(&mut json, "parentBeaconBlockRoot", header.parent_beacon_block_root);
    set(&mut json, "requestsHash", header.requests_hash);
    set(&mut json, "blockAccessListHash", header.block_access_list_hash);
    set(&mut json, "slotNumber", header.slot_number);
    if let Some(withdrawals) = &block.body.withdrawals {
        let withdrawal_json = |withdrawal: &Withdrawal| {
            json!({
                "index": hex(withdrawal.index),
                "validatorIndex": hex(withdrawal.validator_index),
                "address": hex(withdrawal.address),
                "amount": hex(withdrawal.amount),
            })
        };
        json["withdrawals"] = withdrawals.iter().map(withdrawal_json).collect();
    }
    let transactions = block.body.transactions.iter().enumerate();
    json["transactions"] =
        transactions.map(|(index, tx)| transaction_json(tx, index, header)).collect();
    json
}

fn sender(tx: &Tx) -> Address {
    tx.signature().recover_address_from_prehash(&tx.signature_hash()).unwrap()
}

fn transaction_json(tx: &Tx, index: usize, header: &Header) -> Value {
    let signature = tx.signature();
    let parity = u64::from(signature.v());
    let v = match tx {
        Tx::Legacy(tx) => tx.tx().chain_id.map_or(27, |chain| 35 + 2 * chain) + parity,
        _ => parity,
    };
    let mut json = json!({
        "hash": hex(tx.tx_hash()),
        "type": hex(tx.ty()),
        "nonce": hex(tx.nonce()),
        "gasPrice": hex(tx.effective_gas_price(header.base_fee_per_gas)),
        "gas": hex(tx.gas_limit()),
        "to": tx.to().map(hex),
        "value": hex(tx.value()),
        "input": hex(tx.input()),
        "v": hex(v),
        "r": hex(signature.r()),
        "s": hex(signature.s()),
        "from": hex(sender(tx)),
        "blockHash": hex(header.hash_slow()),
        "blockNumber": hex(header.number),
        "blockTimestamp": hex(header.timestamp),
        "transactionIndex": hex(index),
    });
    set(&mut json, "chainId", tx.chain_id());
    if tx.ty() == 0 {
        return json;
    }
    json["yParity"] = hex(parity);
    let item_json = |item: &AccessListItem| {
        let keys: Value = item.storage_keys.iter().map(hex).collect();
        json!({ "address": hex(item.address), "storageKeys": keys })
    };
    json["accessList"] = tx.access_list().unwrap().iter().map(item_json).collect();
    if tx.ty() > 1 {
        json["maxFeePerGas"] = hex(tx.max_fee_per_gas());
    }
    set(&mut json, "maxPriorityFeePerGas", tx.max_priority_fee_per_gas());
    set(&mut json, "maxFeePerBlobGas", tx.max_fee_per_blob_gas());
    if let Some(hashes) = tx.blob_versioned_hashes() {
        json["blobVersionedHashes"] = hashes.iter().map(hex).collect();
    }
    if let Some(list) = tx.authorization_list() {
        let authorization_json = |authorization: &SignedAuthorization| {
            json!({
                "chainId": hex(authorization.chain_id),
                "address": hex(authorization.address),
                "nonce": hex(authorization.nonce),
                "yParity": hex(authorization.y_parity()),
                "authority": hex(Address::ZERO),
                "r": hex(authorization.r()),
                "s": hex(authorization.s()),
            })
        };
        json["authorizationList"] = list.iter().map(authorization_json).collect();
    }
    json
}

/// The JSON of a block and its receipts.
#[derive(Clone)]
pub(crate) struct TestBlock {
    pub(crate) block: Value,
    pub(crate) receipts: Value,
}

impl TestBlock {
    /// Returns a block with a transaction of every type.
    pub(super) fn new() -> Self {
        static BLOCK: OnceLock<TestBlock> = OnceLock::new();
        BLOCK.get_or_init(|| Self::with_transactions(transactions())).clone()
    }

    /// Returns an array of all logs of the block.
    pub(crate) fn logs(&self) -> Value {
        let receipts = self.receipts.as_array().unwrap();
        receipts.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap().clone()).collect()
    }

    /// Returns a chain of blocks from this number on, each with a transaction of every type.
    pub(crate) fn chain(first: u64, count: u64) -> Vec<Self> {
        let mut parent = B256::repeat_byte(0x11);
        let mut next = |number| {
            let sample = Self::with_number(number, parent, transactions());
            parent = sample.block["hash"].as_str().unwrap().parse().unwrap();
            sample
        };
        (first..first + count).map(&mut next).collect()
    }

    fn with_transactions(transactions: Vec<Tx>) -> Self {
        Self::with_number(30_000_000, B256::repeat_byte(0x11), transactions)
    }

    fn with_number(number: u64, parent: B256, transactions: Vec<Tx>) -> Self {
        let receipts: Vec<ReceiptEnvelope> =
            transactions.iter().enumerate().map(|(index, tx)| receipt(tx.ty(), index)).collect();
        let withdrawals: Vec<Withdrawal> = (0..3)
            .map(|index| Withdrawal {
                index,
                validator_index: 1_000 + index,
                address: Address::repeat_byte(0xaa),
                amount: index * 1_000_000,
            })
            .collect();
        let header = Header {
            parent_hash: parent,
            beneficiary: Address::repeat_byte(0x22),
            state_root: B256::repeat_byte(0x33),
            transactions_root: calculate_transaction_root(&transactions),
            receipts_root: calculate_receipt_root(&receipts),
            logs_bloom: receipts
                .iter()
                .fold(Bloom::ZERO, |bloom, receipt| bloom | *receipt.logs_bloom()),
            number,
            gas_limit: 60_000_000,
            gas_used: receipts.last().unwrap().cumulative_gas_used(),
            timestamp: 1_800_000_000,
            extra_data: Bytes::from_static(b"made"),
            mix_hash: B256::repeat_byte(0x44),
            base_fee_per_gas: Some(1_000_000_007),
            withdrawals_root: Some(calculate_withdrawals_root(&withdrawals)),
            blob_gas_used: Some(3 * 131_072),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(B256::repeat_byte(0x55)),
            requests_hash: Some(B256::repeat_byte(0x66)),
            block_access_list_hash: Some(B256::repeat_byte(0x77)),
            slot_number: Some(12_345_678),
            ..Header::default()
        };
        let body = BlockBody {
            transactions,
            ommers: Vec::new(),
            withdrawals: Some(Withdrawals::new(withdrawals)),
        };
        let block = Block { header, body };
        let receipts = receipts_json(&block, &receipts);
        Self { block: block_json(&block), receipts }
    }
}

fn receipts_json(block: &Block, receipts: &[ReceiptEnvelope]) -> Value {
    let header = &block.header;
    let (mut gas_before, mut log_count) = (0, 0);
    let mut receipt_json = |(index, (receipt, tx)): (usize, (&ReceiptEnvelope, &Tx))| {
        let from = sender(tx);
        let position = json!({
            "blockHash": hex(header.hash_slow()),
            "blockNumber": hex(header.number),
            "blockTimestamp": hex(header.timestamp),
            "transactionHash": hex(tx.tx_hash()),
            "transactionIndex": hex(index),
        });
        let mut log_json = |log: &Log| {
            let mut json = position.clone();
            json["address"] = hex(log.address);
            json["topics"] = log.topics().iter().map(hex).collect();
            json["data"] = hex(&log.data.data);
            json["logIndex"] = hex(log_count);
            json["removed"] = json!(false);
            log_count += 1;
            json
        };
        let logs: Value = receipt.logs().iter().map(&mut log_json).collect();
        let gas = receipt.cumulative_gas_used();
        let mut json = position.clone();
        json["type"] = hex(tx.ty());
        json["status"] = hex(u64::from(receipt.status()));
        json["cumulativeGasUsed"] = hex(gas);
        json["gasUsed"] = hex(gas - std::mem::replace(&mut gas_before, gas));
        json["logsBloom"] = hex(receipt.logs_bloom());
        json["logs"] = logs;
        json["from"] = hex(from);
        json["to"] = json!(tx.to().map(hex));
        json["contractAddress"] = json!(tx.is_create().then(|| hex(from.create(tx.nonce()))));
        json["effectiveGasPrice"] = hex(tx.effective_gas_price(header.base_fee_per_gas));
        if let Some(hashes) = tx.blob_versioned_hashes() {
            json["blobGasUsed"] = hex(hashes.len() * 131_072);
            json["blobGasPrice"] = hex(7);
        }
        json
    };
    receipts.iter().zip(&block.body.transactions).enumerate().map(&mut receipt_json).collect()
}

/// Returns a receipt whose number of logs is its index. Logs have up to four topics and data of
/// different lengths. Data of 1 and of 55 bytes are edge cases of RLP.
fn receipt(kind: u8, index: usize) -> ReceiptEnvelope {
    let data_bytes = [0, 1, 1, 32, 55, 56, 300];
    let log = |log_index: usize| {
        let topic =
            |topic_index: usize| B256::from(U256::from(index << 16 | log_index << 8 | topic_index));
        let topics = (1..(index + log_index) % 5 + 1).map(topic).collect();
        let fill = if log_index == 1 { 0x7f } else { 0x80 };
        let data = vec![fill; data_bytes[log_index % data_bytes.len()]];
        let data = LogData::new_unchecked(topics, data.into());
        Log { address: Address::repeat_byte(index as u8), data }
    };
    let receipt = Receipt {
        status: (index != 2).into(),
        cumulative_gas_used: 21_000 * (index as u64 + 1),
        logs: (0..index).map(log).collect(),
    };
    let receipt = ReceiptWithBloom::from(receipt);
    match kind {
        0 => ReceiptEnvelope::Legacy(receipt),
        1 => ReceiptEnvelope::Eip2930(receipt),
        2 => ReceiptEnvelope::Eip1559(receipt),
        3 => ReceiptEnvelope::Eip4844(receipt),
        _ => ReceiptEnvelope::Eip7702(receipt),
    }
}

/// Adds a made-up signature from which the sender can be recovered.
fn sign(tx: EthereumTypedTransaction<TxEip4844>) -> Tx {
    let hash = tx.signature_hash();
    let seed = U256::from_be_bytes(hash.0) >> 8;
    (0u64..)
        .map(|attempt| {
            Signature::new(seed + U256::from(attempt), U256::from(77 + attempt), attempt % 2 == 1)
        })
        .find(|signature| signature.recover_address_from_prehash(&hash).is_ok())
        .map(|signature| Tx::new_unhashed(tx, signature))
        .unwrap()
}

fn access_list() -> AccessList {
    let storage_keys = vec![B256::repeat_byte(1), B256::repeat_byte(2)];
    AccessList(vec![
        AccessListItem { address: Address::repeat_byte(0x0a), storage_keys },
        AccessListItem { address: Address::repeat_byte(0x0b), storage_keys: Vec::new() },
    ])
}

/// Returns transactions of every type.
fn transactions() -> Vec<Tx> {
    let to = Address::repeat_byte(0xbb);
    let legacy = |chain_id, to| TxLegacy {
        chain_id,
        nonce: 3,
        gas_price: 3_000_000_000,
        gas_limit: 100_000,
        to,
        value: U256::from(1u128 << 90),
        input: Bytes::from_static(&[1, 2, 3]),
    };
    let dynamic = |to, tip| TxEip1559 {
        chain_id: 1,
        nonce: 0,
        gas_limit: 100_000,
        max_fee_per_gas: 4_000_000_000,
        max_priority_fee_per_gas: tip,
        to,
        value: U256::ZERO,
        access_list: AccessList::default(),
        input: Bytes::from(vec![9; 1_000]),
    };
    let blobs = |count: u8, fee| TxEip4844 {
        chain_id: 1,
        nonce: 8,
        gas_limit: 21_000,
        max_fee_per_gas: 2_000_000_000,
        max_priority_fee_per_gas: 1,
        to,
        value: U256::from(1),
        access_list: access_list(),
        blob_versioned_hashes: (0..count).map(B256::repeat_byte).collect(),
        max_fee_per_blob_gas: fee,
        input: Bytes::new(),
    };
    vec![
        sign(legacy(None, TxKind::Call(to)).into()),
        sign(legacy(Some(1), TxKind::Create).into()),
        sign(legacy(Some(3_503_995_874_084_926), TxKind::Create).into()),
        sign(
            TxEip2930 {
                chain_id: 1,
                nonce: 1 << 40,
                gas_price: 2_000_000_000,
                gas_limit: 100_000,
                to: TxKind::Call(to),
                value: U256::ZERO,
                access_list: access_list(),
                input: Bytes::new(),
            }
            .into(),
        ),
        sign(dynamic(TxKind::Call(to), 1).into()),
        sign(dynamic(TxKind::Create, 3_999_999_999).into()),
        sign(blobs(1, 7).into()),
        sign(blobs(2, 1_000).into()),
        sign(
            TxEip7702 {
                chain_id: 1,
                nonce: 5,
                gas_limit: 100_000,
                max_fee_per_gas: 2_000_000_000,
                max_priority_fee_per_gas: 1,
                to,
                value: U256::ZERO,
                access_list: access_list(),
                authorization_list: authorizations(),
                input: Bytes::new(),
            }
            .into(),
        ),
    ]
}

/// Returns two authorizations. The second is invalid, but a block may contain it.
fn authorizations() -> Vec<SignedAuthorization> {
    let authorization = |nonce, parity| {
        let address = Address::repeat_byte(0xcc);
        let inner = Authorization { chain_id: U256::from(1), address, nonce };
        SignedAuthorization::new_unchecked(inner, parity, U256::from(5), U256::from(6))
    };
    vec![authorization(1, 1), authorization(2, 250)]
}
