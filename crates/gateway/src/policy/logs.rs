//! Splits an `eth_getLogs` call over a range of blocks into parts, and merges the responses of the
//! parts.
//!
//! The finalized blocks of a range are split into aligned chunks. Different ranges share these
//! chunks in the cache. The blocks above the finalized blocks stay one part. The response to this
//! part is valid as long as its last block is on the chain. Logs are copied byte for byte.
//! `resolve/logs.rs` fetches the parts and handles failures.

use std::fmt;

use wire::block::{BlockRef, BlockTag};
use wire::filter::LogFilter;
use wire::json::walk;
use wire::quantity;

use crate::policy::cacheable::{CacheRule, Caching};
use crate::policy::heads::ChainView;

#[cfg(test)]
mod tests;

/// A part of a range of blocks, with both bounds included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// First block.
    pub from: u64,
    /// Last block.
    pub to: u64,
    /// True if all blocks of the part are final, so that no reorg can change it.
    pub finalized: bool,
}

/// How the logs of a filter are obtained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogsPlan {
    /// Forward the call unchanged and do not store the response. The reason is one of these: there
    /// is no served head (newest block), a bound has no known height (such as `pending`), the
    /// bounds are reversed, the range reaches above the head, or the filter has both a block hash
    /// and a range.
    Forward,
    /// The call names one block by hash, so the response is a pure function of the hash. The
    /// upstream returns an error for an unknown block.
    ByHash,
    /// Fetch these parts, in order. Their bounds are heights instead of tags. A range that is not
    /// split is a single part.
    Parts(Vec<Part>),
}

impl Part {
    /// Returns the caching decision for the logs of the part. The logs are valid as long as the
    /// last block is on the chain, because the hash of a block fixes all earlier blocks.
    pub fn caching(&self, view: &ChainView) -> Caching {
        let rule = CacheRule::AtRange { from: self.from, to: self.to };
        let oldest = Some(self.from);
        Caching { rule, min_head: self.to, oldest, ..Caching::never(view) }
    }
}

/// Replaces the tags in a filter's bounds by heights of the served chain, and splits the range. See
/// [`split_range`] for `chunk` and `parts_max`.
pub fn plan_filter(
    filter: &LogFilter<'_>,
    view: &ChainView,
    chunk: u64,
    parts_max: usize,
) -> LogsPlan {
    let has_range = filter.from.is_some() || filter.to.is_some();
    match filter.block_hash {
        // A filter with both a hash and a range is invalid. The error message of an upstream is
        // better than one of the gateway.
        Some(_) if has_range => return LogsPlan::Forward,
        Some(_) => return LogsPlan::ByHash,
        None => {}
    }
    let Some(head) = view.head else {
        return LogsPlan::Forward;
    };
    let resolve = |bound: Option<BlockRef>| match bound.unwrap_or(BlockRef::Tag(BlockTag::Latest)) {
        BlockRef::Number(number) => Some(number),
        BlockRef::Tag(BlockTag::Latest) => Some(head.number),
        BlockRef::Tag(BlockTag::Finalized) => {
            view.finalized.filter(|_| view.finalized_by_upstreams)
        }
        _ => None,
    };
    match (resolve(filter.from), resolve(filter.to)) {
        (Some(from), Some(to)) if from <= to && to <= head.number => {
            LogsPlan::Parts(split_range(from, to, view.settled, chunk, parts_max))
        }
        _ => LogsPlan::Forward,
    }
}

/// Splits `from..=to` after the finalized height. Splits the blocks up to this height further, at
/// multiples of `chunk` blocks. A range stays whole if it needs more than `parts_max` parts, or if
/// its bounds are reversed.
pub fn split_range(
    from: u64,
    to: u64,
    finalized: Option<u64>,
    chunk: u64,
    parts_max: usize,
) -> Vec<Part> {
    let undivided =
        Part { from, to, finalized: finalized.is_some_and(|finalized| to <= finalized) };
    let chunk = chunk.max(1);
    let last_final = finalized.map(|finalized| finalized.min(to));
    let Some(last_final) = last_final.filter(|last_final| from <= *last_final) else {
        return vec![undivided];
    };
    let chunks = last_final / chunk - from / chunk + 1;
    let count = chunks.saturating_add(u64::from(last_final < to));
    if count > parts_max as u64 {
        return vec![undivided];
    }
    let final_part = |number: u64| {
        let (start, end) = (number * chunk, (number * chunk).saturating_add(chunk - 1));
        Part { from: start.max(from), to: end.min(last_final), finalized: true }
    };
    let mut parts: Vec<Part> = (from / chunk..=last_final / chunk).map(final_part).collect();
    if last_final < to {
        parts.push(Part { from: last_final + 1, to, finalized: false });
    }
    parts
}

impl Part {
    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        (self.to - self.from).saturating_add(1)
    }

    /// Splits the part into pieces of at most `blocks_max` blocks. Returns `None` if these would be
    /// more than `pieces_max` pieces.
    pub fn split(self, blocks_max: u64, pieces_max: usize) -> Option<Vec<Part>> {
        let blocks_max = blocks_max.max(1);
        if self.blocks().div_ceil(blocks_max) > pieces_max as u64 {
            return None;
        }
        let starts = (self.from..=self.to).step_by(blocks_max.try_into().unwrap_or(usize::MAX));
        let piece =
            |from: u64| Part { from, to: from.saturating_add(blocks_max - 1).min(self.to), ..self };
        Some(starts.map(piece).collect())
    }
}

/// Returns true if `part` covers the whole range of `parts`; false if `parts` is empty.
pub fn covers(part: Part, parts: &[Part]) -> bool {
    let first_and_last = parts.first().zip(parts.last());
    first_and_last.is_some_and(|(first, last)| part.from <= first.from && part.to >= last.to)
}

/// Splits the parts around `known`, a part whose logs are available. Returns the parts before
/// `known`, `known` itself, and the parts after it, in order.
pub fn split_around(known: Part, parts: &[Part]) -> Vec<Part> {
    let before = parts
        .iter()
        .filter(|part| part.from < known.from)
        .map(|part| Part { to: part.to.min(known.from - 1), ..*part });
    let after = parts
        .iter()
        .filter(|part| part.to > known.to)
        .map(|part| Part { from: part.from.max(known.to + 1), ..*part });
    before.chain([known]).chain(after).collect()
}

/// Reason why the responses of parts cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A part's result is no array.
    #[error("the logs of blocks {} to {} are no array", .0.from, .0.to)]
    NotArray(Part),
    /// A log has no block number or log index.
    #[error("a log of blocks {} to {} has no block number or log index", .0.from, .0.to)]
    NoPosition(Part),
    /// A log lies outside its part, or does not lie after the previous log.
    #[error("{log} is out of order or outside of blocks {} to {}", .part.from, .part.to)]
    OutOfOrder {
        /// Position of the log.
        log: LogPosition,
        /// The part whose response has the log.
        part: Part,
    },
}

/// Joins the raw results of consecutive parts into one raw array, byte for byte. The results must
/// be valid JSON.
///
/// The first and last log of each part must lie within the part and after the logs of the previous
/// part. So no log appears twice at a boundary. Inside a part the logs keep the order in which the
/// upstream returned them.
///
/// # Errors
///
/// The part whose response does not fit the request, and why.
pub fn merge(parts: &[(Part, &[u8])]) -> Result<Vec<u8>, MergeError> {
    let bytes: usize = parts.iter().map(|(_, raw)| raw.len()).sum();
    let mut merged = Vec::with_capacity(bytes + 2);
    merged.push(b'[');
    let mut last: Option<LogPosition> = None;
    for &(part, raw) in parts {
        let logs = strip_brackets(part, raw)?;
        let Some((first_log, last_log)) = walk::first_and_last(raw) else {
            continue;
        };
        // The first and the last log of a part may be the same log.
        for (log, may_equal) in [(first_log, false), (last_log, true)] {
            let position = parse_position(part, log)?;
            let is_within = part.from <= position.block && position.block <= part.to;
            let is_after =
                last.is_none_or(|last| position > last || (may_equal && position == last));
            if !is_within || !is_after {
                return Err(MergeError::OutOfOrder { log: position, part });
            }
            last = Some(position);
        }
        if merged.len() > 1 {
            merged.push(b',');
        }
        merged.extend_from_slice(logs);
    }
    merged.push(b']');
    Ok(merged)
}

/// Returns the text between the brackets of an array.
fn strip_brackets(part: Part, raw: &[u8]) -> Result<&[u8], MergeError> {
    raw.trim_ascii()
        .strip_prefix(b"[")
        .and_then(|raw| raw.strip_suffix(b"]"))
        .map(<[u8]>::trim_ascii)
        .ok_or(MergeError::NotArray(part))
}

/// Position of a log on the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Height of the block.
    block: u64,
    /// Index of the log in its block.
    index: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log {} of block {}", self.index, self.block)
    }
}

/// Reads the position of a raw log of `part`.
fn parse_position(part: Part, log: &[u8]) -> Result<LogPosition, MergeError> {
    let [block, index] = walk::fields_of(log, ["blockNumber", "logIndex"])
        .map(|raw| raw.and_then(quantity::from_value).ok_or(MergeError::NoPosition(part)));
    Ok(LogPosition { block: block?, index: index? })
}
