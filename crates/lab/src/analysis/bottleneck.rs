//! Finds the first bottleneck of a run. It may be the generator, connections, a rate limit, an
//! upstream of the target, a resource of the target's host, or the target's software. The result
//! lists its evidence. The cause may also be unknown.
//!
//! The breach is the moment at which the first threshold was broken. Most values are means over a
//! short window around it.
//!
//! Order of judgement:
//! 1. Exclusions (`bottleneck/exclude.rs`). Each of them makes the host's metrics irrelevant: the
//!    generator was the limit, connecting took the time, a rate limit rejected calls, or an
//!    upstream of the target took the time.
//! 2. Resources (`bottleneck/resource.rs`). The cause is the first resource that saturated before
//!    the breach and that correlates with the load.
//! 3. A rate limit that rejected only a few calls.
//! 4. The target's software, if no resource saturated, the target was fully observed, and it had
//!    calls to work on.
//! 5. Otherwise the cause is unknown.
//!
//! The macro `host!("…")` checks the name of a host metric at compile time. A `*` in a name stands
//! for a process, thread or device; `.of(name)` replaces it.
//!
//! A resource is saturated only if its utilisation was high AND something waited for it (the USE
//! method, <https://www.brendangregg.com/usemethod.html>). Iowait or disk utilisation alone is no
//! evidence. The saturation starts when the wait rises above its baseline under low load
//! (`bottleneck/time_series.rs`).
//!
//! Confidence is high if there are no doubts, medium with one doubt, and low with more. Examples of
//! doubts:
//! - the load did not vary, so there is no correlation;
//! - the load was never low, so there is no baseline;
//! - another resource saturated within a second;
//! - the generator's sends were late.

pub(crate) mod diagnosis;
mod exclude;
mod resource;
pub(crate) mod time_series;

use lab_model::metrics::host::{HostMetric, HostName, host};
use lab_model::plan::Validity;
use lab_model::results::run::{ProcessRole, RunResult, Second};

use crate::analysis::statistics::mean;

use diagnosis::{Bottleneck, Claim, Doubt, Evidence, Unknown};
use time_series::{HostSeries, Load};

/// Returns the first bottleneck of a run; `None` if no threshold was broken.
///
/// `validity` has the limits above which sends count as late. `broken_at` is the time at which the
/// first threshold was broken, in seconds since the start of the run. `result.bottleneck` is
/// ignored.
pub fn find(result: &RunResult, validity: Validity, broken_at: Option<f64>) -> Option<Bottleneck> {
    let context = Context::new(result, validity, broken_at?);
    let saturated = resource::saturated_resources(&context);
    let finding = exclude::check_generator(&context)
        .or_else(|| exclude::check_connections(&context, &saturated))
        .or_else(|| exclude::check_rate_limit(&context))
        .or_else(|| exclude::check_link(&context, &saturated))
        .or_else(|| exclude::check_upstream(&context, &saturated))
        .or_else(|| resource::find_first(&context, &saturated))
        .or_else(|| exclude::check_few_rejections(&context, &saturated))
        .or_else(|| resource::check_software(&context, &saturated))
        .unwrap_or_else(|| report_unknown(&context));
    Some(finding)
}

/// Length of the window before the breach, in seconds.
const WINDOW_BEFORE: f64 = 1.0;
/// Length of the window after the breach, in seconds. It is longer than the window before the
/// breach, because an overload shows most clearly after it has begun.
const WINDOW_AFTER: f64 = 2.0;

/// A run, with values that several checks need. Means cover the window around the breach.
struct Context<'a> {
    result: &'a RunResult,
    /// Limits above which sends count as late.
    validity: Validity,
    /// Time at which the first threshold was broken, in seconds since the start of the run.
    broken_at: f64,
    /// End of the window, in seconds since the start of the run. Later samples are ignored.
    end: f64,
    /// The planned load over time.
    load: Load,
    /// Metrics of the generator's host.
    generator_host: HostSeries,
    /// Metrics of the target's host. For a local target this is the generator's host. Metrics of a
    /// remote host come from a node-exporter.
    target_host: HostSeries,
    /// Logical cores of the target's host.
    cores: f64,
    /// Names of the target's processes that were observed; empty if none was.
    target_names: Vec<&'a str>,
    /// True if the target runs in the generator's process. The CPU use of target and generator
    /// cannot be separated then.
    in_process: bool,
}

impl<'a> Context<'a> {
    /// Collects the values around the breach at `broken_at`.
    fn new(result: &'a RunResult, validity: Validity, broken_at: f64) -> Context<'a> {
        let end = broken_at + WINDOW_AFTER;
        let generator_host = HostSeries::of(&result.host, "generator");
        let watched = &result.watched;
        let remote_host = HostSeries::of(&result.host, "target");
        let target_host = if watched.target_local { generator_host.clone() } else { remote_host };
        let with_role = |role| watched.processes.iter().filter(move |process| process.role == role);
        let generator_pids: Vec<u32> =
            with_role(ProcessRole::Generator).flat_map(|process| process.pids.clone()).collect();
        let is_generator = |pid: &u32| generator_pids.contains(pid);
        let in_process =
            with_role(ProcessRole::Target).any(|process| process.pids.iter().any(is_generator));
        // If the target runs in a container, its listener is not found. The processes that the plan
        // names then count as the target's.
        let role = match with_role(ProcessRole::Target).next() {
            None => ProcessRole::Watched,
            Some(_) => ProcessRole::Target,
        };
        let target_processes =
            if watched.target_local { with_role(role).collect() } else { Vec::new() };
        let cores = target_host.get(host!("cores")).mean(f64::MIN, f64::MAX);
        Context {
            result,
            validity,
            broken_at,
            end,
            load: Load::of(&result.stages, end),
            generator_host,
            cores: cores.unwrap_or(if watched.target_local { watched.cores } else { 0.0 }),
            target_host,
            target_names: target_processes
                .into_iter()
                .map(|process| process.name.as_str())
                .collect(),
            in_process,
        }
    }

    /// Returns the seconds of the window around the breach.
    fn window(&self) -> impl Iterator<Item = &'a Second> {
        // `Second::at` is the end of the second.
        let (start, end) = (self.broken_at - WINDOW_BEFORE, self.end + 0.5);
        self.result.series.iter().filter(move |second| second.at > start && second.at <= end)
    }

    /// Returns the mean of a metric of the generator's host in the window.
    fn generator_mean(&self, name: impl Into<HostName>) -> Option<f64> {
        self.generator_host.get(name).mean(self.broken_at - WINDOW_BEFORE, self.end)
    }

    /// Returns the mean of a metric of the target's host in the window.
    fn host_mean(&self, name: impl Into<HostName>) -> Option<f64> {
        self.target_host.get(name).mean(self.broken_at - WINDOW_BEFORE, self.end)
    }

    /// Returns the mean of a metric in the window, summed over the target's processes.
    fn target_mean(&self, metric: &HostMetric) -> Option<f64> {
        let means =
            self.target_names.iter().filter_map(|name| self.generator_mean(metric.of(name)));
        means.reduce(|sum, mean| sum + mean)
    }

    /// Returns the mean of `value` over the seconds of the window.
    fn mean_second(&self, value: impl Fn(&Second) -> f64) -> Option<f64> {
        mean(&self.window().map(value).collect::<Vec<f64>>())
    }

    /// Returns two p99 latencies in milliseconds: the largest one in the window, and the smallest
    /// one of the run. The p99 of a second is the largest p99 of its methods.
    fn p99_range(&self) -> (f64, f64) {
        let p99 =
            |second: &Second| second.methods.iter().map(|method| method.p99_ms).fold(0.0, f64::max);
        let worst_p99 = self.window().map(p99).fold(0.0, f64::max);
        let with_calls = self.result.series.iter().filter(|second| !second.methods.is_empty());
        let lowest_p99 = with_calls.map(p99).fold(f64::INFINITY, f64::min);
        (worst_p99, if lowest_p99.is_finite() { lowest_p99.min(worst_p99) } else { 0.0 })
    }

    /// Returns the duration of the longest call in the window, in milliseconds.
    fn longest_call_ms(&self) -> f64 {
        let methods = self.window().flat_map(|second| &second.methods);
        methods.map(|method| method.max_ms).fold(0.0, f64::max)
    }

    /// Returns the doubts that apply to every cause. The only one is about late sends.
    fn doubts(&self) -> Vec<Doubt> {
        exclude::late_sends_ms(self).map(Doubt::LateSends).into_iter().collect()
    }
}

/// Returns the result if no check finds a cause: the reason why the cause is unknown, and the
/// metrics of the host.
fn report_unknown(context: &Context<'_>) -> Bottleneck {
    let watched = &context.result.watched;
    let reason = if context.in_process {
        Unknown::InProcess
    } else if context.target_host.is_empty() {
        Unknown::HostUnseen
    } else if !watched.target_local {
        Unknown::Remote
    } else if context.target_names.is_empty() {
        Unknown::ProcessesUnseen
    } else {
        Unknown::Unclear
    };
    let mut evidence = resource::host_evidence(context);
    evidence.extend(watched.missing.iter().cloned().map(Evidence::NotObserved));
    Bottleneck { at: None, claim: Claim::Unknown(reason), evidence, doubts: Vec::new() }
}

#[cfg(test)]
mod tests;
