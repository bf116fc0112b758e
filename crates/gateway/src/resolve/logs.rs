//! `eth_getLogs`: resolves a range of blocks in parts.
//!
//! The finalized part is split into aligned chunks, which are cached and shared by overlapping
//! ranges. The part above the finalized block is valid only on the head's branch. The parts'
//! responses are merged by copying whole log objects (`policy/logs.rs`). If one part fails, the
//! whole call fails with the upstream's error. A filter that is not a plain range is forwarded
//! unchanged.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::StreamExt;
use wire::block::BlockRef;
use wire::call::{Call, Params};
use wire::filter::LogFilter;
use wire::key::ResolvedBlock;
use wire::method::Method;

use super::{cached_response, is_keyed, resolve_uncached, write_call_key};
use crate::cache::index;
use crate::cache::index::IndexResult;
use crate::call::cache_status::CacheStatus;
use crate::call::failure::{Failure, Kind};
use crate::call::request::UpstreamRequest;
use crate::call::response::{Payload, UpstreamResponse};
use crate::io::memory::{Full, Reservation};
use crate::policy::cacheable::{CacheRule, Caching};
use crate::policy::heads::ChainView;
use crate::policy::logs::{LogsPlan, Part, covers, merge, plan_filter, split_around};
use crate::policy::memory::Purpose;
use crate::state::context::ThreadContext;

/// Maximum parts of one range in flight.
const PARTS_CONCURRENCY: usize = 8;

/// Resolves a call for logs.
pub(super) async fn resolve(
    cx: &Rc<ThreadContext>,
    request: UpstreamRequest<'_>,
    call: &Call<'_>,
    method: &'static Method,
) -> (UpstreamResponse, CacheStatus) {
    let config = &cx.snapshot.config.cache;
    let view = cx.snapshot.chains[request.chain].view.load_full();
    let filter = LogFilter::from_params(&call.params).ok().filter(|_| cx.snapshot.cache.is_some());
    let Some(filter) = filter else { return resolve_uncached(cx, request, None).await };
    let (chunk, parts_max) = (config.logs_chunk_blocks, config.logs_parts_max);
    let parts = match plan_filter(&filter, &view, chunk, parts_max) {
        LogsPlan::Forward => {
            // The view has no head while no upstream is usable. Only the index can respond then.
            if let (None, Some(range)) = (view.head, numbered_range(&filter))
                && let Some((part, response)) = lookup_index(cx, &request, &filter, &[range]).await
                && covers(part, &[range])
            {
                return (response, CacheStatus::Hit);
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
    let index_response = lookup_index(cx, &request, &filter, &parts).await;
    let parts = match &index_response {
        Some((part, response)) if covers(*part, &parts) => {
            return (response.clone(), CacheStatus::Hit);
        }
        Some((part, _)) => split_around(*part, &parts),
        None => parts,
    };
    let bytes_left = Cell::new(cx.snapshot.config.groups[request.group].response_bytes_max);
    let reservation = Reservation::new(&cx.snapshot.registry.memory, Purpose::Response);
    let reserved = RefCell::new((reservation, 0));
    let requests = parts.iter().map(|part| {
        let mut params = Vec::new();
        filter.write_params(&mut params, part.from, part.to);
        let params = Some(Cow::Owned(params));
        let request = UpstreamRequest { params, caching: part.caching(&view), ..request.clone() };
        let range = ResolvedBlock::Range { from: part.from, to: part.to };
        let index_response = index_response
            .as_ref()
            .filter(|(indexed, _)| indexed == part)
            .map(|(_, response)| response);
        let (index_response, call, view, bytes_left) =
            (index_response.cloned(), &call.params, &view, &bytes_left);
        let reserved = &reserved;
        async move {
            let (response, status) = match index_response {
                Some(response) => (response, CacheStatus::Hit),
                None => resolve_part(cx, request, call, method, Some(range), view).await,
            };
            // All parts together must respect the limit of one response.
            let Payload::Result(logs) = &response.payload else { return (response, status) };
            let Some(remaining) = bytes_left.get().checked_sub(logs.len()) else {
                return (UpstreamResponse::from_failure(Failure::ours(Kind::TooLarge)), status);
            };
            bytes_left.set(remaining);
            let (reservation, total_bytes) = &mut *reserved.borrow_mut();
            *total_bytes += logs.len();
            match reservation.set(*total_bytes) {
                Ok(()) => (response, status),
                Err(Full) => (UpstreamResponse::from_failure(Failure::ours(Kind::Memory)), status),
            }
        }
    });
    let resolved: Vec<(UpstreamResponse, CacheStatus)> =
        futures_util::stream::iter(requests).buffered(PARTS_CONCURRENCY).collect().await;
    merge_parts(&parts, resolved)
}

/// Returns the range of a filter if its bounds are block numbers in ascending order.
fn numbered_range(filter: &LogFilter<'_>) -> Option<Part> {
    match (filter.block_hash, filter.from, filter.to) {
        (None, Some(BlockRef::Number(from)), Some(BlockRef::Number(to))) if from <= to => {
            Some(Part { from, to, finalized: true })
        }
        _ => None,
    }
}

/// Returns the index's logs for a range, if the index has a contiguous part of the range.
async fn lookup_index(
    cx: &Rc<ThreadContext>,
    request: &UpstreamRequest<'_>,
    filter: &LogFilter<'_>,
    parts: &[Part],
) -> Option<(Part, UpstreamResponse)> {
    cx.snapshot.process.index()?;
    let (from, to) = (parts.first()?.from, parts.last()?.to);
    let mut params = Vec::new();
    filter.write_params(&mut params, from, to);
    match index::lookup(cx.snapshot.process.index(), &cx.upstream, request, &params).await? {
        IndexResult::Complete(logs) => {
            Some((Part { from, to, finalized: true }, index::response(logs)))
        }
        IndexResult::Partial { from, to, items } => {
            Some((Part { from, to, finalized: true }, index::response(items)))
        }
        IndexResult::Missing => None,
    }
}

/// Resolves one part, or a filter by hash.
pub(super) async fn resolve_part(
    cx: &Rc<ThreadContext>,
    request: UpstreamRequest<'_>,
    params: &Params<'_>,
    method: &'static Method,
    block: Option<ResolvedBlock>,
    view: &ChainView,
) -> (UpstreamResponse, CacheStatus) {
    let mut key = Vec::new();
    let has_key = is_keyed(&request.caching, request.coalesce)
        && write_call_key(cx, &mut key, request.chain, method, params, block);
    if has_key && let Some(response) = cached_response(cx, &key, view) {
        return (response, CacheStatus::Hit);
    }
    resolve_uncached(cx, request, has_key.then_some(&key[..])).await
}

/// Merges the responses of the parts, which are in block order.
fn merge_parts(
    parts: &[Part],
    mut resolved: Vec<(UpstreamResponse, CacheStatus)>,
) -> (UpstreamResponse, CacheStatus) {
    let all_hits = resolved.iter().all(|(_, status)| *status == CacheStatus::Hit);
    let status = if all_hits { CacheStatus::Hit } else { CacheStatus::Miss };
    if resolved.len() == 1
        && let Some((response, status)) = resolved.pop()
    {
        return (response, status);
    }
    let failed_index =
        resolved.iter().position(|(response, _)| !matches!(response.payload, Payload::Result(_)));
    if let Some(failed_index) = failed_index {
        return (resolved.swap_remove(failed_index).0, status);
    }
    let upstream = resolved.last().and_then(|(response, _)| response.upstream);
    let results: Vec<(Part, &[u8])> = parts
        .iter()
        .zip(&resolved)
        .filter_map(|(part, (response, _))| match &response.payload {
            Payload::Result(result) => Some((*part, &**result)),
            _ => None,
        })
        .collect();
    match merge(&results) {
        Ok(merged) => (
            UpstreamResponse {
                upstream,
                ..UpstreamResponse::local(Payload::Result(merged.into()))
            },
            status,
        ),
        // An upstream returned logs from outside the part, or no logs at all.
        Err(_) => (UpstreamResponse::from_failure(Failure::ours(Kind::Malformed)), status),
    }
}
