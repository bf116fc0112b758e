//! Answers put together from the rows.

use std::collections::BTreeSet;
use std::path::Path;

use wire::json::walk;
use wire::logs::{self, Selection};

use crate::harmony;
use crate::pack::{PackError, Unpacker};
use crate::pieces::{self, OfBlock, OfTransaction};
use crate::places::{INDEX_MAX, Key, keys_of, parts, place};
use crate::search::{self, Bounds};
use crate::store::{BlockRow, Facts, Held, Settings, Store, StoreError, Wanted};

/// Reads a file; one for each thread that does.
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
    /// The file.
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
    /// Opens a file that holds something; none if nothing was ever written to it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(path: &Path, settings: Settings) -> Result<Option<Reader>, ReadError> {
        Reader::over(Store::open_to_read(path, settings)?)
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

    /// What the file is about.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The file itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// From where to where the file goes.
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
        let Some(row) = self.store.harmony_block(number)? else { return Ok(false) };
        self.unpacker.unpack(&mut self.short, &row.body)?;
        let of = OfBlock::new(&row.hash, number, row.time);
        if form == harmony::Form::KEPT {
            pieces::restore(out, &self.short, &of, None);
            return Ok(true);
        }
        let mut whole = Vec::with_capacity(self.short.len());
        pieces::restore(&mut whole, &self.short, &of, None);
        Ok(harmony::write(out, &whole, form))
    }

    /// Appends how many transactions a block of Harmony's has; false if it is not there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn harmony_count(&mut self, out: &mut Vec<u8>, number: u64) -> Result<bool, ReadError> {
        let Some(row) = self.store.harmony_block(number)? else { return Ok(false) };
        self.unpacker.unpack(&mut self.short, &row.body)?;
        let Some((count, _)) = harmony::counts(&self.short) else { return Ok(false) };
        wire::quantity::write_decimal(out, count);
        Ok(true)
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
        self.store.items(from, to, form.wanted(), |place, hash, packed| {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write_item(out, unpacker, short, of, (place, hash, packed), form)?;
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
        let Some((hash, time)) = self.store.hash_and_time(number)? else { return Ok(false) };
        let of = OfBlock::new(&hash, number, time);
        let Some(item) = self.store.item(place, form.wanted())? else { return Ok(false) };
        let row = (place, item.hash, item.packed.as_deref());
        write_item(out, &mut self.unpacker, &mut self.short, &of, row, form)?;
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
        search::search(store, selection, (from, to), |place, hash, packed| {
            let Some(packed) = packed else { return Ok(()) };
            let (number, index) = parts(place);
            unpacker.unpack(short, packed)?;
            let of_transaction = OfTransaction::new(&hash, index);
            for log in logs_of(short) {
                if selection.has_raw(log) != Some(true) {
                    continue;
                }
                if of.as_ref().is_none_or(|(known, _)| *known != number) {
                    let Some((hash, time)) = store.hash_and_time(number)? else {
                        return Ok(());
                    };
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
        self.store.items(place(last + 1, 0), i64::MAX, Wanted::Receipt, |_, _, packed| {
            if let Some(packed) = packed {
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
    (place, hash, packed): (i64, [u8; 32], Option<&[u8]>),
    form: Form,
) -> Result<(), ReadError> {
    if form == Form::Hash {
        out.push(b'"');
        out.extend_from_slice(&pieces::hash_text(&hash));
        out.push(b'"');
        return Ok(());
    }
    let Some(packed) = packed else {
        let (number, index) = parts(place);
        return Err(StoreError::Damaged(format!(
            "block {number}, transaction {index}: nothing kept"
        ))
        .into());
    };
    unpacker.unpack(short, packed)?;
    pieces::restore(out, short, of, Some(&OfTransaction::new(&hash, parts(place).1)));
    Ok(())
}
