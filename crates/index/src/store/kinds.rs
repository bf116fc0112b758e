//! Every kind of place that keeps an index, for tests that must hold in all of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use super::{Kept, Location, Store};

#[path = "../../../weir/tests/support/postgres.rs"]
mod postgres;
#[path = "../../../weir/tests/support/programs.rs"]
mod programs;

/// The server of all tests; none where it cannot be had.
fn server() -> Option<&'static postgres::Postgres> {
    static SERVER: OnceLock<Option<postgres::Postgres>> = OnceLock::new();
    SERVER.get_or_init(postgres::Postgres::for_all).as_ref()
}

/// A kind of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file of SQLite.
    File,
    /// A schema of PostgreSQL.
    Server,
}

/// Where a test keeps its indexes.
pub(crate) struct Kinds {
    pub(crate) kind: Kind,
    folder: TempDir,
}

impl Kinds {
    /// Where a new index is.
    pub(crate) fn at(&self, name: &str) -> Location {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        match self.kind {
            Kind::File => Location::File(self.folder.path().join(format!("{name}-{count}"))),
            Kind::Server => server().unwrap().url(&format!("test{count}")).parse().unwrap(),
        }
    }
}

/// Runs a test with each kind that can be had.
pub(crate) fn each(test: impl Fn(&Kinds)) {
    test(&Kinds { kind: Kind::File, folder: tempfile::tempdir().unwrap() });
    if server().is_some() {
        test(&Kinds { kind: Kind::Server, folder: tempfile::tempdir().unwrap() });
    }
}

/// Runs a test with a server, if one can be had.
pub(crate) fn with_server(test: impl FnOnce(&Kinds)) {
    if server().is_some() {
        test(&Kinds { kind: Kind::Server, folder: tempfile::tempdir().unwrap() });
    }
}

/// Changes what is kept by SQL as SQLite writes it, past all checks; how many rows.
pub(crate) fn change(at: &Location, sql: &str) -> u64 {
    match at {
        Location::File(path) => {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.execute_batch(sql).unwrap();
            connection.total_changes()
        }
        Location::Server(_) => {
            let sql = sql.replace("x'", "bytea '\\x").replace("AS BLOB", "AS bytea");
            let store = Store::open_to_read(at, super::Settings::default()).unwrap();
            let Kept::Postgres(postgres) = &store.kept else { unreachable!() };
            postgres.execute(&sql)
        }
    }
}

/// Ways to the server that a store has gone.
pub(crate) fn trips(store: &Store) -> u64 {
    match &store.kept {
        Kept::Sqlite(_) => 0,
        Kept::Postgres(postgres) => postgres.trips(),
    }
}
