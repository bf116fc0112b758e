//! What a server's failures mean, and what to do about them. Its own messages name users and
//! databases, never passwords.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use crate::store::location::Server;
use crate::store::{Location, StoreError};

fn at(server: &Server) -> Location {
    Location::Server(Box::new(server.clone()))
}

/// The server is not there, or has left.
pub(super) fn unreachable(server: &Server, why: &str) -> StoreError {
    StoreError::Unreachable { at: at(server), why: why.to_owned() }
}

/// Something that no server of this kind says.
pub(super) fn odd(server: &Server, why: &str) -> StoreError {
    StoreError::Server { at: at(server), why: why.to_owned() }
}

/// What took too long.
pub(super) fn late(what: &str, limit: Duration) -> String {
    format!("{what} took longer than {limit:?}")
}

/// What an error of the client means.
pub(super) fn of(server: &Server, error: &tokio_postgres::Error) -> StoreError {
    if let Some(said) = error.as_db_error() {
        return told(server, said);
    }
    // What it says of itself is a word or two; why stands behind it.
    let mut why = error.to_string();
    if let Some(source) = error.source().map(ToString::to_string)
        && !why.contains(&source)
    {
        why = format!("{why}: {source}");
    }
    match error.source().is_some_and(|source| source.is::<std::io::Error>()) || error.is_closed() {
        true => unreachable(server, &why),
        // Without a source the client itself refuses: no password was given, or no TLS is there.
        false if error.source().is_none() => StoreError::Server { at: at(server), why },
        false => refused(
            server,
            why,
            "a password is taken from PGPASSWORD; sslmode=disable does without TLS",
        ),
    }
}

fn refused(server: &Server, why: String, advice: &'static str) -> StoreError {
    StoreError::Refused { at: at(server), why, advice }
}

/// A right is lacking.
pub(super) fn not_allowed(server: &Server, why: String) -> StoreError {
    let advice = "who syncs owns the schema, or may make it (GRANT CREATE ON DATABASE); who reads \
                  needs USAGE on it and SELECT on its tables";
    refused(server, why, advice)
}

/// What the server said, by its code
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
fn told(server: &Server, said: &DbError) -> StoreError {
    let detail = said.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let why = format!("{}{detail}", said.message());
    let code = said.code();
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        let advice = "the password is that of PGPASSWORD or of the URL, and pg_hba.conf of the \
                      server says who is let in from where";
        return refused(server, why, advice);
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return refused(server, why, "`createdb` makes a database");
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return not_allowed(server, why);
    }
    let leaving = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    match code {
        code if *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::Taken(at(server)),
        code if *code == SqlState::DISK_FULL => StoreError::Full(format!("{}: {why}", at(server))),
        code if leaving.contains(code) => unreachable(server, &why),
        code if *code == SqlState::QUERY_CANCELED => unreachable(server, &why),
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            StoreError::ReadOnly(format!("{}: {why}: a replica, or opened to be read", at(server)))
        }
        code if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code) => {
            StoreError::Damaged(format!("{}: {why}", at(server)))
        }
        code => StoreError::Server { at: at(server), why: format!("{why} [{}]", code.code()) },
    }
}
