//! Fragments: a node's JSON about a block, split into parts and shortened. A decoder restores the
//! JSON byte for byte, except that whitespace between values is omitted.
//!
//! JSON repeats values of the block and the transaction: for example, every log contains the hash
//! of the block. An encoder replaces each such value by a placeholder of one byte. A context holds
//! the values that a decoder writes for the placeholders. Placeholders are control characters,
//! which strings in JSON never contain unescaped (RFC 8259 section 7). The encoder does not depend
//! on the names of members and does not parse values, so it accepts any JSON.

mod context;
mod encoder;
mod header;
#[cfg(test)]
mod tests;

use wire::json::walk;

use self::context::{BLOCK_HASH, NUMBER, TIMESTAMP, TRANSACTION_HASH, TRANSACTION_INDEX};
pub use self::context::{BlockContext, TRANSACTIONS, TransactionContext, hash_text};
pub use self::encoder::FragmentEncoder;
pub use self::header::BlockHeader;

/// Appends the JSON of a fragment that a [`FragmentEncoder`] wrote. `transaction` is `None` for a
/// fragment that belongs to no transaction.
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

/// Appends the JSON of a fragment. `write_transactions` is called for the placeholder of the array
/// of transactions, which only fragments of blocks have.
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
            (TRANSACTION_HASH, Some(transaction)) => out.extend_from_slice(&transaction.hash),
            (TRANSACTION_INDEX, Some(transaction)) => out.extend_from_slice(&transaction.index),
            (TRANSACTIONS, _) => write_transactions(out),
            // A fragment outside of transactions contains no placeholder of a transaction's values.
            _ => {}
        }
        rest = &rest[offset + 1..];
    }
    out.extend_from_slice(rest);
}

/// Returns the offset of the first placeholder, or `None` if there is no placeholder. The loop
/// compares eight bytes at a time. A placeholder sets the highest bit of its byte in `hits`. A
/// subtraction that borrows may also set this bit in later bytes, but never in earlier bytes. The
/// first hit is therefore exact (Hacker's Delight, 2nd ed., section 6-1).
fn find_placeholder(bytes: &[u8]) -> Option<usize> {
    /// The lowest bit of each byte.
    const LOW_BITS: u64 = 0x0101_0101_0101_0101;
    /// The highest bit of each byte.
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
    let mut copied_to = 0;
    let mut offset = 0;
    while offset < raw.len() {
        match raw[offset] {
            b'"' => {
                offset = walk::skip_string(raw, offset).map_or(raw.len(), |(end, _)| end);
                continue;
            }
            b' ' | b'\n' | b'\r' | b'\t' => {
                out.extend_from_slice(&raw[copied_to..offset]);
                copied_to = offset + 1;
            }
            _ => {}
        }
        offset += 1;
    }
    if copied_to == 0 {
        return None;
    }
    out.extend_from_slice(&raw[copied_to..]);
    Some(out)
}
