//! Compares the posting lists with the logs. A posting is a pair of a key and a position. The key
//! stands for an address or a topic. The position names a transaction whose logs contain that
//! value.
//!
//! The table of posting lists is ordered by key, but the logs are ordered by block. The audit
//! therefore works with checksums and segments. A segment is a fixed number of consecutive blocks.
//! The audit reads the table once in its order, and adds up the checksums of the postings of each
//! segment. Then it adds up the checksums of the logs' postings in the same way. Single postings
//! are compared only if the sums of a segment differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Finding;
use crate::contents::StoredRange;
use crate::postings::{self, PostingKey, block_and_index};
use crate::store::{PostingListRow, Store, StoreError};

/// Number of blocks of a segment. A posting list spans at most this many blocks, and the postings
/// of one segment fit in memory.
const SEGMENT_BLOCKS: u64 = 256;
/// Maximum number of damaged lists to report. Reading the table ends at this number.
const DAMAGED_MAX: usize = 20;

/// The number of postings of a segment, and the sum of their checksums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    checksum: u64,
}

impl Sum {
    fn add(&mut self, key: PostingKey, position: i64) {
        self.count += 1;
        self.checksum = self.checksum.wrapping_add(checksum(key, position));
    }
}

/// Returns the checksum of a posting. It is a hash, so that sums of different postings differ (the
/// finalizer of splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
fn checksum(key: PostingKey, position: i64) -> u64 {
    let mut mixed = (key as u64) ^ (position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The sums of the table of posting lists by segment.
#[derive(Debug, Default)]
pub(super) struct SegmentSums {
    /// The sums by the number of the segment.
    segments: BTreeMap<u64, Sum>,
}

impl SegmentSums {
    /// Reads the table. Also returns findings for damaged lists: lists that are out of order,
    /// overlap, are truncated, or contain blocks outside the stored range.
    pub(super) fn read(
        store: &dyn Store,
        range: StoredRange,
        stop: &AtomicBool,
    ) -> Result<(SegmentSums, Vec<Finding>), StoreError> {
        let mut sums = SegmentSums::default();
        let mut damaged = Vec::new();
        let mut previous_end: Option<(PostingKey, i64)> = None;
        store.visit_posting_lists(&mut |row| {
            sums.add(row, range, &mut previous_end, &mut damaged);
            damaged.len() < DAMAGED_MAX && !stop.load(Ordering::Relaxed)
        })?;
        Ok((sums, damaged))
    }

    /// Adds the postings of a list to the sums, and checks the list. `previous_end` is the key and
    /// the last position of the previous list; `None` for the first list.
    fn add(
        &mut self,
        row: PostingListRow<'_>,
        range: StoredRange,
        previous_end: &mut Option<(PostingKey, i64)>,
        damaged: &mut Vec<Finding>,
    ) {
        let mut last = None;
        let mut is_ordered =
            previous_end.is_none_or(|(key, end)| key != row.key || end < row.first);
        let (mut is_inside, mut count) = (true, 0);
        for position in postings::decode(row.first, row.rest) {
            is_ordered &= last.is_none_or(|last| last < position);
            last = Some(position);
            count += 1;
            let number = block_and_index(position).0;
            if (range.first..=range.last).contains(&number) {
                let segment = self.segments.entry(number / SEGMENT_BLOCKS).or_default();
                segment.add(row.key, position);
            } else {
                is_inside = false;
            }
        }
        // The last byte of each LEB128 number is below 0x80.
        let varint_ends = row.rest.iter().filter(|byte| **byte < 0x80).count();
        let is_complete =
            count == 1 + varint_ends && row.rest.last().is_none_or(|byte| *byte < 0x80);
        let (key, number) = (row.key, block_and_index(row.first).0);
        for (passed, description) in [
            (is_inside, "contains blocks outside the index"),
            (is_ordered, "is out of order, or overlaps the list before"),
            (is_complete, "is truncated"),
        ] {
            if !passed {
                let description = format!(
                    "log_postings, key {key}: the list from block {number} on {description}"
                );
                damaged.push(Finding { block: None, description });
            }
        }
        *previous_end = last.map(|last| (row.key, last));
    }

    /// Returns findings for the segments without any audited block.
    pub(super) fn into_dangling(self) -> Vec<Finding> {
        let segments = self.segments.into_iter();
        let dangling = segments.map(|(segment, sum)| {
            let description = format!("log_postings has {} entries for missing blocks", sum.count);
            Finding::in_block(segment * SEGMENT_BLOCKS, description)
        });
        dangling.collect()
    }
}

/// The postings of one segment's logs.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// The number of the segment; `None` before its first block.
    number: Option<u64>,
    /// The postings, each a position and a key.
    postings: BTreeSet<(i64, PostingKey)>,
    /// True if the comparison with the table is skipped.
    is_skipped: bool,
}

impl Segment {
    /// Returns true if a block belongs to the segment, or if the segment has no block yet.
    pub(super) fn contains(&self, block: u64) -> bool {
        self.number.is_none_or(|number| number == block / SEGMENT_BLOCKS)
    }

    /// Begins a block of the segment.
    pub(super) fn begin_block(&mut self, block: u64) {
        self.number = Some(block / SEGMENT_BLOCKS);
    }

    /// Skips the comparison of this segment. Call this function if some logs of the segment are
    /// missing or unreadable. Other findings report such logs.
    pub(super) fn skip_comparison(&mut self) {
        self.is_skipped = true;
    }

    /// Adds a posting of a log.
    pub(super) fn add(&mut self, key: PostingKey, position: i64) {
        self.postings.insert((position, key));
    }

    /// Ends the segment, and returns findings for its differences from the table. The search for
    /// differences stops after `limit` findings. The next block begins a new segment.
    pub(super) fn finish(
        &mut self,
        sums: &mut SegmentSums,
        store: &dyn Store,
        limit: usize,
    ) -> Result<Vec<Finding>, StoreError> {
        let Segment { number, postings, is_skipped } = std::mem::take(self);
        let Some(segment) = number else { return Ok(Vec::new()) };
        let table_sum = sums.segments.remove(&segment).unwrap_or_default();
        let mut log_sum = Sum::default();
        postings.iter().for_each(|(position, key)| log_sum.add(*key, *position));
        if is_skipped || log_sum == table_sum {
            return Ok(Vec::new());
        }
        compare_postings(segment, &postings, store, limit)
    }
}

/// Returns findings for the postings that only the table or only the logs have.
fn compare_postings(
    segment: u64,
    log_postings: &BTreeSet<(i64, PostingKey)>,
    store: &dyn Store,
    limit: usize,
) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let mut missing = log_postings.clone();
    store.visit_posting_lists(&mut |row| {
        let key = row.key;
        for position in postings::decode(row.first, row.rest) {
            let (number, index) = block_and_index(position);
            if number / SEGMENT_BLOCKS != segment || missing.remove(&(position, key)) {
                continue;
            }
            let description = match log_postings.contains(&(position, key)) {
                true => "lists it twice",
                false => "lists it, but it has no such log",
            };
            let description =
                format!("transaction {index}: log_postings, key {key}, {description}");
            findings.push(Finding::in_block(number, description));
        }
        findings.len() < limit
    })?;
    let missing = missing.into_iter().take(limit.saturating_sub(findings.len()));
    findings.extend(missing.map(|(position, key)| {
        let (number, index) = block_and_index(position);
        let description = format!("transaction {index}: log_postings, key {key}, does not list it");
        Finding::in_block(number, description)
    }));
    Ok(findings)
}
