//! Finds the logs that are missing on a connection.
//!
//! A single connection cannot know that it lacks a log. So all connections that request the same
//! logs share a [`LogTable`]: a log is missing on a connection if another one received it, and if
//! the connection received logs of an earlier and of a later block.

use std::collections::{HashMap, VecDeque};

use super::bit_ring::BitRing;

/// Number of recent logs in the table. Older logs are settled: they are received or missing.
const LOGS_MAX: usize = 8192;

/// A recent log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEntry {
    /// Number of the log in the order of first arrivals.
    pub(super) sequence: u64,
    id: u64,
    /// Number of its block.
    block: u64,
    /// When it first arrived.
    pub(super) first_arrival: u64,
    /// True if it first arrived after the warm-up.
    is_measured: bool,
    /// True if a reorg withdrew it.
    is_withdrawn: bool,
}

/// The recent logs of all connections that request the same logs.
#[derive(Debug, Default)]
pub(super) struct LogTable {
    entries: VecDeque<LogEntry>,
    /// Sequence numbers by id.
    by_id: HashMap<u64, u64>,
    /// Number of logs so far.
    logs: u64,
}

impl LogTable {
    /// Returns the entry of a log, which is new at its first arrival. Also returns the oldest entry
    /// if it had to make room. The caller settles it for each connection first.
    pub(super) fn entry(
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
            sequence: self.logs,
            id,
            block,
            first_arrival: now,
            is_measured,
            is_withdrawn: false,
        };
        self.logs += 1;
        self.by_id.insert(id, entry.sequence);
        self.entries.push_back(entry);
        (entry, settled)
    }

    /// Marks a log as withdrawn, so that it is missing nowhere.
    pub(super) fn withdraw(&mut self, id: u64) {
        if let Some(entry) = self.find(id) {
            entry.is_withdrawn = true;
        }
    }

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
    /// The logs of the table that the connection received, by sequence number.
    received: Box<BitRing<{ LOGS_MAX / 64 }>>,
    /// The lowest and the highest block with a received log.
    blocks: Option<(u64, u64)>,
}

impl LogTracker {
    /// Adds a received log. Returns true if it is new on this connection.
    pub(super) fn add(&mut self, entry: &LogEntry) -> bool {
        let (first, highest) = self.blocks.unwrap_or((entry.block, entry.block));
        self.blocks = Some((first.min(entry.block), highest.max(entry.block)));
        let is_new = !self.received.is_set(entry.sequence);
        self.received.set(entry.sequence);
        is_new
    }

    /// Forgets a log. Returns true if it is missing on this connection.
    pub(super) fn settle(&mut self, entry: &LogEntry) -> bool {
        let is_received = self.received.is_set(entry.sequence);
        self.received.clear(entry.sequence);
        let is_between =
            self.blocks.is_some_and(|(first, last)| first < entry.block && entry.block < last);
        !is_received && is_between && entry.is_measured && !entry.is_withdrawn
    }
}
