//! Blocks, transactions, receipts and logs as geth prints them, with members in the same order. So
//! a diff against a real node stays readable. A block is rendered once and then shared.

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2930::AccessList;
use alloy_primitives::{Address, B256, Log, U256};
use bytes::Bytes;

use super::{Block, SignedTransaction, Transaction};
use crate::hex::{push_bytes, push_quantity, push_quantity_wide};

/// Indexes of a block's renderings.
const WITH_HASHES: usize = 0;
const WITH_TRANSACTIONS: usize = 1;
const RECEIPTS: usize = 2;

impl Block {
    /// Returns the block with the hashes of its transactions.
    pub(crate) fn with_hashes(&self) -> &Bytes {
        self.rendered[WITH_HASHES].get_or_init(|| {
            self.render(|out| {
                for (at, transaction) in self.transactions.iter().enumerate() {
                    comma(out, at);
                    push_bytes(out, transaction.hash().as_slice());
                }
            })
        })
    }

    /// Returns the block with its full transactions.
    pub(crate) fn with_transactions(&self) -> &Bytes {
        self.rendered[WITH_TRANSACTIONS].get_or_init(|| {
            self.render(|out| {
                for at in 0..self.transactions.len() {
                    comma(out, at);
                    self.push_transaction(out, at);
                }
            })
        })
    }

    /// Returns all receipts of the block.
    pub(crate) fn receipts(&self) -> &Bytes {
        self.rendered[RECEIPTS].get_or_init(|| {
            let mut out = vec![b'['];
            for at in 0..self.transactions.len() {
                comma(&mut out, at);
                self.push_receipt(&mut out, at);
            }
            out.push(b']');
            out.into()
        })
    }

    fn render(&self, transactions: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let header = &self.header;
        let mut out = Vec::with_capacity(2_048);
        let fixed = "present in every header that this module builds";
        number(&mut out, "{\"baseFeePerGas\":", header.base_fee_per_gas.expect(fixed).into());
        number(&mut out, ",\"blobGasUsed\":", 0);
        number(&mut out, ",\"difficulty\":", 0);
        number(&mut out, ",\"excessBlobGas\":", 0);
        bytes(&mut out, ",\"extraData\":", &header.extra_data);
        number(&mut out, ",\"gasLimit\":", header.gas_limit.into());
        number(&mut out, ",\"gasUsed\":", header.gas_used.into());
        bytes(&mut out, ",\"hash\":", self.hash.as_slice());
        bytes(&mut out, ",\"logsBloom\":", header.logs_bloom.as_slice());
        bytes(&mut out, ",\"miner\":", header.beneficiary.as_slice());
        bytes(&mut out, ",\"mixHash\":", header.mix_hash.as_slice());
        bytes(&mut out, ",\"nonce\":", header.nonce.as_slice());
        number(&mut out, ",\"number\":", header.number.into());
        let beacon = header.parent_beacon_block_root.expect(fixed);
        bytes(&mut out, ",\"parentBeaconBlockRoot\":", beacon.as_slice());
        bytes(&mut out, ",\"parentHash\":", header.parent_hash.as_slice());
        bytes(&mut out, ",\"receiptsRoot\":", header.receipts_root.as_slice());
        bytes(&mut out, ",\"requestsHash\":", header.requests_hash.expect(fixed).as_slice());
        bytes(&mut out, ",\"sha3Uncles\":", header.ommers_hash.as_slice());
        number(&mut out, ",\"size\":", self.size as u128);
        bytes(&mut out, ",\"stateRoot\":", header.state_root.as_slice());
        number(&mut out, ",\"timestamp\":", header.timestamp.into());
        out.extend_from_slice(b",\"transactions\":[");
        transactions(&mut out);
        bytes(&mut out, "],\"transactionsRoot\":", header.transactions_root.as_slice());
        out.extend_from_slice(b",\"uncles\":[],\"withdrawals\":[]");
        let withdrawals = header.withdrawals_root.expect(fixed);
        bytes(&mut out, ",\"withdrawalsRoot\":", withdrawals.as_slice());
        out.push(b'}');
        out.into()
    }

    /// Appends one transaction of this block.
    pub(crate) fn push_transaction(&self, out: &mut Vec<u8>, at: usize) {
        let transaction = &self.transactions[at];
        bytes(out, "{\"blockHash\":", self.hash.as_slice());
        number(out, ",\"blockNumber\":", self.header.number.into());
        number(out, ",\"blockTimestamp\":", self.header.timestamp.into());
        let place = Some(at);
        match &transaction.signed {
            SignedTransaction::Legacy(signed) => {
                let tx = signed.tx();
                shared(out, transaction.from, tx, transaction.gas_price, signed.hash(), place);
                number(out, ",\"chainId\":", self.chain_id(transaction).into());
                let v = self.chain_id(transaction) * 2 + 35 + u64::from(signed.signature().v());
                number(out, ",\"v\":", v.into());
                scalars(out, signed.signature().r(), signed.signature().s());
            }
            SignedTransaction::Dynamic(signed) => {
                let tx = signed.tx();
                shared(out, transaction.from, tx, transaction.gas_price, signed.hash(), place);
                dynamic(out, tx.chain_id, &tx.access_list, signed.signature().v());
                scalars(out, signed.signature().r(), signed.signature().s());
                number(out, ",\"yParity\":", u128::from(signed.signature().v()));
            }
        }
        out.push(b'}');
    }

    fn chain_id(&self, transaction: &Transaction) -> u64 {
        match &transaction.signed {
            SignedTransaction::Legacy(signed) => signed.tx().chain_id.unwrap_or_default(),
            SignedTransaction::Dynamic(signed) => signed.tx().chain_id,
        }
    }

    /// Appends one receipt of this block.
    pub(crate) fn push_receipt(&self, out: &mut Vec<u8>, at: usize) {
        let transaction = &self.transactions[at];
        bytes(out, "{\"blockHash\":", self.hash.as_slice());
        number(out, ",\"blockNumber\":", self.header.number.into());
        out.extend_from_slice(b",\"contractAddress\":null");
        number(out, ",\"cumulativeGasUsed\":", transaction.gas_cumulative.into());
        number(out, ",\"effectiveGasPrice\":", transaction.gas_price);
        bytes(out, ",\"from\":", transaction.from.as_slice());
        number(out, ",\"gasUsed\":", transaction.gas_used.into());
        out.extend_from_slice(b",\"logs\":[");
        for log in 0..transaction.logs.len() {
            comma(out, log);
            push_log(out, self, at, log);
        }
        bytes(out, "],\"logsBloom\":", transaction.bloom.as_slice());
        number(out, ",\"status\":", 1);
        bytes(out, ",\"to\":", transaction.signed.payment().0.as_slice());
        bytes(out, ",\"transactionHash\":", transaction.hash().as_slice());
        number(out, ",\"transactionIndex\":", at as u128);
        let kind = u128::from(matches!(transaction.signed, SignedTransaction::Dynamic(_))) * 2;
        number(out, ",\"type\":", kind);
        out.push(b'}');
    }
}

/// Appends log `log` of the block's transaction `at`.
pub(crate) fn push_log(out: &mut Vec<u8>, block: &Block, at: usize, log: usize) {
    let transaction = &block.transactions[at];
    let entry: &Log = &transaction.logs[log];
    bytes(out, "{\"address\":", entry.address.as_slice());
    out.extend_from_slice(b",\"topics\":[");
    for (place, topic) in entry.topics().iter().enumerate() {
        comma(out, place);
        push_bytes(out, topic.as_slice());
    }
    bytes(out, "],\"data\":", &entry.data.data);
    number(out, ",\"blockNumber\":", block.header.number.into());
    bytes(out, ",\"transactionHash\":", transaction.hash().as_slice());
    number(out, ",\"transactionIndex\":", at as u128);
    bytes(out, ",\"blockHash\":", block.hash.as_slice());
    number(out, ",\"blockTimestamp\":", block.header.timestamp.into());
    number(out, ",\"logIndex\":", (transaction.log_first + log) as u128);
    out.extend_from_slice(b",\"removed\":false}");
}

/// Appends a pending transaction. The node recovers no signers, so `from` is the zero address.
pub(crate) fn push_pooled(out: &mut Vec<u8>, envelope: &TxEnvelope) {
    out.extend_from_slice(b"{\"blockHash\":null,\"blockNumber\":null,\"blockTimestamp\":null");
    let price = envelope.max_fee_per_gas();
    shared(out, Address::ZERO, envelope, price, envelope.tx_hash(), None);
    let signature = envelope.signature();
    match (envelope, envelope.chain_id()) {
        (TxEnvelope::Legacy(_), Some(chain_id)) => {
            number(out, ",\"chainId\":", chain_id.into());
            let v = u128::from(chain_id) * 2 + 35 + u128::from(signature.v());
            number(out, ",\"v\":", v);
        }
        (TxEnvelope::Legacy(_), None) => number(out, ",\"v\":", 27 + u128::from(signature.v())),
        (_, chain_id) => {
            let access = envelope.access_list().cloned().unwrap_or_default();
            dynamic(out, chain_id.unwrap_or_default(), &access, signature.v());
        }
    }
    scalars(out, signature.r(), signature.s());
    out.push(b'}');
}

fn shared(
    out: &mut Vec<u8>,
    from: Address,
    tx: &impl alloy_consensus::Transaction,
    gas_price: u128,
    hash: &B256,
    place: Option<usize>,
) {
    bytes(out, ",\"from\":", from.as_slice());
    number(out, ",\"gas\":", tx.gas_limit().into());
    number(out, ",\"gasPrice\":", gas_price);
    if let Some(tip) = tx.max_priority_fee_per_gas() {
        number(out, ",\"maxFeePerGas\":", tx.max_fee_per_gas());
        number(out, ",\"maxPriorityFeePerGas\":", tip);
    }
    bytes(out, ",\"hash\":", hash.as_slice());
    bytes(out, ",\"input\":", tx.input());
    number(out, ",\"nonce\":", tx.nonce().into());
    match tx.to() {
        Some(to) => bytes(out, ",\"to\":", to.as_slice()),
        None => out.extend_from_slice(b",\"to\":null"),
    }
    match place {
        Some(at) => number(out, ",\"transactionIndex\":", at as u128),
        None => out.extend_from_slice(b",\"transactionIndex\":null"),
    }
    out.extend_from_slice(b",\"value\":");
    push_quantity_wide(out, tx.value());
    number(out, ",\"type\":", tx.ty().into());
}

fn dynamic(out: &mut Vec<u8>, chain_id: u64, access: &AccessList, odd: bool) {
    out.extend_from_slice(b",\"accessList\":[");
    for (at, item) in access.iter().enumerate() {
        comma(out, at);
        bytes(out, "{\"address\":", item.address.as_slice());
        out.extend_from_slice(b",\"storageKeys\":[");
        for (place, key) in item.storage_keys.iter().enumerate() {
            comma(out, place);
            push_bytes(out, key.as_slice());
        }
        out.extend_from_slice(b"]}");
    }
    number(out, "],\"chainId\":", chain_id.into());
    number(out, ",\"v\":", u128::from(odd));
}

fn scalars(out: &mut Vec<u8>, r: U256, s: U256) {
    out.extend_from_slice(b",\"r\":");
    push_quantity_wide(out, r);
    out.extend_from_slice(b",\"s\":");
    push_quantity_wide(out, s);
}

fn number(out: &mut Vec<u8>, before: &str, value: u128) {
    out.extend_from_slice(before.as_bytes());
    push_quantity(out, value);
}

fn bytes(out: &mut Vec<u8>, before: &str, value: &[u8]) {
    out.extend_from_slice(before.as_bytes());
    push_bytes(out, value);
}

/// Appends a comma before every element except the first.
pub(super) fn comma(out: &mut Vec<u8>, at: usize) {
    if at > 0 {
        out.push(b',');
    }
}
