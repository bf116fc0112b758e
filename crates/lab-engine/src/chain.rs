//! Facts about the target's chain at the start of a run, such as its block hashes. The engine
//! chooses random parameters of calls from these facts. So the facts and the plan's seed determine
//! the calls. `crates/lab/src/target/chain.rs` collects the facts.

use lab_model::plan::Draw;

/// Facts about the chain at the start of the run. A list is empty if no call of the plan needs its
/// values, or if the node returned none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFacts {
    /// Number of the newest block.
    pub head: u64,
    /// True if the chain's methods write block numbers as decimal numbers (`hmyv2_` methods of
    /// Harmony, Bitcoin) instead of hexadecimal text.
    pub has_decimal_numbers: bool,
    /// Hashes of recent blocks, `0x…`, newest first.
    pub block_hashes: Vec<Box<str>>,
    /// Hashes of transactions in these blocks.
    pub transaction_hashes: Vec<Box<str>>,
    /// Addresses that occur in these blocks.
    pub addresses: Vec<Box<str>>,
}

impl ChainFacts {
    /// Returns the kind of values that a draw needs and the chain lacks, such as `addresses`.
    /// `None` if there is at least one value to draw from.
    pub fn missing_values(&self, draw: &Draw) -> Option<&'static str> {
        match draw {
            Draw::BlockHash if self.block_hashes.is_empty() => Some("block hashes"),
            Draw::TransactionHash if self.transaction_hashes.is_empty() => {
                Some("transaction hashes")
            }
            Draw::Address(listed) if listed.is_empty() && self.addresses.is_empty() => {
                Some("addresses")
            }
            _ => None,
        }
    }
}
