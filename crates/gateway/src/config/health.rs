//! `[health]`: when an upstream is ejected and when it comes back.

use settings::Report;
use settings::value::{Count, Duration, Number};

use super::not_above;
use super::values::{DAY, HOUR, SECOND};

settings::table! {
    /// When an upstream is ejected and when it comes back.
    pub struct HealthTable => pub Health {
        /// Failures in a row that eject an upstream.
        failures_max: Count<1, 1000, u32> = "3";
        /// Time over which the share of failures is taken.
        window: Duration<SECOND, HOUR> = "10s";
        /// Calls within the window below which the share does not count.
        window_calls_min: Count<1, 1_000_000, u32> = "10";
        /// Share of failed calls in the window that ejects an upstream.
        failure_share_max: Number<10, 1000> = "0.5";
        /// Length of the first ejection. It doubles with each further one.
        backoff_min: Duration<10, HOUR> = "1s";
        /// Longest ejection.
        backoff_max: Duration<10, DAY> = "60s";
        /// Longest rest of an upstream that refuses calls as too many and does not say how long to
        /// wait: 50 ms at first, twice as long with each refusal in a row.
        pause: Duration<1, HOUR> = "1s";
        /// Longest rest that an upstream may ask for.
        pause_max: Duration<1, DAY> = "60s";
        /// How long the gateway remembers that an upstream does not know a method.
        unsupported_age_max: Duration<SECOND, DAY> = "10m";
    }
}

pub(super) fn check(table: &HealthTable, report: &mut Report<'_>) -> Health {
    not_above(&table.backoff_min, &table.backoff_max, report);
    not_above(&table.pause, &table.pause_max, report);
    table.values()
}
