//! Measures `weir load`: CPU cost, scheduling delay, correctness of its figures, and memory growth.
//! The *scheduling delay* is the time from the planned start of a request to its real start.
//!
//! The generator runs alone on core 1, its server alone on core 0. The cost is the generator's CPU
//! time, read from the kernel, divided by the requests that the constant node counts. Both figures
//! are read at two instants within the run, so the start of the generator does not count.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cost::{BLOCK_CALL, MeasuredRound, build_rows, count_served, interleave};
use super::generator::{Generator, LoadSpec, Report, RunningGenerator};
use super::load::{Round, Summary};
use super::machine;
use super::row::{Row, RowSpec, median};
use super::server::{LOAD_CORE, SERVER_CORE, Server};
use super::{Bench, CONNECTIONS};
use crate::shell;

/// Duration of the warm-up after the first request. Meanwhile connections open and buffers grow.
const WARM: Duration = Duration::from_secs(1);
/// Seconds that a run lasts in addition to its warm-up and measurement, because k6 starts slowly.
const MARGIN_SECONDS: u64 = 4;
/// Timeout for the first request. k6 compiles its script before its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for a generator to end after its scheduled end.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// The cheapest call that both the constant and the simulated node serve.
const NUMBER_CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}"#;

/// Measures CPU time per request against three peers.
///
/// # Errors
/// Fails if a generator or the server does not run.
pub(crate) fn measure_cost(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, _) = Server::start_backend_on(SERVER_CORE, 1, BLOCK_CALL)?;
    let generators =
        [Generator::Weir(bench.weir.clone()), Generator::Wrk, Generator::Oha, Generator::K6];
    let figures = interleave(bench, "cost", &generators, |generator| {
        measure_cost_round(bench, generator, &backend)
    })?;
    // Largest allowed ratios of our cost to that of wrk, oha and k6.
    let targets = [Some(1.1), Some(0.7), Some(0.1)];
    Ok(build_rows("load, 60 connections", &figures, &targets))
}

fn measure_cost_round(
    bench: &Bench,
    generator: &Generator,
    backend: &Server,
) -> Result<MeasuredRound> {
    let spec = LoadSpec {
        target: backend.address,
        body: BLOCK_CALL,
        rate: None,
        connections: CONNECTIONS,
        seconds: WARM.as_secs() + bench.seconds + MARGIN_SECONDS,
    };
    let before = count_served(backend)?;
    let running = generator.start(&spec)?;
    wait_for_load(backend, before)?;
    let busy_secs_before = machine::core_busy_seconds(LOAD_CORE)?;
    let cpu_before = machine::cpu_time(running.group())?;
    let (served_before, started) = (count_served(backend)?, Instant::now());
    shell::pause(Duration::from_secs(bench.seconds));
    let cpu = machine::cpu_time(running.group())?.saturating_sub(cpu_before);
    let requests = count_served(backend)?.saturating_sub(served_before);
    let duration = started.elapsed();
    let busy_secs = machine::core_busy_seconds(LOAD_CORE)? - busy_secs_before;
    let others_secs = busy_secs - cpu.as_secs_f64();
    let report = running.finish(END_TIMEOUT)?;
    // Bytes are not counted, and errors are in `report.problems`.
    let summary = Summary { requests, bytes: 0, duration, errors: [0; 5] };
    let disturbance = others_secs / duration.as_secs_f64();
    Ok((Round { cpu, disturbance, summary }, report.problems))
}

/// Waits until load arrives, and then until the warm-up ends. `before` is the number of calls that
/// the constant node had served before the generator started.
fn wait_for_load(backend: &Server, before: u64) -> Result<()> {
    /// Minimum number of requests that count as load. Fewer requests may be probes of this tool and
    /// of a generator.
    const REQUESTS_MIN: u64 = 1_000;
    let started = Instant::now();
    while count_served(backend)? < before + REQUESTS_MIN {
        ensure!(
            started.elapsed() < FIRST_REQUEST_TIMEOUT,
            "no load arrived within {FIRST_REQUEST_TIMEOUT:?}"
        );
        shell::pause(Duration::from_millis(20));
    }
    shell::pause(WARM);
    Ok(())
}

/// Measures the scheduling delay at three rates; the middle rate has a target.
///
/// # Errors
/// Fails if the generator or the server does not run.
pub(crate) fn measure_punctuality(bench: &Bench) -> Result<Vec<Row>> {
    /// Documented scheduling delay at 20,000 requests per second on an idle core, in microseconds.
    const LIMIT_US: f64 = 100.0;
    let (backend, _) = Server::start_backend_on(SERVER_CORE, 1, NUMBER_CALL)?;
    let mut rows = Vec::new();
    for (rate, target) in [(5_000, None), (20_000, Some(1.0)), (50_000, None)] {
        let (mut delays, mut problems) = (Vec::new(), Vec::new());
        for repetition in 1..=bench.repetitions {
            let spec = LoadSpec {
                target: backend.address,
                body: NUMBER_CALL,
                rate: Some(rate),
                connections: CONNECTIONS,
                seconds: bench.seconds,
            };
            let report = run(bench, &spec)?;
            let delay =
                report.scheduling_delay_p99_us.context("the report has no scheduling delay")?;
            eprintln!(
                "punctual {repetition}/{}: {rate}/s, scheduling delay p99 {delay:.1} us",
                bench.repetitions
            );
            delays.push(delay);
            // At the highest rate the server cannot keep up, so the report has problems. They do
            // not affect the scheduling delay, so problems count only for the rate with a target.
            problems.extend(if target.is_some() { report.problems } else { Vec::new() });
        }
        let row_spec = RowSpec {
            case: &format!("scheduling delay p99, {rate}/s"),
            unit: "us",
            peer: "the limit",
            target,
        };
        rows.push(Row::compare(&row_spec, &delays, &vec![LIMIT_US; delays.len()], problems));
    }
    Ok(rows)
}

fn run(bench: &Bench, spec: &LoadSpec<'_>) -> Result<Report> {
    let running = Generator::Weir(bench.weir.clone()).start(spec)?;
    running.finish(Duration::from_secs(spec.seconds) + END_TIMEOUT)
}

/// Duration of a run at a constant rate. The server stalls for [`STALL`] during the run.
const STALL_SECONDS: u64 = 20;
/// Requests per second. At this low rate the server drains the queue of a stall in negligible time.
/// [`compute_true_figures`] does not include this time.
const STALL_RATE: u32 = 100;
/// Time from the start of the load to the stall.
const STALL_AFTER: Duration = Duration::from_secs(6);
const STALL: Duration = Duration::from_secs(1);
/// A request that takes longer than this is slow.
const SLOW: Duration = Duration::from_millis(100);
/// Number of workers. It exceeds the number of requests that wait during the stall.
const STALL_WORKERS: usize = 300;
/// Largest allowed relative deviation of a figure from the true value: 0.02 is 2 %.
const TRUTH_SHARE: f64 = 0.02;

/// Computes the true figures for a server without latency that stalls for `stall`. Returns p99 and
/// maximum in milliseconds, and the number of slow requests.
///
/// A request that is scheduled during the stall waits until the stall ends. So waits are uniform
/// between 0 and `stall`. One in a hundred of all requests waits longer than the p99.
fn compute_true_figures(stall: Duration) -> [f64; 3] {
    let (stall, rate) = (stall.as_secs_f64(), f64::from(STALL_RATE));
    let requests = rate * STALL_SECONDS as f64;
    let p99_ms = (stall - 0.01 * requests / rate) * 1e3;
    [p99_ms, stall * 1e3, rate * (stall - SLOW.as_secs_f64())]
}

/// The figures of one generator, by repetition: p99 and maximum in milliseconds, and the number of
/// requests above 100 ms.
#[derive(Default)]
struct StallFigures {
    reported: Vec<[f64; 3]>,
    truth: Vec<[f64; 3]>,
    /// Reasons why runs are invalid.
    problems: Vec<String>,
}

/// Compares reported figures with true ones for a server that stalls for a second.
///
/// # Errors
/// Fails if a generator or the server does not run.
pub(crate) fn compare_with_truth(bench: &Bench) -> Result<Vec<Row>> {
    let generators = [Generator::Weir(bench.weir.clone()), Generator::Wrk, Generator::K6];
    let mut results: [StallFigures; 3] = Default::default();
    for repetition in 1..=bench.repetitions {
        for (generator, result) in generators.iter().zip(&mut results) {
            let (report, stall) = run_with_stall(bench, generator)?;
            let figures = [report.p99_ms, report.max_ms, report.slow.unwrap_or(0) as f64];
            let truth = compute_true_figures(stall);
            eprintln!(
                "truth {repetition}/{}: {generator:?} reports {figures:.0?}, the truth is {truth:.0?}",
                bench.repetitions
            );
            result.reported.push(figures);
            result.truth.push(truth);
            result.problems.extend(report.problems);
        }
    }
    let names = [("p99", "ms"), ("max", "ms"), ("above 100 ms", "requests")];
    let [ours, wrk, k6] = &results;
    let mut rows = Vec::new();
    for (index, (name, unit)) in names.into_iter().enumerate() {
        let case = format!("stall of 1 s, {name}");
        let pick =
            |figures: &[[f64; 3]]| figures.iter().map(|round| round[index]).collect::<Vec<f64>>();
        let (reported, truth) = (pick(&ours.reported), pick(&ours.truth));
        let mut problems = ours.problems.clone();
        let deviation = median(&reported) / median(&truth) - 1.0;
        if deviation.abs() > TRUTH_SHARE {
            problems.push(format!("{:.1} % from the truth", deviation * 100.0));
        }
        for (peer, theirs, problems) in [
            ("the truth", truth, problems),
            ("wrk", pick(&wrk.reported), Vec::new()),
            ("k6", pick(&k6.reported), Vec::new()),
        ] {
            let row_spec = RowSpec { case: &case, unit, peer, target: None };
            rows.push(Row::compare(&row_spec, &reported, &theirs, problems));
        }
    }
    Ok(rows)
}

/// Runs a generator over a stall; returns its report and the real duration of the stall.
fn run_with_stall(bench: &Bench, generator: &Generator) -> Result<(Report, Duration)> {
    let server = Server::start_simulated(&bench.weir, &[], NUMBER_CALL)?;
    // wrk is closed loop: a connection sends its next request after the last response.
    let is_open_loop = !matches!(generator, Generator::Wrk);
    let spec = LoadSpec {
        target: server.address,
        body: NUMBER_CALL,
        rate: is_open_loop.then_some(STALL_RATE),
        connections: if is_open_loop { STALL_WORKERS } else { CONNECTIONS },
        seconds: STALL_SECONDS,
    };
    let running = generator.start(&spec)?;
    shell::pause(STALL_AFTER);
    server.send_signal("-STOP");
    let started = Instant::now();
    shell::pause(STALL);
    server.send_signal("-CONT");
    let stall = started.elapsed();
    Ok((running.finish(Duration::from_secs(STALL_SECONDS) + END_TIMEOUT)?, stall))
}

/// Requests per second of the memory case.
const MEMORY_RATE: u32 = 20_000;
/// Seconds from the start after which memory must not grow.
const SETTLE_SECONDS: usize = 60;
/// Largest allowed ratio of the highest memory after [`SETTLE_SECONDS`] to the settled memory
/// ([`find_growth`]).
const GROWTH_MAX: f64 = 1.05;

/// Measures the generator's memory over minutes at a high rate.
///
/// # Errors
/// Fails if the generator or the server does not run.
pub(crate) fn measure_memory(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, _) = Server::start_backend_on(SERVER_CORE, 1, NUMBER_CALL)?;
    let seconds = bench.minutes * 60;
    let spec = LoadSpec {
        target: backend.address,
        body: NUMBER_CALL,
        rate: Some(MEMORY_RATE),
        connections: CONNECTIONS,
        seconds,
    };
    eprintln!("memory: {} minutes at {MEMORY_RATE}/s", bench.minutes);
    let before = count_served(&backend)?;
    let running = Generator::Weir(bench.weir.clone()).start(&spec)?;
    wait_for_load(&backend, before)?;
    let samples = sample_memory(&running, seconds)?;
    let mut problems = running.finish(END_TIMEOUT)?.problems;
    let (settled, largest) = find_growth(&samples);
    if !largest.is_finite() {
        problems.push(format!("{} samples, more than {SETTLE_SECONDS} are needed", samples.len()));
    }
    eprintln!("memory: {settled:.1} MiB after a minute, {largest:.1} MiB at most");
    let row_spec = RowSpec {
        case: &format!("{} minutes at {MEMORY_RATE}/s", bench.minutes),
        unit: "MiB resident",
        peer: "ourselves, after a minute",
        target: Some(GROWTH_MAX),
    };
    Ok(vec![Row::compare(&row_spec, &[largest], &[settled], problems)])
}

/// Samples resident memory every second. Stops shortly before the end, when results are written.
fn sample_memory(running: &RunningGenerator, seconds: u64) -> Result<Vec<f64>> {
    let started = Instant::now();
    let duration = Duration::from_secs(seconds.saturating_sub(MARGIN_SECONDS));
    machine::sample_memory(running.group(), || started.elapsed() < duration)
}

/// Returns the settled memory and the largest memory from then on. The settled memory is the median
/// of the first ten samples after [`SETTLE_SECONDS`]. Returns NaN if there are too few samples.
fn find_growth(samples: &[f64]) -> (f64, f64) {
    let settled = samples.get(SETTLE_SECONDS..).unwrap_or_default();
    let first_settled = &settled[..settled.len().min(10)];
    (median(first_settled), settled.iter().copied().fold(f64::NAN, f64::max))
}

#[cfg(test)]
mod tests;
