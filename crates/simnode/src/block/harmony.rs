//! Blocks, headers, transactions and receipts as a Harmony node prints them. The `hmyv2_` methods
//! have decimal integers, and the `hmy_` methods hexadecimal text. The chain is the same as in
//! `block/eth.rs`. Member names follow the samples in Harmony's documentation.

use alloy_primitives::{Address, U256};

use super::eth::push_comma;
use super::{Block, KnownAddresses, SignedTransaction, push_log};
use crate::bech32;
use crate::hex::{push_bytes, push_quantity_wide};
use crate::seed::SeedStream;

/// Number of blocks of one epoch, as on Harmony's mainnet since epoch 186.
pub(crate) const EPOCH_BLOCKS: u64 = 32_768;
/// Number of signers of a block. The signers are accounts of the simulated chain.
pub(crate) const SIGNERS: usize = 4;

/// The format of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFormat {
    /// JSON integers, as in `hmyv2_` methods.
    Decimal,
    /// Hexadecimal text, as in `hmy_` methods.
    Hexadecimal,
}

impl NumberFormat {
    pub(crate) fn push(self, out: &mut Vec<u8>, number: U256) {
        match self {
            Self::Decimal => out.extend_from_slice(number.to_string().as_bytes()),
            Self::Hexadecimal => push_quantity_wide(out, number),
        }
    }
}

/// The requested parts of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockOptions {
    /// True for full transactions, false for their hashes.
    pub(crate) transactions: bool,
    /// True if the block has the addresses of its signers.
    pub(crate) signers: bool,
}

/// A printer with one number format.
pub(crate) struct Printer<'a> {
    pub(crate) format: NumberFormat,
    pub(crate) addresses: &'a KnownAddresses,
}

impl Printer<'_> {
    /// Appends a block. `is_newest` is true for the newest block, which has no signers yet.
    pub(crate) fn push_block(
        &self,
        out: &mut Vec<u8>,
        block: &Block,
        options: BlockOptions,
        is_newest: bool,
    ) {
        let header = &block.header;
        self.push_number(out, "{\"difficulty\":", 0);
        self.push_number(out, ",\"epoch\":", header.number / EPOCH_BLOCKS);
        push_data(out, ",\"extraData\":", &header.extra_data);
        self.push_number(out, ",\"gasLimit\":", header.gas_limit);
        self.push_number(out, ",\"gasUsed\":", header.gas_used);
        push_data(out, ",\"hash\":", block.hash.as_slice());
        push_data(out, ",\"logsBloom\":", header.logs_bloom.as_slice());
        push_address(out, ",\"miner\":", header.beneficiary);
        push_data(out, ",\"mixHash\":", header.mix_hash.as_slice());
        self.push_number(out, ",\"nonce\":", 0);
        self.push_number(out, ",\"number\":", header.number);
        push_data(out, ",\"parentHash\":", header.parent_hash.as_slice());
        push_data(out, ",\"receiptsRoot\":", header.receipts_root.as_slice());
        if options.signers {
            out.extend_from_slice(b",\"signers\":");
            self.push_signers(out, block, is_newest);
        }
        self.push_number(out, ",\"size\":", block.size as u64);
        out.extend_from_slice(b",\"stakingTransactions\":[]");
        push_data(out, ",\"stateRoot\":", header.state_root.as_slice());
        self.push_number(out, ",\"timestamp\":", header.timestamp);
        out.extend_from_slice(b",\"transactions\":[");
        for index in 0..block.transactions.len() {
            push_comma(out, index);
            if options.transactions {
                self.push_transaction(out, block, index);
            } else {
                push_bytes(out, block.transactions[index].hash().as_slice());
            }
        }
        if !options.transactions {
            // A block with full transactions lacks this list, because each transaction has the
            // members `hash` and `ethHash` (harmony `rpc/harmony/v2/types.go`).
            out.extend_from_slice(b"],\"transactionsInEthHash\":[");
            for (index, transaction) in block.transactions.iter().enumerate() {
                push_comma(out, index);
                push_bytes(out, transaction.hash().as_slice());
            }
        }
        push_data(out, "],\"transactionsRoot\":", header.transactions_root.as_slice());
        out.extend_from_slice(b",\"uncles\":[]");
        self.push_number(out, ",\"viewID\":", header.number);
        push_data(out, ",\"vrf\":", header.mix_hash.as_slice());
        push_data(
            out,
            ",\"vrfProof\":",
            header.parent_beacon_block_root.unwrap_or_default().as_slice(),
        );
        out.push(b'}');
    }

    /// Appends the header in the short form of `latestHeader` and `getHeaderByNumber`.
    pub(crate) fn push_header(&self, out: &mut Vec<u8>, block: &Block) {
        let header = &block.header;
        push_data(out, "{\"blockHash\":", block.hash.as_slice());
        self.push_number(out, ",\"blockNumber\":", header.number);
        self.push_number(out, ",\"epoch\":", header.number / EPOCH_BLOCKS);
        push_data(out, ",\"lastCommitBitmap\":", &header.mix_hash[..2]);
        push_data(out, ",\"lastCommitSig\":", header.mix_hash.as_slice());
        push_address(out, ",\"leader\":", header.beneficiary);
        push_data(out, ",\"parentHash\":", header.parent_hash.as_slice());
        self.push_number(out, ",\"shardID\":", 0);
        self.push_number(out, ",\"unixtime\":", header.timestamp);
        self.push_number(out, ",\"viewID\":", header.number);
        out.push(b'}');
    }

    /// Appends the addresses of the signers. Block 0 and the newest block have no signers. On
    /// Harmony, the commit signature of a block is in the next block.
    pub(crate) fn push_signers(&self, out: &mut Vec<u8>, block: &Block, is_newest: bool) {
        out.push(b'[');
        if block.header.number > 0 && !is_newest {
            for (index, signer) in signers_of(block).into_iter().enumerate() {
                push_comma(out, index);
                push_address(out, "", self.addresses.accounts[signer]);
            }
        }
        out.push(b']');
    }

    pub(crate) fn push_transaction(&self, out: &mut Vec<u8>, block: &Block, index: usize) {
        let transaction = &block.transactions[index];
        let (tx, signature): (&dyn alloy_consensus::Transaction, _) = match &transaction.signed {
            SignedTransaction::Legacy(signed) => (signed.tx(), signed.signature()),
            SignedTransaction::Dynamic(signed) => (signed.tx(), signed.signature()),
        };
        push_data(out, "{\"blockHash\":", block.hash.as_slice());
        self.push_number(out, ",\"blockNumber\":", block.header.number);
        push_data(out, ",\"ethHash\":", transaction.hash().as_slice());
        push_address(out, ",\"from\":", transaction.from);
        self.push_number(out, ",\"gas\":", tx.gas_limit());
        self.push_wide_number(out, ",\"gasPrice\":", U256::from(transaction.gas_price));
        push_data(out, ",\"hash\":", transaction.hash().as_slice());
        push_data(out, ",\"input\":", tx.input());
        self.push_number(out, ",\"nonce\":", tx.nonce());
        out.extend_from_slice(b",\"r\":");
        push_quantity_wide(out, signature.r());
        out.extend_from_slice(b",\"s\":");
        push_quantity_wide(out, signature.s());
        self.push_number(out, ",\"shardID\":", 0);
        self.push_number(out, ",\"timestamp\":", block.header.timestamp);
        push_address(out, ",\"to\":", tx.to().unwrap_or_default());
        self.push_number(out, ",\"toShardID\":", 0);
        self.push_number(out, ",\"transactionIndex\":", index as u64);
        out.extend_from_slice(b",\"v\":");
        push_quantity_wide(out, U256::from(u8::from(signature.v())));
        self.push_wide_number(out, ",\"value\":", tx.value());
        out.push(b'}');
    }

    pub(crate) fn push_receipt(&self, out: &mut Vec<u8>, block: &Block, index: usize) {
        let transaction = &block.transactions[index];
        push_data(out, "{\"blockHash\":", block.hash.as_slice());
        self.push_number(out, ",\"blockNumber\":", block.header.number);
        out.extend_from_slice(b",\"contractAddress\":null");
        self.push_number(out, ",\"cumulativeGasUsed\":", transaction.gas_cumulative);
        push_address(out, ",\"from\":", transaction.from);
        self.push_number(out, ",\"gasUsed\":", transaction.gas_used);
        out.extend_from_slice(b",\"logs\":[");
        for log_index in 0..transaction.logs.len() {
            push_comma(out, log_index);
            push_log(out, block, index, log_index);
        }
        push_data(out, "],\"logsBloom\":", transaction.bloom.as_slice());
        out.extend_from_slice(b",\"root\":\"0x\"");
        self.push_number(out, ",\"shardID\":", 0);
        self.push_number(out, ",\"status\":", 1);
        push_address(out, ",\"to\":", transaction.signed.payment().0);
        push_data(out, ",\"transactionHash\":", transaction.hash().as_slice());
        self.push_number(out, ",\"transactionIndex\":", index as u64);
        out.push(b'}');
    }

    pub(crate) fn push_number(&self, out: &mut Vec<u8>, prefix: &str, value: u64) {
        self.push_wide_number(out, prefix, U256::from(value));
    }

    fn push_wide_number(&self, out: &mut Vec<u8>, prefix: &str, value: U256) {
        out.extend_from_slice(prefix.as_bytes());
        self.format.push(out, value);
    }
}

/// Returns the indexes of the accounts that signed a block.
pub(crate) fn signers_of(block: &Block) -> [usize; SIGNERS] {
    let first_signer = usize::from(block.header.mix_hash[0]);
    std::array::from_fn(|index| (first_signer + index) % super::ACCOUNTS)
}

/// Returns the BLS public key of an account. A synthetic key suffices, because nothing verifies it.
pub(crate) fn bls_key(seed: u64, account: usize) -> [u8; 48] {
    let mut draws = SeedStream::at(seed, &[DRAW_BLS, account as u64]);
    let mut key = [0; 48];
    key[..32].copy_from_slice(draws.hash().as_slice());
    key[32..].copy_from_slice(&draws.hash()[..16]);
    key
}

/// The first word of the position of the random stream of BLS keys. The positions of other streams
/// begin with 1 to 6.
const DRAW_BLS: u64 = 7;

pub(crate) fn push_address(out: &mut Vec<u8>, prefix: &str, address: Address) {
    out.extend_from_slice(prefix.as_bytes());
    out.push(b'"');
    out.extend_from_slice(bech32::encode_address(address).as_bytes());
    out.push(b'"');
}

fn push_data(out: &mut Vec<u8>, prefix: &str, value: &[u8]) {
    out.extend_from_slice(prefix.as_bytes());
    push_bytes(out, value);
}
