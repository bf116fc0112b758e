//! The header members that identify and link a block.

use wire::hex;
use wire::json::walk;
use wire::quantity;

/// The members by which an index identifies a block and links it to the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: [u8; 32],
    /// The hash of the block before.
    pub parent_hash: [u8; 32],
    /// The block's time in seconds since 1970.
    pub timestamp: u64,
}

impl BlockHeader {
    /// Reads the header of a raw block.
    ///
    /// # Errors
    /// Names the member that is missing or malformed.
    pub fn read(raw: &[u8]) -> Result<BlockHeader, String> {
        let names = ["hash", "number", "parentHash", "timestamp"];
        let [hash, number, parent_hash, timestamp] = walk::fields_of(raw, names);
        let hash_of = |value: Option<&[u8]>, name: &str| {
            let read = value.and_then(hex::hash_from_value);
            read.ok_or_else(|| format!("block.{name}: must be 0x and 64 hexadecimal digits"))
        };
        let number_of = |value: Option<&[u8]>, name: &str| {
            let read = value.and_then(quantity::from_value);
            read.ok_or_else(|| format!("block.{name}: must be a quantity of 64 bits"))
        };
        Ok(BlockHeader {
            number: number_of(number, "number")?,
            hash: hash_of(hash, "hash")?,
            parent_hash: hash_of(parent_hash, "parentHash")?,
            timestamp: number_of(timestamp, "timestamp")?,
        })
    }
}
