//! Plans the merging of short posting lists. A posting list holds the positions of the transactions
//! whose logs contain one address or topic. Its key stands for this value (`postings.rs`).
//!
//! A sync that follows the chain writes one row per key and block. Other syncs write one row per
//! key and up to 256 blocks. Fewer rows make a search faster.
//!
//! The rows of a table are read in order. Consecutive rows of a key become one list as long as the
//! list spans at most 256 blocks. The first of these rows is updated, and the other rows are
//! deleted.

use super::rows::LIST_BLOCKS_MAX;
use crate::postings::{self, EncodedList, PostingKey, block_and_index};

#[cfg(test)]
mod tests;

/// Number of rows that one step reads in one transaction. Such a transaction changes a few
/// megabytes and blocks other writers for milliseconds.
pub(super) const ROWS_PER_STEP: usize = 20_000;

/// The result of one step of merging.
#[derive(Debug, Clone, Copy)]
pub struct MergeStep {
    /// The number of removed rows.
    pub removed_rows: u64,
    /// The key and the first position of the row where the next step starts; `None` at the end of
    /// the table. The next step starts with the last list of this step, because more rows may
    /// belong to it.
    pub next_row: Option<(PostingKey, i64)>,
}

/// A list that was merged from one or more rows.
pub(super) struct MergedList {
    key: PostingKey,
    /// All positions of the list.
    positions: Vec<i64>,
    /// The first positions of the rows that are deleted, because their positions were added to the
    /// first row.
    absorbed_rows: Vec<i64>,
}

/// Plans the merges of one step. The rows must be added in the order of the table.
pub(super) struct MergePlan {
    /// The key and the first position of the first row.
    first_row: (PostingKey, i64),
    /// The lists to which no further row can be appended.
    closed_lists: Vec<MergedList>,
    /// The list to which the next row may be appended; `None` before the first row.
    open_list: Option<MergedList>,
    /// The number of rows that were added.
    row_count: usize,
}

impl MergedList {
    /// Returns true if a row of this key with these positions can be appended.
    fn accepts(&self, key: PostingKey, positions: &[i64]) -> bool {
        let (Some(own_first), Some(own_last)) = (self.positions.first(), self.positions.last())
        else {
            return false;
        };
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
            return false;
        };
        let block_distance = block_and_index(*last).0.abs_diff(block_and_index(*own_first).0);
        // Lists that overlap are damaged, and a merge does not repair them.
        self.key == key && own_last < first && block_distance < LIST_BLOCKS_MAX
    }

    /// Returns the rows to delete, each by its key and first position.
    pub(super) fn rows_to_delete(&self) -> impl Iterator<Item = (PostingKey, i64)> + '_ {
        self.absorbed_rows.iter().map(|first| (self.key, *first))
    }

    /// Encodes the row to update.
    pub(super) fn encode(&self) -> EncodedList {
        let rest = postings::encode_rest(&self.positions);
        EncodedList { key: self.key, first: self.first(), rest }
    }

    /// Returns the first position.
    fn first(&self) -> i64 {
        self.positions.first().copied().unwrap_or(i64::MAX)
    }
}

impl MergePlan {
    /// Creates a plan for the rows from `first_row` on: the row with this key and this first
    /// position.
    pub(super) fn starting_at(first_row: (PostingKey, i64)) -> MergePlan {
        MergePlan { first_row, closed_lists: Vec::new(), open_list: None, row_count: 0 }
    }

    /// Adds the next row.
    pub(super) fn add(&mut self, key: PostingKey, first: i64, rest: &[u8]) {
        self.row_count += 1;
        let positions: Vec<i64> = postings::decode(first, rest).collect();
        match &mut self.open_list {
            Some(list) if list.accepts(key, &positions) => {
                list.absorbed_rows.push(first);
                list.positions.extend(positions);
            }
            open_list => {
                let list = MergedList { key, positions, absorbed_rows: Vec::new() };
                self.closed_lists.extend(open_list.replace(list));
            }
        }
    }

    /// Returns the lists that were merged from several rows, and the result of the step.
    pub(super) fn finish(mut self) -> (Vec<MergedList>, MergeStep) {
        let next_row = match self.open_list.take() {
            // More rows follow, which may belong to the open list. So the next step starts with the
            // first row of that list. A list has at most 256 rows, one per block, so this step
            // normally started with an earlier list. In a damaged index, this step may have started
            // with the same list. The next step then starts one position later, because it would
            // otherwise repeat this step forever.
            Some(list) if self.row_count == ROWS_PER_STEP => {
                let skipped_positions = i64::from((list.key, list.first()) == self.first_row);
                Some((list.key, list.first().saturating_add(skipped_positions)))
            }
            list => {
                self.closed_lists.extend(list);
                None
            }
        };
        self.closed_lists.retain(|list| !list.absorbed_rows.is_empty());
        let removed_rows =
            self.closed_lists.iter().map(|list| list.absorbed_rows.len() as u64).sum();
        (self.closed_lists, MergeStep { removed_rows, next_row })
    }
}
