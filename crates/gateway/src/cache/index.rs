//! The index: a cache tier with past blocks of a chain, in an external file or database that the
//! gateway reads.
//!
//! The gateway does not check the index's results, so the index must check its blocks itself. For
//! this check, each query carries the chain view, the gateway's snapshot of the chain's newest
//! blocks. The index may use a block above the finalized block only if the view holds that block.
//!
//! The gateway looks up a call in memory, then in Redis, then in the index. For a range of logs the
//! index comes first, because one index query replaces many memory lookups.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::call::{CacheStatus, CacheTier, Payload, UpstreamRequest, UpstreamResponse};
use crate::metrics::label::IndexLookup;
use crate::policy::heads::ChainView;
use crate::upstream::chain::ReportedId;
use crate::upstream::thread::Upstreams;

/// A query to the index.
pub struct IndexQuery {
    /// The method's name.
    pub method: Box<str>,
    /// The raw array of parameters. If a block tag, such as `latest`, stands for one exact block,
    /// the block's number replaces the tag.
    pub params: Box<[u8]>,
    /// The gateway's snapshot of the chain's newest blocks.
    view: Arc<ChainView>,
}

impl IndexQuery {
    /// Returns the number of the last block that no reorg may drop, or `None` if it is unknown.
    pub fn settled(&self) -> Option<u64> {
        self.view.settled
    }

    /// Returns true if the gateway's view holds this block. The view covers only recent blocks.
    pub fn is_canonical(&self, number: u64, hash: &[u8; 32]) -> bool {
        self.view.canonical(number) == Some(*hash)
    }
}

/// The result of an index query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexResult {
    /// The raw result of the whole query.
    Complete(Bytes),
    /// A result for the blocks `from` to `to`, which are a part of the requested range. For a query
    /// of blocks, `from` is the first requested block.
    Partial {
        /// The first block.
        from: u64,
        /// The last block.
        to: u64,
        /// The raw array of the logs of these blocks, or of the blocks themselves.
        items: Bytes,
    },
    /// The index has no data for the query.
    NotStored,
}

/// An index backend. The backend runs queries on its own threads, so a serving thread never waits
/// for a disk.
pub trait Index: Send + Sync {
    /// Returns the name of the indexed chain.
    fn chain(&self) -> &str;
    /// Returns true if the index belongs to the chain with this id. The upstreams reported the id.
    fn serves_chain(&self, id: u64) -> bool;
    /// Returns true if the index supports a method.
    fn serves(&self, method: &str) -> bool;
    /// Runs a query and sends its result to `sender`. A dropped sender means that the query failed.
    fn start_query(&self, query: IndexQuery, sender: oneshot::Sender<IndexResult>);
}

/// Looks up a call in the index. Returns `None` if the index has no data, if it does not serve the
/// chain or the method, or if the query fails or takes too long.
pub(crate) async fn lookup(
    index: &Arc<dyn Index>,
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    params: &[u8],
) -> Option<IndexResult> {
    let chain = &upstreams.topology.chains[request.chain];
    if *index.chain() != *chain.name || !index.serves(&request.method_name) {
        return None;
    }
    let is_same_chain = match chain.reported_id() {
        // The gateway cannot verify yet that the index belongs to the chain.
        ReportedId::Pending => false,
        // The upstreams of some chains report no id. Then the name of the chain must suffice.
        ReportedId::Absent => true,
        ReportedId::Id(id) => index.serves_chain(id),
    };
    if !is_same_chain {
        return None;
    }
    let query = IndexQuery {
        method: Box::from(&*request.method_name),
        params: Box::from(params),
        view: chain.view.load_full(),
    };
    let (sender, receiver) = oneshot::channel();
    index.start_query(query, sender);
    // The index gets half of the remaining time. The other half is left for upstreams.
    let now = tokio::time::Instant::now();
    let deadline = now + request.deadline.saturating_duration_since(now) / 2;
    let received = tokio::time::timeout_at(deadline, receiver).await;
    upstreams.tick();
    let outcome = match &received {
        Ok(Ok(IndexResult::Complete(_))) => IndexLookup::Hit,
        Ok(Ok(IndexResult::Partial { .. })) => IndexLookup::Part,
        Ok(Ok(IndexResult::NotStored)) => IndexLookup::Miss,
        Ok(Err(_)) | Err(_) => IndexLookup::Failed,
    };
    upstreams.counters.index.lookups[outcome].add(1);
    received.ok()?.ok().filter(|result| *result != IndexResult::NotStored)
}

/// Converts a result of the index to a response.
pub(crate) fn response(result: Bytes) -> UpstreamResponse {
    let (cache_status, tier) = (CacheStatus::Hit, Some(CacheTier::Index));
    UpstreamResponse { cache_status, tier, ..UpstreamResponse::local(Payload::Result(result)) }
}
