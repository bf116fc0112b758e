//! Runs a test in each backend of the store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use test_support::postgres;

use super::{Location, Settings};

/// Returns the PostgreSQL server of all tests, which the first call starts. Returns `None` if
/// PostgreSQL is not installed.
pub(crate) fn server() -> Option<&'static postgres::Postgres> {
    static SERVER: OnceLock<Option<postgres::Postgres>> = OnceLock::new();
    SERVER.get_or_init(postgres::Postgres::start_static).as_ref()
}

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

/// A backend for one test.
pub(crate) struct TestBackend {
    pub(crate) backend: Backend,
    /// The folder of the SQLite files.
    folder: TempDir,
}

impl TestBackend {
    /// Returns the location of a new index. `name` becomes a part of its file name.
    pub(crate) fn location(&self, name: &str) -> Location {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        match self.backend {
            Backend::Sqlite => Location::File(self.folder.path().join(format!("{name}-{count}"))),
            Backend::Postgres => server().unwrap().url(&format!("test{count}")).parse().unwrap(),
        }
    }
}

/// Runs a test in each installed backend.
pub(crate) fn each(test: impl Fn(&TestBackend)) {
    test(&TestBackend { backend: Backend::Sqlite, folder: tempfile::tempdir().unwrap() });
    with_postgres(test);
}

/// Runs a test in PostgreSQL, if it is installed.
pub(crate) fn with_postgres(test: impl FnOnce(&TestBackend)) {
    if server().is_some() {
        test(&TestBackend { backend: Backend::Postgres, folder: tempfile::tempdir().unwrap() });
    }
}

/// Runs SQL in SQLite's dialect, past all checks of the store. Returns the number of changed rows.
pub(crate) fn execute(location: &Location, sql: &str) -> u64 {
    match location {
        Location::File(path) => {
            let connection = rusqlite::Connection::open(path).unwrap();
            connection.execute_batch(sql).unwrap();
            connection.total_changes()
        }
        Location::Server(_) => {
            let sql = sql.replace("x'", "bytea '\\x").replace("AS BLOB", "AS bytea");
            super::open_to_read(location, Settings::default()).unwrap().execute(&sql)
        }
    }
}
