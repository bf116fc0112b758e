//! Short lists of logs made long again. Following a chain writes a row per key and block; a sync
//! writes one per key and 256 blocks. A search pays for each row that it reads.

use super::rows::SPAN;
use crate::places::{self, Key, parts};

#[cfg(test)]
mod tests;

/// Rows looked at in one transaction: some megabytes of changes, and a writer that waits for its
/// turn waits for milliseconds.
pub(super) const ROWS_AT_ONCE: usize = 20_000;

/// What became of some rows.
pub(super) struct Merged {
    /// How many rows there are fewer.
    pub(super) joined: u64,
    /// The row to go on with: the last list that was begun, since more may follow it.
    pub(super) next: Option<(Key, i64)>,
}

/// A list, and the rows that it was.
pub(super) struct List {
    key: Key,
    places: Vec<i64>,
    /// First places of the rows after the first, which are to go.
    others: Vec<i64>,
}

/// What is to be done with some rows, read in their order.
pub(super) struct Merge {
    from: (Key, i64),
    done: Vec<List>,
    open: Option<List>,
    rows: usize,
}

impl List {
    /// Whether these places follow, near enough.
    fn takes(&self, key: Key, places: &[i64]) -> bool {
        let (Some(first), Some(end)) = (self.places.first(), self.places.last()) else {
            return false;
        };
        let (Some(next), Some(last)) = (places.first(), places.last()) else { return false };
        // Lists that overlap are damaged; that is not for here to mend.
        self.key == key && end < next && parts(*last).0.abs_diff(parts(*first).0) < SPAN
    }

    /// The rows that are to go.
    pub(super) fn gone(&self) -> impl Iterator<Item = (Key, i64)> + '_ {
        self.others.iter().map(|first| (self.key, *first))
    }

    /// The row that takes them in: key, first place, the others.
    pub(super) fn row(&self) -> (Key, i64, Vec<u8>) {
        let first = self.places.first().copied().unwrap_or(i64::MAX);
        (self.key, first, places::pack(&self.places))
    }
}

impl Merge {
    /// Begins with the rows from this one on.
    pub(super) fn from(from: (Key, i64)) -> Merge {
        Merge { from, done: Vec::new(), open: None, rows: 0 }
    }

    /// Takes the next row.
    pub(super) fn take(&mut self, key: Key, first: i64, others: &[u8]) {
        self.rows += 1;
        let places: Vec<i64> = places::places(first, others).collect();
        match &mut self.open {
            Some(list) if list.takes(key, &places) => {
                list.others.push(first);
                list.places.extend(places);
            }
            open => {
                let list = List { key, places, others: Vec::new() };
                self.done.extend(open.replace(list));
            }
        }
    }

    /// The lists that take in others, and what comes of it.
    pub(super) fn end(mut self) -> (Vec<List>, Merged) {
        let next = match self.open.take() {
            // More rows than were read: what is open is looked at again together with them. It is
            // not what was looked at again already, for it has at most a row for each of 256
            // blocks; if the index is damaged and it has, the next step begins a row later.
            Some(list) if self.rows == ROWS_AT_ONCE => {
                let first = list.places.first().copied().unwrap_or(i64::MAX);
                let again = i64::from((list.key, first) == self.from);
                Some((list.key, first.saturating_add(again)))
            }
            list => {
                self.done.extend(list);
                None
            }
        };
        self.done.retain(|list| !list.others.is_empty());
        let joined = self.done.iter().map(|list| list.others.len() as u64).sum();
        (self.done, Merged { joined, next })
    }
}
