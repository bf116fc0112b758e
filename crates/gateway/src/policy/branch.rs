//! A branch: linked blocks, with one hash per height.
//!
//! A branch holds the known blocks of one upstream, the served chain, or the blocks that a
//! subscriber has received (`policy/chain_cursor.rs`). Callers call [`Branch::trim`] to bound its
//! length.
//!
//! Some chains have heights without a block. Such a height is *skipped*: the parent of the next
//! block is a block further down. Filecoin calls it a null round (filecoin-project/lotus#12633). A
//! branch has the hash of the newest block at or below each height, so a skipped
//! height has the hash of the height below it.

use std::collections::VecDeque;

/// A block hash.
pub(crate) type Hash = [u8; 32];

/// Linked blocks from `bottom` upwards: the newest block at or below each height.
#[derive(Debug, Clone, Default)]
pub(super) struct Branch {
    /// The lowest known height.
    bottom: u64,
    hashes: VecDeque<Hash>,
}

impl Branch {
    /// Replaces all blocks by `hashes`. The first hash belongs to the height `bottom`.
    pub(super) fn restart(&mut self, bottom: u64, hashes: impl IntoIterator<Item = Hash>) {
        self.bottom = bottom;
        self.hashes = hashes.into_iter().collect();
    }

    /// Returns the lowest known height.
    pub(super) fn bottom(&self) -> u64 {
        self.bottom
    }

    /// Returns the highest known height, or `None` if the branch is empty.
    pub(super) fn top(&self) -> Option<u64> {
        (!self.hashes.is_empty()).then(|| self.bottom + self.hashes.len() as u64 - 1)
    }

    /// Returns the hash of the newest block at or below a height. Returns `None` if the height is
    /// unknown.
    pub(super) fn get(&self, number: u64) -> Option<Hash> {
        let index = usize::try_from(number.checked_sub(self.bottom)?).ok()?;
        self.hashes.get(index).copied()
    }

    /// Returns true if the branch has no block at this height, but lower and higher ones.
    pub(super) fn is_skipped(&self, number: u64) -> bool {
        let hash = self.get(number);
        hash.is_some() && number.checked_sub(1).is_some_and(|below| self.get(below) == hash)
    }

    /// Returns the hash of the block at a height. Returns `None` if the height is unknown or
    /// skipped.
    pub(super) fn block_at(&self, number: u64) -> Option<Hash> {
        self.get(number).filter(|_| !self.is_skipped(number))
    }

    /// Adds the hash of the height above the highest one.
    pub(super) fn push(&mut self, hash: Hash) {
        self.hashes.push_back(hash);
    }

    /// Adds the child of the highest block at the height `number`. The heights between the two are
    /// skipped.
    pub(super) fn push_child(&mut self, number: u64, hash: Hash) {
        let parent = self.hashes.back().copied();
        while let (Some(parent), Some(top)) = (parent, self.top())
            && top + 1 < number
        {
            self.push(parent);
        }
        self.push(hash);
    }

    /// Adds the hash of the height below the lowest one. Does nothing if the lowest height is 0.
    pub(super) fn push_below(&mut self, hash: Hash) {
        if self.bottom > 0 {
            self.bottom -= 1;
            self.hashes.push_front(hash);
        }
    }

    /// Extends this branch downwards: copies the blocks of `other` below the lowest height of this
    /// branch. Does nothing if the two differ at that height.
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

    /// Drops the lowest heights until at most `window` heights remain.
    pub(super) fn trim(&mut self, window: usize) {
        let excess = self.hashes.len().saturating_sub(window);
        self.hashes.drain(..excess);
        self.bottom += excess as u64;
    }

    /// Returns the number of known heights.
    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns the height and the hash of each known block, from the lowest upwards.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, Hash)> + '_ {
        (self.bottom..)
            .zip(&self.hashes)
            .filter(|(number, _)| !self.is_skipped(*number))
            .map(|(number, hash)| (number, *hash))
    }

    /// Returns the height of the block with this hash; `None` if the branch does not have the
    /// block.
    pub(super) fn find_number(&self, hash: Hash) -> Option<u64> {
        let highest = self.hashes.iter().rposition(|known| *known == hash)?;
        let skipped = self.hashes.range(..highest).rev().take_while(|known| **known == hash);
        Some(self.bottom + (highest - skipped.count()) as u64)
    }

    /// Returns the greatest height at or below `number` at which both branches are the same.
    /// Returns `None` if there is no such height.
    pub(super) fn find_fork(&self, other: &Branch, number: u64) -> Option<u64> {
        let top = self.top()?.min(other.top()?).min(number);
        let bottom = self.bottom.max(other.bottom);
        (bottom..=top).rev().find(|&height| self.get(height) == other.get(height))
    }
}
