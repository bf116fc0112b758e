//! The table of all metrics of a probe (`weir probe`), which calls targets at a steady interval
//! without end. To add a metric, add an entry here; `table.rs` describes the macro `metrics!`.
//!
//! Label values come from the command line, from plans and from the targets' client versions, so
//! the number of series is bounded.

use super::distribution::Form;
use super::table::Kind::{Counter, Gauge, Histogram, Info};
use super::table::{self, Entry, Metric, Sample, SampleBuilder, metrics};
use crate::analysis::probe::{ProbeState, Status, TargetState};

/// An entry of the table.
pub(super) type ProbeEntry = Entry<fn(&mut SampleBuilder<'_, ProbeState>)>;

/// Returns all samples of a probe.
pub(super) fn collect_samples(state: &ProbeState) -> Vec<Sample> {
    table::collect_samples(METRICS, state, &Form::Classic)
}

impl SampleBuilder<'_, ProbeState> {
    /// Adds the value of each target; leaves out targets for which `value_of` returns `None`.
    fn add_each_target(&mut self, value_of: impl Fn(&TargetState) -> Option<u64>) {
        for target in &self.source.targets {
            if let Some(value) = value_of(target) {
                self.add_count(&[&target.name], value);
            }
        }
    }
}

/// Labels of most metrics.
const TARGET: &[&str] = &["target"];

/// Every metric of a probe. `out` is the [`SampleBuilder`].
pub(super) const METRICS: &[ProbeEntry] = metrics! {
    "weir_probe_target" Info, &["target", "family", "client", "chain"],
        "The target's family of methods, its client and its chain id, as it first reported them.":
        |out| {
            for target in &out.source.targets {
                let Some(facts) = &target.facts else { continue };
                let client = facts.client.as_deref().unwrap_or("unknown");
                let chain = facts.chain_id.as_deref().unwrap_or("unknown");
                out.add_number(&[&target.name, &facts.family, client, chain], 1.0);
            }
        };
    "weir_probe_up" Gauge, TARGET,
        "1 if the target responds, 0 if its last calls failed; missing before the first result.":
        |out| out.add_each_target(|target| match target.status {
            Status::Starting => None,
            Status::Up => Some(1),
            Status::Failed => Some(0),
        });
    "weir_probe_outages" Counter, TARGET, "Number of times that the target failed.":
        |out| out.add_each_target(|target| Some(target.outages));
    "weir_probe_calls" Counter, &["target", "method", "class"], "Finished calls by result.":
        |out| {
            for target in &out.source.targets {
                for ((method, class), count) in &target.calls {
                    out.add_count(&[&target.name, method, class.as_str()], *count);
                }
            }
        };
    "weir_probe_calls_skipped" Counter, TARGET,
        "Calls that were not sent, because the previous one was still in flight.":
        |out| out.add_each_target(|target| Some(target.calls_skipped));
    "weir_probe_latency_seconds" Histogram in "seconds", &["target", "method"],
        "Time from the scheduled start of a call to its complete response, for calls with a result.":
        |out| {
            for target in &out.source.targets {
                for (method, times) in &target.latencies {
                    out.add_times(&[&target.name, method], times);
                }
            }
        };
    "weir_probe_head" Gauge, TARGET, "Number of the newest block that the target reported.":
        |out| out.add_each_target(|target| target.head());
    "weir_probe_head_age_seconds" Gauge in "seconds", TARGET,
        "Time since the head of the target changed.":
        |out| {
            for target in &out.source.targets {
                if let Some(age) = target.head_age(out.source.elapsed) {
                    out.add_number(&[&target.name], age.as_secs_f64());
                }
            }
        };
    "weir_probe_head_lag_blocks" Gauge in "blocks", TARGET,
        "Blocks behind the highest head of all targets with the same chain id.":
        |out| {
            for (index, target) in out.source.targets.iter().enumerate() {
                if let Some(lag) = out.source.lag(index) {
                    out.add_count(&[&target.name], lag);
                }
            }
        };
    "weir_probe_uptime_seconds" Gauge in "seconds", &[], "Time since the start of the probe.":
        |out| out.add_number(&[], out.source.elapsed.as_secs_f64());
};
