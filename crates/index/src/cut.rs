//! From what a node said of a block to the rows that keep it.

use wire::json::walk;
use wire::{block, logs, quantity};

use crate::harmony;
use crate::pack::{Kind, PackError, Packer};
use crate::pieces::{self, OfBlock, OfTransaction};
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
    let compacted = pieces::compacted(said.block);
    let raw = compacted.as_deref().unwrap_or(said.block);
    let header = Header::read(raw)?;
    let of = OfBlock::new(&header.hash, header.number, header.time);
    let array = walk::member_spans(raw).find(|(name, _)| *name.decode() == *b"transactions");
    let Some((_, array)) = array else { return Err(form("block.transactions: missing")) };
    let listed: Vec<&[u8]> = walk::elements(&raw[array.clone()]).collect();
    if listed.len() as u64 > INDEX_MAX {
        return Err(form("block.transactions: more than 2^20"));
    }
    let hashed = listed.iter().any(|raw| raw.first() == Some(&b'"'));
    if what.blocks && hashed {
        return Err(form("block.transactions: hashes, where whole transactions were asked for"));
    }
    let mut items = Vec::new();
    for (index, raw) in listed.iter().enumerate() {
        items.push(transaction(raw, index as u64, &of, what.blocks)?);
    }
    if let Some(receipts) = said.receipts {
        add_receipts(&mut items, receipts, &of, what.logs)?;
    } else if let Some(logs) = said.logs {
        add_logs(&mut items, logs, &of)?;
    }
    // Without whole transactions, the block keeps the list of their hashes as it was.
    let cut = if what.blocks || listed.is_empty() {
        pieces::cut_transactions(raw, array)
    } else {
        raw.to_vec()
    };
    let mut body = Vec::with_capacity(cut.len());
    pieces::shorten(&mut body, &cut, &of, None);
    let harmony = match said.harmony {
        Some(raw) => Some(harmony::piece(raw, &header, &of).map_err(form)?),
        None => None,
    };
    Ok(Parts { header, count: listed.len() as u64, body, items, harmony })
}

fn transaction(raw: &[u8], index: u64, of: &OfBlock, whole: bool) -> Result<Item, CutError> {
    let hash = match raw.first() {
        Some(b'"') => Some(raw),
        _ => walk::member(raw, "hash"),
    };
    let hash = hash.and_then(block::hash_of_value).ok_or_else(|| {
        form(format!("block.transactions[{index}].hash: must be 0x and 64 hexadecimal digits"))
    })?;
    let mut item = Item { index, hash, ..Item::default() };
    if whole {
        let mut body = Vec::with_capacity(raw.len());
        pieces::shorten(&mut body, raw, of, Some(&OfTransaction::new(&hash, index)));
        item.body = Some(body);
    }
    Ok(item)
}

fn add_receipts(
    items: &mut [Item],
    receipts: &[u8],
    of: &OfBlock,
    logs: bool,
) -> Result<(), CutError> {
    let compacted = pieces::compacted(receipts);
    let mut listed = walk::elements(compacted.as_deref().unwrap_or(receipts));
    let short = |count: usize| form(format!("receipts: {count}, for {} transactions", items.len()));
    let (mut count, wanted) = (0, items.len());
    let missing = short(0);
    for item in items.iter_mut() {
        let Some(raw) = listed.next() else { break };
        let hash = walk::member(raw, "transactionHash").and_then(block::hash_of_value);
        if hash != Some(item.hash) {
            return Err(form(format!(
                "receipts[{}].transactionHash: not that of the transaction",
                item.index
            )));
        }
        if logs {
            let listed = walk::member(raw, "logs").unwrap_or_default();
            (item.keys, item.logs) = keys(listed, item.index)?;
        }
        let mut receipt = Vec::with_capacity(raw.len());
        pieces::shorten(&mut receipt, raw, of, Some(&OfTransaction::new(&item.hash, item.index)));
        item.receipt = Some(receipt);
        count += 1;
    }
    if count < wanted || listed.next().is_some() {
        return Err(missing);
    }
    Ok(())
}

/// Gives each transaction the array of its own logs.
fn add_logs(items: &mut [Item], logs: &[u8], of: &OfBlock) -> Result<(), CutError> {
    let compacted = pieces::compacted(logs);
    for (at, raw) in walk::elements(compacted.as_deref().unwrap_or(logs)).enumerate() {
        let index = walk::member(raw, "transactionIndex").and_then(quantity::from_value);
        let item = index.and_then(|index| items.get_mut(usize::try_from(index).ok()?));
        let Some(item) = item else {
            return Err(form(format!("logs[{at}].transactionIndex: no transaction of the block")));
        };
        let hash = walk::member(raw, "transactionHash").and_then(block::hash_of_value);
        if hash != Some(item.hash) {
            return Err(form(format!("logs[{at}].transactionHash: not that of the transaction")));
        }
        let list = item.receipt.get_or_insert_with(|| b"[]".to_vec());
        list.pop();
        if list.len() > 1 {
            list.push(b',');
        }
        let of_transaction = OfTransaction::new(&item.hash, item.index);
        pieces::shorten(list, raw, of, Some(&of_transaction));
        list.push(b']');
        item.logs += 1;
        note_keys(&mut item.keys, raw, || format!("logs[{at}]"))?;
    }
    for item in items.iter_mut() {
        item.keys.sort_unstable();
        item.keys.dedup();
    }
    Ok(())
}

/// What the logs of a transaction are found by, and how many they are.
fn keys(logs: &[u8], index: u64) -> Result<(Vec<Key>, u64), CutError> {
    let mut keys = Vec::new();
    let mut count = 0;
    for raw in walk::elements(logs) {
        note_keys(&mut keys, raw, || format!("receipts[{index}].logs[{count}]"))?;
        count += 1;
    }
    keys.sort_unstable();
    keys.dedup();
    Ok((keys, count))
}

fn note_keys(keys: &mut Vec<Key>, raw: &[u8], place: impl Fn() -> String) -> Result<(), CutError> {
    let Some((address, topics)) = logs::keys_of(raw) else {
        return Err(form(format!("{}: must have an address and at most 4 topics", place())));
    };
    keys.extend(places::keys_of(&address, &topics));
    Ok(())
}
