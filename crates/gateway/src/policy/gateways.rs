//! Determines the number of gateways that share limits and quotas, by their heartbeats in Redis.
//!
//! Each gateway sends a heartbeat every [`INTERVAL`], and Redis returns the number of gateways with
//! a heartbeat in the last [`LIFETIME`]. While Redis is down, each gateway applies its share: the
//! rate divided by this number. If the number is too low, the gateways together admit too many
//! calls. So while the number is uncertain, the gateway uses the highest candidate:
//!
//! - Without contact to Redis, the last number is kept.
//! - After contact was lost, or Redis has lost its data, other gateways may not have sent a
//!   heartbeat yet. For the next [`LIFETIME`], in which every running gateway must send a
//!   heartbeat, the number can only rise. A reply of Redis after this time is *reliable*.
//! - A gateway that reaches Redis at once when it starts trusts the first reply, so that the first
//!   gateway does not limit its clients to a part of the rate.
//! - Otherwise, before the first reliable reply, a configured number is assumed.

use std::time::Duration;

use crate::policy::closed_set::closed_set;

#[cfg(test)]
mod tests;

/// Interval of heartbeats.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a gateway counts after a heartbeat. A gateway that has lost its connection must
/// be able to connect and send a heartbeat in this time.
pub const LIFETIME: Duration = Duration::from_secs(5);

// `closed_set!` gives each variant the name that metrics and status pages use.
closed_set! {
    /// The origin of a number of gateways.
    pub enum GatewayCountSource {
        /// The configuration sets the number.
        Configured = "configured",
        /// The last heartbeat returned the number.
        Counted = "counted",
        /// An earlier heartbeat returned the number. Redis is down, or Redis is available again but
        /// other gateways may not have sent a heartbeat yet.
        LastCounted = "last_counted",
        /// No heartbeat has returned a reliable number since the start.
        Assumed = "assumed",
    }
}

/// The reply of Redis to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// Number of gateways with a recent heartbeat, including this gateway.
    pub gateways: u64,
    /// Time for which Redis has recorded heartbeats without losing them.
    pub recorded_for: Duration,
}

/// The state from which one gateway derives the number of gateways.
#[derive(Debug, Default)]
pub struct Membership {
    /// The number from the configuration; `None` if heartbeats determine the number.
    configured: Option<u64>,
    /// The number to use before the first reliable reply.
    assumed: u64,
    /// The counted number; `None` before the first reliable reply.
    counted: Option<u64>,
    /// Start of the present contact with Redis; `None` without contact.
    contact_since: Option<Duration>,
    /// True from a loss of contact until contact has lasted for [`LIFETIME`] again.
    was_lost: bool,
    /// True if the last reply was reliable.
    is_reliable: bool,
    /// Highest number in the unreliable replies since the last reliable reply; 0 if there were
    /// none.
    raised_to: u64,
}

impl Membership {
    /// Creates the state before the first heartbeat.
    pub fn new(configured: Option<u64>, assumed: u64) -> Membership {
        Membership { configured, assumed, ..Membership::default() }
    }

    /// Applies new settings and keeps the counted number.
    pub fn configure(&mut self, configured: Option<u64>, assumed: u64) {
        (self.configured, self.assumed) = (configured, assumed);
    }

    /// Records the reply to a heartbeat.
    pub fn record_reply(&mut self, reply: HeartbeatReply, now: Duration) {
        let contact_since = *self.contact_since.get_or_insert(now);
        self.was_lost &= now.saturating_sub(contact_since) < LIFETIME;
        let is_first = self.counted.is_none();
        self.is_reliable = !self.was_lost && (is_first || reply.recorded_for >= LIFETIME);
        let gateways = reply.gateways.max(1);
        if self.is_reliable {
            (self.counted, self.raised_to) = (Some(gateways), 0);
        } else {
            self.raised_to = self.raised_to.max(gateways);
        }
    }

    /// Records that contact is lost.
    pub fn record_loss(&mut self) {
        self.contact_since = None;
        (self.was_lost, self.is_reliable) = (true, false);
    }

    /// Returns the number by which this gateway divides rates and quotas; at least 1.
    pub fn gateways(&self) -> u64 {
        let last_reliable = self.counted.unwrap_or(self.assumed);
        self.configured.unwrap_or_else(|| last_reliable.max(self.raised_to)).max(1)
    }

    /// Returns the origin of [`Membership::gateways`].
    pub fn source(&self) -> GatewayCountSource {
        match (self.configured, self.counted) {
            (Some(_), _) => GatewayCountSource::Configured,
            (None, None) => GatewayCountSource::Assumed,
            (None, Some(_)) if self.is_reliable => GatewayCountSource::Counted,
            (None, Some(_)) => GatewayCountSource::LastCounted,
        }
    }
}
