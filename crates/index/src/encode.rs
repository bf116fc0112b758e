//! Encodes a node's JSON about a block into the rows that the store holds. The JSON is split into
//! fragments: the block without its transactions, each transaction and each receipt. The fragments
//! are compressed. The posting keys of all logs are collected for the search: a key stands for an
//! address or topic of a log (`postings.rs`).

use wire::hex;
use wire::json::cursor::Malformed;
use wire::json::walk;
use wire::logs::{TOPICS_MAX, Topics};
use wire::quantity;

use crate::compression::{CompressionError, Compressor, FragmentKind};
use crate::contents::Contents;
use crate::fragments::{self, BlockContext, BlockHeader, FragmentEncoder, TransactionContext};
use crate::harmony;
use crate::postings::{self, INDEX_MAX, PostingKey};
use crate::store::{NewBlock, NewTransaction};

#[cfg(test)]
mod tests;

/// A node's responses about one block. Each response is a raw value that is valid JSON.
#[derive(Debug, Clone, Copy)]
pub struct RawBlock<'a> {
    /// The block, with full transactions if the index holds transactions, else with their hashes.
    pub block: &'a [u8],
    /// The array of the block's receipts; `None` if the index does not hold receipts.
    pub receipts: Option<&'a [u8]>,
    /// The array of the block's logs; `None` if the index holds no logs. Also `None` if the index
    /// holds receipts, which contain the logs.
    pub logs: Option<&'a [u8]>,
    /// The block as Harmony's `hmyv2_` methods write it; `None` if the index does not hold that
    /// form.
    pub harmony: Option<&'a [u8]>,
}

/// The reason why a node's responses cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// A member is missing or malformed.
    #[error("{0}")]
    Malformed(String),
    /// The compression failed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

/// Returns the error for a malformed response.
fn malformed_error(message: impl Into<String>) -> EncodeError {
    EncodeError::Malformed(message.into())
}

impl From<Malformed> for EncodeError {
    fn from(error: Malformed) -> EncodeError {
        malformed_error(error.to_string())
    }
}

/// The uncompressed fragments of a transaction, and the posting keys of its logs.
#[derive(Default)]
struct TransactionFragments {
    index: u64,
    hash: [u8; 32],
    /// The transaction itself; `None` if the index does not hold transactions.
    body: Option<Vec<u8>>,
    /// The receipt, or an array of the logs if the index holds logs without receipts; `None` if
    /// there is neither.
    receipt: Option<Vec<u8>>,
    posting_keys: Vec<PostingKey>,
    log_count: u64,
}

impl TransactionFragments {
    /// Sorts the posting keys and removes duplicates.
    fn sort_keys(&mut self) {
        self.posting_keys.sort_unstable();
        self.posting_keys.dedup();
    }
}

/// The uncompressed fragments of a block.
struct BlockFragments {
    header: BlockHeader,
    /// The block without its transactions.
    body: Vec<u8>,
    transactions: Vec<TransactionFragments>,
    /// The block in its `hmyv2_` form; `None` if the index does not hold that form.
    harmony: Option<Vec<u8>>,
}

/// Encodes a block into rows.
///
/// # Errors
/// Fails if a response is malformed, or if the compression fails.
pub fn encode(
    compressor: &mut Compressor,
    raw: RawBlock<'_>,
    contents: Contents,
) -> Result<NewBlock, EncodeError> {
    let fragments = split_block(raw, contents)?;
    let mut compress = |kind, fragment: Option<Vec<u8>>| {
        fragment.map(|fragment| compressor.compress(kind, &fragment)).transpose()
    };
    let mut log_count = 0;
    let mut transactions = Vec::with_capacity(fragments.transactions.len());
    for transaction in fragments.transactions {
        log_count += transaction.log_count;
        transactions.push(NewTransaction {
            index: transaction.index,
            hash: transaction.hash,
            receipt: compress(FragmentKind::Receipt, transaction.receipt)?,
            body: compress(FragmentKind::Transaction, transaction.body)?,
            posting_keys: transaction.posting_keys,
        });
    }
    let responses = [Some(raw.block), raw.receipts, raw.logs, raw.harmony];
    Ok(NewBlock {
        header: fragments.header,
        harmony: compress(FragmentKind::HarmonyBlock, fragments.harmony)?,
        body: compressor.compress(FragmentKind::Block, &fragments.body)?,
        transactions,
        log_count,
        response_bytes: responses.iter().flatten().map(|raw| raw.len() as u64).sum(),
    })
}

/// Returns the uncompressed fragments of a block, to train dictionaries on.
///
/// # Errors
/// Fails if a response is malformed.
pub fn collect_samples(
    raw: RawBlock<'_>,
    contents: Contents,
) -> Result<Vec<(FragmentKind, Vec<u8>)>, EncodeError> {
    let fragments = split_block(raw, contents)?;
    let mut samples = vec![(FragmentKind::Block, fragments.body)];
    for transaction in fragments.transactions {
        samples.extend(transaction.body.map(|bytes| (FragmentKind::Transaction, bytes)));
        samples.extend(transaction.receipt.map(|bytes| (FragmentKind::Receipt, bytes)));
    }
    samples.extend(fragments.harmony.map(|bytes| (FragmentKind::HarmonyBlock, bytes)));
    Ok(samples)
}

/// Splits the responses about a block into its uncompressed fragments.
fn split_block(raw: RawBlock<'_>, contents: Contents) -> Result<BlockFragments, EncodeError> {
    let header = BlockHeader::read(raw.block).map_err(malformed_error)?;
    let context = BlockContext::new(&header.hash, header.number, header.timestamp);
    let mut encoder = FragmentEncoder::new(raw.block, &context);
    let mut transactions = None;
    if encoder.cursor.open(b'{') {
        while let Some(name) = encoder.cursor.next_name()? {
            if transactions.is_none() && *name.decode() == *b"transactions" {
                transactions = Some(split_transactions(&mut encoder, contents.transactions)?);
            } else {
                encoder.cursor.value()?;
            }
        }
    }
    let Some(mut transactions) = transactions else {
        return Err(malformed_error("block.transactions: missing"));
    };
    if let Some(receipts) = raw.receipts {
        let receipts = &mut FragmentEncoder::new(receipts, &context);
        add_receipts(&mut transactions, receipts, contents.logs)?;
    } else if let Some(logs) = raw.logs {
        add_logs(&mut transactions, &mut FragmentEncoder::new(logs, &context))?;
    }
    let harmony = match raw.harmony {
        Some(raw) => Some(harmony::encode(raw, &header, &context).map_err(malformed_error)?),
        None => None,
    };
    Ok(BlockFragments { header, body: encoder.take(), transactions, harmony })
}

/// Splits the next value, the array of transactions, from the block. A placeholder replaces full
/// transactions in the block's fragment. If `full_transactions` is false, the array has hashes,
/// which stay in the block's fragment unchanged.
fn split_transactions(
    encoder: &mut FragmentEncoder<'_, '_>,
    full_transactions: bool,
) -> Result<Vec<TransactionFragments>, EncodeError> {
    let block_fragment = full_transactions.then(|| encoder.take());
    if !encoder.cursor.open(b'[') {
        return Err(malformed_error("block.transactions: not an array"));
    }
    let mut transactions = Vec::new();
    while encoder.cursor.next_element()? {
        let index = transactions.len() as u64;
        if index == INDEX_MAX {
            return Err(malformed_error("block.transactions: 2^20 or more"));
        }
        let read_element = if full_transactions { split_transaction } else { read_hash };
        transactions.push(read_element(encoder, index)?);
    }
    if let Some(mut block_fragment) = block_fragment {
        block_fragment.push(fragments::TRANSACTIONS);
        encoder.set_transaction(None);
        encoder.resume(block_fragment);
    }
    Ok(transactions)
}

/// Reads a full transaction and returns its fragment.
fn split_transaction(
    encoder: &mut FragmentEncoder<'_, '_>,
    index: u64,
) -> Result<TransactionFragments, EncodeError> {
    if encoder.cursor.rest().first() == Some(&b'"') {
        return Err(malformed_error(
            "block.transactions: has hashes, but full transactions were requested",
        ));
    }
    let hash = parse_transaction_hash(walk::member(encoder.cursor.rest(), "hash"), index)?;
    encoder.discard();
    encoder.set_transaction(Some(TransactionContext::new(&hash, index)));
    encoder.cursor.value()?;
    let body = Some(encoder.take());
    Ok(TransactionFragments { index, hash, body, ..TransactionFragments::default() })
}

/// Reads the hash of a transaction, from an array of hashes or of full transactions.
fn read_hash(
    encoder: &mut FragmentEncoder<'_, '_>,
    index: u64,
) -> Result<TransactionFragments, EncodeError> {
    let raw = encoder.cursor.value()?;
    let hash = if raw.first() == Some(&b'"') { Some(raw) } else { walk::member(raw, "hash") };
    let hash = parse_transaction_hash(hash, index)?;
    Ok(TransactionFragments { index, hash, ..TransactionFragments::default() })
}

fn parse_transaction_hash(raw: Option<&[u8]>, index: u64) -> Result<[u8; 32], EncodeError> {
    raw.and_then(hex::hash_from_value).ok_or_else(|| {
        malformed_error(format!(
            "block.transactions[{index}].hash: must be 0x and 64 hexadecimal digits"
        ))
    })
}

/// Encodes the array of receipts, one receipt for each transaction in order. If `with_logs` is
/// true, also collects the posting keys of the logs.
fn add_receipts(
    transactions: &mut [TransactionFragments],
    encoder: &mut FragmentEncoder<'_, '_>,
    with_logs: bool,
) -> Result<(), EncodeError> {
    let transaction_count = transactions.len();
    let count_error = |count: &str| {
        malformed_error(format!("receipts: {count}, for {transaction_count} transactions"))
    };
    if !encoder.cursor.open(b'[') {
        return Err(count_error("not an array"));
    }
    for transaction in transactions {
        if !encoder.cursor.next_element()? {
            return Err(count_error(&transaction.index.to_string()));
        }
        encoder.discard();
        let context = TransactionContext::new(&transaction.hash, transaction.index);
        encoder.set_transaction(Some(context));
        encode_receipt(encoder, transaction, with_logs)?;
        transaction.receipt = Some(encoder.take());
    }
    if encoder.cursor.next_element()? { Err(count_error("more")) } else { Ok(()) }
}

/// Moves the encoder's cursor over a receipt, so that the encoder copies it. If `with_logs` is
/// true, also collects the posting keys of the receipt's logs.
fn encode_receipt(
    encoder: &mut FragmentEncoder<'_, '_>,
    transaction: &mut TransactionFragments,
    with_logs: bool,
) -> Result<(), EncodeError> {
    let index = transaction.index;
    let (mut hash, mut has_logs) = (None, false);
    if !encoder.cursor.open(b'{') {
        return Err(malformed_error(format!("receipts[{index}]: not an object")));
    }
    while let Some(name) = encoder.cursor.next_name()? {
        match &*name.decode() {
            b"transactionHash" if hash.is_none() => {
                hash = hex::hash_from_value(encoder.cursor.value()?);
            }
            b"logs" if with_logs && !has_logs => {
                has_logs = true;
                if encoder.cursor.open(b'[') {
                    while encoder.cursor.next_element()? {
                        let path = || format!("receipts[{index}].logs[{}]", transaction.log_count);
                        encode_log(encoder, &mut transaction.posting_keys, path)?;
                        transaction.log_count += 1;
                    }
                } else {
                    encoder.cursor.value()?;
                }
            }
            _ => {
                encoder.cursor.value()?;
            }
        }
    }
    if hash != Some(transaction.hash) {
        return Err(malformed_error(format!(
            "receipts[{index}].transactionHash: differs from the hash of the transaction"
        )));
    }
    transaction.sort_keys();
    Ok(())
}

/// Encodes the array of a block's logs. The logs of each transaction become an array, which takes
/// the place of the receipt's fragment.
fn add_logs(
    transactions: &mut [TransactionFragments],
    encoder: &mut FragmentEncoder<'_, '_>,
) -> Result<(), EncodeError> {
    if !encoder.cursor.open(b'[') {
        return Err(malformed_error("logs: not an array"));
    }
    let mut count = 0u64;
    while encoder.cursor.next_element()? {
        let names = ["transactionHash", "transactionIndex"];
        let [hash, index] = walk::fields_of(encoder.cursor.rest(), names);
        let index = index.and_then(quantity::from_value);
        let transaction =
            index.and_then(|index| transactions.get_mut(usize::try_from(index).ok()?));
        let Some(transaction) = transaction else {
            return Err(malformed_error(format!(
                "logs[{count}].transactionIndex: the block has no such transaction"
            )));
        };
        if hash.and_then(hex::hash_from_value) != Some(transaction.hash) {
            return Err(malformed_error(format!(
                "logs[{count}].transactionHash: differs from the hash of the transaction"
            )));
        }
        encoder.discard();
        let context = TransactionContext::new(&transaction.hash, transaction.index);
        encoder.set_transaction(Some(context));
        encode_log(encoder, &mut transaction.posting_keys, || format!("logs[{count}]"))?;
        let array = transaction.receipt.get_or_insert_with(|| b"[]".to_vec());
        // Removes the closing bracket.
        array.pop();
        if array.len() > 1 {
            array.push(b',');
        }
        array.extend_from_slice(&encoder.take());
        array.push(b']');
        transaction.log_count += 1;
        count += 1;
    }
    transactions.iter_mut().for_each(TransactionFragments::sort_keys);
    Ok(())
}

/// Encodes the next log, and collects its posting keys. `path` names the log in errors.
fn encode_log(
    encoder: &mut FragmentEncoder<'_, '_>,
    posting_keys: &mut Vec<PostingKey>,
    path: impl Fn() -> String,
) -> Result<(), EncodeError> {
    let invalid_error =
        || malformed_error(format!("{}: must have an address and at most 4 topics", path()));
    let (mut address, mut topics) = (None, None);
    if !encoder.cursor.open(b'{') {
        return Err(invalid_error());
    }
    while let Some(name) = encoder.cursor.next_name()? {
        match &*name.decode() {
            b"address" if address.is_none() => {
                address = hex::address_from_value(encoder.cursor.value()?);
            }
            b"topics" if topics.is_none() && encoder.cursor.open(b'[') => {
                let mut parsed_topics = Topics::new();
                while encoder.cursor.next_element()? {
                    parsed_topics.push(
                        hex::hash_from_value(encoder.cursor.value()?).ok_or_else(invalid_error)?,
                    );
                }
                topics = Some(parsed_topics);
            }
            _ => {
                encoder.cursor.value()?;
            }
        }
    }
    let (Some(address), Some(topics)) =
        (address, topics.filter(|topics| topics.len() <= TOPICS_MAX))
    else {
        return Err(invalid_error());
    };
    posting_keys.extend(postings::log_keys(&address, &topics));
    Ok(())
}
