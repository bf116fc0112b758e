//! Blocks, transactions, receipts and logs as geth prints them, with members in the same order, so
//! that a diff against a real node stays readable. A block is rendered once and then shared.

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2930::AccessList;
use alloy_primitives::{Address, B256, Log, U256};
use bytes::Bytes;

use super::{Block, SignedTransaction, Transaction};
use crate::hex::{push_bytes, push_quantity, push_quantity_wide};

/// Indexes of a block's rendered JSON texts.
const WITH_HASHES: usize = 0;
const WITH_TRANSACTIONS: usize = 1;
const RECEIPTS: usize = 2;

impl Block {
    /// Returns the block with the hashes of its transactions.
    pub(crate) fn with_hashes(&self) -> &Bytes {
        self.rendered[WITH_HASHES].get_or_init(|| {
            self.render(|out| {
                for (index, transaction) in self.transactions.iter().enumerate() {
                    push_comma(out, index);
                    push_bytes(out, transaction.hash().as_slice());
                }
            })
        })
    }

    /// Returns the block with its full transactions.
    pub(crate) fn with_transactions(&self) -> &Bytes {
        self.rendered[WITH_TRANSACTIONS].get_or_init(|| {
            self.render(|out| {
                for index in 0..self.transactions.len() {
                    push_comma(out, index);
                    self.push_transaction(out, index);
                }
            })
        })
    }

    /// Returns all receipts of the block.
    pub(crate) fn receipts(&self) -> &Bytes {
        self.rendered[RECEIPTS].get_or_init(|| {
            let mut out = vec![b'['];
            for index in 0..self.transactions.len() {
                push_comma(&mut out, index);
                self.push_receipt(&mut out, index);
            }
            out.push(b']');
            out.into()
        })
    }

    /// Renders the block. `push_transactions` appends the elements of its list of transactions.
    fn render(&self, push_transactions: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let header = &self.header;
        let mut out = Vec::with_capacity(2_048);
        let expectation = "present in every header that this module builds";
        push_number(
            &mut out,
            "{\"baseFeePerGas\":",
            header.base_fee_per_gas.expect(expectation).into(),
        );
        push_number(&mut out, ",\"blobGasUsed\":", 0);
        push_number(&mut out, ",\"difficulty\":", 0);
        push_number(&mut out, ",\"excessBlobGas\":", 0);
        push_data(&mut out, ",\"extraData\":", &header.extra_data);
        push_number(&mut out, ",\"gasLimit\":", header.gas_limit.into());
        push_number(&mut out, ",\"gasUsed\":", header.gas_used.into());
        push_data(&mut out, ",\"hash\":", self.hash.as_slice());
        push_data(&mut out, ",\"logsBloom\":", header.logs_bloom.as_slice());
        push_data(&mut out, ",\"miner\":", header.beneficiary.as_slice());
        push_data(&mut out, ",\"mixHash\":", header.mix_hash.as_slice());
        push_data(&mut out, ",\"nonce\":", header.nonce.as_slice());
        push_number(&mut out, ",\"number\":", header.number.into());
        let beacon = header.parent_beacon_block_root.expect(expectation);
        push_data(&mut out, ",\"parentBeaconBlockRoot\":", beacon.as_slice());
        push_data(&mut out, ",\"parentHash\":", header.parent_hash.as_slice());
        push_data(&mut out, ",\"receiptsRoot\":", header.receipts_root.as_slice());
        push_data(
            &mut out,
            ",\"requestsHash\":",
            header.requests_hash.expect(expectation).as_slice(),
        );
        push_data(&mut out, ",\"sha3Uncles\":", header.ommers_hash.as_slice());
        push_number(&mut out, ",\"size\":", self.size as u128);
        push_data(&mut out, ",\"stateRoot\":", header.state_root.as_slice());
        push_number(&mut out, ",\"timestamp\":", header.timestamp.into());
        out.extend_from_slice(b",\"transactions\":[");
        push_transactions(&mut out);
        push_data(&mut out, "],\"transactionsRoot\":", header.transactions_root.as_slice());
        out.extend_from_slice(b",\"uncles\":[],\"withdrawals\":[]");
        let withdrawals = header.withdrawals_root.expect(expectation);
        push_data(&mut out, ",\"withdrawalsRoot\":", withdrawals.as_slice());
        out.push(b'}');
        out.into()
    }

    /// Appends one transaction of this block.
    pub(crate) fn push_transaction(&self, out: &mut Vec<u8>, index: usize) {
        let transaction = &self.transactions[index];
        push_data(out, "{\"blockHash\":", self.hash.as_slice());
        push_number(out, ",\"blockNumber\":", self.header.number.into());
        push_number(out, ",\"blockTimestamp\":", self.header.timestamp.into());
        let index = Some(index);
        match &transaction.signed {
            SignedTransaction::Legacy(signed) => {
                let tx = signed.tx();
                push_shared_members(
                    out,
                    transaction.from,
                    tx,
                    transaction.gas_price,
                    signed.hash(),
                    index,
                );
                push_number(out, ",\"chainId\":", self.chain_id(transaction).into());
                // EIP-155: `v` has the chain id and the parity of the signature.
                let v = self.chain_id(transaction) * 2 + 35 + u64::from(signed.signature().v());
                push_number(out, ",\"v\":", v.into());
                push_signature(out, signed.signature().r(), signed.signature().s());
            }
            SignedTransaction::Dynamic(signed) => {
                let tx = signed.tx();
                push_shared_members(
                    out,
                    transaction.from,
                    tx,
                    transaction.gas_price,
                    signed.hash(),
                    index,
                );
                push_dynamic_fee_members(out, tx.chain_id, &tx.access_list, signed.signature().v());
                push_signature(out, signed.signature().r(), signed.signature().s());
                push_number(out, ",\"yParity\":", u128::from(signed.signature().v()));
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
    pub(crate) fn push_receipt(&self, out: &mut Vec<u8>, index: usize) {
        let transaction = &self.transactions[index];
        push_data(out, "{\"blockHash\":", self.hash.as_slice());
        push_number(out, ",\"blockNumber\":", self.header.number.into());
        out.extend_from_slice(b",\"contractAddress\":null");
        push_number(out, ",\"cumulativeGasUsed\":", transaction.gas_cumulative.into());
        push_number(out, ",\"effectiveGasPrice\":", transaction.gas_price);
        push_data(out, ",\"from\":", transaction.from.as_slice());
        push_number(out, ",\"gasUsed\":", transaction.gas_used.into());
        out.extend_from_slice(b",\"logs\":[");
        for log_index in 0..transaction.logs.len() {
            push_comma(out, log_index);
            push_log(out, self, index, log_index);
        }
        push_data(out, "],\"logsBloom\":", transaction.bloom.as_slice());
        push_number(out, ",\"status\":", 1);
        push_data(out, ",\"to\":", transaction.signed.payment().0.as_slice());
        push_data(out, ",\"transactionHash\":", transaction.hash().as_slice());
        push_number(out, ",\"transactionIndex\":", index as u128);
        // EIP-2718: a legacy transaction has type 0, an EIP-1559 transaction has type 2.
        let type_number =
            u128::from(matches!(transaction.signed, SignedTransaction::Dynamic(_))) * 2;
        push_number(out, ",\"type\":", type_number);
        out.push(b'}');
    }
}

/// Appends one log of a transaction of the block. `log_index` is the index within the transaction.
pub(crate) fn push_log(
    out: &mut Vec<u8>,
    block: &Block,
    transaction_index: usize,
    log_index: usize,
) {
    let transaction = &block.transactions[transaction_index];
    let log: &Log = &transaction.logs[log_index];
    push_data(out, "{\"address\":", log.address.as_slice());
    out.extend_from_slice(b",\"topics\":[");
    for (position, topic) in log.topics().iter().enumerate() {
        push_comma(out, position);
        push_bytes(out, topic.as_slice());
    }
    push_data(out, "],\"data\":", &log.data.data);
    push_number(out, ",\"blockNumber\":", block.header.number.into());
    push_data(out, ",\"transactionHash\":", transaction.hash().as_slice());
    push_number(out, ",\"transactionIndex\":", transaction_index as u128);
    push_data(out, ",\"blockHash\":", block.hash.as_slice());
    push_number(out, ",\"blockTimestamp\":", block.header.timestamp.into());
    push_number(out, ",\"logIndex\":", (transaction.log_first + log_index) as u128);
    out.extend_from_slice(b",\"removed\":false}");
}

/// Appends a pending transaction. `from` is the zero address, because the node does not recover the
/// sender.
pub(crate) fn push_pooled(out: &mut Vec<u8>, envelope: &TxEnvelope) {
    out.extend_from_slice(b"{\"blockHash\":null,\"blockNumber\":null,\"blockTimestamp\":null");
    let gas_price = envelope.max_fee_per_gas();
    push_shared_members(out, Address::ZERO, envelope, gas_price, envelope.tx_hash(), None);
    let signature = envelope.signature();
    match (envelope, envelope.chain_id()) {
        (TxEnvelope::Legacy(_), Some(chain_id)) => {
            push_number(out, ",\"chainId\":", chain_id.into());
            let v = u128::from(chain_id) * 2 + 35 + u128::from(signature.v());
            push_number(out, ",\"v\":", v);
        }
        // Without a chain id, `v` has only the parity (yellow paper, appendix F).
        (TxEnvelope::Legacy(_), None) => {
            push_number(out, ",\"v\":", 27 + u128::from(signature.v()))
        }
        (_, chain_id) => {
            let access_list = envelope.access_list().cloned().unwrap_or_default();
            push_dynamic_fee_members(
                out,
                chain_id.unwrap_or_default(),
                &access_list,
                signature.v(),
            );
        }
    }
    push_signature(out, signature.r(), signature.s());
    out.push(b'}');
}

/// Appends the members that transactions of all types have. `index` is `None` for a pending
/// transaction.
fn push_shared_members(
    out: &mut Vec<u8>,
    from: Address,
    tx: &impl alloy_consensus::Transaction,
    gas_price: u128,
    hash: &B256,
    index: Option<usize>,
) {
    push_data(out, ",\"from\":", from.as_slice());
    push_number(out, ",\"gas\":", tx.gas_limit().into());
    push_number(out, ",\"gasPrice\":", gas_price);
    if let Some(tip) = tx.max_priority_fee_per_gas() {
        push_number(out, ",\"maxFeePerGas\":", tx.max_fee_per_gas());
        push_number(out, ",\"maxPriorityFeePerGas\":", tip);
    }
    push_data(out, ",\"hash\":", hash.as_slice());
    push_data(out, ",\"input\":", tx.input());
    push_number(out, ",\"nonce\":", tx.nonce().into());
    match tx.to() {
        Some(to) => push_data(out, ",\"to\":", to.as_slice()),
        None => out.extend_from_slice(b",\"to\":null"),
    }
    match index {
        Some(index) => push_number(out, ",\"transactionIndex\":", index as u128),
        None => out.extend_from_slice(b",\"transactionIndex\":null"),
    }
    out.extend_from_slice(b",\"value\":");
    push_quantity_wide(out, tx.value());
    push_number(out, ",\"type\":", tx.ty().into());
}

/// Appends the members that only transactions with dynamic fees (EIP-1559) have.
fn push_dynamic_fee_members(
    out: &mut Vec<u8>,
    chain_id: u64,
    access_list: &AccessList,
    y_parity: bool,
) {
    out.extend_from_slice(b",\"accessList\":[");
    for (index, item) in access_list.iter().enumerate() {
        push_comma(out, index);
        push_data(out, "{\"address\":", item.address.as_slice());
        out.extend_from_slice(b",\"storageKeys\":[");
        for (position, key) in item.storage_keys.iter().enumerate() {
            push_comma(out, position);
            push_bytes(out, key.as_slice());
        }
        out.extend_from_slice(b"]}");
    }
    push_number(out, "],\"chainId\":", chain_id.into());
    push_number(out, ",\"v\":", u128::from(y_parity));
}

fn push_signature(out: &mut Vec<u8>, r: U256, s: U256) {
    out.extend_from_slice(b",\"r\":");
    push_quantity_wide(out, r);
    out.extend_from_slice(b",\"s\":");
    push_quantity_wide(out, s);
}

fn push_number(out: &mut Vec<u8>, prefix: &str, value: u128) {
    out.extend_from_slice(prefix.as_bytes());
    push_quantity(out, value);
}

fn push_data(out: &mut Vec<u8>, prefix: &str, value: &[u8]) {
    out.extend_from_slice(prefix.as_bytes());
    push_bytes(out, value);
}

/// Appends a comma before every element except the first.
pub(super) fn push_comma(out: &mut Vec<u8>, index: usize) {
    if index > 0 {
        out.push(b',');
    }
}
