//! The blocks that one connection received: duplicates, gaps and reorgs.

use std::collections::VecDeque;

/// Number of recent blocks among which duplicates are found.
const RECENT_MAX: usize = 256;
/// Number of heights, counted down from the highest, at which a late block can still fill a gap.
const WINDOW: u64 = 1024;

/// The relation of a block to those that the connection received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadEvent {
    /// The block has arrived before.
    Duplicate,
    /// The first block, or a new highest block. Holds the number of skipped heights.
    Next(u64),
    /// A block at a height that was missing.
    OutOfOrder {
        /// True if the gap is not counted.
        is_ignored: bool,
    },
    /// Another block at a height that has one, or a block below the first height or the window.
    Reorg,
}

/// The recent blocks of a connection.
#[derive(Debug, Default)]
pub(super) struct HeadTracker {
    /// Ids of recent blocks.
    recent: VecDeque<u64>,
    /// The first and the highest height.
    range: Option<(u64, u64)>,
    /// Gaps up to this height are not counted.
    ignored_to: u64,
    /// A bit for each height of the window: true if it has a block.
    received: [u64; (WINDOW / 64) as usize],
}

impl HeadTracker {
    /// Adds a block.
    pub(super) fn add(&mut self, number: u64, id: u64) -> HeadEvent {
        // Most duplicates repeat the last block, so the search starts there.
        if self.recent.iter().rev().any(|&recent| recent == id) {
            return HeadEvent::Duplicate;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
        let Some((first, highest)) = self.range else {
            self.range = Some((number, number));
            self.set(number);
            return HeadEvent::Next(0);
        };
        if number > highest {
            let skipped = number - highest - 1;
            (number - skipped.min(WINDOW)..number).for_each(|height| self.clear(height));
            self.range = Some((first, number));
            self.set(number);
            return HeadEvent::Next(skipped);
        }
        if number < first || highest - number >= WINDOW || self.is_set(number) {
            return HeadEvent::Reorg;
        }
        self.set(number);
        HeadEvent::OutOfOrder { is_ignored: number <= self.ignored_to }
    }

    /// Ignores all gaps so far, because they occurred during the warm-up.
    pub(super) fn ignore_gaps(&mut self) {
        self.ignored_to = self.range.map_or(0, |(_, highest)| highest);
    }

    fn set(&mut self, height: u64) {
        let (word, bit) = position(height);
        self.received[word] |= bit;
    }

    fn clear(&mut self, height: u64) {
        let (word, bit) = position(height);
        self.received[word] &= !bit;
    }

    fn is_set(&self, height: u64) -> bool {
        let (word, bit) = position(height);
        self.received[word] & bit != 0
    }
}

/// Returns the word and the bit of a height in the window.
fn position(height: u64) -> (usize, u64) {
    let index = height % WINDOW;
    ((index / 64) as usize, 1 << (index % 64))
}
