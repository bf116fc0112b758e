//! Decides which blocks a sync fetches next.

use std::str::FromStr;

use crate::contents::StoredRange;

#[cfg(test)]
mod tests;

/// The block at which a sync ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncEnd {
    /// The block with this number.
    At(u64),
    /// The finalized block. Its number grows while the sync runs.
    Finalized,
    /// No end: the sync fetches new blocks as they arrive, until it is stopped.
    Follow,
}

impl FromStr for SyncEnd {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SyncEnd, &'static str> {
        match text {
            "finalized" => Ok(SyncEnd::Finalized),
            "follow" => Ok(SyncEnd::Follow),
            number => number
                .parse()
                .map(SyncEnd::At)
                .map_err(|_| "allowed are a block number, finalized and follow"),
        }
    }
}

impl SyncEnd {
    /// Returns the last block to sync, given the chain's tip.
    pub fn target(self, tip: Tip) -> u64 {
        match self {
            SyncEnd::At(number) => number,
            SyncEnd::Finalized => tip.finalized,
            SyncEnd::Follow => tip.head,
        }
    }
}

/// The end of the chain as a node reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tip {
    /// The newest block.
    pub head: u64,
    /// The last block that a node reported as finalized.
    pub finalized: u64,
}

/// The next step of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Fetch these blocks.
    Fetch {
        /// The first block.
        from: u64,
        /// The last block.
        to: u64,
    },
    /// Request the tip again after a pause.
    Wait,
    /// The sync is complete.
    Done,
}

/// The reason why a sync cannot fetch the requested range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The start is before the first block of the index, which only grows at its end.
    #[error("the index begins with block {first}; earlier blocks need a new index")]
    BeforeFirst {
        /// The first block of the index.
        first: u64,
    },
    /// The start would leave a gap after the last block of the index.
    #[error(
        "the index ends with block {last}; a sync continues there and cannot start at block {start}"
    )]
    Gap {
        /// The last block of the index.
        last: u64,
        /// The requested start.
        start: u64,
    },
    /// The end is before the start.
    #[error("the end, block {end}, is before the start, block {start}")]
    Empty {
        /// The start.
        start: u64,
        /// The end.
        end: u64,
    },
    /// The start of a new index is after the finalized block, at which the sync ends.
    #[error("the start, block {start}, is after the last finalized block, {finalized}")]
    NotFinalized {
        /// The start.
        start: u64,
        /// The finalized block.
        finalized: u64,
    },
}

/// Maximum number of blocks that a sync fetches before it requests the tip again. The tip moves
/// meanwhile, and a node may have reported a wrong tip.
const BLOCKS_MAX: u64 = 16_384;

/// Decides the next step of a sync. `stored` is the range of blocks that the index holds, or `None`
/// if it is empty. `start` is the requested first block, or `None` for the default: the block after
/// the stored blocks, or block 0.
///
/// # Errors
/// Fails if start and end do not fit the index.
pub fn decide_next_step(
    stored: Option<StoredRange>,
    start: Option<u64>,
    end: SyncEnd,
    tip: Tip,
) -> Result<NextStep, RangeError> {
    let from = match (stored, start) {
        (None, start) => start.unwrap_or(0),
        (Some(stored), Some(start)) if start < stored.first => {
            return Err(RangeError::BeforeFirst { first: stored.first });
        }
        (Some(stored), Some(start)) if start > stored.last + 1 => {
            return Err(RangeError::Gap { last: stored.last, start });
        }
        (Some(stored), _) => stored.last + 1,
    };
    let target = end.target(tip);
    if stored.is_none() && target < from {
        match end {
            SyncEnd::At(end) => return Err(RangeError::Empty { start: from, end }),
            SyncEnd::Finalized => {
                return Err(RangeError::NotFinalized { start: from, finalized: target });
            }
            SyncEnd::Follow => {}
        }
    }
    let to = target.min(tip.head);
    Ok(if from <= to {
        NextStep::Fetch { from, to: to.min(from.saturating_add(BLOCKS_MAX - 1)) }
    } else if from > target && end != SyncEnd::Follow {
        NextStep::Done
    } else {
        NextStep::Wait
    })
}
