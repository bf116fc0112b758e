//! One block: built from its place, its parent and the seed, with real hashes. Rendering as JSON is
//! in `block/eth.rs` and `block/harmony.rs`; which blocks exist is `schedule.rs`.
//!
//! What is real: transaction hashes, transactions root, receipts root, blooms, base fee (EIP-1559),
//! parent links and the header hash. What is filler: signatures (valid in form, but no key signed
//! them, so `from` cannot be recovered) and the state root (a commitment to the balances, not a
//! trie, since no proof is served).

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
use crate::seed::Draws;

/// How many accounts send transactions. Few, so that each one's balance moves in nearly every
/// block, and so that a snapshot of all of them per block stays small.
pub const ACCOUNTS: usize = 16;
/// How many contracts emit logs and have code and storage.
pub const CONTRACTS: usize = 8;

/// What every account holds before block 1, in wei: far above 2^53, as on Harmony.
pub const BALANCE_AT_GENESIS: u128 = 1_000_000_000_000_000_000_000_000_000;

/// The topic of ERC-20's `Transfer(address,address,uint256)`.
pub const TOPIC_TRANSFER: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
/// The topic of ERC-20's `Approval(address,address,uint256)`.
pub const TOPIC_APPROVAL: B256 =
    b256!("8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925");

const GWEI: u64 = 1_000_000_000;
/// The base fee about which the chain hovers: blocks are fuller below it and emptier above it.
const BASE_FEE_AIM: u64 = GWEI;
/// Far above any base fee that the aim lets happen.
const FEE_MAX: u128 = 1_000 * GWEI as u128;
/// Gas that a transaction offers, and so the most that one can use.
const GAS_OFFERED: u64 = 100_000;
const GAS_TRANSFER: u64 = 21_000;
/// Most gas that a contract call uses; the block's gas limit is a multiple of it.
const GAS_CALL_MAX: u64 = 80_000;
/// Every so many transactions, one differs between branches, so that a reorg makes it vanish
/// instead of moving it into another block.
const VANISHING_EVERY: u64 = 8;

const DRAW_TRANSACTION: u64 = 1;
const DRAW_BLOCK: u64 = 2;
const DRAW_ACCOUNT: u64 = 3;
const DRAW_CONTRACT: u64 = 4;
const DRAW_PARTY: u64 = 5;
/// So many parties hold what one contract accounts for, in a world with many of them.
const PARTIES_PER_CONTRACT: u64 = 16;
/// More parties than this power of two change nothing.
const PARTIES_LOG_MAX: u32 = 40;

/// The world's addresses.
#[derive(Clone, Debug)]
pub struct Cast {
    /// Senders and receivers, in nonce order.
    pub accounts: [Address; ACCOUNTS],
    /// Contracts.
    pub contracts: [Address; CONTRACTS],
}

impl Cast {
    /// The addresses of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let draw = |kind, at: usize| {
            Address::from_slice(&Draws::at(seed, &[kind, at as u64]).hash()[12..])
        };
        Self {
            accounts: std::array::from_fn(|at| draw(DRAW_ACCOUNT, at)),
            contracts: std::array::from_fn(|at| draw(DRAW_CONTRACT, at)),
        }
    }
}

/// What a block leaves to its children.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The block's hash.
    pub hash: B256,
    /// Transactions of the chain up to and including this block.
    pub transactions_total: u64,
    /// Gas that it used.
    pub gas_used: u64,
    /// Its base fee.
    pub base_fee: u64,
    /// Balance of each account after it.
    pub balances: Box<[u128; ACCOUNTS]>,
    /// How many transactions each account has received up to and including this block.
    pub received: Box<[u64; ACCOUNTS]>,
}

/// A transaction of either of the two kinds that the chain holds.
#[derive(Clone, Debug)]
pub enum Signing {
    /// Before EIP-2718, with the chain id in `v`.
    Legacy(Signed<TxLegacy>),
    /// EIP-1559.
    Dynamic(Signed<TxEip1559>),
}

/// A transaction with what its execution left.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The signed transaction.
    pub signed: Signing,
    /// Its sender.
    pub from: Address,
    /// Gas that it used.
    pub gas_used: u64,
    /// Gas of the block up to and including it.
    pub gas_cumulative: u64,
    /// Price per gas that it paid, in wei.
    pub gas_price: u128,
    /// The bloom of its logs.
    pub bloom: Bloom,
    /// Its logs.
    pub logs: Vec<Log>,
    /// The index of its first log in the block.
    pub log_first: usize,
}

impl Transaction {
    /// The transaction's hash.
    #[must_use]
    pub fn hash(&self) -> &B256 {
        match &self.signed {
            Signing::Legacy(signed) => signed.hash(),
            Signing::Dynamic(signed) => signed.hash(),
        }
    }
}

/// A whole block.
#[derive(Debug)]
pub struct Block {
    /// The branch that holds it.
    pub branch: usize,
    /// The header's hash.
    pub hash: B256,
    /// The header.
    pub header: Header,
    /// Length of the block in RLP.
    pub size: usize,
    /// The transactions in order.
    pub transactions: Vec<Transaction>,
    /// What has been printed of it so far; `block/eth.rs` says which is where.
    rendered: [OnceLock<bytes::Bytes>; 3],
}

/// Where a block is built.
pub(crate) struct Site<'a> {
    pub(crate) options: &'a WorldOptions,
    pub(crate) cast: &'a Cast,
    pub(crate) branch: usize,
    pub(crate) number: u64,
    pub(crate) parent: &'a Standing,
}

impl Block {
    /// Block 0 of a world and what it leaves.
    pub(crate) fn genesis(options: &WorldOptions, cast: &Cast) -> (Self, Standing) {
        let before = Standing {
            hash: B256::ZERO,
            transactions_total: 0,
            gas_used: 0,
            base_fee: BASE_FEE_AIM,
            balances: Box::new([BALANCE_AT_GENESIS; ACCOUNTS]),
            received: Box::new([0; ACCOUNTS]),
        };
        let site = Site { options, cast, branch: 0, number: 0, parent: &before };
        site.seal(Vec::new(), Accounts::after(&before), BASE_FEE_AIM)
    }

    /// A header that no chain holds, `ahead` blocks above `head`: what a lying node announces.
    /// Its hash is the true hash of its contents; its parent does not exist.
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

/// The accounts while a block is executed.
struct Accounts {
    balances: Box<[u128; ACCOUNTS]>,
    received: Box<[u64; ACCOUNTS]>,
}

impl Accounts {
    fn after(parent: &Standing) -> Self {
        Self { balances: parent.balances.clone(), received: parent.received.clone() }
    }
}

impl Site<'_> {
    /// Builds the block and what it leaves.
    pub(crate) fn build(&self) -> (Block, Standing) {
        let parent = self.parent;
        let base_fee = calc_next_block_base_fee(
            parent.gas_used,
            self.gas_limit(),
            parent.base_fee,
            BaseFeeParams::ethereum(),
        );
        let mut draws =
            Draws::at(self.options.seed, &[DRAW_BLOCK, self.branch as u64, self.number]);
        let (min, max) = (self.options.transactions_min, self.options.transactions_max);
        let middle = min.midpoint(max);
        let cheap = base_fee < BASE_FEE_AIM;
        let count = if cheap { draws.within(middle, max) } else { draws.within(min, middle) };

        let miner = (self.number % ACCOUNTS as u64) as usize;
        let mut accounts = Accounts::after(parent);
        let mut transactions = Vec::with_capacity(count as usize);
        let (mut gas, mut log_first) = (0, 0);
        for place in 0..count {
            let mut transaction = self.transaction(parent.transactions_total + place);
            let gas_used = match (transaction.logs.is_empty(), cheap) {
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

    /// The gas limit: twice the gas at which the base fee stays as it is.
    fn gas_limit(&self) -> u64 {
        (self.options.transactions_max * GAS_CALL_MAX).max(GAS_CALL_MAX)
    }

    /// The chain's transaction with this index, before it is executed. The senders take turns, so
    /// that a nonce follows from the index alone.
    fn transaction(&self, index: u64) -> Transaction {
        let vanishing = index % VANISHING_EVERY == VANISHING_EVERY / 2;
        let salt = if vanishing { self.branch as u64 + 1 } else { 0 };
        let mut draws = Draws::at(self.options.seed, &[DRAW_TRANSACTION, index, salt]);
        let (sender, nonce) = sender_of(index);
        let from = self.cast.accounts[sender];
        let other = self.cast.accounts[draws.within(0, ACCOUNTS as u64 - 1) as usize];
        let amount = U256::from(draws.within(1, GWEI * GWEI));
        let signature = Signature::new(draws.scalar(), draws.scalar(), draws.within(0, 1) == 1);
        let tip = u128::from(draws.within(1, GWEI));

        let calls = draws.within(0, 3) != 0;
        let (to, value, input, logs) = if calls {
            let contract = draws.within(0, CONTRACTS as u64 - 1) as usize;
            let mut input = vec![0xa9, 0x05, 0x9c, 0xbb]; // transfer(address,uint256)
            input.extend_from_slice(other.into_word().as_slice());
            input.extend_from_slice(&amount.to_be_bytes::<32>());
            let count = draws.within(1, 4);
            let parties = self.options.log_parties;
            let of_many = (parties > 0).then(|| {
                let contract = self.party(&mut draws, parties / PARTIES_PER_CONTRACT);
                (contract, self.party(&mut draws, parties))
            });
            let logs = (0..count).map(|at| match of_many {
                None => self.log(&mut draws, contract, at, [from, other], amount),
                Some((contract, from)) => {
                    let to = self.party(&mut draws, parties);
                    transfer(&mut draws, contract, [from, to], amount)
                }
            });
            (self.cast.contracts[contract], U256::ZERO, Bytes::from(input), logs.collect())
        } else {
            (other, amount, Bytes::new(), Vec::new())
        };

        let (chain_id, to, gas_limit) = (self.options.chain_id, TxKind::Call(to), GAS_OFFERED);
        let signed = if draws.within(0, 3) == 0 {
            let gas_price = 100 * u128::from(GWEI) + tip;
            let chain_id = Some(chain_id);
            let legacy = TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input };
            Signing::Legacy(legacy.into_signed(signature))
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
            Signing::Dynamic(dynamic.into_signed(signature))
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

    fn log(
        &self,
        draws: &mut Draws,
        contract: usize,
        at: u64,
        [from, to]: [Address; 2],
        amount: U256,
    ) -> Log {
        let address = self.cast.contracts[(contract + at as usize) % CONTRACTS];
        transfer(draws, address, [from, to], amount.wrapping_add(U256::from(at)))
    }

    /// One of so many addresses. Powers of two are equally likely, and so are the numbers between
    /// two of them: nearly the law by Zipf that contracts and holders of tokens follow.
    fn party(&self, draws: &mut Draws, count: u64) -> Address {
        let power = draws.within(0, u64::from(count.max(1).ilog2().min(PARTIES_LOG_MAX)));
        let rank = draws.within((1 << power) - 1, (2 << power) - 2);
        Address::from_slice(&Draws::at(self.options.seed, &[DRAW_PARTY, rank]).hash()[12..])
    }

    /// Moves value, fee and tip. What the base fee takes is burnt.
    fn settle(
        &self,
        transaction: &Transaction,
        miner: usize,
        base_fee: u64,
        accounts: &mut Accounts,
    ) {
        let balances = &mut accounts.balances;
        let gas = u128::from(transaction.gas_used);
        let (to, value) = transaction.signed.payment();
        let sender = self.account(transaction.from).unwrap_or_default();
        let paid = value + gas * transaction.gas_price;
        balances[sender] = balances[sender].saturating_sub(paid);
        if let Some(receiver) = self.account(to) {
            balances[receiver] += value;
            accounts.received[receiver] += 1;
        }
        balances[miner] += gas * (transaction.gas_price - u128::from(base_fee));
    }

    fn account(&self, address: Address) -> Option<usize> {
        self.cast.accounts.iter().position(|account| *account == address)
    }

    /// Computes roots and hash over executed transactions.
    fn seal(
        &self,
        transactions: Vec<Transaction>,
        accounts: Accounts,
        base_fee: u64,
    ) -> (Block, Standing) {
        let mut draws = Draws::at(
            self.options.seed,
            &[DRAW_BLOCK, self.branch as u64, self.number, transactions.len() as u64],
        );
        let encoded: Vec<Vec<u8>> = transactions.iter().map(|t| t.signed.encoded()).collect();
        let receipts: Vec<Vec<u8>> = transactions.iter().map(receipt_encoded).collect();
        let bloom = transactions.iter().fold(Bloom::ZERO, |bloom, t| bloom | t.bloom);
        let gas_used = transactions.last().map_or(0, |last| last.gas_cumulative);
        let seconds = (self.options.block_time.as_secs()).max(1);
        let header = Header {
            parent_hash: self.parent.hash,
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            beneficiary: self.cast.accounts[(self.number % ACCOUNTS as u64) as usize],
            state_root: state_commitment(&accounts.balances),
            transactions_root: ordered_trie_root_encoded(&encoded),
            receipts_root: ordered_trie_root_encoded(&receipts),
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
        let standing = Standing {
            hash,
            transactions_total: self.parent.transactions_total + transactions.len() as u64,
            gas_used,
            base_fee,
            balances: accounts.balances,
            received: accounts.received,
        };
        let in_list = transactions.iter().zip(&encoded).map(|(t, bytes)| match t.signed {
            Signing::Legacy(_) => bytes.len(),
            Signing::Dynamic(_) => bytes.as_slice().length(),
        });
        let size = size_in_rlp(&header, in_list.sum());
        let rendered = Default::default();
        (Block { branch: self.branch, hash, header, size, transactions, rendered }, standing)
    }
}

impl Signing {
    /// The price per gas that the transaction pays in a block with this base fee.
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

    fn payment(&self) -> (Address, u128) {
        let (to, value) = match self {
            Self::Legacy(signed) => (signed.tx().to, signed.tx().value),
            Self::Dynamic(signed) => (signed.tx().to, signed.tx().value),
        };
        (to.to().copied().unwrap_or_default(), value.saturating_to())
    }

    /// The transaction as EIP-2718 bytes.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Legacy(signed) => signed.encoded_2718(),
            Self::Dynamic(signed) => signed.encoded_2718(),
        }
    }
}

/// A transfer or an approval.
fn transfer(draws: &mut Draws, address: Address, [from, to]: [Address; 2], amount: U256) -> Log {
    let topic = if draws.within(0, 4) == 0 { TOPIC_APPROVAL } else { TOPIC_TRANSFER };
    let topics = vec![topic, from.into_word(), to.into_word()];
    let amount = amount.to_be_bytes::<32>();
    Log::new_unchecked(address, topics, Bytes::copy_from_slice(&amount))
}

/// The sender and nonce of the chain's transaction with this index.
#[must_use]
pub fn sender_of(index: u64) -> (usize, u64) {
    ((index % ACCOUNTS as u64) as usize, index / ACCOUNTS as u64)
}

/// How many transactions an account has sent when the chain holds `total` of them.
#[must_use]
pub fn nonce_after(account: usize, total: u64) -> u64 {
    (total + ACCOUNTS as u64 - 1 - account as u64) / ACCOUNTS as u64
}

/// The receipt as EIP-2718 bytes: what the receipts root is made of.
pub(crate) fn receipt_encoded(transaction: &Transaction) -> Vec<u8> {
    let receipt = Receipt {
        status: Eip658Value::Eip658(true),
        cumulative_gas_used: transaction.gas_cumulative,
        logs: transaction.logs.clone(),
    };
    let receipt = ReceiptWithBloom::new(receipt, transaction.bloom);
    match transaction.signed {
        Signing::Legacy(_) => ReceiptEnvelope::Legacy(receipt).encoded_2718(),
        Signing::Dynamic(_) => ReceiptEnvelope::Eip1559(receipt).encoded_2718(),
    }
}

fn state_commitment(balances: &[u128; ACCOUNTS]) -> B256 {
    let bytes: Vec<u8> = balances.iter().flat_map(|balance| balance.to_be_bytes()).collect();
    keccak256(bytes)
}

/// Length of a block in RLP: header, transactions, no uncles, no withdrawals.
fn size_in_rlp(header: &Header, transactions: usize) -> usize {
    let list = |payload: usize| payload + alloy_rlp::length_of_length(payload);
    list(header.length() + list(transactions) + list(0) + list(0))
}

#[cfg(test)]
mod tests;
