//! Holds what all connections of one subscription of the plan share, and builds its row of the
//! result.

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
use crate::engine::thread::pace::nanos;
use crate::engine::tls;
use crate::engine::websocket::Opener;

/// One subscription of the plan.
pub(super) struct Group {
    name: String,
    url: String,
    pub(super) kind: SubscriptionKind,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) peer: Peer,
    pub(super) opener: Opener,
    /// The call that subscribes.
    pub(super) call: String,
    /// Timeouts of the connect with the handshake, and of the response to the call.
    pub(super) connect_timeout: u64,
    pub(super) call_timeout: u64,
    /// Index of the log table. Subscriptions to the same logs share one.
    pub(super) log_table: usize,
    /// By reason: the number of connections that failed or ended.
    ended: BTreeMap<String, u64>,
    subscribe_time: Times,
    pub(super) delay: Times,
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
            connect_timeout: nanos(target.connect_timeout),
            call_timeout: nanos(target.timeout),
            log_table,
            ended: BTreeMap::new(),
            subscribe_time: empty_times(),
            delay: empty_times(),
            age: empty_times(),
        })
    }

    /// Counts a connection that failed or ended.
    pub(super) fn end(&mut self, reason: String) {
        *self.ended.entry(reason).or_default() += 1;
    }

    /// Records the time from the start of a connect to the confirmation.
    pub(super) fn confirm(&mut self, elapsed: u64) {
        self.subscribe_time.saturating_record(elapsed);
    }

    /// Returns the row of the result. `has_reference` is true if missing logs can be found.
    pub(super) fn into_row(self, members: &[&Subscriber], has_reference: bool) -> SubscriptionRow {
        let sum = |count: fn(&Subscriber) -> u64| members.iter().copied().map(count).sum::<u64>();
        let subscribed = || members.iter().filter(|member| member.was_subscribed);
        let notifications = || subscribed().map(|member| member.counts.notifications);
        let knows_missing = self.kind == SubscriptionKind::Heads || has_reference;
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
            missing: knows_missing.then(|| sum(|member| member.counts.missing)),
            connections_missing: sum(|member| u64::from(member.counts.missing > 0)),
            out_of_order: sum(|member| member.counts.out_of_order),
            reorged: sum(|member| member.counts.reorged),
            unreadable: sum(|member| member.counts.unreadable),
            delay: compute_quantiles(&self.delay),
            age: compute_quantiles(&self.age),
        }
    }
}
