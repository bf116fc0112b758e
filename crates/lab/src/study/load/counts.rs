//! Counts of the runs of a load study: rates, CPU of the servers, TLS handshakes, access logs.

use lab_model::results::load_study::{
    AccessLogCounts, AccessLogRow, CountRow, CpuLimit, RunCounts,
};
use lab_model::results::run::{ProcessRole, RunResult};

use super::analyse::FinishedRun;
use super::file::LoadStudy;
use crate::analysis::statistics::median;

/// HTTP status of requests above a rate limit.
const TOO_MANY_REQUESTS: u16 = 429;

/// Returns the counts of a run.
pub(super) fn count_run(
    result: &RunResult,
    cpu_limit: Option<CpuLimit>,
    access_log: Option<AccessLogCounts>,
) -> RunCounts {
    let processes = result.watched.processes.iter();
    let cpu: Vec<f64> = processes
        .filter(|process| process.role == ProcessRole::Target)
        .map(|process| process.cpu)
        .collect();
    let with_status = |wanted: u16| {
        let statuses = result.wire.statuses.iter();
        statuses.filter(|(status, _)| *status == wanted).map(|(_, count)| count).sum()
    };
    RunCounts {
        seconds: result.duration,
        requests: result.wire.traffic.requests,
        limited: with_status(TOO_MANY_REQUESTS),
        goodput: result.overall.goodput,
        failed_share: result.overall.failed_share,
        p50_ms: result.overall.latency.p50_ms,
        p95_ms: result.overall.latency.p95_ms,
        server_cpu: (!cpu.is_empty()).then(|| cpu.iter().sum()),
        handshakes_full: result.wire.traffic.handshakes_full,
        handshakes_resumed: result.wire.traffic.handshakes_resumed,
        cpu_limit,
        access_log,
    }
}

/// Returns the counts of each variant under each plan or case.
pub(super) fn count_rows(study: &LoadStudy, runs: &[FinishedRun]) -> Vec<CountRow> {
    let row = |(plan, variant)| {
        let of_pair = runs.iter().filter(|run| (run.plan, run.variant) == (plan, variant));
        let counted: Vec<(&FinishedRun, &RunCounts)> =
            of_pair.filter_map(|run| Some((run, run.facts.counts.as_ref()?))).collect();
        let names = (study.plans[plan].as_str(), study.variants[variant].name.as_str());
        (!counted.is_empty()).then(|| count_row(names, &counted))
    };
    study.pairs().filter_map(row).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn count_row((plan, variant): (&str, &str), counted: &[(&FinishedRun, &RunCounts)]) -> CountRow {
    let all = || counted.iter().map(|(_, counts)| *counts);
    let median_of = |value: &dyn Fn(&RunCounts) -> f64| {
        median(&all().map(value).collect::<Vec<_>>()).unwrap_or_default()
    };
    let rate_of = |count: &dyn Fn(&RunCounts) -> u64| {
        median_of(&|counts| count(counts) as f64 / counts.seconds.max(f64::MIN_POSITIVE))
    };
    let cpu = |counts: &RunCounts| {
        let cpu = counts.server_cpu.filter(|_| counts.requests > 0)?;
        Some(cpu * 1_000.0 / counts.requests as f64)
    };
    let mut outcomes = Vec::new();
    let outcomes_of = counted.iter().filter_map(|(run, _)| run.run.as_ref()?.facts.outcome);
    outcomes_of.for_each(|outcome| {
        if !outcomes.contains(&outcome) {
            outcomes.push(outcome);
        }
    });
    CountRow {
        plan: plan.to_owned(),
        variant: variant.to_owned(),
        runs: counted.len(),
        outcomes,
        requests: rate_of(&|counts| counts.requests),
        goodput: median_of(&|counts| counts.goodput),
        limited: rate_of(&|counts| counts.limited),
        failed_share: median_of(&|counts| counts.failed_share),
        p50_ms: median_of(&|counts| counts.p50_ms),
        p95_ms: median_of(&|counts| counts.p95_ms),
        cpu_ms_per_request: median(&all().filter_map(cpu).collect::<Vec<_>>()),
        handshakes_full: rate_of(&|counts| counts.handshakes_full),
        handshakes_resumed: rate_of(&|counts| counts.handshakes_resumed),
        cpu_limit: all().find_map(|counts| counts.cpu_limit),
        access_log: access_log_row(&all().collect::<Vec<_>>()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are below 2^53")]
fn access_log_row(counts: &[&RunCounts]) -> Option<AccessLogRow> {
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
