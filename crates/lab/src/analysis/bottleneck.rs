//! What broke an objective first: the generator, the way to the target, its limits, what is behind
//! it, or a resource of its own; with evidence, or "cannot tell".
//!
//! Order of judgement. First the exclusions, because each of them makes what a host shows beside the
//! point: the generator was the limit; making connections took the time; a rate limit answered; a
//! server behind the target took the time. Then the resources (`bottleneck/resource.rs`): the one
//! that saturated first, before the objective broke, and went with the load. If none did, and the
//! target was seen whole and had calls to work on, its own software is the limit. Else nothing is
//! claimed.
//!
//! A resource counts as saturated only if it was highly used AND something waited for it (the USE
//! method, <https://www.brendangregg.com/usemethod.html>); iowait and disk utilisation alone are no
//! evidence. "Since when" is a change above the resource's own baseline (`bottleneck/course.rs`).
//!
//! Confidence: high without a doubt, medium with one, low with more. Doubts are: the load did not
//! vary, so that cause and load cannot be compared; no time without load, so no baseline; another
//! resource saturated within a second; the generator's sends were late; something was not seen.

pub(crate) mod course;
mod exclude;
pub(crate) mod found;
mod resource;

use lab_model::metrics::host::{HostMetric, HostName, host};
use lab_model::plan::Validity;
use lab_model::results::run::{
    Generator, HostFacts, HostSample, ProcessRole, Row, RunResult, Second, StageRow, WireFacts,
};
use lab_model::results::{Cause, Confidence};

use crate::analysis::statistics::mean;

use course::{Courses, Load};
use found::{Bottleneck, Claim, Doubt, Evidence, Unknown};

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct BottleneckInput<'a> {
    /// Samples of all hosts, those before the run included.
    pub host: &'a [HostSample],
    /// What could be watched.
    pub watched: &'a HostFacts,
    /// The run by second.
    pub series: &'a [Second],
    /// The planned load.
    pub stages: &'a [StageRow],
    /// All calls.
    pub overall: &'a Row,
    /// How the generator did.
    pub generator: &'a Generator,
    /// Connections.
    pub wire: &'a WireFacts,
    /// When sends count as late.
    pub validity: Validity,
    /// When the first objective was broken (or the knee of a search was), since the start of the run.
    pub broken_at: Option<f64>,
}

impl<'a> BottleneckInput<'a> {
    /// Of a run whose `bottleneck` is still to be found.
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

/// The first bottleneck; none if no objective was broken.
pub fn find(input: &BottleneckInput<'_>) -> Option<Bottleneck> {
    let broken_at = input.broken_at?;
    let sight = Sight::of(input, broken_at);
    let saturated = resource::saturated(&sight);
    let finding = exclude::generator(&sight)
        .or_else(|| exclude::connection(&sight, &saturated))
        .or_else(|| exclude::rate_limit(&sight))
        .or_else(|| exclude::upstream(&sight, &saturated))
        .or_else(|| resource::first(&sight, &saturated))
        .or_else(|| resource::software(&sight, &saturated))
        .unwrap_or_else(|| cannot_tell(&sight));
    Some(finding)
}

/// Seconds before and after the break in which its circumstances are looked at: what follows it shows
/// them best, as long as the load goes on.
const BEFORE: f64 = 1.0;
const AFTER: f64 = 2.0;

/// The input, with what is asked of it more than once.
struct Sight<'a> {
    input: &'a BottleneckInput<'a>,
    broken_at: f64,
    /// Until when samples count.
    end: f64,
    load: Load,
    /// This host.
    own: Courses,
    /// The target's host: this one, or what a node-exporter tells.
    host: Courses,
    /// Logical cores of the target's host.
    cores: f64,
    /// Names of the target's processes that are seen.
    targets: Vec<&'a str>,
    /// Whether the target is a part of this very process, so that the two cannot be told apart.
    in_process: bool,
}

impl<'a> Sight<'a> {
    fn of(input: &'a BottleneckInput<'a>, broken_at: f64) -> Sight<'a> {
        let end = broken_at + AFTER;
        let own = Courses::of(input.host, "generator");
        let watched = input.watched;
        let far = Courses::of(input.host, "target");
        let host = if watched.target_local { own.clone() } else { far };
        let seen = |role| watched.processes.iter().filter(move |process| process.role == role);
        let own_pids: Vec<u32> =
            seen(ProcessRole::Generator).flat_map(|process| process.pids.clone()).collect();
        let is_own = |pid: &u32| own_pids.contains(pid);
        let in_process = seen(ProcessRole::Target).any(|process| process.pids.iter().any(is_own));
        // Processes that the plan names stand for a target in a container, whose listener is not seen.
        let role = match seen(ProcessRole::Target).next() {
            None => ProcessRole::Watched,
            Some(_) => ProcessRole::Target,
        };
        let targets = if watched.target_local { seen(role).collect() } else { Vec::new() };
        let cores = host.get(host!("cores")).mean(f64::MIN, f64::MAX);
        Sight {
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

    /// The seconds around the break.
    fn around(&self) -> impl Iterator<Item = &'a Second> {
        // A second is named by its end.
        let (from, to) = (self.broken_at - BEFORE, self.end + 0.5);
        self.input.series.iter().filter(move |second| second.at > from && second.at <= to)
    }

    /// The mean of a metric of this host around the break.
    fn own_around(&self, name: impl Into<HostName>) -> Option<f64> {
        self.own.get(name).mean(self.broken_at - BEFORE, self.end)
    }

    /// The mean of a metric of the target's host around the break.
    fn host_around(&self, name: impl Into<HostName>) -> Option<f64> {
        self.host.get(name).mean(self.broken_at - BEFORE, self.end)
    }

    /// The sum of a metric over the target's processes around the break.
    fn target_around(&self, metric: &HostMetric) -> Option<f64> {
        let each = self.targets.iter().filter_map(|name| self.own_around(metric.of(name)));
        each.reduce(|one, other| one + other)
    }

    /// The mean of what a second tells, around the break.
    fn second_around(&self, of: impl Fn(&Second) -> f64) -> Option<f64> {
        mean(&self.around().map(of).collect::<Vec<f64>>())
    }

    /// Largest p99 of any method around the break, and before it under little load.
    fn latency(&self) -> (f64, f64) {
        let p99 =
            |second: &Second| second.methods.iter().map(|method| method.p99_ms).fold(0.0, f64::max);
        let worst = self.around().map(p99).fold(0.0, f64::max);
        let calls = self.input.series.iter().filter(|second| !second.methods.is_empty());
        let least = calls.map(p99).fold(f64::INFINITY, f64::min);
        (worst, if least.is_finite() { least.min(worst) } else { 0.0 })
    }

    /// Time of the longest call around the break, in milliseconds.
    fn longest(&self) -> f64 {
        let methods = self.around().flat_map(|second| &second.methods);
        methods.map(|method| method.max_ms).fold(0.0, f64::max)
    }

    /// What makes every finding less sure: sends that were late, and what was not seen.
    fn doubts(&self) -> Vec<Doubt> {
        exclude::lateness(self).map(Doubt::LateSends).into_iter().collect()
    }
}

/// No claim, with what was looked at.
fn cannot_tell(sight: &Sight<'_>) -> Bottleneck {
    let watched = sight.input.watched;
    let why = if sight.in_process {
        Unknown::InProcess
    } else if sight.host.is_empty() {
        Unknown::HostUnseen
    } else if !watched.target_local {
        Unknown::Remote
    } else if sight.targets.is_empty() {
        Unknown::ProcessesUnseen
    } else {
        Unknown::Unclear
    };
    let mut evidence = resource::looked_at(sight);
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
