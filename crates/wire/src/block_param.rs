//! Reads the block parameter of a call, and replaces it with a number.

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
    /// The position of the block parameter, from 0. If the method has a range of blocks, it is the
    /// position of the parameter for the last block.
    pub at: usize,
    /// The format of the parameter.
    pub format: BlockFormat,
    /// The block of a call without the parameter, if a specification defines a default.
    pub default: Option<BlockTag>,
}

impl BlockParam {
    /// Returns the block of a call, and the byte range of the parameter within the raw parameters.
    /// Pass the range to [`write_params_at`] to replace the block.
    ///
    /// If the parameter is absent, returns the default block with an empty range, or `None` if
    /// there is no default.
    ///
    /// # Errors
    /// If the call has no valid block although the method needs one.
    pub fn read(
        &self,
        params: &Params<'_>,
    ) -> Result<Option<(BlockRef, Range<usize>)>, BlockRefError> {
        if matches!(params, Params::Object(_)) {
            return Err(BlockRefError::ByName);
        }
        let raw = params.raw_or_empty();
        let mut position = 0;
        for span in walk::spans(raw) {
            if position == self.at {
                let block = block::parse(&raw[span.clone()], self.format)?;
                return Ok(Some((block, span)));
            }
            position += 1;
        }
        // A parameter before the block parameter is missing too.
        if position < self.at {
            return Err(BlockRefError::Missing);
        }
        let closing_bracket = raw.len() - 1;
        Ok(self.default.map(|tag| (BlockRef::Tag(tag), closing_bracket..closing_bracket)))
    }
}

/// Appends the raw parameters with `number` in place of the bytes at `span`. [`BlockParam::read`]
/// must have returned `span` for the same parameters. All other bytes are unchanged.
pub fn write_params_at(
    out: &mut Vec<u8>,
    params: &Params<'_>,
    span: Range<usize>,
    format: BlockFormat,
    number: u64,
) {
    let raw = params.raw_or_empty();
    // 24 bytes suffice for a comma and a number in quotes.
    out.reserve(raw.len() + 24);
    out.extend_from_slice(&raw[..span.start]);
    // An empty span means that the parameter is absent. The number becomes the last parameter.
    if span.is_empty() && walk::spans(raw).next().is_some() {
        out.push(b',');
    }
    block::write_number(out, format, number);
    out.extend_from_slice(&raw[span.end..]);
}
