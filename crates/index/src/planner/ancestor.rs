//! Searches for the last common block of two chains: the chain of the index and that of a node. A
//! reorg has dropped the end of the chain in the index.

#[cfg(test)]
mod tests;

/// A search that goes back in steps that double, and then bisects. Most reorgs are short. Even a
/// long one takes few comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AncestorSearch {
    /// The highest block that is known to be common.
    same: Option<u64>,
    /// The lowest block that is known to differ.
    differs: u64,
    first: u64,
    step: u64,
}

/// The next step of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Compare the hashes of this block.
    Compare(u64),
    /// This is the last common block.
    Found(u64),
    /// The chains have no block of the index in common.
    NoCommonBlock,
}

impl AncestorSearch {
    /// Creates a search. `first` is the first block of the index. `differs` is a block of the index
    /// that is not on the node's chain.
    pub fn new(first: u64, differs: u64) -> AncestorSearch {
        AncestorSearch { same: None, differs, first, step: 1 }
    }

    /// Returns the next step.
    pub fn next(&self) -> Step {
        match self.same {
            Some(same) if same + 1 == self.differs => Step::Found(same),
            Some(same) => Step::Compare(same + (self.differs - same) / 2),
            None if self.differs == self.first => Step::NoCommonBlock,
            None => Step::Compare(self.differs.saturating_sub(self.step).max(self.first)),
        }
    }

    /// Records the result of a comparison.
    pub fn compared(&mut self, number: u64, same: bool) {
        if same {
            self.same = Some(self.same.map_or(number, |known| known.max(number)));
        } else {
            self.differs = self.differs.min(number);
            self.step = self.step.saturating_mul(2);
        }
    }
}
