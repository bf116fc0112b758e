//! Answers to calls, from the file alone.
//!
//! A call is answered if the file holds all that its answer is made of, and left to nodes otherwise:
//! a call of an odd form, a block that is not held, or one that a reorg may still drop. A range of
//! logs of which a part is held is answered for that part, and one of Harmony's blocks of which the
//! first part is.

use wire::block::{self, BlockForm, BlockRef, Tag};
use wire::filter::LogFilter;
use wire::json::walk;
use wire::logs::Selection;
use wire::quantity;

use crate::harmony;
use crate::places::{parts, place};
use crate::reader::{Form, ReadError, Reader};
use crate::search::Bounds;
use crate::store::Held;

/// What may be answered from.
pub struct Scope<'a> {
    /// Blocks up to this one are final for who asks; none if it knows of none.
    pub finalized: Option<u64>,
    /// Whether a block that is not final is on the chain as who asks believes.
    pub canonical: &'a dyn Fn(u64, &[u8; 32]) -> bool,
    /// How many logs may be answered.
    pub bounds: Bounds,
}

/// What the file has for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The raw result.
    Whole(Vec<u8>),
    /// The logs of blocks `from` to `to`, or these blocks themselves; the rest of the range is for
    /// nodes.
    Part {
        /// The first block.
        from: u64,
        /// The last block.
        to: u64,
        /// Raw logs or blocks, separated by commas.
        listed: Vec<u8>,
    },
    /// Nothing: the call is for nodes.
    Nothing,
}

/// Methods that a file may have answers to.
pub const METHODS: [&str; 15] = [
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionByHash",
    "eth_getTransactionReceipt",
    "eth_getTransactionByBlockHashAndIndex",
    "eth_getTransactionByBlockNumberAndIndex",
    "eth_getBlockTransactionCountByHash",
    "eth_getBlockTransactionCountByNumber",
    "eth_getLogs",
    "hmyv2_getBlocks",
    "hmyv2_getBlockByNumber",
    "hmyv2_getBlockByHash",
    "hmyv2_getBlockTransactionCountByNumber",
    "hmyv2_getBlockTransactionCountByHash",
];

/// Answers from one state of what is kept, whatever a writer does meanwhile, until it is dropped.
pub struct Reading<'a> {
    reader: &'a mut Reader,
    held: Option<Held>,
}

impl Reading<'_> {
    /// What the file has for a call with these raw parameters, an array.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn answer(
        &mut self,
        method: &str,
        params: &[u8],
        scope: &Scope<'_>,
    ) -> Result<Found, ReadError> {
        let Some(held) = self.held else { return Ok(Found::Nothing) };
        self.reader.look(held, method, params, scope)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // What was read stands; a connection that is lost says so to the next reading.
        let _ended = self.reader.store().end_reading();
    }
}

/// The members of a log filter.
const FILTER: [&[u8]; 5] = [b"fromBlock", b"toBlock", b"blockHash", b"address", b"topics"];

/// Whether a block is named by number or tag in a string, as methods take it that take no hash.
fn is_number(raw: &[u8]) -> bool {
    raw.first() == Some(&b'"')
        && matches!(block::parse(raw, BlockForm::Hex), Ok(BlockRef::Number(_) | BlockRef::Tag(_)))
}

impl Reader {
    /// Begins to answer from the present state.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn reading(&mut self) -> Result<Reading<'_>, ReadError> {
        self.store().begin_reading()?;
        let mut reading = Reading { reader: self, held: None };
        reading.held = reading.reader.held()?;
        Ok(reading)
    }

    /// What the file has for one call with these raw parameters, an array.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn answer(
        &mut self,
        method: &str,
        params: &[u8],
        scope: &Scope<'_>,
    ) -> Result<Found, ReadError> {
        self.reading()?.answer(method, params, scope)
    }

    fn look(
        &mut self,
        held: Held,
        method: &str,
        params: &[u8],
        scope: &Scope<'_>,
    ) -> Result<Found, ReadError> {
        let listed: Vec<&[u8]> = walk::elements(params).collect();
        let found = match (method, listed.as_slice()) {
            (
                "eth_getBlockByNumber"
                | "eth_getTransactionByBlockNumberAndIndex"
                | "eth_getBlockTransactionCountByNumber",
                [block, ..],
            ) if !is_number(block) => None,
            ("eth_getBlockByNumber" | "eth_getBlockByHash", [block, whole]) => {
                let form = if method.ends_with("Hash") { BlockForm::Hash } else { BlockForm::Hex };
                self.whole_block(held, scope, (block, form), whole)?
            }
            ("eth_getBlockReceipts", [block]) => self.block_receipts(held, scope, block)?,
            ("eth_getTransactionByHash", [hash]) => self.by_hash(held, scope, hash, Form::Whole)?,
            ("eth_getTransactionReceipt", [hash]) => {
                self.by_hash(held, scope, hash, Form::Receipt)?
            }
            ("eth_getTransactionByBlockHashAndIndex", [block, index]) => {
                self.by_index(held, scope, (block, BlockForm::Hash), index)?
            }
            ("eth_getTransactionByBlockNumberAndIndex", [block, index]) => {
                self.by_index(held, scope, (block, BlockForm::Hex), index)?
            }
            ("eth_getBlockTransactionCountByHash", [block]) => {
                self.count(held, scope, (block, BlockForm::Hash))?
            }
            ("eth_getBlockTransactionCountByNumber", [block]) => {
                self.count(held, scope, (block, BlockForm::Hex))?
            }
            ("eth_getLogs", [filter]) => return self.filtered(held, scope, filter),
            ("hmyv2_getBlocks", [from, to, options]) => {
                return self.harmony_range(held, scope, (from, to), options);
            }
            ("hmyv2_getBlockByNumber", [block, options]) => {
                self.harmony_single(held, scope, (block, BlockForm::Harmony), options)?
            }
            ("hmyv2_getBlockByHash", [block, options]) => {
                self.harmony_single(held, scope, (block, BlockForm::Hash), options)?
            }
            ("hmyv2_getBlockTransactionCountByNumber", [block]) => {
                self.harmony_counted(held, scope, (block, BlockForm::Harmony))?
            }
            ("hmyv2_getBlockTransactionCountByHash", [block]) => {
                self.harmony_counted(held, scope, (block, BlockForm::Hash))?
            }
            _ => None,
        };
        Ok(found.map_or(Found::Nothing, Found::Whole))
    }

    /// The number of the block that a call names, if it may be answered from.
    fn number(
        &self,
        held: Held,
        scope: &Scope<'_>,
        (raw, form): (&[u8], BlockForm),
    ) -> Result<Option<u64>, ReadError> {
        let number = match block::parse(raw, form) {
            Ok(BlockRef::Number(number)) => number,
            Ok(BlockRef::Tag(Tag::Earliest)) => 0,
            Ok(BlockRef::Hash(hash)) => {
                // What a hash names is the same for ever, whatever the chain does.
                return Ok(self.store().number_of(&hash)?);
            }
            _ => return Ok(None),
        };
        Ok(self.is_sure(held, scope, number)?.then_some(number))
    }

    /// Whether a block is held, and is the one of its number for who asks.
    fn is_sure(&self, held: Held, scope: &Scope<'_>, number: u64) -> Result<bool, ReadError> {
        if number < held.first || number > held.last {
            return Ok(false);
        }
        if scope.finalized.is_some_and(|finalized| number <= held.finalized.min(finalized)) {
            return Ok(true);
        }
        let found = self.store().hash_and_time(number)?;
        Ok(found.is_some_and(|(hash, _)| (scope.canonical)(number, &hash)))
    }

    fn is_unlike(&self, what: &str) -> bool {
        let facts = self.facts();
        facts.unlike.iter().chain(&facts.untried).any(|unlike| unlike == what)
    }

    fn whole_block(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: (&[u8], BlockForm),
        whole: &[u8],
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let form = match whole {
            b"true" if self.facts().what.blocks => Form::Whole,
            b"false" if !self.is_unlike("hashes") => Form::Hash,
            _ => return Ok(None),
        };
        let Some(number) = self.number(held, scope, block)? else { return Ok(None) };
        let mut out = Vec::with_capacity(4096);
        Ok(self.block(&mut out, number, form)?.then_some(out))
    }

    fn block_receipts(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: &[u8],
    ) -> Result<Option<Vec<u8>>, ReadError> {
        // With requireCanonical, the answer to a hash depends on more than the hash.
        let plain =
            block.first() != Some(&b'{') || walk::member(block, "requireCanonical").is_none();
        if !self.facts().what.receipts || !plain {
            return Ok(None);
        }
        let Some(number) = self.number(held, scope, (block, BlockForm::Hex))? else {
            return Ok(None);
        };
        let Some((_, of)) = self.row(number)? else { return Ok(None) };
        let mut out = Vec::with_capacity(4096);
        self.list(&mut out, &of, number, Form::Receipt)?;
        Ok(Some(out))
    }

    fn by_hash(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        hash: &[u8],
        form: Form,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let what = self.facts().what;
        let kept = match form {
            Form::Receipt => what.receipts && !self.is_unlike("receipt"),
            _ => what.blocks && !self.is_unlike("transaction"),
        };
        let Some(hash) = block::hash_of_value(hash).filter(|_| kept) else { return Ok(None) };
        let Some(place) = self.store().place_of(&hash)? else { return Ok(None) };
        if !self.is_sure(held, scope, parts(place).0)? {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(1024);
        Ok(self.item(&mut out, place, form)?.then_some(out))
    }

    fn by_index(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: (&[u8], BlockForm),
        index: &[u8],
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let index = wire::json::text::Text::from_value(index)
            .and_then(|text| quantity::parse(&text.decode()));
        let kept = self.facts().what.blocks && !self.is_unlike("transaction");
        let (Some(index), true) = (index, kept) else { return Ok(None) };
        let Some(number) = self.number(held, scope, block)? else { return Ok(None) };
        let Some((row, _)) = self.row(number)? else { return Ok(None) };
        if index >= row.count {
            return Ok(Some(b"null".to_vec()));
        }
        let mut out = Vec::with_capacity(1024);
        Ok(self.item(&mut out, place(number, index), Form::Whole)?.then_some(out))
    }

    fn count(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: (&[u8], BlockForm),
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let Some(number) = self.number(held, scope, block)? else { return Ok(None) };
        let Some((row, _)) = self.row(number)? else { return Ok(None) };
        let mut out = b"\"".to_vec();
        quantity::write(&mut out, row.count);
        out.push(b'"');
        Ok(Some(out))
    }

    /// The form that options ask for, if it is kept and the node writes it in the same way.
    fn harmony_form(&self, options: &[u8]) -> Option<harmony::Form> {
        let form = harmony::Form::read(options).filter(|_| self.facts().what.hmyv2)?;
        let unlike = (!form.whole && self.is_unlike(harmony::HASHES))
            || (!form.staking && self.is_unlike(harmony::WITHOUT_STAKING));
        (!unlike).then_some(form)
    }

    fn harmony_range(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        (from, to): (&[u8], &[u8]),
        options: &[u8],
    ) -> Result<Found, ReadError> {
        let Some(form) = self.harmony_form(options) else { return Ok(Found::Nothing) };
        let number = |raw| match block::parse(raw, BlockForm::Harmony) {
            Ok(BlockRef::Number(number)) => Some(number),
            Ok(BlockRef::Tag(Tag::Earliest)) => Some(0),
            _ => None,
        };
        let (Some(from), Some(to)) = (number(from), number(to)) else { return Ok(Found::Nothing) };
        let last = self.sure_up_to(held, scope, to)?;
        if from > to || to - from > harmony::APART_MAX || from < held.first || from > last {
            return Ok(Found::Nothing);
        }
        let mut listed = b"[".to_vec();
        if !self.harmony_blocks(&mut listed, (from, last), form, scope.bounds.bytes)? {
            return Ok(Found::Nothing);
        }
        if last == to {
            listed.push(b']');
            return Ok(Found::Whole(listed));
        }
        listed.remove(0);
        Ok(Found::Part { from, to: last, listed })
    }

    fn harmony_single(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: (&[u8], BlockForm),
        options: &[u8],
    ) -> Result<Option<Vec<u8>>, ReadError> {
        let form = self.harmony_form(options).filter(|_| !self.is_unlike(harmony::SINGLE));
        let Some(form) = form else { return Ok(None) };
        let Some(number) = self.number(held, scope, block)? else { return Ok(None) };
        let mut out = Vec::with_capacity(4096);
        Ok(self.harmony_block(&mut out, number, form)?.then_some(out))
    }

    fn harmony_counted(
        &mut self,
        held: Held,
        scope: &Scope<'_>,
        block: (&[u8], BlockForm),
    ) -> Result<Option<Vec<u8>>, ReadError> {
        if !self.facts().what.hmyv2 || self.is_unlike(harmony::COUNT) {
            return Ok(None);
        }
        let Some(number) = self.number(held, scope, block)? else { return Ok(None) };
        let mut out = Vec::new();
        Ok(self.harmony_count(&mut out, number)?.then_some(out))
    }

    fn filtered(&mut self, held: Held, scope: &Scope<'_>, raw: &[u8]) -> Result<Found, ReadError> {
        let what = self.facts().what;
        let read = LogFilter::of(raw).ok().zip(Selection::read(raw).ok());
        let kept = what.logs && !(what.receipts && self.is_unlike("logs"));
        // A member that is not known here may be to a node: go-ethereum goes by names in any case.
        let known = walk::members(raw).all(|(name, _)| FILTER.contains(&&*name.decode()));
        let Some((filter, selection)) = read.filter(|_| kept && known) else {
            return Ok(Found::Nothing);
        };
        let (from, to) = match (filter.block_hash, filter.from, filter.to) {
            (Some(hash), None, None) => {
                let Some(number) = self.store().number_of(&hash)? else {
                    return Ok(Found::Nothing);
                };
                (number, number)
            }
            (None, Some(from), Some(to)) => {
                let bound = |bound| match bound {
                    BlockRef::Number(number) => Some(number),
                    BlockRef::Tag(Tag::Earliest) => Some(0),
                    _ => None,
                };
                match (bound(from), bound(to)) {
                    (Some(from), Some(to)) if from <= to => (from, to),
                    _ => return Ok(Found::Nothing),
                }
            }
            _ => return Ok(Found::Nothing),
        };
        let sure_to =
            if filter.block_hash.is_some() { to } else { self.sure_up_to(held, scope, to)? };
        let (first, last) = (from.max(held.first), to.min(sure_to));
        if first > last {
            return Ok(Found::Nothing);
        }
        let mut logs = b"[".to_vec();
        match self.logs(&mut logs, &selection, (first, last), scope.bounds) {
            Ok(_) => {}
            // So much is for a node to judge.
            Err(ReadError::TooMuch(_)) => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        }
        if (first, last) == (from, to) {
            logs.push(b']');
            return Ok(Found::Whole(logs));
        }
        logs.remove(0);
        Ok(Found::Part { from: first, to: last, listed: logs })
    }

    /// The last block, not above `to`, up to which all are sure: the final ones, and those above if
    /// the highest of them is on the chain, for blocks are linked.
    fn sure_up_to(&self, held: Held, scope: &Scope<'_>, to: u64) -> Result<u64, ReadError> {
        let highest = to.min(held.last);
        if self.is_sure(held, scope, highest)? {
            return Ok(highest);
        }
        // Below the first block nothing is held: that says that nothing is sure.
        let none = held.first.saturating_sub(1);
        let finalized = scope.finalized.map(|finalized| finalized.min(held.finalized));
        Ok(finalized.map_or(none, |finalized| finalized.min(highest)))
    }
}
