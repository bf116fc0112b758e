//! The filter of eth_getLogs: which blocks it spans, and the same filter with other bounds.
//!
//! How a range is split and merged is planned by the gateway's rules; how filters are compared is
//! in `key.rs`.

use crate::block::{self, BlockForm, BlockRef, NotABlock};
use crate::call::Params;
use crate::json::text::Text;
use crate::json::walk;

#[cfg(test)]
mod tests;

/// A log filter as a call gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFilter<'a> {
    /// `fromBlock`; none if it is left out, which means latest (execution-apis
    /// `src/schemas/filter.yaml`; go-ethereum `eth/filters/api.go`).
    pub from: Option<BlockRef>,
    /// `toBlock`; none if it is left out, which means latest.
    pub to: Option<BlockRef>,
    /// `blockHash`, which stands alone in a valid filter.
    pub block_hash: Option<[u8; 32]>,
    raw: &'a [u8],
}

impl<'a> LogFilter<'a> {
    /// Reads the filter from the parameters of a call: an array whose first element is an object.
    ///
    /// # Errors
    /// Which part is none of the known forms; the call is then for the node to judge.
    pub fn read(params: &Params<'a>) -> Result<LogFilter<'a>, NotABlock> {
        let Params::Array(params) = *params else { return Err(NotABlock::ByName) };
        let mut elements = walk::elements(params);
        let raw = elements.next().ok_or(NotABlock::Missing)?;
        if elements.next().is_some() {
            return Err(NotABlock::Form);
        }
        LogFilter::of(raw)
    }

    /// Reads a raw filter object.
    ///
    /// # Errors
    /// As [`LogFilter::read`].
    pub fn of(raw: &'a [u8]) -> Result<LogFilter<'a>, NotABlock> {
        if raw.first() != Some(&b'{') {
            return Err(NotABlock::Form);
        }
        let mut filter = LogFilter { from: None, to: None, block_hash: None, raw };
        for (name, value) in walk::members(raw) {
            match &*name.decode() {
                b"fromBlock" => filter.from = bound(value)?,
                b"toBlock" => filter.to = bound(value)?,
                b"blockHash" if value != b"null" => {
                    filter.block_hash = Some(block::hash_of_value(value).ok_or(NotABlock::Form)?);
                }
                // Some nodes take a member in any case of letters and others skip it, so only the
                // node can say which blocks this filter spans.
                other if is_misspelt(other) => return Err(NotABlock::Form),
                _ => {}
            }
        }
        Ok(filter)
    }

    /// Appends raw parameters holding this filter with other bounds; its other members keep their
    /// bytes.
    pub fn write_params(&self, out: &mut Vec<u8>, from: u64, to: u64) {
        out.extend_from_slice(br#"[{"fromBlock":"#);
        block::write_number(out, BlockForm::Hex, from);
        out.extend_from_slice(br#","toBlock":"#);
        block::write_number(out, BlockForm::Hex, to);
        for (name, value) in walk::members(self.raw) {
            if matches!(&*name.decode(), b"fromBlock" | b"toBlock") {
                continue;
            }
            out.extend_from_slice(br#",""#);
            out.extend_from_slice(name.raw);
            out.extend_from_slice(br#"":"#);
            out.extend_from_slice(value);
        }
        out.extend_from_slice(b"}]");
    }
}

/// Returns true for the name of a filter's member that differs from it in the case of letters.
fn is_misspelt(name: &[u8]) -> bool {
    const KNOWN: [&[u8]; 5] = [b"fromBlock", b"toBlock", b"blockHash", b"address", b"topics"];
    KNOWN.iter().any(|known| *known != name && known.eq_ignore_ascii_case(name))
}

/// A bound is a quantity or a tag; null counts as left out (go-ethereum reads both as nil).
fn bound(raw: &[u8]) -> Result<Option<BlockRef>, NotABlock> {
    if raw == b"null" {
        return Ok(None);
    }
    Text::from_value(raw).ok_or(NotABlock::Form)?;
    match block::parse(raw, BlockForm::Hex)? {
        BlockRef::Hash(_) | BlockRef::CanonicalHash(_) => Err(NotABlock::Form),
        found => Ok(Some(found)),
    }
}
