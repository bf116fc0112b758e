//! Which blocks are new at a poll. The fetch of a block is an argument, so tests have no server.

use std::collections::VecDeque;

use lab_model::plan::transactions::Hash;
use serde_json::Value;

use crate::target::number;

/// Maximum number of blocks that one poll reads. A chain would have to make so many between two
/// polls. The blocks before them are not read.
const BLOCKS_MAX: usize = 1_000;
/// Number of blocks whose hashes are known, so that a reorg of fewer blocks is read whole.
const KNOWN_MAX: usize = 256;

/// A block, as far as inclusion needs it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) hash: Hash,
    pub(super) parent: Hash,
    /// Hashes of its transactions.
    pub(super) transactions: Vec<Hash>,
}

impl Block {
    /// Reads a block of `eth_getBlockByNumber`.
    ///
    /// # Errors
    /// Names the member that is missing or malformed.
    pub(super) fn read(value: &Value) -> Result<Block, String> {
        let malformed = |member: &str| format!("a block without a valid {member}");
        let hash_of = |member: &str| parse_hash(&value[member]).ok_or_else(|| malformed(member));
        let list = value["transactions"].as_array().ok_or_else(|| malformed("transactions"))?;
        // Some servers return whole transactions where hashes were asked for.
        let transaction = |value: &Value| parse_hash(value).or_else(|| parse_hash(&value["hash"]));
        let transactions = list.iter().map(transaction).collect::<Option<_>>();
        Ok(Block {
            number: number(&value["number"]).ok_or_else(|| malformed("number"))?,
            hash: hash_of("hash")?,
            parent: hash_of("parentHash")?,
            transactions: transactions.ok_or_else(|| malformed("transactions"))?,
        })
    }
}

/// Parses `"0x…"` with 64 digits.
fn parse_hash(value: &Value) -> Option<Hash> {
    let digits = value.as_str()?.strip_prefix("0x")?.as_bytes();
    let mut hash = [0; 32];
    if digits.len() != 2 * hash.len() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(hash)
}

/// Follows the newest block of a chain.
pub(super) struct ChainFollower {
    /// Number of the newest block at the start. No block up to it is read.
    start: u64,
    /// Hashes of blocks that were read, the newest last.
    known: VecDeque<Hash>,
}

impl ChainFollower {
    /// Starts after a block.
    pub(super) fn new(number: u64, hash: Hash) -> ChainFollower {
        ChainFollower { start: number, known: VecDeque::from([hash]) }
    }

    /// Returns the number of the newest block at the start. No block up to it is new.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Fetches the blocks that were not read before, those of a new branch included, the newest
    /// first. Returns their number. `fetch` returns the block with a number, or the newest one.
    ///
    /// # Errors
    /// Fails if a block cannot be fetched. The next call fetches the same blocks again.
    pub(super) fn follow(
        &mut self,
        fetch: &mut dyn FnMut(Option<u64>) -> Result<Option<Block>, String>,
    ) -> Result<u64, String> {
        let newest = fetch(None)?.ok_or("there is no newest block")?;
        // A server that returned to an older block has nothing new.
        if newest.number <= self.start || self.knows(&newest.hash) {
            return Ok(0);
        }
        let mut read = vec![newest.hash];
        let mut oldest = newest;
        while oldest.number > self.start + 1
            && !self.knows(&oldest.parent)
            && read.len() < BLOCKS_MAX
        {
            let number = oldest.number - 1;
            let block =
                fetch(Some(number))?.ok_or_else(|| format!("there is no block {number}"))?;
            if block.number != number {
                return Err(format!("block {number} has the number {}", block.number));
            }
            read.push(block.hash);
            oldest = block;
        }
        self.known.extend(read.iter().rev());
        self.known.drain(..self.known.len().saturating_sub(KNOWN_MAX));
        Ok(read.len() as u64)
    }

    fn knows(&self, hash: &Hash) -> bool {
        self.known.iter().rev().any(|known| known == hash)
    }
}
