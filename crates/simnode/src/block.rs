//! Builds one block from its position (branch and number), its parent and the seed. A reorg of the
//! simulated chain starts a new branch. `block/eth.rs` and `block/harmony.rs` render the block as
//! JSON. `schedule.rs` decides which blocks exist.
//!
//! These parts are computed as on a real chain: the transaction hashes, the transactions root, the
//! receipts root, the blooms, the base fee (EIP-1559), the parent links and the header hash. Two
//! parts are synthetic. Signatures are well-formed, but no key signed them, so a client cannot
//! recover the sender from them. The state root is a hash of the balances, because nodes serve no
//! state proofs.

mod eth;
pub(crate) mod harmony;

use std::sync::OnceLock;

use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Eip658Value, Header, Receipt, ReceiptEnvelope,
    ReceiptWithBloom, SignableTransaction, Signed, TxEip1559, TxLegacy,
};
use alloy_eips::eip1559::{BaseFeeParams, calc_effective_gas_price, calc_next_block_base_fee};
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_primitives::{
    Address, B64, B256, Bloom, Bytes, Log, Signature, TxKind, U256, b256, keccak256, logs_bloom,
};
use alloy_rlp::Encodable;
use alloy_trie::root::ordered_trie_root_encoded;

pub(crate) use self::eth::{push_log, push_pooled};
use crate::schedule::WorldOptions;
use crate::seed::SeedStream;

/// Number of accounts that send transactions. With few accounts, each balance changes in nearly
/// every block, and the balances of a block need little memory.
pub const ACCOUNTS: usize = 16;
/// Number of contracts with logs, code and storage.
pub const CONTRACTS: usize = 8;

/// Balance of every account before block 1, in wei: far above 2^53, as on Harmony.
pub const BALANCE_AT_GENESIS: u128 = 1_000_000_000_000_000_000_000_000_000;

/// The topic of ERC-20's `Transfer(address,address,uint256)`.
pub const TOPIC_TRANSFER: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
/// The topic of ERC-20's `Approval(address,address,uint256)`.
pub const TOPIC_APPROVAL: B256 =
    b256!("8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925");

const GWEI: u64 = 1_000_000_000;
/// Target of the base fee, in wei. Blocks use more gas below the target and less above it.
const BASE_FEE_TARGET: u64 = GWEI;
/// Maximum fee of a transaction, far above any base fee of the chain.
const FEE_MAX: u128 = 1_000 * GWEI as u128;
/// Gas limit of a transaction.
const GAS_LIMIT: u64 = 100_000;
const GAS_TRANSFER: u64 = 21_000;
/// Maximum gas of a contract call. The block's gas limit is a multiple of this maximum.
const GAS_CALL_MAX: u64 = 80_000;
/// One in this many transactions differs between branches. A reorg removes such a transaction from
/// the chain, instead of moving it into another block.
const VANISHING_EVERY: u64 = 8;

// Each random stream has a position, which is a list of words (`seed.rs`). These constants are the
// first words. They separate the streams from each other.
const DRAW_TRANSACTION: u64 = 1;
const DRAW_BLOCK: u64 = 2;
const DRAW_ACCOUNT: u64 = 3;
const DRAW_CONTRACT: u64 = 4;
const DRAW_PARTY: u64 = 5;
/// Number of token holders for each contract, if the addresses in logs are drawn
/// ([`WorldOptions::log_parties`]).
const PARTIES_PER_CONTRACT: u64 = 16;
/// Binary logarithm of the maximum number of drawn addresses.
const PARTIES_LOG_MAX: u32 = 40;

/// The addresses of the chain.
#[derive(Clone, Debug)]
pub struct KnownAddresses {
    /// Senders and receivers. They take turns to send transactions, in this order.
    pub accounts: [Address; ACCOUNTS],
    /// Contracts.
    pub contracts: [Address; CONTRACTS],
}

impl KnownAddresses {
    /// Creates the addresses of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let draw = |domain, index: usize| {
            Address::from_slice(&SeedStream::at(seed, &[domain, index as u64]).hash()[12..])
        };
        Self {
            accounts: std::array::from_fn(|index| draw(DRAW_ACCOUNT, index)),
            contracts: std::array::from_fn(|index| draw(DRAW_CONTRACT, index)),
        }
    }
}

/// The state after a block. The children of the block build on this state.
#[derive(Clone, Debug)]
pub struct PostState {
    /// The block's hash.
    pub hash: B256,
    /// Number of transactions of the chain up to and including this block.
    pub transactions_total: u64,
    /// Gas that the block used.
    pub gas_used: u64,
    /// The base fee of the block.
    pub base_fee: u64,
    /// Balance of each account after the block.
    pub balances: Box<[u128; ACCOUNTS]>,
    /// Number of transactions that each account has received up to and including this block.
    pub received: Box<[u64; ACCOUNTS]>,
}

/// A signed transaction of one of the two types of the chain.
#[derive(Clone, Debug)]
pub enum SignedTransaction {
    /// A legacy transaction, with the chain id in `v`.
    Legacy(Signed<TxLegacy>),
    /// An EIP-1559 transaction.
    Dynamic(Signed<TxEip1559>),
}

/// A transaction with the outcome of its execution.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The signed transaction.
    pub signed: SignedTransaction,
    /// The sender.
    pub from: Address,
    /// Gas that the transaction used.
    pub gas_used: u64,
    /// Gas that the block's transactions have used, up to and including this one.
    pub gas_cumulative: u64,
    /// Paid price per gas, in wei.
    pub gas_price: u128,
    /// The bloom of its logs.
    pub bloom: Bloom,
    /// The logs.
    pub logs: Vec<Log>,
    /// The index of the transaction's first log among the logs of the block.
    pub log_first: usize,
}

impl Transaction {
    /// Returns the transaction's hash.
    #[must_use]
    pub fn hash(&self) -> &B256 {
        match &self.signed {
            SignedTransaction::Legacy(signed) => signed.hash(),
            SignedTransaction::Dynamic(signed) => signed.hash(),
        }
    }
}

/// A complete block.
#[derive(Debug)]
pub struct Block {
    /// Index of the block's branch.
    pub branch: usize,
    /// The header's hash.
    pub hash: B256,
    /// The header.
    pub header: Header,
    /// Number of bytes of the block in RLP.
    pub size: usize,
    /// The transactions in order.
    pub transactions: Vec<Transaction>,
    /// The JSON texts that were rendered so far. `block/eth.rs` defines their indexes.
    rendered: [OnceLock<bytes::Bytes>; 3],
}

/// The inputs that a block is built from.
pub(crate) struct BlockBuilder<'a> {
    pub(crate) options: &'a WorldOptions,
    pub(crate) addresses: &'a KnownAddresses,
    pub(crate) branch: usize,
    pub(crate) number: u64,
    pub(crate) parent: &'a PostState,
}

impl Block {
    /// Builds block 0 and the state after it.
    pub(crate) fn genesis(options: &WorldOptions, addresses: &KnownAddresses) -> (Self, PostState) {
        let initial_state = PostState {
            hash: B256::ZERO,
            transactions_total: 0,
            gas_used: 0,
            base_fee: BASE_FEE_TARGET,
            balances: Box::new([BALANCE_AT_GENESIS; ACCOUNTS]),
            received: Box::new([0; ACCOUNTS]),
        };
        let builder =
            BlockBuilder { options, addresses, branch: 0, number: 0, parent: &initial_state };
        builder.seal(Vec::new(), ExecutionState::after(&initial_state), BASE_FEE_TARGET)
    }

    /// Fabricates a block above `head`, the newest real block. A lying node announces such a block.
    /// Its hash matches its contents, but its parent does not exist.
    pub(crate) fn fabricated(head: &Self, number: u64) -> Self {
        let mut header = head.header.clone();
        header.parent_hash = keccak256([&head.hash[..], &number.to_be_bytes()].concat());
        header.timestamp += number - header.number;
        header.number = number;
        header.transactions_root = EMPTY_ROOT_HASH;
        header.receipts_root = EMPTY_ROOT_HASH;
        header.logs_bloom = Bloom::ZERO;
        header.gas_used = 0;
        Self {
            branch: head.branch,
            hash: header.hash_slow(),
            size: size_in_rlp(&header, 0),
            header,
            transactions: Vec::new(),
            rendered: Default::default(),
        }
    }
}

/// The state of the accounts while a block is executed.
struct ExecutionState {
    balances: Box<[u128; ACCOUNTS]>,
    received: Box<[u64; ACCOUNTS]>,
}

impl ExecutionState {
    fn after(parent: &PostState) -> Self {
        Self { balances: parent.balances.clone(), received: parent.received.clone() }
    }
}

impl BlockBuilder<'_> {
    /// Builds the block and the state after it.
    pub(crate) fn build(&self) -> (Block, PostState) {
        let parent = self.parent;
        let base_fee = calc_next_block_base_fee(
            parent.gas_used,
            self.gas_limit(),
            parent.base_fee,
            BaseFeeParams::ethereum(),
        );
        let mut draws =
            SeedStream::at(self.options.seed, &[DRAW_BLOCK, self.branch as u64, self.number]);
        let (min, max) = (self.options.transactions_min, self.options.transactions_max);
        let middle = min.midpoint(max);
        // A cheap block has more transactions, each with more gas, so the next base fee rises.
        let is_cheap = base_fee < BASE_FEE_TARGET;
        let count = if is_cheap { draws.within(middle, max) } else { draws.within(min, middle) };

        let miner = (self.number % ACCOUNTS as u64) as usize;
        let mut accounts = ExecutionState::after(parent);
        let mut transactions = Vec::with_capacity(count as usize);
        let (mut gas, mut log_first) = (0, 0);
        for index_in_block in 0..count {
            let mut transaction =
                self.build_transaction(parent.transactions_total + index_in_block);
            let gas_used = match (transaction.logs.is_empty(), is_cheap) {
                (true, _) => GAS_TRANSFER,
                (false, true) => draws.within(50_000, GAS_CALL_MAX),
                (false, false) => draws.within(25_000, 40_000),
            };
            gas += gas_used;
            transaction.gas_used = gas_used;
            transaction.gas_cumulative = gas;
            transaction.log_first = log_first;
            log_first += transaction.logs.len();
            transaction.gas_price = transaction.signed.gas_price(base_fee);
            self.settle(&transaction, miner, base_fee, &mut accounts);
            transactions.push(transaction);
        }
        self.seal(transactions, accounts, base_fee)
    }

    /// Returns the gas limit: twice the gas at which the base fee does not change.
    fn gas_limit(&self) -> u64 {
        (self.options.transactions_max * GAS_CALL_MAX).max(GAS_CALL_MAX)
    }

    /// Builds the transaction with this index in the chain, without the outcome of its execution.
    /// The senders take turns, so the nonce follows from the index alone.
    fn build_transaction(&self, index: u64) -> Transaction {
        let is_vanishing = index % VANISHING_EVERY == VANISHING_EVERY / 2;
        let salt = if is_vanishing { self.branch as u64 + 1 } else { 0 };
        let mut draws = SeedStream::at(self.options.seed, &[DRAW_TRANSACTION, index, salt]);
        let (sender, nonce) = sender_of(index);
        let from = self.addresses.accounts[sender];
        let receiver = self.addresses.accounts[draws.within(0, ACCOUNTS as u64 - 1) as usize];
        let amount = U256::from(draws.within(1, GWEI * GWEI));
        let signature = Signature::new(draws.scalar(), draws.scalar(), draws.within(0, 1) == 1);
        let tip = u128::from(draws.within(1, GWEI));

        // Three of four transactions call a contract.
        let is_contract_call = draws.within(0, 3) != 0;
        let (to, value, input, logs) = if is_contract_call {
            let contract = draws.within(0, CONTRACTS as u64 - 1) as usize;
            let mut input = vec![0xa9, 0x05, 0x9c, 0xbb]; // transfer(address,uint256)
            input.extend_from_slice(receiver.into_word().as_slice());
            input.extend_from_slice(&amount.to_be_bytes::<32>());
            let count = draws.within(1, 4);
            let parties = self.options.log_parties;
            let drawn_parties = (parties > 0).then(|| {
                let contract = self.draw_party(&mut draws, parties / PARTIES_PER_CONTRACT);
                (contract, self.draw_party(&mut draws, parties))
            });
            let logs = (0..count).map(|index| match drawn_parties {
                None => self.build_log(&mut draws, contract, index, [from, receiver], amount),
                Some((contract, from)) => {
                    let to = self.draw_party(&mut draws, parties);
                    build_transfer_log(&mut draws, contract, [from, to], amount)
                }
            });
            (self.addresses.contracts[contract], U256::ZERO, Bytes::from(input), logs.collect())
        } else {
            (receiver, amount, Bytes::new(), Vec::new())
        };

        let (chain_id, to, gas_limit) = (self.options.chain_id, TxKind::Call(to), GAS_LIMIT);
        let signed = if draws.within(0, 3) == 0 {
            let gas_price = 100 * u128::from(GWEI) + tip;
            let chain_id = Some(chain_id);
            let legacy = TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input };
            SignedTransaction::Legacy(legacy.into_signed(signature))
        } else {
            let dynamic = TxEip1559 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: FEE_MAX,
                max_priority_fee_per_gas: tip,
                to,
                value,
                access_list: Default::default(),
                input,
            };
            SignedTransaction::Dynamic(dynamic.into_signed(signature))
        };
        Transaction {
            signed,
            from,
            gas_used: 0,
            gas_cumulative: 0,
            gas_price: 0,
            bloom: logs_bloom(&logs),
            logs,
            log_first: 0,
        }
    }

    /// Creates one log of a call of a contract. `index` counts the logs of the call from 0.
    fn build_log(
        &self,
        draws: &mut SeedStream,
        contract: usize,
        index: u64,
        [from, to]: [Address; 2],
        amount: U256,
    ) -> Log {
        let address = self.addresses.contracts[(contract + index as usize) % CONTRACTS];
        build_transfer_log(draws, address, [from, to], amount.wrapping_add(U256::from(index)))
    }

    /// Draws a party: an address that occurs in logs, as a contract or as a token holder. There are
    /// at least `count` and fewer than `2 * count` parties, each with a rank from 0.
    ///
    /// The ranks are divided into ranges, each twice as long as the previous range. All ranges are
    /// equally likely, and so are all ranks within a range. So the frequencies nearly have a Zipf
    /// distribution, like those of real addresses.
    fn draw_party(&self, draws: &mut SeedStream, count: u64) -> Address {
        let power = draws.within(0, u64::from(count.max(1).ilog2().min(PARTIES_LOG_MAX)));
        let rank = draws.within((1 << power) - 1, (2 << power) - 2);
        Address::from_slice(&SeedStream::at(self.options.seed, &[DRAW_PARTY, rank]).hash()[12..])
    }

    /// Applies a transaction to the balances: the receiver gets the value, and the miner the tip.
    /// The base fee is burnt.
    fn settle(
        &self,
        transaction: &Transaction,
        miner: usize,
        base_fee: u64,
        accounts: &mut ExecutionState,
    ) {
        let balances = &mut accounts.balances;
        let gas = u128::from(transaction.gas_used);
        let (to, value) = transaction.signed.payment();
        let sender = self.account_index(transaction.from).unwrap_or_default();
        let cost = value + gas * transaction.gas_price;
        balances[sender] = balances[sender].saturating_sub(cost);
        if let Some(receiver) = self.account_index(to) {
            balances[receiver] += value;
            accounts.received[receiver] += 1;
        }
        balances[miner] += gas * (transaction.gas_price - u128::from(base_fee));
    }

    /// Returns the index of an account, or `None` for any other address.
    fn account_index(&self, address: Address) -> Option<usize> {
        self.addresses.accounts.iter().position(|account| *account == address)
    }

    /// Computes the roots and the hash of the block.
    fn seal(
        &self,
        transactions: Vec<Transaction>,
        accounts: ExecutionState,
        base_fee: u64,
    ) -> (Block, PostState) {
        // The fourth word separates this stream from the stream in `build`.
        let mut draws = SeedStream::at(
            self.options.seed,
            &[DRAW_BLOCK, self.branch as u64, self.number, transactions.len() as u64],
        );
        let encoded_transactions: Vec<Vec<u8>> =
            transactions.iter().map(|transaction| transaction.signed.encoded()).collect();
        let encoded_receipts: Vec<Vec<u8>> = transactions.iter().map(encode_receipt).collect();
        let bloom =
            transactions.iter().fold(Bloom::ZERO, |bloom, transaction| bloom | transaction.bloom);
        let gas_used = transactions.last().map_or(0, |last| last.gas_cumulative);
        let seconds = (self.options.block_time.as_secs()).max(1);
        let header = Header {
            parent_hash: self.parent.hash,
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: self.addresses.accounts[(self.number % ACCOUNTS as u64) as usize],
            state_root: state_commitment(&accounts.balances),
            transactions_root: ordered_trie_root_encoded(&encoded_transactions),
            receipts_root: ordered_trie_root_encoded(&encoded_receipts),
            logs_bloom: bloom,
            difficulty: U256::ZERO,
            number: self.number,
            gas_limit: self.gas_limit(),
            gas_used,
            timestamp: self.options.genesis_seconds + self.number * seconds,
            extra_data: Bytes::from_static(b"weir simulated node"),
            mix_hash: draws.hash(),
            nonce: B64::ZERO,
            base_fee_per_gas: Some(base_fee),
            withdrawals_root: Some(EMPTY_ROOT_HASH),
            blob_gas_used: Some(0),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(draws.hash()),
            requests_hash: Some(EMPTY_REQUESTS_HASH),
            ..Header::default()
        };
        let hash = header.hash_slow();
        let post_state = PostState {
            hash,
            transactions_total: self.parent.transactions_total + transactions.len() as u64,
            gas_used,
            base_fee,
            balances: accounts.balances,
            received: accounts.received,
        };
        // In the RLP of a block, a legacy transaction is an RLP list, and any other transaction is
        // an RLP string.
        let pairs = transactions.iter().zip(&encoded_transactions);
        let item_sizes = pairs.map(|(transaction, bytes)| match transaction.signed {
            SignedTransaction::Legacy(_) => bytes.len(),
            SignedTransaction::Dynamic(_) => bytes.as_slice().length(),
        });
        let size = size_in_rlp(&header, item_sizes.sum());
        let rendered = Default::default();
        (Block { branch: self.branch, hash, header, size, transactions, rendered }, post_state)
    }
}

impl SignedTransaction {
    /// Returns the price per gas in a block with this base fee.
    fn gas_price(&self, base_fee: u64) -> u128 {
        match self {
            Self::Legacy(signed) => signed.tx().gas_price,
            Self::Dynamic(signed) => calc_effective_gas_price(
                signed.tx().max_fee_per_gas,
                signed.tx().max_priority_fee_per_gas,
                Some(base_fee),
            ),
        }
    }

    /// Returns the receiver, and the value in wei.
    fn payment(&self) -> (Address, u128) {
        let (to, value) = match self {
            Self::Legacy(signed) => (signed.tx().to, signed.tx().value),
            Self::Dynamic(signed) => (signed.tx().to, signed.tx().value),
        };
        (to.to().copied().unwrap_or_default(), value.saturating_to())
    }

    /// Returns the transaction as EIP-2718 bytes.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Legacy(signed) => signed.encoded_2718(),
            Self::Dynamic(signed) => signed.encoded_2718(),
        }
    }
}

/// Creates the log of a transfer or, in one of five cases, of an approval.
fn build_transfer_log(
    draws: &mut SeedStream,
    address: Address,
    [from, to]: [Address; 2],
    amount: U256,
) -> Log {
    let topic = if draws.within(0, 4) == 0 { TOPIC_APPROVAL } else { TOPIC_TRANSFER };
    let topics = vec![topic, from.into_word(), to.into_word()];
    let amount = amount.to_be_bytes::<32>();
    Log::new_unchecked(address, topics, Bytes::copy_from_slice(&amount))
}

/// Returns the sender's account index and the nonce of the transaction with this index in the
/// chain.
#[must_use]
pub fn sender_of(index: u64) -> (usize, u64) {
    ((index % ACCOUNTS as u64) as usize, index / ACCOUNTS as u64)
}

/// Returns the number of transactions that an account has sent when the chain has `total`
/// transactions.
#[must_use]
pub fn nonce_after(account: usize, total: u64) -> u64 {
    (total + ACCOUNTS as u64 - 1 - account as u64) / ACCOUNTS as u64
}

/// Encodes a receipt as EIP-2718 bytes, from which the receipts root is computed.
pub(crate) fn encode_receipt(transaction: &Transaction) -> Vec<u8> {
    let receipt = Receipt {
        status: Eip658Value::Eip658(true),
        cumulative_gas_used: transaction.gas_cumulative,
        logs: transaction.logs.clone(),
    };
    let receipt = ReceiptWithBloom::new(receipt, transaction.bloom);
    match transaction.signed {
        SignedTransaction::Legacy(_) => ReceiptEnvelope::Legacy(receipt).encoded_2718(),
        SignedTransaction::Dynamic(_) => ReceiptEnvelope::Eip1559(receipt).encoded_2718(),
    }
}

/// Returns a hash of the balances, which serves as the state root.
fn state_commitment(balances: &[u128; ACCOUNTS]) -> B256 {
    let bytes: Vec<u8> = balances.iter().flat_map(|balance| balance.to_be_bytes()).collect();
    keccak256(bytes)
}

/// Returns the number of bytes of a block in RLP: header, transactions, no uncles, no withdrawals.
fn size_in_rlp(header: &Header, transactions_bytes: usize) -> usize {
    let list_size = |payload: usize| payload + alloy_rlp::length_of_length(payload);
    list_size(header.length() + list_size(transactions_bytes) + list_size(0) + list_size(0))
}

#[cfg(test)]
mod tests;
