//! Relays subscriptions that only upstreams support, such as pending transactions.
//!
//! All clients with the same subscription share one connection to one upstream. If the connection
//! is lost, or the upstream is ejected or cordoned, the relay switches to another upstream.
//! Subscribers miss the events in between. An *ejected* upstream gets no calls because it fails. A
//! *cordoned* upstream gets no calls because an operator has taken it out of rotation.

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
use super::stream::{Event, OpenState, RelayRefusal, Stream};
use crate::resolve::Route;
use crate::state::context::ThreadContext;
use crate::state::snapshot::Snapshot;
use crate::upstream::multiplexed_connection::{MultiplexedConnection, OnNotification};
use crate::upstream::multiplexed_pool;
use crate::upstream::state::UpstreamState;

/// First pause before the next upstream is tried. Each further pause is twice as long.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause before the next upstream is tried.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Interval at which the relay checks that its upstream is still usable.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum nesting depth of the response to a subscription call. The response holds a subscription
/// id or an error object.
const DEPTH_MAX: usize = 32;

/// The subscription call to send to upstreams.
#[derive(Debug)]
pub(super) struct RelayRequest {
    /// Name of the group, a set of upstreams of the chain. The name is stored because a reload can
    /// change the group's index.
    group: Arc<str>,
    /// The lower-case name of the method.
    method: String,
    /// The raw parameters; `None` if the call has none.
    params: Option<Vec<u8>>,
}

impl RelayRequest {
    pub(super) fn new(cx: &ThreadContext, route: &Route<'_>) -> RelayRequest {
        let call = route.call;
        let group = &cx.snapshot.config.groups[route.group(cx)];
        RelayRequest {
            group: Arc::clone(&group.name),
            // Subscriptions whose method names differ only in letter case share one connection.
            method: call.method.to_ascii_lowercase(),
            params: call.params.raw().map(<[u8]>::to_vec),
        }
    }

    /// Returns the key of the call. Equal calls to the same group have equal keys, even if clients
    /// format the parameters differently.
    pub(super) fn key(&self, params: &Params<'_>) -> Result<Vec<u8>, KeyError> {
        let mut key = Vec::new();
        for part in [self.group.as_bytes(), self.method.as_bytes()] {
            key.extend_from_slice(part);
            key.push(0);
        }
        write_params(&mut key, params)?;
        Ok(key)
    }

    /// Returns the indices of the group's usable upstreams that support subscriptions.
    fn find_upstreams(&self, snapshot: &Snapshot, chain: usize) -> Vec<usize> {
        let groups = snapshot.config.chains[chain].groups.iter();
        let mut groups = groups.filter(|group| snapshot.config.groups[**group].name == self.group);
        let Some(group) = groups.next() else { return Vec::new() };
        let members = &snapshot.config.groups[*group].upstreams;
        let candidates = snapshot.groups[*group].candidates.load();
        // Each candidate is stored as its position in `members`.
        let upstreams = candidates.group_indices.iter().map(|index| members[usize::from(*index)]);
        upstreams
            .filter(|upstream| snapshot.upstreams[*upstream].config.multiplexed().is_some())
            .collect()
    }
}

/// Why a relay from one upstream ended.
enum EndReason {
    /// The upstream refused with this error.
    Refused(Bytes),
    /// The upstream is unreachable, disconnected, or not usable any more.
    Lost,
    /// The stream has no followers.
    Unfollowed,
}

/// Relays from one upstream after another until the stream has no followers. A stream that was
/// never open ends with a refusal if an upstream refuses the subscription, or if no upstream can be
/// reached.
pub(super) async fn run(source: Source, request: RelayRequest) {
    let mut retry_pause = RETRY_PAUSE_MIN;
    let mut attempt: usize = 0;
    let mut has_opened = false;
    let mut lost_count = 0;
    while !source.stream.end_if_unfollowed() {
        let Some(chain) = source.chain_index() else {
            source.stream.send(Event::Broken);
            return source.stream.end();
        };
        let snapshot = Arc::clone(&source.context.get().snapshot);
        let upstreams = request.find_upstreams(&snapshot, chain);
        // The attempts try the upstreams in turn.
        let next_index = attempt % upstreams.len().max(1);
        let refusal = match upstreams.get(next_index) {
            None => Some(RelayRefusal::NoUpstream),
            Some(&upstream) => {
                let started = Instant::now();
                match relay(&source, &request, &snapshot, upstream, &mut has_opened).await {
                    EndReason::Unfollowed => continue,
                    EndReason::Refused(error) => Some(RelayRefusal::ByUpstream(error)),
                    EndReason::Lost => {
                        if started.elapsed() > RETRY_PAUSE_MAX {
                            retry_pause = RETRY_PAUSE_MIN;
                        }
                        lost_count += 1;
                        // A stream that has never opened is refused after as many lost attempts as
                        // there are upstreams.
                        (lost_count >= upstreams.len()).then_some(RelayRefusal::NoUpstream)
                    }
                }
            }
        };
        drop(snapshot);
        attempt = attempt.wrapping_add(1);
        // A refusal ends a stream that has never opened. A stream that was open before waits for
        // the next upstream.
        if let Some(refusal) = refusal.filter(|_| !has_opened) {
            source.stream.set_open_state(OpenState::Refused(refusal));
            return source.stream.end();
        }
        tokio::select! {
            () = tokio::time::sleep(retry_pause) => {}
            () = source.stream.wait_until_unfollowed() => {}
        }
        retry_pause = (retry_pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Relays from one upstream. Sets `has_opened` once the upstream has accepted the subscription.
async fn relay(
    source: &Source,
    request: &RelayRequest,
    snapshot: &Arc<Snapshot>,
    upstream: usize,
    has_opened: &mut bool,
) -> EndReason {
    let upstream_state = &snapshot.upstreams[upstream];
    let group = snapshot.config.groups.iter().find(|group| group.name == request.group);
    let Some(group) = group else { return EndReason::Lost };
    let opening = multiplexed_pool::open(
        &upstream_state.connector,
        &upstream_state.config,
        group.response_bytes_max,
        make_notification_callback(&source.stream),
    );
    let Ok((connection, driver)) = opening.await else { return EndReason::Lost };
    let _close = CloseOnDrop(&connection);
    let mut driver_task = tokio::task::spawn_local(driver);
    let now = Instant::now();
    let deadline = now + group.deadline;
    let Some(call) = connection.call(&request.method, request.params.as_deref(), now, deadline)
    else {
        return EndReason::Lost;
    };
    let Ok((_, response)) = call.await else { return EndReason::Lost };
    match parse_response(&response, DEPTH_MAX).map(|response| response.outcome) {
        Ok(Outcome::Result(_)) => {}
        Ok(Outcome::Error { raw, .. }) => return EndReason::Refused(response.slice_ref(raw)),
        Err(_) => return EndReason::Lost,
    }
    *has_opened = true;
    source.stream.set_open_state(OpenState::Open);
    tracing::debug!(
        upstream = &*upstream_state.config.name,
        method = request.method,
        "relaying a subscription"
    );
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            _ = &mut driver_task => return EndReason::Lost,
            () = source.stream.wait_until_unfollowed() => return EndReason::Unfollowed,
            _ = check.tick() => if must_leave(source, request, upstream_state) {
                return EndReason::Lost;
            },
        }
    }
}

/// Returns true if the relay must leave its current upstream. There are three reasons:
///
/// - A reload has removed the upstream.
/// - An operator has cordoned the upstream.
/// - The upstream is unhealthy or behind the head, and the group has a usable upstream.
fn must_leave(source: &Source, request: &RelayRequest, current: &UpstreamState) -> bool {
    let snapshot = Arc::clone(&source.context.get().snapshot);
    let index = snapshot.upstreams.iter().position(|upstream| upstream.is_same_as(current));
    let Some(index) = index else { return true };
    let upstream = &snapshot.upstreams[index];
    let is_behind = upstream.in_view(&source.chain.view.load()).is_some_and(|view| !view.at_head);
    let usable = request.find_upstreams(&snapshot, upstream.config.chain);
    // The relay leaves an unhealthy or lagging upstream only if the group has a usable upstream.
    let has_better = (is_behind || !usable.contains(&index)) && !usable.is_empty();
    upstream.is_cordoned(snapshot.now()) || has_better
}

/// Returns the callback for notifications. Each connection carries one subscription, so all
/// notifications belong to this subscription.
fn make_notification_callback(stream: &Arc<Stream>) -> OnNotification {
    let stream = Arc::clone(stream);
    Rc::new(move |message| {
        let params = walk::member(message, "params");
        let result = params.and_then(|params| walk::member(params, "result"));
        if let Some(result) = result {
            stream.send(Event::All(Bytes::copy_from_slice(result)));
        }
    })
}

/// Closes a connection when it is dropped.
struct CloseOnDrop<'a>(&'a Rc<MultiplexedConnection>);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.retire();
    }
}
