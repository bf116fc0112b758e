//! The result of a subscription: its connections and their notifications.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Quantiles;

/// A subscription that a number of connections held. Notifications that arrived in the warm-up are
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SubscriptionRow {
    /// Its name in the plan.
    pub name: String,
    /// The server's URL with secrets masked.
    pub url: String,
    /// `newHeads` or `logs`.
    pub kind: String,
    /// Planned connections.
    pub connections: u64,
    /// Connections on which the server confirmed the subscription.
    pub subscribed: u64,
    /// Connections that were still open at the end of the run.
    pub open: u64,
    /// Reasons why the other connections failed or ended, each with its number of connections.
    pub ended: Vec<(String, u64)>,
    /// Time from the start of the connect to the confirmation of the subscription.
    pub subscribe_time: Quantiles,
    /// Notifications, duplicates included.
    pub notifications: u64,
    /// Fewest notifications of a subscribed connection.
    pub notifications_min: u64,
    /// Most notifications of a subscribed connection.
    pub notifications_max: u64,
    /// Notifications of a block or log that the connection had received before.
    pub duplicates: u64,
    /// Blocks or logs that a connection did not receive, although it received earlier and later
    /// ones; none for logs of a single connection.
    pub missing: Option<u64>,
    /// Connections with at least one missing block or log.
    pub connections_missing: u64,
    /// Blocks that arrived after a later block. They are not missing.
    pub out_of_order: u64,
    /// Blocks at a height that the connection had received before with another hash, or logs that
    /// the server withdrew, because of a reorg.
    pub reorged: u64,
    /// Messages that are neither a notification of the subscription nor valid.
    pub unreadable: u64,
    /// Time from the first arrival of a block or log on any connection of the run to its arrival on
    /// this one.
    pub delay: Quantiles,
    /// Time from a block's timestamp to its arrival, by the clock of this host.
    pub age: Quantiles,
}
