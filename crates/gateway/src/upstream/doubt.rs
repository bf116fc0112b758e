//! Checks whether a response is complete, by comparing it with the headers of its blocks. A
//! response that may be incomplete is doubtful; a [`DoubtedResponse`] summarizes it.
//!
//! `policy/complete.rs` decides. This file collects the inputs of the decision: the blocks of the
//! call, the chain's headers, and the upstream's *depth*. The *head* is the newest block of the
//! chain. The depth is the greatest distance below the head, in blocks, at which the upstream has
//! returned logs.

use wire::block::{BlockRef, BlockTag};
use wire::call::Params;
use wire::filter::LogFilter;
use wire::json::walk;
use wire::logs::LogMatcher;
use wire::method::{Method, Nullable, Validity};
use wire::quantity;

use crate::call::{Payload, UpstreamRequest};
use crate::policy::absence::{Absence, check_block, find_number};
use crate::policy::block_headers::BloomQuery;
use crate::policy::classify::{Fault, Verdict};
use crate::policy::complete::{
    Doubt, DoubtedResponse, Evidence, Span, YOUNG_BLOCKS, check_logs, check_receipts,
    check_transaction,
};
use crate::policy::heads::ChainView;
use crate::upstream::send::Attempt;
use crate::upstream::thread::Upstreams;

/// Checks the response of an attempt: lists of logs, receipts of a block, and nulls with the result
/// `absence` of [`find_absence`]. Returns a summary of a doubtful response; `None` if nothing
/// indicates that the response is incomplete.
pub(crate) fn check_completeness(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    attempt: &Attempt,
    absence: Option<Absence>,
) -> Option<DoubtedResponse> {
    let (Verdict::Response, Some(Payload::Result(result))) = (attempt.verdict, &attempt.payload)
    else {
        return None;
    };
    if let Some(absence) = absence {
        return Some(DoubtedResponse::new(absence.doubt(), result));
    }
    let params = Params::Array(request.params.as_deref()?);
    let doubt = match request.method_row? {
        method if method.validity == Validity::Logs => {
            assess_logs(upstreams, request, attempt.upstream, result)?
        }
        method if returns_receipts(method) => {
            assess_receipts(upstreams, request, method, &params, result)?
        }
        _ => return None,
    };
    (doubt != Doubt::None).then(|| DoubtedResponse::new(doubt, result))
}

/// Returns true if the result lists the receipts of a block.
fn returns_receipts(method: &Method) -> bool {
    method.name.ends_with("_getBlockReceipts") || method.name == "debug_getRawReceipts"
}

/// Compares the response of an upstream that does not have a block, transaction or item of a block
/// with the view. Returns `None` for all other responses.
pub(crate) fn find_absence(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    attempt: &Attempt,
) -> Option<Absence> {
    let method = request.method_row.filter(|method| !method.write && !method.sticky)?;
    let result: Option<&[u8]> = match (attempt.verdict, &attempt.payload) {
        (Verdict::Response, Some(Payload::Result(result)))
            if &**result == b"null" || lacks_signers(method, result) =>
        {
            Some(result)
        }
        (Verdict::UpstreamFault(Fault::NotSynced), Some(Payload::Error(_))) => None,
        _ => return None,
    };
    let params = request.params.as_deref().map_or(Params::Absent, Params::Array);
    let absence = if let Some((block, _position)) = method.block_ref(&params).ok()? {
        let has_item = match result {
            Some(b"null") => has_item(upstreams, request, method, &block, &params),
            Some(_) => Some(has_signers(upstreams, request, method, &block)?),
            None => Some(true),
        };
        let view = upstreams.topology.chains[request.chain].view.load();
        match has_item {
            Some(false) => return None,
            known => check_block(&block, known.is_none(), &view)?,
        }
    } else if method.validity == Validity::Transaction {
        let hash = walk::elements(params.raw_or_empty()).next()?;
        match with_evidence(upstreams, request, 0, |evidence| check_transaction(hash, evidence)) {
            Doubt::None => Absence::Unknown,
            _ => Absence::Known { is_recent: true },
        }
    } else {
        return None;
    };
    // An error about an unknown block is retried at every other upstream.
    (result.is_some() || absence != Absence::Unknown).then_some(absence)
}

/// Returns true if the result has no signers although the method returns the signers of a block.
fn lacks_signers(method: &Method, result: &[u8]) -> bool {
    method.blocks_behind_head > 0
        && (result == b"[]" || memchr::memmem::find(result, b"\"signers\":[]").is_some())
}

/// Returns whether the block has signers: later blocks carry them, and block 0 has none. Returns
/// `None` if the height of the block is not known.
fn has_signers(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    method: &Method,
    block: &BlockRef,
) -> Option<bool> {
    let view = upstreams.topology.chains[request.chain].view.load();
    let number = find_number(block, &view)?;
    Some(number > 0 && number + method.blocks_behind_head <= view.head?.number)
}

/// Returns whether the block has the item that the call names. Returns `None` if this is not known.
fn has_item(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    method: &Method,
    block: &BlockRef,
    params: &Params<'_>,
) -> Option<bool> {
    match method.nullable {
        Nullable::Never => Some(true),
        Nullable::WithoutItem => None,
        Nullable::WithoutTransaction => {
            let raw_index = walk::elements(params.raw_or_empty()).nth(1)?;
            let index =
                quantity::from_value(raw_index).or_else(|| quantity::parse_decimal(raw_index))?;
            with_evidence(upstreams, request, 0, |Evidence { view, headers, .. }| {
                let hash = view.canonical(find_number(block, view)?)?;
                let count = headers.get(&hash)?.transaction_count()?;
                Some(index < count as u64)
            })
        }
    }
}

/// Returns true if the response is `null` although the call names the newest block by a tag.
pub(crate) fn is_null_head(request: &UpstreamRequest<'_>, payload: &Payload) -> bool {
    let is_null = matches!(payload, Payload::Result(result) if &**result == b"null");
    let names_head = |method: &Method| {
        let params = request.params.as_deref().map_or(Params::Absent, Params::Array);
        let block = method.block_ref(&params).ok().flatten();
        request.caching.resolved_height.is_some()
            || matches!(block, Some((BlockRef::Tag(BlockTag::Latest), _)))
    };
    is_null
        && request
            .method_row
            .is_some_and(|method| method.nullable == Nullable::Never && names_head(method))
}

/// Calls `check` with the current view and headers of the chain. `depth` is the upstream's depth; 0
/// if it is unknown or `check` does not need it.
fn with_evidence<T>(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    depth: u64,
    check: impl FnOnce(Evidence<'_>) -> T,
) -> T {
    let chain = &upstreams.topology.chains[request.chain];
    let view = chain.view.load();
    let headers = chain.headers.read();
    check(Evidence { view: &view, headers: &headers, depth, now: upstreams.now() })
}

/// Checks a list of logs; `None` if the list cannot be checked.
fn assess_logs(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    upstream: usize,
    result: &[u8],
) -> Option<Doubt> {
    let raw_filter = walk::elements(request.params.as_deref()?).next()?;
    let filter = LogFilter::parse(raw_filter).ok()?;
    let query = BloomQuery::new(&LogMatcher::parse(raw_filter).ok()?);
    let chain = &upstreams.topology.chains[request.chain];
    let span = find_filtered_blocks(&filter, &chain.view.load())?;
    if result.first() != Some(&b'[') {
        return None;
    }
    let now = upstreams.now();
    let logs_depth = &upstreams.topology.upstreams[upstream].logs_depth;
    let depth = logs_depth.lock().get(now);
    let checked = with_evidence(upstreams, request, depth, |evidence| {
        check_logs(&query, span, result, evidence)
    });
    if let Some(depth) = checked.depth {
        logs_depth.lock().record(depth, now);
    }
    // If the result has logs that the bloom filter of their block excludes, the chain's bloom
    // filters are unreliable.
    if checked.has_unfilled_blooms {
        chain.headers.write().distrust_blooms();
    }
    Some(checked.doubt)
}

/// Returns true if the upstream does not have the blocks of a call for logs.
pub(crate) fn lacks_blocks_of_range(request: &UpstreamRequest<'_>, attempt: &Attempt) -> bool {
    attempt.verdict == Verdict::UpstreamFault(Fault::NotSynced)
        && matches!(attempt.payload, Some(Payload::Error(_)))
        && request.method_row.is_some_and(|method| method.validity == Validity::Logs)
}

/// Returns true if a call for logs names a range that ends above the served head.
pub(crate) fn ends_above_head(upstreams: &Upstreams, request: &UpstreamRequest<'_>) -> bool {
    let raw_filter = request.params.as_deref().and_then(|params| walk::elements(params).next());
    let filter = raw_filter.and_then(|raw| LogFilter::parse(raw).ok());
    let head = upstreams.topology.chains[request.chain].view.load().head;
    match (filter.and_then(|filter| filter.to), head) {
        (Some(BlockRef::Number(to)), Some(head)) => to > head.number,
        _ => false,
    }
}

/// Returns the blocks that a filter covers; `None` if they cannot be determined.
fn find_filtered_blocks(filter: &LogFilter<'_>, view: &ChainView) -> Option<Span> {
    if let Some(hash) = filter.block_hash {
        return Some(Span::Hash(hash));
    }
    let head = view.head?.number;
    let from = match filter.from.unwrap_or(BlockRef::Tag(BlockTag::Latest)) {
        BlockRef::Number(number) => number,
        BlockRef::Tag(BlockTag::Latest) => head,
        BlockRef::Tag(BlockTag::Finalized) if view.finalized_by_upstreams => view.finalized?,
        // The gateway does not know the heights of the other tags, so only recent blocks are
        // checked.
        _ => head.saturating_sub(YOUNG_BLOCKS),
    };
    let to = match filter.to.unwrap_or(BlockRef::Tag(BlockTag::Latest)) {
        BlockRef::Number(number) => number,
        BlockRef::Tag(BlockTag::Latest) => head,
        _ => return None,
    };
    Some(Span::Range { from, to })
}

/// Checks the receipts of a block; `None` if the block is unknown or the receipts cannot be
/// checked.
fn assess_receipts(
    upstreams: &Upstreams,
    request: &UpstreamRequest<'_>,
    method: &Method,
    params: &Params<'_>,
    result: &[u8],
) -> Option<Doubt> {
    let (block, _position) = method.block_ref(params).ok()??;
    let view = upstreams.topology.chains[request.chain].view.load();
    // `hash` is `None` for an old block that the view does not know. `by_height` is true if the
    // call names a height or a tag.
    let (hash, by_height) = match block {
        BlockRef::Hash(hash) | BlockRef::CanonicalHash(hash) => (Some(hash), false),
        BlockRef::Number(number) if view.head.is_some_and(|head| number > head.number) => {
            return None;
        }
        BlockRef::Number(number) => (view.canonical(number), true),
        BlockRef::Tag(BlockTag::Latest) => (Some(view.head?.hash), true),
        BlockRef::Tag(_) => return None,
    };
    let check = |evidence: Evidence<'_>| check_receipts(hash, by_height, result, evidence);
    Some(with_evidence(upstreams, request, 0, check))
}
