//! The capacity search: finds the highest rate that keeps the thresholds of a plan. A *probe* is
//! one run at one rate.
//!
//! `capacity/search.rs` is the loop. `analysis/search.rs` chooses the next probe and summarizes all
//! probes; `run.rs` makes the runs. `results/capacity.rs` of lab-model defines the result.

use std::fmt::Write as _;

use lab_model::results::capacity::ProbeRow;

mod answer;
mod probes;
mod search;

pub use probes::{Cost, estimate_cost};
pub use search::{CapacityFault, Event, SaveRun, search};

#[cfg(test)]
mod tests;

/// Returns the header of all [`probe_line`]s.
pub fn probe_head() -> String {
    format!(
        "{:>7}  {:<8}  {:>10}  {:>10}  {:>9}  {:>9}  {:>8}  {:>8}  outcome",
        "at", "probe", "rate/s", "results/s", "p50, ms", "p99, ms", "failed", "behind"
    )
}

/// Returns one line about a finished probe.
pub fn probe_line(row: &ProbeRow) -> String {
    // The larger of two shares of the rate: iterations that were scheduled but not started, and
    // the growth of the backlog.
    let behind_share = (1.0 - row.delivered_share).max(row.backlog_growth / row.rate.max(1e-9));
    let mut text = format!(
        "{:>6.0}s  {:<8}  {:>10}  {:>10.1}  {:>9.2}  {:>9.2}  {:>7.2}%  {:>7.2}%  {}",
        row.at,
        row.kind.as_str(),
        row.rate,
        row.goodput,
        row.latency.p50_ms,
        row.latency.p99_ms,
        row.failed_share * 100.0,
        behind_share * 100.0,
        row.outcome.as_str()
    );
    if let Some(reason) = row.reasons.first() {
        let _ = write!(text, ": {reason}");
    }
    text
}
