//! The response to a request of a client.

use bytes::Bytes;
use wire::call::Rejection;

use crate::call::cache_status::{CacheStatus, Tier};
use crate::call::failure::describe;
use crate::call::response::Payload;
use crate::config::Config;

/// The answer to one call.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    /// The id's bytes as they came; `null` where none could be read.
    pub(crate) id: &'a [u8],
    pub(crate) payload: Content<'a>,
    pub(crate) mark: Option<CacheStatus>,
    /// The tier behind memory that a hit comes from, if it comes from one.
    pub(crate) tier: Option<Tier>,
    /// The upstream that gave the answer, now or when it was kept.
    pub(crate) upstream: Option<usize>,
}

/// A payload, or the refusal of a call that no upstream is asked for.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Payload(Payload),
    Refused(Rejection<'a>),
}

impl Content<'_> {
    /// Bytes of the result or error as an upstream wrote it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Content::Payload(Payload::Result(bytes) | Payload::Error(bytes)) => bytes.len(),
            Content::Payload(Payload::Failed(_)) | Content::Refused(_) => 0,
        }
    }
}

/// The answer to one HTTP request.
#[derive(Debug)]
pub(crate) enum Reply<'a> {
    /// Only notifications came: an empty body.
    Nothing,
    One(Answered<'a>),
    Batch(Vec<Answered<'a>>),
}

/// A body in up to three parts, so that a large payload is not copied.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) start: Vec<u8>,
    pub(crate) middle: Bytes,
    pub(crate) end: &'static [u8],
}

impl Body {
    pub(crate) fn whole(start: Vec<u8>) -> Body {
        Body { start, middle: Bytes::new(), end: b"" }
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len() + self.middle.len() + self.end.len()
    }

    /// All parts in one.
    pub(crate) fn join(self) -> Vec<u8> {
        let mut whole = self.start;
        whole.extend_from_slice(&self.middle);
        whole.extend_from_slice(self.end);
        whole
    }
}

/// The code of a call's error, if it has one.
pub(crate) fn code_of(content: &Content<'_>, config: &Config) -> Option<i64> {
    match content {
        Content::Payload(Payload::Result(_)) => None,
        Content::Payload(Payload::Error(error)) => {
            let code = wire::json::walk::member(error, "code");
            let code = code.and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
            // An error without a code is one all the same.
            Some(code.unwrap_or(0))
        }
        Content::Payload(Payload::Failed(failure)) => {
            Some(i64::from(describe(failure.kind, config).0.0))
        }
        Content::Refused(refusal) => Some(i64::from(refusal.code.0)),
    }
}
