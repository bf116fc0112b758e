//! Counts notifications of heads (headers of new blocks) and of logs. Compares each notification
//! with the earlier notifications of the same connection, and with the notifications of all other
//! connections.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lab_model::plan::SubscriptionKind;
use lab_model::record::TIME_MAX_NS;

use super::group::Group;
use super::heads::{FirstArrivals, HeadEvent};
use super::logs::{LogEntry, LogTable};
use super::message::{Head, Log, parse_head, parse_log};
use super::subscriber::{Subscriber, Tracker};

/// Counts the notifications of all connections.
pub(super) struct Counter {
    /// End of the warm-up, in nanoseconds since the start of the run.
    measured_from: u64,
    /// First arrivals of blocks.
    first_heads: FirstArrivals,
    /// Tables of recent logs (`logs.rs`). [`Group::log_table`] is an index into this list.
    log_tables: Vec<LogTable>,
    /// Maps the hashes of blocks to ids of 64 bits, which take less memory.
    hasher: RandomState,
}

impl Counter {
    /// Creates a counter. `log_tables` is the number of log tables.
    pub(super) fn new(measured_from: u64, log_tables: usize) -> Counter {
        Counter {
            measured_from,
            first_heads: FirstArrivals::default(),
            log_tables: (0..log_tables).map(|_| LogTable::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Returns true if the warm-up is over at this time.
    pub(super) fn is_measured(&self, now: u64) -> bool {
        now >= self.measured_from
    }

    /// Counts a notification. `index` is the index of its subscriber, and `result` the block header
    /// or log as JSON. Returns false if the notification is invalid.
    pub(super) fn count(
        &mut self,
        subscribers: &mut [Subscriber],
        groups: &mut [Group],
        index: usize,
        result: &[u8],
        now: u64,
    ) -> bool {
        let group = subscribers[index].group_index;
        match groups[group].kind {
            SubscriptionKind::Heads => {
                let Some(head) = parse_head(result) else { return false };
                self.count_head(&mut subscribers[index], &mut groups[group], &head, now);
            }
            SubscriptionKind::Logs => {
                let Some(log) = parse_log(result) else { return false };
                self.count_log(subscribers, groups, index, &log, now);
            }
        }
        true
    }

    /// Counts the notification of a block.
    fn count_head(
        &mut self,
        subscriber: &mut Subscriber,
        group: &mut Group,
        head: &Head<'_>,
        now: u64,
    ) {
        let id = self.hasher.hash_one(&*head.hash);
        let first_arrival = self.first_heads.record(id, now);
        let Tracker::Heads(tracker) = &mut subscriber.tracker else { return };
        let event = tracker.add(head.number, id);
        if !self.is_measured(now) {
            return tracker.ignore_gaps();
        }
        let counts = &mut subscriber.counts;
        counts.notifications += 1;
        match event {
            HeadEvent::Duplicate => {
                counts.duplicates += 1;
                return;
            }
            HeadEvent::Next(skipped) => counts.missing = counts.missing.saturating_add(skipped),
            HeadEvent::OutOfOrder { is_ignored } => {
                counts.out_of_order += 1;
                // When a higher block arrived, this block was counted as missing, except in the
                // warm-up.
                counts.missing = counts.missing.saturating_sub(u64::from(!is_ignored));
            }
            HeadEvent::Reorg => counts.reorged += 1,
        }
        group.delay.saturating_record(now - first_arrival);
        if let Some(age) = head.timestamp.and_then(age_of) {
            group.age.saturating_record(age);
        }
    }

    /// Counts the notification of a log. If the log is new and the table is full, the oldest log
    /// leaves the table and is settled: it is counted as missing on each connection that lacks it.
    fn count_log(
        &mut self,
        subscribers: &mut [Subscriber],
        groups: &mut [Group],
        index: usize,
        log: &Log<'_>,
        now: u64,
    ) {
        let id = self.hasher.hash_one((&*log.block_hash, log.index));
        let is_measured = self.is_measured(now);
        let table_index = groups[subscribers[index].group_index].log_table;
        let table = &mut self.log_tables[table_index];
        if log.is_removed {
            table.withdraw(id);
            let counts = &mut subscribers[index].counts;
            counts.notifications += u64::from(is_measured);
            counts.reorged += u64::from(is_measured);
            return;
        }
        let (entry, settled) = table.find_or_add(id, log.block, now, is_measured);
        if let Some(settled) = settled {
            settle(subscribers, groups, table_index, &settled);
        }
        let subscriber = &mut subscribers[index];
        let Tracker::Logs(tracker) = &mut subscriber.tracker else { return };
        let is_new = tracker.add(&entry);
        if !is_measured {
            return;
        }
        subscriber.counts.notifications += 1;
        subscriber.counts.duplicates += u64::from(!is_new);
        if is_new {
            groups[subscriber.group_index].delay.saturating_record(now - entry.first_arrival);
        }
    }

    /// Settles the logs that are still in a table at the end of the run.
    pub(super) fn finish(&self, subscribers: &mut [Subscriber], groups: &[Group]) {
        for (index, table) in self.log_tables.iter().enumerate() {
            table.entries().for_each(|entry| settle(subscribers, groups, index, entry));
        }
    }
}

/// Settles a log: counts it as missing on each connection that lacks it. `table` is the index of
/// the log's table.
fn settle(subscribers: &mut [Subscriber], groups: &[Group], table: usize, entry: &LogEntry) {
    for subscriber in subscribers {
        if groups[subscriber.group_index].log_table == table
            && let Tracker::Logs(tracker) = &mut subscriber.tracker
        {
            subscriber.counts.missing += u64::from(tracker.settle(entry));
        }
    }
}

/// Returns the age of a block in nanoseconds by the clock of this host. `timestamp` is in seconds
/// since 1970. Returns `None` if the age is negative or longer than histograms can record.
fn age_of(timestamp: u64) -> Option<u64> {
    let created = UNIX_EPOCH.checked_add(Duration::from_secs(timestamp))?;
    let age = SystemTime::now().duration_since(created).ok()?;
    u64::try_from(age.as_nanos()).ok().filter(|age| *age <= TIME_MAX_NS)
}
