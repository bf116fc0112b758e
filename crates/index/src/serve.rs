//! Responds to calls from an index, without a node.
//!
//! An index responds to a call if it holds all data of the response. It leaves other calls to
//! nodes: calls with malformed parameters, calls about blocks that the index does not hold, and
//! calls about blocks that may not be on the caller's chain. If the index holds a part of a range
//! of logs, it returns the logs of that part. For a range of Harmony's blocks it can return the
//! first blocks.
//!
//! A block is confirmed if the index may respond about it: the block is finalized, or the caller
//! knows that the block is on its chain. A position is a transaction's block number and index in
//! one `i64` (`postings.rs`).

use wire::block;
use wire::block::BlockFormat::{Harmony, Hash, Hex};
use wire::block::{BlockFormat, BlockRef, BlockTag};
use wire::filter::LogFilter;
use wire::hex;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::logs::LogMatcher;
use wire::quantity;

use crate::contents::StoredRange;
use crate::error::ReadError;
use crate::harmony::{self, BlockOptions};
use crate::postings::{block_and_index, position};
use crate::reader::Reader;
use crate::search::SearchLimits;
use crate::store::TransactionPart;

#[cfg(test)]
mod tests;

/// The caller's knowledge of the chain, and the limits of its query.
pub struct QueryContext<'a> {
    /// The last block that the caller knows to be finalized; `None` if the caller knows no such
    /// block.
    pub finalized: Option<u64>,
    /// Returns true if the block with this number and hash is on the caller's chain. Not called for
    /// blocks that the index and the caller both know to be finalized.
    pub is_canonical: &'a dyn Fn(u64, &[u8; 32]) -> bool,
    /// The limits of a response.
    pub limits: SearchLimits,
}

/// The response of an index to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The raw result.
    Full(Vec<u8>),
    /// The logs or blocks of a part of the range. Nodes must return the rest.
    Partial {
        /// The first block of the part.
        from: u64,
        /// The last block of the part.
        to: u64,
        /// Raw logs or blocks, separated by commas.
        elements: Vec<u8>,
    },
    /// No response: a node must respond to the call.
    Miss,
}

impl From<Option<Vec<u8>>> for Lookup {
    fn from(result: Option<Vec<u8>>) -> Lookup {
        result.map_or(Lookup::Miss, Lookup::Full)
    }
}

/// Returns the names of the methods that an index may respond to.
pub fn methods() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|(name, ..)| *name)
}

/// Responds to calls from one state of the index. Later writes do not change the responses.
pub struct Snapshot<'a> {
    reader: &'a mut Reader,
    /// The stored range in this state; `None` if the index is empty.
    range: Option<StoredRange>,
}

impl Snapshot<'_> {
    /// Looks up the response to a call with these raw parameters, an array.
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub fn lookup(
        &mut self,
        method: &str,
        params: &[u8],
        context: &QueryContext<'_>,
    ) -> Result<Lookup, ReadError> {
        let Some(range) = self.range else { return Ok(Lookup::Miss) };
        Query { reader: self.reader, range, context }.lookup(method, params)
    }
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        // If the connection is lost, the next snapshot fails and returns the error.
        let _ = self.reader.store().end_snapshot();
    }
}

impl Reader {
    /// Begins a snapshot of the present state.
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub fn snapshot(&mut self) -> Result<Snapshot<'_>, ReadError> {
        self.store().begin_snapshot()?;
        let mut snapshot = Snapshot { reader: self, range: None };
        snapshot.range = snapshot.reader.stored_range()?;
        Ok(snapshot)
    }

    /// Looks up the response to one call with these raw parameters, an array.
    ///
    /// # Errors
    /// Fails if the index cannot be read.
    pub fn lookup(
        &mut self,
        method: &str,
        params: &[u8],
        context: &QueryContext<'_>,
    ) -> Result<Lookup, ReadError> {
        self.snapshot()?.lookup(method, params, context)
    }
}

/// The names of a log filter's members.
const FILTER_MEMBERS: [&[u8]; 5] = [b"fromBlock", b"toBlock", b"blockHash", b"address", b"topics"];

/// A raw block parameter and its format in the method.
type RawBlockParam<'a> = (&'a [u8], BlockFormat);

/// Returns the parameter of a method that accepts only a number or a tag. Any other parameter, in
/// particular a hash, becomes empty and names no block.
fn number_or_tag(raw: &[u8]) -> RawBlockParam<'_> {
    let is_accepted = raw.first() == Some(&b'"')
        && matches!(block::parse(raw, Hex), Ok(BlockRef::Number(_) | BlockRef::Tag(_)));
    (if is_accepted { raw } else { b"" }, Hex)
}

/// Returns the number in a block reference, or 0 for the tag `earliest`. Returns `None` for hashes
/// and other tags.
fn number_in_reference(block: BlockRef) -> Option<u64> {
    match block {
        BlockRef::Number(number) => Some(number),
        BlockRef::Tag(BlockTag::Earliest) => Some(0),
        _ => None,
    }
}

/// One call to the index. The functions return [`Lookup::Miss`] if a node must respond.
struct Query<'a> {
    reader: &'a mut Reader,
    range: StoredRange,
    context: &'a QueryContext<'a>,
}

/// Maximum number of parameters of a method.
const PARAMS_MAX: usize = 3;

/// Responds to a call with these raw parameters. Parameters after the last one are empty.
type Respond = fn(&mut Query<'_>, [&[u8]; PARAMS_MAX]) -> Result<Lookup, ReadError>;

/// The methods that an index may respond to: name, number of parameters, function.
const METHODS: &[(&str, usize, Respond)] = &[
    ("eth_getBlockByNumber", 2, |query, [block, full, _]| {
        query.read_block(number_or_tag(block), full)
    }),
    ("eth_getBlockByHash", 2, |query, [block, full, _]| query.read_block((block, Hash), full)),
    ("eth_getBlockReceipts", 1, |query, [block, ..]| query.read_block_receipts(block)),
    ("eth_getTransactionByHash", 1, |query, [hash, ..]| {
        query.read_transaction_by_hash(hash, TransactionPart::Body)
    }),
    ("eth_getTransactionReceipt", 1, |query, [hash, ..]| {
        query.read_transaction_by_hash(hash, TransactionPart::Receipt)
    }),
    ("eth_getTransactionByBlockHashAndIndex", 2, |query, [block, index, _]| {
        query.read_transaction_by_index((block, Hash), index)
    }),
    ("eth_getTransactionByBlockNumberAndIndex", 2, |query, [block, index, _]| {
        query.read_transaction_by_index(number_or_tag(block), index)
    }),
    ("eth_getBlockTransactionCountByHash", 1, |query, [block, ..]| {
        query.read_transaction_count((block, Hash))
    }),
    ("eth_getBlockTransactionCountByNumber", 1, |query, [block, ..]| {
        query.read_transaction_count(number_or_tag(block))
    }),
    ("eth_getLogs", 1, |query, [filter, ..]| query.read_logs(filter)),
    ("hmyv2_getBlocks", 3, |query, [from, to, options]| {
        query.read_harmony_range((from, to), options)
    }),
    ("hmyv2_getBlockByNumber", 2, |query, [block, options, _]| {
        query.read_harmony_block((block, Harmony), options)
    }),
    ("hmyv2_getBlockByHash", 2, |query, [block, options, _]| {
        query.read_harmony_block((block, Hash), options)
    }),
    ("hmyv2_getBlockTransactionCountByNumber", 1, |query, [block, ..]| {
        query.read_harmony_transaction_count((block, Harmony))
    }),
    ("hmyv2_getBlockTransactionCountByHash", 1, |query, [block, ..]| {
        query.read_harmony_transaction_count((block, Hash))
    }),
];

impl Query<'_> {
    /// Responds to the call with this method and these raw parameters.
    fn lookup(&mut self, method: &str, params: &[u8]) -> Result<Lookup, ReadError> {
        let params: Vec<&[u8]> = walk::elements(params).collect();
        let mut methods = METHODS.iter();
        let found = methods.find(|(name, count, _)| *name == method && *count == params.len());
        let Some((_, count, respond)) = found else { return Ok(Lookup::Miss) };
        let mut padded: [&[u8]; PARAMS_MAX] = [b""; PARAMS_MAX];
        padded[..*count].copy_from_slice(&params);
        respond(self, padded)
    }

    /// Returns the number of the block that a parameter names. Returns `None` if the index may not
    /// respond about that block.
    fn resolve(&self, (raw, format): RawBlockParam<'_>) -> Result<Option<u64>, ReadError> {
        let number = match block::parse(raw, format) {
            // A hash always names the same block, even after a reorg.
            Ok(BlockRef::Hash(hash)) => return Ok(self.reader.store().block_number(&hash)?),
            Ok(block) => number_in_reference(block),
            Err(_) => None,
        };
        let Some(number) = number else { return Ok(None) };
        Ok(self.is_confirmed(number)?.then_some(number))
    }

    /// Returns true if the index holds the block with this number, and the block is confirmed.
    fn is_confirmed(&self, number: u64) -> Result<bool, ReadError> {
        let range = self.range;
        if number < range.first || number > range.last {
            return Ok(false);
        }
        let finalized = self.context.finalized;
        if finalized.is_some_and(|finalized| number <= range.finalized.min(finalized)) {
            return Ok(true);
        }
        let block = self.reader.store().block_hash_and_timestamp(number)?;
        Ok(block.is_some_and(|(hash, _)| (self.context.is_canonical)(number, &hash)))
    }

    /// Returns the number of a block, at most `to`, up to which all stored blocks are confirmed.
    /// Each block contains the hash of the previous block. So if the last stored block up to `to`
    /// is confirmed, it confirms all others. Otherwise only the finalized blocks are confirmed. If
    /// no stored block is confirmed, returns `None` or a number below the first stored block.
    fn last_confirmed(&self, to: u64) -> Result<Option<u64>, ReadError> {
        let range = self.range;
        let highest = to.min(range.last);
        if self.is_confirmed(highest)? {
            return Ok(Some(highest));
        }
        let finalized = self.context.finalized.map(|finalized| finalized.min(range.finalized));
        Ok(finalized.map(|finalized| finalized.min(highest)))
    }

    /// Returns true if nodes must serve this response form. A form is one way in which nodes write
    /// an object, such as a block with the hashes of its transactions. A sync tests which forms the
    /// index can reproduce.
    fn is_served_by_nodes(&self, form: &str) -> bool {
        let metadata = self.reader.metadata();
        metadata.differing_forms.iter().chain(&metadata.untested_forms).any(|name| name == form)
    }

    /// Returns a block. `full` is the raw parameter that selects full transactions.
    fn read_block(&mut self, block: RawBlockParam<'_>, full: &[u8]) -> Result<Lookup, ReadError> {
        let part = match full {
            b"true" if self.reader.metadata().contents.transactions => TransactionPart::Body,
            b"false" if !self.is_served_by_nodes("hashes") => TransactionPart::Hash,
            _ => return Ok(Lookup::Miss),
        };
        let Some(number) = self.resolve(block)? else { return Ok(Lookup::Miss) };
        let mut out = Vec::with_capacity(4096);
        Ok(self.reader.write_block(&mut out, number, part)?.then_some(out).into())
    }

    fn read_block_receipts(&mut self, block: &[u8]) -> Result<Lookup, ReadError> {
        // With requireCanonical, the response depends on the hash and on the chain.
        let depends_on_hash_only =
            block.first() != Some(&b'{') || walk::member(block, "requireCanonical").is_none();
        if !self.reader.metadata().contents.receipts || !depends_on_hash_only {
            return Ok(Lookup::Miss);
        }
        let Some(number) = self.resolve((block, Hex))? else { return Ok(Lookup::Miss) };
        let Some((_, context)) = self.reader.block_row(number)? else { return Ok(Lookup::Miss) };
        let mut out = Vec::with_capacity(4096);
        let receipt = TransactionPart::Receipt;
        self.reader.write_transactions(&mut out, &context, number, receipt)?;
        Ok(Lookup::Full(out))
    }

    /// Returns the transaction or the receipt of a transaction, as `part` selects.
    fn read_transaction_by_hash(
        &mut self,
        hash: &[u8],
        part: TransactionPart,
    ) -> Result<Lookup, ReadError> {
        let contents = self.reader.metadata().contents;
        let is_served_by_index = match part {
            TransactionPart::Receipt => contents.receipts && !self.is_served_by_nodes("receipt"),
            _ => contents.transactions && !self.is_served_by_nodes("transaction"),
        };
        let Some(hash) = hex::hash_from_value(hash).filter(|_| is_served_by_index) else {
            return Ok(Lookup::Miss);
        };
        let Some(position) = self.reader.store().transaction_position(&hash)? else {
            return Ok(Lookup::Miss);
        };
        if !self.is_confirmed(block_and_index(position).0)? {
            return Ok(Lookup::Miss);
        }
        let mut out = Vec::with_capacity(1024);
        Ok(self.reader.write_transaction(&mut out, position, part)?.then_some(out).into())
    }

    /// Returns the transaction with this index in a block, or null if the block has fewer
    /// transactions.
    fn read_transaction_by_index(
        &mut self,
        block: RawBlockParam<'_>,
        index: &[u8],
    ) -> Result<Lookup, ReadError> {
        let index = JsonString::from_value(index).and_then(|text| quantity::parse(&text.decode()));
        let is_served_by_index =
            self.reader.metadata().contents.transactions && !self.is_served_by_nodes("transaction");
        let (Some(index), true) = (index, is_served_by_index) else { return Ok(Lookup::Miss) };
        let Some(number) = self.resolve(block)? else { return Ok(Lookup::Miss) };
        let Some((row, _)) = self.reader.block_row(number)? else { return Ok(Lookup::Miss) };
        if index >= row.transaction_count {
            return Ok(Lookup::Full(b"null".to_vec()));
        }
        let mut out = Vec::with_capacity(1024);
        let (position, body) = (position(number, index), TransactionPart::Body);
        Ok(self.reader.write_transaction(&mut out, position, body)?.then_some(out).into())
    }

    fn read_transaction_count(&mut self, block: RawBlockParam<'_>) -> Result<Lookup, ReadError> {
        let Some(number) = self.resolve(block)? else { return Ok(Lookup::Miss) };
        let Some((row, _)) = self.reader.block_row(number)? else { return Ok(Lookup::Miss) };
        let mut out = b"\"".to_vec();
        quantity::write(&mut out, row.transaction_count);
        out.push(b'"');
        Ok(Lookup::Full(out))
    }

    /// Returns the options of a call. Returns `None` if the options are invalid, or if the index
    /// cannot write a block in the form that they select.
    fn parse_harmony_options(&self, raw: &[u8]) -> Option<BlockOptions> {
        let contents = self.reader.metadata().contents;
        let options = BlockOptions::read(raw).filter(|_| contents.hmyv2)?;
        let is_served_by_nodes = (!options.full && self.is_served_by_nodes(harmony::FORM_HASHES))
            || (!options.staking && self.is_served_by_nodes(harmony::FORM_WITHOUT_STAKING));
        (!is_served_by_nodes).then_some(options)
    }

    /// Returns the blocks of `hmyv2_getBlocks`. If only the first blocks of the range are
    /// confirmed, returns only these blocks.
    fn read_harmony_range(
        &mut self,
        (from, to): (&[u8], &[u8]),
        options: &[u8],
    ) -> Result<Lookup, ReadError> {
        let Some(options) = self.parse_harmony_options(options) else { return Ok(Lookup::Miss) };
        let parse_number = |raw| block::parse(raw, Harmony).ok().and_then(number_in_reference);
        let (Some(from), Some(to)) = (parse_number(from), parse_number(to)) else {
            return Ok(Lookup::Miss);
        };
        let Some(confirmed_to) = self.last_confirmed(to)? else { return Ok(Lookup::Miss) };
        let is_invalid = from > to || to - from > harmony::BLOCKS_APART_MAX;
        if is_invalid || from < self.range.first || from > confirmed_to {
            return Ok(Lookup::Miss);
        }
        let mut elements = b"[".to_vec();
        let bytes_max = self.context.limits.bytes;
        if !self.reader.write_harmony_blocks(
            &mut elements,
            (from, confirmed_to),
            options,
            bytes_max,
        )? {
            return Ok(Lookup::Miss);
        }
        if confirmed_to == to {
            elements.push(b']');
            return Ok(Lookup::Full(elements));
        }
        // A partial response has no brackets.
        elements.remove(0);
        Ok(Lookup::Partial { from, to: confirmed_to, elements })
    }

    fn read_harmony_block(
        &mut self,
        block: RawBlockParam<'_>,
        options: &[u8],
    ) -> Result<Lookup, ReadError> {
        let is_served_by_index = !self.is_served_by_nodes(harmony::FORM_SINGLE);
        let Some(options) = self.parse_harmony_options(options).filter(|_| is_served_by_index)
        else {
            return Ok(Lookup::Miss);
        };
        let Some(number) = self.resolve(block)? else { return Ok(Lookup::Miss) };
        let mut out = Vec::with_capacity(4096);
        Ok(self.reader.write_harmony_block(&mut out, number, options)?.then_some(out).into())
    }

    fn read_harmony_transaction_count(
        &mut self,
        block: RawBlockParam<'_>,
    ) -> Result<Lookup, ReadError> {
        let contents = self.reader.metadata().contents;
        if !contents.hmyv2 || self.is_served_by_nodes(harmony::FORM_COUNT) {
            return Ok(Lookup::Miss);
        }
        let Some(number) = self.resolve(block)? else { return Ok(Lookup::Miss) };
        let mut out = Vec::new();
        Ok(self.reader.write_harmony_transaction_count(&mut out, number)?.then_some(out).into())
    }

    /// Returns the logs that a filter selects. If only a part of the range is stored and confirmed,
    /// returns the logs of that part.
    fn read_logs(&mut self, raw: &[u8]) -> Result<Lookup, ReadError> {
        let contents = self.reader.metadata().contents;
        let range_and_matcher = LogFilter::parse(raw).ok().zip(LogMatcher::parse(raw).ok());
        let is_served_by_index =
            contents.logs && !(contents.receipts && self.is_served_by_nodes("logs"));
        // go-ethereum ignores the letter case of names. A node may therefore use a member that is
        // unknown here.
        let has_known_members =
            walk::members(raw).all(|(name, _)| FILTER_MEMBERS.contains(&&*name.decode()));
        let Some((filter, matcher)) =
            range_and_matcher.filter(|_| is_served_by_index && has_known_members)
        else {
            return Ok(Lookup::Miss);
        };
        let (from, to, confirmed_to) = match (filter.block_hash, filter.from, filter.to) {
            (Some(hash), None, None) => {
                // A hash always names the same block, even after a reorg.
                let Some(number) = self.reader.store().block_number(&hash)? else {
                    return Ok(Lookup::Miss);
                };
                (number, number, number)
            }
            (None, Some(from), Some(to)) => {
                let (Some(from), Some(to)) = (number_in_reference(from), number_in_reference(to))
                else {
                    return Ok(Lookup::Miss);
                };
                if from > to {
                    return Ok(Lookup::Miss);
                }
                let Some(confirmed_to) = self.last_confirmed(to)? else { return Ok(Lookup::Miss) };
                (from, to, confirmed_to)
            }
            _ => return Ok(Lookup::Miss),
        };
        let (first, last) = (from.max(self.range.first), to.min(confirmed_to));
        if first > last {
            return Ok(Lookup::Miss);
        }
        let mut logs = b"[".to_vec();
        let limits = self.context.limits;
        match self.reader.write_logs(&mut logs, &matcher, (first, last), limits) {
            Ok(_) => {}
            // The call is left to a node, which may have higher limits.
            Err(ReadError::LimitExceeded(_)) => return Ok(Lookup::Miss),
            Err(error) => return Err(error),
        }
        if (first, last) == (from, to) {
            logs.push(b']');
            return Ok(Lookup::Full(logs));
        }
        logs.remove(0);
        Ok(Lookup::Partial { from: first, to: last, elements: logs })
    }
}
