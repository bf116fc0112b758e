//! `[overload]`: handling of calls whose upstreams are saturated, so that more calls in flight
//! bring no more responses per second. Such calls wait or are shed.
//!
//! A *shed* call is rejected without an attempt at an upstream. The *class* of a call is its
//! priority.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::time::Duration;

use settings::Report;
use settings::value::{Bool, Duration as Period, Integer, List, Number};

use super::values::{HOUR_MS, Name};
use crate::policy::overload::Priorities;

settings::table! {
    /// Handling of calls once upstreams are saturated. For each group the gateway finds a limit:
    /// the number of calls in flight that keeps the group's upstreams busy. Calls above the limit
    /// wait in a queue for a bounded time. Their order depends on their class, which is `high`,
    /// `normal` or `low`. A call that waits too long, or finds the queue full, is shed: the gateway
    /// rejects it.
    pub struct OverloadTable {
        /// If true, the number of calls in flight is limited. If false, each call goes to an
        /// upstream at once.
        enabled: Bool = "true";
        /// The limit of calls in flight at the upstreams of a group, over all threads, never falls
        /// below this value.
        in_flight_min: Integer<1, 1_000_000, u32> = "4";
        /// The limit never rises above this value. If this value equals `in_flight_min`, the limit
        /// is fixed.
        in_flight_max: Integer<1, 1_000_000, u32> =
            described "the sum of `connections_max` of the group's upstreams";
        /// Maximum number of waiting calls of a group, over all threads. If the queue is full, the
        /// oldest call of the lowest class is shed.
        queue_max: Integer<0, 1_000_000, usize> = "2000";
        /// Longest wait of a call. A call that waits longer is shed. If a queue has not been empty
        /// for 200 ms and the limit cannot rise, the upstreams are overloaded. The gateway then
        /// serves the newest call of each class first (adaptive LIFO), and sheds calls that have
        /// waited for 200 ms.
        queue_timeout: Period<1, HOUR_MS> = "2s";
        /// Tiers whose calls have the class `high`. The `tier` of an API key, or a claim of a
        /// token, names the tier of a caller.
        high_tiers: List<Name> = empty;
        /// Tiers whose calls have the class `low`. Calls of all other tiers, and calls without an
        /// API key, have the class `normal`.
        low_tiers: List<Name> = empty;
        /// A call to a method of at least this weight is one class lower than other calls of its
        /// caller, so heavy calls are shed before cheap ones. `weir explain` prints the weight of a
        /// method.
        heavy_weight: Integer<1, 1_000_000, u32> = "10";
        /// While calls of a higher class wait, each lower class with waiting calls gets this share
        /// of the free slots. A slot allows one call in flight.
        // The bounds of `Number` are in thousandths: 0 to 0.5.
        share_kept: Number<0, 500> = "0.1";
        /// HTTP status of a shed call, whose response has a `Retry-After` header. A batch has this
        /// status if all its calls are shed. The JSON-RPC code is always -32005.
        status: Integer<400, 599, u16> = "503";
    }
}

/// Handling of calls once upstreams are saturated.
#[derive(Clone, Debug, PartialEq)]
pub struct Overload {
    /// Maximum number of calls of a group that wait, over all threads.
    pub queue_max: usize,
    /// Longest wait of a call.
    pub queue_timeout: Duration,
    /// Rules that determine the class of a call.
    pub priorities: Priorities,
    /// Share of the free slots, from 0 to 0.5, that each waiting lower class gets while calls of a
    /// higher class wait.
    pub share_kept: f64,
    /// HTTP status of a shed call.
    pub status: u16,
}

/// Validates the table. Returns `None` if `enabled` is false.
pub(super) fn check(table: &OverloadTable, report: &mut Report<'_>) -> Option<Overload> {
    for (index, tier) in table.low_tiers.iter().enumerate() {
        if table.high_tiers.contains(tier) {
            let message = "this tier is also in high_tiers";
            report.error(
                &table.low_tiers.element_location(index),
                message,
                "each tier in one list",
            );
        }
    }
    table.enabled.then(|| Overload {
        queue_max: *table.queue_max,
        queue_timeout: *table.queue_timeout,
        priorities: Priorities {
            high_tiers: (*table.high_tiers).clone(),
            low_tiers: (*table.low_tiers).clone(),
            heavy_weight: *table.heavy_weight,
        },
        share_kept: *table.share_kept,
        status: *table.status,
    })
}
