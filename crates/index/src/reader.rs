//! Answers put together from the rows.

use std::collections::BTreeSet;

use wire::json::walk;
use wire::logs::{self, Selection};

use crate::harmony;
use crate::pack::{PackError, Unpacker};
use crate::pieces::{self, OfBlock, OfTransaction};
use crate::places::{INDEX_MAX, Key, keys_of, parts, place};
use crate::search::{self, Bounds};
use crate::store::{BlockRow, Facts, Held, Item, Location, Settings, Store, StoreError, Wanted};

/// Reads an index; one for each thread that does.
pub struct Reader {
    store: Store,
    unpacker: Unpacker,
    facts: Facts,
    /// A piece as it was packed.
    short: Vec<u8>,
}

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Where it is kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A piece of it.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// More was selected than may be answered.
    #[error("more than {0}")]
    TooMuch(String),
}

/// What of a transaction is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Its hash alone, as a string.
    Hash,
    /// Itself.
    Whole,
    /// Its receipt.
    Receipt,
}

impl Form {
    fn wanted(self) -> Wanted {
        match self {
            Form::Hash => Wanted::Hash,
            Form::Whole => Wanted::Body,
            Form::Receipt => Wanted::Receipt,
        }
    }
}

impl Reader {
    /// Opens an index that holds something; none if nothing was ever written to it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(at: impl Into<Location>, settings: Settings) -> Result<Option<Reader>, ReadError> {
        Reader::over(Store::open_to_read(at, settings)?)
    }

    /// Reads by a connection.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn over(store: Store) -> Result<Option<Reader>, ReadError> {
        let Some(facts) = store.facts()? else { return Ok(None) };
        let unpacker = Unpacker::new(&store.dictionaries()?)?;
        Ok(Some(Reader { store, unpacker, facts, short: Vec::new() }))
    }

    /// What the index is about.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The index itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// From where to where the index goes.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn held(&self) -> Result<Option<Held>, ReadError> {
        Ok(self.store.held()?)
    }

    /// The row of a block and what its pieces have in common.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn row(&self, number: u64) -> Result<Option<(BlockRow, OfBlock)>, ReadError> {
        let row = self.store.block(number)?;
        Ok(row.map(|row| {
            let of = OfBlock::new(&row.hash, row.number, row.time);
            (row, of)
        }))
    }

    /// Appends a block, with whole transactions or with their hashes; false if it is not there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn block(&mut self, out: &mut Vec<u8>, number: u64, form: Form) -> Result<bool, ReadError> {
        let Some((row, of)) = self.row(number)? else { return Ok(false) };
        let mut transactions = Vec::new();
        if self.facts.what.blocks || row.count == 0 {
            self.list(&mut transactions, &of, number, form)?;
        }
        self.unpacker.unpack(&mut self.short, &row.body)?;
        pieces::restore_block(out, &self.short, &of, |out| out.extend_from_slice(&transactions));
        Ok(true)
    }

    /// Appends a block as Harmony's own methods write it; false if it is not there, or not in this
    /// form.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn harmony_block(
        &mut self,
        out: &mut Vec<u8>,
        number: u64,
        form: harmony::Form,
    ) -> Result<bool, ReadError> {
        self.harmony_blocks(out, (number, number), form, u64::MAX)
    }

    /// Appends blocks as Harmony's own methods write them, separated by commas; false if one is not
    /// there, or not in this form, or they have more bytes than these.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn harmony_blocks(
        &mut self,
        out: &mut Vec<u8>,
        (from, to): (u64, u64),
        form: harmony::Form,
        bytes_max: u64,
    ) -> Result<bool, ReadError> {
        let start = out.len();
        let (mut next, mut fits) = (from, true);
        let Reader { store, unpacker, short, .. } = self;
        store.harmony_blocks(from, to, |row| {
            if row.number != next {
                return Ok(false);
            }
            if next > from {
                out.push(b',');
            }
            unpacker.unpack(short, row.body)?;
            let of = OfBlock::new(&row.hash, row.number, row.time);
            if form == harmony::Form::KEPT {
                pieces::restore(out, short, &of, None);
            } else {
                let mut whole = Vec::with_capacity(short.len());
                pieces::restore(&mut whole, short, &of, None);
                fits = harmony::write(out, &whole, form);
            }
            next += 1;
            fits &= (out.len() - start) as u64 <= bytes_max;
            Ok::<_, ReadError>(fits)
        })?;
        Ok(fits && next > to)
    }

    /// Appends how many transactions a block of Harmony's has; false if it is not there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn harmony_count(&mut self, out: &mut Vec<u8>, number: u64) -> Result<bool, ReadError> {
        let mut written = false;
        let Reader { store, unpacker, short, .. } = self;
        store.harmony_blocks(number, number, |row| {
            unpacker.unpack(short, row.body)?;
            if let Some((count, _)) = harmony::counts(short) {
                wire::quantity::write_decimal(out, count);
                written = true;
            }
            Ok::<_, ReadError>(false)
        })?;
        Ok(written)
    }

    /// Appends the array of something of all transactions of a block.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn list(
        &mut self,
        out: &mut Vec<u8>,
        of: &OfBlock,
        number: u64,
        form: Form,
    ) -> Result<(), ReadError> {
        out.push(b'[');
        let (from, to) = (place(number, 0), place(number, INDEX_MAX));
        let (unpacker, short) = (&mut self.unpacker, &mut self.short);
        let mut first = true;
        self.store.items(from, to, form.wanted(), |item| {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write_item(out, unpacker, short, of, item, form)?;
            Ok::<_, ReadError>(true)
        })?;
        out.push(b']');
        Ok(())
    }

    /// Appends something of the transaction at a place; false if it is not there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn item(&mut self, out: &mut Vec<u8>, place: i64, form: Form) -> Result<bool, ReadError> {
        let number = parts(place).0;
        let Some(row) = self.store.item(place, form.wanted())? else { return Ok(false) };
        let block = match row.block {
            Some(block) => Some(block),
            None => self.store.hash_and_time(number)?,
        };
        let Some((hash, time)) = block else { return Ok(false) };
        let of = OfBlock::new(&hash, number, time);
        let packed = row.packed.as_deref();
        let item = Item { place, hash: row.hash, packed, block: row.block };
        write_item(out, &mut self.unpacker, &mut self.short, &of, item, form)?;
        Ok(true)
    }

    /// Appends the logs that are selected in blocks `from` to `to`, separated by commas; how many.
    ///
    /// # Errors
    /// If they cannot be read, or are more than `bounds` allow.
    pub fn logs(
        &mut self,
        out: &mut Vec<u8>,
        selection: &Selection,
        (from, to): (u64, u64),
        bounds: Bounds,
    ) -> Result<u64, ReadError> {
        let mut found = 0;
        let start = out.len();
        let mut of: Option<(u64, OfBlock)> = None;
        let Reader { store, unpacker, short, .. } = self;
        search::search(store, selection, (from, to), bounds, |item| {
            let Some(packed) = item.packed else { return Ok(()) };
            let (number, index) = parts(item.place);
            unpacker.unpack(short, packed)?;
            let of_transaction = OfTransaction::new(&item.hash, index);
            for log in logs_of(short) {
                if !selection.has_raw(log) {
                    continue;
                }
                if of.as_ref().is_none_or(|(known, _)| *known != number) {
                    let block = match item.block {
                        Some(block) => Some(block),
                        None => store.hash_and_time(number)?,
                    };
                    let Some((hash, time)) = block else { return Ok(()) };
                    of = Some((number, OfBlock::new(&hash, number, time)));
                }
                let Some((_, of)) = &of else { return Ok(()) };
                if found > 0 {
                    out.push(b',');
                }
                pieces::restore(out, log, of, Some(&of_transaction));
                found += 1;
            }
            if found > bounds.logs {
                return Err(ReadError::TooMuch(format!("{} logs", bounds.logs)));
            }
            if (out.len() - start) as u64 > bounds.bytes {
                return Err(ReadError::TooMuch(format!("{} bytes of logs", bounds.bytes)));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// What the logs of the blocks above `last` are found by.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn keys_above(&mut self, last: u64) -> Result<BTreeSet<Key>, ReadError> {
        let mut keys = BTreeSet::new();
        if !self.facts.what.logs {
            return Ok(keys);
        }
        let (unpacker, short) = (&mut self.unpacker, &mut self.short);
        self.store.items(place(last + 1, 0), i64::MAX, Wanted::Receipt, |item| {
            if let Some(packed) = item.packed {
                unpacker.unpack(short, packed)?;
                for log in logs_of(short) {
                    if let Some((address, topics)) = logs::keys_of(log) {
                        keys.extend(keys_of(&address, &topics));
                    }
                }
            }
            Ok::<_, ReadError>(true)
        })?;
        Ok(keys)
    }
}

/// The logs of what is kept of a transaction's: a receipt, or an array of logs.
fn logs_of(short: &[u8]) -> impl Iterator<Item = &[u8]> {
    let array = match short.first() {
        Some(b'[') => Some(short),
        _ => walk::from_member(short, "logs"),
    };
    walk::elements(array.unwrap_or_default())
}

fn write_item(
    out: &mut Vec<u8>,
    unpacker: &mut Unpacker,
    short: &mut Vec<u8>,
    of: &OfBlock,
    item: Item<'_>,
    form: Form,
) -> Result<(), ReadError> {
    if form == Form::Hash {
        out.push(b'"');
        out.extend_from_slice(&pieces::hash_text(&item.hash));
        out.push(b'"');
        return Ok(());
    }
    let Some(packed) = item.packed else {
        let (number, index) = parts(item.place);
        return Err(StoreError::Damaged(format!(
            "block {number}, transaction {index}: nothing kept"
        ))
        .into());
    };
    unpacker.unpack(short, packed)?;
    pieces::restore(out, short, of, Some(&OfTransaction::new(&item.hash, parts(item.place).1)));
    Ok(())
}
