//! What has happened to the served chain since somebody was told of it last.
//!
//! A [`Trail`] holds the blocks that somebody knows as the chain. Beside a newer view it gives the
//! changes in between, as go-ethereum tells them to subscribers (`core/blockchain.go` `reorg`): the
//! dropped blocks from the newest down, then the added ones from the oldest up. So nobody misses a
//! block, however seldom views come, nor hears of one twice. It neither fetches nor tells anything.

use std::collections::VecDeque;

use crate::policy::heads::{ChainView, Head};

#[cfg(test)]
mod tests;

/// A step of the served chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The block is on the chain no more.
    Dropped(Head),
    /// The block is the chain's newest.
    Added(Head),
}

/// Old and new chain have no block in common that is still known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Apart;

/// The newest blocks of the chain, as somebody was told of it; never empty.
#[derive(Debug, Clone)]
pub struct Trail {
    bottom: u64,
    hashes: VecDeque<[u8; 32]>,
    length_max: usize,
}

impl Trail {
    /// The chain as it is now, of which nothing needs to be told; none while there is no head. It
    /// remembers `length_max` blocks, so that deeper a reorg is not understood.
    pub fn at(view: &ChainView, length_max: usize) -> Option<Trail> {
        let Head { number, hash } = view.head?;
        let mut trail = Trail { bottom: number, hashes: VecDeque::from([hash]), length_max };
        trail.learn(view);
        Some(trail)
    }

    /// Takes in what the view knows below the oldest block.
    pub fn learn(&mut self, view: &ChainView) {
        while self.hashes.len() < self.length_max
            && view.canonical(self.bottom) == self.get(self.bottom)
            && let Some(below) = self.bottom.checked_sub(1)
            && let Some(hash) = view.canonical(below)
        {
            self.hashes.push_front(hash);
            self.bottom = below;
        }
    }

    /// The newest block.
    pub fn top(&self) -> Option<Head> {
        let hash = *self.hashes.back()?;
        Some(Head { number: self.bottom + self.hashes.len() as u64 - 1, hash })
    }

    /// What leads from here to the chain of `view`; nothing while that has no head.
    ///
    /// # Errors
    /// If it cannot be told, because no block of both is known.
    pub fn changes(&self, view: &ChainView) -> Result<Vec<Change>, Apart> {
        let (Some(top), Some(head)) = (self.top(), view.head) else { return Ok(Vec::new()) };
        let common = |number: &u64| view.canonical(*number) == self.get(*number);
        let highest = top.number.min(head.number);
        if highest < self.bottom {
            return Err(Apart);
        }
        let fork = (self.bottom..=highest).rev().find(common).ok_or(Apart)?;
        let mut changes = Vec::new();
        for number in (fork + 1..=top.number).rev() {
            let hash = self.get(number).ok_or(Apart)?;
            changes.push(Change::Dropped(Head { number, hash }));
        }
        for number in fork + 1..=head.number {
            let hash = view.canonical(number).ok_or(Apart)?;
            changes.push(Change::Added(Head { number, hash }));
        }
        Ok(changes)
    }

    /// A change has been told; they must come in the order in which they were given.
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
        let at = usize::try_from(number.checked_sub(self.bottom)?).ok()?;
        self.hashes.get(at).copied()
    }
}
