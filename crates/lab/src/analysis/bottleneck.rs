//! Finds the first bottleneck of a run: the generator, connections, a rate limit, an upstream of
//! the target, a resource of the target's host, or the target's software. The result carries its
//! evidence; it may also be "cannot tell".
//!
//! Order of judgement:
//! 1. Exclusions (`bottleneck/exclude.rs`). Each of them makes the host's metrics irrelevant: the
//!    generator was the limit, connecting took the time, a rate limit rejected calls, or an
//!    upstream of the target took the time.
//! 2. Resources (`bottleneck/resource.rs`). The cause is the first resource that saturated before
//!    the threshold was broken and that correlates with the load.
//! 3. The target's software, if no resource saturated, the target was fully observed, and it had
//!    calls to work on.
//! 4. Otherwise the cause is unknown.
//!
//! A resource is saturated only if its utilisation was high AND something waited for it (the USE
//! method, <https://www.brendangregg.com/usemethod.html>). Iowait or disk utilisation alone is no
//! evidence. The start of saturation is a change above the resource's own baseline
//! (`bottleneck/time_series.rs`).
//!
//! Confidence is high without a doubt, medium with one, and low with more. The doubts are: the load
//! did not vary (no correlation exists); there was no time without load (no baseline exists);
//! another resource saturated within a second; the generator's sends were late; a metric is
//! missing.

pub(crate) mod diagnosis;
mod exclude;
mod resource;
pub(crate) mod time_series;

use lab_model::metrics::host::{HostMetric, HostName, host};
use lab_model::plan::Validity;
use lab_model::results::run::{
    Generator, HostFacts, HostSample, ProcessRole, Row, RunResult, Second, StageRow, WireFacts,
};
use lab_model::results::{Cause, Confidence};

use crate::analysis::statistics::mean;

use diagnosis::{Bottleneck, Claim, Doubt, Evidence, Unknown};
use time_series::{HostSeries, Load};

/// The parts of a run's result that the search for a bottleneck reads.
#[derive(Clone, Copy, Debug)]
pub struct BottleneckInput<'a> {
    /// Samples of all hosts, including those taken before the run.
    pub host: &'a [HostSample],
    /// The hosts and processes that were observed, and the metrics that are missing.
    pub watched: &'a HostFacts,
    /// Time series of the run, one entry per second.
    pub series: &'a [Second],
    /// The stages of the plan with their load.
    pub stages: &'a [StageRow],
    /// Totals over all methods.
    pub overall: &'a Row,
    /// Health of the load generator.
    pub generator: &'a Generator,
    /// Connections and handshakes.
    pub wire: &'a WireFacts,
    /// Limits above which sends count as late.
    pub validity: Validity,
    /// When the first threshold was broken, in seconds since the start of the run.
    pub broken_at: Option<f64>,
}

impl<'a> BottleneckInput<'a> {
    /// Takes the input from a run's result. The `bottleneck` of the result is not read.
    pub fn of(result: &'a RunResult, validity: Validity, broken_at: Option<f64>) -> Self {
        BottleneckInput {
            host: &result.host,
            watched: &result.watched,
            series: &result.series,
            stages: &result.stages,
            overall: &result.overall,
            generator: &result.generator,
            wire: &result.wire,
            validity,
            broken_at,
        }
    }
}

/// Returns the first bottleneck; none if no threshold was broken.
pub fn find(input: &BottleneckInput<'_>) -> Option<Bottleneck> {
    let broken_at = input.broken_at?;
    let context = Context::new(input, broken_at);
    let saturated = resource::saturated(&context);
    let finding = exclude::generator(&context)
        .or_else(|| exclude::connection(&context, &saturated))
        .or_else(|| exclude::rate_limit(&context))
        .or_else(|| exclude::upstream(&context, &saturated))
        .or_else(|| resource::first(&context, &saturated))
        .or_else(|| resource::software(&context, &saturated))
        .unwrap_or_else(|| cannot_tell(&context));
    Some(finding)
}

/// Start of the window, in seconds before the breach. The window is longer after the breach,
/// because overload is clearest once it has begun.
const BEFORE: f64 = 1.0;
const AFTER: f64 = 2.0;

/// The input, with values that several rules need.
struct Context<'a> {
    input: &'a BottleneckInput<'a>,
    broken_at: f64,
    /// End of the window; later samples are ignored.
    end: f64,
    load: Load,
    /// Metrics of the generator's host.
    own: HostSeries,
    /// Metrics of the target's host: the generator's own host, or those of a node-exporter.
    host: HostSeries,
    /// Logical cores of the target's host.
    cores: f64,
    /// Names of the target's processes that were observed.
    targets: Vec<&'a str>,
    /// True if the target runs in the generator's process. Their CPU use cannot be separated then.
    in_process: bool,
}

impl<'a> Context<'a> {
    fn new(input: &'a BottleneckInput<'a>, broken_at: f64) -> Context<'a> {
        let end = broken_at + AFTER;
        let own = HostSeries::of(input.host, "generator");
        let watched = input.watched;
        let remote = HostSeries::of(input.host, "target");
        let host = if watched.target_local { own.clone() } else { remote };
        let with_role = |role| watched.processes.iter().filter(move |process| process.role == role);
        let own_pids: Vec<u32> =
            with_role(ProcessRole::Generator).flat_map(|process| process.pids.clone()).collect();
        let is_own = |pid: &u32| own_pids.contains(pid);
        let in_process =
            with_role(ProcessRole::Target).any(|process| process.pids.iter().any(is_own));
        // The listener of a target in a container is not found. Then the processes that the plan
        // names are used as the target.
        let role = match with_role(ProcessRole::Target).next() {
            None => ProcessRole::Watched,
            Some(_) => ProcessRole::Target,
        };
        let targets = if watched.target_local { with_role(role).collect() } else { Vec::new() };
        let cores = host.get(host!("cores")).mean(f64::MIN, f64::MAX);
        Context {
            input,
            broken_at,
            end,
            load: Load::of(input.stages, end),
            own,
            cores: cores.unwrap_or(if watched.target_local { watched.cores } else { 0.0 }),
            host,
            targets: targets.into_iter().map(|process| process.name.as_str()).collect(),
            in_process,
        }
    }

    /// The seconds of the window around the breach.
    fn around(&self) -> impl Iterator<Item = &'a Second> {
        // `Second::at` is the end of the second.
        let (from, to) = (self.broken_at - BEFORE, self.end + 0.5);
        self.input.series.iter().filter(move |second| second.at > from && second.at <= to)
    }

    /// Mean of a metric of the generator's host in the window.
    fn own_around(&self, name: impl Into<HostName>) -> Option<f64> {
        self.own.get(name).mean(self.broken_at - BEFORE, self.end)
    }

    /// Mean of a metric of the target's host in the window.
    fn host_around(&self, name: impl Into<HostName>) -> Option<f64> {
        self.host.get(name).mean(self.broken_at - BEFORE, self.end)
    }

    /// Mean of a metric in the window, summed over the target's processes.
    fn target_around(&self, metric: &HostMetric) -> Option<f64> {
        let each = self.targets.iter().filter_map(|name| self.own_around(metric.of(name)));
        each.reduce(|one, other| one + other)
    }

    /// Mean of `value` over the seconds of the window.
    fn second_around(&self, value: impl Fn(&Second) -> f64) -> Option<f64> {
        mean(&self.around().map(value).collect::<Vec<f64>>())
    }

    /// Largest p99 of any method in the window, and the lowest such p99 of the run, in
    /// milliseconds.
    fn latency(&self) -> (f64, f64) {
        let p99 =
            |second: &Second| second.methods.iter().map(|method| method.p99_ms).fold(0.0, f64::max);
        let worst = self.around().map(p99).fold(0.0, f64::max);
        let calls = self.input.series.iter().filter(|second| !second.methods.is_empty());
        let least = calls.map(p99).fold(f64::INFINITY, f64::min);
        (worst, if least.is_finite() { least.min(worst) } else { 0.0 })
    }

    /// Duration of the longest call in the window, in milliseconds.
    fn longest(&self) -> f64 {
        let methods = self.around().flat_map(|second| &second.methods);
        methods.map(|method| method.max_ms).fold(0.0, f64::max)
    }

    /// Returns the doubts that apply to every cause: late sends.
    fn doubts(&self) -> Vec<Doubt> {
        exclude::lateness(self).map(Doubt::LateSends).into_iter().collect()
    }
}

/// Returns the result if no rule applies. It says why the cause is unknown and lists the metrics
/// that were read.
fn cannot_tell(context: &Context<'_>) -> Bottleneck {
    let watched = context.input.watched;
    let why = if context.in_process {
        Unknown::InProcess
    } else if context.host.is_empty() {
        Unknown::HostUnseen
    } else if !watched.target_local {
        Unknown::Remote
    } else if context.targets.is_empty() {
        Unknown::ProcessesUnseen
    } else {
        Unknown::Unclear
    };
    let mut evidence = resource::host_evidence(context);
    evidence.extend(watched.missing.iter().cloned().map(Evidence::Missing));
    Bottleneck {
        cause: Cause::Unknown,
        confidence: Confidence::Low,
        at: None,
        claim: Claim::Unknown(why),
        evidence,
        doubts: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
