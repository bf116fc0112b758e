//! A schema in a database of PostgreSQL.
//!
//! Every question to a server is a way there and back, so each is one statement that brings all its
//! rows, or as many as are taken at a time. Who writes holds a lock of its session, which the server
//! drops with the session, however it ends; and each of its transactions asks for that lock again,
//! so that nobody writes who has lost it.

mod audit;
mod fault;
mod read;
mod schema;
mod session;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use self::session::Session;
use super::facts::Held;
use super::location::Server;
use super::{Settings, StoreError};
use crate::pack::Dictionary;

/// A connection to a server.
pub(super) struct Postgres {
    session: Session,
    /// Numbers of the partitions that are known to be there.
    partitions: BTreeSet<i64>,
}

impl Postgres {
    /// Opens an index to write, and makes its tables if they are not there.
    pub(super) fn open(server: &Server, settings: Settings) -> Result<Postgres, StoreError> {
        let session = Session::open(server, settings)?;
        schema::set_up_writer(&session)?;
        Ok(Postgres { session, partitions: BTreeSet::new() })
    }

    /// Opens an index to read; others may write meanwhile.
    pub(super) fn open_to_read(
        server: &Server,
        settings: Settings,
    ) -> Result<Postgres, StoreError> {
        let session = Session::open(server, settings)?;
        schema::set_up_reader(&session)?;
        Ok(Postgres { session, partitions: BTreeSet::new() })
    }

    /// Bytes of its tables, with their indexes and what was too long for a row.
    pub(super) fn disk_bytes(&self) -> Result<u64, StoreError> {
        let row = self.session.one(
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
             WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'",
            &[],
        )?;
        Ok(session::value::<i64>(&row, 0)? as u64)
    }

    /// Makes room of dropped rows, and looks at how values are distributed.
    pub(super) fn vacuum(&self) -> Result<(), StoreError> {
        let tables = schema::TABLES.join(", ");
        self.session.unhurried(|| self.session.run(&format!("VACUUM (ANALYZE) {tables}")))
    }

    pub(super) fn facts(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let rows = self.session.all("SELECT name, value FROM facts", &[])?;
        rows.iter().map(|row| Ok((session::value(row, 0)?, session::value(row, 1)?))).collect()
    }

    pub(super) fn found(
        &mut self,
        facts: &[(&str, String)],
        dictionaries: &[Dictionary],
    ) -> Result<(), StoreError> {
        let (names, values): (Vec<&str>, Vec<&str>) =
            facts.iter().map(|(name, value)| (*name, value.as_str())).unzip();
        let numbers: Vec<i64> = (1..).take(dictionaries.len()).collect();
        let kinds: Vec<i64> = dictionaries.iter().map(|one| one.kind as i64).collect();
        let bytes: Vec<&[u8]> = dictionaries.iter().map(|one| one.bytes.as_slice()).collect();
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

    pub(super) fn change_facts(&mut self, changes: &[(&str, &str)]) -> Result<(), StoreError> {
        let sql = "UPDATE facts SET value = $1 WHERE name = $2";
        self.session.write(|session| {
            for (name, value) in changes {
                session.change(sql, &[value, name])?;
            }
            Ok(())
        })
    }

    pub(super) fn held(&self) -> Result<Option<Held>, StoreError> {
        let rows = self.session.all(
            "SELECT (SELECT value::int8 FROM facts WHERE name = 'first'), number, hash,
                (SELECT value::int8 FROM facts WHERE name = 'finalized')
             FROM blocks ORDER BY number DESC LIMIT 1",
            &[],
        )?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(first) = session::value::<Option<i64>>(row, 0)? else { return Ok(None) };
        let last = session::value(row, 1)?;
        let finalized = session::value(row, 3)?;
        Ok(Some(Held::of(first, last, session::hash(row, 2)?, finalized)))
    }

    pub(super) fn dictionaries(&self) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let all = self.session.all("SELECT kind, bytes FROM dictionaries ORDER BY number", &[])?;
        all.iter().map(|row| Ok((session::value(row, 0)?, session::value(row, 1)?))).collect()
    }
}
