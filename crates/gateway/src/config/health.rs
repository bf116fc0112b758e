//! `[health]`: conditions for ejecting and readmitting an upstream.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use settings::Report;
use settings::value::{Duration, Integer, Number};

use super::validate::check_order;
use super::values::{DAY_MS, HOUR_MS, SECOND_MS};

settings::table! {
    /// Conditions for ejecting and readmitting an upstream. An ejected upstream gets no calls while
    /// the group has a better one. At the end of the ejection the gateway probes the upstream: it
    /// polls the head (newest block), and readmits the upstream if the poll succeeds.
    pub struct HealthTable => pub Health {
        /// Number of consecutive failed calls, or of consecutive failed polls, that ejects an
        /// upstream.
        failures_max: Integer<1, 1000, u32> = "3";
        /// Length of the time window in which the share of failed calls is measured.
        window: Duration<SECOND_MS, HOUR_MS> = "10s";
        /// Minimum number of calls in the window. With fewer calls, `failure_share_max` does not
        /// apply.
        window_calls_min: Integer<1, 1_000_000, u32> = "10";
        /// Share of failed calls in the window at which an upstream is ejected.
        failure_share_max: Number<10, 1000> = "0.5";
        /// Length of the first ejection. Each further ejection is twice as long as the one before,
        /// up to `backoff_max`.
        backoff_min: Duration<10, HOUR_MS> = "1s";
        /// Longest ejection.
        backoff_max: Duration<10, DAY_MS> = "60s";
        /// An upstream that reports its rate limit gets no calls during a pause. If the report has
        /// no `Retry-After`, the first pause is 50 ms, and each consecutive report doubles it. This
        /// key is the longest such pause.
        pause: Duration<1, HOUR_MS> = "1s";
        /// Longest pause that an upstream may request with `Retry-After`.
        pause_max: Duration<1, DAY_MS> = "60s";
        /// Time for which the gateway remembers that an upstream does not support a method.
        unsupported_age_max: Duration<SECOND_MS, DAY_MS> = "10m";
    }
}

/// Validates the table.
pub(super) fn check(table: &HealthTable, report: &mut Report<'_>) -> Health {
    check_order(&table.backoff_min, &table.backoff_max, report);
    check_order(&table.pause, &table.pause_max, report);
    table.values()
}
