//! When two calls are the same: a canonical encoding of chain, method and parameters.
//!
//! The encoding is injective: equal bytes mean that the specification gives both calls the same
//! meaning. Every value starts with a tag byte and is counted or closed by an end tag, so no value is a
//! prefix of another. Erased are only: whitespace, escapes, the order of an object's members, the
//! case of hexadecimal digits where the method table says that a parameter is hexadecimal, absent
//! against empty parameters, the written forms of one block, a left-out block with a fixed default,
//! and in log filters the order of addresses and of one topic's alternatives.
//!
//! Whether a call may be stored or joined at all is decided by the gateway's rules.

use std::borrow::Cow;
use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::block::{self, BlockForm, BlockRef};
use crate::call::Params;
use crate::json::text::Text;
use crate::json::{DEPTH_CEILING, walk};
use crate::method::{Method, ParamKind};

#[cfg(test)]
mod tests;

/// First byte of each key; another number whenever the encoding changes, so that stored keys of
/// older programs are never met.
const LAYOUT: u8 = 1;

/// Longer parameters have no key. Calls that large (contract creation, state overrides) hardly
/// ever repeat, and their keys would crowd out answers.
pub const PARAMS_BYTES_MAX: usize = 64 * 1024;

// Tags. `END` closes arrays, sets and objects.
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

/// A block that a rule put in place of the one that the call names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// By number.
    Number(u64),
    /// By hash.
    Hash([u8; 32]),
    /// The bounds of a log filter, both inclusive.
    Range {
        /// First block.
        from: u64,
        /// Last block.
        to: u64,
    },
}

/// What a key is made of.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The chain, with shard or tenant if they change answers.
    pub chain: &'a str,
    /// The method's row.
    pub method: &'a Method,
    /// The call's parameters.
    pub params: &'a Params<'a>,
    /// Replaces the block parameter, or the bounds of a log filter.
    pub block: Option<Resolved>,
}

/// Why a call has no key. It can still be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// The parameters are too long.
    #[error("parameters of {0} bytes, keys are made for at most {PARAMS_BYTES_MAX}")]
    TooLong(usize),
    /// The parameters are nested too deep.
    #[error("parameters nested deeper than {DEPTH_CEILING} levels")]
    TooDeep,
    /// A block was resolved but the call has no place for it.
    #[error("the call has no block parameter to put the resolved block in")]
    NoPlace,
}

/// Appends the key of a call.
///
/// The parameters must have been validated (they come from [`crate::call::decode`]).
///
/// # Errors
/// Why there is none; `out` may then hold a part of it.
pub fn write_key(out: &mut Vec<u8>, parts: &KeyParts<'_>) -> Result<(), NoKey> {
    let raw = match *parts.params {
        Params::Absent | Params::Null => b"[]".as_slice(),
        Params::Array(raw) | Params::Object(raw) => raw,
    };
    if raw.len() > PARAMS_BYTES_MAX {
        return Err(NoKey::TooLong(raw.len()));
    }
    out.reserve(parts.chain.len() + parts.method.name.len() + raw.len() + 16);
    out.push(LAYOUT);
    write_counted(out, parts.chain.as_bytes());
    write_counted(out, parts.method.name.as_bytes());
    if matches!(parts.params, Params::Object(_)) {
        // Positions are unknown, so nothing is erased that depends on them.
        return match parts.block {
            None => write_value(out, raw, ParamKind::Any, 0),
            Some(_) => Err(NoKey::NoPlace),
        };
    }
    write_positions(out, parts, raw)
}

/// Appends an encoding of parameters that no table knows: equal for the same members and elements,
/// whatever their whitespace, escapes and order of members.
///
/// # Errors
/// Why there is none; `out` may then hold a part of it.
pub fn write_params(out: &mut Vec<u8>, params: &Params<'_>) -> Result<(), NoKey> {
    match *params {
        Params::Absent | Params::Null => write_value(out, b"[]", ParamKind::Any, 0),
        Params::Array(raw) | Params::Object(raw) if raw.len() <= PARAMS_BYTES_MAX => {
            write_value(out, raw, ParamKind::Any, 0)
        }
        Params::Array(raw) | Params::Object(raw) => Err(NoKey::TooLong(raw.len())),
    }
}

fn write_positions(out: &mut Vec<u8>, parts: &KeyParts<'_>, raw: &[u8]) -> Result<(), NoKey> {
    let method = parts.method;
    let mut placed = parts.block.is_none();
    let mut count = 0;
    out.push(ARRAY);
    for value in walk::elements(raw) {
        let kind = method.params.get(count).copied().unwrap_or(ParamKind::Any);
        match (method.block, parts.block) {
            (Some(block), Some(resolved)) if block.at == count => {
                write_resolved(out, resolved);
                placed = true;
            }
            (Some(block), None) if block.at == count => write_block(out, value, block.form)?,
            (_, range @ Some(Resolved::Range { .. })) if kind == ParamKind::Filter => {
                write_filter(out, value, range)?;
                placed = true;
            }
            _ if kind == ParamKind::Filter => write_filter(out, value, None)?,
            _ => write_value(out, value, kind, 0)?,
        }
        count += 1;
    }
    if let Some(block) = method.block
        && block.at == count
        && let Some(tag) = block.default
    {
        match parts.block {
            Some(resolved) => write_resolved(out, resolved),
            None => write_block_ref(out, BlockRef::Tag(tag)),
        }
        placed = true;
    }
    out.push(END);
    if placed { Ok(()) } else { Err(NoKey::NoPlace) }
}

fn write_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes.len();
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out.extend_from_slice(bytes);
}

fn write_resolved(out: &mut Vec<u8>, resolved: Resolved) {
    match resolved {
        Resolved::Number(number) => write_block_ref(out, BlockRef::Number(number)),
        Resolved::Hash(hash) => write_block_ref(out, BlockRef::Hash(hash)),
        Resolved::Range { from, to } => {
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

/// One block whatever its written form; a value which is no block is kept as it is.
fn write_block(out: &mut Vec<u8>, raw: &[u8], form: BlockForm) -> Result<(), NoKey> {
    match block::parse(raw, form) {
        Ok(block) => {
            write_block_ref(out, block);
            Ok(())
        }
        Err(_) => write_value(out, raw, ParamKind::Any, 0),
    }
}

fn write_value(out: &mut Vec<u8>, raw: &[u8], kind: ParamKind, depth: usize) -> Result<(), NoKey> {
    if depth > DEPTH_CEILING {
        return Err(NoKey::TooDeep);
    }
    match raw.first() {
        Some(b'"') => {
            let text = Text::from_value(raw).unwrap_or(Text { raw, escaped: false });
            write_text(out, text, is_hex(kind));
        }
        Some(b'{') => write_object(out, raw, kind, depth)?,
        Some(b'[') => {
            out.push(ARRAY);
            for value in walk::elements(raw) {
                write_value(out, value, ParamKind::Any, depth + 1)?;
            }
            out.push(END);
        }
        Some(b't') => out.push(TRUE),
        Some(b'f') => out.push(FALSE),
        Some(b'n') => out.push(NULL),
        _ => {
            out.push(NUMBER);
            write_counted(out, raw);
        }
    }
    Ok(())
}

fn is_hex(kind: ParamKind) -> bool {
    match kind {
        ParamKind::Address | ParamKind::Hash | ParamKind::Data | ParamKind::Quantity => true,
        ParamKind::Block
        | ParamKind::Bool
        | ParamKind::Filter
        | ParamKind::CallObject
        | ParamKind::Any => false,
    }
}

fn write_text(out: &mut Vec<u8>, text: Text<'_>, hex: bool) {
    let bytes = text.decode();
    out.push(TEXT);
    write_counted(out, &bytes);
    if hex && is_hex_text(&bytes) {
        let start = out.len() - bytes.len();
        out[start..].make_ascii_lowercase();
    }
}

/// `0x` and hexadecimal digits only. No early exit and no branch, so that the loop runs on
/// vectors.
fn is_hex_text(text: &[u8]) -> bool {
    let Some(digits) = text.strip_prefix(b"0x") else { return false };
    let strangers = digits.iter().fold(0u8, |strangers, byte| {
        let digit = byte.wrapping_sub(b'0') < 10;
        let letter = (byte | 0x20).wrapping_sub(b'a') < 6;
        strangers | u8::from(!(digit | letter))
    });
    strangers == 0
}

/// The members of an object by rising decoded name.
type Members<'a> = SmallVec<[(Cow<'a, [u8]>, &'a [u8]); 12]>;

fn sorted_members(raw: &[u8]) -> Members<'_> {
    let mut members: Members<'_> =
        walk::members(raw).map(|(name, value)| (name.decode(), value)).collect();
    members.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    members
}

fn write_object(out: &mut Vec<u8>, raw: &[u8], kind: ParamKind, depth: usize) -> Result<(), NoKey> {
    // All texts directly in a call object are hexadecimal by its schema (execution-apis
    // `src/schemas/transaction.yaml`, `GenericTransaction`).
    let inside = if kind == ParamKind::CallObject { ParamKind::Data } else { ParamKind::Any };
    out.push(OBJECT);
    for (name, value) in sorted_members(raw) {
        write_text(out, Text { raw: &name, escaped: false }, false);
        write_value(out, value, inside, depth + 1)?;
    }
    out.push(END);
    Ok(())
}

/// A log filter: addresses and each topic's alternatives are sets, positions of topics are not.
fn write_filter(out: &mut Vec<u8>, raw: &[u8], range: Option<Resolved>) -> Result<(), NoKey> {
    if raw.first() != Some(&b'{') {
        return write_value(out, raw, ParamKind::Any, 0);
    }
    out.push(OBJECT);
    for (name, value) in sorted_members(raw) {
        let bound = matches!(&*name, b"fromBlock" | b"toBlock");
        if bound && range.is_some() {
            continue;
        }
        write_text(out, Text { raw: &name, escaped: false }, false);
        match &*name {
            _ if bound => write_block(out, value, BlockForm::Hex)?,
            b"blockHash" => write_value(out, value, ParamKind::Hash, 1)?,
            b"address" => write_set(out, value)?,
            b"topics" if value.first() == Some(&b'[') => {
                out.push(ARRAY);
                for topic in walk::elements(value) {
                    write_set(out, topic)?;
                }
                out.push(END);
            }
            _ => write_value(out, value, ParamKind::Any, 1)?,
        }
    }
    if let Some(range) = range {
        write_resolved(out, range);
    }
    out.push(END);
    Ok(())
}

/// Hexadecimal texts as a set, where one text alone is a set of one; other values as they are.
fn write_set(out: &mut Vec<u8>, raw: &[u8]) -> Result<(), NoKey> {
    let hex = |value| Text::from_value(value).map(Text::decode).filter(|text| is_hex_text(text));
    let texts: Option<SmallVec<[Cow<'_, [u8]>; 8]>> = match raw.first() {
        Some(b'[') => walk::elements(raw).map(hex).collect(),
        _ => hex(raw).map(|text| SmallVec::from_iter([text])),
    };
    let Some(mut texts) = texts else { return write_value(out, raw, ParamKind::Any, 1) };
    texts.sort_unstable_by(|a, b| compare_folded(a, b));
    texts.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
    out.push(SET);
    for text in texts {
        write_text(out, Text { raw: &text, escaped: false }, true);
    }
    out.push(END);
    Ok(())
}

fn compare_folded(a: &[u8], b: &[u8]) -> Ordering {
    let fold = |byte: &u8| byte.to_ascii_lowercase();
    a.iter().map(fold).cmp(b.iter().map(fold))
}
