//! Short lists of logs made long again. Following a chain writes a row per key and block; a sync
//! writes one per key and 256 blocks. A search pays for each row that it reads.

use super::{Store, StoreError};
use crate::places::{self, Key, parts};

#[cfg(test)]
mod tests;

/// Blocks that a list may span, from its first to its last: as many as a sync writes at once.
const SPAN: u64 = 256;
/// Rows looked at in one transaction: some megabytes of changes, and a writer that waits for its
/// turn waits for milliseconds.
const ROWS_AT_ONCE: usize = 20_000;

/// A list, and how many rows it was.
struct Merged {
    key: Key,
    places: Vec<i64>,
    /// First places of the rows after the first, which are to go.
    others: Vec<i64>,
}

impl Merged {
    fn of(key: Key, places: Vec<i64>) -> Merged {
        Merged { key, places, others: Vec::new() }
    }

    /// Whether these places follow, near enough.
    fn takes(&self, key: Key, places: &[i64]) -> bool {
        let (Some(first), Some(end)) = (self.places.first(), self.places.last()) else {
            return false;
        };
        let (Some(next), Some(last)) = (places.first(), places.last()) else { return false };
        // Lists that overlap are damaged; that is not for here to mend.
        self.key == key && end < next && parts(*last).0.abs_diff(parts(*first).0) < SPAN
    }
}

impl Store {
    /// Joins the lists of a key that follow each other and together span at most 256 blocks; how
    /// many rows there are fewer. What a search finds is the same. It may be ended at any moment:
    /// each transaction leaves whole lists.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn merge_lists(&mut self) -> Result<u64, StoreError> {
        let mut fewer = 0;
        let mut after = Some((i64::MIN, i64::MIN));
        while let Some(from) = after {
            after = self.merge_some(from, &mut fewer)?;
        }
        Ok(fewer)
    }

    /// Looks at some rows from this one on. Returns with which to go on: the last list that was
    /// begun, since more may follow it.
    fn merge_some(
        &mut self,
        from: (Key, i64),
        fewer: &mut u64,
    ) -> Result<Option<(Key, i64)>, StoreError> {
        let transaction = self.connection.transaction()?;
        let mut done = Vec::new();
        let mut open: Option<Merged> = None;
        let mut rows_read = 0;
        {
            let mut statement = transaction.prepare_cached(
                "SELECT key, first, others FROM log_places WHERE (key, first) >= (?1, ?2)
                 ORDER BY key, first LIMIT ?3",
            )?;
            let mut rows = statement.query((from.0, from.1, ROWS_AT_ONCE as i64))?;
            while let Some(row) = rows.next()? {
                rows_read += 1;
                let (key, first): (Key, i64) = (row.get(0)?, row.get(1)?);
                let others = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
                let places: Vec<i64> = places::places(first, others).collect();
                match &mut open {
                    Some(list) if list.takes(key, &places) => {
                        list.others.push(first);
                        list.places.extend(places);
                    }
                    _ => done.extend(open.replace(Merged::of(key, places))),
                }
            }
        }
        let next = match open {
            // More rows than were read: what is open is looked at again together with them. It is
            // not what was looked at again already, for it has at most a row for each of 256
            // blocks; if the file is damaged and it has, the next step begins a row later.
            Some(list) if rows_read == ROWS_AT_ONCE => {
                let first = list.places.first().copied().unwrap_or(i64::MAX);
                let again = i64::from((list.key, first) == from);
                Some((list.key, first.saturating_add(again)))
            }
            list => {
                done.extend(list);
                None
            }
        };
        for list in done.iter().filter(|list| !list.others.is_empty()) {
            replace(&transaction, list)?;
            *fewer += list.others.len() as u64;
        }
        transaction.commit()?;
        Ok(next)
    }
}

fn replace(transaction: &rusqlite::Transaction<'_>, list: &Merged) -> Result<(), rusqlite::Error> {
    let mut delete =
        transaction.prepare_cached("DELETE FROM log_places WHERE key = ?1 AND first = ?2")?;
    for first in &list.others {
        delete.execute((list.key, first))?;
    }
    transaction
        .prepare_cached("UPDATE log_places SET others = ?3 WHERE key = ?1 AND first = ?2")?
        .execute((list.key, list.places.first(), places::pack(&list.places)))?;
    Ok(())
}
