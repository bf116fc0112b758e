//! Completes a `hmyv2_getBlocks` response whose first part is known: writes the parameters of the
//! remaining call, and joins both parts. Blocks are copied byte for byte.

use wire::block::{BlockFormat, write_number};
use wire::hex::hash_from_value;
use wire::json::walk;

#[cfg(test)]
mod tests;

/// Returns the raw parameters of the call with another first block. Returns `None` if the
/// parameters name no first block.
pub fn rest_params(params: &[u8], from: u64) -> Option<Vec<u8>> {
    let span = walk::spans(params).next()?;
    let mut rest = Vec::with_capacity(params.len() + 20);
    rest.extend_from_slice(&params[..span.start]);
    write_number(&mut rest, BlockFormat::Harmony, from);
    rest.extend_from_slice(&params[span.end..]);
    Some(rest)
}

/// Joins two raw arrays of blocks. Returns `None` if the second array does not begin with a child
/// of the last block of the first. The upstream of the second is then on another branch, or has no
/// later block.
pub fn join(first: &[u8], second: &[u8]) -> Option<Vec<u8>> {
    let (_, last) = walk::first_and_last(first)?;
    let (next, _) = walk::first_and_last(second)?;
    let hash = hash_from_value(walk::member(last, "hash")?)?;
    if hash_from_value(walk::member(next, "parentHash")?)? != hash {
        return None;
    }
    let before = first.trim_ascii().strip_suffix(b"]")?;
    let after = second.trim_ascii().strip_prefix(b"[")?;
    Some([before, b",", after].concat())
}
