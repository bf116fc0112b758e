//! A session with a server: waiting for it, and no longer than it may take.
//!
//! The client is asynchronous; here it runs on the thread that asks, for as long as it asks. What
//! takes too long ends the session, for its answer would be taken for that of the next question.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault;
use crate::store::location::Server;
use crate::store::{Location, Settings, StoreError};

/// How long it may take to connect, greetings and all, unless the URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a good-bye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the writer before may take to be seen to be gone: the server takes a moment to notice
/// that a process was killed.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Silence after which a connection is probed, between probes, and probes without an answer that
/// end it: both sides do, so that neither keeps what the other has left.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);
/// `weir` in ASCII: the class of our locks.
const LOCK_CLASS: i32 = 0x7765_6972;

pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// An open session.
pub(super) struct Session {
    runtime: Runtime,
    client: Client,
    server: Server,
    patience: Cell<Option<Duration>>,
    /// Texts that were prepared.
    statements: RefCell<HashMap<&'static str, Statement>>,
    /// A transaction is to be begun with the next question.
    begins: Cell<bool>,
    /// Whether it holds the lock of the one writer.
    locked: Cell<bool>,
    /// It can be asked no more.
    broken: Cell<bool>,
    /// Ways there and back.
    trips: Cell<u64>,
}

impl Session {
    /// Connects.
    pub(super) fn open(server: &Server, settings: Settings) -> Result<Session, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| fault::unreachable(server, &error.to_string()))?;
        let mut config = server.client.clone();
        let limit = *config.get_connect_timeout().unwrap_or(&CONNECT_TIMEOUT);
        config.connect_timeout(limit);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(settings.patience);
        }
        let (idle, interval, retries) = KEEPALIVE;
        config.keepalives_idle(idle).keepalives_interval(interval).keepalives_retries(retries);
        let connecting = async {
            // The connection is a task of its own, which gets on while somebody waits.
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
        let connected = runtime.block_on(async { tokio::time::timeout(limit, connecting).await });
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(fault::of(server, &error)),
            Err(_) => return Err(fault::unreachable(server, &fault::late("connecting", limit))),
        };
        let session = Session {
            runtime,
            client,
            server: server.clone(),
            patience: Cell::new(Some(settings.patience)),
            statements: RefCell::default(),
            begins: Cell::new(false),
            locked: Cell::new(false),
            broken: Cell::new(false),
            trips: Cell::new(0),
        };
        session.set_up(settings)?;
        Ok(session)
    }

    fn set_up(&self, settings: Settings) -> Result<(), StoreError> {
        let (idle, interval, retries) = KEEPALIVE;
        self.run(&format!(
            "SET search_path = {schema};
             SET statement_timeout = {patience};
             SET tcp_keepalives_idle = {idle};
             SET tcp_keepalives_interval = {interval};
             SET tcp_keepalives_count = {retries};
             -- Questions look up a few rows by keys. Their plans are made once, and are the same
             -- before and after the server has looked at how values are distributed.
             SET plan_cache_mode = force_generic_plan;
             SET enable_seqscan = off;
             SET jit = off",
            schema = self.schema(),
            patience = settings.patience.as_millis(),
            idle = idle.as_secs(),
            interval = interval.as_secs(),
        ))
    }

    /// Where it is.
    pub(super) fn at(&self) -> Location {
        Location::Server(Box::new(self.server.clone()))
    }

    /// A right is lacking.
    pub(super) fn not_allowed(&self, why: &str) -> StoreError {
        fault::not_allowed(&self.server, why.to_owned())
    }

    /// The name of the schema; it needs no quotes.
    pub(super) fn schema(&self) -> &str {
        &self.server.schema
    }

    /// Ways there and back so far.
    #[cfg(test)]
    pub(super) fn trips(&self) -> u64 {
        self.trips.get()
    }

    /// Changes something past all checks.
    #[cfg(test)]
    pub(super) fn execute(&self, sql: &str) -> u64 {
        self.wait(self.client.execute(sql, &[])).unwrap()
    }

    /// Takes the place of the one writer for as long as the session lasts.
    pub(super) fn lock(&self) -> Result<(), StoreError> {
        self.run(&format!(
            "SET lock_timeout = {}; SELECT pg_advisory_lock({}); SET lock_timeout = 0",
            LOCK_PATIENCE.as_millis(),
            self.lock_name(),
        ))?;
        self.locked.set(true);
        Ok(())
    }

    /// The two numbers of the lock: locks are of a database, an index is of a schema in it.
    fn lock_name(&self) -> String {
        format!("{LOCK_CLASS}, hashtext('{}')", self.schema())
    }

    /// The next question begins a transaction that reads one state.
    pub(super) fn begin_reading(&self) {
        self.begins.set(true);
    }

    /// Ends what [`Session::begin_reading`] began.
    pub(super) fn end_reading(&self) -> Result<(), StoreError> {
        if self.begins.replace(false) {
            return Ok(());
        }
        self.run("COMMIT")
    }

    /// Makes changes in one transaction. It asks for the writer's lock anew: who has lost it, for the
    /// server or something in between has given it another session, writes nothing.
    pub(super) fn write<T>(
        &self,
        change: impl FnOnce(&Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if !self.locked.get() {
            let why = "it was opened to be read".to_owned();
            return Err(StoreError::ReadOnly(why));
        }
        let sql = format!("SELECT pg_try_advisory_xact_lock({})", self.lock_name());
        let (_, got) = self.wait(async {
            tokio::try_join!(self.client.batch_execute("BEGIN"), self.client.query_one(&sql, &[]))
        })?;
        let done = match value::<bool>(&got, 0) {
            Ok(true) => change(self),
            Ok(false) => Err(StoreError::Taken(self.at())),
            Err(error) => Err(error),
        };
        match done {
            Ok(value) => self.run("COMMIT").map(|()| value),
            Err(error) => {
                // It is as good as undone: the server does not keep what was not committed.
                let _undone = self.run("ROLLBACK");
                Err(error)
            }
        }
    }

    /// Does something that may take as long as it takes.
    pub(super) fn unhurried<T>(
        &self,
        does: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let limit = self.patience.take();
        let millis = limit.unwrap_or_default().as_millis();
        // Whole tables are better read in their order than by an index.
        self.run("SET statement_timeout = 0; SET enable_seqscan = on")?;
        let done = does();
        self.patience.set(limit);
        let done = done?;
        self.run(&format!("SET statement_timeout = {millis}; SET enable_seqscan = off"))?;
        Ok(done)
    }

    /// Runs statements that give nothing back.
    pub(super) fn run(&self, sql: &str) -> Result<(), StoreError> {
        self.wait(self.client.batch_execute(sql))
    }

    /// All rows of a question.
    pub(super) fn all(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql)?;
        if !self.begins.replace(false) {
            return self.wait(self.client.query(&statement, params));
        }
        let begin = self.client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        let both = async { tokio::try_join!(begin, self.client.query(&statement, params)) };
        self.wait(both).map(|(_, rows)| rows)
    }

    /// The one row of a question.
    pub(super) fn one(&self, sql: &'static str, params: Params<'_>) -> Result<Row, StoreError> {
        let mut rows = self.all(sql, params)?;
        rows.pop().ok_or_else(|| fault::odd(&self.server, "a question that has no answer"))
    }

    /// Changes rows; how many.
    pub(super) fn change(&self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        let statement = self.prepared(sql)?;
        self.wait(self.client.execute(&statement, params))
    }

    /// Adds rows to a table (<https://www.postgresql.org/docs/current/sql-copy.html>); `sql` is the
    /// COPY.
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
        let statement = self.prepared(sql)?;
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

    fn prepared(&self, sql: &'static str) -> Result<Statement, StoreError> {
        if let Some(known) = self.statements.borrow().get(sql) {
            return Ok(known.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        self.statements.borrow_mut().insert(sql, statement.clone());
        Ok(statement)
    }

    /// Waits for the server, no longer than it may take.
    fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        if self.broken.get() {
            return Err(fault::unreachable(&self.server, "the connection was given up"));
        }
        self.trips.set(self.trips.get() + 1);
        let patience = self.patience.get();
        let waited = self.runtime.block_on(async {
            match patience {
                // The server is the first to say that something took too long, if it can.
                Some(patience) => tokio::time::timeout(patience + GOODBYE_TIMEOUT, answer).await,
                None => Ok(answer.await),
            }
        });
        match waited {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                self.broken.set(self.client.is_closed());
                Err(fault::of(&self.server, &error))
            }
            Err(_) => {
                self.broken.set(true);
                let waited = fault::late("an answer", patience.unwrap_or_default());
                Err(fault::unreachable(&self.server, &waited))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.locked.get() || self.broken.get() || self.client.is_closed() {
            return;
        }
        // The server would drop the lock too, some time after it has seen that we are gone.
        self.patience.set(Some(GOODBYE_TIMEOUT));
        let _freed = self.run("ROLLBACK; SELECT pg_advisory_unlock_all()");
    }
}

/// A value of a row that is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    None,
}

impl<'a> Field<'a> {
    pub(super) fn of(bytes: Option<&'a Vec<u8>>) -> Field<'a> {
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

/// A value of a row that was read.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| StoreError::Damaged(error.to_string()))
}

pub(super) fn hash(row: &Row, at: usize) -> Result<[u8; 32], StoreError> {
    let bytes: &[u8] = value(row, at)?;
    let odd = || StoreError::Damaged(format!("a hash of {} bytes", bytes.len()));
    bytes.try_into().map_err(|_| odd())
}
