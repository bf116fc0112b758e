//! The block range of a log filter (`eth_getLogs`). The bounds of the range are the members
//! `fromBlock` and `toBlock`.
//!
//! `logs.rs` has the addresses and topics of a filter, and `key.rs` compares filters.

use crate::block::{self, BlockFormat, BlockRef, BlockRefError};
use crate::call::Params;
use crate::hex::hash_from_value;
use crate::json::string::{JsonString, write_member};
use crate::json::walk;

#[cfg(test)]
mod tests;

/// The members of a log filter.
pub const MEMBERS: [&str; 5] = ["fromBlock", "toBlock", "blockHash", "address", "topics"];

/// The log filter of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFilter<'a> {
    /// `fromBlock`; `None` if it is absent or null, which means latest (execution-apis
    /// `src/schemas/filter.yaml`; go-ethereum `eth/filters/api.go`).
    pub from: Option<BlockRef>,
    /// `toBlock`; `None` if it is absent or null, which means latest.
    pub to: Option<BlockRef>,
    /// `blockHash`; `None` if it is absent or null. A valid filter with `blockHash` has no bounds.
    pub block_hash: Option<[u8; 32]>,
    /// The raw filter object.
    raw: &'a [u8],
}

impl<'a> LogFilter<'a> {
    /// Parses the parameters of a call: an array with one filter object.
    ///
    /// # Errors
    /// If the parameters are not an array of one filter, or a member has an unknown format. The
    /// gateway then forwards the call, and the node returns the error.
    pub fn from_params(params: &Params<'a>) -> Result<LogFilter<'a>, BlockRefError> {
        let Params::Array(params) = *params else { return Err(BlockRefError::ByName) };
        let mut elements = walk::elements(params);
        let raw = elements.next().ok_or(BlockRefError::Missing)?;
        if elements.next().is_some() {
            return Err(BlockRefError::Format);
        }
        LogFilter::parse(raw)
    }

    /// Parses a raw filter object.
    ///
    /// # Errors
    /// See [`LogFilter::from_params`].
    pub fn parse(raw: &'a [u8]) -> Result<LogFilter<'a>, BlockRefError> {
        if raw.first() != Some(&b'{') {
            return Err(BlockRefError::Format);
        }
        let mut filter = LogFilter { from: None, to: None, block_hash: None, raw };
        for (name, value) in walk::members(raw) {
            match &*name.decode() {
                b"fromBlock" => filter.from = parse_bound(value)?,
                b"toBlock" => filter.to = parse_bound(value)?,
                b"blockHash" if value != b"null" => {
                    filter.block_hash = Some(hash_from_value(value).ok_or(BlockRefError::Format)?);
                }
                // Some nodes accept a member in any letter case, and other nodes ignore a member in
                // the wrong case. Only the node knows the range of this filter.
                name if differs_in_letter_case(name) => return Err(BlockRefError::Format),
                _ => {}
            }
        }
        Ok(filter)
    }

    /// Appends raw parameters with this filter, but with the bounds `from` and `to`. The bytes of
    /// the other members are unchanged.
    pub fn write_params(&self, out: &mut Vec<u8>, from: u64, to: u64) {
        out.extend_from_slice(br#"[{"fromBlock":"#);
        block::write_number(out, BlockFormat::Hex, from);
        out.extend_from_slice(br#","toBlock":"#);
        block::write_number(out, BlockFormat::Hex, to);
        for (name, value) in walk::members(self.raw) {
            if !matches!(&*name.decode(), b"fromBlock" | b"toBlock") {
                write_member(out, name.raw, value);
            }
        }
        out.extend_from_slice(b"}]");
    }
}

/// Returns true if a name differs from the name of a filter's member only in letter case.
fn differs_in_letter_case(name: &[u8]) -> bool {
    let mut members = MEMBERS.iter().map(|member| member.as_bytes());
    members.any(|member| member != name && member.eq_ignore_ascii_case(name))
}

/// Parses a bound, which is a quantity or a tag. Returns `None` for `null`, which counts as absent,
/// as in go-ethereum.
fn parse_bound(raw: &[u8]) -> Result<Option<BlockRef>, BlockRefError> {
    if raw == b"null" {
        return Ok(None);
    }
    JsonString::from_value(raw).ok_or(BlockRefError::Format)?;
    match block::parse(raw, BlockFormat::Hex)? {
        BlockRef::Hash(_) | BlockRef::CanonicalHash(_) => Err(BlockRefError::Format),
        block => Ok(Some(block)),
    }
}
