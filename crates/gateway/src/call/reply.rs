//! The gateway's response to a client's request. `downstream` writes it to the connection.

use bytes::Bytes;
use wire::call::Rejection;

use crate::call::failure::describe;
use crate::call::{CacheStatus, CacheTier, Payload};
use crate::config::Config;

/// The response to one call.
#[derive(Debug)]
pub(crate) struct CallReply<'a> {
    /// The raw bytes of the id; `null` if it could not be parsed.
    pub(crate) id: &'a [u8],
    pub(crate) content: Content<'a>,
    /// How the cache was involved; `None` if the call failed before the cache was used.
    pub(crate) cache_status: Option<CacheStatus>,
    /// The cache tier of a hit; `None` for the memory tier and without a hit.
    pub(crate) tier: Option<CacheTier>,
    /// Index of the upstream that sent the response. For a response from the cache, index of the
    /// upstream that sent it originally. `None` if the upstream is unknown, or if no upstream
    /// responded.
    pub(crate) upstream_index: Option<usize>,
}

/// The content of a reply: a payload, or the rejection of a call that cannot be parsed.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// The outcome of a call that was parsed.
    Payload(Payload),
    /// The reason why a call cannot be parsed.
    Rejected(Rejection<'a>),
}

impl Content<'_> {
    /// Returns the size of the result or error object in bytes; 0 for other contents.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Content::Payload(Payload::Result(bytes) | Payload::Error(bytes)) => bytes.len(),
            Content::Payload(Payload::Failed(_)) | Content::Rejected(_) => 0,
        }
    }
}

/// The response to one HTTP request.
#[derive(Debug)]
pub(crate) enum Reply<'a> {
    /// The request held only notifications, so the response body is empty.
    Empty,
    Single(CallReply<'a>),
    Batch(Vec<CallReply<'a>>),
}

/// A payload of at most this many bytes is copied into the buffer of its message's head. A larger
/// payload is sent from its own buffer, because a copy would cost more than a vectored write, and
/// would take memory again until the client has read it.
pub(crate) const COPY_BYTES_MAX: usize = 32 * 1024;

/// A response body in up to three parts. The parts are written one after another, so that a large
/// payload need not be copied.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// The bytes before the payload, or a small body.
    pub(crate) start: Vec<u8>,
    /// The payload, or a large body.
    pub(crate) middle: Bytes,
    /// The bytes after the payload.
    pub(crate) end: &'static [u8],
}

impl Body {
    /// Creates a body of one part. A large part counts as the payload, which is not copied.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Body {
        if bytes.len() > COPY_BYTES_MAX {
            return Body { start: Vec::new(), middle: bytes.into(), end: b"" };
        }
        Body { start: bytes, middle: Bytes::new(), end: b"" }
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len() + self.middle.len() + self.end.len()
    }

    /// Joins all parts. Copies nothing if there is one part.
    pub(crate) fn join(self) -> Vec<u8> {
        if self.start.is_empty() && self.end.is_empty() {
            return self.middle.into();
        }
        let mut bytes = self.start;
        bytes.extend_from_slice(&self.middle);
        bytes.extend_from_slice(self.end);
        bytes
    }
}

/// Returns the JSON-RPC error code of a reply; `None` if the reply is no error.
pub(crate) fn error_code(content: &Content<'_>, config: &Config) -> Option<i64> {
    match content {
        Content::Payload(Payload::Result(_)) => None,
        Content::Payload(Payload::Error(error)) => {
            let code = wire::json::walk::member(error, "code");
            let code = code.and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
            // An error without a code still counts as an error.
            Some(code.unwrap_or(0))
        }
        Content::Payload(Payload::Failed(failure)) => {
            Some(i64::from(describe(failure.kind, config).code.0))
        }
        Content::Rejected(rejection) => Some(i64::from(rejection.code.0)),
    }
}
