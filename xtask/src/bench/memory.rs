//! Measures the gateway's resident memory with 10,000 idle connections, and while distinct
//! responses pass through a full cache.
//!
//! A *contender* is a server in a comparison: Weir or a peer. A *row* of the results compares our
//! figure with another figure. Its *target* is the largest allowed ratio of our figure to the other
//! figure.

use std::thread;

use anyhow::{Context, Result, ensure};

use super::http::Connection;
use super::load::{self, COUNTER_FIRST, COUNTER_MAX, Load, Summary, transaction_count_call};
use super::machine::{self, MIB};
use super::row::{Row, RowSpec, median};
use super::server::{Cache, Contender, Server};
use super::{Bench, CONNECTIONS};

/// Number of connections that have sent one call and stay open.
const IDLE_CONNECTIONS: usize = 10_000;
/// Bytes of the cache, which distinct calls overflow.
const CACHE_BYTES: u64 = 64 << 20;
/// Largest allowed ratio of memory at the end to memory at half time. It allows for noise.
const GROWTH_MAX: f64 = 1.05;
/// Duration of the flow of distinct calls as a multiple of `--seconds`: 5 minutes for the default
/// of 4 s.
const FLOW_FACTOR: u64 = 75;
/// Number of windows in the second half of the samples. The first and the last of these windows are
/// compared.
const WINDOWS: usize = 10;
/// Minimum number of samples. With this number a window has at least two samples.
const SAMPLES_MIN: usize = 4 * WINDOWS;

/// Measures memory with idle connections against nginx. The row has no target.
///
/// # Errors
/// Fails if a server does not run or closes a connection.
pub(crate) fn measure_idle_connections(bench: &Bench) -> Result<Vec<Row>> {
    let call = transaction_count_call(COUNTER_FIRST);
    let (_backend, nodes) = Server::start_backend(1, &call)?;
    let ours = bench.weir_contender("weir", nodes, Cache::Bytes(CACHE_BYTES));
    let response = r#"{"jsonrpc":"2.0","id":1,"result":"0x8"}"#.to_owned();
    let peer = Contender::NginxReturn { response };
    let (mut our_figures, mut peer_figures) = (Vec::new(), Vec::new());
    for repetition in 1..=bench.repetitions {
        for (contender, figures) in [(&ours, &mut our_figures), (&peer, &mut peer_figures)] {
            let mebibytes = measure_idle_mebibytes(contender, &call)?;
            eprintln!(
                "memory idle {repetition}/{}: {:<14} {mebibytes:.1} MiB",
                bench.repetitions,
                contender.name()
            );
            figures.push(mebibytes);
        }
    }
    let row_spec = RowSpec {
        case: "10,000 idle connections",
        unit: "MiB resident",
        peer: peer.name(),
        target: None,
    };
    Ok(vec![Row::compare(&row_spec, &our_figures, &peer_figures, Vec::new())])
}

fn measure_idle_mebibytes(contender: &Contender, call: &str) -> Result<f64> {
    let server = Server::start(contender, call)?;
    let mut connections = Vec::with_capacity(IDLE_CONNECTIONS);
    for number in 0..IDLE_CONNECTIONS {
        let mut connection = Connection::open(server.address)?;
        let reply = connection.post(call).with_context(|| format!("connection {number}"))?;
        ensure!(reply.status == 200, "connection {number} got status {}", reply.status);
        connections.push(connection);
    }
    let bytes = machine::resident_bytes(server.group())?;
    // The server may have closed a connection that is still open on this side, so the first and the
    // last connection are checked.
    for index in [0, IDLE_CONNECTIONS - 1] {
        connections[index].post(call).with_context(|| format!("idle connection {index}"))?;
    }
    Ok(bytes as f64 / MIB)
}

/// Measures memory while distinct calls pass through a small cache. Memory must not grow in the
/// second half.
///
/// # Errors
/// Fails if a server or wrk does not run.
pub(crate) fn measure_distinct_calls(bench: &Bench) -> Result<Vec<Row>> {
    // A very long flow restarts at the first number. The cache has evicted that entry by then, so
    // the call is a miss again.
    let load = Load::Counter { first: COUNTER_FIRST, count: COUNTER_MAX };
    let (_backend, nodes) = Server::start_backend(1, &load.probe())?;
    let server = Server::start(
        &bench.weir_contender("weir", nodes, Cache::Bytes(CACHE_BYTES)),
        &load.probe(),
    )?;
    let seconds = bench.seconds * FLOW_FACTOR;
    eprintln!("memory flow: {seconds} s of distinct calls");
    let (summary, samples) = sample_memory(&server, &load, seconds)?;
    let problems = find_problems(&summary, samples.len());
    let (start, end) = find_growth(&samples);
    eprintln!(
        "memory flow: {} calls, {:.1} MiB at the end",
        summary.requests,
        samples.last().copied().unwrap_or(f64::NAN)
    );
    let row_spec = RowSpec {
        case: "64 MiB cache, distinct calls",
        unit: "MiB resident",
        peer: "ourselves, at half time",
        target: Some(GROWTH_MAX),
    };
    Ok(vec![Row::compare(&row_spec, &[end], &[start], problems)])
}

/// Runs the load in one thread and samples memory every second in another.
fn sample_memory(server: &Server, load: &Load, seconds: u64) -> Result<(Summary, Vec<f64>)> {
    thread::scope(|scope| {
        let run = scope.spawn(|| load::run(server.address, load, CONNECTIONS, seconds));
        let samples = machine::sample_memory(server.group(), || !run.is_finished())?;
        let summary = run.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
        Ok((summary, samples))
    })
}

/// Returns the reasons why the measurement is invalid. `samples` is the number of memory samples.
fn find_problems(summary: &Summary, samples: usize) -> Vec<String> {
    let mut problems = Vec::new();
    if summary.requests == 0 || summary.errors != [0; 5] {
        let errors = summary.errors;
        problems.push(format!("{} responses, errors {errors:?}", summary.requests));
    }
    if samples < SAMPLES_MIN {
        problems.push(format!("{samples} samples, at least {SAMPLES_MIN} are needed"));
    }
    problems
}

/// Returns the median memory in the first and in the last window of the second half.
fn find_growth(samples: &[f64]) -> (f64, f64) {
    let half = &samples[samples.len() / 2..];
    let window = (half.len() / WINDOWS).max(1).min(half.len());
    (median(&half[..window]), median(&half[half.len() - window..]))
}

#[cfg(test)]
mod tests;
