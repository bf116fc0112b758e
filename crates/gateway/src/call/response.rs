//! What came of a call: the response of an upstream, of a cache, or none.

use bytes::Bytes;
use wire::block::ResponseBlock;
use wire::block::response_blocks;

use crate::call::cache_status::Tier;
use crate::call::failure::Failure;
use crate::call::request::UpstreamRequest;
use crate::policy::cacheable::{Admission, ResponseFacts, ResponseKind, admit};
use crate::policy::complete::Trust;
use crate::policy::heads::ChainView;

/// What one call is answered with.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A `result`, as the upstream wrote it.
    Result(Bytes),
    /// An `error` object, as the upstream wrote it.
    Error(Bytes),
    /// No upstream gave an answer.
    Failed(Failure),
}

/// What came of asking; shared by everyone who asked the same.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamResponse {
    pub(crate) payload: Payload,
    /// Index of the upstream that answered.
    pub(crate) upstream: Option<usize>,
    /// Whether it may be cached, if that was judged when it came.
    pub(crate) judgement: Option<Judgement>,
    /// The tier of the cache behind memory that it comes from, if it comes from one.
    pub(crate) tier: Option<Tier>,
    /// How much it is trusted to lack nothing.
    pub(crate) trust: Trust,
}

impl UpstreamResponse {
    /// A response that no upstream gave.
    pub(crate) fn of(payload: Payload) -> UpstreamResponse {
        let (judgement, tier, trust) = (None, None, Trust::Whole);
        UpstreamResponse { payload, upstream: None, judgement, tier, trust }
    }

    pub(crate) fn failed(failure: Failure) -> UpstreamResponse {
        UpstreamResponse::of(Payload::Failed(failure))
    }
}

/// What the caching rules say of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judgement {
    /// What they looked at.
    pub(crate) facts: ResponseFacts,
    /// Whether the response may be cached, and if not, why.
    pub(crate) admit: Admission,
}

impl Judgement {
    /// Judges a response. `deterministic` says of an error that every upstream would repeat it for
    /// the same block.
    pub(crate) fn of(
        request: &UpstreamRequest<'_>,
        payload: &Payload,
        deterministic: bool,
        view: &ChainView,
    ) -> Judgement {
        let facts = facts(request, payload, deterministic);
        Judgement { facts, admit: admit(&request.caching, &facts, view) }
    }
}

fn facts(ask: &UpstreamRequest<'_>, payload: &Payload, deterministic: bool) -> ResponseFacts {
    let response_block = ask.method.map_or(ResponseBlock::None, |method| method.response_block);
    let (kind, named) = match payload {
        Payload::Result(result) if &**result == b"null" => (ResponseKind::Null, None),
        Payload::Result(result) => (ResponseKind::Value, response_blocks(response_block, result)),
        Payload::Error(_) if deterministic => (ResponseKind::DeterministicError, None),
        Payload::Error(_) | Payload::Failed(_) => (ResponseKind::Error, None),
    };
    ResponseFacts { kind, response_block, named }
}
