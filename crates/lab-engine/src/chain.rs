//! Facts about the target's chain before a run. The engine draws the parameters of calls from these
//! facts, so the facts and a seed determine the calls. `target.rs` collects the facts.

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
    /// Hashes of transactions in these blocks.
    pub transaction_hashes: Vec<Box<str>>,
    /// Addresses in these blocks.
    pub addresses: Vec<Box<str>>,
}
