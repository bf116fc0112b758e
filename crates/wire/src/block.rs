//! Parses references to blocks in calls, in the formats of each chain family. Also reads the number
//! and the hash of the blocks that a result contains. An EIP-1898 object names a block by its
//! number or its hash.

use std::borrow::Cow;

use serde::Deserialize;

use crate::hex::{hash_from_value, parse_digits, parse_hash};
use crate::json::string::{JsonString, write_member};
use crate::json::walk;
use crate::quantity;

#[cfg(test)]
mod tests;

/// A reference to a block in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockRef {
    /// The block of this height.
    Number(u64),
    /// The block with this hash, even if a reorg has dropped the block. The call has an EIP-1898
    /// object without `requireCanonical: true`, or a string with 32 bytes in hexadecimal.
    Hash([u8; 32]),
    /// The block with this hash, if the block is on the node's chain: `requireCanonical: true`
    /// (EIP-1898). A reorg changes the response.
    CanonicalHash([u8; 32]),
    /// The block with this tag.
    Tag(BlockTag),
}

/// A tag in place of a block (execution-apis `src/schemas/block.yaml`, `BlockTag`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockTag {
    /// The newest block.
    Latest,
    /// The first block that the node has.
    Earliest,
    /// The block that the node is building.
    Pending,
    /// The newest block that common reorgs do not drop.
    Safe,
    /// The newest block that no reorg drops.
    Finalized,
}

impl BlockTag {
    /// Returns the tag with this name, or `None` if there is no such tag.
    pub fn parse(text: &[u8]) -> Option<BlockTag> {
        Some(match text {
            b"latest" => BlockTag::Latest,
            b"earliest" => BlockTag::Earliest,
            b"pending" => BlockTag::Pending,
            b"safe" => BlockTag::Safe,
            b"finalized" => BlockTag::Finalized,
            _ => return None,
        })
    }

    /// Returns the name of the tag.
    pub fn as_str(self) -> &'static str {
        match self {
            BlockTag::Latest => "latest",
            BlockTag::Earliest => "earliest",
            BlockTag::Pending => "pending",
            BlockTag::Safe => "safe",
            BlockTag::Finalized => "finalized",
        }
    }
}

/// The format of a method's block parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockFormat {
    /// Ethereum: a hexadecimal quantity, a tag, an EIP-1898 object, or a hash of 32 bytes.
    Hex,
    /// Harmony: a JSON number, a decimal string, a hexadecimal quantity, or a tag. The number -1
    /// means latest, and -2 means pending (harmony `rpc/harmony/types.go` `BlockNumber`, over
    /// `eth/rpc` `BlockNumber`).
    Harmony,
    /// A hash of 32 bytes in hexadecimal.
    Hash,
    /// Bitcoin: a height as a JSON number.
    Height,
    /// Bitcoin: a hash of 64 hexadecimal digits without `0x`.
    Digits,
}

/// The reason why a call has no valid block. The gateway forwards such a call, and the node returns
/// the error. The response must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockRefError {
    /// The block parameter is missing and has no default, or a parameter before it is missing.
    #[error("the block parameter is missing")]
    Missing,
    /// The parameters are an object. The method tables only have positions of parameters.
    #[error("parameters by name are not supported")]
    ByName,
    /// The value does not have the method's format.
    #[error("the block parameter does not have the format of the method")]
    Format,
}

/// The highest block number. go-ethereum rejects higher numbers (`rpc/types.go`).
const NUMBER_MAX: u64 = i64::MAX as u64;

/// Parses a raw JSON value as a reference to a block.
///
/// # Errors
/// [`BlockRefError::Format`].
pub fn parse(raw: &[u8], format: BlockFormat) -> Result<BlockRef, BlockRefError> {
    let block = match format {
        BlockFormat::Hex => parse_hex(raw),
        BlockFormat::Harmony => parse_harmony(raw),
        BlockFormat::Hash => hash_from_value(raw).map(BlockRef::Hash),
        BlockFormat::Height => quantity::parse_decimal(raw).map(BlockRef::Number),
        BlockFormat::Digits => JsonString::from_value(raw)
            .and_then(|text| parse_digits(&text.decode()))
            .map(BlockRef::Hash),
    };
    match block {
        Some(BlockRef::Number(number)) if number > NUMBER_MAX => Err(BlockRefError::Format),
        Some(block) => Ok(block),
        None => Err(BlockRefError::Format),
    }
}

/// Parses [`BlockFormat::Hex`].
fn parse_hex(raw: &[u8]) -> Option<BlockRef> {
    if raw.first() == Some(&b'{') {
        return parse_eip1898(raw);
    }
    let text = JsonString::from_value(raw)?.decode();
    if !text.starts_with(b"0x") {
        return BlockTag::parse(&text).map(BlockRef::Tag);
    }
    match parse_hash(&text) {
        Some(hash) => Some(BlockRef::Hash(hash)),
        None => quantity::parse(&text).map(BlockRef::Number),
    }
}

/// Parses `{blockNumber}`, or `{blockHash}` with an optional `requireCanonical`. Other members are
/// invalid.
fn parse_eip1898(raw: &[u8]) -> Option<BlockRef> {
    let (mut number, mut hash, mut require_canonical) = (None, None, None);
    for (name, value) in walk::members(raw) {
        match &*name.decode() {
            b"blockNumber" => number = Some(JsonString::from_value(value)?.decode()),
            b"blockHash" => hash = Some(hash_from_value(value)?),
            b"requireCanonical" => {
                require_canonical = Some(match value {
                    b"true" => true,
                    b"false" => false,
                    _ => return None,
                });
            }
            _ => return None,
        }
    }
    match (number, hash, require_canonical) {
        (Some(text), None, None) => match BlockTag::parse(&text) {
            Some(tag) => Some(BlockRef::Tag(tag)),
            None => quantity::parse(&text).map(BlockRef::Number),
        },
        (None, Some(hash), Some(true)) => Some(BlockRef::CanonicalHash(hash)),
        (None, Some(hash), _) => Some(BlockRef::Hash(hash)),
        _ => None,
    }
}

/// Parses [`BlockFormat::Harmony`].
fn parse_harmony(raw: &[u8]) -> Option<BlockRef> {
    let text = JsonString::from_value(raw).map_or(Cow::Borrowed(raw), JsonString::decode);
    match &*text {
        b"-1" => Some(BlockRef::Tag(BlockTag::Latest)),
        b"-2" => Some(BlockRef::Tag(BlockTag::Pending)),
        _ if raw.first() == Some(&b'"') => match BlockTag::parse(&text) {
            // Harmony's nodes reject all other tags.
            Some(tag @ (BlockTag::Latest | BlockTag::Earliest | BlockTag::Pending)) => {
                Some(BlockRef::Tag(tag))
            }
            Some(_) => None,
            None => quantity::parse(&text)
                .or_else(|| quantity::parse_decimal(&text))
                .map(BlockRef::Number),
        },
        _ => quantity::parse_decimal(&text).map(BlockRef::Number),
    }
}

/// The members of a block that are not members of its header (go-ethereum
/// `core/types/gen_header_json.go`).
const BODY_MEMBERS: [&[u8]; 5] =
    [b"transactions", b"uncles", b"withdrawals", b"size", b"totalDifficulty"];

/// Returns the raw header of a raw block, as nodes send headers to subscribers. The bytes of the
/// members are unchanged.
pub fn header_from_block(block: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(2048);
    header.push(b'{');
    for (name, value) in walk::members(block) {
        if !BODY_MEMBERS.contains(&&*name.decode()) {
            write_member(&mut header, name.raw, value);
        }
    }
    header.push(b'}');
    header
}

/// Appends a block number as a raw JSON value. Harmony and Bitcoin (`Height`) write it in decimal.
/// All other formats write a hexadecimal quantity in quotes.
pub fn write_number(out: &mut Vec<u8>, format: BlockFormat, number: u64) {
    match format {
        BlockFormat::Harmony | BlockFormat::Height => quantity::write_decimal(out, number),
        BlockFormat::Hex | BlockFormat::Hash | BlockFormat::Digits => {
            out.push(b'"');
            quantity::write(out, number);
            out.push(b'"');
        }
    }
}

/// The place of the block's number and hash in a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResponseBlock {
    /// The result names no block.
    #[default]
    None,
    /// The result is the block, with the members `hash` and `number`.
    Itself,
    /// The result has the members `blockHash` and `blockNumber`.
    Members,
    /// The result is an array in ascending order of blocks. Each element has the members
    /// `blockHash` and `blockNumber`.
    ElementMembers,
}

/// Number and hash of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId {
    /// The number.
    pub number: u64,
    /// The hash.
    pub hash: [u8; 32],
}

/// Returns the first and the last block that a raw result names. If the result is not an array,
/// both are the same block. Returns `None` if the result names no block, is null or an empty array,
/// or belongs to a pending block.
pub fn read_response_blocks(location: ResponseBlock, result: &[u8]) -> Option<(BlockId, BlockId)> {
    let as_first_and_last = |block| (block, block);
    match location {
        ResponseBlock::None => None,
        ResponseBlock::Itself => read_block_id(result, ["number", "hash"]).map(as_first_and_last),
        ResponseBlock::Members => {
            read_block_id(result, ["blockNumber", "blockHash"]).map(as_first_and_last)
        }
        ResponseBlock::ElementMembers => {
            let (first, last) = walk::first_and_last(result)?;
            let names = ["blockNumber", "blockHash"];
            Some((read_block_id(first, names)?, read_block_id(last, names)?))
        }
    }
}

/// Reads the number and the hash of a block from the members with these two names.
fn read_block_id(raw: &[u8], names: [&str; 2]) -> Option<BlockId> {
    let [number, hash] = walk::fields_of(raw, names);
    Some(BlockId { number: quantity::from_value(number?)?, hash: hash_from_value(hash?)? })
}
