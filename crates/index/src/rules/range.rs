//! Which blocks are fetched next.

use crate::store::Held;

#[cfg(test)]
mod tests;

/// Where a sync ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this block.
    At(u64),
    /// With the last block that no reorg may drop, as it is when the sync gets there.
    Finalized,
    /// Never: new blocks are fetched as they come.
    Follow,
}

impl std::str::FromStr for End {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<End, &'static str> {
        match text {
            "finalized" => Ok(End::Finalized),
            "follow" => Ok(End::Follow),
            number => number
                .parse()
                .map(End::At)
                .map_err(|_| "allowed are the number of a block, finalized and follow"),
        }
    }
}

/// What a node says of the end of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tip {
    /// The newest block.
    pub head: u64,
    /// The last one that no reorg may drop.
    pub finalized: u64,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// To fetch these blocks.
    Fetch {
        /// The first.
        from: u64,
        /// The last.
        to: u64,
    },
    /// To ask for the tip again after a while.
    Wait,
    /// Nothing: all is there.
    Done,
}

/// Why nothing can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeFault {
    /// A file grows at its end only.
    #[error("the index begins with block {first}: what is before can only be had in a new file")]
    Before {
        /// Where the index begins.
        first: u64,
    },
    /// A file has no holes.
    #[error(
        "the index ends with block {last}: it goes on from there, and cannot begin anew at {start}"
    )]
    Hole {
        /// Where the index ends.
        last: u64,
        /// Where it was to begin.
        start: u64,
    },
    /// It would end before it begins.
    #[error("block {end}, the end, is before block {start}, the start")]
    Empty {
        /// The start.
        start: u64,
        /// The end.
        end: u64,
    },
}

/// Blocks after which the tip is asked for anew: it has moved by then, and may have been wrong.
const BLOCKS_MAX: u64 = 16_384;

/// What is to be done next, given what the index has, where it was to begin and end, and what a node
/// says of the tip.
///
/// # Errors
/// If start and end do not fit the file.
pub fn next(
    held: Option<Held>,
    start: Option<u64>,
    end: End,
    tip: Tip,
) -> Result<Next, RangeFault> {
    let from = match (held, start) {
        (None, start) => start.unwrap_or(0),
        (Some(held), Some(start)) if start < held.first => {
            return Err(RangeFault::Before { first: held.first });
        }
        (Some(held), Some(start)) if start > held.last + 1 => {
            return Err(RangeFault::Hole { last: held.last, start });
        }
        (Some(held), _) => held.last + 1,
    };
    if let (None, End::At(end)) = (held, end)
        && end < from
    {
        return Err(RangeFault::Empty { start: from, end });
    }
    let (wanted, last) = match end {
        End::At(number) => (number, number),
        End::Finalized => (tip.finalized, tip.finalized),
        End::Follow => (tip.head, u64::MAX),
    };
    let to = wanted.min(tip.head);
    Ok(if from <= to {
        Next::Fetch { from, to: to.min(from.saturating_add(BLOCKS_MAX - 1)) }
    } else if from > last {
        Next::Done
    } else {
        Next::Wait
    })
}
