//! Maps errors of the server and of the PostgreSQL client to errors of a store, with advice for the
//! user. Messages of a server contain names of users and databases, but no passwords.

use std::error::Error as _;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use crate::store::error::StoreError;
use crate::store::location::{Location, Server};

fn location_of(server: &Server) -> Location {
    Location::Server(Box::new(server.clone()))
}

/// Returns the error for a server that cannot be reached, or for a lost connection.
pub(super) fn unreachable_error(server: &Server, reason: &str) -> StoreError {
    StoreError::Unreachable { location: location_of(server), reason: reason.to_owned() }
}

/// Returns the error for a response that no PostgreSQL server sends.
pub(super) fn unexpected_error(server: &Server, reason: &str) -> StoreError {
    StoreError::Server { location: location_of(server), reason: reason.to_owned() }
}

/// Returns the message for an operation that took longer than its limit.
pub(super) fn timeout_message(operation: &str, limit: Duration) -> String {
    format!("{operation} took longer than {limit:?}")
}

/// Maps an error of the PostgreSQL client, which may contain an error response of the server.
pub(super) fn from_client(server: &Server, error: &tokio_postgres::Error) -> StoreError {
    if let Some(response) = error.as_db_error() {
        return from_response(server, response);
    }
    // The message of the error has only a word or two. The source has the reason.
    let mut reason = error.to_string();
    if let Some(source) = error.source().map(ToString::to_string)
        && !reason.contains(&source)
    {
        reason = format!("{reason}: {source}");
    }
    let is_io_error = error.source().is_some_and(|source| source.is::<std::io::Error>());
    if is_io_error || error.is_closed() {
        return unreachable_error(server, &reason);
    }
    if error.source().is_none() {
        return StoreError::Server { location: location_of(server), reason };
    }
    // Only the client causes the other errors: the password is missing, or the server has no TLS.
    denied_error(
        server,
        reason,
        "set PGPASSWORD for a password, or sslmode=disable for a connection without TLS",
    )
}

fn denied_error(server: &Server, reason: String, advice: &'static str) -> StoreError {
    StoreError::Denied { location: location_of(server), reason, advice }
}

/// Returns the error for a user without a privilege.
pub(super) fn access_denied_error(server: &Server, reason: String) -> StoreError {
    let advice = "a writer must own the schema, or be allowed to create it (GRANT CREATE ON \
                  DATABASE); a reader needs USAGE on it and SELECT on its tables";
    denied_error(server, reason, advice)
}

/// Maps an error response by its code
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
fn from_response(server: &Server, response: &DbError) -> StoreError {
    let detail = response.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    let reason = format!("{}{detail}", response.message());
    let code = response.code();
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        let advice = "check the password in PGPASSWORD or in the URL, and pg_hba.conf of the \
                      server";
        return denied_error(server, reason, advice);
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return denied_error(server, reason, "create the database with `createdb`");
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return access_denied_error(server, reason);
    }
    let unavailable_codes = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::QUERY_CANCELED,
    ];
    match code {
        code if *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::Locked(location_of(server)),
        code if *code == SqlState::DISK_FULL => {
            StoreError::DiskFull(format!("{}: {reason}", location_of(server)))
        }
        code if unavailable_codes.contains(code) => unreachable_error(server, &reason),
        code if *code == SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::ReadOnly(format!(
            "{}: {reason}: a replica, or opened read-only",
            location_of(server)
        )),
        code if [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(code) => {
            StoreError::Damaged(format!("{}: {reason}", location_of(server)))
        }
        code => StoreError::Server {
            location: location_of(server),
            reason: format!("{reason} [{}]", code.code()),
        },
    }
}
