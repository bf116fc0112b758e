//! Classifies the outcome of a call to an upstream. The *verdict* has three main cases: the client
//! gets the response, the upstream failed, or the upstream limits the gateway's rate. A *fault* is
//! the way in which an upstream failed a call.
//!
//! `wire::node_error` says what the error of an upstream means. `retry`, `health` and `cacheable` act
//! on the verdict.

use std::borrow::Cow;
use std::time::Duration;

use wire::json::string::JsonString;
use wire::json::walk;
use wire::node_error::{self, ErrorKind, MethodKind, NodeError};

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

/// Pause of an upstream whose calls of the day or month are used up: as long as `health.pause_max`
/// allows. The error does not name the end of the day or month.
const QUOTA_PAUSE: Duration = Duration::MAX;

/// Outcome of a call to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome<'a> {
    /// No response, because the connection failed or the deadline expired.
    Broken(Fault),
    /// An HTTP response without a JSON-RPC response to this call, for example an HTML page, a
    /// response with another id, or a truncated response.
    Http {
        /// HTTP status.
        status: u16,
        /// The `Retry-After` header, if present.
        retry_after: Option<Duration>,
    },
    /// A JSON-RPC result.
    Result,
    /// A JSON-RPC error.
    Error {
        /// The error.
        error: NodeError<'a>,
        /// The `Retry-After` header, if present.
        retry_after: Option<Duration>,
    },
}

/// Meaning of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The response goes to the client unchanged. It is a result, an error caused by the caller, or
    /// an error that every upstream would return.
    Response,
    /// The error goes to the client. It is the same for ever at the same block, so it may be cached
    /// for a fixed block.
    DeterministicError,
    /// No rule matches the error. One more upstream is asked, and of two such errors the client gets
    /// the first. The error says nothing about the health of the upstream.
    UnknownError,
    /// The upstream failed, and another upstream may do better. The client gets this response only
    /// if no other upstream does better.
    UpstreamFault(Fault),
    /// The upstream reports its rate limit. This is not a failure.
    RateLimited {
        /// The requested pause, if any.
        retry_after: Option<Duration>,
    },
    /// This upstream does not support the method. Another upstream may support it.
    Unsupported,
    /// The upstream's pool already has the transaction. The client gets a success with the
    /// transaction's hash.
    AlreadyKnown,
    /// The nonce of the transaction is already used. If the same transaction used it, the call is a
    /// success; only a lookup of the transaction's hash can show this. If the gateway has not sent
    /// the transaction before, the error goes to the client.
    NonceTooLow,
}

impl Verdict {
    /// Returns true if the response goes to the client, so that no other upstream is called.
    pub fn is_response(self) -> bool {
        match self {
            Self::Response | Self::DeterministicError | Self::AlreadyKnown | Self::NonceTooLow => {
                true
            }
            Self::UnknownError
            | Self::UpstreamFault(_)
            | Self::RateLimited { .. }
            | Self::Unsupported => false,
        }
    }
}

// `closed_set!` gives each variant the name that metrics and status pages use.
closed_set! {
    /// The way in which an upstream failed a call. The names appear in logs, metric labels and
    /// spans.
    #[derive(Hash)]
    pub enum Fault {
        /// No connection could be made.
        Connect = "connect",
        /// The connection closed or broke before the whole response.
        Closed = "closed",
        /// No whole response within the attempt's deadline.
        Timeout = "timeout",
        /// The response is no JSON-RPC response to the call.
        Malformed = "malformed",
        /// An HTTP status of a server failure.
        Http = "http",
        /// The upstream reports an internal error.
        Internal = "internal",
        /// The upstream lacks the requested state or history.
        MissingState = "missing_state",
        /// The upstream lacks the requested block.
        NotSynced = "not_synced",
        /// The call exceeds a size or time limit of the upstream.
        Limit = "limit",
        /// The upstream denies access.
        Refused = "refused",
    }
}

/// Impact of a fault on the health of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthImpact {
    /// The fault always counts.
    Always,
    /// The fault counts only if another upstream then succeeds. Some calls fail on every upstream,
    /// and a client that repeats such a call must not be able to eject all upstreams.
    IfOtherSucceeds,
    /// The fault does not count, because upstreams differ in their data and limits. But an upstream
    /// that keeps failing calls of a method which others answer is avoided for that method.
    OnlyMethod,
    /// The fault does not count, because the upstream may have the block a moment later.
    None,
}

impl Fault {
    /// Returns the impact on the health of the upstream.
    pub fn health_impact(self) -> HealthImpact {
        match self {
            Self::Connect | Self::Closed | Self::Timeout | Self::Malformed | Self::Http => {
                HealthImpact::Always
            }
            Self::Internal | Self::Refused => HealthImpact::IfOtherSucceeds,
            Self::MissingState | Self::Limit => HealthImpact::OnlyMethod,
            Self::NotSynced => HealthImpact::None,
        }
    }
}

/// Classifies the outcome of a call.
pub fn classify(outcome: &CallOutcome<'_>) -> Verdict {
    match *outcome {
        CallOutcome::Result => Verdict::Response,
        CallOutcome::Broken(fault) => Verdict::UpstreamFault(fault),
        CallOutcome::Http { status, retry_after } => classify_http(status, retry_after),
        CallOutcome::Error { error, retry_after } => classify_error(&error, retry_after),
    }
}

/// Returns the kind of a raw error object and its message; `None` if the object has no code or no
/// message.
pub fn read_error(raw: &[u8]) -> Option<(ErrorKind, Cow<'_, str>)> {
    let [code, message] = walk::fields_of(raw, ["code", "message"]);
    let code = std::str::from_utf8(code?).ok()?.parse().ok()?;
    let message = JsonString::from_value(message?)?.to_str()?;
    let (status, has_hex_data, method) = (200, false, MethodKind::Other);
    let error = NodeError { status, code, message: &message, has_hex_data, method };
    Some((node_error::classify(&error), message))
}

fn classify_error(error: &NodeError<'_>, retry_after: Option<Duration>) -> Verdict {
    let stated = || retry_after.or_else(|| node_error::read_wait(error.message));
    match node_error::classify(error) {
        ErrorKind::Reverted => Verdict::DeterministicError,
        ErrorKind::Execution | ErrorKind::Caller | ErrorKind::Underpriced => Verdict::Response,
        ErrorKind::AlreadyKnown => Verdict::AlreadyKnown,
        ErrorKind::NonceTooLow => Verdict::NonceTooLow,
        ErrorKind::RangeTooLarge
        | ErrorKind::TooManyResults
        | ErrorKind::ResponseTooLarge
        | ErrorKind::BatchTooLarge
        | ErrorKind::TooSlow => Verdict::UpstreamFault(Fault::Limit),
        // Infura uses the code of `LimitExceeded` for rates.
        ErrorKind::LimitExceeded | ErrorKind::Rate => {
            Verdict::RateLimited { retry_after: stated() }
        }
        ErrorKind::DayUsedUp | ErrorKind::MonthUsedUp => {
            Verdict::RateLimited { retry_after: stated().or(Some(QUOTA_PAUSE)) }
        }
        ErrorKind::HistoryMissing => Verdict::UpstreamFault(Fault::MissingState),
        ErrorKind::BlockUnknown => Verdict::UpstreamFault(Fault::NotSynced),
        ErrorKind::MethodNotServed => Verdict::Unsupported,
        ErrorKind::AccessDenied => Verdict::UpstreamFault(Fault::Refused),
        ErrorKind::Internal => Verdict::UpstreamFault(Fault::Internal),
        ErrorKind::LikelyCaller | ErrorKind::FeeTooLow | ErrorKind::Unknown => {
            Verdict::UnknownError
        }
    }
}

fn classify_http(status: u16, retry_after: Option<Duration>) -> Verdict {
    match status {
        429 => Verdict::RateLimited { retry_after },
        503 if retry_after.is_some() => Verdict::RateLimited { retry_after },
        401..=403 => Verdict::UpstreamFault(Fault::Refused),
        413 => Verdict::UpstreamFault(Fault::Limit),
        // A success or redirect without a JSON-RPC response: an HTML page with status 200, or a
        // login form.
        100..=399 => Verdict::UpstreamFault(Fault::Malformed),
        _ => Verdict::UpstreamFault(Fault::Http),
    }
}
