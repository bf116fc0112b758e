//! What an answer is bound to in words that every replica understands; apart from the rules, so
//! that what reads and writes it needs none of them.

/// A block hash.
type Hash = [u8; 32];

/// What an answer is bound to, for any replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bond {
    /// Nothing.
    Free,
    /// A block that was final when the answer was stored.
    Final {
        /// Its height.
        number: u64,
        /// Its hash, where the writer knew it.
        hash: Option<Hash>,
    },
    /// A block that a reorg might still drop.
    Block {
        /// Its height.
        number: u64,
        /// Its hash.
        hash: Hash,
    },
    /// The head at the time.
    Head {
        /// Its height.
        number: u64,
        /// Its hash.
        hash: Hash,
    },
}
