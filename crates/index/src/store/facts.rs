//! What a file is about: which chain, what of it, from where to where.

use rusqlite::OptionalExtension;

use super::{Store, StoreError};
use crate::pack::{Dictionary, Kind};
use std::str::FromStr;

/// Which chain a file is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// `ethereum` or `harmony`.
    pub family: String,
    /// As the node writes it.
    pub id: String,
    /// Hash of block 0.
    pub genesis: [u8; 32],
}

/// What of the chain a file has. Blocks' headers are always there.
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

/// What is fixed when a file is made.
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
}

/// From where to where a file goes, without holes.
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

impl Store {
    /// What the file is about; none before the first block.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn facts(&self) -> Result<Option<Facts>, StoreError> {
        let Some(family) = self.fact::<String>("family")? else { return Ok(None) };
        let damaged =
            |what: &str| StoreError::Damaged(format!("the fact `{what}` is missing or odd"));
        let what: String = self.fact("what")?.ok_or_else(|| damaged("what"))?;
        let unlike: String = self.fact("unlike")?.unwrap_or_default();
        Ok(Some(Facts {
            chain: Chain {
                family,
                id: self.fact("chain")?.ok_or_else(|| damaged("chain"))?,
                genesis: self.fact("genesis")?.ok_or_else(|| damaged("genesis"))?,
            },
            what: what.parse().map_err(|_| damaged("what"))?,
            verified: self.fact("verified")?.ok_or_else(|| damaged("verified"))?,
            unlike: unlike.split_whitespace().map(str::to_owned).collect(),
        }))
    }

    /// Says what a new file is about, and with what its pieces are packed.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn found(&mut self, facts: &Facts, dictionaries: &[Dictionary]) -> Result<(), StoreError> {
        let transaction = self.connection.transaction()?;
        {
            let mut set = transaction.prepare("INSERT INTO facts (name, value) VALUES (?1, ?2)")?;
            set.execute(("family", &facts.chain.family))?;
            set.execute(("chain", &facts.chain.id))?;
            set.execute(("genesis", facts.chain.genesis.as_slice()))?;
            set.execute(("what", facts.what.to_string()))?;
            set.execute(("verified", &facts.verified))?;
            set.execute(("unlike", facts.unlike.join(" ")))?;
            let mut add =
                transaction.prepare("INSERT INTO dictionaries (kind, bytes) VALUES (?1, ?2)")?;
            for dictionary in dictionaries {
                add.execute((dictionary.kind as i64, &dictionary.bytes))?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// From where to where the file goes; none before the first block.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn held(&self) -> Result<Option<Held>, StoreError> {
        let row = self
            .connection
            .prepare_cached(
                "SELECT (SELECT value FROM facts WHERE name = 'first'), max(number), hash,
                    (SELECT value FROM facts WHERE name = 'finalized') FROM blocks",
            )?
            .query_row([], |row| {
                let first: Option<i64> = row.get(0)?;
                let last: Option<i64> = row.get(1)?;
                let hash: Option<[u8; 32]> = row.get(2)?;
                let finalized: Option<i64> = row.get(3)?;
                Ok((first, last, hash, finalized))
            })?;
        let (Some(first), Some(last), Some(last_hash), finalized) = row else { return Ok(None) };
        Ok(Some(Held {
            first: first as u64,
            last: last as u64,
            last_hash,
            finalized: (finalized.unwrap_or(0) as u64).min(last as u64),
        }))
    }

    /// The dictionaries in the order of their numbers.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn dictionaries(&self) -> Result<Vec<Dictionary>, StoreError> {
        let mut all =
            self.connection.prepare("SELECT kind, bytes FROM dictionaries ORDER BY number")?;
        let rows =
            all.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
        rows.map(|row| {
            let (kind, bytes) = row?;
            let kind = Kind::ALL.into_iter().find(|known| *known as i64 == kind);
            let kind = kind.ok_or_else(|| StoreError::Damaged("an odd dictionary".to_owned()))?;
            Ok(Dictionary { kind, bytes })
        })
        .collect()
    }

    fn fact<T: rusqlite::types::FromSql>(&self, name: &str) -> Result<Option<T>, StoreError> {
        let mut one = self.connection.prepare_cached("SELECT value FROM facts WHERE name = ?1")?;
        Ok(one.query_row([name], |row| row.get(0)).optional()?)
    }
}
