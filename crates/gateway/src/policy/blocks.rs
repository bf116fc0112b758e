//! Completes a response to Harmony's `hmyv2_getBlocks`, which returns a range of blocks. The index
//! (a file or database of past blocks) has the first blocks of the range, and an upstream must
//! return the remaining ones. `remaining_params` writes the parameters of the call to the upstream,
//! and `join_blocks` joins both parts. Blocks are copied byte for byte.

use wire::block::{BlockFormat, write_number};
use wire::hex::hash_from_value;
use wire::json::walk;

#[cfg(test)]
mod tests;

/// Returns the raw parameters of a call with its first block replaced by the block number `from`.
/// Returns `None` if the parameters name no first block.
pub fn remaining_params(params: &[u8], from: u64) -> Option<Vec<u8>> {
    let first_block = walk::spans(params).next()?;
    let mut remaining = Vec::with_capacity(params.len() + 20);
    remaining.extend_from_slice(&params[..first_block.start]);
    write_number(&mut remaining, BlockFormat::Harmony, from);
    remaining.extend_from_slice(&params[first_block.end..]);
    Some(remaining)
}

/// Joins two raw arrays of blocks. Returns `None` if the second array does not begin with a child
/// of the last block of the first array. The upstream that returned the second array is then on
/// another branch, or has no later block.
pub fn join_blocks(first: &[u8], second: &[u8]) -> Option<Vec<u8>> {
    let (_, last_block) = walk::first_and_last(first)?;
    let (next_block, _) = walk::first_and_last(second)?;
    let hash = hash_from_value(walk::member(last_block, "hash")?)?;
    if hash_from_value(walk::member(next_block, "parentHash")?)? != hash {
        return None;
    }
    let first_blocks = first.trim_ascii().strip_suffix(b"]")?;
    let second_blocks = second.trim_ascii().strip_prefix(b"[")?;
    Some([first_blocks, b",", second_blocks].concat())
}
