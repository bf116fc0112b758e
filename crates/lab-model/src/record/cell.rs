//! Times of the calls of one slot, which is a combination of stage, method and class.

use super::{Times, add_times, empty_times, subtract};

/// Times of the calls in one slot.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Time from the scheduled send to the end of the response.
    pub latency: Times,
    /// Time from the actual send to the end of the response.
    pub service: Times,
    /// The calls that the load generator itself delayed; `None` if there were none.
    delayed: Option<Box<DelayedCalls>>,
}

/// Latencies of the calls that the load generator itself delayed, because a thread was stopped or
/// had no core. Both histograms have one entry per call.
#[derive(Clone, Debug)]
struct DelayedCalls {
    /// The measured latencies, which [`Cell::latency`] contains too.
    measured: Times,
    /// The measured latencies minus the delays: lower bounds of the true latencies.
    least: Times,
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell { latency: empty_times(), service: empty_times(), delayed: None }
    }

    fn delayed_mut(&mut self) -> &mut DelayedCalls {
        self.delayed.get_or_insert_with(|| {
            Box::new(DelayedCalls { measured: empty_times(), least: empty_times() })
        })
    }

    pub(super) fn add(&mut self, other: &Cell) {
        add_times(&mut self.latency, &other.latency);
        add_times(&mut self.service, &other.service);
        if let Some(delayed) = &other.delayed {
            add_times(&mut self.delayed_mut().measured, &delayed.measured);
            add_times(&mut self.delayed_mut().least, &delayed.least);
        }
    }

    /// Subtracts an earlier state of the same cell.
    pub(super) fn subtract(&mut self, earlier: &Cell) {
        subtract(&mut self.latency, &earlier.latency);
        subtract(&mut self.service, &earlier.service);
        if let (Some(delayed), Some(earlier)) = (&mut self.delayed, &earlier.delayed) {
            subtract(&mut delayed.measured, &earlier.measured);
            subtract(&mut delayed.least, &earlier.least);
        }
    }

    pub(super) fn reset(&mut self) {
        self.latency.reset();
        self.service.reset();
        self.delayed = None;
    }

    /// Adds a call that was recorded in this cell and that the load generator itself delayed.
    pub(super) fn record_delayed(&mut self, latency_ns: u64, least_ns: u64) {
        let delayed = self.delayed_mut();
        delayed.measured.saturating_record(latency_ns);
        delayed.least.saturating_record(least_ns);
    }

    /// Returns true if the load generator delayed calls of this cell.
    pub(super) fn has_delays(&self) -> bool {
        self.delayed.is_some()
    }

    /// Adds the lower bounds of all latencies of this cell to `total`.
    pub(super) fn add_least(&self, total: &mut Times) {
        add_times(total, &self.latency);
        if let Some(delayed) = &self.delayed {
            subtract(total, &delayed.measured);
            add_times(total, &delayed.least);
        }
    }

    /// Replaces the latencies by their lower bounds.
    pub(super) fn use_least(&mut self) {
        if let Some(delayed) = self.delayed.take() {
            subtract(&mut self.latency, &delayed.measured);
            add_times(&mut self.latency, &delayed.least);
        }
    }
}
