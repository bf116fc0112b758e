//! A verified block.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256};

/// A verified block, with the members by which its receipts and logs are verified.
#[derive(Debug, Clone)]
pub struct Block {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: B256,
    /// The hash of the previous block.
    pub parent: B256,
    /// The block's time in seconds since 1970.
    pub timestamp: u64,
    /// The transactions in order. After [`header()`](super::header()) they have only hashes, which
    /// are not verified.
    pub transactions: Vec<Tx>,
    /// The header, which hashes to `hash`; `None` at [`Level::Off`](super::Level::Off).
    pub header: Option<Header>,
}

/// A transaction of a [`Block`].
#[derive(Debug, Clone)]
pub struct Tx {
    /// The transaction's hash.
    pub hash: B256,
    /// The other members; `None` below [`Level::Full`](super::Level::Full).
    pub(super) body: Option<Body>,
}

/// The members of a rebuilt transaction by which its receipt is verified.
#[derive(Debug, Clone)]
pub(super) struct Body {
    /// The transaction type.
    pub(super) kind: u8,
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) nonce: u64,
    /// The price of one gas in wei.
    pub(super) price: u128,
    /// The number of blobs.
    pub(super) blobs: u64,
    /// The highest price of one blob gas that the sender accepted, in wei.
    pub(super) blob_fee_max: u128,
}
