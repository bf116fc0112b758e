//! Formats instants in UTC. It reads no clock.

use jiff::Timestamp;

#[cfg(test)]
mod tests;

/// Formats seconds since 1970 as RFC 3339 in UTC, to the millisecond: `2026-01-31T23:59:59.250Z`.
pub fn rfc3339(unix: f64) -> String {
    let millis = (unix.max(0.0) * 1e3).round() as i64;
    format!("{:.3}", Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX))
}
