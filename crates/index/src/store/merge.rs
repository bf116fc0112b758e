//! Merges short posting lists. A sync that follows the chain writes one row per key and block;
//! other syncs write one row per key and 256 blocks. Fewer rows make a search faster.

use super::rows::LIST_BLOCKS_MAX;
use crate::postings::{self, PostingKey, block_and_index};

#[cfg(test)]
mod tests;

/// Number of rows that one transaction reads. It changes a few megabytes and blocks other writers
/// for milliseconds.
pub(super) const ROWS_PER_STEP: usize = 20_000;

/// The result of merging within some rows.
#[derive(Debug, Clone, Copy)]
pub struct MergeStep {
    /// The number of removed rows.
    pub removed: u64,
    /// The row where the next step starts: the last list, since more rows may follow it.
    pub next: Option<(PostingKey, i64)>,
}

/// A list, and the rows that it was read from.
pub(super) struct MergedList {
    key: PostingKey,
    positions: Vec<i64>,
    /// The first positions of the rows after the first, which are deleted.
    absorbed: Vec<i64>,
}

/// Plans the merges within some rows, which must be added in the order of the table.
pub(super) struct MergePlan {
    from: (PostingKey, i64),
    done: Vec<MergedList>,
    open: Option<MergedList>,
    rows: usize,
}

impl MergedList {
    /// Returns true if a list of this key with these positions can be appended.
    fn accepts(&self, key: PostingKey, positions: &[i64]) -> bool {
        let (Some(first), Some(end)) = (self.positions.first(), self.positions.last()) else {
            return false;
        };
        let (Some(next), Some(last)) = (positions.first(), positions.last()) else {
            return false;
        };
        let blocks = block_and_index(*last).0.abs_diff(block_and_index(*first).0);
        // Lists that overlap are damaged, and a merge does not repair them.
        self.key == key && end < next && blocks < LIST_BLOCKS_MAX
    }

    /// Returns the rows to delete.
    pub(super) fn absorbed(&self) -> impl Iterator<Item = (PostingKey, i64)> + '_ {
        self.absorbed.iter().map(|first| (self.key, *first))
    }

    /// Returns the row to update: key, first position, encoded rest.
    pub(super) fn row(&self) -> (PostingKey, i64, Vec<u8>) {
        (self.key, self.first(), postings::encode_rest(&self.positions))
    }

    fn first(&self) -> i64 {
        self.positions.first().copied().unwrap_or(i64::MAX)
    }
}

impl MergePlan {
    /// Returns a plan for the rows from this one on.
    pub(super) fn from(from: (PostingKey, i64)) -> MergePlan {
        MergePlan { from, done: Vec::new(), open: None, rows: 0 }
    }

    /// Takes the next row.
    pub(super) fn add(&mut self, key: PostingKey, first: i64, rest: &[u8]) {
        self.rows += 1;
        let positions: Vec<i64> = postings::decode(first, rest).collect();
        match &mut self.open {
            Some(list) if list.accepts(key, &positions) => {
                list.absorbed.push(first);
                list.positions.extend(positions);
            }
            open => {
                let list = MergedList { key, positions, absorbed: Vec::new() };
                self.done.extend(open.replace(list));
            }
        }
    }

    /// Returns the lists that absorb others, and the result of the step.
    pub(super) fn finish(mut self) -> (Vec<MergedList>, MergeStep) {
        let next = match self.open.take() {
            // More rows follow, so the next step reads the open list again together with them. It
            // is not the list that this step started with, because a list has at most one row for
            // each of 256 blocks. If a damaged index has more, the next step starts one row later.
            Some(list) if self.rows == ROWS_PER_STEP => {
                let again = i64::from((list.key, list.first()) == self.from);
                Some((list.key, list.first().saturating_add(again)))
            }
            list => {
                self.done.extend(list);
                None
            }
        };
        self.done.retain(|list| !list.absorbed.is_empty());
        let removed = self.done.iter().map(|list| list.absorbed.len() as u64).sum();
        (self.done, MergeStep { removed, next })
    }
}
