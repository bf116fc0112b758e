//! Subscriptions (`eth_subscribe` and similar methods) and filters.
//!
//! Block and log notifications follow the gateway's own view of the chain (`policy/heads.rs`), not
//! one upstream. When the served head changes, the blocks in between (`policy/trail.rs`) are
//! fetched by hash, once for all clients, on the same path as calls. So no subscriber misses a
//! block or receives it twice if an upstream dies, hangs or lags, and notifications never
//! contradict `eth_blockNumber`. Other subscriptions, such as pending transactions, are relayed
//! from one upstream.
//!
//! ```text
//! view of the chain ─▶ source (per chain, kind) ─▶ stream ─▶ fan (per thread) ─▶ subscriber
//! or an upstream  ─▶ source.rs, relay.rs          stream.rs  fan.rs             subscriber.rs
//! ```
//!
//! `feeds.rs` holds each chain's streams, which survive reloads. This file parses subscription
//! calls; `filters.rs` serves clients that poll.

use crate::call::failure::Unable;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use wire::block::{BlockRef, BlockTag};
use wire::call::Params;
use wire::family::Family;
use wire::filter::LogFilter;
use wire::json::string::JsonString;
use wire::json::walk;
use wire::logs::{LogFields, LogMatcher, MatcherError};

use crate::call::failure::{Failure, Kind};
use crate::call::response::Payload;
use crate::policy::access::{is_own_filter, is_subscription, is_unsubscription};
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

use fan::{Fans, Wanted};
use feeds::Feeds;
use relay::Order;
use source::Origin;
use stream::Refused;
use subscriber::Asking;

/// The subscriptions and filters of one thread.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    thread: Rc<ThreadState>,
    feeds: Arc<Feeds>,
    fans: Fans,
}

impl Subscriptions {
    pub(crate) fn new(thread: &Rc<ThreadState>, feeds: &Arc<Feeds>) -> Rc<Subscriptions> {
        let (thread, feeds) = (Rc::clone(thread), Arc::clone(feeds));
        Rc::new(Subscriptions { thread, feeds, fans: Fans::default() })
    }
}

/// The subscription context of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subscribing<'a> {
    pub(crate) subscriptions: &'a Subscriptions,
    /// The connection that receives notifications; `None` if it can carry only responses.
    pub(crate) asking: Option<&'a Asking>,
}

/// The outcome of a call about subscriptions or filters.
#[derive(Debug)]
pub(crate) enum Outcome {
    Payload(Payload),
    /// Resolve `eth_getLogs` with this filter.
    Logs(Bytes),
    /// An upstream must respond.
    Upstream,
}

/// Serves a call about subscriptions or filters.
pub(crate) async fn answer(
    cx: &Rc<ThreadContext>,
    subscribing: Subscribing<'_>,
    route: &Route<'_>,
) -> Outcome {
    let (subscriptions, call) = (subscribing.subscriptions, route.call);
    let chain = &cx.snapshot.chains[route.chain];
    let answered = if is_subscription(&call.method) {
        match subscribing.asking {
            None => Err(unable(Unable::NotHere)),
            Some(asking) if is_unsubscription(&call.method) => unsubscribe(asking, &call.params),
            Some(asking) => subscribe(cx, route, asking).await,
        }
    } else if is_own_filter(chain.family.family(), &call.method) {
        filters::answer(cx, &subscriptions.feeds.of(chain), route).await
    } else {
        Ok(Outcome::Upstream)
    };
    answered.unwrap_or_else(|failure| Outcome::Payload(Payload::Failed(failure)))
}

fn unable(why: Unable) -> Failure {
    Failure::ours(Kind::Unable(why))
}

fn said(raw: &'static [u8]) -> Outcome {
    Outcome::Payload(Payload::Result(Bytes::from_static(raw)))
}

fn unsubscribe(asking: &Asking, params: &Params<'_>) -> Result<Outcome, Failure> {
    let Params::Array(params) = *params else { return Err(unable(Unable::Params)) };
    let id = walk::elements(params).next().and_then(JsonString::from_value);
    let id = id.ok_or(unable(Unable::Params))?.decode();
    if asking.subscriber.leave(&id) {
        return Ok(said(b"true"));
    }
    Err(unable(Unable::Unknown))
}

async fn subscribe(
    cx: &Rc<ThreadContext>,
    route: &Route<'_>,
    asking: &Asking,
) -> Result<Outcome, Failure> {
    let (subscriber, call) = (&asking.subscriber, route.call);
    if call.id.raw().is_none() {
        // Without an id the client could not learn the subscription's id.
        return Err(unable(Unable::Params));
    }
    if !subscriber.has_room() {
        return Err(unable(Unable::TooMany));
    }
    // Notifications use the namespace in lower case, as upstreams do.
    let namespace = call.method.rsplit_once('_').map_or("", |(namespace, _)| namespace);
    let namespace = &*namespace.to_ascii_lowercase();
    let chain = &cx.snapshot.chains[route.chain];
    let asked = Asked::read(chain.family.family(), namespace, &call.params).map_err(unable)?;
    let feed = subscriber.subscriptions().feeds.of(chain);
    let (stream, origin, wanted) = match asked {
        Asked::Heads => (Arc::clone(&feed.heads), Origin::Heads, Wanted::All),
        Asked::Logs(wanted) => (Arc::clone(&feed.logs), Origin::Logs, Wanted::Logs(wanted)),
        Asked::Other => {
            let order = Order::of(cx, route);
            let key = order.key(&call.params).map_err(|_| unable(Unable::TooLong))?;
            let stream = feed.relay(key, route.caller.hash()).map_err(unable)?;
            (stream, Origin::Upstream(order), Wanted::All)
        }
    };
    let fan = fan::of(subscriber.subscriptions(), chain, stream, origin);
    let Some(id) = subscriber.join(&fan, namespace, wanted) else {
        fan.end_if_empty();
        return Err(Failure::ours(Kind::Stopping));
    };
    asking.joined();
    let group = route.group(cx);
    // Until the response is sent, the connection sends no notifications.
    let deadline = cx.recent() + cx.snapshot.config.groups[group].deadline;
    let opened = tokio::time::timeout_at(deadline, fan.opened()).await;
    match opened.unwrap_or(Err(Refused::NoUpstream)) {
        Ok(()) => Ok(Outcome::Payload(Payload::Result(format!("\"{id}\"").into()))),
        Err(refused) => {
            subscriber.leave(id.as_bytes());
            match refused {
                Refused::ByUpstream(error) => Ok(Outcome::Payload(Payload::Error(error))),
                Refused::NoUpstream => Err(unable(Unable::NoUpstream)),
            }
        }
    }
}

/// The kind of a subscription.
enum Asked {
    Heads,
    Logs(LogsWanted),
    /// A subscription that only an upstream supports.
    Other,
}

impl Asked {
    /// Parses the parameters like go-ethereum (`eth/filters/api.go`). The gateway serves only
    /// chains whose blocks and logs have Ethereum's format; the others are relayed.
    fn read(family: Family, namespace: &str, params: &Params<'_>) -> Result<Asked, Unable> {
        let Params::Array(params) = *params else { return Err(Unable::Params) };
        let mut params = walk::elements(params);
        let name = params.next().and_then(JsonString::from_value).ok_or(Unable::Params)?.decode();
        if family != Family::Ethereum || namespace != "eth" {
            return Ok(Asked::Other);
        }
        match &*name {
            b"newHeads" => Ok(Asked::Heads),
            b"logs" => {
                let (wanted, _) = LogsWanted::read(params.next().unwrap_or(b"{}"))?;
                Ok(Asked::Logs(wanted))
            }
            _ => Ok(Asked::Other),
        }
    }
}

/// The logs that a subscriber selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogsWanted {
    selection: LogMatcher,
    /// First and last block, inclusive.
    blocks: (u64, u64),
}

/// The members of a filter that upstreams read. geth accepts them in any case.
const MEMBERS: [&str; 5] = ["fromBlock", "toBlock", "blockHash", "address", "topics"];

/// Returns a filter reduced to the known members, in their standard spelling.
fn known_members(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (name, value) in walk::members(raw) {
        let name = name.decode();
        let known = |member: &&&str| member.as_bytes().eq_ignore_ascii_case(&name);
        if let Some(member) = MEMBERS.iter().find(known) {
            if out.len() > 1 {
                out.push(b',');
            }
            out.push(b'"');
            out.extend_from_slice(member.as_bytes());
            out.extend_from_slice(b"\":");
            out.extend_from_slice(value);
        }
    }
    out.push(b'}');
    out
}

impl LogsWanted {
    /// Parses a filter. Returns the selection, and the filter in its standard form.
    fn read(raw: &[u8]) -> Result<(LogsWanted, Vec<u8>), Unable> {
        if raw.first() != Some(&b'{') {
            return Err(Unable::Filter(MatcherError::NotObject));
        }
        let raw = known_members(raw);
        let selection = LogMatcher::parse(&raw).map_err(Unable::Filter)?;
        let filter = LogFilter::parse(&raw).map_err(|_| Unable::Range)?;
        if filter.block_hash.is_some() {
            return Err(Unable::Range);
        }
        let bound = |bound, open| match bound {
            None | Some(BlockRef::Tag(BlockTag::Latest)) => Ok(open),
            Some(BlockRef::Number(number)) => Ok(number),
            Some(_) => Err(Unable::Range),
        };
        // For future blocks, `earliest` is equivalent to no lower bound.
        let from = filter.from.filter(|from| *from != BlockRef::Tag(BlockTag::Earliest));
        let blocks = (bound(from, 0)?, bound(filter.to, u64::MAX)?);
        if blocks.0 > blocks.1 {
            return Err(Unable::Range);
        }
        Ok((LogsWanted { selection, blocks }, raw))
    }

    fn has(&self, log: &LogFields) -> bool {
        (self.blocks.0..=self.blocks.1).contains(&log.number) && self.selection.matches(log)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: filters are parsed as geth parses them.

    use super::*;

    #[test]
    fn a_filter_is_kept_without_what_means_nothing() {
        let long = "x".repeat(1 << 20);
        let raw = format!(
            r#"{{ "x": "{long}", "address": ["0x01", "0x02"],"topics" :[null,["0x03"]], "fromBlock":"0x1" }}"#
        );
        let due = r#"{"address":["0x01", "0x02"],"topics":[null,["0x03"]],"fromBlock":"0x1"}"#;
        assert_eq!(String::from_utf8(known_members(raw.as_bytes())).unwrap(), due);
        assert_eq!(known_members(b"{}"), b"{}");
    }

    #[test]
    fn member_names_are_read_in_any_case() {
        let due = LogsWanted::read(br#"{"toBlock":"0x2","fromBlock":"0x1"}"#).unwrap();
        assert_eq!(due.0.blocks, (1, 2));
        assert_eq!(LogsWanted::read(br#"{"toblock":"0x2","FROMBLOCK":"0x1"}"#), Ok(due));
        let hash = format!(r#"{{"BLOCKHASH":"0x{}"}}"#, "0".repeat(64));
        assert_eq!(LogsWanted::read(hash.as_bytes()), Err(Unable::Range));
        assert_eq!(
            LogsWanted::read(br#"{"ADDRESS":1}"#),
            Err(Unable::Filter(MatcherError::Address))
        );
    }
}
