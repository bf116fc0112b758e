//! The lists of logs against the logs. Keys are all over the table, blocks are not: so the table is
//! read once in its own order and summed up by stretches of blocks, and so are the logs. Only where
//! sums differ are single entries compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::places::{self, Key, parts};
use crate::reader::ReadError;
use crate::store::{Held, Store, StoreError};

/// Blocks to a stretch: as many as a list has, and few enough that their logs fit in memory.
const STRETCH: u64 = 256;
/// Odd rows that are told.
const ODD_MAX: usize = 20;

/// What a stretch has: how many entries, and the sum of their marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    entries: u64,
    marks: u64,
}

impl Sum {
    fn add(&mut self, key: Key, place: i64) {
        self.entries += 1;
        self.marks = self.marks.wrapping_add(mark(key, place));
    }
}

/// Mixes an entry so that sums of different ones differ (the finalizer of splitmix64: Steele, Lea
/// and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mark(key: Key, place: i64) -> u64 {
    let mut mixed = (key as u64) ^ (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What the table has, by stretch.
#[derive(Debug, Default)]
pub(super) struct Sums {
    stretches: BTreeMap<u64, Sum>,
}

impl Sums {
    /// Reads the table, and tells of its rows what does not depend on logs: that lists are in
    /// order, do not overlap, are whole, and lie within the blocks that are held.
    pub(super) fn of(
        store: &Store,
        held: Held,
        stop: &AtomicBool,
    ) -> Result<(Sums, Vec<String>), ReadError> {
        let mut sums = Sums::default();
        let mut odd = Vec::new();
        let mut before: Option<(Key, i64)> = None;
        store.lists(|row| {
            let mut last = None;
            let mut ordered = before.is_none_or(|(key, end)| key != row.key || end < row.first);
            let (mut inside, mut count) = (true, 0);
            for place in places::places(row.first, row.others) {
                ordered &= last.is_none_or(|last| last < place);
                last = Some(place);
                count += 1;
                let number = parts(place).0;
                if (held.first..=held.last).contains(&number) {
                    sums.stretches.entry(number / STRETCH).or_default().add(row.key, place);
                } else {
                    inside = false;
                }
            }
            let ends = row.others.iter().filter(|byte| **byte < 0x80).count();
            let whole = count == 1 + ends && row.others.last().is_none_or(|byte| *byte < 0x80);
            let number = parts(row.first).0;
            for (fine, what) in [
                (inside, "names blocks that are not held"),
                (ordered, "has places out of order, or that the list before has"),
                (whole, "is cut off"),
            ] {
                if !fine {
                    odd.push(format!(
                        "log_places, key {}: the list from block {number} on {what}",
                        row.key
                    ));
                }
            }
            before = last.map(|last| (row.key, last));
            Ok::<_, ReadError>(odd.len() < ODD_MAX && !stop.load(Ordering::Relaxed))
        })?;
        Ok((sums, odd))
    }

    /// What is left of the table when all blocks were looked at.
    pub(super) fn left(self) -> Vec<(u64, String)> {
        let left = self.stretches.into_iter();
        left.map(|(stretch, sum)| {
            let what = format!("log_places has {} entries, but no block is there", sum.entries);
            (stretch * STRETCH, what)
        })
        .collect()
    }
}

/// The logs of the blocks of one stretch.
#[derive(Debug, Default)]
pub(super) struct Window {
    stretch: Option<u64>,
    entries: BTreeSet<(i64, Key)>,
    spoilt: bool,
}

impl Window {
    /// Whether a block belongs to it.
    pub(super) fn has(&self, number: u64) -> bool {
        self.stretch.is_none_or(|stretch| stretch == number / STRETCH)
    }

    /// A block of it follows.
    pub(super) fn begin(&mut self, number: u64) {
        self.stretch = Some(number / STRETCH);
    }

    /// Some logs of it cannot be read, which is told elsewhere.
    pub(super) fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// Logs with this key are at this place.
    pub(super) fn note(&mut self, key: Key, place: i64) {
        self.entries.insert((place, key));
    }

    /// Compares it with the table, and begins anew. Tells blocks and what is wrong there.
    pub(super) fn close(
        &mut self,
        sums: &mut Sums,
        store: &Store,
        most: usize,
    ) -> Result<Vec<(u64, String)>, StoreError> {
        let Window { stretch, entries, spoilt } = std::mem::take(self);
        let Some(stretch) = stretch else { return Ok(Vec::new()) };
        let listed = sums.stretches.remove(&stretch).unwrap_or_default();
        let mut own = Sum::default();
        entries.iter().for_each(|(place, key)| own.add(*key, *place));
        if spoilt || own == listed {
            return Ok(Vec::new());
        }
        differences(stretch, &entries, store, most)
    }
}

/// Entries that the table has and the logs have not, and the other way around.
fn differences(
    stretch: u64,
    own: &BTreeSet<(i64, Key)>,
    store: &Store,
    most: usize,
) -> Result<Vec<(u64, String)>, StoreError> {
    let mut found = Vec::new();
    let mut lacking = own.clone();
    store.lists(|row| {
        for place in places::places(row.first, row.others) {
            let (number, index) = parts(place);
            if number / STRETCH != stretch || lacking.remove(&(place, row.key)) {
                continue;
            }
            let what = match own.contains(&(place, row.key)) {
                true => "names it twice",
                false => "names it, but it has no such log",
            };
            let key = row.key;
            found.push((number, format!("transaction {index}: log_places, key {key}, {what}")));
        }
        Ok::<_, StoreError>(found.len() < most)
    })?;
    let lacking = lacking.into_iter().take(most.saturating_sub(found.len()));
    found.extend(lacking.map(|(place, key)| {
        let (number, index) = parts(place);
        let what = format!("transaction {index}: log_places, key {key}, does not name it");
        (number, what)
    }));
    Ok(found)
}
