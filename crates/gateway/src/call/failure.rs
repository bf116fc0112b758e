//! Failures of calls that have no upstream response, and the table that maps them to HTTP statuses,
//! JSON-RPC codes and messages.
//!
//! Decisions depend on the fields, never on the text.

use std::fmt;
use std::time::Duration;

use wire::error::ErrorCode;
use wire::logs::MatcherError;

use crate::config::Config;
use crate::policy::direct::Action;
pub(crate) use crate::policy::retry::Sent;

/// The origin of a failure. A client error is rejected earlier and causes no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The gateway itself.
    Us,
    /// The upstream with this index into the configuration's list.
    Upstream(usize),
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No upstream of the group is usable.
    NoUpstream,
    /// The call's deadline passed.
    Deadline,
    /// Connecting failed: refused, unreachable, TLS, or no connection was free in time.
    Connect,
    /// The connection ended before the response was complete.
    Closed,
    /// The upstream sent something other than a JSON-RPC response to this call.
    Malformed,
    /// The upstream's response exceeds the size limit.
    TooLarge,
    /// The call is longer than the upstream accepts.
    CallTooLarge,
    /// Every attempted upstream rate-limits the gateway.
    RateLimited,
    /// An upstream refused the request with an HTTP status.
    Status(u16),
    /// The responses of the batch exceed the size limit together.
    BatchTooLarge,
    /// The gateway is stopping.
    Stopping,
    /// The memory budget is used up.
    Memory,
    /// The method is not allowed, at all or for this caller.
    MethodOff,
    /// The subscription or filter is not possible.
    NotSubscribed(SubscribeRefusal),
    /// The caller's key does not allow the chain that a rule routed the call to.
    Forbidden,
    /// A rule routed the call to a path without a chain.
    NoChain,
    /// The rule with this index denies the call.
    Rule(u16),
    /// The client exceeds a rate limit that responds with this HTTP status.
    OverRate { status: u16 },
    /// The caller's key has used up its monthly quota.
    OverQuota,
    /// The client exceeds a limit of concurrent calls that responds with this HTTP status.
    OverConcurrency { status: u16 },
    /// The upstreams are overloaded; the response has this HTTP status.
    Overloaded { status: u16 },
}

/// The failure of a call without an upstream response.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) origin: Origin,
    /// Extent to which the call was sent to an upstream.
    pub(crate) sent: Sent,
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// Creates a failure of the gateway itself, before anything was sent to an upstream.
    pub(crate) fn ours(kind: Kind) -> Failure {
        Failure { kind, origin: Origin::Us, sent: Sent::No, retry_after: None }
    }

    /// Creates a failure of the upstream with this index.
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

/// Reason for refusing a subscription or filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscribeRefusal {
    /// The connection cannot carry notifications.
    NoNotifications,
    /// The client has reached its limit of subscriptions.
    ClientLimit,
    /// The gateway has reached its limit of distinct subscriptions or of filters.
    GatewayLimit,
    /// The parameters name no subscription.
    Params,
    /// The parameters are too long.
    TooLong,
    /// The filter is invalid.
    Filter(MatcherError),
    /// The filter's range is not one of future blocks.
    Range,
    /// No upstream of the chain supports subscriptions.
    NoUpstream,
    /// The client has no subscription with this id.
    UnknownSubscription,
    /// The client has reached its limit of filters.
    TooManyFilters,
    /// The filter does not exist, or its changes cannot be determined any more.
    UnknownFilter,
}

/// Returns the JSON-RPC error of a failed call. geth defines -32002 (timeout) and -32003 (response
/// too large) in `rpc/errors.go`, and EIP-1474 defines -32005 (limit exceeded). Disallowed methods
/// and unsupported notifications use geth's codes and texts.
pub(crate) fn describe(kind: Kind, config: &Config) -> (ErrorCode, &str) {
    match kind {
        Kind::MethodOff => {
            (ErrorCode::METHOD_NOT_FOUND, "the method does not exist/is not available")
        }
        Kind::NotSubscribed(refusal) => refusal_of(refusal),
        Kind::Forbidden => (ErrorCode::INVALID_REQUEST, FORBIDDEN),
        Kind::NoChain => (ErrorCode::INVALID_REQUEST, "no chain is served at this path"),
        Kind::Rule(rule) => (ErrorCode::INVALID_REQUEST, denial_of_rule(rule, config).1),
        Kind::NoUpstream => (ErrorCode::INTERNAL, "no upstream is available"),
        Kind::Stopping => (ErrorCode::INTERNAL, "gateway is stopping"),
        Kind::Memory => (ErrorCode::LIMIT_EXCEEDED, OUT_OF_MEMORY),
        Kind::Deadline => (ErrorCode::RESOURCE_UNAVAILABLE, "no upstream responded in time"),
        Kind::Connect => (ErrorCode::INTERNAL, "no upstream could be reached"),
        Kind::Closed => (ErrorCode::INTERNAL, "upstream closed the connection before it responded"),
        Kind::Malformed => (ErrorCode::INTERNAL, "upstream sent an invalid response"),
        Kind::Status(_) => (ErrorCode::INTERNAL, "upstream refused the request"),
        Kind::RateLimited => (ErrorCode::LIMIT_EXCEEDED, "all upstreams are rate limiting"),
        Kind::OverRate { .. } => (ErrorCode::LIMIT_EXCEEDED, "request rate limit exceeded"),
        Kind::OverQuota => {
            (ErrorCode::LIMIT_EXCEEDED, "the quota of this API key is used up for this month")
        }
        Kind::OverConcurrency { .. } => (ErrorCode::LIMIT_EXCEEDED, "too many requests in flight"),
        Kind::Overloaded { .. } => {
            (ErrorCode::LIMIT_EXCEEDED, "upstreams are overloaded, retry later")
        }
        Kind::TooLarge => {
            (ErrorCode::TRANSACTION_REJECTED, "upstream's response exceeds the size limit")
        }
        Kind::CallTooLarge => {
            (ErrorCode::INVALID_REQUEST, "the call is too long for an upstream over WebSocket")
        }
        Kind::BatchTooLarge => {
            (ErrorCode::TRANSACTION_REJECTED, "responses of this batch exceed the size limit")
        }
    }
}

/// Returns the error of a call about a subscription or filter.
pub(crate) fn refusal_of(refusal: SubscribeRefusal) -> (ErrorCode, &'static str) {
    match refusal {
        SubscribeRefusal::NoNotifications => {
            (ErrorCode::METHOD_NOT_FOUND, "notifications not supported")
        }
        SubscribeRefusal::NoUpstream => (
            ErrorCode::METHOD_NOT_FOUND,
            "no upstream supports this subscription over WebSocket or IPC",
        ),
        SubscribeRefusal::ClientLimit => {
            (ErrorCode::LIMIT_EXCEEDED, "too many subscriptions on this connection")
        }
        SubscribeRefusal::GatewayLimit => {
            (ErrorCode::LIMIT_EXCEEDED, "too many subscriptions or filters on this gateway")
        }
        SubscribeRefusal::Params => {
            (ErrorCode::INVALID_PARAMS, "params must name a subscription or its id")
        }
        SubscribeRefusal::TooLong => {
            (ErrorCode::INVALID_PARAMS, "params of a relayed subscription exceed 64 KiB")
        }
        SubscribeRefusal::Filter(refusal) => (ErrorCode::INVALID_PARAMS, refusal.as_str()),
        SubscribeRefusal::Range => (
            ErrorCode::INVALID_PARAMS,
            "fromBlock and toBlock must be numbers or latest, in order, without blockHash",
        ),
        SubscribeRefusal::TooManyFilters => {
            (ErrorCode::LIMIT_EXCEEDED, "too many filters for this client")
        }
        SubscribeRefusal::UnknownFilter => (ErrorCode::INVALID_INPUT, "filter not found"),
        SubscribeRefusal::UnknownSubscription => {
            (ErrorCode::INVALID_INPUT, "subscription not found")
        }
    }
}

/// Returns the status and the message of the rule with this index.
pub(crate) fn denial_of_rule(rule: u16, config: &Config) -> (u16, &str) {
    match config.rules.get(usize::from(rule)).map(|rule| &rule.action) {
        Some(Action::Deny { status, message }) => (*status, message),
        _ => (403, "request is not allowed here"),
    }
}

/// Returns the HTTP status of a single failed call. In a batch it is always 200.
pub(crate) fn status_of(kind: Kind, config: &Config) -> u16 {
    match kind {
        Kind::NoUpstream | Kind::Stopping | Kind::Memory => 503,
        Kind::Deadline => 504,
        Kind::OverRate { status }
        | Kind::OverConcurrency { status }
        | Kind::Overloaded { status } => status,
        Kind::RateLimited | Kind::OverQuota => 429,
        Kind::Connect | Kind::Closed | Kind::Malformed | Kind::TooLarge | Kind::Status(_) => 502,
        Kind::BatchTooLarge | Kind::MethodOff | Kind::NotSubscribed(_) => 200,
        Kind::Forbidden => 403,
        Kind::CallTooLarge => 413,
        Kind::NoChain => 404,
        Kind::Rule(rule) => denial_of_rule(rule, config).0,
    }
}

pub(crate) const OUT_OF_MEMORY: &str = "gateway memory limit reached, retry later";

pub(crate) const FORBIDDEN: &str = "the API key or token does not allow this chain";
