//! Describes an index: its chain, the stored parts of each block, and the range of stored blocks.

use std::fmt;
use std::str::FromStr;

/// The chain of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The chain family: `ethereum` or `harmony`.
    pub family: String,
    /// The chain id in decimal.
    pub id: String,
    /// The hash of block 0.
    pub genesis_hash: [u8; 32],
}

/// The parts of each block that an index holds. An index always holds the headers of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// True if the index holds full transactions. In configurations this part is called `blocks`.
    pub transactions: bool,
    /// True if the index holds receipts.
    pub receipts: bool,
    /// True if the index holds logs and can search for them.
    pub logs: bool,
    /// True if the index holds blocks as Harmony's `hmyv2_` methods write them.
    pub hmyv2: bool,
}

impl FromStr for Contents {
    type Err = String;

    fn from_str(text: &str) -> Result<Contents, String> {
        let mut contents =
            Contents { transactions: false, receipts: false, logs: false, hmyv2: false };
        for part in text.split(',') {
            match part.trim() {
                "blocks" => contents.transactions = true,
                // Verifying and decoding receipts requires their transactions.
                "receipts" => (contents.transactions, contents.receipts) = (true, true),
                "logs" => contents.logs = true,
                "hmyv2" => contents.hmyv2 = true,
                other => {
                    return Err(format!("`{other}`: allowed are blocks, receipts, logs and hmyv2"));
                }
            }
        }
        Ok(contents)
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.transactions, "blocks"),
            (self.receipts, "receipts"),
            (self.logs, "logs"),
            (self.hmyv2, "hmyv2"),
        ];
        let names: Vec<&str> =
            parts.iter().filter(|(is_stored, _)| *is_stored).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// The properties of an index. They are written when the index is initialized. Later syncs only
/// change the record of verification and the lists of response forms.
///
/// A response form is one way in which nodes write an object. For example, nodes write a block with
/// full transactions, or with only the hashes of its transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The chain.
    pub chain: Chain,
    /// The parts of each block that the index holds.
    pub contents: Contents,
    /// The lowest level at which responses of nodes were verified (`headers`, `full` or `senders`),
    /// or a text with the reason why responses were not verified.
    pub verification: String,
    /// Response forms that the node writes differently from the index. Calls for these forms are
    /// left to nodes.
    pub differing_forms: Vec<String>,
    /// Response forms that could not be compared, because no sampled block contained them. Calls
    /// for these forms are left to nodes as well.
    pub untested_forms: Vec<String>,
}

/// The range of blocks that an index holds, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRange {
    /// The first block.
    pub first: u64,
    /// The last block.
    pub last: u64,
    /// The hash of the last block.
    pub last_hash: [u8; 32],
    /// The last finalized block, as a node reported it, but at most `last`. A rewind deletes the
    /// blocks that a reorg has dropped, but never this block.
    pub finalized: u64,
}
