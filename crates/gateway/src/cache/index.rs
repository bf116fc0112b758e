//! The tier of the cache that holds a chain's past: a file or a database that somebody else keeps
//! and reads.
//!
//! What it says is believed as it is, so it is told what may be said: a question carries the view
//! of the chain, and blocks above the final one count only if they are on the chain as we believe.
//! Asked last, after memory and Redis, and before upstreams; for a range of logs first, since one
//! question answers what memory would have to put together from many parts.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::call::cache_status::Tier;
use crate::call::request::UpstreamRequest;
use crate::call::response::{Payload, UpstreamResponse};
use crate::metrics::label::IndexLookup;
use crate::policy::heads::ChainView;
use crate::upstream::thread::UpstreamContext;

/// A call for the index.
pub struct Question {
    /// The method.
    pub method: Box<str>,
    /// The raw array of its parameters, with numbers in place of tags where that is exact.
    pub params: Box<[u8]>,
    view: Arc<ChainView>,
}

impl Question {
    /// The last block that no reorg may drop; none if that is not known.
    pub fn finalized(&self) -> Option<u64> {
        self.view.finalized
    }

    /// Whether a block is on the chain as the gateway believes, as far back as it remembers.
    pub fn is_canonical(&self, number: u64, hash: &[u8; 32]) -> bool {
        self.view.canonical(number) == Some(*hash)
    }
}

/// What the index has for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The raw result.
    Whole(Bytes),
    /// The array of the logs of blocks `from` to `to`, or of these blocks themselves, which are a
    /// part of those asked for; of blocks it is the first.
    Part {
        /// The first block.
        from: u64,
        /// The last block.
        to: u64,
        /// The raw array.
        listed: Bytes,
    },
    /// Nothing.
    Nothing,
}

/// Who reads the index. It answers from threads of its own: a serving thread never waits for a
/// disk.
pub trait Index: Send + Sync {
    /// Name of the chain that it is of.
    fn chain(&self) -> &str;
    /// Whether it is of the chain with this id, which its upstreams have shown.
    fn is_of(&self, id: u64) -> bool;
    /// Whether it may have answers to a method.
    fn serves(&self, method: &str) -> bool;
    /// Asks it. A sender that is dropped says that there is nothing.
    fn ask(&self, question: Question, answer: oneshot::Sender<Found>);
}

/// What the index has for a call; none where there is no index, or it has nothing.
pub(crate) async fn recall(
    index: Option<&Arc<dyn Index>>,
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    params: &[u8],
) -> Option<Found> {
    let index = index?;
    let chain = &cx.topology.chains[ask.chain];
    if *index.chain() != *chain.name || !index.serves(&ask.name) {
        return None;
    }
    // Before an upstream has shown its chain there is nothing to hold the index against.
    if !chain.reported_id()?.is_none_or(|id| index.is_of(id)) {
        return None;
    }
    let question = Question {
        method: Box::from(&*ask.name),
        params: Box::from(params),
        view: chain.view.load_full(),
    };
    let (sender, receiver) = oneshot::channel();
    index.ask(question, sender);
    // Half of the time is for upstreams, should nothing be heard.
    let now = tokio::time::Instant::now();
    let until = now + ask.deadline.saturating_duration_since(now) / 2;
    let found = tokio::time::timeout_at(until, receiver).await;
    cx.tick();
    let outcome = match &found {
        Ok(Ok(Found::Whole(_))) => IndexLookup::Hit,
        Ok(Ok(Found::Part { .. })) => IndexLookup::Part,
        Ok(Ok(Found::Nothing)) => IndexLookup::Miss,
        Ok(Err(_)) | Err(_) => IndexLookup::Failed,
    };
    cx.counters.index.lookups[outcome].add(1);
    found.ok()?.ok().filter(|found| *found != Found::Nothing)
}

/// A result of the index as an answer.
pub(crate) fn fetched(result: Bytes) -> UpstreamResponse {
    UpstreamResponse { tier: Some(Tier::Index), ..UpstreamResponse::of(Payload::Result(result)) }
}
