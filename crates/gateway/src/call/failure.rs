//! The error of a call without a response of an upstream, and the one table from such errors to
//! HTTP statuses, JSON-RPC codes and messages.
//!
//! Decisions read the fields, never the text.

use std::fmt;
use std::time::Duration;

use wire::error::ErrorCode;
use wire::logs::MatcherError;

use crate::config::Config;
use crate::policy::direct::Action;
pub(crate) use crate::policy::retry::Sent;

/// Who is at fault. A client's own faults are refusals and never come this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Us,
    /// The upstream with this index into the configuration's list.
    Upstream(usize),
}

/// What went wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No upstream of the group can be used now.
    NoUpstream,
    /// The call's deadline passed.
    Deadline,
    /// Connecting failed: refused, unreachable, TLS, or no connection was free in time.
    Connect,
    /// The connection ended before the answer was complete.
    Closed,
    /// The upstream's answer is not a JSON-RPC answer to the call that was asked.
    Malformed,
    /// The upstream's answer is over the allowed size.
    TooLarge,
    /// The call is longer than what the upstream takes.
    CallTooLarge,
    /// Every upstream that was asked is rate limiting us.
    RateLimited,
    /// An upstream refused with an HTTP status.
    Status(u16),
    /// All answers of the batch together are over the allowed size.
    BatchTooLarge,
    /// The gateway is stopping.
    Stopping,
    /// The budget of memory has no room for the response.
    Memory,
    /// The method is not served, or not to this caller.
    MethodOff,
    /// It asks to be told of something from now on, which is not possible.
    Unable(Unable),
    /// The caller's key does not lead to the chain that a rule sent the call to.
    Forbidden,
    /// A rule sent the call to a path that leads to no chain.
    NoChain,
    /// The rule at this place of the configuration refuses the call.
    Rule(u16),
    /// The client is over the rate of a limit, which answers with this HTTP status.
    OverRate { status: u16 },
    /// The caller's key has used up what it may in this month.
    OverQuota,
    /// The client has as many calls in flight as a limit allows, which answers with this status.
    OverConcurrency { status: u16 },
    /// The upstreams have no room for the call; it is answered with this status.
    Overloaded { status: u16 },
}

/// A call that has no answer of an upstream to give.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) origin: Origin,
    pub(crate) sent: Sent,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// A failure before anything was sent to an upstream, which is our own.
    pub(crate) fn ours(kind: Kind) -> Failure {
        Failure { kind, origin: Origin::Us, sent: Sent::No, retry_after: None }
    }

    /// A failure of the upstream with this index.
    pub(crate) fn of_upstream(upstream: usize, kind: Kind, sent: Sent) -> Failure {
        Failure { kind, origin: Origin::Upstream(upstream), sent, retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}, sent: {:?})", self.kind, self.origin, self.sent)
    }
}

impl std::error::Error for Failure {}

/// Why nobody can be told of what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unable {
    /// The connection cannot carry anything but answers.
    NotHere,
    /// The client has as many subscriptions as one connection may.
    TooMany,
    /// Others have asked for so many different things that no more can be taken.
    Crowded,
    /// The parameters name nothing that one can subscribe to.
    Params,
    /// The parameters are longer than what is kept of them.
    TooLong,
    /// The filter is none.
    Filter(MatcherError),
    /// The filter's blocks are not those to come.
    Range,
    /// No upstream of the chain can tell.
    NoUpstream,
    /// The client has no subscription of this id.
    Unknown,
    /// The client has as many filters as it may.
    TooManyFilters,
    /// There is no such filter, or none that can tell what has happened since.
    NoFilter,
}

/// The JSON-RPC error of a call that failed. Codes -32002 and -32003 are geth's for a timeout and
/// for an answer over its size (`rpc/errors.go`); -32005 is EIP-1474's "limit exceeded". A method
/// that is not served has geth's code and words for one that it does not have, and a subscription
/// those for a connection that cannot carry any.
pub(crate) fn describe(kind: Kind, config: &Config) -> (ErrorCode, &str) {
    match kind {
        Kind::MethodOff => {
            (ErrorCode::METHOD_NOT_FOUND, "the method does not exist/is not available")
        }
        Kind::Unable(why) => unable(why),
        Kind::Forbidden => (ErrorCode::INVALID_REQUEST, FORBIDDEN),
        Kind::NoChain => (ErrorCode::INVALID_REQUEST, "no chain is served at this path"),
        Kind::Rule(place) => (ErrorCode::INVALID_REQUEST, ruled(place, config).1),
        Kind::NoUpstream => (ErrorCode::INTERNAL, "no upstream can be used now"),
        Kind::Stopping => (ErrorCode::INTERNAL, "gateway is stopping"),
        Kind::Memory => (ErrorCode::LIMIT_EXCEEDED, OUT_OF_MEMORY),
        Kind::Deadline => (ErrorCode::RESOURCE_UNAVAILABLE, "no upstream answered in time"),
        Kind::Connect => (ErrorCode::INTERNAL, "no upstream could be reached"),
        Kind::Closed => (ErrorCode::INTERNAL, "upstream closed the connection before it answered"),
        Kind::Malformed => {
            (ErrorCode::INTERNAL, "upstream sent something that is no answer to this call")
        }
        Kind::Status(_) => (ErrorCode::INTERNAL, "upstream refused the request"),
        Kind::RateLimited => (ErrorCode::LIMIT_EXCEEDED, "every upstream is limiting its rate now"),
        Kind::OverRate { .. } => (ErrorCode::LIMIT_EXCEEDED, "request rate limit exceeded"),
        Kind::OverQuota => {
            (ErrorCode::LIMIT_EXCEEDED, "the quota of this API key is used up for this month")
        }
        Kind::OverConcurrency { .. } => (ErrorCode::LIMIT_EXCEEDED, "too many requests in flight"),
        Kind::Overloaded { .. } => {
            (ErrorCode::LIMIT_EXCEEDED, "upstreams are overloaded, retry later")
        }
        Kind::TooLarge => {
            (ErrorCode::TRANSACTION_REJECTED, "upstream's answer is over the allowed size")
        }
        Kind::CallTooLarge => (
            ErrorCode::INVALID_REQUEST,
            "the call is longer than what an upstream takes over WebSocket",
        ),
        Kind::BatchTooLarge => {
            (ErrorCode::TRANSACTION_REJECTED, "answers of this batch are over the allowed size")
        }
    }
}

/// The error of a call to subscribe.
pub(crate) fn unable(why: Unable) -> (ErrorCode, &'static str) {
    match why {
        Unable::NotHere => (ErrorCode::METHOD_NOT_FOUND, "notifications not supported"),
        Unable::NoUpstream => (
            ErrorCode::METHOD_NOT_FOUND,
            "no upstream that could tell of this is reached by WebSocket or IPC",
        ),
        Unable::TooMany => {
            (ErrorCode::LIMIT_EXCEEDED, "this connection has as many subscriptions as it may")
        }
        Unable::Crowded => {
            (ErrorCode::LIMIT_EXCEEDED, "the gateway has as many of these as it may")
        }
        Unable::Params => (ErrorCode::INVALID_PARAMS, "params must name a subscription or its id"),
        Unable::TooLong => (
            ErrorCode::INVALID_PARAMS,
            "params of a subscription that upstreams tell are at most 64 KiB",
        ),
        Unable::Filter(why) => (ErrorCode::INVALID_PARAMS, why.as_str()),
        Unable::Range => (
            ErrorCode::INVALID_PARAMS,
            "blocks of a subscription are numbers or latest, in order, and no hash",
        ),
        Unable::TooManyFilters => {
            (ErrorCode::LIMIT_EXCEEDED, "this client has as many filters as it may")
        }
        Unable::NoFilter => (ErrorCode::INVALID_INPUT, "filter not found"),
        Unable::Unknown => (ErrorCode::INVALID_INPUT, "subscription not found"),
    }
}

/// Status and message of the rule at this place.
pub(crate) fn ruled(place: u16, config: &Config) -> (u16, &str) {
    match config.rules.get(usize::from(place)).map(|rule| &rule.action) {
        Some(Action::Deny { status, message }) => (*status, message),
        _ => (403, "request is not allowed here"),
    }
}

/// The HTTP status of a single call that failed. In a batch it is always 200.
pub(crate) fn status_of(kind: Kind, config: &Config) -> u16 {
    match kind {
        Kind::NoUpstream | Kind::Stopping | Kind::Memory => 503,
        Kind::Deadline => 504,
        Kind::OverRate { status }
        | Kind::OverConcurrency { status }
        | Kind::Overloaded { status } => status,
        Kind::RateLimited | Kind::OverQuota => 429,
        Kind::Connect | Kind::Closed | Kind::Malformed | Kind::TooLarge | Kind::Status(_) => 502,
        Kind::BatchTooLarge | Kind::MethodOff | Kind::Unable(_) => 200,
        Kind::Forbidden => 403,
        Kind::CallTooLarge => 413,
        Kind::NoChain => 404,
        Kind::Rule(place) => ruled(place, config).0,
    }
}

pub(crate) const OUT_OF_MEMORY: &str =
    "the gateway has no memory left for this request, retry later";

pub(crate) const FORBIDDEN: &str = "the API key or token does not lead to this chain";
