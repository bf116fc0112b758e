//! Passes on what an upstream tells: pending transactions, and whatever else upstreams let one
//! subscribe to.
//!
//! One connection to one upstream for each distinct subscription, shared by all clients. When it is
//! lost, or the upstream is taken out, another upstream is asked; what was told meanwhile nobody
//! can say.

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
use crate::upstream::multiplexed_connection::{MultiplexedConnection, OnNotification, Settings};
use crate::upstream::multiplexed_pool;

/// First and longest wait before another upstream is asked.
const AGAIN_MIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether the upstream may still be used.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Nesting of an answer to a call to subscribe, which is a string or an error.
const DEPTH_MAX: usize = 32;

/// What upstreams are asked for.
#[derive(Debug)]
pub(super) struct Order {
    /// Name of the group whose upstreams are asked: its place may change with a reload.
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
            // One spelling for all clients, so that equal subscriptions share one connection.
            method: call.method.to_ascii_lowercase(),
            params: call.params.raw().map(<[u8]>::to_vec),
        }
    }

    /// Equal for those who want the same of the same upstreams, however they write it.
    pub(super) fn key(&self, params: &Params<'_>) -> Result<Vec<u8>, KeyError> {
        let mut key = Vec::new();
        for part in [self.group.as_bytes(), self.method.as_bytes()] {
            key.extend_from_slice(part);
            key.push(0);
        }
        write_params(&mut key, params)?;
        Ok(key)
    }

    /// The upstreams to be asked that can tell, fit ones only.
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

/// Why an upstream tells nothing more.
enum Ended {
    /// It refused, with this error.
    Refused(Bytes),
    /// It could not be reached, was lost, or is not to be used any more.
    Lost,
    /// Nobody wants to hear it any more.
    Left,
}

/// Passes on what one upstream after the other tells, until nobody wants to hear it.
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
        // Who has just asked is told; who was told that all is well is not let down by one
        // upstream.
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

/// Passes on what one upstream tells.
async fn relay(
    source: &Source,
    order: &Order,
    snapshot: &Arc<Snapshot>,
    upstream: usize,
    opened: &mut bool,
) -> Ended {
    let own = &snapshot.upstreams[upstream];
    let Ok((stream, websocket, read)) = multiplexed_pool::open(&own.dial, &own.config).await else {
        return Ended::Lost;
    };
    let group = snapshot.config.groups.iter().find(|group| group.name == order.group);
    let Some(group) = group else { return Ended::Lost };
    let settings = Settings {
        response_bytes_max: group.response_bytes_max,
        ping_interval: own.config.ping_interval,
        on_notification: notice(&source.stream),
    };
    let (connection, driver) = MultiplexedConnection::new(stream, websocket, read, settings);
    let _retired = Retired(&connection);
    let mut driving = tokio::task::spawn_local(driver);
    let now = Instant::now();
    let deadline = now + group.deadline;
    let Some(call) = connection.call(&order.method, order.params.as_deref(), now, deadline) else {
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
                // A reload may have brought other upstreams, or taken this one away.
                let present = Arc::clone(&source.subscriptions.thread.context().snapshot);
                let Some(upstream) = present.upstreams.iter().position(|one| one.is_same_as(own)) else {
                    return Ended::Lost;
                };
                let own = &present.upstreams[upstream];
                let view = source.chain.view.load();
                let lost_sight = own.in_view(&view).is_some_and(|seen| !seen.at_head);
                let fit = order.upstreams(&present, own.config.chain);
                if (lost_sight || !fit.contains(&upstream)) && !fit.is_empty() {
                    return Ended::Lost;
                }
            }
        }
    }
}

/// Hands on what an upstream tells. Each connection carries one subscription, so that all is of
/// that.
fn notice(stream: &Arc<Stream>) -> OnNotification {
    let stream = Arc::clone(stream);
    Rc::new(move |message| {
        let result = walk::member(message, "params").and_then(|own| walk::member(own, "result"));
        if let Some(result) = result {
            stream.tell(Turn::All(Bytes::copy_from_slice(result)));
        }
    })
}

/// Closes a connection when it is dropped.
struct Retired<'a>(&'a Rc<MultiplexedConnection>);

impl Drop for Retired<'_> {
    fn drop(&mut self) {
        self.0.retire();
    }
}
