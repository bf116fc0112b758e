//! Chain cursor: the changes of the served chain since a subscriber was last notified.
//!
//! A [`ChainCursor`] holds the blocks that a subscriber has received. It compares them with a newer
//! view and returns the changes in between. The order is go-ethereum's (`core/blockchain.go`
//! `reorg`): the dropped blocks from the newest down, then the added blocks from the oldest up. So
//! each block is reported exactly once, even if views are rare. The cursor fetches and sends
//! nothing.

use std::collections::VecDeque;

use crate::policy::heads::{ChainView, Head};

#[cfg(test)]
mod tests;

/// A change of the served chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The block was dropped from the chain.
    Dropped(Head),
    /// The block is the newest of the chain.
    Added(Head),
}

/// The old and the new chain have no known block in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCommonBlock;

/// The newest blocks that a subscriber has received; never empty.
#[derive(Debug, Clone)]
pub struct ChainCursor {
    /// Height of the first of `hashes`.
    bottom: u64,
    hashes: VecDeque<[u8; 32]>,
    length_max: usize,
}

impl ChainCursor {
    /// Creates a cursor at the head of `view`; `None` while there is no head. It stores at most
    /// `length_max` blocks, so it cannot follow a deeper reorg.
    pub fn at_head(view: &ChainView, length_max: usize) -> Option<ChainCursor> {
        let Head { number, hash } = view.head?;
        let mut cursor = ChainCursor { bottom: number, hashes: VecDeque::from([hash]), length_max };
        cursor.extend_down(view);
        Some(cursor)
    }

    /// Adds the blocks of the view below the oldest block of the cursor.
    pub fn extend_down(&mut self, view: &ChainView) {
        while self.hashes.len() < self.length_max
            && view.canonical(self.bottom) == self.get(self.bottom)
            && let Some(below) = self.bottom.checked_sub(1)
            && let Some(hash) = view.canonical(below)
        {
            self.hashes.push_front(hash);
            self.bottom = below;
        }
    }

    /// Returns the newest block.
    pub fn top(&self) -> Option<Head> {
        let hash = *self.hashes.back()?;
        Some(Head { number: self.bottom + self.hashes.len() as u64 - 1, hash })
    }

    /// Returns the changes from the cursor to the chain of `view`. Returns no changes while `view`
    /// has no head.
    ///
    /// # Errors
    ///
    /// [`NoCommonBlock`] if both chains have no known block in common.
    pub fn changes(&self, view: &ChainView) -> Result<Vec<Change>, NoCommonBlock> {
        let (Some(top), Some(head)) = (self.top(), view.head) else { return Ok(Vec::new()) };
        let is_common = |number: &u64| view.canonical(*number) == self.get(*number);
        let highest = top.number.min(head.number);
        if highest < self.bottom {
            return Err(NoCommonBlock);
        }
        let fork = (self.bottom..=highest).rev().find(is_common).ok_or(NoCommonBlock)?;
        let mut changes = Vec::new();
        for number in (fork + 1..=top.number).rev() {
            let hash = self.get(number).ok_or(NoCommonBlock)?;
            changes.push(Change::Dropped(Head { number, hash }));
        }
        for number in fork + 1..=head.number {
            let hash = view.canonical(number).ok_or(NoCommonBlock)?;
            changes.push(Change::Added(Head { number, hash }));
        }
        Ok(changes)
    }

    /// Moves the cursor over one change. Changes must come in the order of
    /// [`ChainCursor::changes`].
    pub fn follow(&mut self, change: Change) {
        match change {
            Change::Dropped(_) => {
                self.hashes.pop_back();
            }
            Change::Added(head) => {
                self.hashes.push_back(head.hash);
                if self.hashes.len() > self.length_max {
                    self.hashes.pop_front();
                    self.bottom += 1;
                }
            }
        }
    }

    fn get(&self, number: u64) -> Option<[u8; 32]> {
        let index = usize::try_from(number.checked_sub(self.bottom)?).ok()?;
        self.hashes.get(index).copied()
    }
}
