//! Filters (`eth_newFilter` and similar methods) for clients that poll.
//!
//! A filter stores what its client has received: its chain cursor, which holds the newest blocks
//! (`policy/chain_cursor.rs`), and the number of logs of blocks that may get more (`blocks.rs`).
//! When the client polls, the gateway compares the cursor with its own view of the chain, a
//! snapshot of the newest served blocks (`policy/heads/view.rs`). So
//! an idle filter costs nothing and survives the loss of any upstream. It misses no block, even if
//! the client polls rarely. Filters for pending transactions belong to an upstream: the gateway
//! forwards all calls of one client about such filters to the same upstream.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use aws_lc_rs::rand;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use wire::call::{Call, Params};
use wire::json::string::JsonString;
use wire::json::walk;

use super::blocks::{BLOCK_FETCHES_MAX, Blocks, Received};
use super::outcome::{SubscribeOutcome, refuse, result_outcome};
use super::selection::LogSelection;
use crate::call::Payload;
use crate::call::failure::{Failure, FailureKind, SubscribeRefusal};
use crate::policy::chain_cursor::{ChainCursor, Change, NoCommonBlock};
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Number of blocks in a filter's cursor: two epochs of Ethereum. The cursor cannot follow a deeper
/// reorg.
const CURSOR_BLOCKS: usize = 64;
/// Maximum number of added or dropped blocks per response. The next poll returns the rest.
const CHANGES_MAX: usize = 1000;
/// Maximum bytes of logs per response. The logs of a single block are not split, even if they are
/// larger.
const CHANGES_BYTES_MAX: usize = 16 << 20;

/// The filters of one chain, shared by all threads.
#[derive(Debug, Default)]
pub(super) struct Filters(Mutex<FilterTable>);

/// The filters of one chain.
#[derive(Debug, Default)]
struct FilterTable {
    /// The filters by id.
    by_id: HashMap<u128, Arc<Filter>>,
    /// When expired filters were last removed, as time since the start of the process.
    swept_at: Duration,
}

impl FilterTable {
    /// Removes the filters that were not polled for `timeout`.
    fn remove_expired(&mut self, now: Duration, timeout: Duration) {
        self.by_id.retain(|_, filter| now.saturating_sub(*filter.polled_at.lock()) <= timeout);
        self.swept_at = now;
    }

    /// Returns the number of filters that a client has created.
    fn count_owned_by(&self, owner: u64) -> usize {
        self.by_id.values().filter(|filter| filter.owner == owner).count()
    }
}

/// A filter of one client.
#[derive(Debug)]
struct Filter {
    kind: FilterKind,
    /// Hash that identifies the client that created the filter.
    owner: u64,
    /// When the client last polled, as time since the start of the process.
    polled_at: Mutex<Duration>,
    /// What the client has received. Only one poll at a time changes it.
    progress: AsyncMutex<Progress>,
}

/// What the client of a filter has received.
#[derive(Debug, Clone)]
struct Progress {
    /// The newest blocks.
    cursor: ChainCursor,
    /// The logs of blocks that may get more logs.
    received: Vec<Received>,
}

/// What a poll of a filter returns.
#[derive(Debug)]
enum FilterKind {
    /// The filter returns the hashes of new blocks.
    Blocks,
    /// The filter returns the logs of new and dropped blocks.
    Logs {
        logs: LogSelection,
        /// The raw filter, without unknown members.
        raw: Bytes,
    },
}

/// Serves a call about a filter of a chain with these filters and blocks. A call about a filter
/// that the gateway does not have is forwarded to an upstream.
pub(super) async fn serve(
    cx: &Rc<ThreadContext>,
    filters: &Filters,
    blocks: &Blocks,
    route: &Route<'_>,
) -> Result<SubscribeOutcome, Failure> {
    let call = route.call;
    match &*call.method {
        "eth_newBlockFilter" => create(cx, filters, route, FilterKind::Blocks),
        "eth_newFilter" => {
            let raw = first_param(&call.params).ok_or_else(|| refuse(SubscribeRefusal::Params))?;
            let (logs, raw) = LogSelection::parse(raw).map_err(refuse)?;
            create(cx, filters, route, FilterKind::Logs { logs, raw: raw.into() })
        }
        "eth_uninstallFilter" => match parse_id(&call.params) {
            Some(id) if filters.0.lock().by_id.remove(&id).is_some() => Ok(result_outcome(b"true")),
            _ => Ok(SubscribeOutcome::Upstream),
        },
        "eth_getFilterLogs" | "eth_getFilterChanges" => match find_polled(cx, filters, call) {
            None => Ok(SubscribeOutcome::Upstream),
            Some(filter) if call.method == "eth_getFilterChanges" => {
                poll_changes(cx, blocks, route.chain, &filter).await
            }
            Some(filter) => match &filter.kind {
                FilterKind::Logs { raw, .. } => Ok(SubscribeOutcome::Logs(raw.clone())),
                FilterKind::Blocks => Err(refuse(SubscribeRefusal::UnknownFilter)),
            },
        },
        _ => Ok(SubscribeOutcome::Upstream),
    }
}

/// Returns the first positional parameter; `None` if there is none.
fn first_param<'a>(params: &Params<'a>) -> Option<&'a [u8]> {
    let Params::Array(params) = *params else { return None };
    walk::elements(params).next()
}

/// Parses the filter id, which is the first parameter.
fn parse_id(params: &Params<'_>) -> Option<u128> {
    let id = JsonString::from_value(first_param(params)?)?.to_str()?;
    u128::from_str_radix(id.strip_prefix("0x")?, 16).ok()
}

/// Finds the filter whose id is the call's first parameter, and records that the client polled.
/// Returns `None` for a malformed id, and for an unknown or expired filter.
fn find_polled(cx: &ThreadContext, filters: &Filters, call: &Call<'_>) -> Option<Arc<Filter>> {
    let id = parse_id(&call.params)?;
    let filters = filters.0.lock();
    let filter = filters.by_id.get(&id)?;
    let now = cx.now();
    let lifetime = cx.snapshot.config.downstream.filter_timeout;
    let mut polled_at = filter.polled_at.lock();
    if now.saturating_sub(*polled_at) > lifetime {
        return None;
    }
    *polled_at = now;
    Some(Arc::clone(filter))
}

/// Creates a filter whose cursor starts at the current head. The response is the filter's id.
fn create(
    cx: &ThreadContext,
    filters: &Filters,
    route: &Route<'_>,
    kind: FilterKind,
) -> Result<SubscribeOutcome, Failure> {
    let chain = &cx.snapshot.chains[route.chain];
    let cursor = ChainCursor::at_head(&chain.view.load(), CURSOR_BLOCKS);
    let cursor = cursor.ok_or_else(|| Failure::ours(FailureKind::NoUpstream))?;
    let settings = &cx.snapshot.config.downstream;
    let (now, owner) = (cx.now(), route.caller.hash());
    let mut id_bytes = [0; 16];
    // The id is unpredictable, so other clients cannot use the filter.
    rand::fill(&mut id_bytes).map_err(|_| Failure::ours(FailureKind::Stopping))?;
    let id = u128::from_be_bytes(id_bytes);
    let mut filters = filters.0.lock();
    let is_full = filters.by_id.len() >= settings.filters_max;
    if is_full
        || now.saturating_sub(filters.swept_at) > settings.filter_timeout
        || filters.count_owned_by(owner) >= settings.filters_per_client_max
    {
        filters.remove_expired(now, settings.filter_timeout);
    }
    if filters.count_owned_by(owner) >= settings.filters_per_client_max {
        return Err(refuse(SubscribeRefusal::TooManyFilters));
    }
    if filters.by_id.len() >= settings.filters_max {
        return Err(refuse(SubscribeRefusal::GatewayLimit));
    }
    let progress = AsyncMutex::new(Progress { cursor, received: Vec::new() });
    let filter = Filter { kind, owner, polled_at: Mutex::new(now), progress };
    filters.by_id.insert(id, Arc::new(filter));
    Ok(SubscribeOutcome::Payload(Payload::Result(format!("\"0x{id:x}\"").into())))
}

/// Returns the changes of the chain since the last poll. If the logs of a change are not available
/// yet, a later poll returns this change and all later ones.
async fn poll_changes(
    cx: &Rc<ThreadContext>,
    blocks: &Blocks,
    chain: usize,
    filter: &Filter,
) -> Result<SubscribeOutcome, Failure> {
    let chain_state = &cx.snapshot.chains[chain];
    let mut saved_progress = filter.progress.lock().await;
    let view = chain_state.view.load_full();
    // The poll changes a copy. If the client disconnects during the poll, its next poll returns the
    // same changes.
    let Progress { mut cursor, mut received } = saved_progress.clone();
    cursor.extend_down(&view);
    // If the cursor is too far behind, the client must create a new filter.
    let mut changes = cursor
        .find_changes(&view)
        .map_err(|NoCommonBlock| refuse(SubscribeRefusal::UnknownFilter))?;
    changes.truncate(CHANGES_MAX);
    let mut out = vec![b'['];
    let push = |out: &mut Vec<u8>, raw: &[u8]| {
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(raw);
    };
    match &filter.kind {
        FilterKind::Blocks => {
            for change in changes {
                if let Change::Added(head) = change {
                    push(&mut out, format!("\"{}\"", B256::new(head.hash)).as_bytes());
                }
                cursor.follow(change);
            }
        }
        FilterKind::Logs { logs: selection, .. } => {
            blocks.request_again(cx, chain).await;
            let late = blocks.take_late(&mut received);
            let late = late.iter().filter(|log| selection.selects(&log.fields));
            late.for_each(|log| push(&mut out, &log.raw));
            let fetches = changes
                .into_iter()
                .map(async |change| (change, blocks.logs_of(cx, chain, change).await));
            let mut fetches =
                std::pin::pin!(futures_util::stream::iter(fetches).buffered(BLOCK_FETCHES_MAX));
            while let Some((change, Ok(block_logs))) = fetches.next().await {
                let logs = block_logs.iter().filter(|log| selection.selects(&log.fields));
                let bytes: usize = logs.clone().map(|log| log.raw.len() + 1).sum();
                // The response is large enough. The next poll returns the remaining changes.
                if out.len() > 1 && out.len() + bytes > CHANGES_BYTES_MAX {
                    break;
                }
                logs.for_each(|log| push(&mut out, &log.raw));
                cursor.follow(change);
                blocks.track(&mut received, change, block_logs.len());
            }
        }
    }
    out.push(b']');
    *saved_progress = Progress { cursor, received };
    Ok(SubscribeOutcome::Payload(Payload::Result(out.into())))
}
