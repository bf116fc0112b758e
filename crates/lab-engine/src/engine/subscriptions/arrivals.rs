//! First arrivals: when a block first arrived on any connection.

use std::collections::{HashMap, VecDeque};

/// Number of recent blocks whose first arrival is stored.
const BLOCKS_MAX: usize = 8192;

/// The first arrivals of recent blocks.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    first: HashMap<u64, u64>,
    /// Ids in the order of their first arrival.
    order: VecDeque<u64>,
}

impl Arrivals {
    /// Returns the time of the first arrival of a block, which is `now` for a new one.
    pub(super) fn first(&mut self, id: u64, now: u64) -> u64 {
        if let Some(&first) = self.first.get(&id) {
            return first;
        }
        if self.order.len() == BLOCKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.first.remove(&oldest);
        }
        self.first.insert(id, now);
        self.order.push_back(id);
        now
    }
}
