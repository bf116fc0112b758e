//! A session with a PostgreSQL server, in which every wait has a timeout.
//!
//! The client library is asynchronous. It runs on the calling thread while a function of the
//! session waits for a response. A timeout ends the session, because a late response would
//! otherwise be read as the response to the next query.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error;
use crate::store::error::StoreError;
use crate::store::interface::Settings;
use crate::store::location::{Location, Server};

/// Timeout to connect and authenticate, unless the URL sets another timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout to release the lock when a session ends. The client also adds this time to the timeout
/// of a query, so that the server's own timeout comes first.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a new writer waits for the lock. The server needs some time to notice the end
/// of a killed writer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// TCP keepalive of both sides: idle time before the first probe, time between probes, and number
/// of probes. Keepalive detects a connection whose other side is gone.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// The first of the two numbers that identify an advisory lock of Weir: `weir` in ASCII.
const LOCK_CLASS: i32 = 0x7765_6972;

/// The parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// An open session.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
    server: Server,
    /// Timeout of one query; `None` for no timeout.
    query_timeout: Cell<Option<Duration>>,
    /// Prepared statements by their text.
    statements: RefCell<HashMap<&'static str, Statement>>,
    /// True if the next query begins a snapshot.
    begins_snapshot: Cell<bool>,
    /// True if the session holds the writer's lock.
    is_locked: Cell<bool>,
    /// True if the connection was lost, or closed after a timeout.
    is_broken: Cell<bool>,
    /// Number of responses that the session has waited for.
    round_trips: Cell<u64>,
}

impl Session {
    /// Connects to a server.
    pub(super) fn open(server: &Server, settings: Settings) -> Result<Session, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| error::unreachable_error(server, &error.to_string()))?;
        let mut config = server.client.clone();
        let timeout = *config.get_connect_timeout().unwrap_or(&CONNECT_TIMEOUT);
        config.connect_timeout(timeout);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(settings.query_timeout);
        }
        let (idle, interval, retries) = KEEPALIVE;
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        let connect = async {
            // The connection is a separate task, which runs while a query waits.
            match &server.tls {
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    tokio::spawn(connection);
                    Ok(client)
                }
                Some(tls) => {
                    let tls = MakeRustlsConnect::new((**tls).clone());
                    let (client, connection) = config.connect(tls).await?;
                    tokio::spawn(connection);
                    Ok(client)
                }
            }
        };
        let connection_result =
            runtime.block_on(async { tokio::time::timeout(timeout, connect).await });
        let client = match connection_result {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(error::from_client(server, &error)),
            Err(_) => {
                return Err(error::unreachable_error(
                    server,
                    &error::timeout_message("connecting", timeout),
                ));
            }
        };
        let session = Session {
            runtime,
            client,
            server: server.clone(),
            query_timeout: Cell::new(Some(settings.query_timeout)),
            statements: RefCell::default(),
            begins_snapshot: Cell::new(false),
            is_locked: Cell::new(false),
            is_broken: Cell::new(false),
            round_trips: Cell::new(0),
        };
        session.set_up(settings)?;
        Ok(session)
    }

    /// Sends the settings of the session to the server.
    fn set_up(&self, settings: Settings) -> Result<(), StoreError> {
        let (idle, interval, retries) = KEEPALIVE;
        self.run(&format!(
            "SET search_path = {schema};
             SET statement_timeout = {query_timeout};
             SET tcp_keepalives_idle = {idle};
             SET tcp_keepalives_interval = {interval};
             SET tcp_keepalives_count = {retries};
             -- Queries look up a few rows by keys. Their plans are made once, and do not depend on
             -- whether the server has statistics.
             SET plan_cache_mode = force_generic_plan;
             SET enable_seqscan = off;
             SET jit = off",
            schema = self.schema(),
            query_timeout = settings.query_timeout.as_millis(),
            idle = idle.as_secs(),
            interval = interval.as_secs(),
        ))
    }

    /// Returns the location of the index.
    pub(super) fn location(&self) -> Location {
        Location::Server(Box::new(self.server.clone()))
    }

    /// Returns the error for a user without a privilege.
    pub(super) fn access_denied_error(&self, reason: &str) -> StoreError {
        error::access_denied_error(&self.server, reason.to_owned())
    }

    /// Returns the name of the schema, which needs no quotes.
    pub(super) fn schema(&self) -> &str {
        &self.server.schema
    }

    /// Returns the number of round trips so far.
    #[cfg(test)]
    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.get()
    }

    /// Runs SQL without any check and returns the number of changed rows, or 0 for several
    /// statements.
    #[cfg(test)]
    pub(super) fn execute(&self, sql: &str) -> u64 {
        if sql.contains(';') {
            self.run(sql).unwrap();
            return 0;
        }
        self.wait(self.client.execute(sql, &[])).unwrap()
    }

    /// Takes the writer's lock, which the server releases when the session ends.
    pub(super) fn lock(&self) -> Result<(), StoreError> {
        self.run(&format!(
            "SET lock_timeout = {}; SELECT pg_advisory_lock({}); SET lock_timeout = 0",
            LOCK_TIMEOUT.as_millis(),
            self.lock_key(),
        ))?;
        self.is_locked.set(true);
        Ok(())
    }

    /// Returns the two numbers of the lock, as SQL. The database may hold several indexes, so the
    /// second number identifies the schema.
    fn lock_key(&self) -> String {
        format!("{LOCK_CLASS}, hashtext('{}')", self.schema())
    }

    /// Begins a snapshot. The statement that begins it is sent together with the next query. This
    /// saves a round trip.
    pub(super) fn begin_snapshot(&self) {
        self.begins_snapshot.set(true);
    }

    /// Ends the snapshot.
    pub(super) fn end_snapshot(&self) -> Result<(), StoreError> {
        if self.begins_snapshot.replace(false) {
            return Ok(());
        }
        self.run("COMMIT")
    }

    /// Makes changes in one transaction, which takes the writer's lock again. If a connection
    /// pooler has moved the writer to another session, the previous session still holds the lock.
    /// The method then fails and writes nothing.
    pub(super) fn write<T>(
        &self,
        make_changes: impl FnOnce(&Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if !self.is_locked.get() {
            let reason = "it was opened read-only".to_owned();
            return Err(StoreError::ReadOnly(reason));
        }
        let sql = format!("SELECT pg_try_advisory_xact_lock({})", self.lock_key());
        let (_, lock_row) = self.wait(async {
            tokio::try_join!(self.client.batch_execute("BEGIN"), self.client.query_one(&sql, &[]))
        })?;
        let outcome = match read_value::<bool>(&lock_row, 0) {
            Ok(true) => make_changes(self),
            Ok(false) => Err(StoreError::Locked(self.location())),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(value) => self.run("COMMIT").map(|()| value),
            Err(error) => {
                // A failed rollback does not matter, because the server drops changes that are not
                // committed.
                let _ = self.run("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Calls a function whose queries have no timeout.
    pub(super) fn without_timeout<T>(
        &self,
        query: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let query_timeout = self.query_timeout.get();
        let timeout_ms = query_timeout.unwrap_or_default().as_millis();
        // For a whole table, a sequential scan is faster than a scan by an index.
        self.run("SET statement_timeout = 0; SET enable_seqscan = on")?;
        self.query_timeout.set(None);
        let result = query();
        self.query_timeout.set(query_timeout);
        // The settings are restored after a failed query too. If both fail, the error of the query
        // is returned.
        let restore_result =
            self.run(&format!("SET statement_timeout = {timeout_ms}; SET enable_seqscan = off"));
        let value = result?;
        restore_result.map(|()| value)
    }

    /// Runs statements and ignores their rows.
    pub(super) fn run(&self, sql: &str) -> Result<(), StoreError> {
        self.wait(self.client.batch_execute(sql))
    }

    /// Returns all rows of a query.
    pub(super) fn query(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepare(sql)?;
        if !self.begins_snapshot.replace(false) {
            return self.wait(self.client.query(&statement, params));
        }
        let begin = self.client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        let begin_and_query =
            async { tokio::try_join!(begin, self.client.query(&statement, params)) };
        self.wait(begin_and_query).map(|(_, rows)| rows)
    }

    /// Returns the only row of a query that always has one row.
    pub(super) fn query_one(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Row, StoreError> {
        let mut rows = self.query(sql, params)?;
        rows.pop().ok_or_else(|| error::unexpected_error(&self.server, "a query without a row"))
    }

    /// Changes rows and returns their number.
    pub(super) fn change(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        let statement = self.prepare(sql)?;
        self.wait(self.client.execute(&statement, params))
    }

    /// Inserts rows by a `COPY` statement
    /// (<https://www.postgresql.org/docs/current/sql-copy.html>). `types` are the types of the
    /// copied columns.
    pub(super) fn copy<'a, const N: usize>(
        &self,
        sql: &'static str,
        types: [Type; N],
        rows: impl IntoIterator<Item = [Field<'a>; N]>,
    ) -> Result<(), StoreError> {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return Ok(());
        }
        let statement = self.prepare(sql)?;
        self.wait(async {
            let sink = self.client.copy_in(&statement).await?;
            let writer = tokio_postgres::binary_copy::BinaryCopyInWriter::new(sink, &types);
            tokio::pin!(writer);
            for row in rows {
                writer.as_mut().write_raw(row).await?;
            }
            writer.finish().await
        })?;
        Ok(())
    }

    /// Returns the prepared statement of this SQL, and prepares the statement at its first use.
    fn prepare(&self, sql: &'static str) -> Result<Statement, StoreError> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        self.statements.borrow_mut().insert(sql, statement.clone());
        Ok(statement)
    }

    /// Waits for a response, at most for the timeout of a query.
    fn wait<T>(
        &self,
        response: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        if self.is_broken.get() {
            return Err(error::unreachable_error(
                &self.server,
                "the connection was closed after a timeout",
            ));
        }
        self.round_trips.set(self.round_trips.get() + 1);
        let query_timeout = self.query_timeout.get();
        let outcome = self.runtime.block_on(async {
            match query_timeout {
                // If the server still responds, its own timeout ends the query first.
                Some(query_timeout) => {
                    tokio::time::timeout(query_timeout + CLOSE_TIMEOUT, response).await
                }
                None => Ok(response.await),
            }
        });
        match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                self.is_broken.set(self.client.is_closed());
                Err(error::from_client(&self.server, &error))
            }
            Err(_) => {
                self.is_broken.set(true);
                let reason =
                    error::timeout_message("a response", query_timeout.unwrap_or_default());
                Err(error::unreachable_error(&self.server, &reason))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_locked.get() || self.is_broken.get() || self.client.is_closed() {
            return;
        }
        // Without this statement, the server releases the lock only when it notices the end of the
        // connection.
        self.query_timeout.set(Some(CLOSE_TIMEOUT));
        let _ = self.run("ROLLBACK; SELECT pg_advisory_unlock_all()");
    }
}

/// A value of a row to be written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    /// NULL.
    None,
}

impl<'a> Field<'a> {
    /// Returns the bytes as a value, or NULL for `None`.
    pub(super) fn from_bytes(bytes: Option<&'a Vec<u8>>) -> Field<'a> {
        bytes.map_or(Field::None, |bytes| Field::Bytes(bytes))
    }
}

impl ToSql for Field<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Field::Int(number) => number.to_sql(kind, out),
            Field::Bytes(bytes) => bytes.to_sql(kind, out),
            Field::None => Ok(IsNull::Yes),
        }
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::INT8 || *kind == Type::BYTEA
    }

    to_sql_checked!();
}

/// Returns a column of a row that was read.
pub(super) fn read_value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| StoreError::Damaged(error.to_string()))
}

/// Returns a column that holds a hash.
pub(super) fn read_hash(row: &Row, column: usize) -> Result<[u8; 32], StoreError> {
    let bytes: &[u8] = read_value(row, column)?;
    let damaged = || StoreError::Damaged(format!("a hash of {} bytes", bytes.len()));
    bytes.try_into().map_err(|_| damaged())
}
