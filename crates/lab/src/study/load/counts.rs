//! Counts of each run of a load study, and their summary for each variant under each plan or case.
//!
//! The counts cover requests, latency, CPU of the servers, TLS handshakes and access logs. A
//! summary has the medians over the runs, with counts as rates per second.

use lab_model::record::Class;
use lab_model::results::load_study::{
    AccessLogCounts, AccessLogRow, CountRow, CpuLimit, RunCounts,
};
use lab_model::results::run::{ProcessRole, RunResult};

use super::file::LoadStudy;
use super::finished::FinishedRun;
use crate::analysis::statistics::median;
use crate::distinct;

/// Returns the counts of a run.
pub(super) fn count_run(
    result: &RunResult,
    cpu_limit: Option<CpuLimit>,
    access_log: Option<AccessLogCounts>,
) -> RunCounts {
    let processes = result.watched.processes.iter();
    // The CPU seconds of each process of the target. Empty if the processes were not found.
    let cpu_seconds: Vec<f64> = processes
        .filter(|process| process.role == ProcessRole::Target)
        .map(|process| process.cpu)
        .collect();
    let methods = result.series.iter().flat_map(|second| &second.methods);
    let classes = methods.flat_map(|method| &method.classes);
    let limited = classes.filter(|(class, _)| *class == Class::Limited);
    RunCounts {
        seconds: result.duration,
        measured_seconds: result.duration - result.plan.warmup,
        // The server's CPU time and access log include the warm-up too.
        requests: result.series.iter().map(|second| second.requests).sum(),
        limited: limited.map(|(_, count)| count).sum(),
        goodput: result.overall.goodput,
        failed_share: result.overall.failed_share,
        p50_ms: result.overall.latency.p50_ms,
        p95_ms: result.overall.latency.p95_ms,
        server_cpu: (!cpu_seconds.is_empty()).then(|| cpu_seconds.iter().sum()),
        handshakes_full: result.wire.traffic.handshakes_full,
        handshakes_resumed: result.wire.traffic.handshakes_resumed,
        cpu_limit,
        access_log,
    }
}

/// Summarizes the runs of each pair of a variant and a plan or case. Omits a pair whose runs have
/// no counts.
pub(super) fn summarize_pairs(study: &LoadStudy, runs: &[FinishedRun]) -> Vec<CountRow> {
    let row = |(plan, variant)| {
        let pair_runs = runs.iter().filter(|run| (run.id.plan, run.id.variant) == (plan, variant));
        let counted_runs: Vec<(&FinishedRun, &RunCounts)> =
            pair_runs.filter_map(|run| Some((run, run.facts.counts.as_ref()?))).collect();
        let names = (study.plans[plan].as_str(), study.variants[variant].name.as_str());
        (!counted_runs.is_empty()).then(|| summarize_pair(names, &counted_runs))
    };
    study.pairs().filter_map(row).collect()
}

/// Returns the CPU milliseconds of the target's processes per HTTP request. `None` if they are
/// unknown, or if there was no request.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
pub(super) fn cpu_ms_per_request(counts: &RunCounts) -> Option<f64> {
    let cpu_seconds = counts.server_cpu.filter(|_| counts.requests > 0)?;
    Some(cpu_seconds * 1_000.0 / counts.requests as f64)
}

/// Summarizes the runs of one variant under one plan or case. `counted_runs` is not empty.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn summarize_pair(
    (plan, variant): (&str, &str),
    counted_runs: &[(&FinishedRun, &RunCounts)],
) -> CountRow {
    let all_counts = || counted_runs.iter().map(|(_, counts)| *counts);
    // The median of no values is 0, but there is at least one run.
    let median_of = |value: &dyn Fn(&RunCounts) -> f64| {
        median(&all_counts().map(value).collect::<Vec<_>>()).unwrap_or_default()
    };
    // The clamp gives a run of 0 seconds without requests the rate 0 instead of NaN.
    let rate_of = |count: &dyn Fn(&RunCounts) -> u64| {
        median_of(&|counts| count(counts) as f64 / counts.seconds.max(f64::MIN_POSITIVE))
    };
    let handshake_rate = |count: &dyn Fn(&RunCounts) -> u64| {
        let seconds = |counts: &RunCounts| match counts.measured_seconds {
            0.0 => counts.seconds,
            measured => measured,
        };
        median_of(&|counts| count(counts) as f64 / seconds(counts).max(f64::MIN_POSITIVE))
    };
    let outcomes = counted_runs.iter().filter_map(|(run, _)| run.run.as_ref()?.facts.outcome);
    CountRow {
        plan: plan.to_owned(),
        variant: variant.to_owned(),
        runs: counted_runs.len(),
        outcomes: distinct(outcomes),
        requests: rate_of(&|counts| counts.requests),
        goodput: median_of(&|counts| counts.goodput),
        limited: rate_of(&|counts| counts.limited),
        failed_share: median_of(&|counts| counts.failed_share),
        p50_ms: median_of(&|counts| counts.p50_ms),
        p95_ms: median_of(&|counts| counts.p95_ms),
        cpu_ms_per_request: median(
            &all_counts().filter_map(cpu_ms_per_request).collect::<Vec<_>>(),
        ),
        handshakes_full: handshake_rate(&|counts| counts.handshakes_full),
        handshakes_resumed: handshake_rate(&|counts| counts.handshakes_resumed),
        cpu_limit: all_counts().find_map(|counts| counts.cpu_limit),
        access_log: summarize_access_logs(&all_counts().collect::<Vec<_>>()),
    }
}

/// Summarizes the access logs of runs. Returns `None` if no run has one.
#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn summarize_access_logs(counts: &[&RunCounts]) -> Option<AccessLogRow> {
    let with_log: Vec<(&RunCounts, &AccessLogCounts)> =
        counts.iter().filter_map(|counts| Some((*counts, counts.access_log.as_ref()?))).collect();
    let rates: Vec<f64> = with_log
        .iter()
        .map(|(counts, log)| log.requests as f64 / counts.seconds.max(f64::MIN_POSITIVE))
        .collect();
    let sum = |count: &dyn Fn(&RunCounts, &AccessLogCounts) -> u64| {
        with_log.iter().map(|(counts, log)| count(counts, log)).sum()
    };
    Some(AccessLogRow {
        requests: median(&rates)?,
        total: sum(&|_, log| log.requests),
        generator_total: sum(&|counts, _| counts.requests),
        limited: sum(&|_, log| log.limited),
        generator_limited: sum(&|counts, _| counts.limited),
        second_difference_max: with_log
            .iter()
            .map(|(_, log)| log.second_difference_max())
            .max()
            .unwrap_or_default(),
    })
}
