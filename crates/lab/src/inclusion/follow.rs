//! Finds the blocks that are new since the last poll, also after a reorg. The function that fetches
//! a block is an argument, so tests need no server.

use std::collections::VecDeque;

use lab_model::plan::transactions::Hash;
use serde_json::Value;

use crate::target::number;

/// Maximum number of blocks that one poll reads. Few chains produce more blocks between two polls.
/// If there are more, the oldest are skipped.
const BLOCKS_MAX: usize = 1_000;
/// Maximum number of stored hashes of read blocks. After a reorg of fewer blocks than this, only
/// the blocks of the new branch are read.
const READ_HASHES_MAX: usize = 256;

/// The members of a block that are needed to find transactions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) number: u64,
    pub(super) hash: Hash,
    /// Hash of the parent block.
    pub(super) parent: Hash,
    /// Hashes of the block's transactions.
    pub(super) transactions: Vec<Hash>,
}

impl Block {
    /// Reads a block from the result of `eth_getBlockByNumber`.
    ///
    /// # Errors
    /// Names the member that is missing or malformed.
    pub(super) fn read(value: &Value) -> Result<Block, String> {
        let malformed = |member: &str| format!("a block without a valid {member}");
        let hash_of = |member: &str| parse_hash(&value[member]).ok_or_else(|| malformed(member));
        let list = value["transactions"].as_array().ok_or_else(|| malformed("transactions"))?;
        // Some servers return whole transactions although the call requests hashes.
        let transaction_hash =
            |value: &Value| parse_hash(value).or_else(|| parse_hash(&value["hash"]));
        let transactions = list.iter().map(transaction_hash).collect::<Option<_>>();
        Ok(Block {
            number: number(&value["number"]).ok_or_else(|| malformed("number"))?,
            hash: hash_of("hash")?,
            parent: hash_of("parentHash")?,
            transactions: transactions.ok_or_else(|| malformed("transactions"))?,
        })
    }
}

/// Parses a hash: `"0x…"` with 64 hexadecimal digits.
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
    /// Number of the newest block at the start. Only blocks with higher numbers are read.
    start_number: u64,
    /// Hashes of blocks that were read, the newest last.
    read_hashes: VecDeque<Hash>,
}

impl ChainFollower {
    /// Creates a follower that reads the blocks after the block with this number and hash.
    pub(super) fn new(number: u64, hash: Hash) -> ChainFollower {
        ChainFollower { start_number: number, read_hashes: VecDeque::from([hash]) }
    }

    /// Returns the number of the newest block at the start. Only blocks with higher numbers are
    /// new.
    pub(super) fn start_number(&self) -> u64 {
        self.start_number
    }

    /// Fetches the blocks that were not read before, the newest first. After a reorg these are the
    /// blocks of the new branch. Returns how many blocks it fetched. `fetch` returns the block with
    /// a number, or the newest block for `None`.
    ///
    /// # Errors
    /// Fails if a block cannot be fetched. The next call fetches the same blocks again.
    pub(super) fn follow(
        &mut self,
        fetch: &mut dyn FnMut(Option<u64>) -> Result<Option<Block>, String>,
    ) -> Result<u64, String> {
        let newest = fetch(None)?.ok_or("there is no newest block")?;
        // There is no new block. A load balancer may even return an older block of another node.
        if newest.number <= self.start_number || self.was_read(&newest.hash) {
            return Ok(0);
        }
        let mut new_hashes = vec![newest.hash];
        let mut oldest = newest;
        while oldest.number > self.start_number + 1
            && !self.was_read(&oldest.parent)
            && new_hashes.len() < BLOCKS_MAX
        {
            let number = oldest.number - 1;
            let block =
                fetch(Some(number))?.ok_or_else(|| format!("there is no block {number}"))?;
            if block.number != number {
                return Err(format!("block {number} has the number {}", block.number));
            }
            new_hashes.push(block.hash);
            oldest = block;
        }
        self.read_hashes.extend(new_hashes.iter().rev());
        let excess = self.read_hashes.len().saturating_sub(READ_HASHES_MAX);
        self.read_hashes.drain(..excess);
        Ok(new_hashes.len() as u64)
    }

    /// Returns true if the block with this hash was read before.
    fn was_read(&self, hash: &Hash) -> bool {
        self.read_hashes.iter().rev().any(|read_hash| read_hash == hash)
    }
}
