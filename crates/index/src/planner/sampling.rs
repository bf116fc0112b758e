//! Decides which blocks a sync samples to train compression dictionaries and to compare response
//! forms, the ways in which nodes write an object.

use super::range::{SyncEnd, Tip};

/// Maximum number of sampled blocks.
const BLOCKS_MAX: u64 = 48;

/// Returns the numbers of the blocks to sample, in ascending order. One half is spread evenly over
/// the range that the sync fetches now. The other half is spread over the range from the start to
/// the newest block, because a later sync may fetch all of that range.
pub fn block_numbers(start: Option<u64>, end: SyncEnd, tip: Tip) -> Vec<u64> {
    let first = start.unwrap_or(0).min(tip.head);
    let last = end.target(tip).min(tip.head);
    let spread_to = |last: u64| {
        let span = last.max(first) - first;
        (0..BLOCKS_MAX / 2).map(move |index| first + span * index / (BLOCKS_MAX / 2 - 1))
    };
    let mut numbers: Vec<u64> = spread_to(last).chain(spread_to(tip.head)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    //! Goal: samples lie between the start and the newest block, and include both.

    use super::*;

    #[test]
    fn samples_cover_the_range_and_the_chain() {
        let tip = Tip { head: 1_000, finalized: 900 };
        let ends = |numbers: Vec<u64>| (numbers.len(), numbers[0], numbers[numbers.len() - 1]);
        assert_eq!(ends(block_numbers(None, SyncEnd::Follow, tip)), (24, 0, 1_000));
        assert_eq!(ends(block_numbers(Some(990), SyncEnd::Finalized, tip)), (11, 990, 1_000));
        let numbers = block_numbers(Some(100), SyncEnd::At(146), tip);
        assert_eq!(numbers.iter().filter(|number| **number <= 146).count(), 24 + 1);
        assert_eq!(ends(numbers), (47, 100, 1_000));
        assert_eq!(block_numbers(Some(5_000), SyncEnd::At(6_000), tip), [1_000]);
        assert_eq!(block_numbers(None, SyncEnd::Finalized, Tip { head: 0, finalized: 0 }), [0]);
    }
}
