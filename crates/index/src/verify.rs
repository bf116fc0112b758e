//! Verifies a node's responses about a block against the block's hash.
//!
//! Nodes are not trusted. The index stores a node's JSON byte for byte. Every member that a reader
//! may rely on must therefore be verified, even if no hash covers the member. This module calls no
//! node and stores nothing. It does not decide whether the block itself is on the chain. The sync
//! decides that by the parent hashes and by the nodes' newest block.
//!
//! This table lists the members that each [`Level`] verifies. A level also verifies the members of
//! all levels above it in the table:
//!
//! | level | [`verify_block()`] | [`verify_receipts()`] | [`verify_logs()`] |
//! | --- | --- | --- | --- |
//! | `off` | none: `number`, `hash`, `parentHash`, `timestamp` must be well-formed, `transactions` must be an array of objects with a `hash` | none: an array of one object per transaction, each with `logs` and its `transactionHash` | none: an array of objects with `address`, `topics` and `data` |
//! | `headers` | the header's members, by `hash` | nothing more | each log's position (as below); addresses and topics, by `logsBloom`, as far as a Bloom filter can |
//! | `full` | the rest of the block, as below | all members, as below | nothing more |
//! | `senders` | `from`, by the signature | nothing more; `from` is compared with the transaction | nothing more |
//!
//! At `full`, these members of a block are verified:
//! - by a transaction's `hash`, computed from its encoding: `type`, `chainId`, `nonce`,
//!   `gas`, `to`, `value`, `input`, the offered fees, `accessList`, `blobVersionedHashes`,
//!   `authorizationList`, `v` or `yParity`, `r`, `s`;
//! - by `transactionsRoot`: the set and the order of the transactions;
//! - by comparison with the members above: `blockHash`, `blockNumber`, `blockTimestamp`,
//!   `transactionIndex`, `gasPrice` (since EIP-1559 the price that was paid), `chainId` and
//!   `yParity` of legacy transactions, `data`;
//! - by `withdrawalsRoot`: `withdrawals`;
//! - by `sha3Uncles`: whether `uncles` is empty;
//! - by computation from all these members: `size`, the length of the block in RLP, if the block
//!   has no uncles.
//!
//! At `full`, these members of receipts are verified:
//! - by `receiptsRoot`: `type`, `status` or `root`, `cumulativeGasUsed`, and the members `address`,
//!   `topics` and `data` of each log;
//! - by computation from these members: `gasUsed`, `logsBloom` of the receipt and of the header;
//! - by comparison with the block: `blockHash`, `blockNumber`, `blockTimestamp`, `transactionHash`,
//!   `transactionIndex`; the same members of each log, and its `logIndex`. The member `removed` of
//!   a log must be false;
//! - by comparison with the transaction: `from`, `to`, `effectiveGasPrice`, `contractAddress`,
//!   `blobGasUsed`.
//!
//! These members are not verified:
//! - `totalDifficulty`, the sum over all previous blocks;
//! - `from` at levels below `senders`. A receipt's `from` and `contractAddress` must agree with the
//!   transaction's `from`, but no hash covers them;
//! - the hashes in `uncles`, and `size` of a block with uncles, since `sha3Uncles` hashes whole
//!   headers;
//! - `blobGasPrice`, which follows from `excessBlobGas` by a parameter that changes with forks. All
//!   receipts of a block must have the same price, and the price must not exceed
//!   `maxFeePerBlobGas`;
//! - the absence of optional members, because nodes may omit them: `size`, `uncles`,
//!   `totalDifficulty`, `blockTimestamp`, `gasPrice` since EIP-1559, `effectiveGasPrice`, `removed`
//!   and the like;
//! - with [`verify_header()`] alone: the hashes of the transactions. Logs must agree with these
//!   hashes;
//! - with [`verify_logs()`] alone: `data`; and a missing or added log that changes no bit of the
//!   Bloom filter. For example, such a log has no topics, and its address also emits other logs;
//! - members that no standard defines, such as `authority`, `publicKey`, `l1BlockNumber`. The index
//!   stores them nevertheless.
//!
//! The header's `gasUsed` is not compared with the last `cumulativeGasUsed`. The header's hash
//! covers `gasUsed`, `receiptsRoot` covers `cumulativeGasUsed`, and EIP-7778 lets the two differ.
//!
//! A required member that is missing or null is an [`Error`] too, and so is a malformed or
//! duplicate member. If the header's hash is wrong, the wrong member of the header is unknown. The
//! error then names `hash`, even if the transactions show that `transactionsRoot` is wrong. Every
//! other error names the transaction or the receipt, unless only a root differs.
//!
//! Transactions of other types than Ethereum's 0 to 4, such as deposits of rollups, cannot be
//! verified: [`Error::is_unverifiable`]. Blocks of chains that hash their headers in another way,
//! such as Harmony's, cannot be distinguished from false blocks.

mod block;
mod bloom;
mod cursor;
mod error;
mod fields;
mod header;
mod level;
mod log;
mod receipt;
#[cfg(test)]
pub(crate) mod tests;
mod transaction;

use alloy_consensus::Header;
use alloy_primitives::Bloom;

pub use self::block::{Block, Tx};
use self::bloom::LogBloomBuilder;
use self::cursor::Cursor;
pub use self::error::{Error, ErrorKind};
use self::fields::Layout;
pub use self::level::Level;
use self::log::{Log, LogPosition};

/// Verifies a block with its receipts or logs. If `has_full_transactions` is true, the block must
/// have full transactions, which are verified too. Otherwise only the header is verified.
/// `receipts` and `logs` are `None` if they are not stored. If both are present, the logs are not
/// read.
///
/// # Errors
/// Returns the errors of [`verify_block()`], [`verify_header()`], [`verify_receipts()`] and
/// [`verify_logs()`].
pub fn verify_all(
    block: &[u8],
    has_full_transactions: bool,
    receipts: Option<&[u8]>,
    logs: Option<&[u8]>,
    level: Level,
) -> Result<(), Error> {
    let block = if has_full_transactions {
        verify_block(block, level)?
    } else {
        verify_header(block, level)?
    };
    match (receipts, logs) {
        (Some(receipts), _) => verify_receipts(&block, receipts, level),
        (None, Some(logs)) => verify_logs(&block, logs, level),
        (None, None) => Ok(()),
    }
}

/// Verifies a block with full transactions. `raw` is the result of `eth_getBlockByNumber` or
/// `eth_getBlockByHash`, and must be valid JSON.
///
/// # Errors
/// Returns the first error, in this order: the form of the header's members, the header's hash,
/// each transaction from the first to the last, the transactions' root, withdrawals, uncles, size.
pub fn verify_block(raw: &[u8], level: Level) -> Result<Block, Error> {
    let fields = header::read(raw)?;
    let mut block = read_header(&fields, level)?;
    let list = fields.required_raw(header::TRANSACTIONS, "an array of transactions")?;
    let (transactions, transaction_bytes) = transaction::verify_transactions(list, &block, level)?;
    if level >= Level::Full
        && let Some(header) = &block.header
    {
        header::check_body(&fields, header, transaction_bytes)?;
    }
    block.transactions = transactions;
    Ok(block)
}

/// Verifies a header by its hash, unless the level is off. `raw` is a block without transactions, a
/// block with only the hashes of transactions, or a `newHeads` notification. The hashes of
/// transactions are not verified. [`verify_logs()`] compares the logs with these hashes.
///
/// # Errors
/// Returns the first error, in this order: the form of the header's members, the header's hash, the
/// form of the hashes of transactions.
pub fn verify_header(raw: &[u8], level: Level) -> Result<Block, Error> {
    let fields = header::read(raw)?;
    let mut block = read_header(&fields, level)?;
    let hashes = header::transaction_hashes(&fields)?.into_iter();
    block.transactions = hashes.map(|hash| Tx { hash, body: None }).collect();
    Ok(block)
}

/// Reads a block without its transactions, and verifies its header unless the level is off.
fn read_header(fields: &header::BlockFields<'_>, level: Level) -> Result<Block, Error> {
    let header = match level {
        Level::Off => None,
        Level::Headers | Level::Full | Level::Senders => Some(header::verify_header(fields)?),
    };
    Ok(Block {
        number: fields.required(header::NUMBER)?,
        hash: fields.required(header::HASH)?,
        parent: fields.required(header::PARENT)?,
        timestamp: fields.required(header::TIMESTAMP)?,
        transactions: Vec::new(),
        header,
    })
}

/// Verifies the receipts of a block that was verified at the same level. `raw` is the result of
/// `eth_getBlockReceipts`, and must be valid JSON.
///
/// # Errors
/// Returns the first error, in this order: each receipt from the first to the last, the number of
/// receipts, the header's `logsBloom`, the header's `receiptsRoot`.
pub fn verify_receipts(block: &Block, raw: &[u8], level: Level) -> Result<(), Error> {
    match level {
        Level::Off | Level::Headers => receipt::check_shape(block, raw),
        Level::Full | Level::Senders => receipt::check_all(block, verified_header(block)?, raw),
    }
}

/// Verifies the logs of a block without its receipts. `raw` is the result of `eth_getLogs` with the
/// block's hash, and must be valid JSON.
///
/// # Errors
/// Returns the first error, in this order: each log from the first to the last, and the header's
/// `logsBloom`, which is verified from [`Level::Headers`] on.
pub fn verify_logs(block: &Block, raw: &[u8], level: Level) -> Result<(), Error> {
    // The layout finds the known members of each log (`verify/fields.rs`).
    let mut layout = Layout::new(&log::LOG);
    let (mut bloom_builder, mut bloom) = (LogBloomBuilder::default(), Bloom::ZERO);
    let (mut data_buffer, mut previous_index) = (Vec::new(), 0);
    Cursor::new(raw)
        .elements(|log_index, cursor| {
            let log = Log::read(cursor, &mut layout)?;
            if level == Level::Off {
                return Ok(());
            }
            let fields = &log.fields;
            let transaction_index = fields.required::<u64>(log::TX_INDEX)?;
            let index = usize::try_from(transaction_index).unwrap_or(usize::MAX);
            let Some(transaction) = block.transactions.get(index) else {
                let maximum = format!("less than {:#x}", block.transactions.len());
                let source = "the number of transactions";
                return Err(fields.mismatch_in_words(log::TX_INDEX, &maximum, source));
            };
            if index < previous_index {
                let minimum = format!("at least {previous_index:#x}");
                return Err(fields.mismatch_in_words(log::TX_INDEX, &minimum, "the log before"));
            }
            previous_index = index;
            log.check_position(&LogPosition {
                block,
                transaction_hash: &transaction.hash,
                transaction_index,
                log_index: log_index as u64,
            })?;
            bloom_builder.add(&mut bloom, &log.address, log.topics());
            log.check_data(&mut data_buffer)
        })
        .map_err(|error| error.in_member("logs"))?;
    if level >= Level::Headers {
        receipt::check_bloom(verified_header(block)?, &bloom)?;
    }
    Ok(())
}

/// Returns the header of a block that was verified above [`Level::Off`].
fn verified_header(block: &Block) -> Result<&Header, Error> {
    block.header.as_ref().ok_or_else(|| {
        Error::missing("a block whose header was verified before").in_member("receiptsRoot")
    })
}
