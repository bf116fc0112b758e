//! From what a node said of a block to the rows that keep it.

use wire::json::walk;
use wire::logs::{TOPICS_MAX, Topics};
use wire::{block, quantity};

use crate::harmony;
use crate::pack::{Kind, PackError, Packer};
use crate::pieces::{self, Ends, OfBlock, OfTransaction, Pass};
use crate::places::{self, INDEX_MAX, Key};
use crate::store::{NewBlock, NewItem, What};

#[cfg(test)]
mod tests;

/// What a node said of a block: raw values, each a valid JSON text.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The block: with whole transactions where they are kept, else with their hashes.
    pub block: &'a [u8],
    /// The array of its receipts, where they are kept.
    pub receipts: Option<&'a [u8]>,
    /// The array of its logs, where those are kept without receipts.
    pub logs: Option<&'a [u8]>,
    /// The block as Harmony's own methods write it, where that is kept.
    pub harmony: Option<&'a [u8]>,
}

/// What a block is known and linked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// The hash of the one before.
    pub parent: [u8; 32],
    /// Its time, in seconds.
    pub time: u64,
}

/// Why what a node said cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    /// A member is missing or of another form.
    #[error("{0}")]
    Form(String),
    /// Packing failed.
    #[error(transparent)]
    Pack(#[from] PackError),
}

fn form(what: impl Into<String>) -> CutError {
    CutError::Form(what.into())
}

impl From<Ends> for CutError {
    fn from(ends: Ends) -> CutError {
        form(ends.to_string())
    }
}

impl Header {
    /// Reads it of a raw block.
    ///
    /// # Errors
    /// Which member is missing or of another form.
    pub fn read(raw: &[u8]) -> Result<Header, CutError> {
        let names = ["hash", "number", "parentHash", "timestamp"];
        let [hash, number, parent, time] = walk::fields_of(raw, names);
        let hash_of = |value: Option<&[u8]>, name: &str| {
            let read = value.and_then(block::hash_of_value);
            read.ok_or_else(|| form(format!("block.{name}: must be 0x and 64 hexadecimal digits")))
        };
        let number_of = |value: Option<&[u8]>, name: &str| {
            let read = value.and_then(quantity::from_value);
            read.ok_or_else(|| form(format!("block.{name}: must be a quantity of 64 bits")))
        };
        Ok(Header {
            number: number_of(number, "number")?,
            hash: hash_of(hash, "hash")?,
            parent: hash_of(parent, "parentHash")?,
            time: number_of(time, "timestamp")?,
        })
    }
}

/// A piece of a block, ready to be packed.
struct Piece {
    kind: Kind,
    bytes: Vec<u8>,
}

/// What is kept of one transaction, not packed yet.
#[derive(Default)]
struct Item {
    index: u64,
    hash: [u8; 32],
    body: Option<Vec<u8>>,
    receipt: Option<Vec<u8>>,
    keys: Vec<Key>,
    logs: u64,
}

impl Item {
    /// All of its logs are noted.
    fn settle(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
    }
}

/// A block taken apart.
struct Parts {
    header: Header,
    count: u64,
    body: Vec<u8>,
    items: Vec<Item>,
    harmony: Option<Vec<u8>>,
}

/// The rows of a block.
///
/// # Errors
/// If what was said has not the form that it needs to be kept.
pub fn cut(packer: &mut Packer, said: Said<'_>, what: What) -> Result<NewBlock, CutError> {
    let parts = take_apart(said, what)?;
    let logs = parts.items.iter().map(|item| item.logs).sum();
    let mut pack = |kind, piece: Option<Vec<u8>>| -> Result<Option<Vec<u8>>, PackError> {
        piece.map(|piece| packer.pack(kind, &piece)).transpose()
    };
    let mut items = Vec::with_capacity(parts.items.len());
    for item in parts.items {
        items.push(NewItem {
            index: item.index,
            hash: item.hash,
            receipt: pack(Kind::Receipt, item.receipt)?,
            body: pack(Kind::Transaction, item.body)?,
            keys: item.keys,
        });
    }
    let Header { number, hash, parent, time } = parts.header;
    let said = [Some(said.block), said.receipts, said.logs, said.harmony];
    Ok(NewBlock {
        number,
        hash,
        parent,
        time,
        count: parts.count,
        harmony: pack(Kind::HarmonyBlock, parts.harmony)?,
        body: packer.pack(Kind::Block, &parts.body)?,
        items,
        logs,
        said: said.iter().flatten().map(|raw| raw.len() as u64).sum(),
    })
}

/// The pieces of a block, as samples of what there is to pack.
///
/// # Errors
/// As [`cut`].
pub fn samples(said: Said<'_>, what: What) -> Result<Vec<(Kind, Vec<u8>)>, CutError> {
    let parts = take_apart(said, what)?;
    let mut samples = vec![Piece { kind: Kind::Block, bytes: parts.body }];
    for item in parts.items {
        let body = item.body.map(|bytes| Piece { kind: Kind::Transaction, bytes });
        let receipt = item.receipt.map(|bytes| Piece { kind: Kind::Receipt, bytes });
        samples.extend(body.into_iter().chain(receipt));
    }
    samples.extend(parts.harmony.map(|bytes| Piece { kind: Kind::HarmonyBlock, bytes }));
    Ok(samples.into_iter().map(|piece| (piece.kind, piece.bytes)).collect())
}

fn take_apart(said: Said<'_>, what: What) -> Result<Parts, CutError> {
    let header = Header::read(said.block)?;
    let of = OfBlock::new(&header.hash, header.number, header.time);
    let mut pass = Pass::new(said.block, &of);
    let mut items = None;
    if pass.open_object() {
        while let Some(name) = pass.member()? {
            if items.is_none() && *name.decode() == *b"transactions" {
                items = Some(transactions(&mut pass, what.blocks)?);
            } else {
                pass.value()?;
            }
        }
    }
    let Some(mut items) = items else { return Err(form("block.transactions: missing")) };
    if let Some(receipts) = said.receipts {
        add_receipts(&mut items, &mut Pass::new(receipts, &of), what.logs)?;
    } else if let Some(logs) = said.logs {
        add_logs(&mut items, &mut Pass::new(logs, &of))?;
    }
    let harmony = match said.harmony {
        Some(raw) => Some(harmony::piece(raw, &header, &of).map_err(form)?),
        None => None,
    };
    Ok(Parts { header, count: items.len() as u64, body: pass.take(), items, harmony })
}

/// The transactions of the array that stands here. Whole ones leave a mark in the block; of others
/// the block keeps the list of their hashes as it was.
fn transactions(pass: &mut Pass<'_, '_>, whole: bool) -> Result<Vec<Item>, CutError> {
    let before = whole.then(|| pass.take());
    if !pass.open_array() {
        return Err(form("block.transactions: no array"));
    }
    let mut items = Vec::new();
    while pass.element()? {
        let index = items.len() as u64;
        if index == INDEX_MAX {
            return Err(form("block.transactions: more than 2^20"));
        }
        items.push(if whole { transaction(pass, index)? } else { hash_alone(pass, index)? });
    }
    if let Some(mut body) = before {
        body.push(pieces::TRANSACTIONS);
        pass.of(None);
        pass.go_on(body);
    }
    Ok(items)
}

fn transaction(pass: &mut Pass<'_, '_>, index: u64) -> Result<Item, CutError> {
    if pass.rest().first() == Some(&b'"') {
        return Err(form("block.transactions: hashes, where whole transactions were asked for"));
    }
    let hash = hash_of(walk::member(pass.rest(), "hash"), index)?;
    pass.forget();
    pass.of(Some(OfTransaction::new(&hash, index)));
    pass.value()?;
    Ok(Item { index, hash, body: Some(pass.take()), ..Item::default() })
}

fn hash_alone(pass: &mut Pass<'_, '_>, index: u64) -> Result<Item, CutError> {
    let raw = pass.value()?;
    let hash = if raw.first() == Some(&b'"') { Some(raw) } else { walk::member(raw, "hash") };
    Ok(Item { index, hash: hash_of(hash, index)?, ..Item::default() })
}

fn hash_of(raw: Option<&[u8]>, index: u64) -> Result<[u8; 32], CutError> {
    raw.and_then(block::hash_of_value).ok_or_else(|| {
        form(format!("block.transactions[{index}].hash: must be 0x and 64 hexadecimal digits"))
    })
}

fn add_receipts(items: &mut [Item], pass: &mut Pass<'_, '_>, logs: bool) -> Result<(), CutError> {
    let wanted = items.len();
    let other = |count: &str| form(format!("receipts: {count}, for {wanted} transactions"));
    if !pass.open_array() {
        return Err(other("no array"));
    }
    for item in items {
        if !pass.element()? {
            return Err(other(&item.index.to_string()));
        }
        pass.forget();
        pass.of(Some(OfTransaction::new(&item.hash, item.index)));
        receipt(pass, item, logs)?;
        item.receipt = Some(pass.take());
    }
    if pass.element()? { Err(other("more")) } else { Ok(()) }
}

fn receipt(pass: &mut Pass<'_, '_>, item: &mut Item, logs: bool) -> Result<(), CutError> {
    let index = item.index;
    let (mut hash, mut listed) = (None, false);
    if !pass.open_object() {
        return Err(form(format!("receipts[{index}]: no object")));
    }
    while let Some(name) = pass.member()? {
        match &*name.decode() {
            b"transactionHash" if hash.is_none() => hash = block::hash_of_value(pass.value()?),
            b"logs" if logs && !std::mem::replace(&mut listed, true) && pass.open_array() => {
                while pass.element()? {
                    let place = || format!("receipts[{index}].logs[{}]", item.logs);
                    note_log(pass, &mut item.keys, place)?;
                    item.logs += 1;
                }
            }
            _ => {
                pass.value()?;
            }
        }
    }
    if hash != Some(item.hash) {
        let why = format!("receipts[{index}].transactionHash: not that of the transaction");
        return Err(form(why));
    }
    item.settle();
    Ok(())
}

/// Gives each transaction the array of its own logs.
fn add_logs(items: &mut [Item], pass: &mut Pass<'_, '_>) -> Result<(), CutError> {
    if !pass.open_array() {
        return Err(form("logs: no array"));
    }
    let mut count = 0u64;
    while pass.element()? {
        let [hash, index] = walk::fields_of(pass.rest(), ["transactionHash", "transactionIndex"]);
        let index = index.and_then(quantity::from_value);
        let item = index.and_then(|index| items.get_mut(usize::try_from(index).ok()?));
        let Some(item) = item else {
            return Err(form(format!(
                "logs[{count}].transactionIndex: no transaction of the block"
            )));
        };
        if hash.and_then(block::hash_of_value) != Some(item.hash) {
            return Err(form(format!(
                "logs[{count}].transactionHash: not that of the transaction"
            )));
        }
        pass.forget();
        pass.of(Some(OfTransaction::new(&item.hash, item.index)));
        note_log(pass, &mut item.keys, || format!("logs[{count}]"))?;
        let list = item.receipt.get_or_insert_with(|| b"[]".to_vec());
        list.pop();
        if list.len() > 1 {
            list.push(b',');
        }
        list.extend_from_slice(&pass.take());
        list.push(b']');
        item.logs += 1;
        count += 1;
    }
    items.iter_mut().for_each(Item::settle);
    Ok(())
}

/// Steps over the log that stands here, and notes what it is found by.
fn note_log(
    pass: &mut Pass<'_, '_>,
    keys: &mut Vec<Key>,
    place: impl Fn() -> String,
) -> Result<(), CutError> {
    let odd = || form(format!("{}: must have an address and at most 4 topics", place()));
    let (mut address, mut topics) = (None, None);
    if !pass.open_object() {
        return Err(odd());
    }
    while let Some(name) = pass.member()? {
        match &*name.decode() {
            b"address" if address.is_none() => address = block::address_of_value(pass.value()?),
            b"topics" if topics.is_none() && pass.open_array() => {
                let mut listed = Topics::new();
                while pass.element()? {
                    listed.push(block::hash_of_value(pass.value()?).ok_or_else(odd)?);
                }
                topics = Some(listed);
            }
            _ => {
                pass.value()?;
            }
        }
    }
    let (Some(address), Some(topics)) = (address, topics.filter(|all| all.len() <= TOPICS_MAX))
    else {
        return Err(odd());
    };
    keys.extend(places::keys_of(&address, &topics));
    Ok(())
}
