//! A branch: linked block hashes, one per height.
//!
//! A branch holds the known blocks of one upstream, the served chain, or the blocks that a
//! subscriber has received (`policy/chain_cursor.rs`). Callers call [`Branch::trim`] to bound its
//! length.

use std::collections::VecDeque;

use crate::policy::heads::Hash;

/// Linked blocks from `bottom` upwards: the hash at each height is the parent of the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct Branch {
    /// Height of the lowest known block.
    bottom: u64,
    hashes: VecDeque<Hash>,
}

impl Branch {
    /// Replaces all blocks by `hashes`. The first hash belongs to the block at height `bottom`.
    pub(super) fn restart(&mut self, bottom: u64, hashes: impl IntoIterator<Item = Hash>) {
        self.bottom = bottom;
        self.hashes = hashes.into_iter().collect();
    }

    /// Returns the height of the lowest known block.
    pub(super) fn bottom(&self) -> u64 {
        self.bottom
    }

    /// Returns the height of the highest known block, or `None` if the branch is empty.
    pub(super) fn top(&self) -> Option<u64> {
        (!self.hashes.is_empty()).then(|| self.bottom + self.hashes.len() as u64 - 1)
    }

    /// Returns the hash of the block at a height, or `None` if it is unknown.
    pub(super) fn get(&self, number: u64) -> Option<Hash> {
        let index = usize::try_from(number.checked_sub(self.bottom)?).ok()?;
        self.hashes.get(index).copied()
    }

    /// Adds a block above the highest block.
    pub(super) fn push(&mut self, hash: Hash) {
        self.hashes.push_back(hash);
    }

    /// Adds the parent of the lowest block. Does nothing if the lowest block has height 0.
    pub(super) fn push_below(&mut self, hash: Hash) {
        if self.bottom > 0 {
            self.bottom -= 1;
            self.hashes.push_front(hash);
        }
    }

    /// Extends this branch downwards: copies the blocks of `other` below the lowest block of this
    /// branch. Does nothing if `other` does not contain that lowest block.
    pub(super) fn deepen(&mut self, other: &Branch) {
        let bottom = self.bottom;
        if self.get(bottom).is_none() || self.get(bottom) != other.get(bottom) {
            return;
        }
        for number in (other.bottom..bottom).rev() {
            if let Some(hash) = other.get(number) {
                self.push_below(hash);
            }
        }
    }

    /// Drops every block above `number`.
    pub(super) fn truncate_above(&mut self, number: u64) {
        let length = (number + 1).saturating_sub(self.bottom);
        self.hashes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    }

    /// Drops the lowest blocks until at most `window` blocks remain.
    pub(super) fn trim(&mut self, window: usize) {
        let excess = self.hashes.len().saturating_sub(window);
        self.hashes.drain(..excess);
        self.bottom += excess as u64;
    }

    /// Returns the hashes from the lowest block upwards.
    pub(super) fn hashes(&self) -> impl ExactSizeIterator<Item = Hash> + '_ {
        self.hashes.iter().copied()
    }

    /// Returns the greatest height at which the branch has this block; `None` if it does not have
    /// the block.
    pub(super) fn find_number(&self, hash: Hash) -> Option<u64> {
        let index = self.hashes.iter().rposition(|known| *known == hash)?;
        Some(self.bottom + index as u64)
    }

    /// Returns the height of the highest block at or below `number` that both branches hold.
    /// Returns `None` if they hold no such block.
    pub(super) fn find_fork(&self, other: &Branch, number: u64) -> Option<u64> {
        let top = self.top()?.min(other.top()?).min(number);
        let bottom = self.bottom.max(other.bottom);
        (bottom..=top).rev().find(|&height| self.get(height) == other.get(height))
    }
}
