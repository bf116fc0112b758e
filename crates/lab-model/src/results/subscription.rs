//! The result of a subscription: its connections and their notifications.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quantiles;

/// One subscription of the plan over all its connections. Notifications that arrived in the warm-up
/// are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionRow {
    /// Its name in the plan.
    pub name: String,
    /// The server's URL with secrets masked.
    pub url: String,
    /// What the server reports: `newHeads` for new blocks, or `logs`.
    pub kind: String,
    /// Number of planned connections.
    pub connections: u64,
    /// Number of connections on which the server confirmed the subscription.
    pub subscribed: u64,
    /// Number of connections that were still open at the end of the run.
    pub open: u64,
    /// Reasons why connections failed or ended before the end of the run, each with its number of
    /// connections.
    pub ended: Vec<(String, u64)>,
    /// Time from the start of the connect to the confirmation of the subscription.
    pub subscribe_time: Quantiles,
    /// Number of notifications, duplicates included.
    pub notifications: u64,
    /// Smallest number of notifications on one connection. Only connections with a confirmed
    /// subscription are considered.
    pub notifications_min: u64,
    /// Largest number of notifications on one connection.
    pub notifications_max: u64,
    /// Number of notifications about a block or log that the same connection had received before.
    pub duplicates: u64,
    /// Number of blocks or logs that a connection did not receive, although it received earlier and
    /// later ones. None if missing logs cannot be detected, because no other connection requests
    /// the same logs.
    pub missing: Option<u64>,
    /// Number of connections with at least one missing block or log.
    pub connections_missing: u64,
    /// Number of blocks that arrived after a later block. They do not count as missing.
    pub out_of_order: u64,
    /// Number of blocks and logs that a reorg replaced. A block counts if the connection had
    /// received another hash for its height. A log counts if the server withdrew it.
    pub reorged: u64,
    /// Number of messages that are not a valid notification of the subscription.
    pub unreadable: u64,
    /// Time from the first arrival of a block or log on any connection of the run to its arrival on
    /// each connection of the subscription.
    pub delay: Quantiles,
    /// Time from a block's timestamp to its arrival, by the clock of the load generator's host.
    pub age: Quantiles,
    /// Longest time in milliseconds, of 1 ms or more, by which the load generator read notifications
    /// late, because it was stopped, had no core, or was still reading. `delay` and `age` can be too
    /// long by as much.
    #[serde(default)]
    pub generator_gap_ms: f64,
}
