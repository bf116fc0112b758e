//! Chain cursor: finds the changes of the served chain since a subscriber was last notified.
//!
//! A [`ChainCursor`] holds the newest blocks that a subscriber has received. It compares these
//! blocks with a newer *view*, which is a snapshot of the served chain. The newest block of the
//! view is its *head*. The changes come in go-ethereum's order (`core/blockchain.go` `reorg`):
//! first the dropped blocks from the newest down, then the added blocks from the oldest up. So each
//! block is reported exactly once, even if the head rises by several blocks between two views. The
//! cursor fetches and sends nothing.

use crate::policy::branch::Branch;
use crate::policy::heads::{ChainView, Head};

#[cfg(test)]
mod tests;

/// A change of the served chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The block was dropped from the chain.
    Dropped(Head),
    /// The block was added as the newest block of the chain.
    Added(Head),
}

/// The old and the new chain have no known block in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCommonBlock;

/// The newest blocks that a subscriber has received; never empty.
#[derive(Debug, Clone)]
pub struct ChainCursor {
    blocks: Branch,
    /// Maximum number of stored blocks.
    length_max: usize,
}

impl ChainCursor {
    /// Creates a cursor at the head of `view`; `None` while the view has no head. The cursor stores
    /// at most `length_max` blocks, so it cannot follow a deeper reorg.
    pub fn at_head(view: &ChainView, length_max: usize) -> Option<ChainCursor> {
        let Head { number, hash } = view.head?;
        let mut cursor = ChainCursor { blocks: Branch::default(), length_max };
        cursor.blocks.restart(number, [hash]);
        cursor.extend_down(view);
        Some(cursor)
    }

    /// Extends the cursor downwards: adds the blocks of the view below the cursor's oldest block,
    /// if the view contains that block.
    pub fn extend_down(&mut self, view: &ChainView) {
        while self.blocks.len() < self.length_max
            && view.newest_at(self.blocks.bottom()) == self.blocks.get(self.blocks.bottom())
            && let Some(below) = self.blocks.bottom().checked_sub(1)
            && let Some(hash) = view.newest_at(below)
        {
            self.blocks.push_below(hash);
        }
    }

    /// Returns the newest block.
    pub fn top(&self) -> Option<Head> {
        let number = self.blocks.top()?;
        Some(Head { number, hash: self.blocks.get(number)? })
    }

    /// Returns the changes from the cursor to the chain of `view`. Returns no changes while `view`
    /// has no head.
    ///
    /// # Errors
    ///
    /// [`NoCommonBlock`] if both chains have no known block in common, or if one of the changed
    /// blocks is unknown.
    pub fn find_changes(&self, view: &ChainView) -> Result<Vec<Change>, NoCommonBlock> {
        let (Some(top), Some(head)) = (self.top(), view.head) else { return Ok(Vec::new()) };
        let is_common = |number: &u64| view.newest_at(*number) == self.blocks.get(*number);
        let mut heights = (self.blocks.bottom()..=top.number.min(head.number)).rev();
        let fork = heights.find(is_common).ok_or(NoCommonBlock)?;
        let dropped =
            (fork + 1..=top.number).rev().filter(|&number| !self.blocks.is_skipped(number));
        let dropped = dropped.map(|number| {
            self.blocks.get(number).map(|hash| Change::Dropped(Head { number, hash }))
        });
        let added = (fork + 1..=head.number).filter(|&number| !view.is_skipped(number));
        let added = added
            .map(|number| view.newest_at(number).map(|hash| Change::Added(Head { number, hash })));
        dropped.chain(added).collect::<Option<_>>().ok_or(NoCommonBlock)
    }

    /// Moves the cursor over one change. Changes must come in the order of
    /// [`ChainCursor::find_changes`].
    pub fn follow(&mut self, change: Change) {
        match change {
            Change::Dropped(head) => self.blocks.truncate_above(head.number.saturating_sub(1)),
            Change::Added(head) => {
                self.blocks.truncate_above(head.number.saturating_sub(1));
                self.blocks.push_child(head.number, head.hash);
                self.blocks.trim(self.length_max);
            }
        }
    }
}
