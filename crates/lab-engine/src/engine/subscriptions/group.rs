//! The shared state of all connections of one subscription of the plan. Builds the subscription's
//! row, which is its entry in the result.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use lab_model::plan::{HttpVersion, Plan, Subscription, SubscriptionKind};
use lab_model::record::{Times, empty_times};
use lab_model::results::subscription::SubscriptionRow;

use super::message::subscribe_call;
use super::subscriber::{State, Subscriber};
use crate::aggregate::compute_quantiles;
use crate::engine::EngineFault;
use crate::engine::connection::Peer;
use crate::engine::time::nanos;
use crate::engine::tls;
use crate::engine::websocket::Opener;

/// One subscription of the plan.
pub(super) struct Group {
    name: String,
    url: String,
    pub(super) kind: SubscriptionKind,
    /// Addresses of the server.
    pub(super) addresses: Vec<SocketAddr>,
    /// TLS settings for connections to the server.
    pub(super) peer: Peer,
    /// Builds the requests that open WebSockets.
    pub(super) opener: Opener,
    /// The JSON-RPC call that subscribes.
    pub(super) call: String,
    /// Timeout of the TCP connect, the TLS handshake and the WebSocket handshake together.
    pub(super) connect_timeout_ns: u64,
    /// Timeout of the response to the call that subscribes.
    pub(super) call_timeout_ns: u64,
    /// Index of the log table (`logs.rs`). Subscriptions to the same logs share a table.
    pub(super) log_table: usize,
    /// Number of connections that failed or ended, by reason.
    ended: BTreeMap<String, u64>,
    /// Times from the start of a connect to the confirmation of the subscription.
    subscribe_time: Times,
    /// Times from the first arrival of a block or log on any connection to its arrival on a
    /// connection of this group.
    pub(super) delay: Times,
    /// Ages of blocks at their arrival: the times since the blocks' timestamps.
    pub(super) age: Times,
}

impl Group {
    /// Creates the state of a subscription.
    ///
    /// # Errors
    /// Fails if a header or TLS setting cannot be used.
    pub(super) fn new(
        plan: &Plan,
        subscription: &Subscription,
        addresses: Vec<SocketAddr>,
        log_table: usize,
    ) -> Result<Group, EngineFault> {
        let target = &subscription.target;
        Ok(Group {
            name: subscription.name.clone(),
            url: target.url.to_string(),
            kind: subscription.kind,
            addresses,
            peer: tls::build_peer(target, &plan.connections.tls, HttpVersion::Http1)?,
            opener: Opener::new(target)?,
            call: subscribe_call(subscription),
            connect_timeout_ns: nanos(target.connect_timeout),
            call_timeout_ns: nanos(target.timeout),
            log_table,
            ended: BTreeMap::new(),
            subscribe_time: empty_times(),
            delay: empty_times(),
            age: empty_times(),
        })
    }

    /// Counts a connection that failed or ended.
    pub(super) fn count_end(&mut self, reason: String) {
        *self.ended.entry(reason).or_default() += 1;
    }

    /// Records the time from the start of a connect to the confirmation.
    pub(super) fn record_subscribe_time(&mut self, elapsed_ns: u64) {
        self.subscribe_time.saturating_record(elapsed_ns);
    }

    /// Builds the subscription's row of the result. `members` are the connections of the
    /// subscription. `has_comparable_logs` is true if another connection requested the same logs,
    /// so that missing logs can be detected.
    pub(super) fn into_row(
        self,
        members: &[&Subscriber],
        has_comparable_logs: bool,
    ) -> SubscriptionRow {
        let sum = |count: fn(&Subscriber) -> u64| members.iter().copied().map(count).sum::<u64>();
        let subscribed = || members.iter().filter(|member| member.was_subscribed);
        let notifications = || subscribed().map(|member| member.counts.notifications);
        // Gaps between block numbers show missing blocks even on a single connection.
        let can_detect_missing = self.kind == SubscriptionKind::Heads || has_comparable_logs;
        SubscriptionRow {
            name: self.name,
            url: self.url,
            kind: SubscriptionKind::name_of(self.kind).to_owned(),
            connections: members.len() as u64,
            subscribed: subscribed().count() as u64,
            open: sum(|member| u64::from(matches!(member.state, State::Subscribed(_)))),
            ended: self.ended.into_iter().collect(),
            subscribe_time: compute_quantiles(&self.subscribe_time),
            notifications: sum(|member| member.counts.notifications),
            notifications_min: notifications().min().unwrap_or_default(),
            notifications_max: notifications().max().unwrap_or_default(),
            duplicates: sum(|member| member.counts.duplicates),
            missing: can_detect_missing.then(|| sum(|member| member.counts.missing)),
            connections_missing: sum(|member| u64::from(member.counts.missing > 0)),
            out_of_order: sum(|member| member.counts.out_of_order),
            reorged: sum(|member| member.counts.reorged),
            unreadable: sum(|member| member.counts.unreadable),
            delay: compute_quantiles(&self.delay),
            age: compute_quantiles(&self.age),
            // The thread that reads all groups sets this field.
            generator_gap_ms: 0.0,
        }
    }
}
