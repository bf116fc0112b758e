//! What came of a call: the response of an upstream, of a cache, or none.

use bytes::Bytes;
use wire::block::named_blocks;
use wire::method::AnswerBlock;

use crate::call::cache_status::Tier;
use crate::call::failure::Failure;
use crate::call::request::UpstreamRequest;
use crate::policy::cacheable::{AnswerFacts, AnswerKind};
use crate::policy::complete::Trust;

/// What one call is answered with.
#[derive(Debug, Clone)]
pub(crate) enum Payload {
    /// A `result`, as the node wrote it.
    Result(Bytes),
    /// An `error` object, as the node wrote it.
    Error(Bytes),
    /// No node gave an answer.
    Failed(Failure),
}

/// What came of asking; shared by everyone who asked the same.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamResponse {
    pub(crate) payload: Payload,
    /// Index of the node that answered.
    pub(crate) node: Option<usize>,
    /// An error that every node would repeat for the same block.
    pub(crate) settled: bool,
    /// The tier of the cache behind memory that it comes from, if it comes from one.
    pub(crate) tier: Option<Tier>,
    /// How much it is trusted to lack nothing.
    pub(crate) trust: Trust,
}

impl UpstreamResponse {
    /// A response that no node gave.
    pub(crate) fn of(payload: Payload) -> UpstreamResponse {
        let (settled, tier, trust) = (false, None, Trust::Whole);
        UpstreamResponse { payload, node: None, settled, tier, trust }
    }

    pub(crate) fn failed(failure: Failure) -> UpstreamResponse {
        UpstreamResponse::of(Payload::Failed(failure))
    }
}

/// What the rules need to know of an answer.
pub(crate) fn facts(ask: &UpstreamRequest<'_>, payload: &Payload, settled: bool) -> AnswerFacts {
    let answer_block = ask.method.map_or(AnswerBlock::None, |method| method.answer_block);
    let (kind, named) = match payload {
        Payload::Result(result) if &**result == b"null" => (AnswerKind::Null, None),
        Payload::Result(result) => (AnswerKind::Value, named_blocks(answer_block, result)),
        Payload::Error(_) if settled => (AnswerKind::DeterministicError, None),
        Payload::Error(_) | Payload::Failed(_) => (AnswerKind::Error, None),
    };
    AnswerFacts { kind, answer_block, named }
}
