//! The tables of a PostgreSQL schema and their migrations. Also recognizes a schema that is no
//! index.
//!
//! Tables that are ordered by block are partitioned: each partition holds [`PARTITION_BLOCKS`]
//! blocks and has its own database indexes. The indexes that a writer uses therefore fit in memory,
//! and an old partition can be moved to another disk. The hash tables are not partitioned: a hash
//! does not reveal its block, so a lookup would have to search every partition.

use super::session::{Session, read_value};
use crate::store::error::StoreError;
use crate::store::rows::RENAMES;

/// Number of blocks of a partition: half a year of Ethereum. The database indexes of larger
/// partitions exceed the memory. With smaller partitions, the query planner must exclude many
/// tables for each query.
pub(in crate::store) const PARTITION_BLOCKS: i64 = 1_000_000;

/// The names of all tables.
pub(super) const TABLES: [&str; 8] = [
    "facts",
    "dictionaries",
    "blocks",
    "block_hashes",
    "transactions",
    "transaction_hashes",
    "log_postings",
    "harmony_blocks",
];

/// The tables that are partitioned by block number.
const PARTITIONED_BY_NUMBER: [&str; 2] = ["blocks", "harmony_blocks"];
/// The tables that are partitioned by the position of a transaction.
const PARTITIONED_BY_POSITION: [&str; 2] = ["transactions", "log_postings"];

/// Each migration brings a schema from one version to the next. The last one gives tables and
/// columns their present names. The row `schema` of the table `facts` holds the version. The
/// columns are the same as in a SQLite file. PostgreSQL does not compress columns that are
/// compressed already (<https://www.postgresql.org/docs/current/storage-toast.html>).
const MIGRATIONS: [&str; 2] = [
    "
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
",
    RENAMES,
];

/// The schema version that this program writes.
pub(in crate::store) const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// Locks the schema for its only writer, and creates or migrates the tables.
pub(super) fn set_up_writer(session: &Session) -> Result<(), StoreError> {
    session.lock()?;
    // If the server's machine crashes, the last commits may be lost, but the tables stay
    // consistent. The next sync fetches the lost blocks again.
    session.run("SET synchronous_commit = off")?;
    let version = read_version(session)?;
    if version == Some(SCHEMA_VERSION) {
        return Ok(());
    }
    session.write(|session| {
        if version.is_none() && !schema_exists(session)? {
            session.run(&format!("CREATE SCHEMA {}", session.schema()))?;
        }
        let migrations = MIGRATIONS.get(version.unwrap_or(0) as usize..).unwrap_or_default();
        session.run(&migrations.concat())?;
        session.change(
            "INSERT INTO facts (name, value) VALUES ('schema', $1)
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            &[&SCHEMA_VERSION.to_string()],
        )?;
        Ok(())
    })
}

/// Checks that the schema holds an index.
pub(super) fn set_up_reader(session: &Session) -> Result<(), StoreError> {
    match read_version(session)? {
        None => Err(StoreError::Missing(session.location())),
        Some(version) if version < SCHEMA_VERSION => {
            Err(StoreError::Older { location: session.location(), version })
        }
        Some(_) => Ok(()),
    }
}

fn schema_exists(session: &Session) -> Result<bool, StoreError> {
    let rows =
        session.query("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&session.schema()])?;
    Ok(!rows.is_empty())
}

/// Returns the version of the schema, or `None` if the schema has no tables.
fn read_version(session: &Session) -> Result<Option<i64>, StoreError> {
    let tables = session.query(
        "SELECT relname = 'facts', has_schema_privilege(n.oid, 'USAGE')
         FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
         WHERE nspname = $1 AND relkind IN ('r', 'p', 'v', 'm') ORDER BY 1 DESC LIMIT 1",
        &[&session.schema()],
    )?;
    let foreign_error = |reason: &str| StoreError::Foreign {
        location: session.location(),
        reason: reason.to_owned(),
    };
    let Some(table) = tables.first() else { return Ok(None) };
    if !read_value::<bool>(table, 1)? {
        // Without the privilege USAGE, queries would report that the tables do not exist.
        return Err(session
            .access_denied_error(&format!("permission denied for schema {}", session.schema())));
    }
    if !read_value::<bool>(table, 0)? {
        return Err(foreign_error("a schema with tables of another program"));
    }
    let rows = session.query("SELECT value::text FROM facts WHERE name::text = 'schema'", &[]);
    let rows = match rows {
        Err(StoreError::Server { .. }) => {
            return Err(foreign_error("a table `facts` of another program"));
        }
        rows => rows?,
    };
    let text = rows.first().map(|row| read_value::<String>(row, 0)).transpose()?;
    let version = text.and_then(|text| text.parse::<i64>().ok()).filter(|version| *version > 0);
    let Some(version) = version else {
        return Err(foreign_error("a table `facts` without a schema version"));
    };
    if version > SCHEMA_VERSION {
        return Err(StoreError::Newer {
            location: session.location(),
            version,
            supported: SCHEMA_VERSION,
        });
    }
    Ok(Some(version))
}

/// Returns the number of the partition of a block.
pub(super) fn partition_of(number: u64) -> i64 {
    number as i64 / PARTITION_BLOCKS
}

/// Creates the partition with this number for each partitioned table, unless it exists. Each
/// partition is created as a table of its own and then attached, which does not block readers
/// (<https://www.postgresql.org/docs/current/sql-altertable.html>).
pub(super) fn create_partition(session: &Session, number: i64) -> Result<(), StoreError> {
    let existing_tables = session.query(
        "SELECT 1 FROM pg_class WHERE relnamespace = current_schema()::regnamespace
         AND relname = $1",
        &[&format!("blocks_{number}")],
    )?;
    if !existing_tables.is_empty() {
        return Ok(());
    }
    let blocks = number * PARTITION_BLOCKS..(number + 1) * PARTITION_BLOCKS;
    let first_position = |block: i64| crate::postings::position(block as u64, 0);
    let positions = first_position(blocks.start)..first_position(blocks.end);
    let partition_sql = |table: &&str, range: &std::ops::Range<i64>| {
        format!(
            "CREATE TABLE {table}_{number} (LIKE {table} INCLUDING ALL);
             ALTER TABLE {table} ATTACH PARTITION {table}_{number}
                 FOR VALUES FROM ({}) TO ({});",
            range.start, range.end
        )
    };
    let by_number = PARTITIONED_BY_NUMBER.iter().map(|table| partition_sql(table, &blocks));
    let by_position = PARTITIONED_BY_POSITION.iter().map(|table| partition_sql(table, &positions));
    session.run(&by_number.chain(by_position).collect::<String>())
}
