//! Filters: clients that ask now and then what has happened since (`eth_newFilter` and its kin).
//!
//! A filter remembers nothing but how far its client was told (`policy/trail.rs`), and what has
//! happened since is found out when the client asks, from the gateway's own view of the chain. So a
//! filter costs nothing while nobody asks, outlives every upstream, and misses nothing however
//! rarely it is asked for. Those for pending transactions are an upstream's own, and go to the
//! upstream of their client.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio::sync::Mutex as Turnstile;
use wire::call::{Call, Params};
use wire::json::string::JsonString;
use wire::json::walk;

use super::blocks::FETCHES;
use super::feeds::Feed;
use super::{LogsWanted, Outcome, said, unable};
use crate::call::failure::{Failure, Kind, Unable};
use crate::call::response::Payload;
use crate::policy::trail::{ChainCursor, Change, NoCommonBlock};
use crate::resolve::Route;
use crate::state::context::ThreadContext;

/// Blocks that a filter remembers: reorgs as deep are understood. Two epochs.
const TRAIL_BLOCKS: usize = 64;
/// Most changes that one answer tells; the rest is told when the client asks again.
const CHANGES_MAX: usize = 1000;
/// Most bytes of logs that one answer tells, but for one block, which is told whole.
const CHANGES_BYTES_MAX: usize = 16 << 20;

/// One chain's filters, on all threads.
#[derive(Debug, Default)]
pub(super) struct Filters(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<u128, Arc<Filter>>,
    /// When those were let go last that nobody asks for any more.
    swept: Duration,
}

impl Kept {
    fn sweep(&mut self, now: Duration, timeout: Duration) {
        self.by_id.retain(|_, filter| now.saturating_sub(*filter.asked.lock()) <= timeout);
        self.swept = now;
    }

    fn own(&self, owner: u64) -> usize {
        self.by_id.values().filter(|filter| filter.owner == owner).count()
    }
}

#[derive(Debug)]
struct Filter {
    wanted: Wanted,
    /// A hash of whose it is.
    owner: u64,
    /// When it was asked for last, since the start.
    asked: Mutex<Duration>,
    /// How far its client was told; one question at a time moves it.
    cursor: Turnstile<ChainCursor>,
}

#[derive(Debug)]
enum Wanted {
    Blocks,
    Logs {
        logs: LogsWanted,
        /// As the client wrote it, without what means nothing.
        raw: Bytes,
    },
}

/// Answers a call about a filter of this chain.
pub(super) async fn answer(
    cx: &Rc<ThreadContext>,
    feed: &Feed,
    route: &Route<'_>,
) -> Result<Outcome, Failure> {
    let (call, filters) = (route.call, &feed.filters);
    match &*call.method {
        "eth_newBlockFilter" => begin(cx, feed, route, Wanted::Blocks),
        "eth_newFilter" => {
            let raw = first(&call.params).ok_or_else(|| unable(Unable::Params))?;
            let (logs, raw) = LogsWanted::read(raw).map_err(unable)?;
            begin(cx, feed, route, Wanted::Logs { logs, raw: raw.into() })
        }
        "eth_uninstallFilter" => match id_of(&call.params) {
            Some(id) if filters.0.lock().by_id.remove(&id).is_some() => Ok(said(b"true")),
            _ => Ok(Outcome::Upstream),
        },
        "eth_getFilterLogs" => match find(cx, feed, call) {
            None => Ok(Outcome::Upstream),
            Some(filter) => match &filter.wanted {
                Wanted::Logs { raw, .. } => Ok(Outcome::Logs(raw.clone())),
                Wanted::Blocks => Err(unable(Unable::NoFilter)),
            },
        },
        "eth_getFilterChanges" => match find(cx, feed, call) {
            None => Ok(Outcome::Upstream),
            Some(filter) => changes(cx, feed, route.chain, &filter).await,
        },
        _ => Ok(Outcome::Upstream),
    }
}

fn first<'a>(params: &Params<'a>) -> Option<&'a [u8]> {
    let Params::Array(params) = *params else { return None };
    walk::elements(params).next()
}

fn id_of(params: &Params<'_>) -> Option<u128> {
    let id = JsonString::from_value(first(params)?)?;
    let id = id.to_str()?;
    u128::from_str_radix(id.strip_prefix("0x")?, 16).ok()
}

/// The filter that a call names, which is asked for now.
fn find(cx: &ThreadContext, feed: &Feed, call: &Call<'_>) -> Option<Arc<Filter>> {
    let id = id_of(&call.params)?;
    let filters = feed.filters.0.lock();
    let filter = filters.by_id.get(&id)?;
    let now = cx.now();
    let lifetime = cx.snapshot.config.downstream.filter_timeout;
    let mut asked = filter.asked.lock();
    if now.saturating_sub(*asked) > lifetime {
        return None;
    }
    *asked = now;
    Some(Arc::clone(filter))
}

fn begin(
    cx: &ThreadContext,
    feed: &Feed,
    route: &Route<'_>,
    wanted: Wanted,
) -> Result<Outcome, Failure> {
    let chain = &cx.snapshot.chains[route.chain];
    let cursor = ChainCursor::at(&chain.view.load(), TRAIL_BLOCKS);
    let cursor = cursor.ok_or_else(|| Failure::ours(Kind::NoUpstream))?;
    let bounds = &cx.snapshot.config.downstream;
    let (now, owner) = (cx.now(), route.caller.hash());
    let mut bytes = [0; 16];
    // Nobody else can name it.
    rand::fill(&mut bytes).map_err(|_| Failure::ours(Kind::Stopping))?;
    let id = u128::from_be_bytes(bytes);
    let mut filters = feed.filters.0.lock();
    let full = filters.by_id.len() >= bounds.filters_max;
    if full
        || now.saturating_sub(filters.swept) > bounds.filter_timeout
        || filters.own(owner) >= bounds.filters_per_client_max
    {
        filters.sweep(now, bounds.filter_timeout);
    }
    if filters.own(owner) >= bounds.filters_per_client_max {
        return Err(unable(Unable::TooManyFilters));
    }
    if filters.by_id.len() >= bounds.filters_max {
        return Err(unable(Unable::Crowded));
    }
    let filter = Filter { wanted, owner, asked: Mutex::new(now), cursor: Turnstile::new(cursor) };
    filters.by_id.insert(id, Arc::new(filter));
    Ok(Outcome::Payload(Payload::Result(format!("\"0x{id:x}\"").into())))
}

/// What has happened since the client asked last, as far as it can be found out now.
async fn changes(
    cx: &Rc<ThreadContext>,
    feed: &Feed,
    chain: usize,
    filter: &Filter,
) -> Result<Outcome, Failure> {
    let state = &cx.snapshot.chains[chain];
    let mut told = filter.cursor.lock().await;
    let view = state.view.load_full();
    // Should the client leave meanwhile, nothing was told.
    let mut cursor = told.clone();
    cursor.extend_down(&view);
    // It can only begin anew, and so is told what an upstream says of a filter that it has
    // forgotten.
    let mut changes = cursor.changes(&view).map_err(|NoCommonBlock| unable(Unable::NoFilter))?;
    changes.truncate(CHANGES_MAX);
    let mut out = vec![b'['];
    let push = |out: &mut Vec<u8>, raw: &[u8]| {
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(raw);
    };
    match &filter.wanted {
        Wanted::Blocks => {
            for change in changes {
                if let Change::Added(head) = change {
                    let hash = format!("\"{}\"", alloy_primitives::B256::new(head.hash));
                    push(&mut out, hash.as_bytes());
                }
                cursor.follow(change);
            }
        }
        Wanted::Logs { logs: wanted, .. } => {
            let found = changes.into_iter().map(async |change| {
                let logs = feed.blocks.logs(cx, chain, change).await;
                (change, logs)
            });
            let mut found = std::pin::pin!(futures_util::stream::iter(found).buffered(FETCHES));
            while let Some((change, Ok(logs))) = found.next().await {
                let logs = logs.iter().filter(|(keys, _)| wanted.has(keys));
                let bytes: usize = logs.clone().map(|(_, raw)| raw.len() + 1).sum();
                // The rest comes with the next poll.
                if out.len() > 1 && out.len() + bytes > CHANGES_BYTES_MAX {
                    break;
                }
                logs.for_each(|(_, raw)| push(&mut out, raw));
                cursor.follow(change);
            }
        }
    }
    out.push(b']');
    *told = cursor;
    Ok(Outcome::Payload(Payload::Result(out.into())))
}
