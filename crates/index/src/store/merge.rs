//! Merges short posting lists. A sync that follows the chain writes one row per key and block;
//! other syncs write one row per key and 256 blocks. Fewer rows make a search faster.

use super::rows::LIST_BLOCKS_MAX;
use crate::postings::{self, EncodedList, PostingKey, block_and_index};

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
    /// The key and the first position of the row where the next step starts; `None` at the end. It
    /// is the row of the last list, because more rows of that list may follow.
    pub next: Option<(PostingKey, i64)>,
}

/// A list that was merged from one or more rows.
pub(super) struct MergedList {
    key: PostingKey,
    positions: Vec<i64>,
    /// The first positions of all its rows except the first row. These rows are deleted.
    absorbed: Vec<i64>,
}

/// Plans the merges within some rows, which must be added in the order of the table.
pub(super) struct MergePlan {
    /// The key and the first position of the first row.
    first_row: (PostingKey, i64),
    /// The lists to which no further row can be appended.
    closed_lists: Vec<MergedList>,
    /// The list to which the next row may be appended.
    open_list: Option<MergedList>,
    /// The number of rows that were added.
    rows: usize,
}

impl MergedList {
    /// Returns true if a list of this key with these positions can be appended.
    fn accepts(&self, key: PostingKey, positions: &[i64]) -> bool {
        let (Some(own_first), Some(own_last)) = (self.positions.first(), self.positions.last())
        else {
            return false;
        };
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
            return false;
        };
        let blocks = block_and_index(*last).0.abs_diff(block_and_index(*own_first).0);
        // Lists that overlap are damaged, and a merge does not repair them.
        self.key == key && own_last < first && blocks < LIST_BLOCKS_MAX
    }

    /// Returns the rows to delete.
    pub(super) fn absorbed(&self) -> impl Iterator<Item = (PostingKey, i64)> + '_ {
        self.absorbed.iter().map(|first| (self.key, *first))
    }

    /// Encodes the row to update.
    pub(super) fn encode(&self) -> EncodedList {
        let rest = postings::encode_rest(&self.positions);
        EncodedList { key: self.key, first: self.first(), rest }
    }

    fn first(&self) -> i64 {
        self.positions.first().copied().unwrap_or(i64::MAX)
    }
}

impl MergePlan {
    /// Creates a plan for the rows from this row on: its key and first position.
    pub(super) fn starting_at(first_row: (PostingKey, i64)) -> MergePlan {
        MergePlan { first_row, closed_lists: Vec::new(), open_list: None, rows: 0 }
    }

    /// Adds the next row.
    pub(super) fn add(&mut self, key: PostingKey, first: i64, rest: &[u8]) {
        self.rows += 1;
        let positions: Vec<i64> = postings::decode(first, rest).collect();
        match &mut self.open_list {
            Some(list) if list.accepts(key, &positions) => {
                list.absorbed.push(first);
                list.positions.extend(positions);
            }
            open_list => {
                let list = MergedList { key, positions, absorbed: Vec::new() };
                self.closed_lists.extend(open_list.replace(list));
            }
        }
    }

    /// Returns the lists that were merged from several rows, and the result of the step.
    pub(super) fn finish(mut self) -> (Vec<MergedList>, MergeStep) {
        let next = match self.open_list.take() {
            // More rows follow, so the next step reads the open list again together with them. It
            // is not the list that this step started with, because a list has at most one row for
            // each of 256 blocks. If a damaged index has more, the next step starts one row later.
            Some(list) if self.rows == ROWS_PER_STEP => {
                let skipped_rows = i64::from((list.key, list.first()) == self.first_row);
                Some((list.key, list.first().saturating_add(skipped_rows)))
            }
            list => {
                self.closed_lists.extend(list);
                None
            }
        };
        self.closed_lists.retain(|list| !list.absorbed.is_empty());
        let removed = self.closed_lists.iter().map(|list| list.absorbed.len() as u64).sum();
        (self.closed_lists, MergeStep { removed, next })
    }
}
