//! Measures the latency that a gateway adds to a call while its core is half busy. Weir and nginx
//! are compared with the node alone. The node shares the gateway's core. The generator runs alone
//! on the other core, because a generator that competes for CPU fails its own validity checks.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cost::BLOCK_CALL;
use super::load::{self, Load};
use super::row::{Row, RowSpec};
use super::server::{Cache, Contender, LOAD_CORE, SERVER_CORE, Server, pinned_command};
use super::{Bench, CONNECTIONS};

/// Rate of the load, as a share of the lowest capacity of all contenders.
const CAPACITY_SHARE: f64 = 0.5;
/// Maximum number of attempts to get a round with the verdict "pass".
const ATTEMPTS_MAX: usize = 6;
/// An added 99th percentile below this is reported as this value, in milliseconds.
const RESOLUTION_MS: f64 = 0.001;
/// Duration of a round as a multiple of `--seconds`. A longer round makes the 99th percentile
/// stable.
const ROUND_FACTOR: u64 = 2;

/// Median and 99th percentile of one round, in milliseconds from sending to the end of the
/// response.
struct Times {
    p50: f64,
    p99: f64,
}

/// Measures added latency against nginx. Weir reaches the node over HTTP or over WebSocket. All
/// contenders get the same rate: half of the lowest capacity.
///
/// # Errors
/// Fails if a server or the generator does not run.
pub(crate) fn measure_added_latency(bench: &Bench) -> Result<Vec<Row>> {
    let (_backend, nodes) = Server::start_backend_on(SERVER_CORE, 1, BLOCK_CALL)?;
    let contenders = [
        bench.weir_contender("weir by http", nodes.clone(), Cache::Off),
        Contender::WeirUncached {
            label: "weir by websocket",
            program: bench.weir.clone(),
            url: format!("ws://{}", nodes[0]),
        },
        Contender::NginxProxy { node: nodes[0] },
    ];
    let mut rate = f64::INFINITY;
    for contender in &contenders {
        let capacity = measure_capacity(contender)?;
        eprintln!("latency: {} and node sustain {capacity:.0}/s", contender.name());
        rate = rate.min(CAPACITY_SHARE * capacity);
    }
    eprintln!("latency: at {rate:.0}/s");
    // The latency that each contender adds, by repetition.
    let mut times: [Vec<Times>; 3] = Default::default();
    for repetition in 1..=bench.repetitions {
        let round = format!("latency {repetition}/{}", bench.repetitions);
        let Some(alone) = generate(bench, &format!("http://{}", nodes[0]), rate)? else {
            eprintln!("{round}: does not count");
            continue;
        };
        let mut added = Vec::new();
        for contender in &contenders {
            let server = Server::start(contender, BLOCK_CALL)?;
            let url = format!("http://{}", server.address);
            let Some(through) = generate(bench, &url, rate)? else { break };
            let p99 = (through.p99 - alone.p99).max(RESOLUTION_MS);
            added.push(Times { p50: through.p50 - alone.p50, p99 });
        }
        if added.len() < contenders.len() {
            eprintln!("{round}: does not count");
            continue;
        }
        for ((times, added), contender) in times.iter_mut().zip(added).zip(&contenders) {
            eprintln!(
                "{round}: {:<18} adds {:.3} ms at the median, {:.3} ms at p99",
                contender.name(),
                added.p50,
                added.p99
            );
            times.push(added);
        }
    }
    let [http, websocket, nginx] = times;
    ensure!(!nginx.is_empty(), "the generator was valid in no round: bench on a quiet machine");
    let mut rows = Vec::new();
    for (ours, name) in [(&http, "by http"), (&websocket, "by websocket")] {
        type Pick = fn(&Times) -> f64;
        let figures: [(&str, Pick); 2] = [("p50", |times| times.p50), ("p99", |times| times.p99)];
        for (figure, pick) in figures {
            let case = format!("{figure} added at half of the capacity, node {name}");
            let peer = "nginx proxy_pass";
            let row_spec = RowSpec { case: &case, unit: "ms", peer, target: Some(1.0) };
            let figures_of = |times: &[Times]| times.iter().map(pick).collect::<Vec<f64>>();
            rows.push(Row::compare(&row_spec, &figures_of(ours), &figures_of(&nginx), Vec::new()));
        }
    }
    Ok(rows)
}

/// Measures the rate, in calls per second, that saturates the shared core of gateway and node.
fn measure_capacity(contender: &Contender) -> Result<f64> {
    let server = Server::start(contender, BLOCK_CALL)?;
    let load = Load::Constant(BLOCK_CALL.to_owned());
    let (warm_seconds, seconds) = (1, 3);
    load::run(server.address, &load, CONNECTIONS, warm_seconds)?;
    let round = load::measure_round(&server, &load, CONNECTIONS, seconds)?;
    Ok(round.requests_per_second())
}

/// Sends calls at a constant rate (open loop) and returns their times. Repeats the run until its
/// verdict is "pass". Returns `None` if none of [`ATTEMPTS_MAX`] runs has this verdict.
fn generate(bench: &Bench, url: &str, rate: f64) -> Result<Option<Times>> {
    for _ in 0..ATTEMPTS_MAX {
        match generate_once(bench, url, rate)? {
            Ok(times) => return Ok(Some(times)),
            Err(problem) => eprintln!("latency: repeated: {problem}"),
        }
    }
    Ok(None)
}

/// Runs the generator once. The inner result has the times, or the reason why the verdict is not
/// "pass".
fn generate_once(bench: &Bench, url: &str, rate: f64) -> Result<Result<Times, String>> {
    let mut command = pinned_command(LOAD_CORE);
    command.arg(&bench.weir).args(["load", url, "--json", "-", "--quiet", "--body", BLOCK_CALL]);
    command.args(["--rate", &format!("{rate:.0}"), "--warmup", "1s"]);
    command.args(["--duration", &format!("{}s", bench.seconds * ROUND_FACTOR + 1)]);
    let output = command.stdin(Stdio::null()).output().context("cannot run weir load")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let result: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("weir load has no result: {stderr}"))?;
    let overall = &result["overall"];
    let outcome = &result["verdict"]["outcome"];
    if outcome != "pass" {
        let failed = overall["failed_share"].as_f64().unwrap_or_default() * 100.0;
        return Ok(Err(format!(
            "the verdict of weir load is {outcome}, and {failed:.2} % of its calls failed"
        )));
    }
    let service = |name: &str| overall["service"][name].as_f64().context("no service time");
    Ok(Ok(Times { p50: service("p50_ms")?, p99: service("p99_ms")? }))
}
