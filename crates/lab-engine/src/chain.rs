//! Facts about the target's chain before a run. Parameters are drawn from them, so a seed and these
//! facts determine the calls. `target.rs` collects them.

/// The chain at the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFacts {
    /// Number of the newest block.
    pub head: u64,
    /// True if block numbers are decimal numbers (Harmony's v2, Bitcoin) instead of hexadecimal
    /// text.
    pub decimal: bool,
    /// Hashes of recent blocks, `0x…`, newest first.
    pub block_hashes: Vec<Box<str>>,
    /// Hashes of transactions in them.
    pub transaction_hashes: Vec<Box<str>>,
    /// Addresses in them.
    pub addresses: Vec<Box<str>>,
}
