//! The header members that identify a block and name its parent.

use wire::hex;
use wire::json::walk;
use wire::quantity;

/// The members by which an index identifies a block and its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The block's number.
    pub number: u64,
    /// The block's hash.
    pub hash: [u8; 32],
    /// The hash of the previous block.
    pub parent_hash: [u8; 32],
    /// The block's time in seconds since 1970.
    pub timestamp: u64,
}

impl BlockHeader {
    /// Reads the header of a raw block.
    ///
    /// # Errors
    /// Returns the name of the member that is missing or malformed.
    pub fn read(raw: &[u8]) -> Result<BlockHeader, String> {
        let names = ["hash", "number", "parentHash", "timestamp"];
        let [hash, number, parent_hash, timestamp] = walk::fields_of(raw, names);
        let read_hash = |value: Option<&[u8]>, name: &str| {
            let hash = value.and_then(hex::hash_from_value);
            hash.ok_or_else(|| format!("block.{name}: must be 0x and 64 hexadecimal digits"))
        };
        let read_number = |value: Option<&[u8]>, name: &str| {
            let number = value.and_then(quantity::from_value);
            number.ok_or_else(|| format!("block.{name}: must be a quantity of 64 bits"))
        };
        Ok(BlockHeader {
            number: read_number(number, "number")?,
            hash: read_hash(hash, "hash")?,
            parent_hash: read_hash(parent_hash, "parentHash")?,
            timestamp: read_number(timestamp, "timestamp")?,
        })
    }
}
