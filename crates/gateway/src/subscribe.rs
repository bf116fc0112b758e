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
//! | source | stream | `source.rs`, `chain_events.rs`, `relay.rs` |
//! | stream | chain and kind of subscription | `stream.rs` |
//! | fan | stream and thread | `fan.rs` |
//! | subscriber | connection | `subscriber.rs`, `notifications.rs` |
//!
//! A source produces the events of a stream. A stream carries the events of one kind of
//! subscription, such as `newHeads`, to all threads. A fan delivers a stream's events to the
//! subscribers of one thread. `feeds.rs` holds the streams of each chain. Streams survive reloads.
//! This file parses subscription calls. `filters.rs` serves filters, which clients poll. A module
//! of this folder imports only from modules in lower layers (`xtask/src/tidy/layers.rs`).

use std::rc::Rc;
use std::sync::Arc;

use wire::call::Params;
use wire::family::Family;
use wire::json::string::JsonString;
use wire::json::walk;

use crate::call::Payload;
use crate::call::failure::{Failure, FailureKind, SubscribeRefusal};
use crate::policy::access::{is_own_filter_method, is_subscription_method, is_unsubscription};
use crate::resolve::Route;
use crate::state::context::ThreadContext;

mod blocks;
mod chain_events;
pub(crate) mod fan;
pub(crate) mod feeds;
mod filters;
pub(crate) mod notifications;
pub(crate) mod outcome;
mod relay;
mod selection;
mod source;
mod stream;
pub(crate) mod subscriber;

use fan::{Origin, Subscriptions};
use outcome::{SubscribeOutcome, refuse, result_outcome};
use relay::RelayRequest;
use selection::LogSelection;
use stream::RelayRefusal;
use subscriber::MessageGuard;

/// The state that a request needs to serve calls about subscriptions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubscribeContext<'a> {
    pub(crate) subscriptions: &'a Subscriptions,
    /// Delays notifications until the response to the client's message is queued. `None` if the
    /// connection can carry only responses, as with HTTP.
    pub(crate) guard: Option<&'a MessageGuard>,
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
        let feed = subscriptions.feeds.get_or_create(chain);
        filters::serve(cx, &feed.filters, &feed.blocks, route).await
    } else {
        Ok(SubscribeOutcome::Upstream)
    };
    outcome.unwrap_or_else(|failure| SubscribeOutcome::Payload(Payload::Failed(failure)))
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
