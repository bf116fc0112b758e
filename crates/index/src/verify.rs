//! Whether what a node says of a block is bound to the block's hash: which fields follow from it,
//! which from each other, and which are the node's word alone.
//!
//! A node is not trusted. What the index stores is the node's JSON as it came, so every member that
//! a reader may rely on must be checked, not only those that are hashed. Whether the hash itself is
//! that of the chain is not decided here: the links from block to block and the head are others'
//! matter. Nothing is asked of a node and nothing is stored here.
//!
//! What each [`Level`] binds; each includes those before it:
//!
//! | level | [`block()`] | [`receipts()`] | [`logs()`] |
//! | --- | --- | --- | --- |
//! | `off` | nothing: `number`, `hash`, `parentHash`, `timestamp` can be read, `transactions` is an array of objects with a `hash` | an array of as many objects as there are transactions, each with `logs` and the `transactionHash` of its own | an array of objects with `address`, `topics` and `data` |
//! | `headers` | the header's members, by `hash` | nothing more | where each stands (as below); addresses and topics, by `logsBloom`, as far as a bloom can tell |
//! | `full` | the rest of the block, as below | all, as below | nothing more |
//! | `senders` | `from`, by the signature | nothing more; `from` is the transaction's | nothing more |
//!
//! At `full`, of a block:
//! - by a transaction's `hash` (its type's encoding is built anew): `type`, `chainId`, `nonce`,
//!   `gas`, `to`, `value`, `input`, the offered fees, `accessList`, `blobVersionedHashes`,
//!   `authorizationList`, `v` or `yParity`, `r`, `s`;
//! - by `transactionsRoot`: which transactions there are, and in which order;
//! - from these: `blockHash`, `blockNumber`, `blockTimestamp`, `transactionIndex`, `gasPrice` (from
//!   EIP-1559 on the price that was paid), `chainId` and `yParity` of legacy transactions, `data`;
//! - by `withdrawalsRoot`: `withdrawals`;
//! - `uncles` is empty exactly if `sha3Uncles` is the hash of an empty list;
//! - `size` is the length of the block in RLP, if it has no uncles.
//!
//! At `full`, of receipts:
//! - by `receiptsRoot`: `type`, `status` or `root`, `cumulativeGasUsed`, and of each log `address`,
//!   `topics`, `data`;
//! - from these: `gasUsed`, `logsBloom` of the receipt and of the header;
//! - from the block: `blockHash`, `blockNumber`, `blockTimestamp`, `transactionHash`,
//!   `transactionIndex`, of each log too, its `logIndex`, and that `removed` is false;
//! - from the transaction: `from`, `to`, `effectiveGasPrice`, `contractAddress`, `blobGasUsed`.
//!
//! What remains the node's word:
//! - `totalDifficulty`, the sum over all blocks before;
//! - `from` below `senders`, and what follows from it: a receipt's `from` and `contractAddress`
//!   must agree with it, nothing else binds them;
//! - the hashes in `uncles` and `size` where there are any, since `sha3Uncles` is of whole headers;
//! - `blobGasPrice`: only that all receipts have the same, and none above `maxFeePerBlobGas`. It
//!   follows from `excessBlobGas` by a parameter that changes with forks;
//! - that a member which may be missing is missing: `size`, `uncles`, `totalDifficulty`,
//!   `blockTimestamp`, `gasPrice` from EIP-1559 on, `effectiveGasPrice`, `removed` and the like;
//! - with [`header()`] alone: the hashes of the transactions, which logs must agree with;
//! - with [`logs()`] alone: `data`; a log without topics from an address that emits others; and
//!   everything else that sets no new bit;
//! - members of no standard, such as `authority`, `publicKey`, `l1BlockNumber`. They are stored.
//!
//! The header's `gasUsed` is not compared with the last `cumulativeGasUsed`: both are bound without
//! it, and EIP-7778 lets them differ.
//!
//! A member that is missing, null, of another form or stands twice is a [`Fault`] as well. If the
//! header's hash is wrong, it cannot be known which member of the header is: the fault is that of
//! `hash`, also where `transactionsRoot`, say, contradicts the transactions too. In everything
//! else the fault names the transaction or the receipt, unless only a root shows it.
//!
//! Transactions of other types than Ethereum's 0 to 4 (deposits of rollups, say) are no lie, but
//! cannot be verified: [`Fault::is_unverifiable`]. What cannot be told apart from lies are blocks
//! of chains whose header is hashed in another way, such as Harmony's.

mod bloom;
mod cursor;
mod fault;
mod fields;
mod header;
mod log;
mod receipt;
#[cfg(test)]
pub(crate) mod tests;
mod transaction;

use std::fmt;
use std::str::FromStr;

use alloy_consensus::Header;
use alloy_primitives::{B256, Bloom};

use self::bloom::Bloomer;
use self::cursor::Cursor;
pub use self::fault::{Fault, FaultKind};
use self::fields::Layout;
use self::log::{Log, LogPlace};

/// How much of an answer is verified before it is stored; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Only that it has the shape which storing needs.
    Off,
    /// That the header hashes to the block's hash.
    Headers,
    /// That transactions, receipts, logs and withdrawals belong to the header.
    Full,
    /// That senders are those who signed. Apart, because it takes longer than all the rest.
    Senders,
}

impl Level {
    /// The levels from the least to the most, each with its name.
    const NAMES: [(Level, &'static str); 4] = [
        (Level::Off, "off"),
        (Level::Headers, "headers"),
        (Level::Full, "full"),
        (Level::Senders, "senders"),
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(level, _)| level == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// A word that is no [`Level`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no level of verification, allowed are off, headers, full and senders")]
pub struct UnknownLevel(pub String);

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(name: &str) -> Result<Self, UnknownLevel> {
        let known = Self::NAMES.iter().find(|(_, known)| *known == name);
        known.map(|(level, _)| *level).ok_or_else(|| UnknownLevel(name.to_owned()))
    }
}

/// What is known of a block after reading it, as far as storing it and checking its receipts need.
#[derive(Debug, Clone)]
pub struct Block {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of the block before it.
    pub parent: B256,
    /// When it was made, in seconds since 1970.
    pub timestamp: u64,
    /// Its transactions in order. If it was read by [`header()`], those whose hashes stood there,
    /// which is the node's word.
    pub transactions: Vec<Tx>,
    /// The header, which hashes to `hash`; none if it was read at [`Level::Off`].
    pub header: Option<Header>,
}

/// A transaction of a [`Block`].
#[derive(Debug, Clone)]
pub struct Tx {
    /// Its hash.
    pub hash: B256,
    /// None below [`Level::Full`].
    body: Option<transaction::Body>,
}

/// Reads and verifies a block with full transactions: the result of `eth_getBlockByNumber` or
/// `eth_getBlockByHash`, raw, validated as JSON before.
///
/// # Errors
///
/// The first fault found, in this order: the form of the header's members, the header's hash, each
/// transaction from the first to the last, the transactions' root, withdrawals, uncles, size.
pub fn block(raw: &[u8], level: Level) -> Result<Block, Fault> {
    let fields = header::read(raw)?;
    let mut block = opened(&fields, level)?;
    let list = fields.need_raw(header::TRANSACTIONS, "an array of transactions")?;
    let (transactions, bytes) = transaction::read_all(list, &block, level)?;
    if let (true, Some(header)) = (level >= Level::Full, &block.header) {
        header::check_body(&fields, header, bytes)?;
    }
    block.transactions = transactions;
    Ok(block)
}

/// Reads a header and verifies its hash unless the level is off: a block without transactions or
/// with their hashes only, or what `newHeads` tells. Hashes of transactions are taken as they are,
/// so that the places of [`logs()`] can be compared with them; nothing else but the header is read.
///
/// # Errors
///
/// A member of the header of the wrong form; then the header's hash; then a transaction's hash of
/// the wrong form.
pub fn header(raw: &[u8], level: Level) -> Result<Block, Fault> {
    let fields = header::read(raw)?;
    let mut block = opened(&fields, level)?;
    let hashes = header::hashes(&fields)?.into_iter();
    block.transactions = hashes.map(|hash| Tx { hash, body: None }).collect();
    Ok(block)
}

fn opened(fields: &header::BlockFields<'_>, level: Level) -> Result<Block, Fault> {
    let header = match level {
        Level::Off => None,
        Level::Headers | Level::Full | Level::Senders => Some(header::verified(fields)?),
    };
    Ok(Block {
        number: fields.need(header::NUMBER)?,
        hash: fields.need(header::HASH)?,
        parent: fields.need(header::PARENT)?,
        timestamp: fields.need(header::TIMESTAMP)?,
        transactions: Vec::new(),
        header,
    })
}

/// Verifies the receipts of a block that was verified at the same level: the result of
/// `eth_getBlockReceipts`, raw, validated as JSON before.
///
/// # Errors
///
/// The first fault found: each receipt from the first to the last, their number, the header's
/// `logsBloom`, its `receiptsRoot`.
pub fn receipts(block: &Block, raw: &[u8], level: Level) -> Result<(), Fault> {
    match level {
        Level::Off | Level::Headers => receipt::check_shape(block, raw),
        Level::Full | Level::Senders => receipt::check_all(block, verified_header(block)?, raw),
    }
}

/// Verifies the logs of a block without its receipts: the result of `eth_getLogs` with the block's
/// hash, raw, validated as JSON before.
///
/// # Errors
///
/// The first fault found: each log from the first to the last, then from [`Level::Headers`] on the
/// header's `logsBloom`.
pub fn logs(block: &Block, raw: &[u8], level: Level) -> Result<(), Fault> {
    let mut layout = Layout::new(&log::LOG);
    let (mut bloomer, mut bloom) = (Bloomer::default(), Bloom::ZERO);
    let (mut scratch, mut index_before) = (Vec::new(), 0);
    Cursor::new(raw)
        .elements(|log_index, cursor| {
            let log = Log::read(cursor, &mut layout)?;
            if level == Level::Off {
                return Ok(());
            }
            let fields = &log.fields;
            let transaction_index = fields.need::<u64>(log::TX_INDEX)?;
            let place = usize::try_from(transaction_index).unwrap_or(usize::MAX);
            let Some(transaction) = block.transactions.get(place) else {
                let count = format!("less than {:#x}", block.transactions.len());
                let from = "the number of transactions";
                return Err(fields.contradiction(log::TX_INDEX, &count, from));
            };
            if place < index_before {
                let least = format!("at least {index_before:#x}");
                return Err(fields.contradiction(log::TX_INDEX, &least, "the log before"));
            }
            index_before = place;
            log.check_place(&LogPlace {
                block,
                transaction: &transaction.hash,
                transaction_index,
                log_index: log_index as u64,
            })?;
            bloomer.add(&mut bloom, &log.address, log.topics());
            log.check_data(&mut scratch)
        })
        .map_err(|fault| fault.of("logs"))?;
    if level >= Level::Headers {
        receipt::check_bloom(verified_header(block)?, &bloom)?;
    }
    Ok(())
}

/// The header that a block holds unless it was read at [`Level::Off`].
fn verified_header(block: &Block) -> Result<&Header, Fault> {
    block.header.as_ref().ok_or_else(|| {
        Fault::missing("a block whose header was verified before").of("receiptsRoot")
    })
}
