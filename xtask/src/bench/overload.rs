//! Measures the gateway at three times the capacity of its nodes: goodput (successful calls per
//! second), p99 of the high-priority class, and memory.
//!
//! Two simulated nodes of known capacity and the gateway run on core 0. Two processes of
//! `weir load` run on core 1, one for each class of calls. Calls of the high-priority class carry
//! an API key. The load is open loop.
//!
//! Each repetition first loads a gateway without a concurrency limit at three times the capacity.
//! Then it starts a gateway with the limit and loads it three times. The *calm* load is below the
//! capacity, the *peak* is at the capacity, and the *overload* is three times the capacity. Each
//! load starts with a warm-up, in which the gateway finds its limit.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use anyhow::Result;

use super::machine::{self, MIB};
use super::row::{Row, RowSpec};
use super::search::create_result_folder;
use super::server::{Contender, PROBE, Server};
use super::{Bench, weir_load};
use crate::shell;

/// Arguments of each simulated node. It serves 8 calls at once, each in 10 ms, and its chain does
/// not grow during a round.
const NODE: [&str; 4] = ["--capacity", "8:10ms", "--block-time", "1h"];
/// Responses per second of two such nodes.
const CAPACITY: u64 = 1_600;
/// Calls per second of the high-priority class, in every load.
const HIGH_RATE: u64 = 300;
/// API key of the high-priority class.
const KEY: &str = "0123456789abcdef0123";
/// Line of the `[overload]` table with the concurrency limit. Callers of the tier gold have high
/// priority.
const LIMITED: &str = "high_tiers = [\"gold\"]";
/// Line of the `[overload]` table without the concurrency limit.
const UNLIMITED: &str = "enabled = false";
/// Duration of a load as a multiple of `--seconds` (20 s by default). The first fifth is the
/// warm-up.
const LOAD_FACTOR: u64 = 5;
/// Largest allowed ratio of peak goodput to goodput at three times the capacity. It allows a loss
/// of 10 %.
const PEAK_MAX: f64 = 1.0 / 0.9;
/// Largest allowed ratio of the high class's p99 at three times the capacity to its p99 in the calm
/// load.
const P99_MAX: f64 = 2.0;
/// Largest allowed ratio of memory at the end of the overload to memory after two fifths of the
/// overload.
const GROWTH_MAX: f64 = 1.05;
/// Largest allowed ratio of goodput without the limit to goodput with the limit. It allows for
/// noise.
const UNLIMITED_MAX: f64 = 1.05;

/// The result of a load of both classes.
struct LoadResult {
    /// Successful calls per second of both classes.
    goodput: f64,
    /// 99th percentile latency of the high-priority class.
    high_p99_ms: f64,
    /// Share of failed calls of the high-priority class.
    high_failed_share: f64,
    /// Resident bytes of the gateway after two fifths of the load.
    memory_start: u64,
    /// Resident bytes of the gateway shortly before the end of the load.
    memory_end: u64,
}

/// Measures goodput, the high class's p99 and memory at three times the capacity.
///
/// # Errors
/// Fails if a process does not run or gives no result.
pub(crate) fn measure_overload(bench: &Bench) -> Result<Vec<Row>> {
    let folder = create_result_folder(bench, "overload")?;
    // For each of the four rows: its first and its second figures, by repetition. A row is compared
    // as the ratio of the first figure to the second.
    let mut figures: [(Vec<f64>, Vec<f64>); 4] = Default::default();
    let mut problems = Vec::new();
    for repetition in 1..=bench.repetitions {
        let nodes = [start_node(bench)?, start_node(bench)?];
        let start_gateway = |overload: &str| {
            let extra = format!(
                "[overload]\n{overload}\n[access]\nrequired = false\n\
                 [[key]]\nname = \"paid\"\nsecret = \"{KEY}\"\ntier = \"gold\"\n"
            );
            let contender = Contender::WeirConfigured {
                label: "weir",
                program: bench.weir.clone(),
                nodes: nodes.iter().map(|node| node.address).collect(),
                cache: false,
                extra,
            };
            Server::start(&contender, PROBE)
        };
        let unlimited =
            run_load(bench, &folder, &start_gateway(UNLIMITED)?, 3 * CAPACITY - HIGH_RATE)?;
        let gateway = start_gateway(LIMITED)?;
        let load_at = |low_rate: u64| run_load(bench, &folder, &gateway, low_rate);
        let calm = load_at(CAPACITY / 4)?;
        let peak = load_at(CAPACITY - HIGH_RATE)?;
        let overload = load_at(3 * CAPACITY - HIGH_RATE)?;
        eprintln!(
            "overload {repetition}/{}: goodput {:.0} at the capacity, {:.0} at three times, {:.0} \
             without the limit; high p99 {:.1} ms calm, {:.1} ms, {:.1} ms without the limit; {:.1} to \
             {:.1} MiB",
            bench.repetitions,
            peak.goodput,
            overload.goodput,
            unlimited.goodput,
            calm.high_p99_ms,
            overload.high_p99_ms,
            unlimited.high_p99_ms,
            overload.memory_start as f64 / MIB,
            overload.memory_end as f64 / MIB,
        );
        // At most one in a thousand calls of the high-priority class may fail.
        if overload.high_failed_share > 0.001 {
            let percent = overload.high_failed_share * 100.0;
            problems.push(format!("{percent:.2} % of the high-priority class failed"));
        }
        let pairs = [
            // This is the ratio of peak to overload, so that a larger ratio is worse, as in every
            // other row.
            (peak.goodput.max(overload.goodput), overload.goodput),
            (unlimited.goodput, overload.goodput),
            (overload.high_p99_ms, calm.high_p99_ms),
            (overload.memory_end as f64 / MIB, overload.memory_start as f64 / MIB),
        ];
        for ((ours, theirs), (our_figure, their_figure)) in figures.iter_mut().zip(pairs) {
            ours.push(our_figure);
            theirs.push(their_figure);
        }
    }
    let subjects = [
        ("overload, peak over goodput", "responses/s", "ourselves at 3 x", PEAK_MAX),
        ("overload, goodput without the limit", "responses/s", "ourselves with it", UNLIMITED_MAX),
        ("overload, p99 of the high class", "ms", "ourselves calm", P99_MAX),
        ("overload, memory", "MiB resident", "ourselves before", GROWTH_MAX),
    ];
    let rows = subjects.iter().zip(&figures).map(|((case, unit, peer, target), (ours, theirs))| {
        let row_spec = RowSpec { case, unit, peer, target: Some(*target) };
        Row::compare(&row_spec, ours, theirs, problems.clone())
    });
    Ok(rows.collect())
}

fn start_node(bench: &Bench) -> Result<Server> {
    Server::start_simulated(&bench.weir, &NODE, PROBE)
}

/// Sends both classes of calls at once: high priority at its fixed rate, and low priority at
/// `low_rate`.
fn run_load(bench: &Bench, folder: &Path, gateway: &Server, low_rate: u64) -> Result<LoadResult> {
    let high_load = start_load(bench, folder, gateway, "high", HIGH_RATE)?;
    let low_load = start_load(bench, folder, gateway, "low", low_rate)?;
    shell::pause(Duration::from_secs(2 * bench.seconds));
    let memory_start = machine::resident_bytes(gateway.group())?;
    shell::pause(Duration::from_secs((LOAD_FACTOR - 2) * bench.seconds - 1));
    let memory_end = machine::resident_bytes(gateway.group())?;
    let (high, low) = (weir_load::finish(high_load)?, weir_load::finish(low_load)?);
    Ok(LoadResult {
        goodput: high.goodput + low.goodput,
        high_p99_ms: high.p99_ms,
        high_failed_share: high.failed_share,
        memory_start,
        memory_end,
    })
}

/// Starts the load of one class, `high` or `low`. Only the class `high` sends the API key.
fn start_load(
    bench: &Bench,
    folder: &Path,
    gateway: &Server,
    name: &str,
    rate: u64,
) -> Result<Child> {
    let key = match name {
        "high" => format!("headers = {{ authorization = \"Bearer {KEY}\" }}\n"),
        _ => String::new(),
    };
    let (address, seconds, warmup) = (gateway.address, LOAD_FACTOR * bench.seconds, bench.seconds);
    let text = format!(
        "[target]\nurl = \"http://{address}\"\ntimeout = \"10s\"\n{key}\
         [validity]\nwaited_share_max = 1\n[run]\nwarmup = \"{warmup}s\"\n\
         [[scenario]]\nname = \"{name}\"\nmix = \"own\"\nworkers_max = 2000\n\
         stages = [{{ name = \"s\", duration = \"{seconds}s\", rate = {rate} }}]\n\
         [[mix.own.calls]]\nmethod = \"eth_getBalance\"\n\
         params = [{{ draw = \"address\" }}, \"latest\"]\n"
    );
    weir_load::start(bench, &folder.join(format!("{name}.toml")), &text)
}
