//! Short lists of logs made long again.

use super::Sqlite;
use crate::places::Key;
use crate::store::StoreError;
use crate::store::merge::{List, Merge, Merged, ROWS_AT_ONCE};

impl Sqlite {
    /// Joins what can be among some rows from this one on, in one transaction.
    pub(in crate::store) fn merge_lists(&mut self, from: (Key, i64)) -> Result<Merged, StoreError> {
        let transaction = self.connection.transaction()?;
        let mut merge = Merge::from(from);
        {
            let mut statement = transaction.prepare_cached(
                "SELECT key, first, others FROM log_places WHERE (key, first) >= (?1, ?2)
                 ORDER BY key, first LIMIT ?3",
            )?;
            let mut rows = statement.query((from.0, from.1, ROWS_AT_ONCE as i64))?;
            while let Some(row) = rows.next()? {
                let others = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
                merge.take(row.get(0)?, row.get(1)?, others);
            }
        }
        let (lists, merged) = merge.end();
        for list in &lists {
            replace(&transaction, list)?;
        }
        transaction.commit()?;
        Ok(merged)
    }
}

fn replace(transaction: &rusqlite::Transaction<'_>, list: &List) -> Result<(), rusqlite::Error> {
    let mut delete =
        transaction.prepare_cached("DELETE FROM log_places WHERE key = ?1 AND first = ?2")?;
    for row in list.gone() {
        delete.execute(row)?;
    }
    transaction
        .prepare_cached("UPDATE log_places SET others = ?3 WHERE key = ?1 AND first = ?2")?
        .execute(list.row())?;
    Ok(())
}
