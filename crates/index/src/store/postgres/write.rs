//! Forward by some blocks, or back to an earlier one.

use std::collections::BTreeSet;

use tokio_postgres::types::Type;

use super::Postgres;
use super::schema;
use super::session::{Field, Session, hash, value};
use crate::places::{Key, place};
use crate::store::StoreError;
use crate::store::merge::{Merge, Merged, ROWS_AT_ONCE};
use crate::store::rows::{NewBlock, SPAN, hash_entries, lists, short, shortened, signed};

impl Postgres {
    pub(in crate::store) fn append(
        &mut self,
        blocks: &[NewBlock],
        finalized: u64,
    ) -> Result<(), StoreError> {
        let parts: BTreeSet<i64> =
            blocks.iter().map(|block| schema::partition_of(block.number)).collect();
        let missing: Vec<i64> = parts.difference(&self.partitions).copied().collect();
        self.session.write(|session| {
            for part in &missing {
                schema::make_partition(session, *part)?;
            }
            insert(session, blocks)?;
            let first = blocks.first().map(|block| block.number.to_string());
            session.change(
                "INSERT INTO facts (name, value)
                 SELECT * FROM (VALUES
                    ('first', $1::text),
                    ('finalized', (SELECT least($2::int8, max(number))::text FROM blocks
                                   HAVING max(number) IS NOT NULL))
                 ) f (name, value)
                 WHERE value IS NOT NULL
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value
                 WHERE facts.name = 'finalized' AND facts.value::int8 < excluded.value::int8",
                &[&first, &signed(finalized)],
            )
        })?;
        self.partitions.extend(missing);
        Ok(())
    }

    pub(in crate::store) fn rewind(
        &mut self,
        last: u64,
        above: i64,
        keys: &BTreeSet<Key>,
    ) -> Result<(), StoreError> {
        let keys: Vec<Key> = keys.iter().copied().collect();
        let last = signed(last);
        self.session.write(|session| {
            shorten_lists(session, &keys, above)?;
            let rows =
                session.all("SELECT hash, place FROM transactions WHERE place >= $1", &[&above])?;
            unlead(
                session,
                "DELETE FROM transaction_hashes WHERE (short, place) IN
                (SELECT * FROM unnest($1::int8[], $2::int8[]))",
                &rows,
            )?;
            let rows =
                session.all("SELECT hash, number FROM blocks WHERE number > $1", &[&last])?;
            unlead(
                session,
                "DELETE FROM block_hashes WHERE (short, number) IN
                (SELECT * FROM unnest($1::int8[], $2::int8[]))",
                &rows,
            )?;
            session.change("DELETE FROM transactions WHERE place >= $1", &[&above])?;
            session.change("DELETE FROM blocks WHERE number > $1", &[&last])?;
            session.change("DELETE FROM harmony_blocks WHERE number > $1", &[&last])
        })?;
        Ok(())
    }

    /// Joins what can be among some rows from this one on, in one transaction.
    pub(in crate::store) fn merge_lists(&mut self, from: (Key, i64)) -> Result<Merged, StoreError> {
        self.session.write(|session| {
            let rows = session.all(
                "SELECT key, first, others FROM log_places WHERE (key, first) >= ($1, $2)
                 ORDER BY key, first LIMIT $3",
                &[&from.0, &from.1, &(ROWS_AT_ONCE as i64)],
            )?;
            let mut merge = Merge::from(from);
            for row in &rows {
                merge.take(value(row, 0)?, value(row, 1)?, value(row, 2)?);
            }
            let (lists, merged) = merge.end();
            let gone: (Vec<Key>, Vec<i64>) = lists.iter().flat_map(|list| list.gone()).unzip();
            session.change(
                "DELETE FROM log_places l USING unnest($1::int8[], $2::int8[]) gone (key, first)
                 WHERE l.key = gone.key AND l.first = gone.first",
                &[&gone.0, &gone.1],
            )?;
            replace_lists(session, lists.iter().map(|list| list.row()))?;
            Ok(merged)
        })
    }
}

fn insert(session: &Session, blocks: &[NewBlock]) -> Result<(), StoreError> {
    let int = |number: u64| Field::Int(number as i64);
    session.copy(
        "COPY blocks (number, hash, time, count, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA, Type::INT8, Type::INT8, Type::BYTEA],
        blocks.iter().map(|block| {
            let (hash, body) = (Field::Bytes(&block.hash), Field::Bytes(&block.body));
            [int(block.number), hash, int(block.time), int(block.count), body]
        }),
    )?;
    session.copy(
        "COPY block_hashes (short, number) FROM STDIN BINARY",
        [Type::INT8, Type::INT8],
        blocks.iter().map(|block| [Field::Int(short(&block.hash)), int(block.number)]),
    )?;
    session.copy(
        "COPY transactions (place, hash, receipt, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA, Type::BYTEA, Type::BYTEA],
        blocks.iter().flat_map(|block| {
            block.items.iter().map(|item| {
                let place = Field::Int(place(block.number, item.index));
                let (receipt, body) = (item.receipt.as_ref(), item.body.as_ref());
                [place, Field::Bytes(&item.hash), Field::of(receipt), Field::of(body)]
            })
        }),
    )?;
    session.copy(
        "COPY harmony_blocks (number, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA],
        blocks.iter().filter_map(|block| {
            block.harmony.as_ref().map(|body| [int(block.number), Field::Bytes(body)])
        }),
    )?;
    session.copy(
        "COPY transaction_hashes (short, place) FROM STDIN BINARY",
        [Type::INT8, Type::INT8],
        hash_entries(blocks).iter().map(|(short, place)| [Field::Int(*short), Field::Int(*place)]),
    )?;
    session.copy(
        "COPY log_places (key, first, others) FROM STDIN BINARY",
        [Type::INT8, Type::INT8, Type::BYTEA],
        lists(blocks).iter().map(|(key, first, others)| {
            [Field::Int(*key), Field::Int(*first), Field::Bytes(others)]
        }),
    )
}

/// Deletes the entries that lead to these rows, hashes and what they lead to.
fn unlead(
    session: &Session,
    delete: &'static str,
    rows: &[tokio_postgres::Row],
) -> Result<(), StoreError> {
    let mut entries = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in rows {
        entries.0.push(short(&hash(row, 0)?));
        entries.1.push(value::<i64>(row, 1)?);
    }
    session.change(delete, &[&entries.0, &entries.1])?;
    Ok(())
}

/// Takes the places from `above` on out of the lists of these keys.
fn shorten_lists(session: &Session, keys: &[Key], above: i64) -> Result<(), StoreError> {
    session
        .change("DELETE FROM log_places WHERE key = ANY($1) AND first >= $2", &[&keys, &above])?;
    let earliest = above.saturating_sub(place(SPAN, 0)).max(0);
    let rows = session.all(
        "SELECT k.key, first, others FROM unnest($1::int8[]) k (key) CROSS JOIN LATERAL (
             SELECT first, others FROM log_places l
             WHERE l.key = k.key AND first >= $2 AND first < $3 ORDER BY first DESC LIMIT 1
         ) last",
        &[&keys, &earliest, &above],
    )?;
    let mut shorter = Vec::new();
    for row in &rows {
        let first = value(row, 1)?;
        if let Some(others) = shortened(first, value(row, 2)?, above) {
            shorter.push((value(row, 0)?, first, others));
        }
    }
    replace_lists(session, shorter)
}

/// Gives rows of `log_places`, by key and first place, other places beside the first.
fn replace_lists(
    session: &Session,
    rows: impl IntoIterator<Item = (Key, i64, Vec<u8>)>,
) -> Result<(), StoreError> {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for (key, first, others) in rows {
        columns.0.push(key);
        columns.1.push(first);
        columns.2.push(others);
    }
    if columns.0.is_empty() {
        return Ok(());
    }
    session.change(
        "UPDATE log_places l SET others = n.others
         FROM unnest($1::int8[], $2::int8[], $3::bytea[]) n (key, first, others)
         WHERE l.key = n.key AND l.first = n.first",
        &[&columns.0, &columns.1, &columns.2],
    )?;
    Ok(())
}
