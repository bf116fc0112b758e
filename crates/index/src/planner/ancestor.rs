//! Searches for the last block that is both in the index and on the chain of the nodes. A reorg has
//! dropped the later blocks of the index.

#[cfg(test)]
mod tests;

/// A search that goes back in steps of doubling length, and then bisects. Most reorgs are short and
/// take few comparisons. The number of comparisons grows with the logarithm of the reorg's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AncestorSearch {
    /// The highest block that is known to be on both chains; `None` until one is found.
    highest_common: Option<u64>,
    /// The lowest block that is known to differ.
    lowest_different: u64,
    /// The first block of the index.
    first_block: u64,
    /// The distance from `lowest_different` back to the next block to compare, in blocks. Used
    /// while no common block is known.
    distance: u64,
}

/// The next step of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchStep {
    /// Compare the hash of this block in the index with its hash on the nodes' chain.
    Compare(u64),
    /// This is the last common block.
    Found(u64),
    /// The chains have no block of the index in common.
    NoCommonBlock,
}

impl AncestorSearch {
    /// Creates a search. `first_block` is the first block of the index. `different` is a block that
    /// is not on both chains, for example the block after the last block of the index.
    pub fn new(first_block: u64, different: u64) -> AncestorSearch {
        AncestorSearch {
            highest_common: None,
            lowest_different: different,
            first_block,
            distance: 1,
        }
    }

    /// Returns the next step.
    pub fn next_step(&self) -> SearchStep {
        let different = self.lowest_different;
        match self.highest_common {
            Some(common) if common + 1 == different => SearchStep::Found(common),
            Some(common) => SearchStep::Compare(common + (different - common) / 2),
            None if different == self.first_block => SearchStep::NoCommonBlock,
            None => {
                SearchStep::Compare(different.saturating_sub(self.distance).max(self.first_block))
            }
        }
    }

    /// Records the result of a comparison. `is_common` is true if the block is on both chains.
    pub fn record(&mut self, number: u64, is_common: bool) {
        if is_common {
            self.highest_common =
                Some(self.highest_common.map_or(number, |highest| highest.max(number)));
        } else {
            self.lowest_different = self.lowest_different.min(number);
            self.distance = self.distance.saturating_mul(2);
        }
    }
}
