//! What a run knows of the target's chain before it begins. Parameters are drawn from it, so that a
//! seed and these facts give the same calls again. Filled by `target.rs`.

/// The chain as it was when the run began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFacts {
    /// Number of its newest block.
    pub head: u64,
    /// Whether block numbers are written as decimal numbers (harmony's v2, bitcoin) and not as
    /// hexadecimal text.
    pub decimal: bool,
    /// Hashes of recent blocks, `0x…`, newest first.
    pub block_hashes: Vec<Box<str>>,
    /// Hashes of transactions in them.
    pub transaction_hashes: Vec<Box<str>>,
    /// Addresses seen in them.
    pub addresses: Vec<Box<str>>,
}
