//! The shareable validity tag of a response. The type has a file of its own, because the code that
//! encodes and decodes tags must not depend on the decisions of `shareable.rs`.

/// A block hash.
type Hash = [u8; 32];

/// The part of the chain that a response depends on, in a form that any replica can check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareableTag {
    /// The response depends on nothing that can change.
    Free,
    /// The response depends on a block that was final when the response was stored.
    Final {
        /// Height of the block.
        number: u64,
        /// Hash of the block, if the replica that stored the response knew it.
        hash: Option<Hash>,
    },
    /// The response depends on a block that a reorg might still drop.
    Block {
        /// Height of the block.
        number: u64,
        /// Hash of the block.
        hash: Hash,
    },
    /// The response depends on the head at the time when it was stored.
    Head {
        /// Height of the head.
        number: u64,
        /// Hash of the head.
        hash: Hash,
    },
}
