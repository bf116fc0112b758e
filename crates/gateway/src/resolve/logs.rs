//! `eth_getLogs`: resolves a range of blocks in parts.
//!
//! The range up to the finalized block is split into aligned chunks. The cache stores one response
//! per chunk, so overlapping ranges share chunks. The blocks above the finalized block form one
//! more part, whose response a reorg may make invalid. `policy/logs.rs` merges the responses of the
//! parts by copying whole log objects. If one part fails, the whole call fails with the upstream's
//! error. A filter that is not a range of blocks is forwarded to an upstream unchanged.
//!
//! A part that is too long for all upstreams is split into pieces before it is sent. A part that they
//! refuse as too large is split afterwards. A piece has fewer blocks, and pieces may be split again.

use std::borrow::Cow;
use std::cell::Cell;
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
use crate::policy::classify::read_error;
use crate::policy::heads::ChainView;
use crate::policy::logs::{LogsPlan, Part, covers, merge, plan_filter, split_around};
use crate::state::context::ThreadContext;

/// Maximum number of parts of one call that are resolved concurrently. It bounds the number of
/// upstream requests that the call has in flight.
const PARTS_CONCURRENCY: usize = 8;

/// Maximum number of pieces into which the parts of one call are split. It bounds the number of
/// upstream requests that one call causes. Beyond it, the client gets the refusal.
const PIECES_MAX: usize = 512;

/// Maximum number of pieces of one part that are resolved concurrently.
const PIECES_CONCURRENCY: usize = 4;

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
    let resolver = PartResolver {
        cx,
        request: &request,
        call_params: &call.params,
        method,
        filter: &filter,
        view: &view,
        budget,
        pieces_left: Cell::new(PIECES_MAX),
    };
    let requests = parts.iter().map(|part| {
        let indexed_part = indexed.as_ref().filter(|indexed| indexed.part == *part);
        let index_response = indexed_part.map(|indexed| indexed.response.clone());
        let resolver = &resolver;
        async move {
            match index_response {
                Some(response) => resolver.charge(response),
                None => resolver.resolve(*part).await,
            }
        }
    });
    let responses: Vec<UpstreamResponse> =
        futures_util::stream::iter(requests).buffered(PARTS_CONCURRENCY).collect().await;
    merge_parts(&parts, responses)
}

/// Resolves the parts of one call.
struct PartResolver<'a> {
    cx: &'a Rc<ThreadContext>,
    request: &'a UpstreamRequest<'a>,
    call_params: &'a Params<'a>,
    method: &'static Method,
    filter: &'a LogFilter<'a>,
    view: &'a ChainView,
    /// Limits the bytes of all responses.
    budget: ResponseBudget,
    /// Number of pieces into which parts may still be split.
    pieces_left: Cell<usize>,
}

impl PartResolver<'_> {
    /// Resolves a part, in pieces if it is too large for the upstreams.
    async fn resolve(&self, part: Part) -> UpstreamResponse {
        let blocks_max = self.cx.upstreams.log_range_max(self.request.group);
        let pieces = match blocks_max.filter(|blocks_max| *blocks_max < part.blocks()) {
            Some(blocks_max) => self.split(part, blocks_max),
            None => None,
        };
        if let Some(pieces) = pieces {
            return Box::pin(self.resolve_pieces(&pieces)).await;
        }
        let response = self.resolve_whole(part).await;
        let is_too_large = match &response.payload {
            Payload::Error(error) => {
                part.blocks() > 1 && read_error(error).is_some_and(|(kind, _)| kind.is_size())
            }
            _ => false,
        };
        if !is_too_large {
            return self.charge(response);
        }
        // The refusal may have shown the limit.
        let blocks_max = self.cx.upstreams.log_range_max(self.request.group);
        let half = part.blocks().div_ceil(2);
        match self.split(part, blocks_max.map_or(half, |blocks_max| blocks_max.min(half))) {
            Some(pieces) => Box::pin(self.resolve_pieces(&pieces)).await,
            None => response,
        }
    }

    /// Charges a response to the budget. Returns a failure instead if the responses are too large.
    fn charge(&self, response: UpstreamResponse) -> UpstreamResponse {
        let Payload::Result(logs) = &response.payload else { return response };
        match self.budget.add(logs.len()) {
            Ok(()) => response,
            Err(kind) => UpstreamResponse {
                cache_status: response.cache_status,
                ..UpstreamResponse::from_failure(Failure::ours(kind))
            },
        }
    }

    /// Splits a part into pieces of at most `blocks_max` blocks. Returns `None` if the call has too
    /// many pieces.
    fn split(&self, part: Part, blocks_max: u64) -> Option<Vec<Part>> {
        let pieces = part.split(blocks_max, self.pieces_left.get())?;
        self.pieces_left.update(|left| left - pieces.len());
        Some(pieces)
    }

    /// Resolves pieces and merges their responses. Stops at the first failure.
    async fn resolve_pieces(&self, pieces: &[Part]) -> UpstreamResponse {
        let resolved = pieces.iter().map(|piece| self.resolve(*piece));
        let mut resolved = futures_util::stream::iter(resolved).buffered(PIECES_CONCURRENCY);
        let mut responses = Vec::with_capacity(pieces.len());
        while let Some(response) = resolved.next().await {
            if !matches!(response.payload, Payload::Result(_)) {
                return response;
            }
            responses.push(response);
        }
        merge_parts(pieces, responses)
    }

    /// Resolves a part by one call.
    async fn resolve_whole(&self, part: Part) -> UpstreamResponse {
        let mut params = Vec::new();
        self.filter.write_params(&mut params, part.from, part.to);
        let (params, caching) = (Some(Cow::Owned(params)), part.caching(self.view));
        let request = UpstreamRequest { params, caching, ..self.request.clone() };
        let range = ResolvedBlock::Range { from: part.from, to: part.to };
        resolve_part(self.cx, request, self.call_params, self.method, Some(range), self.view).await
    }
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
