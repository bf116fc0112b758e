//! Blocks, headers, transactions and receipts as a Harmony node prints them: `hmyv2_` with decimal
//! integers, `hmy_` with hexadecimal text. The chain is that of `block/eth.rs`. Member names follow
//! the samples in Harmony's documentation.

use alloy_primitives::{Address, U256};

use super::eth::comma;
use super::{Block, KnownAddresses, SignedTransaction, push_log};
use crate::bech32;
use crate::hex::{push_bytes, push_quantity_wide};
use crate::seed::SeedStream;

/// Blocks of one epoch, as on Harmony's mainnet since epoch 186.
pub(crate) const EPOCH_BLOCKS: u64 = 32_768;
/// Number of signers of a block. The accounts are the committee.
pub(crate) const SIGNERS: usize = 4;

/// The format of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFormat {
    /// JSON integers: `hmyv2_`.
    Decimal,
    /// Hexadecimal text: `hmy_`.
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
    pub(crate) transactions: bool,
    pub(crate) signers: bool,
}

/// A printer with one number format.
pub(crate) struct Printer<'a> {
    pub(crate) form: NumberFormat,
    pub(crate) addresses: &'a KnownAddresses,
}

impl Printer<'_> {
    pub(crate) fn block(
        &self,
        out: &mut Vec<u8>,
        block: &Block,
        wanted: BlockOptions,
        newest: bool,
    ) {
        let header = &block.header;
        self.number(out, "{\"difficulty\":", 0);
        self.number(out, ",\"epoch\":", header.number / EPOCH_BLOCKS);
        bytes(out, ",\"extraData\":", &header.extra_data);
        self.number(out, ",\"gasLimit\":", header.gas_limit);
        self.number(out, ",\"gasUsed\":", header.gas_used);
        bytes(out, ",\"hash\":", block.hash.as_slice());
        bytes(out, ",\"logsBloom\":", header.logs_bloom.as_slice());
        address(out, ",\"miner\":", header.beneficiary);
        bytes(out, ",\"mixHash\":", header.mix_hash.as_slice());
        self.number(out, ",\"nonce\":", 0);
        self.number(out, ",\"number\":", header.number);
        bytes(out, ",\"parentHash\":", header.parent_hash.as_slice());
        bytes(out, ",\"receiptsRoot\":", header.receipts_root.as_slice());
        if wanted.signers {
            out.extend_from_slice(b",\"signers\":");
            self.signers(out, block, newest);
        }
        self.number(out, ",\"size\":", block.size as u64);
        out.extend_from_slice(b",\"stakingTransactions\":[]");
        bytes(out, ",\"stateRoot\":", header.state_root.as_slice());
        self.number(out, ",\"timestamp\":", header.timestamp);
        out.extend_from_slice(b",\"transactions\":[");
        for at in 0..block.transactions.len() {
            comma(out, at);
            if wanted.transactions {
                self.transaction(out, block, at);
            } else {
                push_bytes(out, block.transactions[at].hash().as_slice());
            }
        }
        if !wanted.transactions {
            // Full transactions have both hashes themselves (harmony `rpc/harmony/v2/types.go`).
            out.extend_from_slice(b"],\"transactionsInEthHash\":[");
            for (at, transaction) in block.transactions.iter().enumerate() {
                comma(out, at);
                push_bytes(out, transaction.hash().as_slice());
            }
        }
        bytes(out, "],\"transactionsRoot\":", header.transactions_root.as_slice());
        out.extend_from_slice(b",\"uncles\":[]");
        self.number(out, ",\"viewID\":", header.number);
        bytes(out, ",\"vrf\":", header.mix_hash.as_slice());
        bytes(
            out,
            ",\"vrfProof\":",
            header.parent_beacon_block_root.unwrap_or_default().as_slice(),
        );
        out.push(b'}');
    }

    /// Appends the header in the short form of `latestHeader` and `getHeaderByNumber`.
    pub(crate) fn header(&self, out: &mut Vec<u8>, block: &Block) {
        let header = &block.header;
        bytes(out, "{\"blockHash\":", block.hash.as_slice());
        self.number(out, ",\"blockNumber\":", header.number);
        self.number(out, ",\"epoch\":", header.number / EPOCH_BLOCKS);
        bytes(out, ",\"lastCommitBitmap\":", &header.mix_hash[..2]);
        bytes(out, ",\"lastCommitSig\":", header.mix_hash.as_slice());
        address(out, ",\"leader\":", header.beneficiary);
        bytes(out, ",\"parentHash\":", header.parent_hash.as_slice());
        self.number(out, ",\"shardID\":", 0);
        self.number(out, ",\"unixtime\":", header.timestamp);
        self.number(out, ",\"viewID\":", header.number);
        out.push(b'}');
    }

    /// Appends the addresses of the signers. Block 0 and the newest block have none, as on Harmony,
    /// where the next block carries the commit signature.
    pub(crate) fn signers(&self, out: &mut Vec<u8>, block: &Block, newest: bool) {
        out.push(b'[');
        if block.header.number > 0 && !newest {
            for (at, signer) in signers_of(block).into_iter().enumerate() {
                comma(out, at);
                address(out, "", self.addresses.accounts[signer]);
            }
        }
        out.push(b']');
    }

    pub(crate) fn transaction(&self, out: &mut Vec<u8>, block: &Block, at: usize) {
        let transaction = &block.transactions[at];
        let (tx, signature): (&dyn alloy_consensus::Transaction, _) = match &transaction.signed {
            SignedTransaction::Legacy(signed) => (signed.tx(), signed.signature()),
            SignedTransaction::Dynamic(signed) => (signed.tx(), signed.signature()),
        };
        bytes(out, "{\"blockHash\":", block.hash.as_slice());
        self.number(out, ",\"blockNumber\":", block.header.number);
        bytes(out, ",\"ethHash\":", transaction.hash().as_slice());
        address(out, ",\"from\":", transaction.from);
        self.number(out, ",\"gas\":", tx.gas_limit());
        self.wide(out, ",\"gasPrice\":", U256::from(transaction.gas_price));
        bytes(out, ",\"hash\":", transaction.hash().as_slice());
        bytes(out, ",\"input\":", tx.input());
        self.number(out, ",\"nonce\":", tx.nonce());
        out.extend_from_slice(b",\"r\":");
        push_quantity_wide(out, signature.r());
        out.extend_from_slice(b",\"s\":");
        push_quantity_wide(out, signature.s());
        self.number(out, ",\"shardID\":", 0);
        self.number(out, ",\"timestamp\":", block.header.timestamp);
        address(out, ",\"to\":", tx.to().unwrap_or_default());
        self.number(out, ",\"toShardID\":", 0);
        self.number(out, ",\"transactionIndex\":", at as u64);
        out.extend_from_slice(b",\"v\":");
        push_quantity_wide(out, U256::from(u8::from(signature.v())));
        self.wide(out, ",\"value\":", tx.value());
        out.push(b'}');
    }

    pub(crate) fn receipt(&self, out: &mut Vec<u8>, block: &Block, at: usize) {
        let transaction = &block.transactions[at];
        bytes(out, "{\"blockHash\":", block.hash.as_slice());
        self.number(out, ",\"blockNumber\":", block.header.number);
        out.extend_from_slice(b",\"contractAddress\":null");
        self.number(out, ",\"cumulativeGasUsed\":", transaction.gas_cumulative);
        address(out, ",\"from\":", transaction.from);
        self.number(out, ",\"gasUsed\":", transaction.gas_used);
        out.extend_from_slice(b",\"logs\":[");
        for log in 0..transaction.logs.len() {
            comma(out, log);
            push_log(out, block, at, log);
        }
        bytes(out, "],\"logsBloom\":", transaction.bloom.as_slice());
        out.extend_from_slice(b",\"root\":\"0x\"");
        self.number(out, ",\"shardID\":", 0);
        self.number(out, ",\"status\":", 1);
        address(out, ",\"to\":", transaction.signed.payment().0);
        bytes(out, ",\"transactionHash\":", transaction.hash().as_slice());
        self.number(out, ",\"transactionIndex\":", at as u64);
        out.push(b'}');
    }

    pub(crate) fn number(&self, out: &mut Vec<u8>, before: &str, value: u64) {
        self.wide(out, before, U256::from(value));
    }

    fn wide(&self, out: &mut Vec<u8>, before: &str, value: U256) {
        out.extend_from_slice(before.as_bytes());
        self.form.push(out, value);
    }
}

/// Returns the accounts that signed a block.
pub(crate) fn signers_of(block: &Block) -> [usize; SIGNERS] {
    let first = usize::from(block.header.mix_hash[0]);
    std::array::from_fn(|at| (first + at) % super::ACCOUNTS)
}

/// Returns the BLS public key of an account. It is synthetic, because nothing verifies it.
pub(crate) fn bls_key(seed: u64, account: usize) -> [u8; 48] {
    let mut draws = SeedStream::at(seed, &[DRAW_BLS, account as u64]);
    let mut key = [0; 48];
    key[..32].copy_from_slice(draws.hash().as_slice());
    key[32..].copy_from_slice(&draws.hash()[..16]);
    key
}

/// The stream of BLS keys.
const DRAW_BLS: u64 = 5;

pub(crate) fn address(out: &mut Vec<u8>, before: &str, address: Address) {
    out.extend_from_slice(before.as_bytes());
    out.push(b'"');
    out.extend_from_slice(bech32::write_address(address).as_bytes());
    out.push(b'"');
}

fn bytes(out: &mut Vec<u8>, before: &str, value: &[u8]) {
    out.extend_from_slice(before.as_bytes());
    push_bytes(out, value);
}
