//! Finds duplicates, gaps and reorgs among the blocks that a connection received. Also stores when
//! each block first arrived on any connection. A head is the header of a new block, and the height
//! of a block is its number.

use std::collections::{HashMap, VecDeque};

use super::bit_ring::BitRing;

/// Maximum number of recent blocks whose first arrival is stored.
const ARRIVALS_MAX: usize = 8192;

/// Maximum number of stored recent blocks per connection. A new block that equals one of them is a
/// duplicate.
const RECENT_MAX: usize = 256;
/// Size of the window in heights. The window ends at the highest height so far. A late block can
/// fill a gap only within the window.
const WINDOW_HEIGHTS: u64 = 1024;

/// The relation of a block to the blocks that the connection received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadEvent {
    /// The block has arrived before.
    Duplicate,
    /// The first block, or a new highest block. Holds the number of skipped heights.
    Next(u64),
    /// A block at a height that was missing.
    OutOfOrder {
        /// True if the gap was not counted, because it occurred during the warm-up.
        is_ignored: bool,
    },
    /// A second block at the same height, a block below the height of the first block, or a block
    /// below the window of [`WINDOW_HEIGHTS`].
    Reorg,
}

/// The recent blocks of a connection.
#[derive(Debug, Default)]
pub(super) struct HeadTracker {
    /// Ids of recent blocks. The id of a block has 64 bits and is computed from its block hash.
    recent: VecDeque<u64>,
    /// The height of the first block, and the highest height. `None` before the first block.
    range: Option<(u64, u64)>,
    /// Gaps up to this height are not counted.
    ignored_to: u64,
    /// The heights of the window at which a block arrived.
    received: BitRing<{ WINDOW_HEIGHTS as usize / 64 }>,
}

impl HeadTracker {
    /// Adds a block and returns its relation to the earlier blocks.
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
            self.received.set(number);
            return HeadEvent::Next(0);
        };
        if number > highest {
            let skipped = number - highest - 1;
            let first_skipped_in_window = number - skipped.min(WINDOW_HEIGHTS);
            (first_skipped_in_window..number).for_each(|height| self.received.clear(height));
            self.range = Some((first, number));
            self.received.set(number);
            return HeadEvent::Next(skipped);
        }
        if number < first || highest - number >= WINDOW_HEIGHTS || self.received.is_set(number) {
            return HeadEvent::Reorg;
        }
        self.received.set(number);
        HeadEvent::OutOfOrder { is_ignored: number <= self.ignored_to }
    }

    /// Ignores all gaps so far, because they occurred during the warm-up.
    pub(super) fn ignore_gaps(&mut self) {
        self.ignored_to = self.range.map_or(0, |(_, highest)| highest);
    }
}

/// The first arrivals of recent blocks on any connection.
#[derive(Debug, Default)]
pub(super) struct FirstArrivals {
    /// Time of the first arrival of each block, by block id.
    first_times: HashMap<u64, u64>,
    /// Block ids in the order of their first arrival.
    order: VecDeque<u64>,
}

impl FirstArrivals {
    /// Records the arrival of a block. Returns the time of its first arrival, which is `now` for a
    /// new block.
    pub(super) fn record(&mut self, id: u64, now: u64) -> u64 {
        if let Some(&first) = self.first_times.get(&id) {
            return first;
        }
        if self.order.len() == ARRIVALS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.first_times.remove(&oldest);
        }
        self.first_times.insert(id, now);
        self.order.push_back(id);
        now
    }
}
