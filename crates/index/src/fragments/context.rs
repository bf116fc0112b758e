//! The values that the fragments of a block or a transaction share, and the placeholders that
//! replace these values.

use alloy_primitives::hex;
use wire::quantity;

/// The placeholder of the hash of the block.
pub(super) const BLOCK_HASH: u8 = 1;
/// The placeholder of the number of the block.
pub(super) const NUMBER: u8 = 2;
/// The placeholder of the timestamp of the block.
pub(super) const TIMESTAMP: u8 = 3;
/// The placeholder of the hash of the transaction.
pub(super) const TRANSACTION_HASH: u8 = 4;
/// The placeholder of the index of the transaction.
pub(super) const TRANSACTION_INDEX: u8 = 5;
/// The placeholder of the array of the block's transactions.
pub const TRANSACTIONS: u8 = 6;

/// The values that all fragments of a block share, as texts in JSON-RPC.
#[derive(Debug, Clone)]
pub struct BlockContext {
    pub(super) hash: [u8; 66],
    pub(super) number: Vec<u8>,
    pub(super) timestamp: Vec<u8>,
}

impl BlockContext {
    /// Creates the context of the block with this hash, number and timestamp.
    pub fn new(hash: &[u8; 32], number: u64, timestamp: u64) -> BlockContext {
        BlockContext {
            hash: hash_text(hash),
            number: quantity_text(number),
            timestamp: quantity_text(timestamp),
        }
    }
}

/// The values that all fragments of a transaction share, as texts in JSON-RPC.
#[derive(Debug, Clone)]
pub struct TransactionContext {
    pub(super) hash: [u8; 66],
    pub(super) index: Vec<u8>,
}

impl TransactionContext {
    /// Creates the context of the transaction with this hash and this index in its block.
    pub fn new(hash: &[u8; 32], index: u64) -> TransactionContext {
        TransactionContext { hash: hash_text(hash), index: quantity_text(index) }
    }
}

/// Returns a hash as JSON-RPC writes it: `0x` and 64 digits.
pub fn hash_text(hash: &[u8; 32]) -> [u8; 66] {
    let mut text = [b'0'; 66];
    text[1] = b'x';
    hex::encode_to_slice(hash, &mut text[2..]).expect("64 digits fit 64 bytes");
    text
}

/// Returns a number as JSON-RPC writes it: `0x` and hexadecimal digits.
fn quantity_text(number: u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(18);
    quantity::write(&mut text, number);
    text
}
