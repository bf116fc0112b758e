//! Reads an index: decodes its rows into the JSON that a node wrote. The rows hold fragments, which
//! are compressed parts of a block's JSON (`fragments.rs`). A position is a transaction's block
//! number and index in one `i64` (`postings.rs`).

use std::collections::BTreeSet;

use wire::json::walk;
use wire::logs;
use wire::logs::LogMatcher;
use wire::quantity;

use crate::compression::Decompressor;
use crate::contents::{Metadata, StoredRange};
use crate::error::ReadError;
use crate::fragments::{self, BlockContext, TransactionContext};
use crate::harmony::{self, BlockOptions};
use crate::postings::{INDEX_MAX, PostingKey, block_and_index, log_keys, position};
use crate::search::{self, SearchLimits};
use crate::store::{
    self, BlockRow, Location, Settings, Store, StoreError, TransactionPart, TransactionRow,
};

/// Reads an index. Each thread needs its own reader. Every method fails if the index cannot be
/// read.
pub struct Reader {
    store: Box<dyn Store>,
    decompressor: Decompressor,
    metadata: Metadata,
    /// A buffer for a decompressed fragment.
    fragment: Vec<u8>,
}

impl Reader {
    /// Opens an index. Returns `None` if the index is not initialized.
    pub fn open(
        location: impl Into<Location>,
        settings: Settings,
    ) -> Result<Option<Reader>, ReadError> {
        Reader::new(store::open_to_read(location, settings)?)
    }

    /// Creates a reader with this connection. Returns `None` if the index is not initialized.
    pub fn new(store: Box<dyn Store>) -> Result<Option<Reader>, ReadError> {
        let Some(metadata) = store.metadata()? else { return Ok(None) };
        let decompressor = Decompressor::new(&store.dictionaries()?)?;
        Ok(Some(Reader { store, decompressor, metadata, fragment: Vec::new() }))
    }

    /// Returns the properties of the index.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the connection to the index.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the range of blocks that the index holds, or `None` if the index is empty.
    pub fn stored_range(&self) -> Result<Option<StoredRange>, ReadError> {
        Ok(self.store.stored_range()?)
    }

    /// Returns the row of a block, and the context that decodes its fragments. Returns `None` if
    /// the index does not hold the block.
    pub fn block_row(&self, number: u64) -> Result<Option<(BlockRow, BlockContext)>, ReadError> {
        let row = self.store.block(number)?;
        Ok(row.map(|row| {
            let context = BlockContext::new(&row.hash, row.number, row.timestamp);
            (row, context)
        }))
    }

    /// Appends a block. `part` selects full transactions or only their hashes. Returns false if the
    /// index does not hold the block.
    pub fn write_block(
        &mut self,
        out: &mut Vec<u8>,
        number: u64,
        part: TransactionPart,
    ) -> Result<bool, ReadError> {
        let Some((row, context)) = self.block_row(number)? else { return Ok(false) };
        let mut transactions = Vec::new();
        // Without full transactions, the block's fragment has the array of hashes.
        if self.metadata.contents.transactions || row.transaction_count == 0 {
            self.write_transactions(&mut transactions, &context, number, part)?;
        }
        self.decompressor.decompress(&mut self.fragment, &row.body)?;
        fragments::decode_block(out, &self.fragment, &context, |out| {
            out.extend_from_slice(&transactions);
        });
        Ok(true)
    }

    /// Appends a block in the `hmyv2_` form that the options select (`harmony.rs`). Returns false
    /// if the index does not hold the block or cannot convert it to this form.
    pub fn write_harmony_block(
        &mut self,
        out: &mut Vec<u8>,
        number: u64,
        options: BlockOptions,
    ) -> Result<bool, ReadError> {
        self.write_harmony_blocks(out, (number, number), options, u64::MAX)
    }

    /// Appends blocks in the `hmyv2_` form that the options select, separated by commas. Returns
    /// false if the index lacks a block of the range or cannot convert it, or if the text exceeds
    /// `bytes_max`. `out` may then contain some of the blocks.
    pub fn write_harmony_blocks(
        &mut self,
        out: &mut Vec<u8>,
        (from, to): (u64, u64),
        options: BlockOptions,
        bytes_max: u64,
    ) -> Result<bool, ReadError> {
        let start = out.len();
        let (mut next, mut is_complete) = (from, true);
        let Reader { store, decompressor, fragment, .. } = self;
        store.try_visit_harmony_blocks(from, to, |row| {
            if row.number != next {
                return Ok(false);
            }
            if next > from {
                out.push(b',');
            }
            decompressor.decompress(fragment, row.body)?;
            let context = BlockContext::new(&row.hash, row.number, row.timestamp);
            if options == BlockOptions::STORED {
                fragments::decode(out, fragment, &context, None);
            } else {
                let mut stored = Vec::with_capacity(fragment.len());
                fragments::decode(&mut stored, fragment, &context, None);
                is_complete = harmony::write_block(out, &stored, options);
            }
            next += 1;
            is_complete &= (out.len() - start) as u64 <= bytes_max;
            Ok::<_, ReadError>(is_complete)
        })?;
        Ok(is_complete && next > to)
    }

    /// Appends the number of transactions in a block's `hmyv2_` form. Returns false if the index
    /// does not hold the block, or if the stored form lacks a list of transactions.
    pub fn write_harmony_transaction_count(
        &mut self,
        out: &mut Vec<u8>,
        number: u64,
    ) -> Result<bool, ReadError> {
        let mut is_written = false;
        let Reader { store, decompressor, fragment, .. } = self;
        store.try_visit_harmony_blocks(number, number, |row| {
            decompressor.decompress(fragment, row.body)?;
            if let Some((count, _)) = harmony::count_transactions(fragment) {
                quantity::write_decimal(out, count);
                is_written = true;
            }
            Ok::<_, ReadError>(false)
        })?;
        Ok(is_written)
    }

    /// Appends an array with this part of each transaction of a block.
    pub fn write_transactions(
        &mut self,
        out: &mut Vec<u8>,
        block: &BlockContext,
        number: u64,
        part: TransactionPart,
    ) -> Result<(), ReadError> {
        out.push(b'[');
        let (from, to) = (position(number, 0), position(number, INDEX_MAX));
        let Reader { store, decompressor, fragment, .. } = self;
        let mut is_first = true;
        store.try_visit_transactions(from, to, part, |row| {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            write_row(out, decompressor, fragment, block, row, part)?;
            Ok::<_, ReadError>(true)
        })?;
        out.push(b']');
        Ok(())
    }

    /// Appends one part of the transaction at a position. Returns false if the index does not hold
    /// the transaction or its block.
    pub fn write_transaction(
        &mut self,
        out: &mut Vec<u8>,
        position: i64,
        part: TransactionPart,
    ) -> Result<bool, ReadError> {
        let number = block_and_index(position).0;
        let Reader { store, decompressor, fragment, .. } = self;
        let mut is_written = false;
        store.try_visit_transactions(position, position, part, |row| {
            let block = match row.block {
                Some(block) => Some(block),
                None => store.block_hash_and_timestamp(number)?,
            };
            if let Some((hash, timestamp)) = block {
                let block = BlockContext::new(&hash, number, timestamp);
                write_row(out, decompressor, fragment, &block, row, part)?;
                is_written = true;
            }
            Ok::<_, ReadError>(false)
        })?;
        Ok(is_written)
    }

    /// Appends the logs that a filter selects in a range of blocks, separated by commas. Returns
    /// the number of logs.
    ///
    /// # Errors
    /// Fails if the logs cannot be read, or if they exceed a limit.
    pub fn write_logs(
        &mut self,
        out: &mut Vec<u8>,
        filter: &LogMatcher,
        range: (u64, u64),
        limits: SearchLimits,
    ) -> Result<u64, ReadError> {
        let mut count = 0;
        let start = out.len();
        // The number and the context of the block whose logs were written last.
        let mut context: Option<(u64, BlockContext)> = None;
        let Reader { store, decompressor, fragment, .. } = self;
        search::search(&**store, filter, range, limits, |row| {
            let Some(compressed) = row.fragment else { return Ok(()) };
            let (number, index) = block_and_index(row.position);
            decompressor.decompress(fragment, compressed)?;
            let transaction = TransactionContext::new(&row.hash, index);
            // The search may return transactions without a matching log.
            for log in logs_in(fragment) {
                if !filter.matches_raw(log) {
                    continue;
                }
                if context.as_ref().is_none_or(|(context_number, _)| *context_number != number) {
                    let block = match row.block {
                        Some(block) => Some(block),
                        None => store.block_hash_and_timestamp(number)?,
                    };
                    let Some((hash, timestamp)) = block else { return Ok(()) };
                    context = Some((number, BlockContext::new(&hash, number, timestamp)));
                }
                let Some((_, block)) = &context else { return Ok(()) };
                if count > 0 {
                    out.push(b',');
                }
                fragments::decode(out, log, block, Some(&transaction));
                count += 1;
            }
            if count > limits.logs {
                return Err(ReadError::LimitExceeded(format!(
                    "the filter selects more than {} logs",
                    limits.logs
                )));
            }
            if (out.len() - start) as u64 > limits.bytes {
                return Err(ReadError::LimitExceeded(format!(
                    "the filter selects more than {} bytes of logs",
                    limits.bytes
                )));
            }
            Ok(())
        })?;
        Ok(count)
    }

    /// Returns the posting keys of all logs in the blocks above `last`.
    pub fn posting_keys_above(&mut self, last: u64) -> Result<BTreeSet<PostingKey>, ReadError> {
        let mut keys = BTreeSet::new();
        if !self.metadata.contents.logs {
            return Ok(keys);
        }
        let Reader { store, decompressor, fragment, .. } = self;
        let from = position(last + 1, 0);
        store.try_visit_transactions(from, i64::MAX, TransactionPart::Receipt, |row| {
            if let Some(compressed) = row.fragment {
                decompressor.decompress(fragment, compressed)?;
                for log in logs_in(fragment) {
                    if let Some((address, topics)) = logs::parse_address_and_topics(log) {
                        keys.extend(log_keys(&address, &topics));
                    }
                }
            }
            Ok::<_, ReadError>(true)
        })?;
        Ok(keys)
    }
}

/// Returns the raw logs in a fragment. The fragment is a receipt, or an array of logs.
fn logs_in(fragment: &[u8]) -> impl Iterator<Item = &[u8]> {
    let array = match fragment.first() {
        Some(b'[') => Some(fragment),
        _ => walk::from_member(fragment, "logs"),
    };
    walk::elements(array.unwrap_or_default())
}

/// Appends one part of a transaction. `fragment` is a buffer for the decompressed fragment.
fn write_row(
    out: &mut Vec<u8>,
    decompressor: &mut Decompressor,
    fragment: &mut Vec<u8>,
    block: &BlockContext,
    row: TransactionRow<'_>,
    part: TransactionPart,
) -> Result<(), ReadError> {
    if part == TransactionPart::Hash {
        out.push(b'"');
        out.extend_from_slice(&fragments::hash_text(&row.hash));
        out.push(b'"');
        return Ok(());
    }
    let (number, index) = block_and_index(row.position);
    let Some(compressed) = row.fragment else {
        let damage = format!("block {number}, transaction {index}: its fragment is missing");
        return Err(StoreError::Damaged(damage).into());
    };
    decompressor.decompress(fragment, compressed)?;
    fragments::decode(out, fragment, block, Some(&TransactionContext::new(&row.hash, index)));
    Ok(())
}
