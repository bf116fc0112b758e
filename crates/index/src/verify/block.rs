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
    /// The transactions in order. After [`verify_header()`](super::verify_header()) they have only
    /// hashes, which are not verified.
    pub transactions: Vec<Tx>,
    /// The header, which hashes to `hash`; `None` at [`Level::Off`](super::Level::Off).
    pub header: Option<Header>,
}

/// A transaction of a [`Block`].
#[derive(Debug, Clone)]
pub struct Tx {
    /// The transaction's hash.
    pub hash: B256,
    /// The members for verifying the receipt; `None` below [`Level::Full`](super::Level::Full).
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
    /// The price that was paid, in wei per gas.
    pub(super) gas_price: u128,
    /// The number of blobs; 0 for transactions of other types than 3.
    pub(super) blob_count: u64,
    /// The highest price that the sender accepted, in wei per blob gas.
    pub(super) blob_fee_max: u128,
}
