//! The outcome of a call: a response of an upstream or a cache, or a failure.

use bytes::Bytes;
use wire::block::ResponseBlock;
use wire::block::response_blocks;

use crate::call::cache_status::Tier;
use crate::call::failure::Failure;
use crate::call::request::UpstreamRequest;
use crate::policy::cacheable::{Admission, ResponseFacts, ResponseKind, admit};
use crate::policy::complete::Trust;
use crate::policy::heads::ChainView;

/// The payload of a response.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A `result`, as the upstream wrote it.
    Result(Bytes),
    /// An `error` object, as the upstream wrote it.
    Error(Bytes),
    /// No response was received.
    Failed(Failure),
}

/// The response to a call; coalesced calls share it.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamResponse {
    pub(crate) payload: Payload,
    /// Index of the upstream that sent it.
    pub(crate) upstream: Option<usize>,
    /// The caching decision, if it was made when the response arrived.
    pub(crate) judgement: Option<Judgement>,
    /// The cache tier behind memory that the response comes from, if any.
    pub(crate) tier: Option<Tier>,
    /// Degree of trust that the response is complete.
    pub(crate) trust: Trust,
}

impl UpstreamResponse {
    /// Creates a response that comes from no upstream.
    pub(crate) fn local(payload: Payload) -> UpstreamResponse {
        let (judgement, tier, trust) = (None, None, Trust::Undoubted);
        UpstreamResponse { payload, upstream: None, judgement, tier, trust }
    }

    /// Creates the response to a call that failed.
    pub(crate) fn from_failure(failure: Failure) -> UpstreamResponse {
        UpstreamResponse::local(Payload::Failed(failure))
    }
}

/// The caching decision for a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judgement {
    /// The properties that the decision is based on.
    pub(crate) facts: ResponseFacts,
    /// Decision whether the response may be cached, and the reason.
    pub(crate) admit: Admission,
}

impl Judgement {
    /// Decides whether a response may be cached. `deterministic` is true if every upstream would
    /// return this error for the same block.
    pub(crate) fn new(
        request: &UpstreamRequest<'_>,
        payload: &Payload,
        deterministic: bool,
        view: &ChainView,
    ) -> Judgement {
        let facts = facts_of(request, payload, deterministic);
        Judgement { facts, admit: admit(&request.caching, &facts, view) }
    }
}

fn facts_of(
    request: &UpstreamRequest<'_>,
    payload: &Payload,
    deterministic: bool,
) -> ResponseFacts {
    let response_block = request.method.map_or(ResponseBlock::None, |method| method.response_block);
    let (kind, named_blocks) = match payload {
        Payload::Result(result) if &**result == b"null" => (ResponseKind::Null, None),
        Payload::Result(result) => (ResponseKind::Value, response_blocks(response_block, result)),
        Payload::Error(_) if deterministic => (ResponseKind::DeterministicError, None),
        Payload::Error(_) | Payload::Failed(_) => (ResponseKind::Error, None),
    };
    ResponseFacts { kind, response_block, named_blocks }
}
