//! The key of a call: a canonical encoding of chain, method and parameters. The gateway uses keys
//! to find stored responses and to coalesce equal calls.
//!
//! Two calls with equal keys have the same meaning by the specification. Every encoded value starts
//! with a type byte. The end of the value follows from the type, from a written length, or from an
//! end byte. So no encoded value is a prefix of another. The encoding ignores these differences:
//!
//! - whitespace, escapes, and the order of an object's members;
//! - the case of hexadecimal digits, if the method table says that a parameter is hexadecimal;
//! - whether the parameters are absent, null or an empty array;
//! - the format in which a call names a block, and whether a call names the default block or omits
//!   it;
//! - in log filters the order of the addresses, and of the topics that a filter accepts at one
//!   position.
//!
//! Callers decide whether a response may be stored or shared.

use std::borrow::Cow;
use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::block::{self, BlockFormat, BlockRef};
use crate::call::Params;
use crate::json::string::JsonString;
use crate::json::{DEPTH_CEILING, walk};
use crate::method::{Method, ParamType};

#[cfg(test)]
mod tests;

/// The first byte of each key. If the encoding changes, the version changes too, so that a lookup
/// never finds keys in an older encoding.
const VERSION: u8 = 1;

/// Maximum bytes of a call's parameters for which a key is built. Calls with larger parameters
/// (contract creation, state overrides) rarely repeat, and their keys would use memory that stored
/// responses need.
pub const PARAMS_BYTES_MAX: usize = 64 * 1024;

// The type bytes. `END` is no type: it follows the last element of an array or set, and the last
// member of an object. `BLOCK_CANONICAL` is a hash with `requireCanonical: true` (EIP-1898).
const NULL: u8 = b'n';
const TRUE: u8 = b't';
const FALSE: u8 = b'f';
const NUMBER: u8 = b'd';
const TEXT: u8 = b's';
const ARRAY: u8 = b'a';
const OBJECT: u8 = b'o';
const SET: u8 = b'S';
const BLOCK_NUMBER: u8 = b'N';
const BLOCK_HASH: u8 = b'H';
const BLOCK_CANONICAL: u8 = b'C';
const BLOCK_TAG: u8 = b'T';
const BLOCK_RANGE: u8 = b'R';
const END: u8 = b'e';

/// A block that replaces the block parameter of a call, or a range that replaces a log filter's
/// bounds. The gateway resolves tags such as `latest` to numbers, so that the key names a fixed
/// block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolvedBlock {
    /// A number.
    Number(u64),
    /// A hash.
    Hash([u8; 32]),
    /// The bounds of a log filter, both inclusive.
    Range {
        /// The first block.
        from: u64,
        /// The last block.
        to: u64,
    },
}

/// The input of a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The name of the chain, including the shard or tenant if responses depend on it.
    pub chain: &'a str,
    /// The method's row in the method table.
    pub method: &'a Method,
    /// The parameters of the call.
    pub params: &'a Params<'a>,
    /// The replacement of the block parameter or of a log filter's bounds. `None` if the call's own
    /// block or bounds are used.
    pub block: Option<ResolvedBlock>,
}

/// The reason why a call has no key. The call can still be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The parameters are too long.
    #[error("parameters of {0} bytes, keys are made for at most {PARAMS_BYTES_MAX}")]
    TooLong(usize),
    /// The parameters are nested too deep.
    #[error("parameters nested deeper than {DEPTH_CEILING} levels")]
    TooDeep,
    /// A replacement was passed for a call without a block parameter.
    #[error("the call has no block parameter for the resolved block")]
    NoBlockParam,
}

/// Appends the key of a call. The parameters must be valid JSON, as [`crate::call::decode`] returns
/// them.
///
/// # Errors
/// If the call has no key. `out` may then contain a part of a key.
pub fn write_key(out: &mut Vec<u8>, parts: &KeyParts<'_>) -> Result<(), KeyError> {
    let raw = parts.params.raw_or_empty();
    if raw.len() > PARAMS_BYTES_MAX {
        return Err(KeyError::TooLong(raw.len()));
    }
    // 16 bytes suffice for the version, the lengths of the names, and a few type and end bytes.
    out.reserve(parts.chain.len() + parts.method.name.len() + raw.len() + 16);
    out.push(VERSION);
    write_bytes(out, parts.chain.as_bytes());
    write_bytes(out, parts.method.name.as_bytes());
    if matches!(parts.params, Params::Object(_)) {
        // The method table knows the types of parameters by position, not by name.
        return match parts.block {
            None => write_value(out, raw, ParamType::Any, 0),
            Some(_) => Err(KeyError::NoBlockParam),
        };
    }
    write_positional_params(out, parts, raw)
}

/// Appends the encoding of a call's parameters. The method need not be in the method tables. The
/// encoding ignores whitespace, escapes and the order of members.
///
/// # Errors
/// If the parameters have no encoding. `out` may then contain a part of an encoding.
pub fn write_params(out: &mut Vec<u8>, params: &Params<'_>) -> Result<(), KeyError> {
    let raw = params.raw_or_empty();
    if raw.len() > PARAMS_BYTES_MAX {
        return Err(KeyError::TooLong(raw.len()));
    }
    write_value(out, raw, ParamType::Any, 0)
}

/// Appends an array of parameters. A resolved block replaces the block parameter, or the bounds of
/// a log filter.
fn write_positional_params(
    out: &mut Vec<u8>,
    parts: &KeyParts<'_>,
    raw: &[u8],
) -> Result<(), KeyError> {
    let method = parts.method;
    // True until the resolved block has replaced a parameter or the bounds of a filter.
    let mut needs_replacement = parts.block.is_some();
    let mut position = 0;
    out.push(ARRAY);
    for value in walk::elements(raw) {
        let param_type = method.params.get(position).copied().unwrap_or(ParamType::Any);
        match (method.block, parts.block) {
            (Some(block), Some(resolved)) if block.at == position => {
                write_resolved_block(out, resolved);
                needs_replacement = false;
            }
            (Some(block), None) if block.at == position => write_block(out, value, block.format)?,
            (_, range @ Some(ResolvedBlock::Range { .. })) if param_type == ParamType::Filter => {
                write_filter(out, value, range)?;
                needs_replacement = false;
            }
            _ if param_type == ParamType::Filter => write_filter(out, value, None)?,
            _ => write_value(out, value, param_type, 0)?,
        }
        position += 1;
    }
    // The block parameter may be absent if the method has a default block.
    if let Some(block) = method.block
        && block.at == position
        && let Some(tag) = block.default
    {
        match parts.block {
            Some(resolved) => write_resolved_block(out, resolved),
            None => write_block_ref(out, BlockRef::Tag(tag)),
        }
        needs_replacement = false;
    }
    out.push(END);
    if needs_replacement { Err(KeyError::NoBlockParam) } else { Ok(()) }
}

/// Appends the length of the bytes as LEB128, and the bytes.
fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

/// Appends a resolved block. Its encoding equals the encoding of a block parameter that names the
/// same block.
fn write_resolved_block(out: &mut Vec<u8>, resolved: ResolvedBlock) {
    match resolved {
        ResolvedBlock::Number(number) => write_block_ref(out, BlockRef::Number(number)),
        ResolvedBlock::Hash(hash) => write_block_ref(out, BlockRef::Hash(hash)),
        ResolvedBlock::Range { from, to } => {
            out.push(BLOCK_RANGE);
            out.extend_from_slice(&from.to_be_bytes());
            out.extend_from_slice(&to.to_be_bytes());
        }
    }
}

fn write_block_ref(out: &mut Vec<u8>, block: BlockRef) {
    match block {
        BlockRef::Number(number) => {
            out.push(BLOCK_NUMBER);
            out.extend_from_slice(&number.to_be_bytes());
        }
        BlockRef::Hash(hash) => {
            out.push(BLOCK_HASH);
            out.extend_from_slice(&hash);
        }
        BlockRef::CanonicalHash(hash) => {
            out.push(BLOCK_CANONICAL);
            out.extend_from_slice(&hash);
        }
        BlockRef::Tag(tag) => out.extend_from_slice(&[BLOCK_TAG, tag as u8]),
    }
}

/// Appends a block. All formats of one block have the same encoding. A value that is not a block is
/// encoded as a plain value.
fn write_block(out: &mut Vec<u8>, raw: &[u8], format: BlockFormat) -> Result<(), KeyError> {
    match block::parse(raw, format) {
        Ok(block) => {
            write_block_ref(out, block);
            Ok(())
        }
        Err(_) => write_value(out, raw, ParamType::Any, 0),
    }
}

/// Appends a value. `param_type` is the type of the parameter, of the array's element or of the
/// object's member. `depth` is the number of arrays and objects around the value.
fn write_value(
    out: &mut Vec<u8>,
    raw: &[u8],
    param_type: ParamType,
    depth: usize,
) -> Result<(), KeyError> {
    if depth > DEPTH_CEILING {
        return Err(KeyError::TooDeep);
    }
    match raw.first() {
        Some(b'"') => {
            let text = JsonString::from_value(raw).unwrap_or(JsonString { raw, escaped: false });
            let ignore_case = matches!(
                param_type,
                ParamType::Address | ParamType::Hash | ParamType::Data | ParamType::Quantity
            );
            write_text(out, text, ignore_case);
        }
        Some(b'{') => write_object(out, raw, param_type, depth)?,
        Some(b'[') => {
            out.push(ARRAY);
            for value in walk::elements(raw) {
                write_value(out, value, ParamType::Any, depth + 1)?;
            }
            out.push(END);
        }
        Some(b't') => out.push(TRUE),
        Some(b'f') => out.push(FALSE),
        Some(b'n') => out.push(NULL),
        _ => {
            out.push(NUMBER);
            write_bytes(out, raw);
        }
    }
    Ok(())
}

/// Appends a text. If `ignore_case` is true and the text is hexadecimal, the text is converted to
/// lower case.
fn write_text(out: &mut Vec<u8>, text: JsonString<'_>, ignore_case: bool) {
    let bytes = text.decode();
    out.push(TEXT);
    write_bytes(out, &bytes);
    if ignore_case && is_hex_text(&bytes) {
        let start = out.len() - bytes.len();
        out[start..].make_ascii_lowercase();
    }
}

/// Returns true for `0x` followed by any number of hexadecimal digits. The loop has no early exit
/// and no branch, so the compiler can vectorize it.
fn is_hex_text(text: &[u8]) -> bool {
    let Some(digits) = text.strip_prefix(b"0x") else { return false };
    let invalid = digits.iter().fold(0u8, |invalid, byte| {
        let is_digit = byte.wrapping_sub(b'0') < 10;
        let is_letter = (byte | 0x20).wrapping_sub(b'a') < 6;
        invalid | u8::from(!(is_digit | is_letter))
    });
    invalid == 0
}

/// Decoded names and raw values of an object's members.
type Members<'a> = SmallVec<[(Cow<'a, [u8]>, &'a [u8]); 12]>;

/// Returns the members of a raw object, sorted by decoded name.
fn sort_members(raw: &[u8]) -> Members<'_> {
    let mut members: Members<'_> =
        walk::members(raw).map(|(name, value)| (name.decode(), value)).collect();
    members.sort_unstable_by(|(name, _), (other_name, _)| name.cmp(other_name));
    members
}

fn write_object(
    out: &mut Vec<u8>,
    raw: &[u8],
    param_type: ParamType,
    depth: usize,
) -> Result<(), KeyError> {
    // All strings directly in a call object are hexadecimal (execution-apis
    // `src/schemas/transaction.yaml`, `GenericTransaction`).
    let member_type =
        if param_type == ParamType::CallObject { ParamType::Data } else { ParamType::Any };
    out.push(OBJECT);
    for (name, value) in sort_members(raw) {
        // The name is decoded already, so it has no escapes.
        write_text(out, JsonString { raw: &name, escaped: false }, false);
        write_value(out, value, member_type, depth + 1)?;
    }
    out.push(END);
    Ok(())
}

/// Appends a log filter. The addresses are written as a set, and so are the topics that the filter
/// accepts at one position. If `range` is `Some`, it replaces the bounds of the filter.
fn write_filter(
    out: &mut Vec<u8>,
    raw: &[u8],
    range: Option<ResolvedBlock>,
) -> Result<(), KeyError> {
    if raw.first() != Some(&b'{') {
        return write_value(out, raw, ParamType::Any, 0);
    }
    out.push(OBJECT);
    for (name, value) in sort_members(raw) {
        let is_bound = matches!(&*name, b"fromBlock" | b"toBlock");
        if is_bound && range.is_some() {
            continue;
        }
        write_text(out, JsonString { raw: &name, escaped: false }, false);
        match &*name {
            _ if is_bound => write_block(out, value, BlockFormat::Hex)?,
            b"blockHash" => write_value(out, value, ParamType::Hash, 1)?,
            b"address" => write_hex_set(out, value)?,
            b"topics" if value.first() == Some(&b'[') => {
                out.push(ARRAY);
                for topic in walk::elements(value) {
                    write_hex_set(out, topic)?;
                }
                out.push(END);
            }
            _ => write_value(out, value, ParamType::Any, 1)?,
        }
    }
    if let Some(range) = range {
        write_resolved_block(out, range);
    }
    out.push(END);
    Ok(())
}

/// Appends an array of hexadecimal strings as a set: sorted, without duplicates, ignoring letter
/// case. A single string is a set with one element. Other values are encoded as plain values.
fn write_hex_set(out: &mut Vec<u8>, raw: &[u8]) -> Result<(), KeyError> {
    let to_hex_text = |value| {
        JsonString::from_value(value).map(JsonString::decode).filter(|text| is_hex_text(text))
    };
    let texts: Option<SmallVec<[Cow<'_, [u8]>; 8]>> = match raw.first() {
        Some(b'[') => walk::elements(raw).map(to_hex_text).collect(),
        _ => to_hex_text(raw).map(|text| SmallVec::from_iter([text])),
    };
    let Some(mut texts) = texts else { return write_value(out, raw, ParamType::Any, 1) };
    texts.sort_unstable_by(|a, b| compare_ignoring_case(a, b));
    texts.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
    out.push(SET);
    for text in texts {
        write_text(out, JsonString { raw: &text, escaped: false }, true);
    }
    out.push(END);
    Ok(())
}

fn compare_ignoring_case(a: &[u8], b: &[u8]) -> Ordering {
    let to_lowercase = |byte: &u8| byte.to_ascii_lowercase();
    a.iter().map(to_lowercase).cmp(b.iter().map(to_lowercase))
}
