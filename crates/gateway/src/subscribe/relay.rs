//! Relays subscriptions that only upstreams support, such as pending transactions.
//!
//! Each distinct subscription has one connection to one upstream, shared by all clients. If the
//! connection is lost or the upstream is ejected, the relay switches to another upstream. Events in
//! between are lost.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wire::call::Params;
use wire::json::walk;
use wire::key::{KeyError, write_params};
use wire::response::{Outcome, parse_response};

use super::source::Source;
use super::stream::{Refused, Standing, Stream, Turn};
use crate::resolve::Route;
use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;
use crate::upstream::multiplex;
use crate::upstream::trunk::{Notice, Settings, Trunk};

/// First and longest pause before the next upstream is tried.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How often the relay checks that its upstream is still usable.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Maximum nesting of a subscription response, which is a string or an error.
const DEPTH_MAX: usize = 32;

/// The subscription call for upstreams.
#[derive(Debug)]
pub(super) struct Order {
    /// The group's name; its index can change with a reload.
    group: Arc<str>,
    method: String,
    params: Option<Vec<u8>>,
}

impl Order {
    pub(super) fn of(cx: &ThreadContext, route: &Route<'_>) -> Order {
        let call = route.call;
        let group = &cx.snapshot.config.groups[route.group(cx)];
        Order {
            group: Arc::clone(&group.name),
            // The lower-case method, so that equal subscriptions share one connection.
            method: call.method.to_ascii_lowercase(),
            params: call.params.raw().map(<[u8]>::to_vec),
        }
    }

    /// Returns the key of the call. Equal calls to the same group have equal keys, however the
    /// client formats them.
    pub(super) fn key(&self, params: &Params<'_>) -> Result<Vec<u8>, KeyError> {
        let mut key = Vec::new();
        for part in [self.group.as_bytes(), self.method.as_bytes()] {
            key.extend_from_slice(part);
            key.push(0);
        }
        write_params(&mut key, params)?;
        Ok(key)
    }

    /// Returns the usable upstreams of the group that support subscriptions.
    fn upstreams(&self, snapshot: &Snapshot, chain: usize) -> Vec<usize> {
        let groups = snapshot.config.chains[chain].groups.iter();
        let mut groups = groups.filter(|group| snapshot.config.groups[**group].name == self.group);
        let Some(group) = groups.next() else { return Vec::new() };
        let members = &snapshot.config.groups[*group].upstreams;
        let candidates = snapshot.groups[*group].candidates.load();
        let upstreams = candidates.places.iter().map(|place| members[usize::from(*place)]);
        upstreams
            .filter(|upstream| snapshot.upstreams[*upstream].config.multiplexed().is_some())
            .collect()
    }
}

/// Why a relay from one upstream ended.
enum Ended {
    /// The upstream refused with this error.
    Refused(Bytes),
    /// The upstream is unreachable, disconnected, or not usable any more.
    Lost,
    /// The stream has no followers.
    Left,
}

/// Relays from one upstream after another until the stream has no followers.
pub(super) async fn run(source: Source, order: Order) {
    let mut again = AGAIN_MIN;
    let mut turn: usize = 0;
    let mut opened = false;
    let mut lost = 0;
    while !source.stream.end_if_left() {
        let Some(chain) = source.chain_index() else {
            source.stream.tell(Turn::Broken);
            return source.stream.end();
        };
        let snapshot = Arc::clone(&source.subscriptions.thread.context().snapshot);
        let upstreams = order.upstreams(&snapshot, chain);
        let refused = match upstreams.get(turn % upstreams.len().max(1)) {
            None => Some(Refused::NoUpstream),
            Some(&upstream) => {
                let began = Instant::now();
                match relay(&source, &order, &snapshot, upstream, &mut opened).await {
                    Ended::Left => continue,
                    Ended::Refused(error) => Some(Refused::ByUpstream(error)),
                    Ended::Lost => {
                        if began.elapsed() > AGAIN_MAX {
                            again = AGAIN_MIN;
                        }
                        lost += 1;
                        (lost >= upstreams.len()).then_some(Refused::NoUpstream)
                    }
                }
            }
        };
        drop(snapshot);
        turn = turn.wrapping_add(1);
        // New subscribers receive the refusal. An open subscription waits for the next upstream
        // instead.
        if let Some(refused) = refused.filter(|_| !opened) {
            source.stream.stand(Standing::Refused(refused));
            return source.stream.end();
        }
        tokio::select! {
            () = tokio::time::sleep(again) => {}
            () = source.stream.left() => {}
        }
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// Relays from one upstream.
async fn relay(
    source: &Source,
    order: &Order,
    snapshot: &Arc<Snapshot>,
    upstream: usize,
    opened: &mut bool,
) -> Ended {
    let own = &snapshot.upstreams[upstream];
    let Ok((stream, websocket, read)) = multiplex::open(&own.dial, &own.config).await else {
        return Ended::Lost;
    };
    let group = snapshot.config.groups.iter().find(|group| group.name == order.group);
    let Some(group) = group else { return Ended::Lost };
    let settings = Settings {
        response_bytes_max: group.response_bytes_max,
        ping_interval: own.config.ping_interval,
        notice: notice(&source.stream),
    };
    let (trunk, driver) = Trunk::new(stream, websocket, read, settings);
    let _retired = Retired(&trunk);
    let mut driving = tokio::task::spawn_local(driver);
    let now = Instant::now();
    let deadline = now + group.deadline;
    let Some(call) = trunk.call(&order.method, order.params.as_deref(), now, deadline) else {
        return Ended::Lost;
    };
    let Ok((_, answer)) = call.await else { return Ended::Lost };
    match parse_response(&answer, DEPTH_MAX).map(|answer| answer.outcome) {
        Ok(Outcome::Result(_)) => {}
        Ok(Outcome::Error { raw, .. }) => return Ended::Refused(answer.slice_ref(raw)),
        Err(_) => return Ended::Lost,
    }
    *opened = true;
    source.stream.stand(Standing::Open);
    tracing::debug!(upstream = &*own.config.name, method = order.method, "an upstream tells");
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = &mut driving => return Ended::Lost,
            () = source.stream.left() => return Ended::Left,
            _ = look.tick() => {
                // A reload can add or remove upstreams.
                let present = Arc::clone(&source.subscriptions.thread.context().snapshot);
                let Some(upstream) = present.upstreams.iter().position(|one| one.is(own)) else {
                    return Ended::Lost;
                };
                let own = &present.upstreams[upstream];
                let view = source.chain.view.load();
                let lost_sight = own.seen(&view).is_some_and(|seen| !seen.at_head);
                let fit = order.upstreams(&present, own.config.chain);
                if (lost_sight || !fit.contains(&upstream)) && !fit.is_empty() {
                    return Ended::Lost;
                }
            }
        }
    }
}

/// Returns the callback for notifications. Each connection carries one subscription, so all
/// notifications belong to it.
fn notice(stream: &Arc<Stream>) -> Notice {
    let stream = Arc::clone(stream);
    Rc::new(move |message| {
        let result = walk::member(message, "params").and_then(|own| walk::member(own, "result"));
        if let Some(result) = result {
            stream.tell(Turn::All(Bytes::copy_from_slice(result)));
        }
    })
}

/// Closes a connection when it is dropped.
struct Retired<'a>(&'a Rc<Trunk>);

impl Drop for Retired<'_> {
    fn drop(&mut self) {
        self.0.retire();
    }
}
