//! Fragments: a node's JSON about a block, split and shortened so that it can be restored byte for
//! byte.
//!
//! JSON repeats values of the block and the transaction: every log contains the hash of the block.
//! An encoder replaces such texts by placeholders: control characters, which cannot occur in JSON
//! otherwise (RFC 8259 section 7). The encoder does not depend on the names of members and does not
//! parse values. Any JSON of a node is therefore restored byte for byte, except that whitespace
//! between values is omitted.

mod context;
mod encoder;
mod header;
#[cfg(test)]
mod tests;

use wire::json::walk;

use self::context::{BLOCK_HASH, HASH, INDEX, NUMBER, TIMESTAMP};
pub use self::context::{BlockContext, TRANSACTIONS, TransactionContext, hash_text};
pub use self::encoder::FragmentEncoder;
pub use self::header::BlockHeader;

/// Appends the JSON of a fragment that a [`FragmentEncoder`] wrote.
pub fn decode(
    out: &mut Vec<u8>,
    fragment: &[u8],
    block: &BlockContext,
    transaction: Option<&TransactionContext>,
) {
    decode_with(out, fragment, block, transaction, |_| {});
}

/// Appends the JSON of a block's fragment; `write_transactions` appends its transactions.
pub fn decode_block(
    out: &mut Vec<u8>,
    fragment: &[u8],
    block: &BlockContext,
    write_transactions: impl FnMut(&mut Vec<u8>),
) {
    decode_with(out, fragment, block, None, write_transactions);
}

fn decode_with(
    out: &mut Vec<u8>,
    fragment: &[u8],
    block: &BlockContext,
    transaction: Option<&TransactionContext>,
    mut write_transactions: impl FnMut(&mut Vec<u8>),
) {
    let mut rest = fragment;
    while let Some(offset) = find_placeholder(rest) {
        out.extend_from_slice(&rest[..offset]);
        match (rest[offset], transaction) {
            (BLOCK_HASH, _) => out.extend_from_slice(&block.hash),
            (NUMBER, _) => out.extend_from_slice(&block.number),
            (TIMESTAMP, _) => out.extend_from_slice(&block.timestamp),
            (HASH, Some(transaction)) => out.extend_from_slice(&transaction.hash),
            (INDEX, Some(transaction)) => out.extend_from_slice(&transaction.index),
            (TRANSACTIONS, _) => write_transactions(out),
            // An encoder without a transaction writes no placeholder of a transaction.
            _ => {}
        }
        rest = &rest[offset + 1..];
    }
    out.extend_from_slice(rest);
}

/// Returns the offset of the first placeholder. The loop compares eight bytes at a time: a
/// subtraction from a word borrows only beyond the first hit, so the lowest flagged byte is exact
/// (Hacker's Delight, 2nd ed., section 6-1).
fn find_placeholder(bytes: &[u8]) -> Option<usize> {
    const LOW_BITS: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let hits = word.wrapping_sub(LOW_BITS * u64::from(TRANSACTIONS + 1)) & !word & HIGH_BITS;
        if hits != 0 {
            return Some(index * 8 + (hits.trailing_zeros() / 8) as usize);
        }
    }
    let offset = rest.iter().position(|byte| *byte <= TRANSACTIONS)?;
    Some(bytes.len() - rest.len() + offset)
}

/// Returns the same JSON without whitespace outside strings, or `None` if the JSON has no such
/// whitespace. Nodes usually write none.
pub fn compact_json(raw: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut copied = 0;
    let mut offset = 0;
    while offset < raw.len() {
        match raw[offset] {
            b'"' => {
                offset = walk::skip_string(raw, offset).map_or(raw.len(), |(end, _)| end);
                continue;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.extend_from_slice(&raw[copied..offset]);
                copied = offset + 1;
            }
            _ => {}
        }
        offset += 1;
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&raw[copied..]);
    Some(out)
}
