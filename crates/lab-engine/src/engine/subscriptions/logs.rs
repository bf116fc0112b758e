//! Finds the logs that are missing on a connection.
//!
//! A single connection's logs do not show that a log is missing. So all connections that request
//! the same logs share a [`LogTable`]. A log is missing on a connection if two conditions hold.
//! First, another connection received the log. Second, this connection received a log of an earlier
//! block and a log of a later block.

use std::collections::{HashMap, VecDeque};

use super::bit_ring::BitRing;

/// Maximum number of recent logs in the table. When a log leaves the table, it is settled: it is
/// counted as missing on each connection that lacks it.
const LOGS_MAX: usize = 8192;

/// A recent log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEntry {
    /// Number of the log in the order of first arrivals, from 0.
    pub(super) sequence: u64,
    /// The id of the log: a hash of its block's hash and its index.
    id: u64,
    /// Number of the block that contains the log.
    block: u64,
    /// Time of the first arrival, in nanoseconds since the start of the run.
    pub(super) first_arrival: u64,
    /// True if the log first arrived after the warm-up.
    is_measured: bool,
    /// True if a reorg withdrew the log.
    is_withdrawn: bool,
}

/// The recent logs of all connections that request the same logs.
#[derive(Debug, Default)]
pub(super) struct LogTable {
    /// Oldest first.
    entries: VecDeque<LogEntry>,
    /// Sequence number of each log, by the log's id.
    by_id: HashMap<u64, u64>,
    /// Number of logs so far, including the logs that have left the table.
    log_count: u64,
}

impl LogTable {
    /// Returns the entry of a log. Adds the entry when the log first arrives. Also returns the
    /// oldest entry if it was removed to make room. The caller must settle the removed entry for
    /// each connection before the caller adds the new entry to a tracker.
    pub(super) fn find_or_add(
        &mut self,
        id: u64,
        block: u64,
        now: u64,
        is_measured: bool,
    ) -> (LogEntry, Option<LogEntry>) {
        if let Some(entry) = self.find(id) {
            return (*entry, None);
        }
        let settled = match self.entries.len() {
            LOGS_MAX => self.entries.pop_front(),
            _ => None,
        };
        if let Some(settled) = settled {
            self.by_id.remove(&settled.id);
        }
        let entry = LogEntry {
            sequence: self.log_count,
            id,
            block,
            first_arrival: now,
            is_measured,
            is_withdrawn: false,
        };
        self.log_count += 1;
        self.by_id.insert(id, entry.sequence);
        self.entries.push_back(entry);
        (entry, settled)
    }

    /// Marks a log as withdrawn, so that it is counted as missing on no connection.
    pub(super) fn withdraw(&mut self, id: u64) {
        if let Some(entry) = self.find(id) {
            entry.is_withdrawn = true;
        }
    }

    /// Returns the entry of a log, or `None` if the log is not in the table.
    fn find(&mut self, id: u64) -> Option<&mut LogEntry> {
        let oldest = self.entries.front()?.sequence;
        let sequence = self.by_id.get(&id)?;
        self.entries.get_mut((sequence - oldest) as usize)
    }

    /// Returns all entries.
    pub(super) fn entries(&self) -> impl Iterator<Item = &LogEntry> {
        self.entries.iter()
    }
}

/// The recent logs of one connection.
#[derive(Debug, Default)]
pub(super) struct LogTracker {
    /// Marks the logs of the table that the connection received, by sequence number.
    received: Box<BitRing<{ LOGS_MAX / 64 }>>,
    /// Numbers of the lowest and the highest block with a received log. `None` before the first
    /// log.
    blocks: Option<(u64, u64)>,
}

impl LogTracker {
    /// Adds a received log. Returns true if it is new on this connection.
    pub(super) fn add(&mut self, entry: &LogEntry) -> bool {
        let (lowest, highest) = self.blocks.unwrap_or((entry.block, entry.block));
        self.blocks = Some((lowest.min(entry.block), highest.max(entry.block)));
        let is_new = !self.received.is_set(entry.sequence);
        self.received.set(entry.sequence);
        is_new
    }

    /// Settles a log that leaves the table: clears its mark, and returns true if the log is missing
    /// on this connection.
    pub(super) fn settle(&mut self, entry: &LogEntry) -> bool {
        let is_received = self.received.is_set(entry.sequence);
        self.received.clear(entry.sequence);
        let is_between = self
            .blocks
            .is_some_and(|(lowest, highest)| lowest < entry.block && entry.block < highest);
        !is_received && is_between && entry.is_measured && !entry.is_withdrawn
    }
}
