//! `[health]`: conditions for ejecting and readmitting an upstream.
//!
//! `config.rs` explains the syntax of a table and the arguments of `report`.

use settings::Report;
use settings::value::{Duration, Integer, Number};

use super::check_order;
use super::values::{DAY_MS, HOUR_MS, SECOND_MS};

settings::table! {
    /// Conditions for ejecting and readmitting an upstream.
    pub struct HealthTable => pub Health {
        /// Consecutive failures that eject an upstream.
        failures_max: Integer<1, 1000, u32> = "3";
        /// Time window of the share of failures.
        window: Duration<SECOND_MS, HOUR_MS> = "10s";
        /// Fewest calls in the window for which the share of failures is judged.
        window_calls_min: Integer<1, 1_000_000, u32> = "10";
        /// Share of failed calls in the window that ejects an upstream.
        failure_share_max: Number<10, 1000> = "0.5";
        /// Length of the first ejection. The length doubles with each further ejection.
        backoff_min: Duration<10, HOUR_MS> = "1s";
        /// Length of the longest ejection.
        backoff_max: Duration<10, DAY_MS> = "60s";
        /// Longest pause of an upstream that reports its rate limit without a `Retry-After`: 50 ms
        /// at first, doubled with each consecutive report.
        pause: Duration<1, HOUR_MS> = "1s";
        /// Longest pause that an upstream may request.
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
