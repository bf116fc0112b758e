//! The PostgreSQL backend: an index in a schema of a database.
//!
//! Every query costs a round trip. Each query is therefore one statement that returns all its rows,
//! or a large batch of rows. A writer holds an advisory lock of its session. The server releases
//! the lock when the session ends in any way. Each transaction of a writer takes the lock again, so
//! a writer that has lost the lock writes nothing.

mod audit;
mod error;
mod read;
mod schema;
mod session;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use self::session::{Session, read_hash, read_value};
use super::error::StoreError;
use super::interface::{Settings, Store};
use super::location::{Location, Server};
use super::metadata;
use crate::compression::Dictionary;
use crate::contents::StoredRange;

/// A connection to a server.
pub(super) struct Postgres {
    session: Session,
    /// The numbers of the table partitions that are known to exist (`postgres/schema.rs`).
    existing_partitions: BTreeSet<i64>,
}

impl Postgres {
    /// Opens an index to write, and creates its tables if they do not exist.
    pub(super) fn open(server: &Server, settings: Settings) -> Result<Postgres, StoreError> {
        let session = Session::open(server, settings)?;
        schema::set_up_writer(&session)?;
        Ok(Postgres { session, existing_partitions: BTreeSet::new() })
    }

    /// Opens an index to read. Another process may write to it meanwhile.
    pub(super) fn open_to_read(
        server: &Server,
        settings: Settings,
    ) -> Result<Postgres, StoreError> {
        let session = Session::open(server, settings)?;
        schema::set_up_reader(&session)?;
        Ok(Postgres { session, existing_partitions: BTreeSet::new() })
    }
}

impl Store for Postgres {
    fn location(&self) -> Location {
        self.session.location()
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        let row = self.session.query_one(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
             WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'",
            &[],
        )?;
        Ok(read_value::<i64>(&row, 0)? as u64)
    }

    fn vacuum(&self) -> Result<(), StoreError> {
        let tables = schema::TABLES.join(", ");
        self.session.without_timeout(|| self.session.run(&format!("VACUUM (ANALYZE) {tables}")))
    }

    fn metadata_rows(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let rows = self.session.query("SELECT name, value FROM facts", &[])?;
        rows.iter().map(|row| Ok((read_value(row, 0)?, read_value(row, 1)?))).collect()
    }

    fn insert_metadata(
        &mut self,
        rows: &[(&str, String)],
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError> {
        let (names, values): (Vec<&str>, Vec<&str>) =
            rows.iter().map(|(name, value)| (*name, value.as_str())).unzip();
        let numbers: Vec<i64> = (1..).take(dictionaries.len()).collect();
        let kinds: Vec<i64> =
            dictionaries.iter().map(|dictionary| dictionary.kind as i64).collect();
        let bytes: Vec<&[u8]> =
            dictionaries.iter().map(|dictionary| dictionary.bytes.as_slice()).collect();
        self.session.write(|session| {
            session.change(
                "INSERT INTO facts (name, value) SELECT * FROM unnest($1::text[], $2::text[])",
                &[&names, &values],
            )?;
            session.change(
                "INSERT INTO dictionaries (number, kind, bytes)
                 SELECT * FROM unnest($1::int8[], $2::int8[], $3::bytea[])",
                &[&numbers, &kinds, &bytes],
            )?;
            Ok(())
        })
    }

    fn update_metadata(&mut self, rows: &[(&str, &str)]) -> Result<(), StoreError> {
        let sql = "UPDATE facts SET value = $1 WHERE name = $2";
        self.session.write(|session| {
            for (name, value) in rows {
                session.change(sql, &[value, name])?;
            }
            Ok(())
        })
    }

    fn dictionary_rows(&self) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let rows =
            self.session.query("SELECT kind, bytes FROM dictionaries ORDER BY number", &[])?;
        rows.iter().map(|row| Ok((read_value(row, 0)?, read_value(row, 1)?))).collect()
    }

    fn stored_range(&self) -> Result<Option<StoredRange>, StoreError> {
        let rows = self.session.query(
            "SELECT (SELECT value::int8 FROM facts WHERE name = 'first'), number, hash,
                (SELECT value::int8 FROM facts WHERE name = 'finalized')
             FROM blocks ORDER BY number DESC LIMIT 1",
            &[],
        )?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(first) = read_value::<Option<i64>>(row, 0)? else { return Ok(None) };
        let (last, finalized) = (read_value(row, 1)?, read_value(row, 3)?);
        Ok(Some(metadata::parse_stored_range(first, last, read_hash(row, 2)?, finalized)))
    }

    #[cfg(test)]
    fn execute(&self, sql: &str) -> u64 {
        self.session.execute(sql)
    }

    #[cfg(test)]
    fn round_trips(&self) -> u64 {
        self.session.round_trips()
    }
}
