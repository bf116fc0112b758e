//! What a node said of a block, cut into pieces that are put together again byte for byte.
//!
//! A piece says many times what its block and its transaction are: the hash of the block stands in
//! every log. Such texts are left out: a control character, which cannot stand in JSON otherwise
//! (RFC 8259 section 7), takes their place. No member is known by name and nothing is parsed, so
//! whatever a node writes comes back as it was.

mod pass;
#[cfg(test)]
mod tests;

use wire::json::walk;
use wire::quantity;

pub use self::pass::{Ends, Pass};

/// Stands for the hash of the block.
const BLOCK_HASH: u8 = 1;
/// Stands for the number of the block.
const NUMBER: u8 = 2;
/// Stands for the time of the block.
const TIME: u8 = 3;
/// Stands for the hash of the transaction.
const HASH: u8 = 4;
/// Stands for the index of the transaction.
const INDEX: u8 = 5;
/// Stands for the array of the block's transactions.
pub const TRANSACTIONS: u8 = 6;

/// `0x` and the digits of a hash.
pub type HashText = [u8; 66];

/// What all pieces of a block have in common, as JSON writes it.
#[derive(Debug, Clone)]
pub struct OfBlock {
    hash: HashText,
    number: Vec<u8>,
    time: Vec<u8>,
}

impl OfBlock {
    /// Of the block with this hash, number and time in seconds.
    pub fn new(hash: &[u8; 32], number: u64, time: u64) -> OfBlock {
        OfBlock { hash: hash_text(hash), number: quantity_text(number), time: quantity_text(time) }
    }
}

/// What all pieces of a transaction have in common, as JSON writes it.
#[derive(Debug, Clone)]
pub struct OfTransaction {
    hash: HashText,
    index: Vec<u8>,
}

impl OfTransaction {
    /// Of the transaction with this hash at this place in its block.
    pub fn new(hash: &[u8; 32], index: u64) -> OfTransaction {
        OfTransaction { hash: hash_text(hash), index: quantity_text(index) }
    }
}

/// A hash as JSON-RPC writes it.
pub fn hash_text(hash: &[u8; 32]) -> HashText {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'0'; 66];
    text[1] = b'x';
    for (pair, byte) in text[2..].chunks_exact_mut(2).zip(hash) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 0xf)];
    }
    text
}

fn quantity_text(number: u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(18);
    quantity::write(&mut text, number);
    text
}

/// Appends the piece that a [`Pass`] took apart.
pub fn restore(out: &mut Vec<u8>, short: &[u8], block: &OfBlock, of: Option<&OfTransaction>) {
    restore_with(out, short, block, of, |_| {});
}

/// The same for a block, whose transactions `write` appends.
pub fn restore_block(
    out: &mut Vec<u8>,
    short: &[u8],
    block: &OfBlock,
    write: impl FnMut(&mut Vec<u8>),
) {
    restore_with(out, short, block, None, write);
}

fn restore_with(
    out: &mut Vec<u8>,
    short: &[u8],
    block: &OfBlock,
    of: Option<&OfTransaction>,
    mut write: impl FnMut(&mut Vec<u8>),
) {
    let mut rest = short;
    while let Some(at) = find_mark(rest) {
        out.extend_from_slice(&rest[..at]);
        match (rest[at], of) {
            (BLOCK_HASH, _) => out.extend_from_slice(&block.hash),
            (NUMBER, _) => out.extend_from_slice(&block.number),
            (TIME, _) => out.extend_from_slice(&block.time),
            (HASH, Some(of)) => out.extend_from_slice(&of.hash),
            (INDEX, Some(of)) => out.extend_from_slice(&of.index),
            (TRANSACTIONS, _) => write(out),
            // Cannot be: nothing that was shortened without it has such a mark.
            _ => {}
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Where the first mark is. Eight bytes at a time: subtracting from a word borrows only past the first
/// hit, so the lowest flagged byte is exact (Hacker's Delight, 2nd ed., section 6-1).
fn find_mark(bytes: &[u8]) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let hits = word.wrapping_sub(LOW * u64::from(TRANSACTIONS + 1)) & !word & HIGH;
        if hits != 0 {
            return Some(at * 8 + (hits.trailing_zeros() / 8) as usize);
        }
    }
    let at = rest.iter().position(|byte| *byte <= TRANSACTIONS)?;
    Some(bytes.len() - rest.len() + at)
}

/// The same JSON without whitespace outside of strings; none where it has none, as nodes write it.
pub fn compacted(raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    while at < raw.len() {
        match raw[at] {
            b'"' => {
                at = walk::skip_string(raw, at).map_or(raw.len(), |(end, _)| end);
                continue;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.extend_from_slice(&raw[copied..at]);
                copied = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&raw[copied..]);
    Some(out)
}
