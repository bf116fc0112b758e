//! Tables, and how a schema is known to be ours.
//!
//! What is ordered by block is cut into partitions of [`PARTITION_BLOCKS`] blocks, each with indexes
//! of its own: those that are written to stay small enough for memory, and an old part can be moved
//! to another disk. The tables of hashes are not cut: a hash tells nothing of its block, so each
//! look-up would have to go through every part.

use super::session::{Session, value};
use crate::store::StoreError;

/// Blocks in a partition: half a year of Ethereum. More would make the indexes in use larger than
/// memory, fewer would make many tables, each of which a question must be told not to look at.
pub(in crate::store) const PARTITION_BLOCKS: i64 = 1_000_000;

/// All tables.
pub(super) const TABLES: [&str; 8] = [
    "facts",
    "dictionaries",
    "blocks",
    "block_hashes",
    "transactions",
    "transaction_hashes",
    "log_places",
    "harmony_blocks",
];

/// Tables that are cut by the number of the block, and by the place of a transaction.
const CUT_BY_NUMBER: [&str; 2] = ["blocks", "harmony_blocks"];
const CUT_BY_PLACE: [&str; 2] = ["transactions", "log_places"];

/// Each step brings a schema from the version before to its own; the fact `schema` tells which it
/// has. Columns are as in the file of SQLite. What is packed already is not packed again
/// (<https://www.postgresql.org/docs/current/storage-toast.html>).
const STEPS: [&str; 1] = ["
    CREATE TABLE facts (name text PRIMARY KEY, value text NOT NULL);
    CREATE TABLE dictionaries (number int8 PRIMARY KEY, kind int8 NOT NULL, bytes bytea NOT NULL);
    CREATE TABLE blocks (
        number int8 PRIMARY KEY, time int8 NOT NULL, count int8 NOT NULL, hash bytea NOT NULL,
        body bytea NOT NULL
    ) PARTITION BY RANGE (number);
    CREATE TABLE block_hashes (short int8, number int8, PRIMARY KEY (short, number));
    CREATE TABLE transactions (
        place int8 PRIMARY KEY, hash bytea NOT NULL, receipt bytea, body bytea
    ) PARTITION BY RANGE (place);
    CREATE TABLE transaction_hashes (short int8, place int8, PRIMARY KEY (short, place));
    CREATE TABLE log_places (
        key int8, first int8, others bytea NOT NULL, PRIMARY KEY (key, first)
    ) PARTITION BY RANGE (first);
    CREATE TABLE harmony_blocks (number int8 PRIMARY KEY, body bytea NOT NULL)
        PARTITION BY RANGE (number);
    ALTER TABLE blocks ALTER body SET STORAGE EXTERNAL;
    ALTER TABLE transactions ALTER receipt SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL;
    ALTER TABLE log_places ALTER others SET STORAGE EXTERNAL;
    ALTER TABLE harmony_blocks ALTER body SET STORAGE EXTERNAL;
"];

/// The version that this program writes.
pub(in crate::store) const KNOWN: i64 = STEPS.len() as i64;

/// Takes the place of the one writer, and makes the tables or brings them up to date.
pub(super) fn set_up_writer(session: &Session) -> Result<(), StoreError> {
    session.lock()?;
    // As with a file: the last commits may be lost when the server's machine dies, never
    // consistency, and what is lost is synced again.
    session.run("SET synchronous_commit = off")?;
    let found = version(session)?;
    if found == Some(KNOWN) {
        return Ok(());
    }
    session.write(|session| {
        if found.is_none() && !exists(session)? {
            session.run(&format!("CREATE SCHEMA {}", session.schema()))?;
        }
        let todo = STEPS.get(found.unwrap_or(0) as usize..).unwrap_or_default();
        session.run(&todo.concat())?;
        session.change(
            "INSERT INTO facts (name, value) VALUES ('schema', $1)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            &[&KNOWN.to_string()],
        )?;
        Ok(())
    })
}

/// Looks whether there is something to read.
pub(super) fn set_up_reader(session: &Session) -> Result<(), StoreError> {
    match version(session)? {
        None => Err(StoreError::Missing(session.at())),
        Some(found) if found < KNOWN => Err(StoreError::Older { at: session.at(), found }),
        Some(_) => Ok(()),
    }
}

fn exists(session: &Session) -> Result<bool, StoreError> {
    let rows =
        session.all("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&session.schema()])?;
    Ok(!rows.is_empty())
}

/// The version of the schema; none if there is nothing in it.
fn version(session: &Session) -> Result<Option<i64>, StoreError> {
    let tables = session.all(
        "SELECT relname = 'facts', has_schema_privilege(n.oid, 'USAGE') FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
         WHERE nspname = $1 AND relkind IN ('r', 'p', 'v', 'm') ORDER BY 1 DESC LIMIT 1",
        &[&session.schema()],
    )?;
    let foreign = |why: &str| StoreError::Foreign { at: session.at(), why: why.to_owned() };
    let Some(first) = tables.first() else { return Ok(None) };
    if !value::<bool>(first, 1)? {
        // Its tables would seem not to be there.
        return Err(
            session.not_allowed(&format!("permission denied for schema {}", session.schema()))
        );
    }
    if !value::<bool>(first, 0)? {
        return Err(foreign("a schema with tables of another program"));
    }
    let told = session.all("SELECT value::text FROM facts WHERE name::text = 'schema'", &[]);
    let told = match told {
        Err(StoreError::Server { .. }) => {
            return Err(foreign("a table `facts` of another program"));
        }
        told => told?,
    };
    let text = told.first().map(|row| value::<String>(row, 0)).transpose()?;
    let found = text.and_then(|text| text.parse::<i64>().ok()).filter(|found| *found > 0);
    let Some(found) = found else {
        return Err(foreign("a table `facts` that does not tell its schema"));
    };
    if found > KNOWN {
        return Err(StoreError::Newer { at: session.at(), found, known: KNOWN });
    }
    Ok(Some(found))
}

/// The number of the partition of a block.
pub(super) fn partition_of(number: u64) -> i64 {
    number as i64 / PARTITION_BLOCKS
}

/// Makes the partitions with this number, if they are not there. They are made apart and attached,
/// which holds up nobody who reads
/// (<https://www.postgresql.org/docs/current/sql-altertable.html>).
pub(super) fn make_partition(session: &Session, number: i64) -> Result<(), StoreError> {
    let there = session.all(
        "SELECT 1 FROM pg_class WHERE relnamespace = current_schema()::regnamespace
         AND relname = $1",
        &[&format!("blocks_{number}")],
    )?;
    if !there.is_empty() {
        return Ok(());
    }
    let blocks = number * PARTITION_BLOCKS..(number + 1) * PARTITION_BLOCKS;
    let place = |number: i64| crate::places::place(number as u64, 0);
    let places = place(blocks.start)..place(blocks.end);
    let attach = |table: &&str, range: &std::ops::Range<i64>| {
        format!(
            "CREATE TABLE {table}_{number} (LIKE {table} INCLUDING ALL);
             ALTER TABLE {table} ATTACH PARTITION {table}_{number}
                 FOR VALUES FROM ({}) TO ({});",
            range.start, range.end
        )
    };
    let by_number = CUT_BY_NUMBER.iter().map(|table| attach(table, &blocks));
    let by_place = CUT_BY_PLACE.iter().map(|table| attach(table, &places));
    session.run(&by_number.chain(by_place).collect::<String>())
}
