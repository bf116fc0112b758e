//! Behaviour at three times the nodes' capacity: goodput, p99 of the high-priority class, and the
//! gateway's memory.
//!
//! Two simulated nodes of known capacity and the gateway run on core 0. Two `weir load` run on core
//! 1, one per class, because a target has one API key. The load is open loop.
//!
//! Each repetition starts a new gateway and loads it three times: below the capacity, at the
//! capacity (peak) and at three times the capacity. A gateway without a concurrency limit gets the
//! last load too. A load begins with a warm-up, in which the gateway finds its limit.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::row::{Row, Subject};
use super::search::scratch;
use super::server::{Contender, LOAD_CORE, Server, pinned};
use super::{Bench, machine};
use crate::shell;

const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
const NODE: [&str; 4] = ["--capacity", "8:10ms", "--block-time", "1h"];
/// Responses per second of two such nodes.
const CAPACITY: u64 = 1_600;
/// Calls per second of the high-priority class, in every load.
const HIGH: u64 = 300;
const KEY: &str = "0123456789abcdef0123";
const LIMITED: &str = "\
[overload]
high_tiers = [\"gold\"]

[access]
required = false

[[key]]
name = \"paid\"
secret = \"0123456789abcdef0123\"
tier = \"gold\"
";
const UNLIMITED: &str = "\
[overload]
enabled = false

[access]
required = false

[[key]]
name = \"paid\"
secret = \"0123456789abcdef0123\"
tier = \"gold\"
";
/// Duration of a load as a multiple of `--seconds` (20 s by default). The first fifth is warm-up.
const LOAD_FACTOR: u64 = 5;
/// Largest ratio of peak goodput to goodput at three times the capacity. It means that at least 90
/// % remain.
const PEAK_MAX: f64 = 1.0 / 0.9;
/// Largest ratio of the high class's p99 at three times the capacity to that of the calm load.
const P99_MAX: f64 = 2.0;
/// Largest ratio of memory at the end of the overload to that after the warm-up.
const GROWTH_MAX: f64 = 1.05;
/// Largest ratio of goodput without the limit to goodput with it. It allows for noise.
const UNLIMITED_MAX: f64 = 1.05;
const MIB: f64 = (1 << 20) as f64;

/// The result of a load of both classes.
struct LoadResult {
    goodput: f64,
    high_p99_ms: f64,
    high_failed: f64,
    /// Resident bytes shortly after the warm-up and before the end.
    memory: (u64, u64),
}

/// Measures goodput, the high class's p99 and memory at three times the capacity.
///
/// # Errors
/// If a process does not run or gives no result.
pub(crate) fn overload(bench: &Bench) -> Result<Vec<Row>> {
    let folder = scratch(bench, "overload")?;
    let mut figures: [(Vec<f64>, Vec<f64>); 4] = Default::default();
    let mut problems = Vec::new();
    for repetition in 1..=bench.repetitions {
        let (one, other) = (simulated(bench)?, simulated(bench)?);
        let gateway = |extra| {
            let contender = Contender::WeirConfigured {
                label: "weir",
                program: bench.weir.clone(),
                nodes: vec![one.address, other.address],
                cache: false,
                extra,
            };
            Server::start(&contender, PROBE)
        };
        let without = load(bench, &folder, &gateway(UNLIMITED)?, 3 * CAPACITY - HIGH)?;
        let gateway = gateway(LIMITED)?;
        let load = |low: u64| load(bench, &folder, &gateway, low);
        let calm = load(CAPACITY / 4)?;
        let peak = load(CAPACITY - HIGH)?;
        let over = load(3 * CAPACITY - HIGH)?;
        bench.print_progress(&format!(
            "overload {repetition}/{}: goodput {:.0} at the capacity, {:.0} at three times, {:.0} \
             without the limit; high p99 {:.1} ms calm, {:.1} ms, {:.1} ms without the limit; {:.1} to \
             {:.1} MiB",
            bench.repetitions,
            peak.goodput,
            over.goodput,
            without.goodput,
            calm.high_p99_ms,
            over.high_p99_ms,
            without.high_p99_ms,
            over.memory.0 as f64 / MIB,
            over.memory.1 as f64 / MIB,
        ));
        if over.high_failed > 0.001 {
            problems.push(format!("{:.2} % of the better class failed", over.high_failed * 100.0));
        }
        let pairs = [
            // Inverted, so that a larger ratio is worse, as in every other row.
            (peak.goodput.max(over.goodput), over.goodput),
            (without.goodput, over.goodput),
            (over.high_p99_ms, calm.high_p99_ms),
            (over.memory.1 as f64 / MIB, over.memory.0 as f64 / MIB),
        ];
        for ((ours, theirs), (figure, other)) in figures.iter_mut().zip(pairs) {
            ours.push(figure);
            theirs.push(other);
        }
    }
    let subjects = [
        ("overload, peak over goodput", "answers/s", "ourselves at 3 x", PEAK_MAX),
        ("overload, goodput without the limit", "answers/s", "ourselves with it", UNLIMITED_MAX),
        ("overload, p99 of the high class", "ms", "ourselves calm", P99_MAX),
        ("overload, memory", "MiB resident", "ourselves before", GROWTH_MAX),
    ];
    let rows = subjects.iter().zip(&figures).map(|((case, unit, peer, target), (ours, theirs))| {
        let subject = Subject { case, unit, peer, target: Some(*target) };
        Row::of(&subject, ours, theirs, problems.clone())
    });
    Ok(rows.collect())
}

fn simulated(bench: &Bench) -> Result<Server> {
    Server::start_simulated(&bench.weir, &NODE, PROBE)
}

/// Runs both classes at once, the high one at its fixed rate.
fn load(bench: &Bench, folder: &Path, gateway: &Server, low: u64) -> Result<LoadResult> {
    let high_load = start_load(bench, folder, gateway, "high", HIGH)?;
    let low_load = start_load(bench, folder, gateway, "low", low)?;
    shell::pause(Duration::from_secs(2 * bench.seconds));
    let before = machine::resident_bytes(gateway.group())?;
    shell::pause(Duration::from_secs((LOAD_FACTOR - 2) * bench.seconds - 1));
    let memory = (before, machine::resident_bytes(gateway.group())?);
    let (high, low) = (read_result(high_load)?, read_result(low_load)?);
    Ok(LoadResult { goodput: high.0 + low.0, high_p99_ms: high.2, high_failed: high.1, memory })
}

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
    let plan = folder.join(format!("{name}.toml"));
    fs::write(&plan, text)?;
    let mut command: Command = pinned(LOAD_CORE);
    command.arg(&bench.weir).args(["load", "--json", "-", "--quiet"]).arg(&plan);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start weir load")
}

/// Reads goodput, failed share and p99 of successful calls, without the warm-up.
fn read_result(child: Child) -> Result<(f64, f64, f64)> {
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("weir load said no result: {stderr}"))?;
    let overall = &result["overall"];
    let classes = overall["classes"].as_array().into_iter().flatten();
    let ok = classes.into_iter().find(|class| class["class"] == "ok");
    let figures = (
        overall["goodput"].as_f64(),
        overall["failed_share"].as_f64(),
        ok.and_then(|ok| ok["latency"]["p99_ms"].as_f64()),
    );
    let (Some(goodput), Some(failed), Some(p99)) = figures else {
        bail!("weir load gave no figures: {overall}");
    };
    Ok((goodput, failed, p99))
}
