//! The block parameter of a call: reading it, and replacing it with a number.

use std::ops::Range;

use serde::Deserialize;

use crate::block::{self, BlockFormat, BlockRef, BlockRefError, BlockTag};
use crate::call::Params;
use crate::json::walk;

#[cfg(test)]
mod tests;

/// The block parameter of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockParam {
    /// The position in the parameters, from 0. Of a range of blocks it is the last one.
    pub at: usize,
    /// The format.
    pub format: BlockFormat,
    /// The block that an absent parameter means, if a specification defines one.
    pub default: Option<BlockTag>,
}

impl BlockParam {
    /// The block of a call, and the span of that parameter within the raw parameters for
    /// [`write_params_at`].
    ///
    /// If the call leaves the block out, the default block with an empty span, or `None` if the
    /// method has no default.
    ///
    /// # Errors
    /// If the call has no valid block although the method needs one.
    pub fn read(
        &self,
        params: &Params<'_>,
    ) -> Result<Option<(BlockRef, Range<usize>)>, BlockRefError> {
        let raw = match params {
            Params::Absent | Params::Null => b"[]".as_slice(),
            Params::Array(raw) => raw,
            Params::Object(_) => return Err(BlockRefError::ByName),
        };
        let mut count = 0;
        for span in walk::spans(raw) {
            if count == self.at {
                let block = block::parse(&raw[span.clone()], self.format)?;
                return Ok(Some((block, span)));
            }
            count += 1;
        }
        if count < self.at {
            return Err(BlockRefError::Missing);
        }
        let end = raw.len() - 1;
        Ok(self.default.map(|tag| (BlockRef::Tag(tag), end..end)))
    }
}

/// Appends the raw parameters with `number` at `span`, which [`BlockParam::read`] returned for the
/// same parameters. All other bytes stay.
pub fn write_params_at(
    out: &mut Vec<u8>,
    params: &Params<'_>,
    span: Range<usize>,
    format: BlockFormat,
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
    block::write_number(out, format, number);
    out.extend_from_slice(&raw[span.end..]);
}
