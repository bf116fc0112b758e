//! The last block that two chains have in common: ours, which a reorg has dropped the end of, and
//! that of a node.

#[cfg(test)]
mod tests;

/// A search that first goes back by doubling steps, then halves: reorgs are short, and the long one
/// costs few questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ancestor {
    /// The highest block known to be in common, if one is.
    same: Option<u64>,
    /// The lowest block known to differ.
    differs: u64,
    first: u64,
    step: u64,
}

/// What the search asks or has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Whether this block is the same on both chains?
    Ask(u64),
    /// This is the last one in common.
    At(u64),
    /// They have none of the blocks from the first in common.
    Nothing,
}

impl Ancestor {
    /// Of a file that begins with `first`, whose block `differs` is not on the node's chain.
    pub fn new(first: u64, differs: u64) -> Ancestor {
        Ancestor { same: None, differs, first, step: 1 }
    }

    /// What is asked next, or what was found.
    pub fn next(&self) -> Found {
        match self.same {
            Some(same) if same + 1 == self.differs => Found::At(same),
            Some(same) => Found::Ask(same + (self.differs - same) / 2),
            None if self.differs == self.first => Found::Nothing,
            None => Found::Ask(self.differs.saturating_sub(self.step).max(self.first)),
        }
    }

    /// Takes the answer to what was asked.
    pub fn told(&mut self, number: u64, same: bool) {
        if same {
            self.same = Some(self.same.map_or(number, |known| known.max(number)));
        } else {
            self.differs = self.differs.min(number);
            self.step = self.step.saturating_mul(2);
        }
    }
}
