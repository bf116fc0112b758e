//! What is exchanged with an upstream: the body of a request, the response, and the error if there
//! is no response. All transports use these types.

use std::time::Duration;

use bytes::Bytes;
use wire::quantity::Decimal;
use wire::response::{Outcome, Response, parse_response};

use crate::call::failure::{FailureKind, Sent};
use crate::trace::context::TraceContext;

/// Maximum JSON nesting of responses: the maximum of the wire crate. The trace of a transaction can
/// nest 1024 calls, and each call adds a few levels.
pub(crate) const DEPTH_MAX: usize = wire::json::DEPTH_CEILING;

/// The body of a request.
pub(crate) trait Body {
    /// Returns the length of the body in bytes.
    fn bytes(&self) -> usize;
    /// Appends the body to `out`.
    fn write(&self, out: &mut Vec<u8>);
    /// Returns the trace context for the headers. `None` if the request has no trace. Also `None`
    /// for a batch, because its calls may belong to several traces.
    fn trace(&self) -> Option<&TraceContext> {
        None
    }
}

/// A complete HTTP response of an upstream.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The time in the `Retry-After` header, if any.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
    /// True if the connection may carry another call.
    pub(crate) reusable: bool,
}

impl HttpResponse {
    /// Wraps a response that came over a WebSocket or a local socket.
    pub(crate) fn from_message(body: Bytes) -> HttpResponse {
        HttpResponse { status: 200, retry_after: None, body, reusable: true }
    }
}

/// Why a call or a batch has no response from the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExchangeError {
    pub(crate) kind: FailureKind,
    /// Whether the upstream may have received the call.
    pub(crate) sent: Sent,
    /// True if the upstream closed a reused connection before the first byte of this response.
    pub(crate) stale_connection: bool,
}

impl ExchangeError {
    pub(crate) fn new(kind: FailureKind, sent: Sent) -> ExchangeError {
        ExchangeError { kind, sent, stale_connection: false }
    }
}

/// Parses the response to the call with this id; `None` if `body` is no response to this call. An
/// error with the id `null` counts as a response. Upstreams send such an error if they cannot read
/// the id of a call (JSON-RPC 2.0, section 5).
pub(crate) fn parse_response_to<'a>(
    id: &Decimal,
    body: &'a [u8],
    depth_max: usize,
) -> Option<Response<'a>> {
    let response = parse_response(body, depth_max).ok()?;
    let is_error_without_id =
        response.id == b"null" && matches!(response.outcome, Outcome::Error { .. });
    (is_error_without_id || response.id == id.as_bytes()).then_some(response)
}
