//! Subscribes to the new heads of an upstream that has a WebSocket or local socket. A *head* is the
//! newest block of an upstream. A notification triggers a poll, so clients see a new block as soon
//! as the upstream announces it.
//!
//! A notification changes no state itself; only the poll does. If notifications stop, polls
//! continue at their interval, and the subscription is renewed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use wire::family::Family;
use wire::response::{Outcome, parse_response};

use crate::config::upstream::Upstream;
use crate::upstream::connector::Connector;
use crate::upstream::multiplexed_connection::OnNotification;
use crate::upstream::multiplexed_pool;
use crate::upstream::watch::OwnedTask;
use crate::upstream::watch::poller::Poller;

/// Upper limit of bytes of a message. A header has some kB.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Maximum nesting of the response to the subscription.
const DEPTH_MAX: usize = 32;
/// Timeout of the response to the subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// First backoff after a lost connection. Each further backoff is twice as long.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest backoff after a lost connection.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Backoff after an upstream has rejected the subscription.
const UNSUPPORTED_BACKOFF: Duration = Duration::from_secs(600);
/// The subscription is renewed after polls have found this many new heads without a notification.
const MISSED_HEADS_MAX: u32 = 3;

/// A subscription to the new heads of one upstream; ends when it is dropped.
pub(super) struct NewHeads {
    signals: Rc<Signals>,
    _task: Option<OwnedTask>,
}

/// Signals between the task of the subscription and the task that polls the upstream.
#[derive(Default)]
struct Signals {
    /// Notified when the upstream announces a new head.
    new_head: Notify,
    /// Notified when the subscription must be renewed.
    renew: Notify,
    /// Number of new heads found by polls since the last notification.
    missed_heads: Cell<u32>,
}

impl NewHeads {
    /// Subscribes to the new heads of a poller's upstream. Does nothing if the upstream has no
    /// WebSocket or local socket, or its family has no subscriptions.
    pub(super) fn subscribe(poller: &Poller, family: Family) -> NewHeads {
        let signals = Rc::<Signals>::default();
        let state = &poller.topology.upstreams[poller.upstream];
        let method = match family {
            Family::Ethereum => Some("eth_subscribe"),
            Family::Harmony => Some("hmy_subscribe"),
            Family::Bitcoin => None,
        };
        let task = method.filter(|_| state.config.multiplexed().is_some()).map(|method| {
            let (connector, upstream) = (state.connector.clone(), state.config.clone());
            let subscription = keep_subscribed(connector, upstream, method, Rc::clone(&signals));
            OwnedTask(tokio::task::spawn_local(subscription).abort_handle())
        });
        NewHeads { signals, _task: task }
    }

    /// Waits for the next notification.
    pub(super) async fn notified(&self) {
        self.signals.new_head.notified().await;
    }

    /// Records that a poll has found a new head.
    pub(super) fn record_polled_head(&self) {
        let missed_heads = self.signals.missed_heads.get() + 1;
        self.signals.missed_heads.set(missed_heads);
        if missed_heads >= MISSED_HEADS_MAX {
            self.signals.missed_heads.set(0);
            self.signals.renew.notify_waiters();
        }
    }
}

/// Subscribes, and subscribes again after a backoff whenever the subscription ends. Never returns;
/// the owner aborts the task.
async fn keep_subscribed(
    connector: Connector,
    upstream: Upstream,
    method: &'static str,
    signals: Rc<Signals>,
) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let began = Instant::now();
        let unsupported =
            subscribe_once(&connector, &upstream, method, &signals).await == Some(Unsupported);
        if unsupported {
            tracing::debug!(
                upstream = &*upstream.name,
                "an upstream rejects the subscription to new heads"
            );
        } else if began.elapsed() > BACKOFF_MAX {
            backoff = BACKOFF_MIN;
        }
        tokio::time::sleep(if unsupported { UNSUPPORTED_BACKOFF } else { backoff }).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Means that the upstream rejects the subscription.
#[derive(Debug, PartialEq, Eq)]
struct Unsupported;

/// Subscribes, and waits until the connection is lost or notifications stop. Returns
/// [`Unsupported`] if the upstream rejects the subscription, else `None`.
async fn subscribe_once(
    connector: &Connector,
    upstream: &Upstream,
    method: &str,
    signals: &Rc<Signals>,
) -> Option<Unsupported> {
    let task_signals = Rc::clone(signals);
    let on_notification: OnNotification = Rc::new(move |_| {
        task_signals.missed_heads.set(0);
        task_signals.new_head.notify_one();
    });
    let opened =
        multiplexed_pool::open(connector, upstream, MESSAGE_BYTES_MAX, on_notification).await;
    let (connection, driver) = opened.ok()?;
    let mut driver = std::pin::pin!(driver);
    let now = Instant::now();
    let call = connection.call(method, Some(b"[\"newHeads\"]"), now, now + SUBSCRIBE_TIMEOUT)?;
    let (_call_id, message) = tokio::select! {
        _ = &mut driver => return None,
        response = call => response.ok()?,
    };
    match parse_response(&message, DEPTH_MAX).map(|response| response.outcome) {
        Ok(Outcome::Result(_)) => {}
        _ => return Some(Unsupported),
    }
    tokio::select! {
        _ = driver => {}
        () = signals.renew.notified() => {}
    }
    None
}
