//! The shareable validity tag of a response. It has a separate file, so that its codecs do not
//! depend on the policy.

/// A block hash.
type Hash = [u8; 32];

/// What a response depends on, in terms that any replica can check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareableTag {
    /// Nothing.
    Free,
    /// A block that was final when the response was stored.
    Final {
        /// Its height.
        number: u64,
        /// Its hash, if the writer knew it.
        hash: Option<Hash>,
    },
    /// A block that a reorg might still drop.
    Block {
        /// Its height.
        number: u64,
        /// Its hash.
        hash: Hash,
    },
    /// The head when the response was stored.
    Head {
        /// Its height.
        number: u64,
        /// Its hash.
        hash: Hash,
    },
}
