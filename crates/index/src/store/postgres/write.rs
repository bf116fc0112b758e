//! Writes rows of a PostgreSQL schema. A position is a transaction's block number and index in one
//! `i64`. A short hash is the first eight bytes of a hash.

use std::collections::BTreeSet;

use tokio_postgres::types::Type;

use super::Postgres;
use super::schema;
use super::session::{Field, Session, read_hash, read_value};
use crate::postings::{EncodedList, PostingKey, position};
use crate::store::error::StoreError;
use crate::store::interface::WriteRows;
use crate::store::merge::{MergePlan, MergeStep, MergedList, ROWS_PER_STEP};
use crate::store::rows::{
    LIST_BLOCKS_MAX, NewBlock, collect_hash_entries, collect_posting_lists, short_hash, to_signed,
    truncate_rest,
};

impl WriteRows for Postgres {
    fn append(&mut self, blocks: &[NewBlock], finalized: u64) -> Result<(), StoreError> {
        let partitions: BTreeSet<i64> =
            blocks.iter().map(|block| schema::partition_of(block.header.number)).collect();
        let missing_partitions: Vec<i64> =
            partitions.difference(&self.existing_partitions).copied().collect();
        self.session.write(|session| {
            for partition in &missing_partitions {
                schema::create_partition(session, *partition)?;
            }
            insert(session, blocks)?;
            let first = blocks.first().map(|block| block.header.number.to_string());
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
                &[&first, &to_signed(finalized)],
            )
        })?;
        self.existing_partitions.extend(missing_partitions);
        Ok(())
    }

    fn rewind(&mut self, last: u64, keys: &BTreeSet<PostingKey>) -> Result<(), StoreError> {
        let keys: Vec<PostingKey> = keys.iter().copied().collect();
        let (end, last) = (position(last + 1, 0), to_signed(last));
        self.session.write(|session| {
            truncate_lists(session, &keys, end)?;
            let rows = session
                .query("SELECT hash, position FROM transactions WHERE position >= $1", &[&end])?;
            delete_hash_entries(
                session,
                "DELETE FROM transaction_hashes WHERE (short, position) IN
                (SELECT * FROM unnest($1::int8[], $2::int8[]))",
                &rows,
            )?;
            let rows =
                session.query("SELECT hash, number FROM blocks WHERE number > $1", &[&last])?;
            delete_hash_entries(
                session,
                "DELETE FROM block_hashes WHERE (short, number) IN
                (SELECT * FROM unnest($1::int8[], $2::int8[]))",
                &rows,
            )?;
            session.change("DELETE FROM transactions WHERE position >= $1", &[&end])?;
            session.change("DELETE FROM blocks WHERE number > $1", &[&last])?;
            session.change("DELETE FROM harmony_blocks WHERE number > $1", &[&last])?;
            session.change(
                "UPDATE facts SET value = least(value::int8, $1)::text WHERE name = 'finalized'",
                &[&last],
            )
        })?;
        Ok(())
    }

    fn merge_some_postings(&mut self, from: (PostingKey, i64)) -> Result<MergeStep, StoreError> {
        self.session.write(|session| {
            let rows = session.query(
                "SELECT key, first, rest FROM log_postings WHERE (key, first) >= ($1, $2)
                 ORDER BY key, first LIMIT $3",
                &[&from.0, &from.1, &(ROWS_PER_STEP as i64)],
            )?;
            let mut plan = MergePlan::starting_at(from);
            for row in &rows {
                plan.add(read_value(row, 0)?, read_value(row, 1)?, read_value(row, 2)?);
            }
            let (lists, step) = plan.finish();
            let (keys, first_positions): (Vec<PostingKey>, Vec<i64>) =
                lists.iter().flat_map(|list| list.rows_to_delete()).unzip();
            session.change(
                "DELETE FROM log_postings l USING unnest($1::int8[], $2::int8[]) absorbed (key, first)
                 WHERE l.key = absorbed.key AND l.first = absorbed.first",
                &[&keys, &first_positions],
            )?;
            update_lists(session, lists.iter().map(MergedList::encode))?;
            Ok(step)
        })
    }
}

/// Inserts blocks and everything that belongs to them.
fn insert(session: &Session, blocks: &[NewBlock]) -> Result<(), StoreError> {
    let int = |number: u64| Field::Int(number as i64);
    session.copy(
        "COPY blocks (number, hash, time, count, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA, Type::INT8, Type::INT8, Type::BYTEA],
        blocks.iter().map(|block| {
            let header = &block.header;
            let (hash, body) = (Field::Bytes(&header.hash), Field::Bytes(&block.body));
            let count = int(block.transactions.len() as u64);
            [int(header.number), hash, int(header.timestamp), count, body]
        }),
    )?;
    session.copy(
        "COPY block_hashes (short, number) FROM STDIN BINARY",
        [Type::INT8, Type::INT8],
        blocks
            .iter()
            .map(|block| [Field::Int(short_hash(&block.header.hash)), int(block.header.number)]),
    )?;
    session.copy(
        "COPY transactions (position, hash, receipt, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA, Type::BYTEA, Type::BYTEA],
        blocks.iter().flat_map(|block| {
            block.transactions.iter().map(|row| {
                let position = Field::Int(position(block.header.number, row.index));
                let (receipt, body) = (row.receipt.as_ref(), row.body.as_ref());
                [
                    position,
                    Field::Bytes(&row.hash),
                    Field::from_bytes(receipt),
                    Field::from_bytes(body),
                ]
            })
        }),
    )?;
    session.copy(
        "COPY harmony_blocks (number, body) FROM STDIN BINARY",
        [Type::INT8, Type::BYTEA],
        blocks.iter().filter_map(|block| {
            block.harmony.as_ref().map(|body| [int(block.header.number), Field::Bytes(body)])
        }),
    )?;
    session.copy(
        "COPY transaction_hashes (short, position) FROM STDIN BINARY",
        [Type::INT8, Type::INT8],
        collect_hash_entries(blocks)
            .iter()
            .map(|(short, position)| [Field::Int(*short), Field::Int(*position)]),
    )?;
    session.copy(
        "COPY log_postings (key, first, rest) FROM STDIN BINARY",
        [Type::INT8, Type::INT8, Type::BYTEA],
        collect_posting_lists(blocks)
            .iter()
            .map(|list| [Field::Int(list.key), Field::Int(list.first), Field::Bytes(&list.rest)]),
    )
}

/// Deletes the entries of a hash table that lead to these rows. Each row has a hash, and the block
/// number or position to which the hash leads.
fn delete_hash_entries(
    session: &Session,
    delete: &'static str,
    rows: &[tokio_postgres::Row],
) -> Result<(), StoreError> {
    let mut short_hashes = Vec::with_capacity(rows.len());
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        short_hashes.push(short_hash(&read_hash(row, 0)?));
        keys.push(read_value::<i64>(row, 1)?);
    }
    session.change(delete, &[&short_hashes, &keys])?;
    Ok(())
}

/// Deletes the positions from `end` on from the posting lists of these keys.
fn truncate_lists(session: &Session, keys: &[PostingKey], end: i64) -> Result<(), StoreError> {
    session
        .change("DELETE FROM log_postings WHERE key = ANY($1) AND first >= $2", &[&keys, &end])?;
    // If the last remaining list of a key reaches beyond `end`, that list begins at this position
    // or later.
    let earliest = end.saturating_sub(position(LIST_BLOCKS_MAX, 0)).max(0);
    let rows = session.query(
        "SELECT k.key, first, rest FROM unnest($1::int8[]) k (key) CROSS JOIN LATERAL (
             SELECT first, rest FROM log_postings l
             WHERE l.key = k.key AND first >= $2 AND first < $3 ORDER BY first DESC LIMIT 1
         ) last",
        &[&keys, &earliest, &end],
    )?;
    let mut shortened_lists = Vec::new();
    for row in &rows {
        let first = read_value(row, 1)?;
        if let Some(rest) = truncate_rest(first, read_value(row, 2)?, end) {
            shortened_lists.push(EncodedList { key: read_value(row, 0)?, first, rest });
        }
    }
    update_lists(session, shortened_lists)
}

/// Replaces all positions except the first in the rows of these posting lists.
fn update_lists(
    session: &Session,
    lists: impl IntoIterator<Item = EncodedList>,
) -> Result<(), StoreError> {
    let (mut keys, mut first_positions, mut rests) = (Vec::new(), Vec::new(), Vec::new());
    for list in lists {
        keys.push(list.key);
        first_positions.push(list.first);
        rests.push(list.rest);
    }
    if keys.is_empty() {
        return Ok(());
    }
    session.change(
        "UPDATE log_postings l SET rest = n.rest
         FROM unnest($1::int8[], $2::int8[], $3::bytea[]) n (key, first, rest)
         WHERE l.key = n.key AND l.first = n.first",
        &[&keys, &first_positions, &rests],
    )?;
    Ok(())
}
