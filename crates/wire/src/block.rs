//! Which block a call is about, and which block an answer names.
//!
//! Reads block parameters in the forms of each chain family, and puts a number in place of a tag.
//! Knows nothing of heads or finality (the gateway's rules), nor of log filters (`filter.rs`).

use std::borrow::Cow;
use std::ops::Range;

use crate::call::Params;
use crate::json::text::Text;
use crate::json::walk;
use crate::method::{AnswerBlock, Method};
use crate::quantity;

#[cfg(test)]
mod tests;

/// A block as a call names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockRef {
    /// By height.
    Number(u64),
    /// By hash, canonical or not: EIP-1898 without `requireCanonical`, or a bare 32-byte string.
    Hash([u8; 32]),
    /// By hash with `requireCanonical: true` (EIP-1898): a reorg changes the answer.
    CanonicalHash([u8; 32]),
    /// By name.
    Tag(Tag),
}

/// A block by name (execution-apis `src/schemas/block.yaml`, `BlockTag`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tag {
    /// The newest block.
    Latest,
    /// The first block that the node has.
    Earliest,
    /// The block being built.
    Pending,
    /// The newest block safe from usual reorgs.
    Safe,
    /// The newest final block.
    Finalized,
}

impl Tag {
    /// The tag of this name.
    pub fn parse(text: &[u8]) -> Option<Tag> {
        Some(match text {
            b"latest" => Tag::Latest,
            b"earliest" => Tag::Earliest,
            b"pending" => Tag::Pending,
            b"safe" => Tag::Safe,
            b"finalized" => Tag::Finalized,
            _ => return None,
        })
    }

    /// The name of the tag.
    pub fn as_str(self) -> &'static str {
        match self {
            Tag::Latest => "latest",
            Tag::Earliest => "earliest",
            Tag::Pending => "pending",
            Tag::Safe => "safe",
            Tag::Finalized => "finalized",
        }
    }
}

/// How a method writes its block parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockForm {
    /// Ethereum: a quantity, a tag, an EIP-1898 object, or a 32-byte string which is a hash.
    Hex,
    /// Harmony: a JSON number, a decimal string, a quantity, a tag; -1 is latest, -2 pending
    /// (harmony `rpc/harmony/types.go` `BlockNumber`, over `eth/rpc` `BlockNumber`).
    Harmony,
    /// A 32-byte string, always a hash.
    Hash,
    /// Bitcoin: a height as JSON number.
    Height,
    /// Bitcoin: a hash of 64 hexadecimal digits without prefix.
    Digits,
}

/// Why no block could be read from a call. Such a call is passed on as it is, so that the node
/// says what is wrong; it must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotABlock {
    /// Parameters before the block are missing, or it is missing and has no default.
    #[error("the block parameter is missing")]
    Missing,
    /// The parameters are an object; the tables know positions only.
    #[error("parameters by name are not looked into")]
    ByName,
    /// The value has none of the method's forms.
    #[error("the block parameter has none of the forms that the method knows")]
    Form,
}

/// Heights above this are no block numbers: go-ethereum refuses them (`rpc/types.go`).
const NUMBER_MAX: u64 = i64::MAX as u64;

/// Reads a raw JSON value as a block.
///
/// # Errors
/// [`NotABlock::Form`].
pub fn parse(raw: &[u8], form: BlockForm) -> Result<BlockRef, NotABlock> {
    let block = match form {
        BlockForm::Hex => parse_hex(raw),
        BlockForm::Harmony => parse_harmony(raw),
        BlockForm::Hash => hash_of_value(raw).map(BlockRef::Hash),
        BlockForm::Height => quantity::parse_decimal(raw).map(BlockRef::Number),
        BlockForm::Digits => Text::from_value(raw)
            .and_then(|text| hash_of_digits(&text.decode()))
            .map(BlockRef::Hash),
    };
    match block {
        Some(BlockRef::Number(number)) if number > NUMBER_MAX => Err(NotABlock::Form),
        Some(block) => Ok(block),
        None => Err(NotABlock::Form),
    }
}

fn parse_hex(raw: &[u8]) -> Option<BlockRef> {
    if raw.first() == Some(&b'{') {
        return parse_eip1898(raw);
    }
    let text = Text::from_value(raw)?.decode();
    if !text.starts_with(b"0x") {
        return Tag::parse(&text).map(BlockRef::Tag);
    }
    match hash_of(&text) {
        Some(hash) => Some(BlockRef::Hash(hash)),
        None => quantity::parse(&text).map(BlockRef::Number),
    }
}

/// `{blockNumber}`, or `{blockHash}` with an optional `requireCanonical`; nothing else in it.
fn parse_eip1898(raw: &[u8]) -> Option<BlockRef> {
    let (mut number, mut hash, mut canonical) = (None, None, None);
    for (name, value) in walk::members(raw) {
        match &*name.decode() {
            b"blockNumber" => number = Some(Text::from_value(value)?.decode()),
            b"blockHash" => hash = Some(hash_of_value(value)?),
            b"requireCanonical" => {
                canonical = Some(match value {
                    b"true" => true,
                    b"false" => false,
                    _ => return None,
                });
            }
            _ => return None,
        }
    }
    match (number, hash, canonical) {
        (Some(text), None, None) => match Tag::parse(&text) {
            Some(tag) => Some(BlockRef::Tag(tag)),
            None => quantity::parse(&text).map(BlockRef::Number),
        },
        (None, Some(hash), Some(true)) => Some(BlockRef::CanonicalHash(hash)),
        (None, Some(hash), _) => Some(BlockRef::Hash(hash)),
        _ => None,
    }
}

fn parse_harmony(raw: &[u8]) -> Option<BlockRef> {
    let text = Text::from_value(raw).map_or(Cow::Borrowed(raw), Text::decode);
    match &*text {
        b"-1" => Some(BlockRef::Tag(Tag::Latest)),
        b"-2" => Some(BlockRef::Tag(Tag::Pending)),
        _ if raw.first() == Some(&b'"') => match Tag::parse(&text) {
            // The node knows these three only; others fail there.
            Some(tag @ (Tag::Latest | Tag::Earliest | Tag::Pending)) => Some(BlockRef::Tag(tag)),
            Some(_) => None,
            None => quantity::parse(&text)
                .or_else(|| quantity::parse_decimal(&text))
                .map(BlockRef::Number),
        },
        _ => quantity::parse_decimal(&text).map(BlockRef::Number),
    }
}

/// The 32 bytes of `0x` and 64 hexadecimal digits.
pub fn hash_of(text: &[u8]) -> Option<[u8; 32]> {
    hash_of_digits(text.strip_prefix(b"0x")?)
}

/// The 32 bytes of 64 hexadecimal digits.
pub fn hash_of_digits(digits: &[u8]) -> Option<[u8; 32]> {
    bytes_of_digits(digits)
}

/// The bytes of twice as many hexadecimal digits.
fn bytes_of_digits<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    let mut bad = 0;
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let (high, low) = (NIBBLES[usize::from(pair[0])], NIBBLES[usize::from(pair[1])]);
        bad |= high | low;
        *byte = high << 4 | low & 0xf;
    }
    (bad < 0x10).then_some(bytes)
}

/// The value of each hexadecimal digit; 0xff for other bytes.
const NIBBLES: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// The 32 bytes of a raw JSON string of `0x` and 64 hexadecimal digits.
pub fn hash_of_value(raw: &[u8]) -> Option<[u8; 32]> {
    hash_of(&Text::from_value(raw)?.decode())
}

/// The 20 bytes of a raw JSON string of `0x` and 40 hexadecimal digits.
pub fn address_of_value(raw: &[u8]) -> Option<[u8; 20]> {
    bytes_of_digits(Text::from_value(raw)?.decode().strip_prefix(b"0x")?)
}

/// Members that a block has and its header has not (go-ethereum `core/types/gen_header_json.go`).
const NOT_OF_HEADER: [&[u8]; 5] =
    [b"transactions", b"uncles", b"withdrawals", b"size", b"totalDifficulty"];

/// The header of a raw block, as subscribers are told of it; its members keep their bytes.
pub fn header_of(block: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(2048);
    header.push(b'{');
    for (name, value) in walk::members(block) {
        if NOT_OF_HEADER.contains(&&*name.decode()) {
            continue;
        }
        if header.len() > 1 {
            header.push(b',');
        }
        header.push(b'"');
        header.extend_from_slice(name.raw);
        header.extend_from_slice(b"\":");
        header.extend_from_slice(value);
    }
    header.push(b'}');
    header
}

/// The block that a call names by the method's table row, and the span of that parameter within
/// the raw parameters, for [`write_params_at`].
///
/// None if the method has no block parameter, or the call leaves it out and no default is fixed.
/// A left-out block with a fixed default gives the default and an empty span.
///
/// # Errors
/// Why the call names no block though its method needs one.
pub fn block_ref<'a>(
    method: &Method,
    params: &Params<'a>,
) -> Result<Option<(BlockRef, Range<usize>)>, NotABlock> {
    let Some(block) = method.block else { return Ok(None) };
    let raw: &'a [u8] = match params {
        Params::Absent | Params::Null => b"[]",
        Params::Array(raw) => raw,
        Params::Object(_) => return Err(NotABlock::ByName),
    };
    let mut before = 0;
    for span in walk::spans(raw) {
        if before == block.at {
            return parse(&raw[span.clone()], block.form).map(|found| Some((found, span)));
        }
        before += 1;
    }
    match block.default {
        _ if before < block.at => Err(NotABlock::Missing),
        None => Ok(None),
        Some(tag) => {
            let end = raw.len() - 1;
            Ok(Some((BlockRef::Tag(tag), end..end)))
        }
    }
}

/// Appends the raw parameters with `number` at `span`, which [`block_ref`] gave for the same
/// parameters; every other byte stays.
pub fn write_params_at(
    out: &mut Vec<u8>,
    params: &Params<'_>,
    span: Range<usize>,
    form: BlockForm,
    number: u64,
) {
    let raw = match params {
        Params::Absent | Params::Null => b"[]",
        Params::Array(raw) | Params::Object(raw) => *raw,
    };
    out.reserve(raw.len() + 24);
    out.extend_from_slice(&raw[..span.start]);
    if span.is_empty() && walk::spans(raw).next().is_some() {
        out.push(b',');
    }
    write_number(out, form, number);
    out.extend_from_slice(&raw[span.end..]);
}

/// Appends a block number as a raw JSON value of this form.
pub fn write_number(out: &mut Vec<u8>, form: BlockForm, number: u64) {
    match form {
        BlockForm::Harmony | BlockForm::Height => quantity::write_decimal(out, number),
        BlockForm::Hex | BlockForm::Hash | BlockForm::Digits => {
            out.push(b'"');
            quantity::write(out, number);
            out.push(b'"');
        }
    }
}

/// A block that an answer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedBlock {
    /// Its height.
    pub number: u64,
    /// Its hash.
    pub hash: [u8; 32],
}

/// The first and the last block that a raw result names; none if it names none, is null, an empty
/// array, or still pending.
pub fn named_blocks(kind: AnswerBlock, result: &[u8]) -> Option<(NamedBlock, NamedBlock)> {
    let twice = |block| (block, block);
    match kind {
        AnswerBlock::None => None,
        AnswerBlock::Block => named(result, ["number", "hash"]).map(twice),
        AnswerBlock::Names => named(result, ["blockNumber", "blockHash"]).map(twice),
        AnswerBlock::EachNames => {
            let (first, last) = walk::edges_of(result)?;
            let names = ["blockNumber", "blockHash"];
            Some((named(first, names)?, named(last, names)?))
        }
    }
}

fn named(raw: &[u8], names: [&str; 2]) -> Option<NamedBlock> {
    let [number, hash] = walk::fields_of(raw, names);
    Some(NamedBlock { number: quantity::from_value(number?)?, hash: hash_of_value(hash?)? })
}
