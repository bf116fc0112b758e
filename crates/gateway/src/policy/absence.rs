//! Decides what the served chain says about a block or transaction that an upstream does not have.
//!
//! `null` or "not found" from one upstream proves nothing. Behind the address of a provider, one of
//! several backends may be some blocks behind. Another upstream may lack the index of old
//! transactions. So such a response is compared with the *view*, the snapshot of the chain's newest
//! blocks. The rule holds for every method that names a block or transaction (`wire::method`).

use wire::block::{BlockRef, BlockTag};

use crate::policy::complete::{Doubt, YOUNG_BLOCKS};
use crate::policy::heads::ChainView;

#[cfg(test)]
mod tests;

/// What the served chain says about a block or transaction that an upstream does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The served chain has it. `is_recent` is true if it is in a block of the view, so that the
    /// upstream may have it a moment later.
    Known {
        /// True if the block is in the view.
        is_recent: bool,
    },
    /// The served chain has the block. The block may lack the requested item, or the chain may not
    /// have a block for the tag.
    Possible {
        /// True if the block is one of the newest [`YOUNG_BLOCKS`].
        is_recent: bool,
    },
    /// The view does not know the block or transaction, which may not exist.
    Unknown,
}

impl Absence {
    /// Returns how often the same upstreams are called again after all of them have responded. The
    /// share of failures falls exponentially: if half of an upstream's backends are behind, 16
    /// repetitions leave one failure of 100,000 calls.
    pub fn repeats_max(self) -> u32 {
        match self {
            Self::Known { is_recent: true } => 16,
            Self::Possible { is_recent: true } => 2,
            Self::Known { .. } | Self::Possible { .. } | Self::Unknown => 0,
        }
    }

    /// Returns the reason to doubt a `null` result.
    pub fn doubt(self) -> Doubt {
        match self {
            Self::Known { .. } => Doubt::Missing,
            Self::Possible { is_recent: true } => Doubt::Young,
            Self::Possible { is_recent: false } => Doubt::Unproven,
            Self::Unknown => Doubt::Unknown,
        }
    }
}

/// Compares the response of an upstream that does not have `block` with the view. `nullable` is true
/// if the method's result may be `null` although the block exists. Returns `None` if the chain need
/// not have the block.
pub fn check_block(block: &BlockRef, nullable: bool, view: &ChainView) -> Option<Absence> {
    let head = view.head?.number;
    if matches!(*block, BlockRef::Number(number) if view.is_skipped(number)) {
        return None;
    }
    let number = match (find_number(block, view), block) {
        (Some(number), _) => number,
        (None, BlockRef::Hash(_) | BlockRef::CanonicalHash(_)) => return Some(Absence::Unknown),
        (None, BlockRef::Tag(BlockTag::Pending)) => return None,
        (None, _) => return Some(Absence::Possible { is_recent: false }),
    };
    let blocks_below = head.checked_sub(number)?;
    Some(if nullable {
        Absence::Possible { is_recent: blocks_below < YOUNG_BLOCKS }
    } else {
        Absence::Known { is_recent: view.canonical(number).is_some() }
    })
}

/// Returns the height of a block that a call names by its height, by a hash of the view or by
/// `latest`.
pub fn find_number(block: &BlockRef, view: &ChainView) -> Option<u64> {
    match *block {
        BlockRef::Number(number) => Some(number),
        BlockRef::Hash(hash) | BlockRef::CanonicalHash(hash) => view.number_of(hash),
        BlockRef::Tag(BlockTag::Latest) => Some(view.head?.number),
        BlockRef::Tag(_) => None,
    }
}
