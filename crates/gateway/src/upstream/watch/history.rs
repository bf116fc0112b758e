//! Finds out which data of old blocks an upstream has, by a few calls about old blocks.
//!
//! The task of an upstream calls `eth_capabilities` after the start, and searches for what that does
//! not say. It searches again after each refusal of a client's call that shows something new. Now and
//! then it asks for the nearest block whose data is missing, because a node that has synced again may
//! have more. `policy/history.rs` has the search and what is known. The *depth* of a block is its
//! distance below the served head.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use wire::family::Family;
use wire::method::History;

use super::WatchedChain;
use super::poller::{Poller, QueryError};
use crate::policy::classify::{Fault, Verdict};
use crate::policy::history::{Search, read_capabilities};

/// Time from the start to the first search. Polls have then found the head. If the poll interval is
/// longer, the interval counts.
const START_DELAY: Duration = Duration::from_secs(5);
/// Interval at which the nearest block whose data is missing is asked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest interval between two searches.
const SEARCH_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The kinds of data that are searched. Traces are not, because a trace costs as much as hundreds of
/// reads. Refusals show which traces are missing.
const SEARCHED: [History; 3] = [History::State, History::Receipts, History::Blocks];

/// Why a round of calls ends early: the upstream does not respond, or in words that do not say
/// whether it has the data.
struct Unclear;

/// Finds out which data the upstream with this index in the chain's views has. Never returns, unless
/// the chain's family has no data that nodes delete; the owner aborts the task.
pub(super) async fn watch_history(watched: Rc<WatchedChain>, view_index: usize) {
    let mut poller = Poller::new(&watched, view_index);
    if watched.state.family.family == Family::Bitcoin {
        return;
    }
    let (mut is_start, mut is_search_due) = (true, true);
    let chain = &poller.topology.config.chains[watched.chain_index.get()];
    let poll_interval = chain.poll_interval;
    tokio::time::sleep(START_DELAY.max(poll_interval)).await;
    loop {
        poller.follow_config(&watched);
        if let Some(head) = find_head(&watched, &poller) {
            let stated = if is_start { record_stated(&poller).await } else { Vec::new() };
            for data in SEARCHED.into_iter().filter(|data| !stated.contains(data)) {
                let outcome = if is_search_due {
                    search(&poller, data, head).await
                } else {
                    check(&poller, data, head).await
                };
                if outcome.is_err() {
                    break;
                }
            }
            (is_start, is_search_due) = (false, false);
        }
        tokio::time::sleep(SEARCH_INTERVAL_MIN).await;
        let refused = Arc::clone(&poller.topology.upstreams[poller.upstream].history_refused);
        tokio::select! {
            // The order is fixed, so that simulations are reproducible.
            biased;
            () = refused.notified() => is_search_due = true,
            () = tokio::time::sleep(CHECK_INTERVAL.max(poll_interval)) => {}
        }
    }
}

/// Returns the height of the served head. Returns `None` if nothing is to be found out now: the
/// operator has set what the upstream has, the chain has no other upstream to choose, or the
/// upstream is not on the served chain.
fn find_head(watched: &WatchedChain, poller: &Poller) -> Option<u64> {
    let topology = &poller.topology;
    let state = &topology.upstreams[poller.upstream];
    let has_others = topology.config.chains[watched.chain_index.get()].upstreams.len() > 1;
    let view = watched.state.view.load();
    let is_usable = state.is_in_rotation(topology.now())
        && state.in_view(&view).is_some_and(|upstream| upstream.live && upstream.consistent);
    view.head
        .filter(|_| has_others && is_usable && state.history.is_learned())
        .map(|head| head.number)
}

/// Calls `eth_capabilities` and records what the upstream says of its data. Returns the kinds of data
/// about which it says something.
async fn record_stated(poller: &Poller) -> Vec<History> {
    let Ok(result) = poller.query("eth_capabilities", b"[]").await else { return Vec::new() };
    let history = &poller.topology.upstreams[poller.upstream].history;
    let stated = read_capabilities(&result).into_iter();
    let record = |(data, missing)| {
        if let Some(depth) = missing {
            history.record_missing(data, depth);
            history.confirm_missing(data);
        }
        data
    };
    stated.map(record).collect()
}

/// Searches for the nearest block whose data is missing.
async fn search(poller: &Poller, data: History, head: u64) -> Result<(), Unclear> {
    // Nodes keep block 0 whatever they delete.
    let mut search = Search::new(head.saturating_sub(1));
    while let Some(depth) = search.next() {
        let is_present = ask(poller, data, head, depth).await?;
        search.record(depth, is_present);
    }
    let upstream = &poller.topology.upstreams[poller.upstream];
    match search.missing() {
        None => upstream.history.record_all_present(data),
        Some(depth) => {
            upstream.history.confirm_missing(data);
            tracing::info!(
                upstream = &*upstream.config.name,
                data = data.as_str(),
                blocks = depth,
                "upstream has data of the newest blocks only"
            );
        }
    }
    Ok(())
}

/// Asks for the nearest block whose data is missing. Searches if the upstream has the data now.
async fn check(poller: &Poller, data: History, head: u64) -> Result<(), Unclear> {
    let history = &poller.topology.upstreams[poller.upstream].history;
    match history.missing_depth(data) {
        Some(depth) if depth < head && ask(poller, data, head, depth).await? => {
            Box::pin(search(poller, data, head)).await
        }
        _ => Ok(()),
    }
}

/// Asks the upstream for data of the block at this depth, and records the answer. Returns true if
/// the upstream has the data.
async fn ask(poller: &Poller, data: History, head: u64, depth: u64) -> Result<bool, Unclear> {
    let block = head - depth;
    let (method, params) = match data {
        History::State => ("eth_getBalance", format!("[\"0x{:040x}\",\"{block:#x}\"]", 0)),
        History::Receipts => ("eth_getBlockReceipts", format!("[\"{block:#x}\"]")),
        History::Blocks | History::Traces => {
            ("eth_getBlockByNumber", format!("[\"{block:#x}\",false]"))
        }
    };
    let history = &poller.topology.upstreams[poller.upstream].history;
    match poller.query(method, params.as_bytes()).await {
        // A height without a block is null too.
        Ok(result) if &*result == b"null" => Err(Unclear),
        Ok(_) => {
            history.record_present(data, depth);
            Ok(true)
        }
        Err(QueryError::ErrorResponse(Verdict::UpstreamFault(Fault::MissingState))) => {
            history.record_missing(data, depth);
            Ok(false)
        }
        Err(_) => Err(Unclear),
    }
}
