//! Failures: reasons why a call has no upstream response. [`describe`] is the table that maps each
//! failure to an HTTP status, a JSON-RPC code and a message.
//!
//! Other code must decide by the fields of a failure, never by the message.

use std::time::Duration;

use wire::error::ErrorCode;
use wire::logs::MatcherError;

use crate::config::Config;
use crate::policy::access::MethodRefusal;
pub(crate) use crate::policy::retry::Sent;
use crate::policy::routing_rules::Action;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// No upstream of the call's group (set of upstreams) is usable.
    NoUpstream,
    /// The call's deadline passed.
    Deadline,
    /// Connecting failed: the upstream refused or was unreachable, TLS failed, or no connection was
    /// free in time.
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
    /// An upstream refused the request with this HTTP status.
    Status(u16),
    /// The total size of the batch's responses exceeds the limit.
    BatchTooLarge,
    /// The gateway is stopping.
    Stopping,
    /// The memory budget is used up.
    Memory,
    /// This configuration key refuses the method for every caller, or for this caller.
    MethodNotAllowed(MethodRefusal),
    /// The subscription or filter is refused.
    SubscribeRefused(SubscribeRefusal),
    /// A routing rule sent the call to a chain that the caller's key does not allow.
    Forbidden,
    /// A routing rule sent the call to a path that serves no chain.
    NoChain,
    /// The routing rule with this index denies the call.
    Rule(u16),
    /// The client exceeds a rate limit that responds with this HTTP status.
    OverRate { status: u16 },
    /// The caller's key has used up its monthly quota.
    OverQuota,
    /// The client exceeds a limit of concurrent calls that responds with this HTTP status.
    OverConcurrency { status: u16 },
    /// The upstreams are overloaded. The response has this HTTP status.
    Overloaded { status: u16 },
}

impl FailureKind {
    /// Returns the `data` of the JSON-RPC error: the configuration key that refuses a method.
    pub(crate) fn data(self) -> Option<String> {
        Some(format!(r#"{{"refused_by":"{}"}}"#, self.refused_by()?.as_str()))
    }

    /// Returns the configuration key that refuses a method.
    pub(crate) fn refused_by(self) -> Option<MethodRefusal> {
        if let FailureKind::MethodNotAllowed(refusal) = self { Some(refusal) } else { None }
    }
}

/// The failure of a call without an upstream response. A malformed call is rejected earlier, and
/// has a `Rejection` instead of a failure.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    /// Whether an upstream may have received the call.
    pub(crate) sent: Sent,
    /// Time after which the client should retry; `None` if it is unknown.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    /// Creates the failure of a call that was sent to no upstream.
    pub(crate) fn ours(kind: FailureKind) -> Failure {
        Failure { kind, sent: Sent::No, retry_after: None }
    }
}

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
    /// The filter names a block by hash, or its bounds are not block numbers or `latest` in
    /// ascending order.
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

/// The error that a client receives for a failed call.
pub(crate) struct ErrorResponse<'a> {
    /// HTTP status of the response to a single call. A batch has status 200, unless a limit or an
    /// overload refused all its calls.
    pub(crate) status: u16,
    /// Code of the JSON-RPC error.
    pub(crate) code: ErrorCode,
    pub(crate) message: &'a str,
}

/// Returns the error that the client receives for a failed call.
///
/// geth's `rpc/errors.go` defines -32002 (timeout) and -32003 (response too large). EIP-1474
/// defines -32005 (limit exceeded). Disallowed methods and unsupported notifications get geth's
/// codes and messages.
pub(crate) fn describe(kind: FailureKind, config: &Config) -> ErrorResponse<'_> {
    use ErrorCode as Code;
    let (status, code, message) = match kind {
        FailureKind::MethodNotAllowed(_) => {
            (200, Code::METHOD_NOT_FOUND, "the method does not exist/is not available")
        }
        FailureKind::SubscribeRefused(refusal) => {
            let (code, message) = describe_refusal(refusal);
            (200, code, message)
        }
        FailureKind::Forbidden => (403, Code::INVALID_REQUEST, FORBIDDEN),
        FailureKind::NoChain => (404, Code::INVALID_REQUEST, "no chain is served at this path"),
        FailureKind::Rule(rule) => {
            match config.rules.get(usize::from(rule)).map(|rule| &rule.action) {
                Some(Action::Deny { status, message }) => {
                    (*status, Code::INVALID_REQUEST, &**message)
                }
                _ => (403, Code::INVALID_REQUEST, "request is not allowed here"),
            }
        }
        FailureKind::NoUpstream => (503, Code::INTERNAL, "no upstream is available"),
        FailureKind::Stopping => (503, Code::INTERNAL, "gateway is stopping"),
        FailureKind::Memory => (503, Code::LIMIT_EXCEEDED, OUT_OF_MEMORY),
        FailureKind::Deadline => (504, Code::RESOURCE_UNAVAILABLE, "no upstream responded in time"),
        FailureKind::Connect => (502, Code::INTERNAL, "no upstream could be reached"),
        FailureKind::Closed => {
            (502, Code::INTERNAL, "upstream closed the connection before it responded")
        }
        FailureKind::Malformed => (502, Code::INTERNAL, "upstream sent an invalid response"),
        FailureKind::Status(_) => (502, Code::INTERNAL, "upstream refused the request"),
        FailureKind::RateLimited => (429, Code::LIMIT_EXCEEDED, "all upstreams are rate limiting"),
        FailureKind::OverRate { status } => {
            (status, Code::LIMIT_EXCEEDED, "request rate limit exceeded")
        }
        FailureKind::OverQuota => {
            (429, Code::LIMIT_EXCEEDED, "the quota of this API key is used up for this month")
        }
        FailureKind::OverConcurrency { status } => {
            (status, Code::LIMIT_EXCEEDED, "too many requests in flight")
        }
        FailureKind::Overloaded { status } => {
            (status, Code::LIMIT_EXCEEDED, "upstreams are overloaded, retry later")
        }
        FailureKind::TooLarge => {
            (502, Code::TRANSACTION_REJECTED, "upstream's response exceeds the size limit")
        }
        FailureKind::CallTooLarge => {
            (413, Code::INVALID_REQUEST, "the call is too long for an upstream over WebSocket")
        }
        FailureKind::BatchTooLarge => {
            (200, Code::TRANSACTION_REJECTED, "responses of this batch exceed the size limit")
        }
    };
    ErrorResponse { status, code, message }
}

/// Returns the code and message for a refused subscription or filter.
fn describe_refusal(refusal: SubscribeRefusal) -> (ErrorCode, &'static str) {
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

/// The message for a request or call that is refused because the memory budget is used up.
pub(crate) const OUT_OF_MEMORY: &str = "gateway memory limit reached, retry later";

/// The message for a chain that the caller's key or token does not allow.
pub(crate) const FORBIDDEN: &str = "the API key or token does not allow this chain";
