//! What an index is about: which chain, what of it, from where to where.

use std::collections::BTreeMap;
use std::str::FromStr;

use alloy_primitives::{Keccak256, hex};

use super::StoreError;
use crate::pack::{Dictionary, Kind};

/// Which chain an index is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// `ethereum` or `harmony`.
    pub family: String,
    /// As the node writes it.
    pub id: String,
    /// Hash of block 0.
    pub genesis: [u8; 32],
}

/// What of the chain an index has. Blocks' headers are always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct What {
    /// Whole transactions.
    pub blocks: bool,
    /// Receipts.
    pub receipts: bool,
    /// Logs that can be searched for.
    pub logs: bool,
    /// Blocks as Harmony's own methods write them.
    pub hmyv2: bool,
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<What, String> {
        let mut what = What { blocks: false, receipts: false, logs: false, hmyv2: false };
        for part in text.split(',') {
            match part.trim() {
                "blocks" => what.blocks = true,
                // They can only be verified, and written, beside their transactions.
                "receipts" => (what.blocks, what.receipts) = (true, true),
                "logs" => what.logs = true,
                "hmyv2" => what.hmyv2 = true,
                other => {
                    return Err(format!("`{other}`: allowed are blocks, receipts, logs and hmyv2"));
                }
            }
        }
        Ok(what)
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [
            (self.blocks, "blocks"),
            (self.receipts, "receipts"),
            (self.logs, "logs"),
            (self.hmyv2, "hmyv2"),
        ];
        let names: Vec<&str> =
            parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// Names of the facts that may change later.
pub(super) const VERIFIED: &str = "verified";
pub(super) const UNLIKE: &str = "unlike";
pub(super) const UNTRIED: &str = "untried";

/// Name of the digest of the dictionaries.
pub(super) const DICTIONARIES: &str = "dictionaries";

/// Keccak-256 of the dictionaries: of each its kind, its length and its bytes.
pub(super) fn digest(dictionaries: &[Dictionary]) -> String {
    let mut all = Keccak256::new();
    for dictionary in dictionaries {
        all.update([dictionary.kind as u8]);
        all.update((dictionary.bytes.len() as u64).to_be_bytes());
        all.update(&dictionary.bytes);
    }
    hex::encode(all.finalize())
}

/// What is fixed when an index is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Of which chain.
    pub chain: Chain,
    /// What of it.
    pub what: What,
    /// How closely what came was looked at: `off`, `headers`, `full`, `senders`, or why it could
    /// not be.
    pub verified: String,
    /// Forms in which the node's answers are not made of the same pieces, so that they are left to
    /// nodes: names of methods.
    pub unlike: Vec<String>,
    /// Forms of which no node's answer was seen yet that could differ: left to nodes too.
    pub untried: Vec<String>,
}

/// From where to where an index goes, without holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The first block.
    pub first: u64,
    /// The last block.
    pub last: u64,
    /// Its hash.
    pub last_hash: [u8; 32],
    /// The last block that no reorg may drop, as a node told; not above `last`.
    pub finalized: u64,
}

impl Held {
    /// What a row of the first, the last, its hash and the final block says.
    pub(super) fn of(first: i64, last: i64, last_hash: [u8; 32], finalized: Option<i64>) -> Held {
        let last = last as u64;
        let finalized = (finalized.unwrap_or(0) as u64).min(last);
        Held { first: first as u64, last, last_hash, finalized }
    }
}

impl Facts {
    /// Reads the facts of an index by their names; none before any was written.
    pub(super) fn of(texts: &BTreeMap<String, String>) -> Result<Option<Facts>, StoreError> {
        let Some(family) = texts.get("family") else { return Ok(None) };
        let damaged =
            |what: &str| StoreError::Damaged(format!("the fact `{what}` is missing or odd"));
        let fact = |name: &str| texts.get(name).cloned().ok_or_else(|| damaged(name));
        let mut genesis = [0; 32];
        hex::decode_to_slice(fact("genesis")?, &mut genesis).map_err(|_| damaged("genesis"))?;
        let names = |fact: &str| {
            let names = texts.get(fact).map(String::as_str).unwrap_or_default();
            names.split_whitespace().map(str::to_owned).collect()
        };
        Ok(Some(Facts {
            chain: Chain { family: family.clone(), id: fact("chain")?, genesis },
            what: fact("what")?.parse().map_err(|_| damaged("what"))?,
            verified: fact(VERIFIED)?,
            unlike: names(UNLIKE),
            untried: names(UNTRIED),
        }))
    }

    /// Names and texts under which they are kept.
    pub(super) fn texts(&self) -> [(&'static str, String); 7] {
        [
            ("family", self.chain.family.clone()),
            ("chain", self.chain.id.clone()),
            ("genesis", hex::encode(self.chain.genesis)),
            ("what", self.what.to_string()),
            (VERIFIED, self.verified.clone()),
            (UNLIKE, self.unlike.join(" ")),
            (UNTRIED, self.untried.join(" ")),
        ]
    }
}

/// A dictionary as it is kept.
pub(super) fn dictionary(kind: i64, bytes: Vec<u8>) -> Result<Dictionary, StoreError> {
    let kind = Kind::ALL.into_iter().find(|known| *known as i64 == kind);
    let kind = kind.ok_or_else(|| StoreError::Damaged("an odd dictionary".to_owned()))?;
    Ok(Dictionary { kind, bytes })
}
