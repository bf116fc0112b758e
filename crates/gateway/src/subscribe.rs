//! Subscriptions (`eth_subscribe` and similar methods) and filters.
//!
//! Block and log notifications follow the gateway's own view of the chain, not the view of one
//! upstream. A *view* is a snapshot of the newest blocks that the gateway serves
//! (`policy/heads/view.rs`). The *head* is the newest block of the view. When the head changes, the
//! gateway finds the blocks that the chain gained and dropped (`policy/chain_cursor.rs`). It
//! fetches each of these blocks by hash, once for all clients. A fetch uses the cache and the
//! upstreams, as the call of a client does. So no subscriber misses a block or receives a block
//! twice, even if an upstream dies, hangs or lags. Notifications never contradict
//! `eth_blockNumber`. Other subscriptions, such as pending transactions, are relayed from one
//! upstream.
//!
//! ```text
//! chain view or upstream ─▶ source ─▶ stream ─▶ fan ─▶ subscriber
//! ```
//!
//! | object | one per | file |
//! |---|---|---|
//! | source | stream | `source.rs`, `relay.rs` |
//! | stream | chain and kind of subscription | `stream.rs` |
//! | fan | stream and thread | `fan.rs` |
//! | subscriber | connection | `subscriber.rs` |
//!
//! A source produces the events of a stream. A stream carries the events of one kind of
//! subscription, such as `newHeads`, to all threads. A fan delivers a stream's events to the
//! subscribers of one thread. `feeds.rs` holds the streams of each chain. Streams survive reloads.
//! This file parses subscription calls. `filters.rs` serves filters, which clients poll.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use wire::block::{BlockRef, BlockTag};
use wire::call::Params;
use wire::family::Family;
use wire::filter::{LogFilter, MEMBERS};
use wire::json::string::{JsonString, write_member};
use wire::json::walk;
use wire::logs::{LogFields, LogMatcher, MatcherError};

use crate::call::Payload;
use crate::call::failure::{Failure, FailureKind, SubscribeRefusal};
use crate::policy::access::{is_own_filter_method, is_subscription_method, is_unsubscription};
use crate::resolve::Route;
use crate::state::context::ThreadContext;
use crate::state::thread::ThreadState;

mod blocks;
mod fan;
pub(crate) mod feeds;
mod filters;
mod relay;
mod source;
mod stream;
pub(crate) mod subscriber;

use fan::FanOut;
use feeds::Feeds;
use relay::RelayRequest;
use source::Origin;
use stream::RelayRefusal;
use subscriber::MessageGuard;

/// The subscriptions and filters of one thread.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    thread: Rc<ThreadState>,
    feeds: Arc<Feeds>,
    /// The fans of this thread.
    fans: RefCell<Vec<Rc<FanOut>>>,
}

impl Subscriptions {
    pub(crate) fn new(thread: &Rc<ThreadState>, feeds: &Arc<Feeds>) -> Rc<Subscriptions> {
        let (thread, feeds) = (Rc::clone(thread), Arc::clone(feeds));
        Rc::new(Subscriptions { thread, feeds, fans: RefCell::default() })
    }
}

/// The state that a request needs to serve calls about subscriptions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubscribeContext<'a> {
    pub(crate) subscriptions: &'a Subscriptions,
    /// Delays notifications until the response to the client's message is queued. `None` if the
    /// connection can carry only responses, as with HTTP.
    pub(crate) guard: Option<&'a MessageGuard>,
}

/// The outcome of a call about subscriptions or filters.
#[derive(Debug)]
pub(crate) enum SubscribeOutcome {
    /// The gateway's own response.
    Payload(Payload),
    /// The caller must resolve an `eth_getLogs` call with this filter.
    Logs(Bytes),
    /// The caller must forward the call to an upstream.
    Upstream,
}

/// Serves a call about subscriptions or filters.
pub(crate) async fn serve(
    cx: &Rc<ThreadContext>,
    subscribe_context: SubscribeContext<'_>,
    route: &Route<'_>,
) -> SubscribeOutcome {
    let (subscriptions, call) = (subscribe_context.subscriptions, route.call);
    let chain = &cx.snapshot.chains[route.chain];
    let outcome = if is_subscription_method(&call.method) {
        match subscribe_context.guard {
            None => Err(refuse(SubscribeRefusal::NoNotifications)),
            Some(guard) if is_unsubscription(&call.method) => unsubscribe(guard, &call.params),
            Some(guard) => subscribe(cx, route, guard).await,
        }
    } else if is_own_filter_method(chain.family.family, &call.method) {
        filters::serve(cx, &subscriptions.feeds.get_or_create(chain), route).await
    } else {
        Ok(SubscribeOutcome::Upstream)
    };
    outcome.unwrap_or_else(|failure| SubscribeOutcome::Payload(Payload::Failed(failure)))
}

/// Returns the failure for a refused subscription or filter.
fn refuse(reason: SubscribeRefusal) -> Failure {
    Failure::ours(FailureKind::SubscribeRefused(reason))
}

/// Returns the outcome with this raw JSON result.
fn result_outcome(raw_result: &'static [u8]) -> SubscribeOutcome {
    SubscribeOutcome::Payload(Payload::Result(Bytes::from_static(raw_result)))
}

/// Ends the subscription whose id is the first parameter.
fn unsubscribe(guard: &MessageGuard, params: &Params<'_>) -> Result<SubscribeOutcome, Failure> {
    let Params::Array(params) = *params else { return Err(refuse(SubscribeRefusal::Params)) };
    let id = walk::elements(params).next().and_then(JsonString::from_value);
    let id = id.ok_or(refuse(SubscribeRefusal::Params))?.decode();
    if guard.subscriber.unsubscribe(&id) {
        return Ok(result_outcome(b"true"));
    }
    Err(refuse(SubscribeRefusal::UnknownSubscription))
}

/// Starts a subscription. Returns the subscription's id once its stream is open.
async fn subscribe(
    cx: &Rc<ThreadContext>,
    route: &Route<'_>,
    guard: &MessageGuard,
) -> Result<SubscribeOutcome, Failure> {
    let (subscriber, call) = (&guard.subscriber, route.call);
    if call.id.is_none() {
        // A call without an id gets no response, so the client would never get the subscription's
        // id.
        return Err(refuse(SubscribeRefusal::Params));
    }
    if !subscriber.can_subscribe() {
        return Err(refuse(SubscribeRefusal::ClientLimit));
    }
    // Notifications use the namespace in lower case, as upstreams do.
    let namespace = call.method.rsplit_once('_').map_or("", |(namespace, _)| namespace);
    let namespace = &*namespace.to_ascii_lowercase();
    let chain = &cx.snapshot.chains[route.chain];
    // The parameters are parsed as in go-ethereum (`eth/filters/api.go`).
    let Params::Array(params) = call.params else { return Err(refuse(SubscribeRefusal::Params)) };
    let mut params = walk::elements(params);
    let name = params.next().and_then(JsonString::from_value);
    let name = name.ok_or(refuse(SubscribeRefusal::Params))?.decode();
    // The gateway produces notifications only for blocks and logs in Ethereum's format. Other
    // subscriptions are relayed.
    let is_served_by_gateway = chain.family.family == Family::Ethereum && namespace == "eth";
    let feed = subscriber.subscriptions.feeds.get_or_create(chain);
    let (stream, origin, selection) = match &*name {
        b"newHeads" if is_served_by_gateway => (Arc::clone(&feed.heads), Origin::Heads, None),
        b"logs" if is_served_by_gateway => {
            let filter = params.next().unwrap_or(b"{}");
            let (selection, _) = LogSelection::parse(filter).map_err(refuse)?;
            (Arc::clone(&feed.logs), Origin::Logs, Some(selection))
        }
        _ => {
            let request = RelayRequest::new(cx, route);
            let key = request.key(&call.params).map_err(|_| refuse(SubscribeRefusal::TooLong))?;
            let stream = feed.find_or_create_relay(key, route.caller.hash()).map_err(refuse)?;
            (stream, Origin::Upstream(request), None)
        }
    };
    let fan = fan::find_or_create(&subscriber.subscriptions, chain, stream, origin);
    let Some(id) = subscriber.subscribe(&fan, namespace, selection) else {
        fan.end_if_empty();
        return Err(Failure::ours(FailureKind::Stopping));
    };
    guard.count_subscription();
    let group = route.group(cx);
    // The call waits until the stream is open, at most until the deadline of its group of
    // upstreams. Meanwhile `guard` delays notifications.
    let deadline = cx.instant() + cx.snapshot.config.groups[group].deadline;
    let outcome = tokio::time::timeout_at(deadline, fan.stream.wait_until_open()).await;
    match outcome.unwrap_or(Err(RelayRefusal::NoUpstream)) {
        Ok(()) => Ok(SubscribeOutcome::Payload(Payload::Result(format!("\"{id}\"").into()))),
        Err(relay_refusal) => {
            subscriber.unsubscribe(id.as_bytes());
            match relay_refusal {
                RelayRefusal::ByUpstream(error) => {
                    Ok(SubscribeOutcome::Payload(Payload::Error(error)))
                }
                RelayRefusal::NoUpstream => Err(refuse(SubscribeRefusal::NoUpstream)),
            }
        }
    }
}

/// The logs that a subscriber selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSelection {
    /// The addresses and topics of the selected logs.
    matcher: LogMatcher,
    /// Heights of the blocks whose logs are selected.
    blocks: RangeInclusive<u64>,
}

/// Returns a filter object without unknown members. Names of members can have any letter case, as
/// in geth. The result uses the standard spelling.
fn keep_known_members(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (name, value) in walk::members(raw) {
        let name = name.decode();
        let matches_name = |member: &&&str| member.as_bytes().eq_ignore_ascii_case(&name);
        if let Some(member) = MEMBERS.iter().find(matches_name) {
            write_member(&mut out, member.as_bytes(), value);
        }
    }
    out.push(b'}');
    out
}

impl LogSelection {
    /// Parses a filter. Returns the selection, and the filter in its standard form.
    fn parse(raw: &[u8]) -> Result<(LogSelection, Vec<u8>), SubscribeRefusal> {
        if raw.first() != Some(&b'{') {
            return Err(SubscribeRefusal::Filter(MatcherError::NotObject));
        }
        let raw = keep_known_members(raw);
        let matcher = LogMatcher::parse(&raw).map_err(SubscribeRefusal::Filter)?;
        let filter = LogFilter::parse(&raw).map_err(|_| SubscribeRefusal::Range)?;
        if filter.block_hash.is_some() {
            return Err(SubscribeRefusal::Range);
        }
        let to_height = |bound, unbounded_height| match bound {
            None | Some(BlockRef::Tag(BlockTag::Latest)) => Ok(unbounded_height),
            Some(BlockRef::Number(number)) => Ok(number),
            Some(_) => Err(SubscribeRefusal::Range),
        };
        // For future blocks, `earliest` is equivalent to no lower bound.
        let from = filter.from.filter(|from| *from != BlockRef::Tag(BlockTag::Earliest));
        let blocks = to_height(from, 0)?..=to_height(filter.to, u64::MAX)?;
        if blocks.is_empty() {
            return Err(SubscribeRefusal::Range);
        }
        Ok((LogSelection { matcher, blocks }, raw))
    }

    fn selects(&self, log: &LogFields) -> bool {
        self.blocks.contains(&log.block_number) && self.matcher.matches(log)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: filters are parsed as geth parses them.

    use super::*;

    #[test]
    fn a_filter_is_reduced_to_known_members() {
        let long = "x".repeat(1 << 20);
        let raw = format!(
            r#"{{ "x": "{long}", "address": ["0x01", "0x02"],"topics" :[null,["0x03"]], "fromBlock":"0x1" }}"#
        );
        let expected = r#"{"address":["0x01", "0x02"],"topics":[null,["0x03"]],"fromBlock":"0x1"}"#;
        assert_eq!(String::from_utf8(keep_known_members(raw.as_bytes())).unwrap(), expected);
        assert_eq!(keep_known_members(b"{}"), b"{}");
    }

    #[test]
    fn member_names_are_read_in_any_case() {
        let expected = LogSelection::parse(br#"{"toBlock":"0x2","fromBlock":"0x1"}"#).unwrap();
        assert_eq!(expected.0.blocks, 1..=2);
        assert_eq!(LogSelection::parse(br#"{"toblock":"0x2","FROMBLOCK":"0x1"}"#), Ok(expected));
        let hash = format!(r#"{{"BLOCKHASH":"0x{}"}}"#, "0".repeat(64));
        assert_eq!(LogSelection::parse(hash.as_bytes()), Err(SubscribeRefusal::Range));
        assert_eq!(
            LogSelection::parse(br#"{"ADDRESS":1}"#),
            Err(SubscribeRefusal::Filter(MatcherError::Address))
        );
    }
}
