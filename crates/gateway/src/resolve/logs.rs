//! `eth_getLogs`: resolves a range of blocks in parts.
//!
//! The range up to the finalized block is split into aligned chunks. The cache stores one response
//! per chunk, so overlapping ranges share chunks. The blocks above the finalized block form one
//! more part, whose response a reorg may make invalid. `policy/logs.rs` merges the responses of the
//! parts by copying whole log objects. If one part fails, the whole call fails with the upstream's
//! error. A filter that is not a range of blocks is forwarded to an upstream unchanged.

use std::borrow::Cow;
use std::rc::Rc;

use futures_util::StreamExt;
use wire::block::BlockRef;
use wire::call::{Call, Params};
use wire::filter::LogFilter;
use wire::key::ResolvedBlock;
use wire::method::Method;

use super::{find_cached_response, needs_key, resolve_uncached, write_call_key};
use crate::cache::index::{self, IndexResult};
use crate::call::failure::{Failure, FailureKind};
use crate::call::{CacheStatus, Payload, ResponseBudget, UpstreamRequest, UpstreamResponse};
use crate::policy::cacheable::{CacheRule, Caching};
use crate::policy::heads::ChainView;
use crate::policy::logs::{LogsPlan, Part, covers, merge, plan_filter, split_around};
use crate::state::context::ThreadContext;

/// Maximum number of parts of one call that are resolved concurrently. It bounds the number of
/// upstream requests that the call has in flight.
const PARTS_CONCURRENCY: usize = 8;

/// Resolves a call for logs. Splits the range of its filter into parts, and merges the responses.
pub(super) async fn resolve(
    cx: &Rc<ThreadContext>,
    request: UpstreamRequest<'_>,
    call: &Call<'_>,
    method: &'static Method,
) -> UpstreamResponse {
    let config = &cx.snapshot.config.cache;
    let view = cx.snapshot.chains[request.chain].view.load_full();
    let filter = LogFilter::from_params(&call.params).ok().filter(|_| cx.snapshot.cache.is_some());
    let Some(filter) = filter else { return resolve_uncached(cx, request, None).await };
    let (chunk_blocks, parts_max) = (config.logs_chunk_blocks, config.logs_parts_max);
    let parts = match plan_filter(&filter, &view, chunk_blocks, parts_max) {
        LogsPlan::Forward => {
            // If no upstream is usable, the view (the snapshot of the chain's newest blocks) has no
            // head. Then only the index can respond.
            if let (None, Some(range)) = (view.head, find_numbered_range(&filter))
                && let Some(indexed) = lookup_index(cx, &request, &filter, &[range]).await
                && covers(indexed.part, &[range])
            {
                return indexed.response;
            }
            return resolve_uncached(cx, request, None).await;
        }
        LogsPlan::ByHash => {
            let caching = Caching { rule: CacheRule::AtHash, ..request.caching };
            let request = UpstreamRequest { caching, ..request };
            return resolve_part(cx, request, &call.params, method, None, &view).await;
        }
        LogsPlan::Parts(parts) => parts,
    };
    let indexed = lookup_index(cx, &request, &filter, &parts).await;
    let parts = match &indexed {
        Some(indexed) if covers(indexed.part, &parts) => return indexed.response.clone(),
        Some(indexed) => split_around(indexed.part, &parts),
        None => parts,
    };
    // The size limit of one response applies to the sum of all parts.
    let bytes_max = cx.snapshot.config.groups[request.group].response_bytes_max;
    let budget = ResponseBudget::new(&cx.snapshot.process.memory, bytes_max, FailureKind::TooLarge);
    let requests = parts.iter().map(|part| {
        let mut params = Vec::new();
        filter.write_params(&mut params, part.from, part.to);
        let params = Some(Cow::Owned(params));
        let request = UpstreamRequest { params, caching: part.caching(&view), ..request.clone() };
        let range = ResolvedBlock::Range { from: part.from, to: part.to };
        let indexed_part = indexed.as_ref().filter(|indexed| indexed.part == *part);
        let index_response = indexed_part.map(|indexed| indexed.response.clone());
        let (call_params, view, budget) = (&call.params, &view, &budget);
        async move {
            let response = match index_response {
                Some(response) => response,
                None => resolve_part(cx, request, call_params, method, Some(range), view).await,
            };
            if let Payload::Result(logs) = &response.payload
                && let Err(kind) = budget.add(logs.len())
            {
                let failed = UpstreamResponse::from_failure(Failure::ours(kind));
                return UpstreamResponse { cache_status: response.cache_status, ..failed };
            }
            response
        }
    });
    let responses: Vec<UpstreamResponse> =
        futures_util::stream::iter(requests).buffered(PARTS_CONCURRENCY).collect().await;
    merge_parts(&parts, responses)
}

/// Returns the range of a filter; `None` if its bounds are not block numbers in ascending order.
fn find_numbered_range(filter: &LogFilter<'_>) -> Option<Part> {
    match (filter.block_hash, filter.from, filter.to) {
        (None, Some(BlockRef::Number(from)), Some(BlockRef::Number(to))) if from <= to => {
            // `covers` ignores the flag `finalized`.
            Some(Part { from, to, finalized: true })
        }
        _ => None,
    }
}

/// The index's logs for a contiguous part of a range.
struct IndexedLogs {
    /// The range of blocks that the logs cover. Its flag `finalized` has no effect.
    part: Part,
    response: UpstreamResponse,
}

/// Looks up the logs of the whole range of `parts` in the index. The index may return a contiguous
/// part of the range. Returns `None` if there is no index, if the index has no data of the range,
/// or if the query fails.
async fn lookup_index(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    filter: &LogFilter<'_>,
    parts: &[Part],
) -> Option<IndexedLogs> {
    let index = cx.snapshot.index.get()?;
    let (from, to) = (parts.first()?.from, parts.last()?.to);
    let mut params = Vec::new();
    filter.write_params(&mut params, from, to);
    let (from, to, logs) = match index::lookup(index, &cx.upstreams, request, &params).await? {
        IndexResult::Complete(logs) => (from, to, logs),
        IndexResult::Partial { from, to, items } => (from, to, items),
        IndexResult::NotStored => return None,
    };
    let part = Part { from, to, finalized: true };
    Some(IndexedLogs { part, response: index::response(logs) })
}

/// Resolves one part of a range, or a call that names a block by its hash. `range` is the part's
/// range of blocks; `None` for a call by hash.
pub(super) async fn resolve_part(
    cx: &Rc<ThreadContext>,
    request: UpstreamRequest<'_>,
    params: &Params<'_>,
    method: &'static Method,
    range: Option<ResolvedBlock>,
    view: &ChainView,
) -> UpstreamResponse {
    let mut key = Vec::new();
    let has_key = needs_key(&request.caching, request.coalesce)
        && write_call_key(cx, &mut key, request.chain, method, params, range);
    if has_key && let Some(response) = find_cached_response(cx, &key, view) {
        return response;
    }
    resolve_uncached(cx, request, has_key.then_some(&key[..])).await
}

/// Merges the responses of the parts. `parts` and `responses` are in block order. If parts failed,
/// returns the response of the first failed part.
fn merge_parts(parts: &[Part], mut responses: Vec<UpstreamResponse>) -> UpstreamResponse {
    if responses.len() == 1
        && let Some(response) = responses.pop()
    {
        return response;
    }
    let all_hits = responses.iter().all(|response| response.cache_status == CacheStatus::Hit);
    let cache_status = if all_hits { CacheStatus::Hit } else { CacheStatus::Miss };
    let is_failed = |response: &UpstreamResponse| !matches!(response.payload, Payload::Result(_));
    if let Some(failed_index) = responses.iter().position(is_failed) {
        return UpstreamResponse { cache_status, ..responses.swap_remove(failed_index) };
    }
    let results = parts.iter().zip(&responses).filter_map(|(part, response)| {
        let Payload::Result(result) = &response.payload else { return None };
        Some((*part, &**result))
    });
    let results: Vec<(Part, &[u8])> = results.collect();
    let (payload, upstream) = match merge(&results) {
        Ok(merged) => {
            let last = responses.last();
            (Payload::Result(merged.into()), last.and_then(|response| response.upstream))
        }
        // An upstream returned logs of other blocks, or something other than a list of logs.
        Err(_) => (Payload::Failed(Failure::ours(FailureKind::Malformed)), None),
    };
    UpstreamResponse { upstream, cache_status, ..UpstreamResponse::local(payload) }
}
